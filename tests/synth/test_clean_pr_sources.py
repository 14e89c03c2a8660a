"""From a repository, a JSONL file or patches to records: every change is kept and replays, or has its reason."""

import gzip
import json
import os
import subprocess
import sys
import tarfile
import time
from collections import Counter

import pytest
from clean_pr_helpers import Repo

from assay._core.errors import InputError
from assay.synth.clean_pr import (
    REASONS,
    FileChange,
    PRFilter,
    PullRequest,
    Reject,
    build,
    building,
    clean,
    clean_one,
    find_references,
    from_jsonl,
    iter_prs,
    open_source,
    read_records,
    replays,
    stats,
)
from assay.synth.clean_pr.sources import GitSource, PatchSource
from assay.synth.clean_pr.sources.git import spdx
from assay.synth.clean_pr.sources.given import blob_id

LONG = "".join(f"line_{k} = {k}\n" for k in range(20))


@pytest.fixture
def repo(tmp_path):
    made = Repo(tmp_path / "shop")
    licence = "Permission is hereby granted, free of charge, to any person"
    licence = "Permission is hereby granted, free of charge, to any person"
    made.commit({"a.py": LONG, "b.py": "x\n", "README.md": "hello\n", "LICENSE": licence}, "Start")
    return made


def cleaned(repo, mode="commit", **options):
    return clean(iter_prs(repo.folder, mode=mode), PRFilter(**options))


def reason_of(repo, **options):
    """The reason of the newest commit."""
    newest = next(iter_prs(repo.folder, mode="commit"))
    outcome = newest if isinstance(newest, Reject) else clean_one(newest, PRFilter(**options))
    return outcome.reason if isinstance(outcome, Reject) else None


# --------------------------------------------------------------------------------------------------------------- Git


def test_a_commit_becomes_a_record_with_its_provenance(repo):
    base = repo.git("rev-parse", "HEAD")
    head = repo.commit({"a.py": LONG.replace("line_7 = 7", "line_7 = 70")}, "Make seven seventy (#12)\n\nFixes #3")
    record = cleaned(repo)[0][0]
    known = {name: record[name] for name in ("repo", "number", "base_commit", "merge_commit", "license", "author")}
    expected = {
        "repo": "shop",
        "number": 12,
        "base_commit": base,
        "merge_commit": head,
        "license": "MIT",
        "author": "Ada",
    }
    assert known == expected
    assert record["title"] == "Make seven seventy (#12)"
    assert record["files"][0]["blocks"] == [{"search": "line_7 = 7\n", "replace": "line_7 = 70\n"}]
    assert record["files"][0]["content"] == LONG


def test_merge_commits_are_pull_requests_beside_their_first_parent(repo):
    repo.git("checkout", "-q", "-b", "topic")
    repo.commit({"a.py": LONG.replace("line_1 =", "one =")}, "One", author="Grace")
    repo.commit({"a.py": LONG.replace("line_1 =", "one =").replace("line_9 =", "nine =")}, "Nine", author="Grace")
    repo.git("checkout", "-q", "main")
    repo.commit({"b.py": "y\n"}, "Meanwhile")
    repo.git("merge", "-q", "--no-ff", "topic", "-m", "Merge pull request #7 from grace/topic\n\nName the numbers")
    records, rejects, report = cleaned(repo, mode="auto")
    assert (report.n, len(rejects)) == (1, 0)
    assert (records[0]["number"], records[0]["title"], records[0]["author"]) == (7, "Name the numbers", "Grace")
    assert [len(file["blocks"]) for file in records[0]["files"]] == [2]


def test_every_record_gives_the_blob_that_git_has(repo):
    for k in range(5):
        repo.commit({"a.py": LONG.replace(f"line_{k} = {k}", f"line_{k} = -{k}\nnew = {k}"), "b.py": f"{k}\n"})
    for record in cleaned(repo)[0]:
        assert replays(record) is True
        for file in record["files"]:
            assert file["blob_after"] == repo.git("rev-parse", f"{record['merge_commit']}:{file['path']}")


AWKWARD = {
    "carriage returns": (b"a\r\nb\r\n", b"a\r\nc\r\n"),
    "no newline at the end": (b"a\nb", b"a\nb\n"),
    "tabs": (b"\ta\n\t\tb\n", b"\ta\n        b\n"),
    "byte order mark": (b"\xef\xbb\xbfa\n", b"a\n"),
    "from empty": (b"", b"a\n"),
    "to empty": (b"a\n", b""),
    "form feeds": (b"a\x0cb\nc\n", b"a\x0cb\nd\n"),
    "old mac line ends": (b"a\rb\rc", b"a\rB\rc"),
    "signs of blocks": (
        b"<<<<<<< SEARCH\n=======\n>>>>>>> REPLACE\n",
        b"<<<<<<< SEARCH\nx\n=======\n>>>>>>> REPLACE\n",
    ),
}


@pytest.mark.parametrize(("before", "after"), AWKWARD.values(), ids=AWKWARD)
def test_awkward_files_replay_byte_for_byte(repo, before, after):
    repo.commit({"c.py": before})
    repo.commit({"c.py": after})
    record = cleaned(repo)[0][0]
    assert replays(record) is True
    assert record["files"][0]["blob_after"] == blob_id(after)


def test_a_rename_with_a_change_is_one_edit(repo):
    repo.git("mv", "a.py", "c.py")
    repo.commit({"c.py": LONG.replace("line_3 = 3\n", "")})
    record = cleaned(repo)[0][0]
    assert [(file["path"], file["rename_to"]) for file in record["files"]] == [("a.py", "c.py")]
    assert replays(record) is True


def test_a_change_of_mode_with_a_change_of_text_keeps_both(repo):
    (repo.folder / "b.py").chmod(0o755)
    repo.commit({"b.py": "y\n"})
    assert cleaned(repo)[0][0]["files"][0]["mode"] == "100755"


def test_a_file_of_100_000_lines_is_kept_with_windows_around_its_blocks(repo):
    lines = [f"value_{k} = {k}\n" for k in range(100_000)]
    repo.commit({"big.py": "".join(lines)})
    lines[50_000] = "value = 0\n"
    repo.commit({"big.py": "".join(lines)})
    file = cleaned(repo)[0][0]["files"][0]
    assert (file["content"], [window["first_line"] for window in file["windows"]]) == (None, [49_801])
    assert file["windows"][0]["text"].startswith("value_49800 = 49800\n")


@pytest.mark.parametrize(
    ("reason", "files"),
    [
        ("docs_only", {"README.md": "new\n"}),
        ("binary_only", {"logo.png": b"\x89PNG\0"}),
        ("binary_only", {"data.py": b"a\0b"}),
        ("no_core_file", {"setup.cfg": "x\n"}),
        ("no_core_file", {"vendor/x.py": "x\n"}),
        ("no_core_file", {"x_pb2.py": "x\n"}),
        ("no_core_file", {"x.py": "# Generated by a tool. DO NOT EDIT.\n"}),
        ("no_core_file", {"node_modules/x/index.js": "x\n", "x.min.js": "x\n"}),
        ("deletes_core_file", {"a.py": None}),
        ("not_utf8", {"latin.py": "x = 'é'\n".encode("latin-1")}),
        ("lfs_pointer", {"x.py": "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"}),
        ("too_many_files", {f"m{k}.py": "x\n" for k in range(6)}),
        ("empty", {}),
    ],
)
def test_a_change_that_is_not_kept_has_its_reason(repo, reason, files):
    repo.commit(files)
    assert reason_of(repo) == reason
    assert reason in REASONS


def test_a_submodule_that_moves_is_no_source(repo):
    repo.git("update-index", "--add", "--cacheinfo", "160000", "1" * 40, "sub")
    repo.git("commit", "-q", "-m", "Move the submodule")
    assert reason_of(repo) == "submodule_only"


def test_a_link_is_no_source(repo):
    (repo.folder / "link.py").symlink_to("/etc/passwd")
    repo.commit({})
    assert reason_of(repo) == "submodule_only"


def test_a_rename_alone_is_not_kept(repo):
    repo.git("mv", "a.py", "c.py")
    repo.commit({})
    assert reason_of(repo) == "rename_or_mode_only"


def test_a_huge_file_is_not_kept(repo):
    repo.commit({"a.py": LONG * 2})
    assert reason_of(repo, max_file_bytes=len(LONG)) == "file_too_large"


def test_a_bot_is_not_kept(repo):
    repo.commit({"b.py": "y\n"}, author="dependabot[bot]")
    assert reason_of(repo) == "bot"


def test_five_files_are_kept_and_the_document_beside_them_is_named(repo):
    repo.commit({f"m{k}.py": "x\n" for k in range(5)} | {"README.md": "new\n"})
    record = cleaned(repo)[0][0]
    assert (len(record["files"]), record["other_files"]) == (5, ["README.md"])


def test_the_first_commit_has_nothing_to_compare_with(repo):
    assert reason_of(repo) == "no_parent"


def test_the_edge_of_a_shallow_clone_has_no_parent(repo, tmp_path):
    repo.commit({"b.py": "y\n"})
    repo.commit({"b.py": "z\n"})
    source = f"file://{repo.folder}"
    subprocess.run(["git", "clone", "-q", "--depth", "2", source, tmp_path / "edge"], check=True, capture_output=True)
    records, rejects, _ = clean(iter_prs(tmp_path / "edge"))
    assert (len(records), [reject.reason for reject in rejects]) == (1, ["no_parent"])


def test_a_path_that_is_not_utf8_is_refused(repo):
    (repo.folder / os.fsdecode(b"\xff.py")).write_text("x\n")
    repo.commit({})
    assert reason_of(repo) == "unsafe_path"


def test_a_range_leaves_out_what_was_there_before(repo):
    first = repo.commit({"b.py": "y\n"})
    repo.commit({"b.py": "z\n"})
    assert len(list(iter_prs(repo.folder, f"{first}..HEAD"))) == 1


BAD_GIT = {
    "no repository": (lambda tmp: GitSource(str(tmp)), r"is not a Git repository; give the folder of a clone"),
    "no revision": (lambda tmp: GitSource(str(tmp / "shop"), "nowhere"), r"there is no commit 'nowhere'; expected a"),
    "no mode": (
        lambda tmp: GitSource(str(tmp / "shop"), mode="all"),
        r"^mode 'all' is not one of auto, merge, commit$",
    ),
}


@pytest.mark.parametrize(("make", "message"), BAD_GIT.values(), ids=BAD_GIT)
def test_what_is_no_repository_or_revision_is_refused(repo, tmp_path, make, message):
    with pytest.raises(InputError, match=message):
        list(make(tmp_path).items())


def test_a_repository_without_commits_is_refused(tmp_path):
    Repo(tmp_path / "empty")
    with pytest.raises(InputError, match="the repository has no commits"):
        list(iter_prs(tmp_path / "empty"))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (b"Apache License\n  Version 2.0, January 2004", "Apache-2.0"),
        (b"GNU GENERAL PUBLIC LICENSE\n Version 3, 29 June 2007", "GPL-3.0"),
        (b"All rights reserved.", None),
    ],
)
def test_licences_are_known_by_their_words(text, name):
    assert spdx(text) == name


# ------------------------------------------------------------------------------------------------------------- JSONL


def jsonl(tmp_path, *records):
    path = tmp_path / "prs.jsonl"
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records), encoding="utf-8")
    return path


PATCH = "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n-x = 1\n+x = 2\n y = 1\n"
BEFORE = {"a.py": "x = 1\ny = 1\n"}


@pytest.mark.parametrize(
    "change",
    [{"before": BEFORE, "patch": PATCH}, {"before": BEFORE, "after": {"a.py": "x = 2\ny = 1\n"}}],
    ids=["patch", "after"],
)
def test_a_line_with_its_files_becomes_a_record(tmp_path, change):
    issues = {"o/r#3": {"title": "x is wrong", "body": "It should be 2."}}
    line = {
        "repo": "o/r",
        "number": 4,
        "title": "Set x",
        "body": "Fixes #3",
        "user": {"login": "ada"},
        "issues": issues,
    }
    records, _, _ = clean(from_jsonl(jsonl(tmp_path, line | change)))
    assert records[0]["issues"] == [{"ref": "o/r#3", "text": "x is wrong\n\nIt should be 2."}]
    assert records[0]["files"][0]["blocks"] == [{"search": "x = 1\n", "replace": "x = 2\n"}]


def test_the_layout_of_swe_bench_is_read_with_a_clone(repo, tmp_path):
    base = repo.git("rev-parse", "HEAD")
    repo.commit({"a.py": LONG.replace("line_7 = 7", "line_7 = 70")})
    patch = repo.git("diff", base, "HEAD") + "\n"
    line = {
        "repo": "o/r",
        "instance_id": "o__r-1",
        "base_commit": base,
        "patch": patch,
        "problem_statement": "Seven\nx",
    }
    path = jsonl(tmp_path, line)
    records, _, _ = clean(from_jsonl(path, repo.folder))
    assert (records[0]["id"], records[0]["title"], replays(records[0])) == ("o__r-1", "Seven", True)
    assert clean(from_jsonl(path))[1][0].reason == "no_base"


@pytest.mark.parametrize(
    ("line", "reason", "detail"),
    [
        ("{broken", "bad_record", "line 2: not JSON"),
        ("[1]", "bad_record", "line 2: not a JSON object"),
        ({"title": "x"}, "bad_record", "line 2: no field `repo`"),
        ({"repo": "o/r"}, "bad_record", "line 2: neither `patch` nor `after` is given"),
        ({"repo": "o/r", "patch": 3}, "bad_record", "line 2: `patch` is int, expected text"),
        ({"repo": "o/r", "before": [], "after": {"a.py": 1}}, "bad_record", "line 2: `after` is not an object of path"),
        ({"repo": "o/r", "patch": PATCH}, "no_base", "line 2: a.py before the patch is not known; give `before`"),
        (
            {"repo": "o/r", "before": {"a.py": "z\n"}, "patch": PATCH},
            "patch_does_not_apply",
            "line 2: hunk 1 does not fit the file at line 1",
        ),
        ({"repo": "o/r", "before": BEFORE, "patch": PATCH, "merged": False}, "not_merged", "merged is false"),
        ({"repo": "o/r", "before": BEFORE, "patch": ""}, "empty", "no file changes"),
        (
            {"repo": "o/r", "before": {"../a.py": "x\n"}, "after": {"../a.py": "y\n"}},
            "unsafe_path",
            "'../a.py': it leads",
        ),
    ],
)
def test_a_line_that_cannot_be_used_is_a_reject_and_the_rest_is_kept(tmp_path, line, reason, detail):
    good = {"repo": "o/r", "id": "good", "before": BEFORE, "patch": PATCH}
    records, rejects, report = clean(from_jsonl(jsonl(tmp_path, good, line)))
    assert (len(records), report.reasons) == (1, Counter([reason]))
    assert rejects[0].detail.startswith(detail)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; expected one pull request a line"),
        ("a,b\n1,2\n", "line 1 is not a JSON object; expected JSON Lines"),
    ],
)
def test_what_is_no_jsonl_is_refused(tmp_path, text, message):
    path = tmp_path / "prs.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        list(from_jsonl(path))


# ----------------------------------------------------------------------------------------------------------- patches


def test_mails_of_format_patch_are_read_by_the_blobs_they_name(repo, tmp_path):
    repo.commit({"a.py": LONG.replace("line_7 = 7", "line_7 = 70")}, "Seven\n\nBecause.")
    repo.commit({"a.py": LONG.replace("line_7 = 7", "line_7 = 71")}, "Seven again")
    repo.git("format-patch", "-q", "-o", str(tmp_path / "mails"), "HEAD~2")
    records, rejects, _ = clean(map((s := open_source(tmp_path / "mails", repo_dir=str(repo.folder))).read, s.items()))
    assert isinstance(s, PatchSource)
    assert not rejects
    assert [(record["title"], record["body"], record["author"]) for record in records] == [
        ("Seven", "Because.", "Ada"),
        ("Seven again", "", "Ada"),
    ]
    assert all(replays(record) for record in records)


def test_a_patch_without_its_base_is_a_reject(tmp_path):
    (tmp_path / "x.patch").write_text(PATCH)
    source = open_source(tmp_path)
    assert source.read("x.patch").reason == "no_base"


def test_a_patch_that_makes_another_file_than_it_names_is_a_reject(repo, tmp_path):
    repo.commit({"b.py": "y\n"})
    mail = repo.git("format-patch", "--stdout", "-1").replace("\n+y\n", "\n+z\n")
    (tmp_path / "mails").mkdir()
    (tmp_path / "mails" / "x.patch").write_text(mail + "\n")
    source = open_source(tmp_path / "mails", repo_dir=str(repo.folder))
    assert source.read("x.patch").reason == "patch_does_not_apply"


# ------------------------------------------------------------------------------------------ filters, links and counts


def pr(number, after=b"y\n", repo="o/r", **options):
    change = FileChange("a.py", b"x\n", after)
    return PullRequest(repo, str(number), "b" * 40, None, "t", "", "ada", (change,), number=number, **options)


def test_of_2001_pull_requests_of_a_repository_2000_are_kept_by_a_seeded_draw():
    prs = [pr(k, b"%d\n" % k) for k in range(2001)]
    records, rejects, report = clean(prs)
    assert (len(records), [reject.reason for reject in rejects]) == (2000, ["over_repository_cap"])
    assert report.adds_up()
    assert clean(prs)[1] == rejects
    assert len({clean(prs[:4], PRFilter(max_per_repo=1), seed=seed)[0][0]["id"] for seed in range(20)}) > 1


def test_the_same_edit_twice_is_kept_once():
    records, rejects, _ = clean([pr(1), pr(2)])
    assert ([record["id"] for record in records], [reject.reason for reject in rejects]) == (["1"], ["duplicate"])


@pytest.mark.parametrize("mark", ["o/r", "o/r#1", "b" * 40])
def test_what_a_model_will_be_evaluated_on_is_left_out(mark):
    assert clean([pr(1)], PRFilter(exclude=frozenset({mark})))[1][0].reason == "excluded"


def test_counts_add_up_to_the_input():
    prs = [pr(1), pr(2, merged=False), pr(3, b"x\n"), pr(4, b"z\n"), Reject("o/r", "5", "bad_record", "")]
    report = clean(prs)[2]
    assert (report.n, report.kept, report.reasons.total(), report.adds_up()) == (5, 2, 3, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"languages": ("Cobol",)}, "languages: 'Cobol' is not one of Python, Java"),
        ({"max_files": 0}, "max_files is 0; expected a whole number from 1"),
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        PRFilter(**options)


def test_three_ways_to_name_an_issue_are_found():
    text = "Fixes #12, closes org/x#7 and https://host/org/x/issues/9"
    assert [str(found) for found in find_references(text, "o/r")] == ["o/r#12", "org/x#7", "org/x#9"]


@pytest.mark.parametrize("text", ["```\n#12\n```", "`#12`", "PR #12abc", "a#b", "&#123;", "page.html#12x"])
def test_what_is_no_issue_is_not_found(text):
    assert find_references(text, "o/r") == []


def test_an_issue_named_twice_is_linked_once():
    found = find_references("#3, fixes #3", "o/r")
    assert [(str(one), one.closes) for one in found] == [("o/r#3", True)]


# ------------------------------------------------------------------------------------------------------------- build


@pytest.fixture
def history(repo):
    for k in range(8):
        repo.commit({"a.py": LONG.replace(f"line_{k} = {k}", f"line_{k} = -{k}"), "b.py": f"{k}\n"})
    repo.commit({"README.md": "new\n"})
    return repo


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr("assay.synth.clean_pr.building.CHUNK", 3)


def test_a_build_writes_records_rejects_and_counts_that_add_up(history, tmp_path):
    report = build(open_source(history.folder), tmp_path / "new" / "edits.jsonl")
    records = list(read_records(tmp_path / "new" / "edits.jsonl"))
    rejects = (tmp_path / "new" / "edits.rejects.jsonl").read_text().splitlines()
    assert (report.n, len(records), len(rejects)) == (10, 8, 2)
    assert report.adds_up()
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "edits.jsonl",
        "edits.rejects.jsonl",
        "edits.report.json",
    ]
    counted = stats(records)
    assert (counted.n_replayed, counted.n_checked) == (8, 8)


def test_two_processes_write_what_one_writes(history, tmp_path):
    build(open_source(history.folder), tmp_path / "one.jsonl")
    build(open_source(history.folder), tmp_path / "two.jsonl", jobs=2)
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()
    assert (tmp_path / "one.rejects.jsonl").read_bytes() == (tmp_path / "two.rejects.jsonl").read_bytes()


def test_a_killed_build_goes_on_where_it_stopped(history, tmp_path, monkeypatch):
    build(open_source(history.folder), tmp_path / "whole.jsonl")
    cleaned_chunks = []

    def until_the_third(chunk):
        cleaned_chunks.append(chunk.number)
        if chunk.number == 2:
            raise KeyboardInterrupt
        return real(chunk)

    real = building.clean_chunk
    monkeypatch.setattr(building, "clean_chunk", until_the_third)
    with pytest.raises(KeyboardInterrupt):
        build(open_source(history.folder), tmp_path / "edits.jsonl")
    assert not (tmp_path / "edits.jsonl").exists()
    monkeypatch.setattr(building, "clean_chunk", lambda chunk: (cleaned_chunks.append(chunk.number), real(chunk))[1])
    build(open_source(history.folder), tmp_path / "edits.jsonl")
    assert cleaned_chunks == [0, 1, 2, 2, 3]
    assert (tmp_path / "edits.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


@pytest.mark.skipif(os.name != "posix", reason="kill -9")
def test_a_build_killed_with_signal_9_goes_on_to_the_same_bytes(tmp_path):
    lines = [
        json.dumps({"repo": "o/r", "id": str(k), "before": {"a.py": LONG}, "after": {"a.py": f"{LONG}last = {k}\n"}})
        for k in range(3_000)
    ]
    (tmp_path / "prs.jsonl").write_text("\n".join(lines))
    command = [sys.executable, "-m", "assay", "use", "clean-pr", "prs.jsonl", "-o"]
    parts = tmp_path / "edits.jsonl.parts"
    process = subprocess.Popen([*command, "edits.jsonl"], cwd=tmp_path, stdout=subprocess.DEVNULL)
    while len(list(parts.glob("*.rejects.jsonl"))) < 3:
        assert process.poll() is None, "the build ended before it could be killed"
        time.sleep(0.002)
    process.kill()
    process.wait()
    assert len(list(parts.glob("*.rejects.jsonl"))) < 30
    assert not (tmp_path / "edits.jsonl").exists()
    for name in ("edits.jsonl", "whole.jsonl"):
        subprocess.run([*command, name], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "edits.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_parts_of_another_run_are_not_gone_on_with(history, tmp_path):
    (tmp_path / "edits.jsonl.parts").mkdir()
    (tmp_path / "edits.jsonl.parts" / "plan.json").write_text("{}")
    with pytest.raises(InputError, match="holds parts of a run with another source or other options; remove it"):
        build(open_source(history.folder), tmp_path / "edits.jsonl")


def test_a_gzipped_jsonl_is_built_too(tmp_path):
    lines = [json.dumps({"repo": "o/r", "id": str(k), "before": BEFORE, "after": {"a.py": f"{k}\n"}}) for k in range(7)]
    (tmp_path / "prs.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    assert build(open_source(tmp_path / "prs.jsonl.gz"), tmp_path / "edits.jsonl").kept == 7


def test_records_that_are_none_are_refused(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(InputError, match="line 1 is not a record of edits; expected what `clean-pr` wrote"):
        list(read_records(tmp_path / "x.jsonl"))


def test_a_record_that_was_tampered_with_does_not_replay(repo):
    repo.commit({"b.py": "y\n"})
    record = cleaned(repo)[0][0]
    assert replays(record) is True
    assert replays(record | {"edit": record["edit"].replace("\ny\n", "\nz\n")}) is False


# ------------------------------------------------------------------------------------- real releases, and a Ray cluster


@pytest.mark.slow
def test_ray_writes_what_one_process_writes(history, tmp_path):
    build(open_source(history.folder), tmp_path / "one.jsonl")
    build(open_source(history.folder), tmp_path / "ray.jsonl", ray_address="local")
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "ray.jsonl").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "versions"), [("click", ("8.1.3", "8.1.7")), ("requests", ("2.28.0", "2.31.0", "2.32.3"))]
)
def test_releases_of_real_packages_replay_byte_for_byte(tmp_path, package, versions):
    made = Repo(tmp_path / package)
    for version in versions:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", tmp_path]
        got = subprocess.run([*command, f"{package}=={version}"], capture_output=True, check=False)
        if got.returncode:
            pytest.skip(f"{package} {version} cannot be downloaded here")
        with tarfile.open(tmp_path / f"{package}-{version}.tar.gz") as archive:
            archive.extractall(tmp_path / version, filter="data")
        tree = tmp_path / version / f"{package}-{version}"
        files = {path.relative_to(tree).as_posix(): path.read_bytes() for path in tree.rglob("*") if path.is_file()}
        old = {path: None for path in made.git("ls-files").splitlines() if path not in files}
        made.commit(old | files, f"Release {version}")
    records, rejects, _ = clean(iter_prs(made.folder), PRFilter(max_files=1000, keep_deletions=True))
    assert [reject.reason for reject in rejects] == ["no_parent"]
    assert len(records) == len(versions) - 1
    assert all(replays(record) for record in records)
