"""The family's one shape: the config finds the method, and so does the folder."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from assay import compress
from assay._core.errors import InputError
from assay.compress import LiftQuantConfig, MXConfig, load, quantize_, save

CONFIGS = {"mxint": MXConfig("mxint4", skip=("2",)), "liftquant": LiftQuantConfig(bits=2.0, skip=("2",))}


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 4))


def test_importing_the_family_and_its_verbs_does_not_load_torch():
    script = "import sys, assay.compress.verbs, assay.compress as c; c.quantize_; print('torch' in sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "False"


@pytest.mark.parametrize("name", CONFIGS)
def test_the_config_finds_its_method_and_the_folder_finds_it_again(name, tmp_path):
    model, x = mlp(), torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    report = quantize_(model, CONFIGS[name])
    assert type(report).__module__.startswith(f"assay.compress.{name}")
    save(model, tmp_path / "out")
    assert (tmp_path / "out" / f"{name}.json").is_file()
    assert torch.equal(load(tmp_path / "out", mlp())(x), model.eval()(x))


def test_options_reach_the_method(tmp_path):
    quantize_(mlp(), CONFIGS["mxint"], checkpoint=tmp_path / "layers")
    assert len(list((tmp_path / "layers").glob("*.safetensors"))) == 1


def test_another_config_is_refused():
    with pytest.raises(InputError, match=r"^config is of type str; expected one of MXConfig, LiftQuantConfig$"):
        quantize_(mlp(), "mxint8")


def test_a_model_as_it_was_is_not_saved(tmp_path):
    with pytest.raises(InputError, match=r"^the model holds no compressed layer; call quantize_ first$"):
        save(mlp(), tmp_path)


def test_layers_of_two_methods_do_not_go_into_one_folder(tmp_path):
    model = mlp()
    quantize_(model, CONFIGS["liftquant"])
    quantize_(model, MXConfig())
    with pytest.raises(
        InputError, match=r"^the model holds layers of mxint and liftquant; a folder holds those of one"
    ):
        save(model, tmp_path)


def test_a_folder_of_no_method_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"it should hold one of mxint\.json, liftquant\.json, .*, and holds none$"):
        load(tmp_path)


def test_every_name_of_the_family_is_there():
    assert all(getattr(compress, name) is not None for name in compress.__all__)
    assert set(compress.__all__) <= set(dir(compress))
