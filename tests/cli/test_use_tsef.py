"""`assay use tsef`: from a user's classifier and series to a folder with the report."""

import json
import re
import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from assay._core.errors import InputError
from assay.cli.use.tsef import load_classifier

FAST = ["--iters", "1", "--budgets", "0.1,0.3", "--weights", "0.3", "--attacks", "random,pgd_first,tsef", "--no-watch"]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.Softplus(), torch.nn.Linear(8, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x.flatten(1))


def some_series():
    return torch.randn(16, 1, 12, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def model():
    """An untrained network whose classes are about as frequent on these series."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Net().eval()
    with torch.no_grad():
        model.layers[2].bias -= model(some_series()).median(dim=0).values
    return model


@pytest.fixture
def folder(tmp_path, monkeypatch, model):
    """A folder with a model in three forms, and 16 series whose classes are what the model says."""
    monkeypatch.chdir(tmp_path)
    X = some_series()
    with torch.no_grad():
        names = np.array(["no", "yes"])[model(X).argmax(dim=1).numpy()]
    np.savez(tmp_path / "series.npz", X=X.numpy(), y=names)
    with_gap = X.numpy().copy()
    with_gap[15, 0, 5] = np.nan  # also where that series is not drawn
    np.savez(tmp_path / "gap.npz", X=with_gap, y=names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(model).save("model.pt")
        program = torch.export.export(model, (X[:4],), dynamic_shapes=({0: torch.export.Dim("n")},))
        torch.export.save(program, "model.pt2")
    pd.DataFrame([[0.0] * 12 + ["yes"]], columns=[*map(str, range(12)), "label"]).to_csv("one.csv", index=False)
    torch.save(model.state_dict(), "weights.pth")
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def build():\n"
        "    layers = torch.nn.Linear(12, 8), torch.nn.Softplus(), torch.nn.Linear(8, 2)\n"
        "    model = torch.nn.Sequential(torch.nn.Flatten(), *layers)\n"
        "    state = torch.load('weights.pth', weights_only=True)\n"
        "    model.load_state_dict({name.replace('layers.0', '1').replace('layers.2', '3'): value\n"
        "                           for name, value in state.items()})\n"
        "    return model\n"
        "def size(model):\n"
        "    return lambda x, target: x.abs()\n"
        "number = 3\n",
        encoding="utf-8",
    )
    return tmp_path


@pytest.mark.parametrize("source", ["model.pt", "model.pt2", "mine:build"])
def test_a_model_gives_the_same_logits_in_each_of_three_forms(folder, model, source):
    with torch.no_grad():
        torch.testing.assert_close(load_classifier(source)(some_series()), model(some_series()))


def test_the_folder_holds_the_report_as_text_tables_json_and_pictures(run, folder):
    run("model.pt2", "series.npz", "-o", "report", *FAST)
    names = {path.name for path in (folder / "report").iterdir()}
    assert names == {
        "report.txt", "series.csv", "runs.csv", "noticed.csv", "summary.json", "curve.png", "frontier.png",
    }  # fmt: skip
    document = json.loads((folder / "report" / "summary.json").read_text(encoding="utf-8"))
    assert document["classes"] == ["no", "yes"]
    assert len(document["runs"]) == 6
    table = pd.read_csv(folder / "report" / "series.csv")
    assert len(table) == 6 * 16
    assert (table["linf"] <= 1).all()


def test_a_limit_attacks_some_series_and_names_them_by_their_place_in_the_file(run, folder):
    run("model.pt2", "series.npz", "-o", "report", "--limit", "5", *FAST)
    table = pd.read_csv(folder / "report" / "series.csv")
    assert table["series"].nunique() == 5
    assert table["series"].between(0, 15).all()
    y = np.load(folder / "series.npz")["y"]
    assert (np.array(["no", "yes"])[table["y"]] == y[table["series"]]).all()


def test_series_of_the_target_class_are_left_out(run, folder):
    run("model.pt2", "series.npz", "-o", "report", "--target", "yes", *FAST)
    table = pd.read_csv(folder / "report" / "series.csv")
    assert set(table["target"]) == {1}
    assert set(table["y"]) == {0}


def test_without_labels_the_predicted_classes_are_attacked_and_those_of_the_target_left_out(run, folder, model):
    np.save("series.npy", some_series().numpy())
    done = run("model.pt2", "series.npy", "-o", "report", "--target", "1", *FAST)
    with torch.no_grad():
        n_others = int((model(some_series()).argmax(dim=1) == 0).sum())
    assert f"{n_others} of {n_others} series attacked" in done.output


def test_captums_explainers_are_asked_whether_they_notice(run, folder):
    pytest.importorskip("captum", reason="captum is not installed")
    done = run("model.pt", "series.npz", "-o", "report", *[part for part in FAST if part != "--no-watch"])
    noticed = pd.read_csv(folder / "report" / "noticed.csv")
    assert len(noticed) == 5 * 2 * 2
    assert "who notices at budget 0.3" in done.output


def test_an_explainer_of_ones_own_is_attacked(run, folder):
    run("model.pt2", "series.npz", "-o", "report", "--explainer", "mine:size", *FAST)
    assert json.loads((folder / "report" / "summary.json").read_text(encoding="utf-8"))["explainer"] == "<lambda>"


def test_a_table_with_a_row_a_series_will_do(run, folder):
    stored = np.load("series.npz")
    frame = pd.DataFrame(stored["X"][:, 0], columns=[f"t{i}" for i in range(12)]).assign(kind=stored["y"])
    frame.to_csv("series.csv", index=False)
    done = run("model.pt2", "series.csv", "--label", "kind", "-o", "report", *FAST)
    assert "16 of 16 series attacked" in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.pt", "series.npz"], "none.pt: no such file; give a .pt, a .pt2 or MODULE:FUNCTION"),
        (["weights.pth", "series.npz"], "weights.pth: neither TorchScript nor a program of torch.export"),
        (["nowhere:build", "series.npz"], "MODEL nowhere:build: no module 'nowhere' in this folder"),
        (["mine:make", "series.npz"], "MODEL mine:make: the module mine has no function 'make'"),
        (["mine:number", "series.npz"], "MODEL mine:number: the module mine has no function 'number'"),
        (["model.pt2", "none.npz"], "none.npz: no such file; give a .ts, .npz or .npy file"),
        (["model.pt2", "series.npz", "--explainer", "lime"], "--explainer 'lime' is not one of ig, saliency"),
        (["model.pt2", "series.npz", "--budgets", "a"], "--budgets 'a': expected numbers with commas between"),
        (["model.pt2", "series.npz", "--target", "maybe"], "--target 'maybe' is not one of no, yes"),
        (["model.pt2", "series.npz", "--classes", "no,maybe"], "class 'yes' is not one of no, maybe"),
        (["model.pt2", "series.npz", "--layout", "BTD"], "the model failed on series of shape"),
        (
            ["model.pt2", "one.csv"],
            "one.csv: 1 classes (yes), and the model has 2; name all in the order of its outputs",
        ),
        (
            ["model.pt2", "gap.npz", "--limit", "2"],
            "gap.npz, series 15, channel 0, time 5: the value is nan; fill gaps",
        ),
        (["model.pt2", "series.npz", "-o", "mine.py"], "mine.py is a file; give the name of a folder to write to"),
    ],
)
def test_what_is_wrong_gets_a_sentence(run, folder, arguments, message):
    with pytest.raises(InputError, match=re.escape(message)):
        run(*FAST, *arguments)
