import sys
from dataclasses import replace

import pytest
from toy_trial import TOY, run

from assay._core.errors import InputError
from assay.bench import Arm

mlflow = pytest.importorskip("mlflow")

PARTED = replace(
    TOY,
    arms=(*TOY.arms[:2], Arm("Bradley–Terry <script>", TOY.arms[2].run, baseline=True)),
    also=(replace(TOY, part="simulated"),),
)


@pytest.fixture(scope="module", autouse=True)
def store_of_files():
    """MLflow's store of files wants to be asked for by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        yield


@pytest.fixture(scope="module", params=["files", "sqlite"])
def logged(request, tmp_path_factory):
    """A run of two parts logged to a store, and what the store has of it."""
    folder = tmp_path_factory.mktemp("mlflow")
    uri = (folder / "store").as_uri() if request.param == "files" else f"sqlite:///{folder}/store.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # where MLflow puts the artifacts of a database that has no server
        result = run(PARTED, folder / "run", jobs=1, mlflow=uri)
    client = mlflow.tracking.MlflowClient(uri)
    experiment = client.get_experiment_by_name("assay")
    runs = {one.data.tags["mlflow.runName"]: one for one in client.search_runs([experiment.experiment_id])}
    return result, client, runs


def test_parameters_are_logged(logged):
    _, _, runs = logged
    params = runs["toy"].data.params
    assert (params["scale"], params["seed"], params["param.kind"]) == ("quick", "0", "normal")


def test_the_verdict_is_a_tag(logged):
    result, _, runs = logged
    tags = runs["toy"].data.tags
    assert (tags["verdict"], tags["claim"], tags["mlflow.note.content"]) == (
        result.verdict.outcome,
        result.claim.outcome,
        result.verdict.sentence,
    )


def test_the_metrics_of_every_arm_are_logged(logged):
    result, _, runs = logged
    metrics = runs["toy"].data.metrics
    assert metrics["0 mean/distance"] == result.arms[0].metrics["distance"].mean
    assert metrics["2 Bradley_Terry _script_/distance"] == result.arms[2].metrics["distance"].mean


def test_the_effect_is_logged(logged):
    result, _, runs = logged
    assert runs["toy"].data.metrics["verdict/effect"] == result.verdict.effect


def test_the_files_are_artifacts(logged):
    _, client, runs = logged
    names = {item.path for item in client.list_artifacts(runs["toy"].info.run_id)}
    assert {"result.json", "cases.parquet", "report.html", "simulated"} <= names


def test_a_part_is_a_run_below_the_main_one(logged):
    _, _, runs = logged
    assert runs["toy/simulated"].data.tags["mlflow.parentRunId"] == runs["toy"].info.run_id


def test_runs_are_marked_finished(logged):
    _, _, runs = logged
    assert {one.info.status for one in runs.values()} == {"FINISHED"}


def test_a_store_that_fails_at_the_end_does_not_cost_the_run(tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise mlflow.exceptions.MlflowException("the disk is full")

    monkeypatch.setattr(mlflow.tracking.MlflowClient, "create_run", fail)
    with pytest.raises(
        InputError, match=r"^the run is complete in .*/run, but MLflow did not take it: .*disk is full$"
    ):
        run(TOY, tmp_path / "run", cases=1, jobs=1, mlflow=(tmp_path / "store").as_uri())
    assert (tmp_path / "run/report.html").exists()


def test_a_store_that_does_not_exist_is_refused_before_the_run(tmp_path):
    with pytest.raises(InputError, match=r"^MLflow cannot be used: .*gopher"):
        run(TOY, tmp_path / "run", mlflow="gopher://store")
    assert not (tmp_path / "run").exists()


def test_without_mlflow_the_run_does_not_begin(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(InputError, match=r"logging to MLflow needs the package 'mlflow', which is not installed"):
        run(TOY, tmp_path / "run", mlflow="file:///nowhere")
    assert not (tmp_path / "run").exists()
