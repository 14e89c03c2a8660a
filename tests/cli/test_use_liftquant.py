"""`assay use liftquant`: from a folder of a model to a folder that loads, through the door that a user takes."""

import re

import pytest
import torch

from assay._core.errors import InputError
from assay._core.tables import read_table

pytestmark = pytest.mark.usefixtures("one_thread")


def gap(small, full):
    from assay.compress.liftquant import load
    from assay.models import load_lm

    reference, _ = load_lm(full)
    ids = torch.arange(20)[None]
    with torch.no_grad():
        wanted = reference(ids).logits
        return float((load(small)(ids).logits - wanted).norm() / wanted.norm())


def test_a_model_is_written_quantised_and_loads(run, model_dir, tmp_path):
    printed = run(model_dir, "--bits", "3", "-o", "small", "--table", "layers.csv", "--plot", "error.svg").stdout
    assert "14 layers at 3." in printed
    assert "Left alone: lm_head" in printed
    assert 0 < gap(tmp_path / "small", model_dir) < 0.5
    assert len(read_table(tmp_path / "layers.csv", {"layer": "text", "error": "number"})) == 14
    assert (tmp_path / "error.svg").stat().st_size > 1000
    assert sorted(path.suffix for path in (tmp_path / "small").iterdir() if path.name.startswith(".")) == []


def test_calibration_text_scales_channels_and_trains_signs(run, model_dir, tmp_path):
    (tmp_path / "text.txt").write_text(" ".join(f"w{(i * i) % 97}" for i in range(700)))
    run(model_dir, "--bits", "2.5", "--calibration", "text.txt", "--sequences", "8", "--tokens", "32", "-o", "small")
    from assay.compress.liftquant import load

    layer = load(tmp_path / "small").model.layers[0].mlp.up_proj
    assert layer.channel_scale is not None


def test_a_rate_that_is_not_the_one_asked_for_is_said(run, model_dir):
    printed = run(model_dir, "--bits", "3.9", "-o", "small").stdout
    assert "Asked for 3.9 bits a weight, took 3 (6/2), the nearest shipped rate below" in printed


def test_a_budget_is_kept(run, model_dir, tmp_path):
    run(model_dir, "--budget", "0.22MB", "-o", "small")
    assert (tmp_path / "small" / "model.safetensors").stat().st_size <= 220_000


def test_an_interrupted_run_goes_on(run, model_dir, tmp_path, monkeypatch):
    from assay.compress import liftquant

    save = liftquant.save

    def full_disk(*arguments):
        raise OSError("no space left")

    monkeypatch.setattr(liftquant, "save", full_disk)
    with pytest.raises(OSError, match="no space left"):
        run(model_dir, "--bits", "2.5", "-o", "small")
    n_kept = len(list((tmp_path / "small" / ".finished-layers").glob("*.safetensors")))
    assert n_kept == 14
    monkeypatch.setattr(liftquant, "save", save)
    assert "14 layers at" in run(model_dir, "--bits", "2.5", "-o", "small").stdout


def test_the_help_opens_with_an_example(run):
    assert "assay use liftquant demo --bits 2.4 -o smollm2-2.4" in " ".join(run("--help").stdout.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--bits", "0.5"), "bits=0.5: expected 1 to 4 bits a weight; the nearest is D=16, d=10 (1.6 bits)"),
        (("--budget", "lots"), "--budget takes a size such as 60MB or 1.5GB, not 'lots'"),
        (("--budget", "1kB"), "budget of 0.0 MB: the least is "),
        (("--calibration", "none.txt"), "none.txt cannot be read as UTF-8 text: "),
        (
            ("--calibration", "short.txt"),
            "--calibration: 2 tokens are fewer than the 256 of a sequence; bring more text",
        ),
        (("--calibration", "short.txt", "--tokens", "0"), "--tokens 0: expected a whole number from 1"),
        (("--plot", "error.docx"), "error.docx: a picture is written as one of .png, .svg, .pdf"),
        (("--skip", "q_proj", "-o", "full"), "full is there already; give the name of a new or empty folder"),
    ],
)
def test_bad_options_are_named(run, model_dir, tmp_path, arguments, message):
    (tmp_path / "short.txt").write_text("w1 w2")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious.txt").write_text("mine")
    out = () if "-o" in arguments else ("-o", "small")
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        run(model_dir, *arguments, *out)
