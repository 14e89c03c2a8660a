"""Run a trial: check what is asked for, choose the folder, run the trial and its parts, write the report."""

from __future__ import annotations

import os
import shlex
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay._core.errors import InputError
from assay._core.progress import progress_bar
from assay.bench import tracking
from assay.bench.part import (
    Executor,
    Machine,
    Step,
    Watch,
    load,
    number_of_cases,
    own_parameters,
    run_further,
    run_part,
)
from assay.bench.plan import PLAN_FILE, Plan, fingerprint, parameters
from assay.bench.result import Skipped
from assay.bench.spec import SCALES, Scale, Trial

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from assay.bench.result import Result

RUNS = Path("runs")
MAX_SEED = 2**32 - 1


class Interrupted(KeyboardInterrupt):
    """Somebody stopped the run. Its workers have ended, its folder can be resumed, and the message says how."""


def run(
    trial: Trial | str,
    *,
    part: str | None = None,
    data: str | os.PathLike[str] | None = None,
    scale: Scale = "quick",
    cases: int | None = None,
    seed: int = 0,
    jobs: int | None = None,
    executor: Executor = "local",
    address: str | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    params: Mapping[str, Any] | None = None,
    progress: bool | Watch = True,
    mlflow: str | None = None,
) -> Result:
    """Run a method beside its baselines and write a run folder.

    Parameters
    ----------
    trial : Trial or str
        A trial, or the slug of a method in the catalog.
    part : str, optional
        Run this part of the trial alone; ``"main"`` is the trial without its further parts.
    data : path, optional
        The user's data; None runs the embedded example. Parts that make their own data are left out then.
    scale : "quick", "standard" or "full"
    cases : int, optional
        How many cases, in place of the number that the scale has.
    seed : int
    jobs : int, optional
        Cases at a time; by default as many as there are cores for.
    executor : "local" or "ray"
        Processes on this machine, or a Ray cluster. Same seeds, same results.
    address : str, optional
        Of the Ray cluster.
    out : path, optional
        The run folder, new or empty; by default ``runs/<slug>``, with -2, -3, … if that is taken.
    resume : path, optional
        A run folder that was not finished: only what is missing is run. The data, scale, cases, seed and parameters
        are those of that run.
    params : mapping, optional
        Parameters of the trial; texts are converted to the type of the default.
    progress : bool or callable
        True draws a bar on stderr; a callable gets every :class:`Step` in its place.
    mlflow : str, optional
        MLflow tracking URI to log the finished run to.

    Returns
    -------
    Result
        Of the main trial; `Result.parts` has the results of the further parts.

    Raises
    ------
    InputError
        Something in the arguments or the data cannot be used. Exceptions inside an arm are not raised: they are
        recorded as failures of that arm on that case.
    """
    from assay.bench.report import write_report

    by_slug = isinstance(trial, str)
    main = _find(trial)
    if part is not None:
        main = _part(main, part)
    if resume is not None:
        main = _as_planned(main, Plan.load(Path(resume)))
    elif data is not None:
        main = _on_data(main, data)
    _check(main, data=data, scale=scale, cases=cases, seed=seed, jobs=jobs, executor=executor)
    if address is not None and executor != "ray":
        raise InputError(f"the address {address!r} is of a Ray cluster; choose the executor 'ray' with it")
    if mlflow is not None:
        tracking.check(mlflow)
    given = parameters(params or {}, [main, *main.also])
    plan = Plan(
        slug=main.slug,
        part=main.part,
        scale=scale,
        seed=seed,
        n_cases=number_of_cases(main, scale, cases),
        cases=cases,
        params=own_parameters(main, given),
        given=given,
        data_path=None if data is None else str(Path(data).resolve()),
        data_sha256=None if data is None else fingerprint(data),
        arms=[arm.name for arm in main.arms],
        metrics=[metric.name for metric in main.metrics],
        also=[part.part for part in main.also],
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command="",
    )
    plan = replace(plan, command=_command(plan, part, data, executor, address, jobs, by_slug=by_slug))
    if resume is None:
        loaded = load(main, plan)  # before the folder: data that cannot be read leave nothing behind
        folder = _new_folder(main.slug, out)
    else:
        folder = Path(resume)
        plan = _resumed(main, folder, asked=plan, out=out)
        loaded = load(main, plan)
    machine = Machine(executor, address, jobs)
    try:
        with _watching(progress) as watch:
            result = run_part(main, plan, loaded, folder, machine, watch)
            result = _with_parts(result, main, plan, machine, watch)
        write_report(folder)
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; `assay try --resume {shlex.quote(str(folder))}` runs what is missing"
        ) from None
    if mlflow is not None:
        tracking.log(result, mlflow)
    return result


def _with_parts(result: Result, main: Trial, plan: Plan, machine: Machine, watch: Watch) -> Result:
    """Run the further parts. One whose data or model is missing is named with the reason, and stops nothing else."""
    ran, skipped = [], []
    for part in main.also:
        try:
            run_further(part, plan, result.folder / part.part, machine, watch)
        except InputError as error:
            if (result.folder / part.part / PLAN_FILE).exists():
                raise  # it could run before: its data changed, and a resumed run must not quietly do without it
            skipped.append(Skipped(part.part, str(error)))
        else:
            ran.append(part.part)
    result = replace(result, also=tuple(ran), skipped=tuple(skipped))
    result.save()
    return result


def resume(
    folder: str | os.PathLike[str],
    *,
    slug: str | None = None,
    jobs: int | None = None,
    executor: Executor = "local",
    address: str | None = None,
    progress: bool | Watch = True,
    mlflow: str | None = None,
) -> Result:
    """Finish the run in `folder`; the method is the one that its plan names.

    `slug`, where given, must be that method. Everything else is as in :func:`run`, and a trial that is not in the
    catalog is resumed by ``run(TRIAL, resume=folder)``.
    """
    return run(
        slug or Plan.load(Path(folder)).slug,
        resume=folder,
        jobs=jobs,
        executor=executor,
        address=address,
        progress=progress,
        mlflow=mlflow,
    )


def _find(trial: Trial | str) -> Trial:
    if isinstance(trial, Trial):
        return trial
    from assay import catalog

    return catalog.get(trial).load_trial()


def _check(
    trial: Trial,
    *,
    data: str | os.PathLike[str] | None,
    scale: str,
    cases: int | None,
    seed: int,
    jobs: int | None,
    executor: str,
) -> None:
    if scale not in SCALES:
        raise InputError(f"scale {scale!r} is not one of {', '.join(SCALES)}")
    if executor not in ("local", "ray"):
        raise InputError(f"executor {executor!r} is not one of local, ray")
    for name, value in {"cases": cases, "jobs": jobs}.items():
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, not {value}")
    if not 0 <= seed <= MAX_SEED:
        raise InputError(f"the seed must be between 0 and {MAX_SEED}, not {seed}")
    if data is not None and not Path(data).exists():
        raise InputError(f"{data}: no such file or folder")


def _part(trial: Trial, name: str) -> Trial:
    parts = {each.part or "main": each for each in (trial, *trial.also)}
    if name not in parts:
        raise InputError(f"the trial of {trial.slug} has no part {name!r}; it has {', '.join(parts)}")
    return replace(parts[name], also=())


def _as_planned(trial: Trial, plan: Plan) -> Trial:
    """What of a trial a run that was started consists of. What does not fit the plan, `Plan.check` refuses."""
    parts = {each.part: each for each in (trial, *trial.also)}
    also = tuple(parts[name] for name in plan.also if name in parts)
    return replace(parts.get(plan.part, trial), also=also)


def _on_data(trial: Trial, data: str | os.PathLike[str] | None) -> Trial:
    """What of a trial runs on a user's data: the parts that take data, the first of them as the main one."""
    takers = [part for part in (trial, *trial.also) if part.takes_data]
    if not takers:
        raise InputError(f"the trial of {trial.slug} makes its own data and takes none; leave {data} out")
    return replace(takers[0], also=tuple(takers[1:]))


def _command(
    plan: Plan,
    part: str | None,
    data: str | os.PathLike[str] | None,
    executor: str,
    address: str | None,
    jobs: int | None,
    *,
    by_slug: bool,
) -> str:
    """The shell line that repeats the run; for a trial that no catalog knows, the line of Python."""
    options: dict[str, Any] = {"part": part, "data": None if data is None else os.fspath(data), "scale": plan.scale}
    options |= {"cases": plan.cases, "seed": plan.seed, "jobs": jobs}
    options |= {"executor": executor if executor != "local" else None, "address": address}
    options = {name: value for name, value in options.items() if value is not None}
    if not by_slug:
        if plan.given:
            options["params"] = plan.given
        return f"assay.bench.run(TRIAL, {', '.join(f'{name}={value!r}' for name, value in options.items())})"
    words = ["assay", "try", plan.slug]
    for name, value in options.items():
        words += [f"--{name}", str(value)]
    for name, value in plan.given.items():
        words += ["-p", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
    return shlex.join(words)


def _new_folder(slug: str, out: str | os.PathLike[str] | None) -> Path:
    candidates = (RUNS / (slug if n == 1 else f"{slug}-{n}") for n in range(1, 1_000_000))
    for folder in candidates if out is None else [Path(out)]:
        try:
            folder.mkdir(parents=True, exist_ok=out is not None)
            is_empty = not any(folder.iterdir())
        except FileExistsError:
            if out is None:
                continue  # taken; mkdir decides, so that two runs started together get a folder each
            raise InputError(f"{folder} is a file; give a folder to write the run to") from None
        except OSError as error:
            raise InputError(f"cannot write to {folder} ({error.strerror}); choose another folder with out") from None
        if not is_empty:
            raise InputError(f"{folder} is not empty; choose a new folder, or resume the run in it")
        if not os.access(folder, os.W_OK):
            raise InputError(f"cannot write to {folder} (permission denied); choose another folder with out")
        return folder
    raise InputError(f"{RUNS} holds a million runs of {slug}; remove some")


def _resumed(trial: Trial, folder: Path, *, asked: Plan, out: str | os.PathLike[str] | None) -> Plan:
    """The plan of the run in `folder`, after checking that nothing else was asked for."""
    plan = Plan.load(folder)
    plan.check(trial, folder)
    if out is not None:
        raise InputError(f"a resumed run stays in its folder {folder}; leave out {out} away")
    defaults: dict[str, Any] = {"data_path": None, "scale": "quick", "cases": None, "seed": 0, "given": {}}
    for name, default in defaults.items():
        new, old = getattr(asked, name), getattr(plan, name)
        if new not in (default, old):
            label = {"data_path": "data", "given": "params"}.get(name, name)
            raise InputError(f"{folder} was started with {label} {old!r}, not {new!r}; leave {label} out to resume it")
    return plan


@contextmanager
def _watching(progress: bool | Watch) -> Iterator[Watch]:
    if callable(progress):
        yield progress
    elif progress:
        with progress_bar() as bar:
            bars: dict[str, Any] = {}

            def draw(step: Step) -> None:
                name = f"{step.slug}/{step.part}" if step.part else step.slug
                if name not in bars:
                    bars[name] = bar.add_task(name, total=step.n_total)
                bar.update(bars[name], completed=step.n_done, description=f"{name} · {step.arm} · {step.case}")

            yield draw
    else:
        yield lambda step: None
