"""What authors serve becomes the file that the registry describes, byte for byte."""

import csv
import gzip
import hashlib
import io
import json

import pytest

from assay.datasets import registry
from assay.datasets.convert import RUN, minutes_from_jsonl, responses_from_pyirt, runs_from_jsonl


def as_lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def prepared(name, real_data, monkeypatch):
    """The rows of the prepared file, and its entry."""
    monkeypatch.setenv("ASSAY_DATA", str(real_data))
    entry = registry.find(name)
    content = gzip.decompress(entry.path.read_bytes()) if entry.file.endswith(".gz") else entry.path.read_bytes()
    return list(csv.DictReader(io.StringIO(content.decode()))), entry


def number(text):
    """A cell as JSON has it: nothing, a whole number or a float."""
    if not text:
        return None
    return float(text) if "." in text else int(text)


def test_a_line_per_model_becomes_a_row_per_response():
    lines = [{"subject_id": "a, b", "responses": {"t1": 1, "t2": 0}}, {"subject_id": "c", "responses": {"t2": 1}}]
    assert responses_from_pyirt(as_lines(lines)) == b'model,task,correct\n"a, b",t1,1\n"a, b",t2,0\nc,t2,1\n'


def test_human_times_keep_their_digits_and_cybench_is_left_out():
    lines = [
        {"task_id": "django__django-1", "human_minutes": 3.872983346207417},
        {"task_id": "web_flag-command_unguided", "human_minutes": 6.0},
    ]
    assert minutes_from_jsonl(as_lines(lines)) == b"task,human_minutes\ndjango__django-1,3.872983346207417\n"


def test_what_was_not_recorded_of_a_run_is_an_empty_cell():
    run = {
        "model": "m",
        "benchmark": "b",
        "task_id": "t",
        "score": 1,
        "metadata": {"input_tokens": 5.0, "num_turns": None},
    }
    assert runs_from_jsonl(as_lines([run])).splitlines()[1] == b"m,t,1,5.0,,,"


def test_the_conversion_gives_the_prepared_responses_back(real_data, monkeypatch):
    rows, entry = prepared("bridge-responses", real_data, monkeypatch)
    by_model = {}
    for row in rows:
        by_model.setdefault(row["model"], {})[row["task"]] = int(row["correct"])
    served = as_lines({"subject_id": model, "responses": tasks} for model, tasks in by_model.items())
    # 2,573,705 bytes is the length of the authors' file.
    assert len(served) == 2_573_705
    assert hashlib.sha256(responses_from_pyirt(served)).hexdigest() == entry.sha256


def test_the_conversion_gives_the_prepared_human_times_back(real_data, monkeypatch):
    rows, entry = prepared("bridge-human-minutes", real_data, monkeypatch)
    served = as_lines({"task_id": row["task"], "human_minutes": float(row["human_minutes"])} for row in rows)
    assert hashlib.sha256(minutes_from_jsonl(served)).hexdigest() == entry.sha256


@pytest.mark.parametrize("name", ["market-swebench-runs", "market-gdpval-runs"])
def test_the_conversion_gives_the_prepared_runs_back(name, real_data, monkeypatch):
    rows, entry = prepared(name, real_data, monkeypatch)
    served = as_lines(
        {
            "model": row["model"],
            "task_id": row["task"],
            "score": number(row["solved"]),
            "metadata": {column: number(row[column]) for column in RUN},
        }
        for row in rows
    )
    assert hashlib.sha256(runs_from_jsonl(served)).hexdigest() == entry.sha256
