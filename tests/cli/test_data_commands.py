"""`assay data list|get|path`."""

import json

from assay import datasets


def test_list_says_what_there_is_and_what_is_here(assay, tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path))
    listed = json.loads(assay("data", "list", "--json").stdout)
    assert [entry["name"] for entry in listed] == [entry.name for entry in datasets.list_datasets()]
    assert {entry["cached"] for entry in listed if entry["kind"] == "file"} == {False}
    assert f"Cache folder: {tmp_path}" in assay("data", "list").stdout.replace("\n", "")


def test_path_prints_where_a_data_set_is(assay, real_data):
    done = assay("data", "path", "judge-votes-arena")
    assert done.stdout.strip().endswith("judge_votes/chatbot_arena.csv.gz")


def test_path_of_what_is_not_here_says_how_to_get_it(assay, tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path))
    done = assay("data", "path", "judge-votes-arena")
    assert done.returncode == 2
    assert done.stderr.startswith("error: judge-votes-arena is not here: run assay data get judge-votes-arena")


def test_an_unknown_name_is_answered_with_the_known_ones(assay):
    done = assay("data", "get", "imagenet")
    assert done.returncode == 2
    assert "imagenet" in done.stderr
    assert "judge-votes-arena" in done.stderr
