"""Let a model change a repository without an agent's loop, and judge what it wrote (paper, stage 8 and metrics)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay._core.errors import InputError
from assay.synth.clean_pr.apply import apply_blocks
from assay.synth.clean_pr.edits import FileEdit, unsafe
from assay.synth.clean_pr.filters import language_of
from assay.synth.clean_pr.form import parse_blocks
from assay.synth.clean_pr.negatives import named_lines
from assay.synth.clean_pr.patch import blocks_to_diff
from assay.synth.clean_pr.regions import regions
from assay.synth.clean_pr.samples import EDIT, LOCALIZE, NAVIGATE

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    import pandas as pd


@dataclass(frozen=True)
class Solution:
    """What the three steps gave. `diff` is empty where `log` tells of an error."""

    files: tuple[str, ...]
    regions: dict[str, list[str]]
    edits: tuple[FileEdit, ...]
    diff: str
    log: list[str] = field(default_factory=list)


class AgentlessEditor:
    """Localise, navigate, edit: three questions, one pass, then the blocks are applied in memory.

    Parameters
    ----------
    generate : callable
        ``generate(prompt) -> str``: any model.
    max_files : int
        Files that are shown to the model.
    retries : 0 or 1
        Ask once more, with the errors, where the blocks do not apply.
    """

    def __init__(self, generate: Callable[[str], str], max_files: int = 5, retries: int = 0) -> None:
        if retries not in (0, 1):
            raise InputError(f"retries is {retries!r}; expected 0 or 1")
        self.generate, self.max_files, self.retries = generate, max_files, retries

    def solve(self, issue: str, repo_dir: str | os.PathLike[str]) -> Solution:
        """Answer an issue with a diff; nothing is written to the folder."""
        return self._solve(issue, _sources(Path(repo_dir)))

    def solve_best_of(
        self,
        issue: str,
        repo_dir: str | os.PathLike[str],
        n: int,
        score: Callable[[Solution], float] | None = None,
    ) -> Solution:
        """Answer `n` times and return the best answer; `generate` should sample.

        Parameters
        ----------
        issue : str
        repo_dir : path
        n : int
        score : callable, optional
            Of a solution that applies, higher is better: the share of tests that pass, say. None: how many of the `n`
            answers give the same diff. Of equals the first is returned; where no answer applies, the first answer.

        Raises
        ------
        InputError
            `n` is below 1, or `repo_dir` is not a folder.
        """
        if n < 1:
            raise InputError(f"n is {n}; expected 1 or more answers")
        files = _sources(Path(repo_dir))
        answers = [self._solve(issue, files) for _ in range(n)]
        applied = [answer for answer in answers if answer.diff]
        if not applied:
            return answers[0]
        votes = Counter(answer.diff for answer in applied)
        return max(applied, key=score or (lambda answer: votes[answer.diff]))

    def _solve(self, issue: str, files: Mapping[str, bytes]) -> Solution:
        log: list[str] = []
        answer = self.generate(f"{LOCALIZE}{issue}\n\n" + "\n".join(sorted(files)) + "\n")
        chosen = tuple(path for path in named_lines(answer) if path in files)[: self.max_files]
        if not chosen:
            return Solution((), {}, (), "", ["localise: the answer names no file of the repository"])
        shown = "\n".join(f"### {path}\n{files[path].decode('utf-8')}" for path in chosen)
        names = _named_regions(self.generate(f"{NAVIGATE}{issue}\n\n{shown}"), chosen, files)
        prompt = f"{EDIT}{issue}\n\n{shown}\n{_as_text(names)}"
        for attempt in range(self.retries + 1):
            parsed = parse_blocks(self.generate(prompt))
            applied = apply_blocks(files, parsed.edits)
            errors = [*parsed.problems, *map(str, applied.errors)]
            log += [f"edit, attempt {attempt + 1}: {error}" for error in errors]
            if not errors:
                return Solution(chosen, names, parsed.edits, blocks_to_diff(files, applied.files).decode("utf-8"), log)
            prompt += "\nThe blocks could not be applied:\n" + "\n".join(errors) + "\n"
        return Solution(chosen, names, parsed.edits, "", log)


def _sources(root: Path) -> dict[str, bytes]:
    if not root.is_dir():
        raise InputError(f"{root} is not a folder; give the root of the repository")
    files = {}
    for place in sorted(root.rglob("*")):
        path = place.relative_to(root).as_posix()
        if language_of(path) is None or unsafe(path) or place.is_symlink() or not place.is_file():
            continue
        data = place.read_bytes()
        try:
            data.decode("utf-8")
        except UnicodeDecodeError:
            continue
        files[path] = data
    return files


def _named_regions(answer: str, paths: Sequence[str], files: Mapping[str, bytes]) -> dict[str, list[str]]:
    said = set(named_lines(answer))
    known = {path: [region.name for region in regions(path, files[path].decode("utf-8"))] for path in paths}
    return {path: [name for name in names if name in said] for path, names in known.items()}


def _as_text(names: Mapping[str, Sequence[str]]) -> str:
    return "".join(f"In {path}: {', '.join(found)}\n" for path, found in names.items() if found)


def evaluate_edits(
    answers: Sequence[str],
    records: Sequence[Mapping[str, Any]],
    run_tests: Callable[[Mapping[str, Any], Mapping[str, bytes]], bool] | None = None,
) -> pd.DataFrame:
    """Judge written edits against the records they should reproduce.

    Parameters
    ----------
    answers : sequence of str
        A model's texts, in the order of `records`.
    records : sequence of dict
    run_tests : callable, optional
        ``run_tests(record, files)`` says whether the tests pass with the edited files (path to bytes). It is called for
        valid answers only, and runs what a model wrote: run it where that can do no harm.

    Returns
    -------
    DataFrame
        A row an answer: ``id``; ``valid`` (parses without problems, applies strictly, changes something);
        ``valid_fuzzy`` (with fuzzy matching: report them apart); ``file_acc`` (all files that should change do);
        ``line_acc``
        (every region that should change is touched; the overlap is our reading); ``exact`` (the merged files byte for
        byte); ``repairs`` (what the parser had to mend); ``error`` (the first). With `run_tests` also ``passed``, whose
        mean is Pass@1: an answer that is not valid has not passed.

    Raises
    ------
    InputError
        As many answers as records are needed.
    """
    import pandas as pd

    if len(answers) != len(records):
        raise InputError(f"{len(answers)} answers for {len(records)} records; expected one for each")
    return pd.DataFrame([_judged(answer, record, run_tests) for answer, record in zip(answers, records, strict=True)])


def _judged(
    answer: str,
    record: Mapping[str, Any],
    run_tests: Callable[[Mapping[str, Any], Mapping[str, bytes]], bool] | None,
) -> dict[str, Any]:
    before = {file["path"]: file["content"].encode() for file in record["files"] if file["content"] is not None}
    parsed, gold = parse_blocks(answer), apply_blocks(before, parse_blocks(record["edit"]).edits)
    strict, fuzzy = (apply_blocks(before, parsed.edits, fuzzy=mode) for mode in (False, True))
    is_read = not parsed.problems and bool(parsed.edits)
    errors = [*parsed.problems, *map(str, strict.errors)]
    best = strict if strict.ok else fuzzy
    touched = {path for path, spans in best.spans.items() if spans}
    is_valid = is_read and strict.ok and strict.files != before
    tested = {} if run_tests is None else {"passed": is_valid and bool(run_tests(record, strict.files))}
    return {
        "id": record["id"],
        "valid": is_valid,
        "valid_fuzzy": is_read and fuzzy.ok and fuzzy.files != before,
        "file_acc": set(gold.spans) <= touched,
        "line_acc": all(_touch(span, best.spans.get(path, ())) for path, spans in gold.spans.items() for span in spans),
        "exact": is_read and strict.ok and strict.files == gold.files,
        "repairs": len(parsed.repairs),
        "error": errors[0] if errors else "",
        **tested,
    }


def _touch(span: tuple[int, int], others: Sequence[tuple[int, int]]) -> bool:
    first, last = span[0], max(span[1], span[0] + 1)
    return any(low < last and first < max(high, low + 1) for low, high in others)
