"""What the family shares: which layers it takes, and where a compressed one goes."""

import pytest
import torch
from torch import nn

from assay._core.errors import InputError
from assay.compress import ActivationSparsityConfig, LiftQuantConfig, MXConfig, WhiteningConfig, load, save
from assay.compress._layers import linear_layers
from assay.compress.dynamic_whitening import factorize_
from assay.compress.liftquant import quantize_ as lift_
from assay.compress.mxint import quantize_ as mx_
from assay.compress.rt_lynx import sparsify_

X = torch.randn(12, 64, generator=torch.Generator().manual_seed(3))

VERBS = {
    "mxint": lambda model: mx_(model, MXConfig("mxint4", skip=())),
    "liftquant": lambda model: lift_(model, LiftQuantConfig(bits=2.0, skip=())),
    "dynamic-whitening": lambda model: factorize_(model, WhiteningConfig(ratio=0.5, skip=()), [X]),
    "rt-lynx": lambda model: sparsify_(model, ActivationSparsityConfig(rank=4, targets="."), [X]),
}


class Twice(nn.Module):
    """One layer under two names."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(64, 64)
        self.between = nn.Tanh()
        self.second = self.first

    def forward(self, x):
        return self.second(self.between(self.first(x)))


@pytest.mark.parametrize("method", VERBS)
def test_a_layer_under_two_names_is_replaced_under_both_and_stays_one(method, tmp_path):
    model = Twice().eval()
    VERBS[method](model)
    assert model.first is model.second
    assert type(model.first) is not nn.Linear
    save(model, tmp_path)
    again = load(tmp_path, Twice())
    assert again.first is again.second
    with torch.no_grad():
        assert torch.equal(again(X), model(X))


def tied_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=97, tie_word_embeddings=True, **sizes)).eval()


@pytest.mark.parametrize("method", ["mxint", "liftquant"])
def test_a_tied_head_stays_tied_even_where_nothing_is_skipped(method, tmp_path):
    model, ids = tied_llama(), torch.arange(20)[None]
    VERBS[method](model)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    save(model, tmp_path)
    again = load(tmp_path)
    assert again.lm_head.weight is again.model.embed_tokens.weight
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)


@pytest.mark.parametrize("method", VERBS)
def test_a_model_without_numbers_is_refused(method):
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8))
    with pytest.raises(InputError, match=r"^layer '0' is on the meta device, which holds no numbers; load its"):
        VERBS[method](model)


def test_a_single_name_to_skip_is_a_name_and_not_its_letters():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model.add_module("head", nn.Linear(4, 4))
    model.add_module("ea", nn.Linear(4, 4))
    assert [name for name, _ in linear_layers(model, "head")] == ["0", "1", "ea"]
