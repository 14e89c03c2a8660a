"""The list of data sets holds what a user must know, and nothing that reaches out of the cache folder."""

import json
import re
from pathlib import PurePosixPath

import pytest

from assay import datasets
from assay._core.errors import InputError
from assay.datasets import registry

ENTRIES = datasets.list_datasets()
FILES = [entry for entry in ENTRIES if entry.kind == "file"]
PACKAGES = [entry for entry in ENTRIES if entry.kind == "package"]

by_name = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
files = pytest.mark.parametrize("entry", FILES, ids=lambda entry: entry.name)
packages = pytest.mark.parametrize("entry", PACKAGES, ids=lambda entry: entry.name)


def test_the_names_are_those_of_the_documentation():
    expected = ["judge-votes-arena", "judge-votes-ultrafeedback", "alpaca-eval"]
    expected += ["bridge-responses", "bridge-human-minutes", "bridge-release-dates"]
    expected += ["market-mini-coder-4b", "market-qwen3-coder-30b", "market-qwen3-coder-480b"]
    expected += ["market-swebench-runs", "market-gdpval-runs"]
    systems = ["apache", "bgl", "hdfs", "hpc", "hadoop", "linux", "openssh", "spark", "thunderbird", "zookeeper"]
    expected += [f"loghub-{system}" for system in systems]
    expected += [f"short-text-{name}" for name in ("agnews", "google-news-t", "search-snippets", "stackoverflow")]
    expected += ["demo-lm", "demo-encoder", "time-series"]
    assert [entry.name for entry in ENTRIES] == expected


@by_name
def test_every_entry_says_whose_it_is(entry):
    assert all([entry.title, entry.description, entry.licence, entry.citation])
    assert entry.source.startswith("https://")


@by_name
def test_every_entry_has_a_checksum_and_a_size(entry):
    assert re.fullmatch("[0-9a-f]{64}", entry.sha256)
    assert entry.size > 0


@files
def test_every_file_is_below_the_cache_folder_and_has_its_columns_described(entry):
    path = PurePosixPath(entry.file)
    assert not path.is_absolute()
    assert ".." not in path.parts
    assert all(entry.columns.values())


@files
def test_downloads_are_encrypted(entry):
    assert entry.url is None or entry.url.startswith("https://")


@packages
def test_every_package_is_pinned(entry):
    assert re.fullmatch(r"[a-z0-9-]+==\d+\.\d+\.\d+", entry.requirement)


@files
def test_the_prepared_file_is_the_one_in_the_registry(entry, real_data, monkeypatch):
    monkeypatch.setenv("ASSAY_DATA", str(real_data))
    assert datasets.path(entry.name) == real_data / entry.file


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(InputError) as caught:
        registry.find("mmlu")
    assert str(caught.value).startswith("no data set is named 'mmlu'; there are judge-votes-arena, judge-votes-ultra")


def test_the_authors_json_becomes_csv_with_our_columns():
    vote = {
        "judge_confidence": 0.75,
        "judge_reason": "…",
        "judge_preferred_model": "a",
        "judge_model": "kimi, k2",
        "model_b": "gpt-4",
        "model_a": "claude-v1",
        "question_id": 7,
    }
    unknown = {**vote, "judge_preferred_model": "unknown", "judge_confidence": None}
    assert registry.votes_from_json(json.dumps([vote, unknown]).encode()).decode() == (
        "question_id,model_a,model_b,judge_model,judge_preferred_model,judge_confidence\n"
        '7,claude-v1,gpt-4,"kimi, k2",a,0.75\n'
        '7,claude-v1,gpt-4,"kimi, k2",unknown,\n'
    )


@pytest.mark.parametrize("name", ["judge-votes-arena", "judge-votes-ultrafeedback"])
def test_the_conversion_gives_the_prepared_file_back(name, real_data, monkeypatch):
    """Our part of the conversion: the same votes as JSON come out with the checksum of the registry."""
    import hashlib

    import pandas as pd

    monkeypatch.setenv("ASSAY_DATA", str(real_data))
    entry = registry.find(name)
    votes = pd.read_csv(datasets.path(name), keep_default_na=False, na_values=[""])
    as_json = votes.astype(object).where(votes.notna(), None).to_dict("records")
    content = registry.votes_from_json(json.dumps(as_json).encode())
    assert hashlib.sha256(content).hexdigest() == entry.sha256
