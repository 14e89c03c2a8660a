"""Run one part of a trial: every arm on every case, finished rows on disk as they come, the verdict at the end."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from assay._core.errors import InputError
from assay._core.files import write_text
from assay._core.tables import write_table
from assay.bench import environment, executors, verdict
from assay.bench.plan import FINISHED_FILE, PLAN_FILE, Plan, append, fingerprint, finished
from assay.bench.result import CASES_FILE, PICTURES_FILE, DataUsed, Result
from assay.bench.worker import Row, Task, pack, pack_case, task

if TYPE_CHECKING:
    from assay.bench.spec import Case, Data, Parameter, Scale, Trial

Executor = Literal["local", "ray"]


@dataclass(frozen=True)
class Step:
    """Something happened in a run: what a progress callback gets.

    Parameters
    ----------
    slug, part : str
    kind : "started" or "finished"
        An arm was started on a case, or has finished it.
    arm, case : str
    n_done, n_total : int
        Pairs of arm and case, of this part.
    error : str or None
        Of the arm that finished.
    """

    slug: str
    part: str
    kind: Literal["started", "finished"]
    arm: str
    case: str
    n_done: int
    n_total: int
    error: str | None = None


Watch = Callable[[Step], None]


@dataclass(frozen=True)
class Machine:
    """Where the tasks run. None of it changes a number of the result, except what is measured: time and memory."""

    executor: Executor
    address: str | None
    jobs: int | None

    def rows(self, tasks: Iterable[Task], threads: int) -> Generator[Row]:
        """Run `tasks`; the rows come in the order in which they finish."""
        if self.executor == "ray":
            return executors.on_ray(tasks, threads=threads, jobs=self.jobs, address=self.address)
        return executors.local(tasks, threads=threads, jobs=self.jobs)


def number_of_cases(trial: Trial, scale: Scale, cases: int | None) -> int:
    """How many cases a run asks `trial` for: `cases` where the user gave it, else the number of the scale."""
    return trial.n_cases[scale] if cases is None else cases


def own_parameters(trial: Trial, given: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """All parameters that `trial` knows: those given, and the defaults of the others."""
    return {name: given.get(name, default) for name, default in trial.params.items()}


def load(trial: Trial, plan: Plan) -> Data:
    """Load the data of a plan, and refuse data that are not those that the plan was made with."""
    path = plan.data_path
    if path is not None and not Path(path).exists():
        raise InputError(f"{path}: no such file or folder; the run to resume was started with it")
    if path is not None and fingerprint(path) != plan.data_sha256:
        raise InputError(f"{path} has changed since the run was started; start a new run")
    return trial.load(path, plan.scale, plan.params)


def run_further(part: Trial, main: Plan, folder: Path, machine: Machine, watch: Watch) -> Result:
    """Run a part of a trial in its own folder, with the settings of the main run."""
    if (folder / PLAN_FILE).exists():
        plan = Plan.load(folder)
        plan.check(part, folder)
    else:
        plan = replace(
            main,
            part=part.part,
            n_cases=number_of_cases(part, main.scale, main.cases),
            params=own_parameters(part, main.given),
            data_sha256=main.data_sha256 if main.data_path else None,
            arms=[arm.name for arm in part.arms],
            metrics=[metric.name for metric in part.metrics],
            also=[],
        )
    loaded = load(part, plan)  # before the folder: a part whose data are missing leaves nothing behind
    folder.mkdir(exist_ok=True)
    return run_part(part, plan, loaded, folder, machine, watch)


def run_part(trial: Trial, plan: Plan, loaded: Data, folder: Path, machine: Machine, watch: Watch) -> Result:
    """Run what `plan` says and is not finished yet, and write the result into `folder`."""
    source = plan.data_path or loaded.path
    sha256 = None if source is None else fingerprint(source)
    if (folder / PLAN_FILE).exists() and sha256 != plan.data_sha256:
        raise InputError(f"{source} has changed since the run was started; start a new run")
    plan = replace(plan, data_sha256=sha256)
    plan.save(folder)

    rows, order = _rows(trial, plan, loaded, folder, machine, watch)
    frame = verdict.cases_frame(trial, [rows[case, arm.name] for case in order for arm in trial.arms])
    write_table(frame, folder / CASES_FILE)
    judged, claim = verdict.judge(trial, frame)
    result = Result(
        slug=plan.slug,
        part=plan.part,
        scale=plan.scale,
        seed=plan.seed,
        params=plan.params,
        created=plan.created,
        environment=environment.describe(),
        command=plan.command,
        data=DataUsed(loaded.name, None if source is None else os.fspath(source), sha256, int(loaded.n)),
        claim=claim,
        verdict=judged,
        metrics=verdict.metrics_used(trial),
        arms=verdict.arm_summaries(trial, frame),
        failures=verdict.failures(frame),
        also=(),
        skipped=(),
        folder=folder,
    )
    result.save()
    if trial.pictures is not None:
        shown = [{"title": title, "html": html} for title, html in trial.pictures(loaded.value, plan.seed)]
        write_text(folder / PICTURES_FILE, json.dumps(shown, ensure_ascii=False))
    return result


def _rows(
    trial: Trial, plan: Plan, loaded: Data, folder: Path, machine: Machine, watch: Watch
) -> tuple[dict[tuple[str, str], Row], list[str]]:
    """Every row by (case, arm), those that were finished before included, and the cases in order."""
    rows = {(row.case, row.arm): row for row in finished(folder)}
    order: list[str] = []
    n_total = plan.n_cases * len(trial.arms)
    jobs = {arm.name: pack(trial, arm) for arm in trial.arms}

    def tasks() -> Iterator[Task]:
        for case in _cases(trial, plan, loaded):
            order.append(case.id)
            missing = [arm for arm in trial.arms if (case.id, arm.name) not in rows]
            unit = pack_case(trial, case) if missing else b""
            for arm in missing:
                watch(Step(plan.slug, plan.part, "started", arm.name, case.id, len(rows), n_total))
                yield task(trial, arm, case.id, plan.seed, job=jobs[arm.name], unit=unit)

    with (
        (folder / FINISHED_FILE).open("a", encoding="utf-8", newline="") as log,
        closing(machine.rows(tasks(), trial.threads)) as results,
    ):
        for row in results:
            append(log, row)
            rows[row.case, row.arm] = row
            watch(Step(plan.slug, plan.part, "finished", row.arm, row.case, len(rows), n_total, row.error))
    return rows, order


def _cases(trial: Trial, plan: Plan, loaded: Data) -> Iterator[Case]:
    seen: set[str] = set()
    for case in islice(trial.cases(loaded.value, plan.n_cases, plan.seed), plan.n_cases):
        if case.id in seen:
            raise ValueError(f"trial {trial.slug!r}: two cases have the id {case.id!r}")
        seen.add(case.id)
        yield case
    if not seen:
        raise InputError(f"{loaded.name} gives no case to run; bring more data")
