"""`assay use clean-pr`: from a repository to edits, and from an answer to files, through the door that a user takes."""

import json
import sys
from pathlib import Path

import pytest

from assay._core.errors import InputError

sys.path.insert(0, str(Path(__file__).parents[1] / "synth"))
from clean_pr_helpers import Repo


@pytest.fixture
def repo(tmp_path):
    made = Repo(tmp_path / "shop")
    made.commit({"a.py": "x = 1\ny = 1\n"})
    made.commit({"a.py": "x = 2\ny = 1\n"}, "Set x. Fixes #3")
    made.commit({"README.md": "hello\n"}, "Say hello")
    return made


def test_a_repository_becomes_edits_rejects_and_a_report(run, repo, tmp_path):
    said = run("shop", "-o", "out/edits.jsonl").stdout
    assert said.startswith("3 pull requests\n")
    records = [json.loads(line) for line in (tmp_path / "out/edits.jsonl").read_text().splitlines()]
    assert [record["title"] for record in records] == ["Set x. Fixes #3"]
    rejects = [json.loads(line)["reason"] for line in (tmp_path / "out/edits.rejects.jsonl").read_text().splitlines()]
    assert sorted(rejects) == ["docs_only", "no_parent"]
    report = json.loads((tmp_path / "out/edits.report.json").read_text())
    assert report["pull_requests"] == report["kept"] + sum(report["rejected"].values())


def test_issues_are_linked_from_a_file(run, repo, tmp_path):
    issue = {"repo": "me/shop", "number": 3, "title": "x is wrong", "body": None}
    (tmp_path / "issues.jsonl").write_text(json.dumps(issue) + "\n")
    run("shop", "--name", "me/shop", "--issues", "issues.jsonl")
    record = json.loads((tmp_path / "edits.jsonl").read_text())
    assert record["issues"] == [{"ref": "me/shop#3", "text": "x is wrong"}]


def test_statistics_replay_every_record(run, repo):
    run("shop")
    said = run("stats", "edits.jsonl", "--plot", "lines.png").stdout
    assert "1 of 1 that hold whole files" in said
    assert Path("lines.png").read_bytes().startswith(b"\x89PNG")


def test_samples_are_written(run, repo, tmp_path):
    run("shop", "--tree")
    for stage in ("midtrain", "localize", "navigate", "edit"):
        assert run("samples", "edits.jsonl", "--stage", stage, "-o", f"{stage}.jsonl").stdout.startswith("1 samples")
        assert json.loads((tmp_path / f"{stage}.jsonl").read_text())["stage"] == stage


ANSWER = "Sure:\n\n### a.py\n<<<<<<< SEARCH\nx = 2\n=======\nx = 3\n>>>>>>> REPLACE\n"


def test_an_answer_is_applied(run, repo, tmp_path):
    (tmp_path / "answer.txt").write_text(ANSWER)
    assert run("apply", "answer.txt", "--repo", "shop", "--check").stdout == "would apply: 1 block in a.py\n"
    assert (repo.folder / "a.py").read_text() == "x = 2\ny = 1\n"
    run("apply", "answer.txt", "--repo", "shop")
    assert (repo.folder / "a.py").read_text() == "x = 3\ny = 1\n"


LANGUAGES = "Python, Java, JavaScript, TypeScript, Go, Rust, C, C++, C#, PHP, Ruby, Kotlin"
BAD = {
    "nothing there": (["nowhere"], "nowhere: no such file or folder"),
    "no repository": (["."], ". is not a Git repository; give the folder of a clone (it has a .git)"),
    "no revision": (["shop", "--range", "v9"], "shop: there is no commit 'v9'; expected a revision, or A..B"),
    "no language": (["shop", "--languages", "Cobol"], f"languages: 'Cobol' is not one of {LANGUAGES}"),
    "no mode": (["shop", "--mode", "all"], "mode 'all' is not one of auto, merge, commit"),
    "no issues": (
        ["shop", "--issues", "bad.txt"],
        "bad.txt, line 1: expected a JSON object with repo, number, title and body",
    ),
    "no jobs": (["shop", "-j", "0"], "jobs and limit are whole numbers from 1, not 0"),
    "an answer without blocks": (
        ["apply", "bad.txt"],
        "bad.txt, the answer has no search-and-replace block; expected '<<<<<<< SEARCH' on a line",
    ),
    "no picture": (["stats", "bad.txt", "--plot", "x.doc"], "x.doc: a picture is written as one of .png, .svg, .pdf"),
    "no records": (["stats", "bad.txt"], "bad.txt, line 1 is not a record of edits; expected what `clean-pr` wrote"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_one_sentence_and_leaves_no_output(run, repo, tmp_path, arguments, message):
    (tmp_path / "bad.txt").write_text("hello\n")
    with pytest.raises(InputError) as error:
        run(*arguments)
    assert str(error.value) == message
    assert not (tmp_path / "edits.jsonl").exists()
