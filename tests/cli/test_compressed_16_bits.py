"""The commands that make a model smaller, on a model in 16 bits: what they leave alone stays in 16 bits."""

import shutil

import pytest
import torch

from assay.cli.main import app

pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = ("--calibration", "text.txt")
COMMANDS = {
    "mxint": ("-f", "mxint8"),
    "liftquant": ("--bits", "3"),
    "liftquant with data": ("--bits", "2.5", *TEXT, "--sequences", "4", "--tokens", "32"),
    "dynamic-whitening": ("--ratio", "0.8", *TEXT, "--length", "64"),
    "rt-lynx": ("--rank", "4", *TEXT),
}


@pytest.fixture
def half_dir(model_dir, tmp_path):
    from assay.models import load_lm

    load_lm(model_dir)[0].bfloat16().save_pretrained(tmp_path / "half")
    for file in model_dir.glob("tokenizer*"):
        shutil.copy(file, tmp_path / "half")
    return tmp_path / "half"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_model_in_16_bits_is_written_in_16_bits_and_loads(command, half_dir, model_dir, tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from assay.compress import load
    from assay.models import load_lm

    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(" ".join(f"w{(i * i) % 97}" for i in range(4000)))
    slug = command.partition(" ")[0]
    sizes = {}
    for name, source in (("small", half_dir), ("large", model_dir)):
        arguments = ["use", slug, str(source), *COMMANDS[command], "-o", name]
        CliRunner().invoke(app, arguments, catch_exceptions=False)
        sizes[name] = sum(path.stat().st_size for path in (tmp_path / name).glob("*.safetensors"))
    embeddings_and_norms = 2 * 97 * 64 + 5 * 64  # no tied head here
    assert sizes["large"] - sizes["small"] >= 2 * embeddings_and_norms - 1000
    full, _ = load_lm(half_dir)
    ids = torch.arange(20)[None]
    model = load(tmp_path / "small")
    assert torch.bfloat16 in {p.dtype for p in model.parameters()}
    assert torch.float32 not in {p.dtype for p in model.parameters()}
    with torch.no_grad():
        wanted = full(ids).logits
        assert float((model(ids).logits.float() - wanted).norm() / wanted.norm()) < 0.6
