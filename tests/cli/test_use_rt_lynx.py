"""`assay use rt-lynx`: from a folder of a model to a folder of a sparse one, through the door that a user takes."""

import numpy as np
import pytest
import torch

from assay._core.errors import InputError
from assay._core.tables import read_table


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(" ".join(f"w{i}" for i in np.random.default_rng(0).integers(97, size=1600)))
    return path


def test_a_model_is_written_sparse_and_loads(run, model_dir, text, tmp_path):
    printed = run(
        model_dir, "--calibration", text, "--rank", 8, "-o", "out", "--table", "layers.csv", "--plot", "e.svg"
    ).stdout
    assert "12 of 12 layers with 2:4 inputs" in printed
    from assay.compress.rt_lynx import load
    from assay.models import load_lm

    full, _ = load_lm(model_dir)
    ids = torch.arange(20)[None]
    with torch.no_grad():
        gap = (load(tmp_path / "out")(ids).logits - full(ids).logits).norm() / full(ids).logits.norm()
    assert 0 < gap < 0.5
    assert len(read_table(tmp_path / "layers.csv", {"layer": "text", "error": "number"})) == 12
    assert (tmp_path / "e.svg").read_text().lstrip().startswith("<?xml")
    assert not (tmp_path / "out.layers").exists()


def test_the_folder_one_is_in_can_be_written_to(run, model_dir, text, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    run(model_dir, "--calibration", text, "--rank", 2, "-o", ".")
    assert (tmp_path / "here" / "rt_lynx.json").is_file()
    assert not (tmp_path / "here.layers").exists()


def test_a_budget_chooses_the_rank(run, model_dir, text, tmp_path):
    run(model_dir, "--calibration", text, "--budget", "100KB", "-o", "out", "--repairs-only")
    size = (tmp_path / "out" / "adapter_model.safetensors").stat().st_size
    # A rank takes 4 bytes x 2 blocks x (128 + 2 x 96 + 3 x 160) = 6.4 kB.
    assert 80_000 < size <= 100_000


def test_other_patterns_and_layers(run, model_dir, text):
    printed = run(
        model_dir, "--calibration", text, "--pattern", "4:8", "--targets", r"\.mlp\.", "--rank", 0, "-o", "out"
    ).stdout
    assert "6 of 6 layers with 4:8 inputs, 0.500 of their multiply-adds; 0 parameters added" in printed


def test_the_help_opens_with_an_example(run):
    assert r"assay use rt-lynx demo --targets '\.mlp\.' -o smollm2-sparse" in " ".join(run("--help").stdout.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pattern", "half"], r"^--pattern takes two numbers such as 2:4, not 'half'$"),
        (["--pattern", "5:4"], r"^n=5, m=4: expected 1 <= n <= m <= 16"),
        (["--budget", "much"], r"^--budget takes a size such as 60MB or 1\.5GB, not 'much'$"),
        (["--budget", "1K"], r"^--budget 0\.00 MB: repairs of rank 1 take 0\.0\d MB; use --rank 0 for none$"),
        (["--calibration", "absent.txt"], r"^absent\.txt cannot be read as UTF-8 text"),
        (["--calibration", "short.txt"], r"^the calibration text has 3 tokens; bring at least 256$"),
        (["--calibration", "empty.txt"], r"^the calibration text has 0 tokens; bring at least 256$"),
        (["--targets", "experts"], r"^no linear layer matches targets='experts'; the model has model\.layers\.0"),
        (["--plot", "x.gif"], r"^x\.gif: a picture is written as one of \.png, \.svg, \.pdf$"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(run, model_dir, tmp_path, arguments, message):
    (tmp_path / "short.txt").write_text("w1 w2 w3")
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(InputError, match=message):
        run(model_dir, "-o", "out", *arguments)


def test_a_folder_in_use_is_not_written_to(run, model_dir, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    with pytest.raises(InputError, match=r"^full is there already; give the name of a new or empty folder$"):
        run(model_dir, "-o", "full")


def test_a_diffusers_folder_is_sent_to_python(run, tmp_path):
    (tmp_path / "pipe").mkdir()
    (tmp_path / "pipe" / "model_index.json").write_text("{}")
    with pytest.raises(InputError, match=r"^pipe is a diffusers folder, whose calibration needs its pipeline; use"):
        run("pipe", "-o", "out")


def test_a_model_that_is_not_there(run):
    with pytest.raises(InputError, match=r"^nowhere is neither a folder nor a model in "):
        run("nowhere", "-o", "out")
