"""Columns: series, networks, aggregates and what one row's parents do to it, against closed forms and plain code."""

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import beta, kstest

from assay.synth.plurel import DatabaseConfig, RelationalConfig, ScmConfig
from assay.synth.plurel.activations import ACTIVATIONS, BOUNDED, sine_series
from assay.synth.plurel.draws import BLOCK, beta_quantiles, quantile_draws
from assay.synth.plurel.mechanisms import Aggregate, decoder, encoder, matrix, network
from assay.synth.plurel.schema import Column, ForeignKey, Table
from assay.synth.plurel.scm import draw_model
from assay.synth.plurel.series import Classes, Mixture, Series, Spread, autoregressive, cycle, draw_source, trend

SMOOTH = ScmConfig(
    layouts="erdos_renyi",
    initialisers=("kaiming_normal", "xavier_uniform"),
    activations=("tanh", "elu"),
    aggregators="sum",
    propagation="eager",
)

# ----------------------------------------------------------------------------------------------------------- series


def test_a_trend_of_power_one_is_the_position():
    position = np.arange(100) / 100
    np.testing.assert_allclose(trend(position, 1.0, 1.0, 0.0, 1.0), position)


def test_a_cycle_is_zero_at_its_start_and_at_its_top_in_the_middle():
    row = np.array([0.0, 25.0])
    np.testing.assert_allclose(cycle(row, 50.0, 1.0, 0.0, 1.0), [0.0, 1.0], atol=1e-15)
    np.testing.assert_allclose(cycle(row, 50.0, 1.0, 0.0, 0.4), [0.0, 0.4], atol=1e-15)


def test_a_series_is_a_third_of_the_sum_of_its_parts():
    series = Series(100, 0.0, 1.0, 1.0, 1.0, 50.0, 1.0, noise=0.0, ar=0.0)
    row = np.arange(100.0)
    expected = (row / 100 + np.clip(np.sin(np.pi * row / 50), 0, 1)) / 3
    np.testing.assert_allclose(series.values(np.random.default_rng(0), 0, 100), expected, atol=1e-15)


@given(rho=st.floats(0, 0.95), state=st.floats(-3, 3), n=st.integers(1, 200), seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_autoregression_by_doubling_is_the_recursion(rho, state, n, seed):
    draws = np.random.default_rng(seed).standard_normal(n)
    expected, last = [], state
    for draw in draws:
        last = rho * last + draw
        expected.append(last)
    np.testing.assert_allclose(autoregressive(draws, rho, state), expected, rtol=1e-9, atol=1e-12)


def test_the_state_of_the_noise_goes_on_from_block_to_block_unclipped():
    made = [Series(300, -1.0, 1.0, 1.0, 0.0, 30.0, 0.0, noise=5.0, ar=0.9) for _ in range(2)]

    class Fixed:
        def __init__(self):
            self.rng = np.random.default_rng(0)

        def standard_normal(self, n):
            return self.rng.standard_normal(n)

    whole = made[0].values(Fixed(), 0, 300)
    rng = Fixed()
    parts = np.concatenate([made[1].values(rng, start, start + 100) for start in (0, 100, 200)])
    np.testing.assert_allclose(parts, whole, atol=1e-12)


def test_sources_of_entity_tables_do_not_follow_the_row_and_those_of_activity_tables_do():
    scm = ScmConfig(sources="series", source_scale=(1.0,))
    n, correlations = 4000, {True: [], False: []}
    for is_activity in (True, False):
        for seed in range(60):
            rng = np.random.default_rng(seed)
            values = draw_source(rng, 0, n, is_activity, ScmConfig(sources="series", ar=0.0)).values(rng, 0, n)
            if values.std() > 0:
                correlations[is_activity].append(abs(np.corrcoef(values, np.arange(n))[0, 1]))
    assert scm.entity_noise == 1.0
    assert max(correlations[False]) < 4.2 / np.sqrt(n)  # 60 correlations of independent draws
    assert np.median(correlations[True]) > 0.3


@pytest.mark.parametrize("kind", ["uniform", "gaussian", "beta"])
def test_spreads_stay_between_their_bounds(kind):
    values = Spread(kind, -2.0, 3.0, 2.0, 3.0).values(np.random.default_rng(0), 0, 5000)
    assert values.min() >= -2
    assert values.max() <= 3
    centre = -2 + 5 * 2 / 5 if kind == "beta" else 0.5
    assert values.mean() == pytest.approx(centre, abs=0.1)


def test_a_mixture_takes_each_row_from_one_part():
    parts = (Spread("uniform", 0.0, 1.0), Spread("uniform", 10.0, 11.0))
    values = Mixture(parts).values(np.random.default_rng(0), 0, 10_000)
    assert np.mean(values > 5) == pytest.approx(0.5, abs=0.02)
    assert not np.any((values > 1) & (values < 10))


def test_classes_have_the_probabilities_of_their_source():
    values = Classes(np.array([0.2, 0.5, 0.3])).values(np.random.default_rng(0), 0, 100_000)
    np.testing.assert_allclose(np.bincount(values.astype(int)) / 1e5, [0.2, 0.5, 0.3], atol=0.007)


def test_classes_of_series_have_the_probabilities_of_a_softmax():
    flat = [Series(100_000, level, level, 1.0, 0.0, 10.0, 0.0, noise=0.0, ar=0.0) for level in (0.0, 3.0)]
    values = Classes(np.full(2, 0.5), tuple(flat)).values(np.random.default_rng(0), 0, 100_000)
    # Trend, cycle and noise are each clipped to the level: together three times it, divided by three.
    assert values.mean() == pytest.approx(1 / (1 + np.exp(-3.0)), abs=0.004)


# ------------------------------------------------------------------------------------------------------------- noise


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (2.0, 3.0), (4.0, 1.0), (5.0, 0.5), (1.0, 1.0)])
def test_beta_noise_by_quantiles_is_beta(a, b):
    quantiles = beta_quantiles(a, b)
    middles = (np.arange(4096) + 0.5) / 4096
    # Distance of the laws, beside 1/8192 by grouping; the exact quantiles as float32 holds them (near 1 it is coarse).
    exact = beta(a, b).ppf(middles).astype(np.float32)
    assert np.abs(beta(a, b).cdf(quantiles) - beta(a, b).cdf(exact)).max() < 2e-4
    assert quantiles.mean() == pytest.approx(a / (a + b), abs=2e-4)
    draws = quantile_draws(np.random.default_rng(0), quantiles, 500, 16).ravel()
    assert kstest(draws, beta(a, b).cdf).pvalue > 0.01


# --------------------------------------------------------------------------------------------------------- networks

TORCH = {
    "relu": torch.nn.functional.relu, "elu": torch.nn.functional.elu, "selu": torch.nn.functional.selu,
    "silu": torch.nn.functional.silu, "softsign": torch.nn.functional.softsign, "tanh": torch.tanh,
    "sigmoid": torch.sigmoid, "hardswish": torch.nn.functional.hardswish, "mish": torch.nn.functional.mish,
    "leaky_relu": torch.nn.functional.leaky_relu, "gelu": torch.nn.functional.gelu,
    "softplus": torch.nn.functional.softplus, "hardsigmoid": torch.nn.functional.hardsigmoid,
    "hardtanh": torch.nn.functional.hardtanh, "celu": torch.nn.functional.celu,
    "tanhshrink": torch.nn.functional.tanhshrink, "rrelu": torch.nn.functional.rrelu,
    "logsigmoid": torch.nn.functional.logsigmoid, "softshrink": torch.nn.functional.softshrink,
    "hardshrink": torch.nn.functional.hardshrink, "identity": lambda x: x, "abs": torch.abs, "sin": torch.sin,
    "cos": torch.cos, "sign": torch.sign, "clamp": lambda x: x.clamp(-1, 1),
    "signed_log1p": lambda x: torch.log1p(x.abs()) * x.sign(),
    "bent_identity": lambda x: (torch.sqrt(x**2 + 1) - 1) / 2 + x,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(TORCH))
def test_an_activation_is_torchs(name):
    x = np.concatenate([np.linspace(-8, 8, 401), [-30.0, 30.0]]).astype(np.float32)
    ours = ACTIVATIONS[name](x.copy())
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, TORCH[name](torch.tensor(x)).numpy(), rtol=2e-5, atol=2e-6)


def test_every_activation_is_compared_and_the_bounded_ones_are_bounded():
    assert set(ACTIVATIONS) == {*TORCH, "sine_series"}
    x = np.linspace(-1e4, 1e4, 5001, dtype=np.float32)
    assert all(np.abs(ACTIVATIONS[name](x.copy())).max() <= 1 for name in BOUNDED)


def test_a_sine_series_stays_the_function_that_it_is():
    function = sine_series(np.random.default_rng(0))
    x = np.linspace(-3, 3, 50, dtype=np.float32)
    np.testing.assert_array_equal(function(x.copy()), function(x.copy()))


@pytest.mark.parametrize(
    ("name", "sd"),
    [
        ("kaiming_normal", np.sqrt(2 / 300)),
        ("kaiming_uniform", np.sqrt(2 / 300)),
        ("xavier_normal", np.sqrt(2 / 500)),
        ("xavier_uniform", np.sqrt(2 / 500)),
        ("truncated_normal", 0.8796),  # of N(0, 1) cut at ±2: 1 - 4 phi(2) / (Phi(2) - Phi(-2)) = 0.7737
        ("sparse", 0.01 / np.sqrt(2)),
    ],
)
def test_an_initialiser_has_the_spread_of_torchs(name, sd):
    weight = matrix(np.random.default_rng(0), 200, 300, name)
    assert weight.std() == pytest.approx(sd, rel=0.01)
    assert weight.mean() == pytest.approx(0, abs=4 * sd / np.sqrt(60_000))


def test_half_of_each_column_of_a_sparse_matrix_is_zero():
    weight = matrix(np.random.default_rng(0), 7, 20, "sparse")
    assert ((weight == 0).sum(axis=0) == 4).all()


def plain_forward(net, x):
    """The layers one by one in float64, as the paper has them."""
    for layer in net.hidden:
        x = layer.activation((x @ layer.weight.astype(np.float64)).astype(np.float32)).astype(np.float64)
        x = np.clip(x, -1e6 / layer.gain, 1e6 / layer.gain)
    return x @ net.last.astype(np.float64)


@pytest.mark.parametrize("seed", range(6))
def test_a_network_is_its_layers_and_no_larger_than_its_bound(seed):
    net = network(np.random.default_rng(seed), 1, 32, ScmConfig())
    x = np.random.default_rng(1).normal(0, 3, (200, 1)).astype(np.float32)
    expected = plain_forward(net, x.astype(np.float64))
    scale = np.abs(expected).max()
    np.testing.assert_allclose(net(x.copy()), expected, rtol=1e-3, atol=1e-3 * max(scale, 1e-6))
    assert scale <= net.bound * 1.0001


def test_a_classes_encoder_gives_equal_classes_equal_embeddings_and_reads_classes():
    encode = encoder(np.random.default_rng(0), 5, SMOOTH)
    out = encode(np.array([0, 3, 0, 4], dtype=np.float32))
    assert out.shape == (4, 32)
    np.testing.assert_array_equal(out[0], out[2])
    assert not np.array_equal(out[0], out[1])


def test_a_wild_weight_is_clamped_and_nothing_overflows():
    encode = encoder(np.random.default_rng(0), 0, ScmConfig(activations="identity"), weight=1e300)
    out = encode(np.array([-3.0, 0.0, 1e8], dtype=np.float32))
    assert np.isfinite(out).all()
    assert np.abs(out).max() <= 1e4


def test_a_decoder_of_classes_picks_the_nearest_embedding():
    """Identity network: the dot product with the class embeddings decides."""
    decode = decoder(np.random.default_rng(0), 4, SMOOTH)
    x = np.random.default_rng(1).normal(size=(100, 32)).astype(np.float32)
    logits = decode.net(x.copy())
    assert logits.shape == (100, 4)
    np.testing.assert_array_equal(decode(x.copy()), logits.argmax(axis=1))


@pytest.mark.parametrize("kind", ["sum", "max", "product", "logsumexp"])
@given(
    n_terms=st.integers(1, 7), split=st.integers(0, 7), seed=st.integers(0, 1000), scale=st.sampled_from([1.0, 900.0])
)
@settings(max_examples=25, deadline=None)
def test_an_aggregate_of_parts_is_the_aggregate_of_all_terms(kind, n_terms, split, seed, scale):
    terms = (scale if kind != "product" else 1.0) * np.random.default_rng(seed).normal(size=(n_terms, 6, 4))
    terms = terms.astype(np.float32)
    parts = Aggregate(kind), Aggregate(kind)
    for number, term in enumerate(terms):
        constant = number % 3 == 0  # one row for all
        terms[number] = term[:1] if constant else term
        parts[number >= split].add(term[:1] if constant else term)
    parts[0].merge(parts[1])
    whole = {
        "sum": lambda x: x.sum(axis=0), "max": lambda x: x.max(axis=0), "product": lambda x: x.prod(axis=0),
        "logsumexp": lambda x: logsumexp(x, axis=0),
    }[kind](terms.astype(np.float64))  # fmt: skip
    np.testing.assert_allclose(np.broadcast_to(parts[0].value(), (6, 4)), whole, rtol=2e-5, atol=2e-4)


def test_products_stay_finite():
    total = Aggregate("product")
    for _ in range(40):
        total.add(np.full((3, 2), 1e4, dtype=np.float32))
    assert (total.value() == 1e6).all()


# ----------------------------------------------------------------------------------------------- a table's own model

PARENT = Table("parent", (Column("a"), Column("b", 4)), n_rows=300)
CHILD = Table(
    "child",
    tuple(Column(f"c{j}", 0 if j % 2 else 3) for j in range(8)),
    (ForeignKey("foreign_row_0", "parent"),),
    is_activity=True,
    n_rows=500,
)


def child_values(a, coupling=1.0, scm=SMOOTH, n_classes_b=4):
    from dataclasses import replace

    config = RelationalConfig(scm=replace(scm, coupling=coupling))
    model = draw_model(0, CHILD, [(PARENT, False)], config)
    rng = np.random.default_rng(5)
    parents = {"a": a, "b": rng.integers(n_classes_b, size=500).astype(np.float32)}
    values = model.block(0, [parents])
    return {node.column: values[node.number] for node in model.nodes if node.column is not None and node.source is None}


def test_changing_a_parents_column_changes_the_child_under_the_same_noise():
    a = np.random.default_rng(0).normal(size=500).astype(np.float32)
    before, after = child_values(a), child_values(a + 1)
    changed = [name for name in before if not np.array_equal(before[name], after[name])]
    numerical = [name for name in before if CHILD.columns[int(name[1:])].n_classes == 0]
    assert set(numerical) <= set(changed)


def test_with_coupling_zero_it_does_not():
    a = np.random.default_rng(0).normal(size=500).astype(np.float32)
    before, after = child_values(a, coupling=0.0), child_values(a + 1, coupling=0.0)
    assert before
    for name in before:
        np.testing.assert_array_equal(before[name], after[name])


@pytest.mark.parametrize("kind", ["sum", "max", "product", "logsumexp"])
def test_a_node_is_the_papers_equation(kind):
    """Every node again by the equation as it stands: all terms stacked, aggregated node by node."""
    from dataclasses import replace

    scm = replace(SMOOTH, aggregators=(kind,))
    model = draw_model(3, CHILD, [(PARENT, False)], RelationalConfig(scm=scm), with_latents=True)
    rng = np.random.default_rng(5)
    parents = {"a": rng.normal(size=500).astype(np.float32), "b": rng.integers(4, size=500).astype(np.float32)}
    values = model.block(0, [parents])
    from assay.synth.plurel.draws import block_stream

    checked = 0
    for node in model.nodes:
        if node.source is not None:
            continue
        omega = 1 / 2 if kind == "sum" else 1.0
        terms = [np.broadcast_to(cause.encode(values[cause.node]), (500, 32)) for cause in node.causes]
        terms += [
            np.broadcast_to(encode(parents[name]), (500, 32)) * omega for name, encode in model.collations[0].encoders
        ]
        stacked = np.clip(np.stack(terms).astype(np.float64), -1e4, 1e4)
        whole = {
            "sum": stacked.sum(axis=0), "max": stacked.max(axis=0), "product": stacked.prod(axis=0),
            "logsumexp": logsumexp(stacked, axis=0),
        }[kind]  # fmt: skip
        noise = quantile_draws(block_stream(model.rows_key, node.number, 0), node.quantiles, 500, 32)
        expected = node.decode((noise + whole).astype(np.float32))
        if node.n_classes == 0:
            np.testing.assert_allclose(
                values[node.number], expected, rtol=2e-3, atol=2e-3 * np.abs(expected).max() + 1e-6
            )
        else:
            assert np.mean(values[node.number] == expected) > 0.99
        checked += 1
    assert checked > 5


def test_noise_is_beta_divided_by_the_width_in_every_dimension():
    """With nothing but noise the embedding is Beta / 32 (card: z_v is divided by 32)."""
    from assay.synth.plurel.draws import block_stream

    model = draw_model(3, CHILD, [(PARENT, False)], RelationalConfig(scm=SMOOTH))
    node = next(node for node in model.nodes if node.source is None)
    draws = quantile_draws(block_stream(model.rows_key, node.number, 0), node.quantiles, 500, 32)
    assert draws.min() >= 0
    assert draws.max() <= 1 / 32 + 1e-7


def test_latent_nodes_that_no_column_depends_on_change_nothing():
    models = [
        draw_model(1, CHILD, [(PARENT, False)], RelationalConfig(scm=SMOOTH), with_latents=keep)
        for keep in (True, False)
    ]
    rng = np.random.default_rng(5)
    parents = {"a": rng.normal(size=500).astype(np.float32), "b": rng.integers(4, size=500).astype(np.float32)}
    all_values, some = (model.block(0, [parents]) for model in models)
    assert len(all_values) >= len(some)
    for node, values in some.items():
        np.testing.assert_array_equal(values, all_values[node])


def test_a_table_without_columns_has_no_nodes_that_matter():
    bare = Table("bare", (), n_rows=10)
    assert draw_model(0, bare, [], RelationalConfig()).nodes == ()


def test_the_papers_choices_are_those_of_version_one():
    config = RelationalConfig.paper()
    model = draw_model(0, CHILD, [(PARENT, False)], config)
    assert not model.is_lazy
    assert {node.aggregator for node in model.nodes} == {"sum"}
    nets = [node.decode.net for node in model.nodes if node.decode is not None]
    assert {len(net.hidden) for net in nets} == {1}
    assert {layer.gain for net in nets for layer in net.hidden} == {1.0}


def test_the_causal_graph_names_every_column_once():
    graph = draw_model(0, CHILD, [(PARENT, False)], RelationalConfig(DatabaseConfig())).graph
    shown = [column for _, column in graph.nodes(data="column") if column is not None]
    assert sorted(shown) == sorted(column.name for column in CHILD.columns)
    assert nx.is_directed_acyclic_graph(graph)
    assert BLOCK == 1024
