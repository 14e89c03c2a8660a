"""The law of clean-pr: blocks of two files, written down, read back and applied, give the second byte for byte."""

import itertools
import random
import subprocess

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from assay.synth.clean_pr import Block, FileChange, FileEdit, apply_blocks, diff_to_blocks, format_blocks, parse_blocks
from assay.synth.clean_pr import roundtrip as round_trip
from assay.synth.clean_pr.anchors import Anchors, longest_repeats
from assay.synth.clean_pr.edits import lines_of
from assay.synth.clean_pr.make import changed_spans
from assay.synth.clean_pr.patch import blocks_to_diff, parse_patch

# Few different lines, so that nearly all stand more than once; signs, fences, tabs, form feeds and odd newlines.
# fmt: off
LINES = st.sampled_from([
    "", "x", "x = 1", "xx = 1", "\tx", "  <<<<<<< SEARCH", "=======", ">>>>>>> REPLACE", "<<<<<<<<<< SEARCH",
    "### a.py",
    "```", "@ delete", "\ufeffx", "é\u2028\x0b\x0c", "x\r", "\r", "======= NO NEWLINE",
    "\\ No newline at end of file",
])
# fmt: on


@st.composite
def texts(draw):
    text = "\n".join(draw(st.lists(LINES, max_size=14)))
    return (text + draw(st.sampled_from(["", "\n", "\n", "\r\n"]))).encode()


@st.composite
def pairs(draw):
    """A text and an edited version of it: lines put in, taken away, doubled, moved."""
    lines = draw(st.lists(LINES, max_size=14))
    after = list(lines)
    for _ in range(draw(st.integers(1, 4))):
        at, n = draw(st.integers(0, len(after))), draw(st.integers(0, 3))
        after[at : at + n] = draw(st.one_of(st.lists(LINES, max_size=3), st.just(after[at : at + n] * 2)))
    ends = st.sampled_from(["", "\n"])
    return "\n".join(lines).encode() + draw(ends).encode(), "\n".join(after).encode() + draw(ends).encode()


def applied(before, blocks):
    result = apply_blocks({"f": before}, [FileEdit("f", tuple(blocks))])
    assert result.ok, result.errors
    return result.files["f"]


@settings(max_examples=600, deadline=None)
@given(pairs())
@example((b"", b"x"))
@example((b"x", b""))
@example((b"x\n", b"x"))
@example((b"x\r\ny\r\n", b"x\ny\n"))
def test_blocks_of_two_texts_turn_the_one_into_the_other(pair):
    before, after = pair
    assert applied(before, diff_to_blocks(before, after)) == after


@settings(max_examples=150, deadline=None)
@given(texts(), texts())
def test_texts_that_have_nothing_to_do_with_each_other_round_trip_too(before, after):
    assert applied(before, diff_to_blocks(before, after)) == after


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60), st.binary(max_size=60))
def test_any_bytes_round_trip(before, after):
    assert applied(before, diff_to_blocks(before, after)) == after


@settings(max_examples=250, deadline=None)
@given(st.lists(st.builds(Block, texts(), texts()), min_size=1, max_size=4))
def test_what_is_written_reads_back_as_it_was(blocks):
    edits = (
        FileEdit("src/a b.py", tuple(blocks)),
        FileEdit("ü.py", tuple(blocks[:1]), rename_to="v.py", mode=0o100755),
    )
    parsed = parse_blocks(format_blocks(edits))
    assert (parsed.edits, parsed.repairs, parsed.problems) == (edits, (), ())


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(lambda path: "\0" not in path))
def test_any_path_reads_back_as_it_was(path):
    edit = FileEdit(path, (Block(b"x\n", b"y\n"),))
    assert parse_blocks(format_blocks([edit])).edits == (edit,)


@settings(max_examples=200, deadline=None)
@given(pairs())
def test_every_search_text_stands_exactly_once_in_the_file(pair):
    before, after = pair
    lines = lines_of(before)
    for block in diff_to_blocks(before, after):
        wanted = lines_of(block.search)
        starts = [k for k in range(len(lines)) if lines[k : k + len(wanted)] == wanted]
        assert len(starts) == 1 or before == b""


def brute_force(lines, first, last):
    """All ranges around the span from the shortest, the most balanced and the one with more above first."""
    n = len(lines)
    for context in range(n + 1):
        for up in sorted(range(context + 1), key=lambda up: (abs(2 * up - context), -up)):
            low, high = first - up, last + context - up
            if low < 0 or high > n or low == high:
                continue
            window = lines[low:high]
            if sum(lines[k : k + len(window)] == window for k in range(n)) == 1:
                return low, high
    return None


FEW = st.lists(st.sampled_from([b"a\n", b"b\n"]), min_size=1, max_size=24)


@settings(max_examples=300, deadline=None)
@given(FEW, st.data())
def test_the_anchor_is_the_shortest_by_brute_force(lines, data):
    first = data.draw(st.integers(0, len(lines)))
    last = data.draw(st.integers(first, len(lines)))
    assert Anchors(lines).around(first, last) == brute_force(lines, first, last)


@settings(max_examples=200, deadline=None)
@given(FEW, st.data())
def test_the_anchor_by_suffix_array_is_the_shortest_too(lines, data):
    first = data.draw(st.integers(0, len(lines)))
    last = data.draw(st.integers(first, len(lines)))
    assert Anchors(lines)._far(first, last) == brute_force(lines, first, last)


@given(st.lists(st.integers(0, 2), max_size=30))
def test_the_longest_repeats_are_those_of_brute_force(codes):
    import numpy as np

    def common(i, j):
        pairs_of = zip(codes[i:], codes[j:], strict=False)
        return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs_of))

    n = len(codes)
    expected = [max((common(i, j) for j in range(n) if j != i), default=0) for i in range(n)]
    assert longest_repeats(np.array(codes, dtype=np.int64)).tolist() == expected


def test_a_line_put_between_equal_lines_takes_the_whole_file_as_its_anchor():
    blocks = diff_to_blocks(b"x\nx\nx\n", b"x\nx\ny\nx\n")
    assert blocks == [Block(b"x\nx\nx\n", b"x\nx\ny\nx\n")]


def test_context_that_runs_into_another_change_is_rebuilt_from_the_alignment():
    before, after = b"x\nA\nx\nB\nx\n", b"x\nA\nnew\nx\nB2\nx\n"
    naive = before.replace(b"A\nx\n", b"A\nnew\nx\n")
    assert naive != after
    assert applied(before, diff_to_blocks(before, after)) == after


def test_the_spans_are_those_of_git(tmp_path):
    rng = random.Random(0)
    before = b"".join(b"%d\n" % rng.randrange(9) for _ in range(60))
    after = b"".join(line for line in lines_of(before) if rng.random() < 0.8)
    (tmp_path / "a").write_bytes(before)
    (tmp_path / "b").write_bytes(after)
    command = ["git", "diff", "--no-index", "--diff-algorithm=myers", "-U0", "--no-indent-heuristic", "a", "b"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    theirs = [(hunk.start, len(hunk.old), len(hunk.new)) for hunk in parse_patch(done.stdout)[0].hunks]
    assert [(s.i1, s.i2 - s.i1, s.j2 - s.j1) for s in changed_spans(before, after)] == theirs


def test_a_file_of_100_000_equal_lines_takes_one_block():
    before = b"x\n" * 100_000
    after = b"x\n" * 50_000 + b"y\n" + b"x\n" * 50_000
    assert applied(before, diff_to_blocks(before, after)) == after


CHANGES = {
    "creation": FileChange("a.py", None, b"x\n"),
    "creation of an executable": FileChange("a.py", None, b"x\n", new_mode=0o100755),
    "creation of an empty file": FileChange("a.py", None, b""),
    "filling of an empty file": FileChange("a.py", b"", b"x\n"),
    "emptying": FileChange("a.py", b"x\n", b""),
    "deletion": FileChange("a.py", b"x\n", None, deleted=True),
    "deletion of an empty file": FileChange("a.py", b"", None, deleted=True),
    "rename": FileChange("a.py", b"x\n", b"x\n", new_path="b.py"),
    "rename with a change": FileChange("a.py", b"x\n", b"y\n", new_path="b.py"),
    "change of mode": FileChange("a.py", b"x\n", b"x\n", old_mode=0o100644, new_mode=0o100755),
    "byte order mark": FileChange("a.py", b"\xef\xbb\xbfx\n", b"x\n"),
    "windows to unix": FileChange("a.py", b"x\r\ny\r\n", b"x\ny\n"),
    "newline at the end": FileChange("a.py", b"x", b"x\n"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_kind_of_change_round_trips(change):
    trip = round_trip([change])
    assert trip.ok, trip.reason
    assert trip.applied.files == ({} if change.deleted else {change.new_path or change.path: change.after})


def test_a_change_of_mode_is_in_the_edit():
    trip = round_trip([CHANGES["change of mode"]])
    assert trip.applied.modes == {"a.py": 0o100755}


@settings(max_examples=40, deadline=None)
@given(pairs())
def test_git_apply_makes_of_our_diff_the_same_tree(tmp_path_factory, pair):
    before, after = pair
    folder = tmp_path_factory.mktemp("tree")
    (folder / "a b.py").write_bytes(before)
    diff = blocks_to_diff({"a b.py": before}, {"a b.py": after})
    if diff:
        subprocess.run(["git", "apply", "-"], cwd=folder, input=diff, check=True, capture_output=True)
    assert (folder / "a b.py").read_bytes() == after


@settings(max_examples=150, deadline=None)
@given(pairs())
def test_our_patch_reader_applies_our_diff(pair):
    before, after = pair
    diff = blocks_to_diff({"f": before}, {"f": after})
    assert (parse_patch(diff)[0].apply(before) if diff else before) == after
