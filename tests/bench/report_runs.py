"""Run folders for the tests of the report: written by hand to the contract, with numbers that a test can recompute."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from pathlib import Path

TAU = {
    "name": "kendall_tau",
    "better": "higher",
    "target": None,
    "scale": "linear",
    "unit": "",
    "help": "Rank agreement.",
}
PPL = {"name": "perplexity", "better": "lower", "target": None, "scale": "log", "unit": "", "help": "Lower is surer."}
COVERAGE = {"name": "coverage", "better": None, "target": 0.95, "scale": "linear", "unit": "", "help": ""}

METHOD, RIVAL = "judge-aware ranking", "judge-blind Bradley–Terry (choix)"


def write_run(
    folder: Path,
    *,
    n: int = 24,
    arms: tuple[str, ...] = (METHOD, RIVAL),
    shifts: tuple[float, ...] | None = None,
    metrics: tuple[dict[str, Any], ...] = (TAU,),
    margin: float = 0.0,
    failing: dict[str, tuple[int, ...]] | None = None,
    missing: dict[str, tuple[int, ...]] | None = None,
    slug: str = "judge-rank",
    part: str = "",
    also: tuple[str, ...] = (),
    outcome: str = "better",
    claim_outcome: str = "supported",
    sentence: str | None = None,
    seed: int = 0,
    **changes: Any,
) -> Path:
    """Write a finished run into `folder`: the first arm is the method, the second its strongest baseline.

    `failing` and `missing` name, by arm, the cases that raise and the cases whose metrics are NaN. `changes` replace
    top-level fields of the result.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    shifts = shifts or (0.05, *[0.0] * (len(arms) - 1))
    difficulty = rng.normal(0.0, 0.05, n)
    rows = []
    for i in range(n):
        for position, arm in enumerate(arms):
            failed = i in (failing or {}).get(arm, ())
            row: dict[str, Any] = {"case": f"case-{i}", "arm": arm, "baseline": position > 0}
            for metric in metrics:
                value = 0.8 + difficulty[i] + shifts[position] + rng.normal(0.0, 0.03)
                value = 20 * np.exp(-(value - 0.8)) if metric["scale"] == "log" else value
                row[metric["name"]] = np.nan if failed or i in (missing or {}).get(arm, ()) else value
            wall = float(0.02 * (1 + position) ** 2 * np.exp(rng.normal(0, 0.3)))
            row |= {"wall_s": wall, "cpu_s": wall * 1.1, "peak_mib": 80.0 + 40 * position + rng.uniform(0, 5)}
            if failed:
                row |= {"wall_s": np.nan, "cpu_s": np.nan, "peak_mib": np.nan}
            row["error"] = "ValueError: the solver did not converge" if failed else None
            rows.append(row)
    frame = pd.DataFrame(rows)
    frame.to_parquet(folder / "cases.parquet", index=False)

    result = {
        "schema": 1,
        "slug": slug,
        "part": part,
        "scale": "quick",
        "seed": seed,
        "params": {},
        "created": "2026-07-06T09:30:00+00:00",
        "environment": {
            "python": "3.11.9",
            "platform": "Linux-6.1-x86_64",
            "cpu": "Example CPU @ 2.50GHz",
            "cores": 2,
            "memory_gib": 15.6,
            "gpu": None,
            "packages": {"numpy": "2.4.0", "scipy": "1.17.0"},
        },
        "command": f"assay try {slug} --scale quick --seed {seed}",
        "data": {"name": "20 judges on MT-Bench (simulated)", "path": None, "sha256": None, "n": 4800},
        "claim": {
            "text": "orders models closer to the truth than judge-blind Bradley–Terry",
            "metric": metrics[0]["name"],
            "better": metrics[0]["better"],
            "scale": metrics[0]["scale"],
            "margin": margin,
            "expects": "better",
            "outcome": claim_outcome,
        },
        "verdict": _verdict(frame, arms, metrics[0], outcome, sentence),
        "metrics": list(metrics),
        "arms": [_arm(frame[frame["arm"] == arm], arm, i > 0, metrics) for i, arm in enumerate(arms)],
        "cases_file": "cases.parquet",
        "failures": [
            {"arm": row.arm, "case": row.case, "error": row.error} for row in frame[frame["error"].notna()].itertuples()
        ],
        "also": list(also),
        "skipped": [],
    }
    (folder / "result.json").write_text(json.dumps(result | changes, ensure_ascii=False), encoding="utf-8")
    return folder


def write_full_run(folder: Path) -> Path:
    """A run with four arms, a margin, failures and a part on the log scale."""
    write_run(
        folder,
        arms=(METHOD, RIVAL, "majority vote", "Elo"),
        metrics=(TAU, COVERAGE),
        margin=0.01,
        failing={"Elo": (3, 7)},
        also=("held-out votes",),
        params={"n_judges": 20},
    )
    write_run(folder / "held-out votes", part="held-out votes", metrics=(PPL, TAU), margin=0.02, outcome="unclear")
    return folder


def changed(folder: Path, **values: Any) -> Path:
    """Replace fields of result.json; a name with two underscores reaches into an object."""
    result = json.loads((folder / "result.json").read_text())
    for name, value in values.items():
        *path, last = name.split("__")
        inner = result
        for key in path:
            inner = inner[key]
        inner[last] = value
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def _summary(values: np.ndarray, *, is_log: bool) -> tuple[float | None, float | None, float | None]:
    values = values[~np.isnan(values)]
    if not len(values):
        return None, None, None
    values = np.log(values) if is_log else values
    half = 1.96 * values.std(ddof=1) / np.sqrt(len(values)) if len(values) >= 6 else None
    ends = [values.mean()] if half is None else [values.mean(), values.mean() - half, values.mean() + half]
    numbers = [float(np.exp(end)) if is_log else float(end) for end in ends]
    return (*numbers, *[None] * (3 - len(numbers)))  # type: ignore[return-value]


def _verdict(frame, arms, metric, outcome, sentence):
    table = frame.pivot(index="case", columns="arm", values=metric["name"])
    pair = table[[arms[0], arms[1]]].dropna()
    is_log = metric["scale"] == "log"
    values = pair[arms[0]] / pair[arms[1]] if is_log else pair[arms[0]] - pair[arms[1]]
    effect, low, high = _summary(values.to_numpy(dtype=float), is_log=is_log)
    default = f"On {metric['name']}, {arms[0]} is {outcome} than {arms[1]} over {len(pair)} cases."
    return {
        "outcome": outcome,
        "baseline": arms[1],
        "effect": effect,
        "ci_low": low,
        "ci_high": high,
        "effect_scale": "ratio" if is_log else "difference",
        "n_cases": len(pair),
        "p_value": None if low is None else 0.0123,
        "sentence": sentence or default,
    }


def _arm(rows, name, baseline, metrics):
    finished = rows[rows["error"].isna()]
    estimates = {}
    for metric in metrics:
        figures = _summary(finished[metric["name"]].to_numpy(dtype=float), is_log=metric["scale"] == "log")
        estimates[metric["name"]] = dict(zip(("mean", "ci_low", "ci_high"), figures, strict=True))
    empty = finished.empty
    return {
        "name": name,
        "baseline": baseline,
        "metrics": estimates,
        "wall_s": None if empty else float(finished["wall_s"].median()),
        "cpu_s": None if empty else float(finished["cpu_s"].median()),
        "peak_mib": None if empty else float(finished["peak_mib"].max()),
        "n_finished": len(finished),
        "n_failed": len(rows) - len(finished),
    }
