"""Looking into memories: cells, tokens, groups, outliers, and what a model loses without them."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from assay._core.errors import InputError
from assay.nn.memoryllm import (
    MemoryLlamaConfig,
    MemoryLlamaForCausalLM,
    TokenMemory,
    inspection,
    probe_alpha,
    probe_layers,
    probing,
)
from assay.nn.memoryllm.inspection import coefficients

V, D, N = 61, 24, 3


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def model():
    config = MemoryLlamaConfig(
        vocab_size=V, hidden_size=D, intermediate_size=64, num_hidden_layers=N, num_attention_heads=4, ffn_beta=1
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return MemoryLlamaForCausalLM(config).eval()


@pytest.fixture
def memory(model):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(V)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return TokenMemory(model, PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0"))


def all_coefficients(model, layer):
    with torch.no_grad():
        return coefficients(model.model.layers[layer], model.model.embed_tokens.weight)


def windows(n=6, length=9):
    return np.random.default_rng(0).integers(V, size=(n, length))


def test_coefficients_times_values_are_what_the_memory_adds(model):
    block, embedding = model.model.layers[1], model.model.embed_tokens.weight
    rebuilt = sum(
        all_coefficients(model, 1)[:, k, None] * block.memory.down_proj.weight[:, k]
        for k in range(model.config.memory_size)
    )
    assert torch.allclose(rebuilt, block.remember(embedding), atol=1e-5)


def test_the_cells_of_a_token_are_those_that_add_most(model, memory):
    found = memory.cells("w7", 1, k=4)
    values = model.model.layers[1].memory.down_proj.weight.detach().numpy()
    c = all_coefficients(model, 1)[7].numpy()
    norm = np.abs(c) * np.linalg.norm(values, axis=0)
    assert found["cell"].tolist() == np.argsort(-norm)[:4].tolist()
    assert found["coefficient"].to_numpy() == pytest.approx(c[found["cell"]], rel=1e-5)
    assert found["norm"].to_numpy() == pytest.approx(np.sort(norm)[::-1][:4], rel=1e-5)


def test_the_tokens_of_a_cell_have_its_largest_coefficients(model, memory):
    found = memory.tokens(5, 2, k=3)
    c = all_coefficients(model, 2)[:, 5].numpy()
    assert found["token"].tolist() == np.argsort(-np.abs(c))[:3].tolist()
    assert found["text"].tolist() == [f"w{token}" for token in found["token"]]
    assert found["coefficient"].to_numpy() == pytest.approx(c[found["token"]], rel=1e-4, abs=1e-8)


def test_a_value_is_read_through_the_head(model, memory):
    found = memory.directions(5, 0, k=2)
    value = model.model.layers[0].memory.down_proj.weight[:, 5]
    logits = (model.lm_head.weight @ value).detach().numpy()  # the final norm weighs 1 at the start
    assert found["token"].tolist() == np.argsort(-logits)[:2].tolist()
    assert found["logit"].to_numpy() == pytest.approx(np.sort(logits)[::-1][:2], rel=1e-5)


def test_tokens_with_the_same_embedding_share_a_cluster(model, memory):
    """Two kinds of tokens, exactly: two clusters at distance zero."""
    with torch.no_grad():
        model.model.embed_tokens.weight[:40] = model.model.embed_tokens.weight[0]
        model.model.embed_tokens.weight[40:] = model.model.embed_tokens.weight[50]
    found = memory.cluster(0, k=2).set_index("token")
    assert found.loc[range(40), "cluster"].nunique() == found.loc[range(40, V), "cluster"].nunique() == 1
    assert found["distance"].to_numpy() == pytest.approx(0.0, abs=1e-5)


def test_outliers_are_counted_by_their_own_token_s_deviation(model, memory):
    c = all_coefficients(model, 1).numpy()
    counts = [(np.abs(row - row.mean()) > 3 * row.std()).sum() for row in c]
    found = memory.outliers(1).set_index("token")["outliers"]
    assert found.sort_index().tolist() == counts
    assert found.is_monotonic_decreasing


def test_the_loss_without_a_layer_is_that_of_the_model_with_its_values_at_zero(model):
    tokens = windows()
    found = probe_layers(model, tokens)
    with torch.no_grad():
        model.model.layers[2].memory.down_proj.weight.zero_()
        logits = model(torch.from_numpy(tokens)).logits[:, :-1]
    expected = cross_entropy(logits.transpose(1, 2), torch.from_numpy(tokens[:, 1:]), reduction="none").mean(-1)
    assert found.loss[2] == pytest.approx(expected.numpy(), abs=1e-5)


def test_alpha_1_costs_nothing_and_alpha_0_is_attention_alone(model):
    tokens = windows()
    found = probe_alpha(model, tokens, (0.0, 0.5, 1.0))
    assert (found.loss[2] == found.whole).all()
    model.drop_layers(range(N))
    assert (found.loss[0] == probe_alpha(model, tokens, (1.0,)).whole).all()


class OnADeviceWithoutFloat64(torch.Tensor):
    """MPS in small: its tensors become float64 on the CPU only."""

    def cpu(self):
        return self.as_subclass(torch.Tensor)

    def double(self):
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype")


def test_numbers_become_float64_on_the_cpu(model, monkeypatch):
    values = torch.tensor([1.0, 2.5])
    assert inspection._floats(values.as_subclass(OnADeviceWithoutFloat64)).tolist() == [1.0, 2.5]
    losses = probing._losses(model, windows())
    monkeypatch.setattr(
        probing, "cross_entropy", lambda *a, **b: cross_entropy(*a, **b).as_subclass(OnADeviceWithoutFloat64)
    )
    assert probing._losses(model, windows()).tolist() == losses.tolist()


def test_a_probe_leaves_the_model_as_it_was(model):
    model.drop_layers([1])
    model.set_alpha(0.9)
    before = model(torch.from_numpy(windows())).logits
    probe_layers(model, windows())
    probe_alpha(model, windows(), (0.5,))
    assert torch.equal(model(torch.from_numpy(windows())).logits, before)


def test_the_interval_of_a_probe_is_student_s_of_the_paired_difference(model):
    from scipy import stats

    found = probe_layers(model, windows())
    extra = found.loss[0] - found.whole
    low, high = stats.t.interval(0.95, 5, extra.mean(), stats.sem(extra))
    row = found.to_frame().iloc[0]
    assert (row["low"], row["high"]) == pytest.approx((low, high))
    assert found.summary().startswith(f"6 windows; as it is: {found.whole.mean():.4f} nats a token")
    assert found.plot().get_ylabel() == "extra loss (nats a token)"


REFUSED = {
    "layer": (lambda m: m.cells(0, 3), "layer=3: expected 0 to 2"),
    "token": (lambda m: m.cells(61, 0), "token=61: expected an id from 0 to 60"),
    "cell": (lambda m: m.tokens(60, 0), "cell=60: layer 0 has cells 0 to 55"),
    "k": (lambda m: m.tokens(0, 0, k=0), "k=0: expected 1 or more"),
    "clusters": (lambda m: m.cluster(0, k=62), "k=62 clusters: expected 1 to 61, the size of the vocabulary"),
    "two tokens": (
        lambda m: m.cells("w1 w2", 0),
        "token='w1 w2' is 2 tokens to this tokenizer (['w1', 'w2']); give one of them",
    ),
    "no tokenizer": (
        lambda m: TokenMemory(m.model).cells("w1", 0),
        "token='w1': give an id, or a tokenizer to find it by text",
    ),
    "one window": (
        lambda m: probe_layers(m.model, windows(1)),
        "windows of shape (1, 9): expected two or more windows of two or more tokens",
    ),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_there_is_refused(memory, call, message):
    with pytest.raises(InputError) as raised:
        call(memory)
    assert str(raised.value) == message


def test_a_dense_model_has_no_memory_to_look_into():
    config = MemoryLlamaConfig(
        vocab_size=9, hidden_size=24, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, ffn_beta="base"
    )
    with pytest.raises(InputError, match=r"^MemoryLlamaForCausalLM is dense: its FFN depends on context"):
        TokenMemory(MemoryLlamaForCausalLM(config))
