"""`assay use tmafc`: replay, record and answer on files."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pandas as pd
import pytest

from assay._core.errors import InputError

pytest.importorskip("openai")


@pytest.fixture
def samples(tmp_path):
    rows = [
        {
            "question": f"q{n}",
            "samples": [{"a": 1, "b": i % 3 == n % 3} for i in range(12)],
            "gold": {"a": 1, "b": False},
        }
        for n in range(6)
    ]
    path = tmp_path / "samples.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def endpoint():
    """A model that gives every component its name as value, and fails when told to."""
    state = {"requests": 0, "fail_after": None}

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            state["requests"] += 1
            failing = state["fail_after"] is not None and state["requests"] > state["fail_after"]
            reply = json.dumps({"name": f"v{state['requests'] % 5 == 0}", "age": 3})
            choices = [{"index": i, "message": {"role": "assistant", "content": reply}} for i in range(body["n"])]
            document = {"choices": choices, "usage": {"prompt_tokens": 9, "completion_tokens": 5 * body["n"]}}
            content = json.dumps({"error": {"message": "no credit"}} if failing else document).encode()
            self.send_response(402 if failing else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    state["url"] = f"http://127.0.0.1:{server.server_port}/v1"
    yield state
    server.shutdown()
    server.server_close()


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps({"question": f"Who is {n}?"}) + "\n" for n in range(4)), encoding="utf-8")
    return path


def test_replay_prints_the_methods_and_writes_tables_and_a_picture(run, samples, tmp_path):
    out = tmp_path / "new" / "out"
    printed = run("replay", samples, "-o", out).output
    assert "FC + ASCC" in printed
    assert list(pd.read_csv(out / "methods.csv")["method"])[:3] == ["SC", "SC by component", "AC"]
    assert len(pd.read_csv(out / "questions.csv")) == 6 * 6
    assert (out / "methods.png").read_bytes().startswith(b"\x89PNG")


def test_replay_takes_other_names_of_columns(run, tmp_path):
    path = tmp_path / "s.jsonl"
    path.write_text('{"q": "?", "s": [{"a": 1}, {"a": 2}], "truth": {"a": 1}}\n', encoding="utf-8")
    printed = run("replay", path, "-o", tmp_path, "--question", "q", "--samples", "s", "--gold", "truth").output
    assert "1 question, at most 40" in printed


def test_replay_warns_on_stderr_about_equal_samples(run, tmp_path):
    path = tmp_path / "s.jsonl"
    path.write_text('{"question": "?", "samples": [{"a": 1}, {"a": 1}]}\n' * 2, encoding="utf-8")
    assert "warning: all samples of each question are equal" in run("replay", path, "-o", tmp_path).stderr


def test_replay_names_the_row_that_is_wrong(run, tmp_path):
    path = tmp_path / "s.jsonl"
    path.write_text('{"question": "?", "samples": 3}\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"s\.jsonl, row 1, column 'samples': 3 is not a list of samples"):
        run("replay", path, "-o", tmp_path)


def test_what_was_recorded_can_be_replayed(run, questions, endpoint, tmp_path):
    out = tmp_path / "samples.jsonl"
    run("record", questions, "-o", out, "-m", "m", "--url", endpoint["url"], "-n", 6, "--components", "name, age")
    assert "4 questions" in run("replay", out, "-o", tmp_path / "out").output
    assert endpoint["requests"] == 4


def test_recording_goes_on_where_it_stopped(run, questions, endpoint, tmp_path):
    arguments = ["record", questions, "-o", tmp_path / "s.jsonl", "-m", "m", "--url", endpoint["url"], "-n", 6]
    arguments += ["--components", "name,age"]
    endpoint["fail_after"] = 2
    with pytest.raises(InputError, match=r"refuses the request \(402\): .*no credit"):
        run(*arguments)
    assert not (tmp_path / "s.jsonl").exists()
    endpoint["fail_after"] = None
    run(*arguments)
    assert endpoint["requests"] == 3 + 2  # two were kept, one failed, two are new
    assert len((tmp_path / "s.jsonl").read_text(encoding="utf-8").splitlines()) == 4


def test_answers_are_written_as_they_come_and_not_asked_for_again(run, questions, endpoint, tmp_path):
    arguments = ["answer", questions, "-o", tmp_path / "a.jsonl", "-m", "m", "--url", endpoint["url"]]
    arguments += ["--components", "name,age", "--history", tmp_path / "h.jsonl"]
    printed = run(*arguments).output
    asked = endpoint["requests"]
    assert "4 answers from" in printed
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["question"] for row in rows] == [f"Who is {n}?" for n in range(4)]
    assert rows[0]["answer"] == {"name": "vFalse", "age": 3}
    assert sum(row["n_samples"] for row in rows) == asked
    run(*arguments)
    assert endpoint["requests"] == asked
    assert len((tmp_path / "h.jsonl").read_text(encoding="utf-8").splitlines()) == 4


def test_an_interrupted_answer_pays_for_no_reply_twice(run, questions, endpoint, tmp_path):
    arguments = ["answer", questions, "-o", tmp_path / "a.jsonl", "-m", "m", "--url", endpoint["url"], "--uniform"]
    arguments += ["--components", "name,age"]
    endpoint["fail_after"] = 6
    with pytest.raises(InputError):
        run(*arguments)
    endpoint["fail_after"] = None
    run(*arguments)
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 4
    assert sum(row["n_samples"] for row in rows) == endpoint["requests"] - 1  # the one that failed


def test_answers_go_into_a_jsonl_file(run, questions, tmp_path):
    with pytest.raises(InputError, match=r"a\.csv: answers are written line by line; give a name that ends in \.jsonl"):
        run("answer", questions, "-o", tmp_path / "a.csv", "-m", "m", "--url", "http://127.0.0.1:9/v1")


def test_help_opens_with_an_example(run):
    assert "assay use tmafc replay samples.jsonl -o out/" in run("--help").output
