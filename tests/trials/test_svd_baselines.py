"""Baselines of low rank: each against its closed form, and SVD-LLM against the method's own static whitening."""

import pytest
import torch
from torch import nn

from assay.compress.dynamic_whitening import WhiteningConfig, factorize_, whitened_svd
from assay.trials.compress.svd_baselines import asvd, rank_at, seen_by_layers, svd, svd_llm

pytestmark = pytest.mark.usefixtures("one_thread")


SHAPES = [(12, 20), (20, 12)]


def problem(m, n):
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(300, n, generator=rng, dtype=torch.float64) * torch.logspace(-1, 1, n, dtype=torch.float64)
    x = x @ torch.randn(n, n, generator=rng, dtype=torch.float64)
    return torch.randn(m, n, generator=rng), x


def made(pair):
    return (pair.a @ pair.b).double()


@pytest.mark.parametrize("shape", SHAPES)
def test_plain_svd_is_the_nearest_weight_of_its_rank(shape):
    weight, _ = problem(*shape)
    values = torch.linalg.svdvals(weight.double())
    left = (weight - made(svd(weight).cut(5))).square().sum()
    assert float(left) == pytest.approx(float(values[5:].square().sum()), rel=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_asvd_is_the_nearest_weight_in_scaled_channels(shape):
    weight, x = problem(*shape)
    scale = x.abs().mean(0).sqrt()  # alpha = 0.5
    u, s, vt = torch.linalg.svd(weight.double() * scale, full_matrices=False)
    expected = (u[:, :5] * s[:5]) @ vt[:5] / scale
    torch.testing.assert_close(made(asvd(weight, x.abs().mean(0)).cut(5)), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_svd_llm_loses_the_singular_values_behind_the_cut(shape):
    weight, x = problem(*shape)
    values = torch.linalg.svdvals(weight.double() @ torch.linalg.cholesky(x.T @ x))
    left = ((weight - made(svd_llm(weight, x.T @ x).cut(5))) @ x.T).square().sum()
    assert float(left) == pytest.approx(float(values[5:].square().sum()), rel=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_svd_llm_is_the_whitened_truncation(shape):
    weight, x = problem(*shape)
    ours = whitened_svd(weight, x.T @ x, 5)
    torch.testing.assert_close(made(svd_llm(weight, x.T @ x).cut(5)), ours.a @ ours.b, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_all_ranks_together_are_the_weight(shape):
    weight, x = problem(*shape)
    for pair in (svd(weight), asvd(weight, x.abs().mean(0)), svd_llm(weight, x.T @ x)):
        torch.testing.assert_close(made(pair), weight.double(), atol=1e-4, rtol=1e-4)


def test_a_moment_that_is_not_positive_definite_is_lifted():
    weight, x = problem(12, 20)
    x[:, 3] = 0.0
    assert bool(torch.isfinite(svd_llm(weight, x.T @ x).a).all())


def test_the_rank_fits_the_share_of_parameters():
    assert [rank_at((576, 576), ratio) for ratio in (0.9, 0.8, 0.5)] == [259, 230, 144]


def tiny_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def tokens():
    return torch.randint(0, 97, (12, 32), generator=torch.Generator().manual_seed(0))


def test_the_sums_are_those_of_the_full_model_s_inputs():
    model = tiny_llama()
    expected = {}
    handles = [
        layer.register_forward_pre_hook(
            lambda module, args, name=name: expected.setdefault(name, []).append(args[0].reshape(-1, args[0].shape[-1]))
        )
        for name, layer in model.named_modules()
        if type(layer) is nn.Linear and name != "lm_head"
    ]
    with torch.no_grad():
        for row in tokens():
            model(row[None])
    for handle in handles:
        handle.remove()
    found = {name: seen for name, _, seen in seen_by_layers(model, tokens())}
    assert found.keys() == expected.keys()
    for name, rows in expected.items():
        x = torch.cat(rows)
        torch.testing.assert_close(found[name].gram.float(), x.T @ x, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(found[name].absolute, x.abs().sum(0), atol=1e-3, rtol=1e-4)
        assert found[name].n_tokens == 12 * 32


def test_static_whitening_of_the_method_is_svd_llm():
    model = tiny_llama()
    expected = {
        name: made(svd_llm(weight, seen.gram).cut(rank_at(weight.shape, 0.5)))
        for name, weight, seen in seen_by_layers(model, tokens())
    }
    factorize_(model, WhiteningConfig(ratio=0.5, whiten="static", eps=0.0), tokens())
    for name, weight in expected.items():
        torch.testing.assert_close(model.get_submodule(name).weight.double(), weight, atol=1e-4, rtol=1e-3)
