"""`assay use dynamic-whitening`: from a folder of a model to a smaller one, through the door that a user takes.

The command is not in the catalog's hands here: its Typer app is run as `assay use` runs it, errors and all.
"""

import subprocess
import sys

import pytest
import torch

from assay._core.errors import InputError
from assay._core.tables import read_table

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def text(tmp_path):
    (tmp_path / "text.txt").write_text(" ".join(f"w{7 * i * i % 97}" for i in range(4000)))


TEXT = ("--calibration", "text.txt", "--length", "64")


def test_a_model_is_written_with_factors_and_loads(run, model_dir, tmp_path):
    from assay.compress.dynamic_whitening import load
    from assay.models import load_lm

    printed = run(
        model_dir, "--ratio", "0.8", *TEXT, "-o", "small", "--table", "layers.csv", "--plot", "layers.png"
    ).stdout
    assert "14 layers keep 0.7" in printed
    full, _ = load_lm(model_dir)
    ids = torch.arange(20)[None]
    with torch.no_grad():
        gap = (load(tmp_path / "small")(ids).logits - full(ids).logits).norm() / full(ids).logits.norm()
    assert 0 < gap < 0.5
    assert len(read_table(tmp_path / "layers.csv", {"layer": "text", "rank": "number"})) == 14
    assert (tmp_path / "layers.png").stat().st_size > 1000
    assert not (tmp_path / "small.unfinished").exists()


def test_a_budget_is_kept(run, model_dir, tmp_path):
    # Two embeddings of 25 kB and the norms stay.
    run(model_dir, "--budget", "0.25MB", *TEXT, "-o", "small")
    assert 220_000 < (tmp_path / "small" / "model.safetensors").stat().st_size <= 250_000


def test_a_run_that_was_stopped_goes_on(run, model_dir, tmp_path, monkeypatch):
    from assay.compress.dynamic_whitening import models, whitened_svd

    seen = []

    def stops(*args, **kwargs):
        seen.append(args)
        if len(seen) == 6:
            raise MemoryError
        return whitened_svd(*args, **kwargs)

    monkeypatch.setattr(models, "whitened_svd", stops)
    with pytest.raises(MemoryError):
        run(model_dir, *TEXT, "-o", "small")
    assert len(list((tmp_path / "small.unfinished").glob("*.safetensors"))) == 5
    assert "14 layers" in run(model_dir, *TEXT, "-o", "small").stdout
    assert len(seen) == 6 + 9


def test_plain_truncation_needs_no_text(run, model_dir):
    assert "14 layers" in run(model_dir, "--whiten", "none", "-o", "small").stdout


def test_help_opens_with_an_example(run):
    shown = run("--help").stdout
    assert "assay use dynamic-whitening demo --ratio 0.8 -o smollm2-small" in " ".join(shown.replace("│", " ").split())


def test_declaring_the_command_and_the_trial_does_not_load_torch():
    script = "import sys, assay.trials.compress.dynamic_whitening, assay.cli.use.dynamic_whitening"
    script += ", assay.compress.dynamic_whitening"
    loaded = subprocess.run(
        [sys.executable, "-c", script + "; print('torch' in sys.modules)"], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--ratio", "1.5"), r"^ratio=1\.5: expected the share of parameters to keep, above 0 and at most 1"),
        (("--budget", "lots"), r"^--budget takes a size such as 60MB or 1\.5GB, not 'lots'$"),
        (("--budget", "1KB"), r"^budget of 0\.0 MB: 0\.[0-9] MB are embeddings, norms and skipped layers"),
        (("--budget", "1GB"), r"the model is within what was asked for already \(0\.3 MB\); nothing was written$"),
        (("--whiten", "odd"), r"^whiten='odd' is not one of dynamic, static, diag, none$"),
        (("--plot", "a.gif"), r"^a\.gif: a picture is written as one of \.png, \.svg, \.pdf$"),
        (("--calibration", "no.txt"), r"^no\.txt cannot be read as UTF-8 text: "),
        (
            ("--length", "9000"),
            r"^the calibration text has 4000 tokens, less than one sequence of 9000; bring a",
        ),
    ],
    ids=["ratio", "size", "budget", "nothing to do", "whiten", "plot", "text", "length"],
)
def test_what_cannot_be_done_is_said(run, model_dir, arguments, message):
    with pytest.raises(InputError, match=message):
        run(model_dir, *TEXT, *arguments, "-o", "small")


def test_a_folder_that_is_not_empty_is_left_alone(run, model_dir, tmp_path):
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "mine.txt").write_text("keep")
    with pytest.raises(InputError, match=r"^small is there already; give the name of a new or empty folder$"):
        run(model_dir, *TEXT, "-o", "small")
