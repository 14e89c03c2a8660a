"""The applier: all or nothing, at once, on whole lines, with errors that say what to do; and the reader of answers."""

import pytest

from assay._core.errors import InputError
from assay.synth.clean_pr import Block, FileEdit, apply_blocks, apply_to_folder, format_blocks, parse_blocks
from assay.synth.clean_pr.edits import unsafe


def one(before, *blocks, fuzzy=False):
    return apply_blocks({"a.py": before}, [FileEdit("a.py", blocks)], fuzzy=fuzzy)


def test_all_blocks_are_searched_in_the_file_as_it_was():
    result = one(b"A\nB\n", Block(b"A\n", b"B\n"), Block(b"B\n", b"C\n"))
    assert result.files["a.py"] == b"B\nC\n"


def test_one_after_another_would_fail_where_at_once_does_not():
    before = b"A\nB\n"
    first = before.replace(b"A\n", b"B\n")
    assert first.count(b"B\n") == 2
    assert one(before, Block(b"A\n", b"B\n"), Block(b"B\n", b"C\n")).ok


def test_a_part_of_a_line_is_no_match():
    assert one(b"xx = 1\nx = 1\n", Block(b"x = 1\n", b"x = 2\n")).files["a.py"] == b"xx = 1\nx = 2\n"


ERRORS = {
    "ambiguous": (
        b"x\ny\nx\n",
        [Block(b"x\n", b"z\n")],
        "a.py, block 1: the search text stands at lines 1 and 3; add lines above or below it until it stands once",
    ),
    "missing": (
        b"def f():\n    return 1\n",
        [Block(b"def f():\n    return 2\n", b"")],
        "a.py, block 1: the search text is not in the file; lines 1–2 come closest (95%); "
        "line 2 is '    return 1\\n', the search text has '    return 2\\n'",
    ),
    "nothing close": (
        b"x\n",
        [Block(b"something else entirely\n", b"")],
        "a.py, block 1: the search text is not in the file, and no lines come close; copy the lines to change from the "
        "file",
    ),
    "windows line ends": (
        b"x\ny\n",
        [Block(b"x\r\n", b"z\r\n")],
        "a.py, block 1: the search text ends its lines with \\r\\n (Windows), the file with \\n; write the file's line "
        "ends, or apply with fuzzy matching",
    ),
    "unix line ends": (
        b"x\r\ny\r\n",
        [Block(b"x\n", b"z\n")],
        "a.py, block 1: the search text ends its lines with \\n, the file with \\r\\n (Windows); write the file's line "
        "ends, or apply with fuzzy matching",
    ),
    "overlap": (
        b"x\ny\nz\n",
        [Block(b"x\ny\n", b""), Block(b"y\nz\n", b"")],
        "a.py, block 2: it replaces lines that block 1 replaces too; make one block of both",
    ),
    "empty search": (
        b"x\n",
        [Block(b"", b"y\n")],
        "a.py, block 1: the search text is empty, but the file exists and is not; search for the lines to change",
    ),
    "empty file": (b"", [Block(b"x\n", b"")], "a.py, block 1: the file is empty; give an empty search text"),
}


@pytest.mark.parametrize(("before", "blocks", "message"), ERRORS.values(), ids=ERRORS)
def test_an_error_says_where_and_what_to_do_and_the_file_stays(before, blocks, message):
    result = one(before, *blocks)
    assert [str(error) for error in result.errors] == [message]
    assert result.files == {"a.py": before}


def test_one_wrong_block_leaves_all_files_as_they_were():
    files = {"a.py": b"x\n", "b.py": b"y\n"}
    edits = [FileEdit("a.py", (Block(b"x\n", b"z\n"),)), FileEdit("b.py", (Block(b"q\n", b"z\n"),))]
    assert apply_blocks(files, edits).files == files


def test_an_unknown_path_names_the_closest_one():
    result = apply_blocks({"src/app.py": b"x\n"}, [FileEdit("scr/app.py", (Block(b"x\n", b"y\n"),))])
    assert str(result.errors[0]) == "scr/app.py: there is no such file; is src/app.py meant?"


def test_a_block_that_changes_nothing_is_a_warning():
    result = one(b"x\n", Block(b"x\n", b"x\n"))
    assert result.ok
    assert [note.kind for note in result.warnings] == ["no_op"]


def test_two_edits_of_one_file_are_refused():
    edit = FileEdit("a.py", (Block(b"x\n", b"y\n"),))
    assert apply_blocks({"a.py": b"x\n"}, [edit, edit]).errors[0].kind == "twice"


def test_the_lines_that_are_replaced_are_told():
    result = one(b"a\nb\nc\nd", Block(b"b\nc\n", b""), Block(b"d", b"e"))
    assert result.spans == {"a.py": [(1, 3), (3, 4)]}


FUZZY = {
    "line_ends": (b"x\r\ny\r\n", Block(b"x\n", b"z\nw\n"), b"z\r\nw\r\ny\r\n"),
    "trailing_space": (b"x  \ny\n", Block(b"x\n", b"z\n"), b"z\ny\n"),
    "indentation": (b"    if a:\n        b\n", Block(b"if a:\n    b\n", b"if c:\n    b\n"), b"    if c:\n        b\n"),
}


@pytest.mark.parametrize("kind", FUZZY)
def test_fuzzy_matching_finds_what_strict_matching_refuses_and_says_so(kind):
    before, block, after = FUZZY[kind]
    assert not one(before, block).ok
    result = one(before, block, fuzzy=True)
    assert (result.files["a.py"], [note.kind for note in result.repairs]) == (after, [kind])


def test_a_missing_newline_at_the_end_is_a_matter_of_line_ends():
    assert one(b"a\nb", Block(b"b\n", b"c\n"), fuzzy=True).files["a.py"] == b"a\nc"


def test_a_fuzzy_match_must_be_the_only_one():
    result = one(b"x \ny\nx  \n", Block(b"x\n", b"z\n"), fuzzy=True)
    assert [error.kind for error in result.errors] == ["ambiguous"]


def test_lines_with_different_shifts_are_no_match():
    result = one(b"  a\n      b\n", Block(b"a\nb\n", b"c\n"), fuzzy=True)
    assert [error.kind for error in result.errors] == ["missing"]


# -------------------------------------------------------------------------------------------------- paths and folders


@pytest.mark.parametrize(
    "path", ["../x", "a/../../x", "/etc/passwd", "C:\\x", "C:x", "\\x", "a//b", "./x", ".git/hooks/x", ""]
)
def test_a_path_that_leads_out_is_refused(path):
    assert unsafe(path) is not None
    result = apply_blocks({}, [FileEdit(path, (Block(b"", b"x\n"),))])
    assert result.errors[0].kind == "unsafe_path"


def test_a_link_in_a_path_is_refused(tmp_path):
    (tmp_path / "repo").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "repo" / "link").symlink_to(tmp_path / "outside")
    edit = FileEdit("link/x.py", (Block(b"", b"x\n"),))
    with pytest.raises(InputError, match=r"^link/x\.py: link is a link; edits through links are refused$"):
        apply_to_folder(tmp_path / "repo", [edit])
    assert not list((tmp_path / "outside").iterdir())


def test_a_folder_is_edited_on_the_disk(tmp_path):
    for name, text in {"a.py": "x\n", "b.py": "y\n", "c.py": "z\n"}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "a.py").chmod(0o755)
    edits = [
        FileEdit("a.py", (Block(b"x\n", b"new\n"),)),
        FileEdit("b.py", delete=True),
        FileEdit("c.py", (Block(b"z\n", b"w\n"),), rename_to="d/c.py"),
        FileEdit("e.py", (Block(b"", b""),)),
    ]
    assert apply_to_folder(tmp_path, edits).ok
    files = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {"a.py": "new\n", "d/c.py": "w\n", "e.py": ""}
    assert (tmp_path / "a.py").stat().st_mode & 0o777 == 0o755


def test_a_check_writes_nothing(tmp_path):
    (tmp_path / "a.py").write_text("x\n")
    assert apply_to_folder(tmp_path, [FileEdit("a.py", (Block(b"x\n", b"y\n"),))], check=True).ok
    assert (tmp_path / "a.py").read_text() == "x\n"


# --------------------------------------------------------------------------------------------------- what models write

EDIT = (FileEdit("src/a.py", (Block(b"x = 1\n", b"x = 2\n"),)),)
PLAIN = "<<<<<<< SEARCH\nx = 1\n=======\nx = 2\n>>>>>>> REPLACE\n"

ANSWERS = {
    "ours": (f"### src/a.py\n{PLAIN}", []),
    "aider's": (f"src/a.py\n```python\n{PLAIN}```\n", ["a path without ###", "a Markdown fence", "a Markdown fence"]),
    "with prose": (f"Here you are:\n\n### src/a.py\n{PLAIN}\nDone!", ["prose outside the blocks"] * 2),
    "path in backticks": (f"### `src/a.py`\n{PLAIN}", ["the path was read as src/a.py"]),
    "path in bold": (f"**src/a.py**\n{PLAIN}", ["a path without ###"]),
    "windows line ends": (
        f"### src/a.py\n{PLAIN}".replace("\n", "\r\n"),
        [r"the answer ends its lines with \r\n; read as \n"],
    ),
    "indented": (
        "### src/a.py\n" + "".join(f"  {line}\n" for line in PLAIN.splitlines()),
        ["the block is indented"],
    ),
    "signs of other lengths": (
        f"### src/a.py\n{PLAIN}".replace("=======", "========"),
        ["the signs of the block differ in length or the word REPLACE is missing"],
    ),
    "no newline at its end": (f"### src/a.py\n{PLAIN}".rstrip("\n"), []),
}


@pytest.mark.parametrize(("text", "repairs"), ANSWERS.values(), ids=ANSWERS)
def test_an_answer_is_read_and_what_was_mended_is_told(text, repairs):
    parsed = parse_blocks(text)
    assert (parsed.edits, parsed.problems) == (EDIT, ())
    assert [repair.partition(": ")[2] for repair in parsed.repairs] == repairs


PROBLEMS = {
    "empty": ("", "the answer is empty; expected a line '### path' and search-and-replace blocks"),
    "only prose": (
        "I cannot do that.",
        "the answer has no search-and-replace block; expected '<<<<<<< SEARCH' on a line",
    ),
    "cut off": (
        "### a.py\n<<<<<<< SEARCH\nx\n=======\ny",
        "line 2: the block has no end ('>>>>>>> REPLACE'); the answer may have been cut off",
    ),
    "no divider": (
        "### a.py\n<<<<<<< SEARCH\nx\n>>>>>>> REPLACE\n",
        "line 2: the block has no line '=======' between search and replacement, not one",
    ),
    "two dividers": (
        "### a.py\n<<<<<<< SEARCH\nx\n=======\ny\n=======\nz\n>>>>>>> REPLACE\n",
        "line 2: the block has 2 lines '=======' between search and replacement, not one",
    ),
    "no path": (PLAIN, "line 1: no path stands before the block; write '### path' above it"),
}


@pytest.mark.parametrize(("text", "problem"), PROBLEMS.values(), ids=PROBLEMS)
def test_an_answer_that_cannot_be_read_says_why(text, problem):
    assert parse_blocks(text).problems == (problem,)


def test_aiders_format_reads_back():
    parsed = parse_blocks(format_blocks(EDIT, style="aider"))
    assert (parsed.edits, parsed.problems) == (EDIT, ())


@pytest.mark.parametrize(
    "edit", [FileEdit("a.py", delete=True), FileEdit("a.py", (Block(b"x", b"y"),)), FileEdit("a.py", rename_to="b.py")]
)
def test_what_aiders_format_cannot_say_is_refused(edit):
    with pytest.raises(InputError, match=r"^a\.py: aider's format cannot .*; use style='assay'$"):
        format_blocks([edit], style="aider")


def test_a_block_that_is_not_utf8_cannot_be_written():
    with pytest.raises(InputError, match=r"^a\.py: a block is not UTF-8 text and cannot be written down"):
        format_blocks([FileEdit("a.py", (Block(b"\xff\n", b""),))])
