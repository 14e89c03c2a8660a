"""A file is the old one or the new one, never half of one."""

import os

import pytest

from assay._core.errors import InputError
from assay._core.files import replacing, write_text


def names(folder) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_a_file_is_replaced_whole(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    write_text(tmp_path / "a.txt", "new\r\n")
    assert (tmp_path / "a.txt").read_bytes() == b"new\r\n"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path, error):
    (tmp_path / "a.txt").write_text("old")

    def write_half():
        with replacing(tmp_path / "a.txt") as temporary:
            temporary.write_text("ne")
            raise error

    with pytest.raises(error):
        write_half()
    assert (tmp_path / "a.txt").read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_nothing_is_at_the_path_before_all_is_written(tmp_path):
    with replacing(tmp_path / "a.txt") as temporary:
        temporary.write_text("new")
        assert not (tmp_path / "a.txt").exists()
    assert names(tmp_path) == ["a.txt"]


def test_the_temporary_name_keeps_the_suffixes(tmp_path):
    with replacing(tmp_path / "a.csv.gz") as temporary:
        temporary.write_text("x")
        assert temporary.suffixes[-2:] == [".csv", ".gz"]


def test_the_longest_name_can_be_written(tmp_path):
    write_text(tmp_path / ("a" * 251 + ".txt"), "x")
    assert len(names(tmp_path)[0]) == 255


def test_a_link_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real" / "a.txt")
    write_text(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real" / "a.txt").read_text() == "new"


def test_a_folder_is_not_a_file_to_write(tmp_path):
    with pytest.raises(InputError, match="is a folder; give the name of a file to write"):
        write_text(tmp_path, "x")


def test_the_folder_must_exist(tmp_path):
    with pytest.raises(InputError, match=f"cannot write .*: the folder {tmp_path / 'no'} does not exist"):
        write_text(tmp_path / "no" / "a.txt", "x")


def test_a_pipe_is_not_replaced_by_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="it is a device or a pipe"):
        write_text(tmp_path / "pipe", "x")


def test_a_folder_that_may_not_be_written_to_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(InputError, match=f"no permission to write to the folder {tmp_path}"):
        write_text(tmp_path / "a.txt", "x")
