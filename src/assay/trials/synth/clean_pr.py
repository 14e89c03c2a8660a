"""clean-pr beside unified diffs and whole files: which written form survives a model's slips.

A model that writes an edit miscounts lines and miscopies some. Here the right edit is written in each form, the same
kinds of slips are made in all of them, and the form's own tool applies what is left: blocks by `apply_blocks`, diffs by
`git apply` and `patch`. The main part has known edits of real source files (Python's standard library); `commits` has
those of a user's own repository (`--data CLONE`); `language-model` asks how surprising each form is to a real model.
"""

from __future__ import annotations

import re
import subprocess
import sysconfig
import tempfile
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay._core.errors import InputError
from assay._core.seeds import child_seed
from assay.bench import Arm, Case, Claim, Data, Metric, Trial
from assay.synth.clean_pr.apply import apply_blocks
from assay.synth.clean_pr.changes import Reject
from assay.synth.clean_pr.edits import FileEdit, lines_of
from assay.synth.clean_pr.filters import PRFilter, core_language
from assay.synth.clean_pr.form import format_blocks, parse_blocks
from assay.synth.clean_pr.make import diff_to_blocks
from assay.synth.clean_pr.patch import blocks_to_diff
from assay.synth.clean_pr.sources import GitSource

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from assay.bench.spec import Parameter, Scale

PATH = "file.py"


class Slips(NamedTuple):
    """How often a model slips.

    `numbers`: each line number and count in a hunk's head is off by one or two with this probability. `lines`: each
    line that is copied from the file (searched, taken away or context) is miscopied with this probability.
    """

    numbers: float
    lines: float


class Given(NamedTuple):
    """One change and the slips to make; an arm writes `after` down in its form and applies what the slips leave."""

    before: bytes
    after: bytes
    slips: Slips


class Outcome(NamedTuple):
    """What an arm's tool made of each draw (None: refused), and how long the written edit was."""

    files: list[bytes | None]
    characters: int


#: Draws of the slips for each file change.
DRAWS = 10

# ----------------------------------------------------------------------------------------------------- the slips


def miscopied(line: bytes, rng: np.random.Generator) -> bytes:
    """A line as a careless copy has it: indented differently, a space at its end, or left out."""
    kind = rng.integers(3)
    if kind == 0:
        return b" " + line
    if kind == 1:
        return line.rstrip(b"\n") + b" \n"
    return b""


def slipped_copy(text: bytes, slips: Slips, rng: np.random.Generator) -> bytes:
    lines = lines_of(text)
    return b"".join(miscopied(line, rng) if rng.random() < slips.lines else line for line in lines)


_HEAD = re.compile(rb"^@@ -(\d+)(,\d+)? \+(\d+)(,\d+)? @@(.*)\n?$")


def slipped_diff(diff: bytes, slips: Slips, rng: np.random.Generator) -> bytes:
    lines = []
    for line in lines_of(diff):
        head = _HEAD.match(line)
        if head:
            numbers = [int(head[1]), int((head[2] or b",1")[1:]), int(head[3]), int((head[4] or b",1")[1:])]
            off = [int(rng.choice((-2, -1, 1, 2))) if rng.random() < slips.numbers else 0 for _ in numbers]
            a, b, c, d = (max(number + by, 0) for number, by in zip(numbers, off, strict=True))
            lines.append(b"@@ -%d,%d +%d,%d @@\n" % (a, b, c, d))
        elif line[:1] in (b" ", b"-") and not line.startswith(b"--- ") and rng.random() < slips.lines:
            copy = miscopied(line[1:], rng)
            lines += [line[:1] + copy] if copy else []
        else:
            lines.append(line)
    return b"".join(lines)


# ------------------------------------------------------------------------------------------------------- the arms


def blocks_arm(fuzzy: bool, given: Given, seed: int) -> Outcome:
    """Search-and-replace blocks with the shortest unique search text."""
    blocks = diff_to_blocks(given.before, given.after)
    rng, files = np.random.default_rng(seed), []
    for _ in range(DRAWS):
        slipped = tuple(type(b)(slipped_copy(b.search, given.slips, rng), b.replace) for b in blocks)
        text = format_blocks([FileEdit(PATH, slipped)])
        result = apply_blocks({PATH: given.before}, parse_blocks(text).edits, fuzzy=fuzzy)
        files.append(result.files[PATH] if result.ok else None)
    return Outcome(files, len(format_blocks([FileEdit(PATH, tuple(blocks))])))


def diff_arm(command: tuple[str, ...], context: int, given: Given, seed: int) -> Outcome:
    """A unified diff with `context` lines, applied by a real tool in a folder of its own."""
    diff = blocks_to_diff({PATH: given.before}, {PATH: given.after}, context=context)
    rng, files = np.random.default_rng(seed), []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / PATH
        for _ in range(DRAWS):
            place.write_bytes(given.before)
            slipped = slipped_diff(diff, given.slips, rng)
            done = subprocess.run(command, input=slipped, cwd=folder, capture_output=True, check=False)
            files.append(place.read_bytes() if done.returncode == 0 and place.exists() else None)
    return Outcome(files, len(diff.decode("utf-8", "replace")))


def whole_file_arm(given: Given, seed: int) -> Outcome:
    """The whole new file, written anew: nothing to apply, but every unchanged line is a copy."""
    rng = np.random.default_rng(seed)
    unchanged = set(lines_of(given.before))
    files: list[bytes | None] = []
    for _ in range(DRAWS):
        lines = lines_of(given.after)
        slips = rng.random(len(lines)) < given.slips.lines
        pairs = zip(lines, slips, strict=True)
        files.append(b"".join(miscopied(line, rng) if slip and line in unchanged else line for line, slip in pairs))
    return Outcome(files, len(given.after.decode("utf-8", "replace")))


def share_exact(case: Case, outcome: Outcome) -> dict[str, float]:
    right = [file == case.truth for file in outcome.files]
    wrong = [file is not None and file != case.truth for file in outcome.files]
    return {"exact": float(np.mean(right)), "wrong": float(np.mean(wrong)), "characters": float(outcome.characters)}


# --------------------------------------------------------------------------------- main part: known edits of real files


@lru_cache(maxsize=1)
def source_files() -> tuple[tuple[str, bytes], ...]:
    """Source files of the standard library that this Python runs on, 2 to 60 kB."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = ((path.name, path) for path in sorted(folder.glob("*.py")))
    read = ((name, path.read_bytes()) for name, path in files if 2_000 <= path.stat().st_size <= 60_000)
    return tuple((name, data) for name, data in read if data.isascii())


def edited(before: bytes, rng: np.random.Generator) -> bytes:
    """One to three edits: lines changed, put in (often ones like those around), taken away or moved."""
    lines = lines_of(before)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(len(lines)))
        size = int(rng.integers(1, 5))
        kind = rng.integers(4)
        if kind == 0:
            lines[at] = lines[at].rstrip(b"\n").replace(b"=", b"= ", 1) + b"  # changed\n"
        elif kind == 1:
            lines[at:at] = [b"    value_%d = %d\n" % (at, int(rng.integers(1000))), *lines[at : at + size - 1]]
        elif kind == 2:
            del lines[at : at + size]
        else:
            moved = lines[at : at + size]
            del lines[at : at + size]
            to = int(rng.integers(len(lines) + 1))
            lines[to:to] = moved
    return b"".join(lines)


def load_known(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    files = source_files()
    if len(files) < 20:
        raise InputError(
            "the standard library of this Python has no source files; give --data with a Git clone instead"
        )
    return Data("edits of Python's standard library", len(files), (files, slips_of(params)))


def slips_of(params: Mapping[str, Parameter]) -> Slips:
    slips = Slips(float(params["slip_numbers"]), float(params["slip_lines"]))
    for name, value in zip(("slip_numbers", "slip_lines"), slips, strict=True):
        if not 0 <= value <= 1:
            raise InputError(f"{name} is {value:g}; expected a probability from 0 to 1")
    return slips


def known_edits(data: tuple[tuple[tuple[str, bytes], ...], Slips], n: int, seed: int) -> Iterator[Case]:
    files, slips = data
    order = np.random.default_rng(child_seed(seed, "order")).permutation(len(files))
    for number in range(n):
        rng = np.random.default_rng(child_seed(seed, "edit", number))
        name, before = files[order[number % len(files)]]
        after = edited(before, rng)
        while after == before:
            after = edited(before, rng)
        yield Case(f"{number + 1}: {name}", Given(before, after, slips), after)


def history_of_the_standard_library(folder: Path, n_commits: int, seed: int) -> list[int]:
    """A Git repository of the files with `n_commits` commits of such edits; returns the sizes of the files changed."""
    from assay.synth.clean_pr.make import libgit

    git = libgit()
    repo = git.init_repository(str(folder))
    rng = np.random.default_rng(child_seed(seed, "history"))
    original = dict(source_files())
    names, files = sorted(original), dict(original)
    builder = repo.TreeBuilder()
    for name, data in files.items():
        builder.insert(name, repo.create_blob(data), git.enums.FileMode.BLOB)
    who = git.Signature("A. Nonymous", "a@example.org", 1_700_000_000, 0)
    parent = repo.create_commit("HEAD", who, who, "Start", builder.write(), [])
    sizes = []
    for number in range(n_commits):
        for name in rng.choice(names, int(rng.integers(1, 4)), replace=False):
            after = edited(files[name], rng)
            files[name] = after if len(after) > 1_000 else original[name]
            sizes.append(len(files[name]))
            builder.insert(str(name), repo.create_blob(files[name]), git.enums.FileMode.BLOB)
        parent = repo.create_commit("HEAD", who, who, f"Change {number + 1}", builder.write(), [parent])
    return sizes


# ----------------------------------------------------------------------------------- commits: a user's own repository


def load_commits(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    if path is None:
        raise InputError("this part needs a Git clone: assay try clean-pr --data FOLDER")
    source = GitSource(path)
    n = source.count()
    return Data(f"commits of {Path(path).resolve().name}", n, (path, slips_of(params)))


def commit_edits(data: tuple[str, Slips], n: int, seed: int) -> Iterator[Case]:
    """One file change a commit, so that cases are independent; the newest commits first."""
    path, slips = data
    source, filter_ = GitSource(path), PRFilter()
    found = 0
    for item in source.items():
        pr = source.read(item)
        changes = [] if isinstance(pr, Reject) else [c for c in pr.changes if core_language(c, filter_)]
        fit = [c for c in changes if c.before and c.after and c.before != c.after and len(c.before) < 1_000_000]
        if not fit:
            continue
        change = fit[child_seed(seed, item) % len(fit)]
        assert change.before is not None
        assert change.after is not None
        yield Case(f"{item[:10]} {change.path}", Given(change.before, change.after, slips), change.after)
        found += 1
        if found == n:
            return
    if not found:
        raise InputError(f"{path}: no commit changes a source file; give a clone with code of a target language")


# --------------------------------------------------------------- language model: how surprising is each written form?


class Written(NamedTuple):
    """A short file, what it becomes, and the model that is asked."""

    before: bytes
    after: bytes
    model: str


def load_short(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    model = str(params["model"])
    language_model(model)  # says at the door what is missing
    files = [(name, data) for name, data in source_files() if len(lines_of(data)) > 2 * EXCERPT]
    return Data(f"excerpts of Python's standard library, read by {model}", len(files), (files, model))


#: Lines of an excerpt: what a small model on a CPU reads in a second.
EXCERPT = 30


def short_edits(data: tuple[list[tuple[str, bytes]], str], n: int, seed: int) -> Iterator[Case]:
    files, model = data
    order = np.random.default_rng(child_seed(seed, "short")).permutation(len(files))
    for number in range(n):
        rng = np.random.default_rng(child_seed(seed, "short", number))
        name, text = files[order[number % len(files)]]
        lines = lines_of(text)
        start = int(rng.integers(len(lines) - EXCERPT))
        before = b"".join(lines[start : start + EXCERPT])
        after = edited(before, rng)
        while after == before:
            after = edited(before, rng)
        yield Case(f"{number + 1}: {name}", Written(before, after, model))


@lru_cache(maxsize=1)
def language_model(name: str) -> Any:
    from assay import models

    return models.demo_lm() if name == "demo" else models.load_lm(name)


def surprise(form: str, given: Written, seed: int) -> dict[str, float]:
    """Nats of the written edit after the file, by teacher forcing: what the model would have to learn to write it."""
    import torch

    model, tokenizer = language_model(given.model)
    written = {
        "blocks": lambda: format_blocks([FileEdit(PATH, tuple(diff_to_blocks(given.before, given.after)))]),
        "diff": lambda: blocks_to_diff({PATH: given.before}, {PATH: given.after}).decode(),
        "file": lambda: f"### {PATH}\n{given.after.decode()}",
    }[form]()
    prompt = tokenizer(f"### {PATH}\n{given.before.decode()}\n\nThe edit:\n").input_ids
    target = tokenizer(written).input_ids
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + target])).logits[0, len(prompt) - 1 : -1]
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(target), reduction="sum")
    return {"nats": float(loss), "tokens": float(len(target))}


def as_measured(case: Case, found: dict[str, float]) -> dict[str, float]:
    return found


LANGUAGE_MODEL = Trial(
    slug="clean-pr",
    part="language-model",
    claim=Claim("gives a language model less to foresee than unified diffs or whole files", metric="nats"),
    load=load_short,
    cases=short_edits,
    arms=(
        Arm("search/replace blocks", partial(surprise, "blocks")),
        Arm("unified diff", partial(surprise, "diff"), baseline=True),
        Arm("whole file", partial(surprise, "file"), baseline=True),
    ),
    metrics=(
        Metric("nats", better="lower", scale="log", unit="nats", help="surprise of the whole edit, untrained model"),
        Metric("tokens", better="lower", scale="log", help="length of the written edit"),
    ),
    score=as_measured,
    n_cases={"quick": 6, "standard": 40, "full": 500},
    params={"model": "demo"},
    takes_data=False,
    threads=2,
)

# ---------------------------------------------------------------------------------------------------- the trial

GIT, RECOUNT = ("git", "apply", "-"), ("git", "apply", "--recount", "-")
RECOUNT_LENIENT = ("git", "apply", "--recount", "-C1", "-")
PATCH = ("patch", "-p1", "-s", "-f", "--no-backup-if-mismatch", "-r", "-")

ARMS: tuple[Any, ...] = (
    Arm("search/replace blocks", partial(blocks_arm, False)),
    Arm("unified diff, git apply", partial(diff_arm, GIT, 3), baseline=True),
    Arm("unified diff, git apply --recount", partial(diff_arm, RECOUNT, 3), baseline=True),
    Arm("unified diff, git apply --recount -C1", partial(diff_arm, RECOUNT_LENIENT, 3), baseline=True),
    Arm("unified diff, patch (fuzz 2)", partial(diff_arm, PATCH, 3), baseline=True),
    Arm("whole file", whole_file_arm, baseline=True),
)
METRICS = (
    Metric("exact", better="higher", help="share of draws that give the right file, byte for byte"),
    Metric("wrong", better="lower", help="share of draws that give another file without an error"),
    Metric("characters", better="lower", scale="log", help="length of the written edit, without slips"),
)
CLAIM = Claim("gives the right file more often than unified diffs or whole files when the writer slips", metric="exact")
PARAMS = {"slip_numbers": 0.25, "slip_lines": 0.01}

TRIAL = Trial(
    slug="clean-pr",
    claim=CLAIM,
    load=load_known,
    cases=known_edits,
    arms=ARMS,
    metrics=METRICS,
    score=share_exact,
    n_cases={"quick": 60, "standard": 150, "full": 1000},
    params=PARAMS,
    takes_data=False,
    also=(
        Trial(
            slug="clean-pr",
            part="commits",
            claim=CLAIM,
            load=load_commits,
            cases=commit_edits,
            arms=ARMS,
            metrics=METRICS,
            score=share_exact,
            n_cases={"quick": 60, "standard": 300, "full": 2000},
            params=PARAMS,
        ),
        LANGUAGE_MODEL,
    ),
)
