"""LiftQuant's memory: dense weights that are dropped, hidden states on disk, and the peak on whole models."""

import weakref

import numpy as np
import pytest
import torch
from memory_peaks import peak_over_model
from torch import nn

from assay._core.errors import InputError
from assay.compress._blocks import Call
from assay.compress._memory import Spilled, SpilledCalls, let_go
from assay.compress.liftquant import LiftQuantConfig, LiftQuantLinear, quantize_


class Stack(nn.Module):
    """Three blocks of two layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.Linear(48, 32)) for _ in range(3)
        )  # fmt: skip

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


DATA = [torch.randn(20, 32, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]


@pytest.mark.parametrize("calibration", [None, DATA], ids=["no data", "with data"])
def test_no_earlier_dense_weight_is_alive_when_the_next_layer_is_packed(calibration, monkeypatch):
    model, alive, from_linear = Stack(), [], LiftQuantLinear.from_linear.__func__
    weights = [weakref.ref(layer.weight) for layer in model.modules() if isinstance(layer, nn.Linear)]

    def counting(cls, *arguments, **options):
        alive.append(sum(weight() is not None for weight in weights))
        return from_linear(cls, *arguments, **options)

    monkeypatch.setattr(LiftQuantLinear, "from_linear", classmethod(counting))
    quantize_(model, LiftQuantConfig(bits=2.5, correct_steps=2), calibration)
    assert alive == [6, 5, 4, 3, 2, 1]


def test_blocks_behind_one_that_is_left_alone_see_their_inputs():
    model = Stack()
    report = quantize_(model, LiftQuantConfig(bits=2.5, correct_steps=2, skip=("blocks.0.0", "blocks.0.2")), DATA)
    assert len(report.layers) == 4
    assert model.blocks[2][0].channel_scale is not None


# ------------------------------------------------------------------------------------------------ hidden states


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64])
def test_spilled_tensors_come_back_with_the_same_values(dtype):
    made = [(10 * torch.randn(n, 3, 5)).to(dtype) for n in (2, 1, 4)]
    spilled = Spilled()
    for tensor in made:
        spilled.append(tensor)
    for tensor, back in zip(made, spilled, strict=True):
        assert back.dtype == dtype
        assert torch.equal(back, tensor)


def test_a_spilled_tensor_is_a_copy_that_may_be_written_to():
    spilled = Spilled()
    spilled.append(torch.ones(3))
    spilled[0].zero_()
    assert torch.equal(spilled[0], torch.ones(3))


def test_spilled_calls_have_the_same_arguments_and_hold_equal_ones_once():
    mask, kept = torch.ones(4, dtype=torch.bool), torch.arange(4)
    calls = [Call((torch.full((2,), float(n)), mask.clone()), {"pair": (kept.clone(), n)}) for n in range(3)]
    spilled = SpilledCalls.of(calls)
    for call, back in zip(calls, spilled, strict=True):
        assert torch.equal(back.args[0], call.args[0])
        assert torch.equal(back.args[1], mask)
        assert back.kwargs["pair"][1] == call.kwargs["pair"][1]
        assert back.args[1] is spilled[0].args[1]
        assert back.kwargs["pair"][0] is spilled[0].kwargs["pair"][0]


def test_keyword_hidden_states_are_put_back_under_their_name():
    spilled = SpilledCalls.of([Call((), {"hidden_states": torch.ones(2), "scale": 3})])
    assert torch.equal(spilled[0].kwargs["hidden_states"], torch.ones(2))
    assert spilled[0].kwargs["scale"] == 3


def test_a_full_disk_is_told(monkeypatch):
    spilled = Spilled()

    class Full:
        def seek(self, place):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(spilled, "_file", Full())
    with pytest.raises(InputError, match=r"cannot be written there \(No space left on device\); give fewer sequences"):
        spilled.append(torch.ones(2))


def test_a_mapped_weight_that_was_let_go_keeps_what_was_written_to_it(tmp_path):
    np.arange(100_000, dtype=np.float32).tofile(tmp_path / "weights")
    mapped = np.memmap(tmp_path / "weights", np.float32, mode="c").reshape(100, 1000)
    weight = torch.from_numpy(mapped)
    weight[50] = -1.0
    expected = weight.clone()
    let_go(weight)
    assert torch.equal(weight, expected)


# ------------------------------------------------------------------------------------------------ the peak

IMPORTS = "from assay.compress.liftquant import LiftQuantConfig, quantize_, save"
# The layers of SmolLM2-135M, twelve blocks of them.
SIZES = {
    "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 12, "num_attention_heads": 9,
    "num_key_value_heads": 3, "tie_word_embeddings": True,
}  # fmt: skip
# Training holds three float32 numbers a sign of one block: a block is a thirtieth of the model here, as in SmolLM2.
DEEP = {
    "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 30, "num_attention_heads": 8,
    "num_key_value_heads": 2, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(900)  # a busy machine
@pytest.mark.parametrize("is_loaded", [True, False], ids=["loaded", "made"])
def test_without_data_memory_peaks_below_1_3_times_the_model(is_loaded, tmp_path):
    verb = "quantize_(model, LiftQuantConfig(bits=2.5, pair=(5, 2)))"
    assert peak_over_model(tmp_path, SIZES, IMPORTS, verb, is_loaded=is_loaded) < 1.3


@pytest.mark.slow
@pytest.mark.timeout(900)  # a busy machine
@pytest.mark.parametrize("is_loaded", [True, False], ids=["loaded", "made"])
def test_with_data_memory_peaks_below_1_3_times_the_model(is_loaded, tmp_path):
    verb = "quantize_(model, LiftQuantConfig(bits=2.0, search='fast', correct_steps=2), ids)"
    assert peak_over_model(tmp_path, DEEP, IMPORTS, verb, is_loaded=is_loaded, ids=(8, 128)) < 1.3
