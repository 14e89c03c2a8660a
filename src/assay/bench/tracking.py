"""Log a finished run to MLflow."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from assay._core.errors import InputError
from assay._core.extras import need

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from assay.bench.result import Result

EXPERIMENT = "assay"


def check(uri: str) -> None:
    """Say before a run, not after it, that MLflow is not installed or that there is no store at `uri`.

    Raises
    ------
    InputError
    """
    with _refusals("MLflow cannot be used"):
        _client(uri).get_experiment_by_name(EXPERIMENT)


def _client(uri: str) -> Any:
    return _mlflow().MlflowClient(tracking_uri=uri)


def _mlflow() -> Any:
    return need("mlflow", extra="mlflow", purpose="logging to MLflow")


@contextmanager
def _refusals(what: str) -> Iterator[None]:
    mlflow = _mlflow()
    try:
        yield
    except (mlflow.exceptions.MlflowException, OSError) as error:
        raise InputError(f"{what}: {' '.join(str(error).split())}") from None


def log(result: Result, uri: str) -> str:
    """Log a run and its parts: parameters, the metrics of every arm, the verdict as tags, the files as artifacts.

    Parameters
    ----------
    result : Result
    uri : str
        An MLflow tracking URI: ``http://…``, ``sqlite:///FILE`` or ``file:///FOLDER``.

    Returns
    -------
    str
        The id of the MLflow run.

    Raises
    ------
    InputError
        MLflow is not installed, or does not take the run; the run's folder is complete all the same.
    """
    with _refusals(f"the run is complete in {result.folder}, but MLflow did not take it"):
        client = _client(uri)
        found = client.get_experiment_by_name(EXPERIMENT)
        experiment = found.experiment_id if found else client.create_experiment(EXPERIMENT)
        run_id = _log(client, experiment, result, parent=None)
        client.log_artifacts(run_id, str(result.folder))
        for part in result.parts:
            _log(client, experiment, part, parent=run_id)
    return run_id


def _log(client: Any, experiment: str, result: Result, *, parent: str | None) -> str:
    verdict, claim = result.verdict, result.claim
    tags = {
        "mlflow.runName": f"{result.slug}/{result.part}" if result.part else result.slug,
        "mlflow.note.content": verdict.sentence,
        "verdict": verdict.outcome,
        "baseline": verdict.baseline,
        "claim": claim.outcome,
    }
    if parent is not None:
        tags["mlflow.parentRunId"] = parent
    run_id: str = client.create_run(experiment, tags=tags).info.run_id
    params = {"slug": result.slug, "scale": result.scale, "seed": result.seed, "data": result.data.name}
    for name, value in {**params, **{f"param.{name}": value for name, value in result.params.items()}}.items():
        client.log_param(run_id, name, value)
    for name, number in _metrics(result):
        client.log_metric(run_id, name, number)
    client.set_terminated(run_id)
    return run_id


def _metrics(result: Result) -> Iterable[tuple[str, float]]:
    effects = {"effect": result.verdict.effect, "ci_low": result.verdict.ci_low, "ci_high": result.verdict.ci_high}
    numbers = {f"verdict/{name}": value for name, value in effects.items()}
    for position, arm in enumerate(result.arms):
        values = {name: estimate.mean for name, estimate in arm.metrics.items()}
        costs = {"wall_s": arm.wall_s, "cpu_s": arm.cpu_s, "peak_mib": arm.peak_mib, "n_failed": float(arm.n_failed)}
        for name, value in {**costs, **values}.items():
            # MLflow takes only these characters; the position keeps two names apart that become the same.
            numbers[re.sub(r"[^A-Za-z0-9_\-. /]", "_", f"{position} {arm.name}/{name}")] = value
    return ((name, value) for name, value in numbers.items() if value is not None)
