"""`assay use mxint`: from a folder of a model or a file of tensors, through the door that a user takes.

The command is not in the catalog's hands here: its Typer app is run as `assay use` runs it, errors and all.
"""

import numpy as np
import pytest
import torch

from assay._core.errors import InputError
from assay._core.tables import read_table


def test_a_model_is_written_quantised_and_loads(run, model_dir, tmp_path):
    printed = run(model_dir, "--format", "mxint4", "-o", "small", "--table", "layers.csv").stdout
    assert "14 layers at 4.250 bits a weight" in printed
    from assay.compress.mxint import load
    from assay.models import load_lm

    full, _ = load_lm(model_dir)
    ids = torch.arange(20)[None]
    with torch.no_grad():
        gap = (load(tmp_path / "small")(ids).logits - full(ids).logits).norm() / full(ids).logits.norm()
    assert 0 < gap < 0.3
    assert len(read_table(tmp_path / "layers.csv", {"layer": "text", "qsnr": "number"})) == 14


def test_a_budget_is_kept(run, model_dir, tmp_path):
    # Two embeddings of 25 kB and the norms stay; 61,440 weights take 33 kB at 4.25 bits and 63 kB at 8.25, after
    # what is set aside for the header of the file.
    run(model_dir, "--budget", "0.22MB", "-o", "small")
    assert (tmp_path / "small" / "model.safetensors").stat().st_size <= 220_000


def test_formats_are_compared_on_a_file_of_arrays(run, tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "w.npz", a=rng.standard_normal((32, 64)), b=rng.standard_normal((8, 64)), step=np.array(3))
    printed = run("w.npz", "--formats", "mxint8,mxfp8", "--table", "formats.json", "--plot", "lead.svg").stdout
    assert "mxint8 has the smaller error on 2 of 2 tensors" in printed
    assert (tmp_path / "formats.json").stat().st_size > 100
    assert (tmp_path / "lead.svg").read_text().lstrip().startswith("<?xml")


def test_the_help_opens_with_an_example(run):
    assert "assay use mxint demo --format mxint8 -o smollm2-mxint8" in " ".join(run("--help").stdout.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["w.npy", "--format", "mxint9"], r"^format 'mxint9' is not one of mxint8"),
        (["w.npy", "--budget", "60MB"], r"^--budget chooses formats for a model that is written; name its folder"),
        (["absent.npz"], r"^absent\.npz: no such file$"),
        (["text.npz"], r"^text\.npz cannot be read as \.npz"),
        (["whole.npy"], r"^whole\.npy holds no matrix of floating-point numbers$"),
        (["w.npy", "--plot", "x.gif"], r"^x\.gif: a picture is written as one of \.png, \.svg, \.pdf$"),
        (["nowhere", "-o", "out"], r"nowhere is neither a folder nor a model in "),
        (["nowhere", "-o", "full"], r"^full is there already; give the name of a new or empty folder$"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(run, tmp_path, arguments, message):
    np.save(tmp_path / "w.npy", np.ones((4, 32)))
    np.save(tmp_path / "whole.npy", np.ones((4, 32), int))
    (tmp_path / "text.npz").write_text("not an archive")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    with pytest.raises(InputError, match=message):
        run(*arguments)


@pytest.mark.parametrize("text", ["much", "60 parsecs", ""])
def test_a_budget_that_is_no_size_is_refused(run, model_dir, text):
    with pytest.raises(InputError, match=r"^--budget takes a size such as 60MB or 1\.5GB, not "):
        run(model_dir, "-o", "out", "--budget", text)


def test_a_budget_below_the_embeddings_says_so(run, model_dir):
    message = r"^--budget 0\.0 MB: in the narrowest of these formats the file takes 0\.2 MB, of which 0\.1 MB are embed"
    with pytest.raises(InputError, match=message):
        run(model_dir, "-o", "out", "--budget", "1K")


def test_a_budget_between_two_formats_gets_both_and_the_widest_that_fits_all(run, model_dir, tmp_path):
    run(model_dir, "--budget", "10MB", "-o", "wide", "--formats", "mxint4,mxint8", "--table", "wide.csv")
    run(model_dir, "--budget", "0.21MB", "-o", "narrow", "--formats", "mxint4,mxint8", "--table", "narrow.csv")
    wide, narrow = (read_table(tmp_path / name, {"format": "text"})["format"] for name in ("wide.csv", "narrow.csv"))
    assert set(wide) == {"mxint8"}
    assert set(narrow) == {"mxint4", "mxint8"}


def test_an_interrupted_run_goes_on_at_the_layer_where_it_stopped(run, model_dir, tmp_path, monkeypatch):
    from assay.compress.mxint import MXLinear

    made, real = [], MXLinear.from_linear.__func__

    def interrupted_at(limit):
        def from_linear(cls, linear, config=None):
            if len(made) == limit:
                raise RuntimeError("power cut")
            made.append(linear)
            return real(cls, linear, config)

        monkeypatch.setattr(MXLinear, "from_linear", classmethod(from_linear))

    interrupted_at(5)
    with pytest.raises(RuntimeError, match="power cut"):
        run(model_dir, "-f", "mxint6", "-o", "small")
    assert not (tmp_path / "small" / "mxint.json").exists()
    interrupted_at(None)
    assert "14 layers at 6.250 bits a weight" in run(model_dir, "-f", "mxint6", "-o", "small").stdout
    assert len(made) == 14  # five before, nine after
    run(model_dir, "-f", "mxint6", "-o", "whole")
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("small", "whole"))
    assert first == second
    assert not (tmp_path / "small" / "unfinished-layers").exists()


def test_a_pickle_is_not_opened(run, tmp_path):
    np.save(tmp_path / "p.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match=r"^p\.npy cannot be read as \.npy"):
        run("p.npy")
