"""Seeds, optional imports, progress and the cache folder."""

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from platformdirs import user_cache_path

from assay._core import cache
from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.progress import progress_bar
from assay._core.seeds import child_seed, generator

# -------------------------------------------------------------------------------------------------------------- seeds


def test_a_child_seed_is_the_same_in_every_process():
    assert child_seed(0, "case", 3) == 0xAC7EEA9A  # sha256 of ['0', 'case', '3'], its first four bytes, little-endian


@given(names=st.lists(st.one_of(st.text(max_size=5), st.integers()), max_size=4))
def test_a_child_seed_has_32_bits(names):
    assert 0 <= child_seed(7, *names) < 2**32


@given(first=st.lists(st.text(max_size=4), max_size=4), second=st.lists(st.text(max_size=4), max_size=4))
def test_other_names_give_another_seed(first, second):
    assert (child_seed(0, *first) == child_seed(0, *second)) == (first == second)


def test_no_name_can_imitate_two():
    assert child_seed(0, "a\x1fb") != child_seed(0, "a", "b")
    assert child_seed(0, "a', 'b") != child_seed(0, "a", "b")


def test_a_whole_number_and_its_spelling_are_one_name():
    assert child_seed(0, 3) == child_seed(0, "3") == child_seed(0, np.int64(3))


def test_child_seeds_of_a_thousand_cases_are_all_different():
    assert len({child_seed(0, "case", i) for i in range(1000)}) == 1000


def test_a_generator_passes_through():
    rng = np.random.default_rng(0)
    assert generator(rng) is rng


@pytest.mark.parametrize("seed", [5, np.int64(5)])
def test_a_seed_gives_numpys_generator_of_that_seed(seed):
    assert generator(seed).random() == np.random.default_rng(5).random()


def test_no_seed_gives_fresh_entropy():
    assert generator(None).random() != generator(None).random()


def test_a_random_state_shares_its_stream():
    old = np.random.RandomState(0)
    before = generator(old).random()
    assert generator(old).random() != before
    assert old.random_sample() not in (before, np.random.RandomState(0).random_sample())


@pytest.mark.parametrize("value", [-1, 1.5, "0", True])
def test_what_is_no_seed_is_refused(value):
    with pytest.raises(InputError, match="expected a whole number from 0, a numpy Generator or None"):
        generator(value)


# ------------------------------------------------------------------------------------------------------------- extras


def test_a_module_that_is_there_is_imported():
    assert need("json", extra="x", purpose="reading") is sys.modules["json"]


def test_a_missing_module_names_the_extra_that_brings_it():
    with pytest.raises(InputError) as caught:
        need("no_such_module", extra="lm", purpose="the demo language model")
    assert str(caught.value) == (
        "the demo language model needs the package 'no_such_module', which is not installed: pip install 'assay-ml[lm]'"
    )


def test_a_module_that_is_there_but_broken_keeps_its_own_error(tmp_path, monkeypatch):
    (tmp_path / "half_installed.py").write_text("import no_such_module_at_all")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
        need("half_installed", extra="x", purpose="it")


# ----------------------------------------------------------------------------------------------------------- progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "is_drawn"), [(io.StringIO, False), (Terminal, True)])
@pytest.mark.parametrize("in_bytes", [False, True])
def test_progress_is_drawn_for_a_terminal_only(monkeypatch, stream, is_drawn, in_bytes):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream())
    with progress_bar(in_bytes=in_bytes) as progress:
        progress.advance(progress.add_task("cases [1]", total=3), 3)
    assert ("cases [1]" in sys.stderr.getvalue()) is is_drawn


# -------------------------------------------------------------------------------------------------------------- cache


def test_the_cache_folder_is_the_one_that_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path))
    assert cache.cache_dir() == tmp_path


def test_the_cache_folder_may_be_named_from_home(monkeypatch):
    monkeypatch.setenv("ASSAY_DATA", "~/data")
    assert cache.cache_dir() == Path.home() / "data"


@pytest.mark.parametrize("value", [None, ""])
def test_the_cache_folder_is_the_platforms_otherwise(monkeypatch, value):
    monkeypatch.delenv("ASSAY_DATA", raising=False)
    if value is not None:
        monkeypatch.setenv("ASSAY_DATA", value)
    assert cache.cache_dir() == user_cache_path("assay", appauthor=False)


def test_what_assay_makes_goes_below_a_cache_folder_that_can_be_written_to(monkeypatch, tmp_path):
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path / "not there yet"))
    assert cache.made_dir() == tmp_path / "not there yet"


def test_what_assay_makes_never_goes_below_a_read_only_cache_folder(monkeypatch, tmp_path):
    tmp_path.chmod(0o555)
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path))
    assert cache.made_dir() == user_cache_path("assay", appauthor=False)
    tmp_path.chmod(0o755)
