"""Schemas and their graphs: acyclic, in one piece, with the shapes and counts that the paper names."""

from collections import Counter
from datetime import datetime

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from assay._core.errors import InputError
from assay.synth.plurel import DagConfig, DatabaseConfig, RelationalConfig, ScmConfig
from assay.synth.plurel.config import LAYOUTS
from assay.synth.plurel.draws import key, power_law, stream
from assay.synth.plurel.graphs import edge_weights, random_dag
from assay.synth.plurel.schema import draw_schema
from assay.synth.plurel.scm import node_count


@given(layout=st.sampled_from(LAYOUTS), n=st.integers(1, 40), seed=st.integers(0, 10**6))
@settings(max_examples=150, deadline=None)
def test_every_layout_is_acyclic_and_in_one_piece(layout, n, seed):
    graph = random_dag(np.random.default_rng(seed), layout, n, DagConfig())
    assert sorted(graph) == list(range(n))
    assert nx.is_directed_acyclic_graph(graph)
    assert nx.is_weakly_connected(graph)


@given(n=st.integers(2, 60), seed=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_a_reverse_random_tree_has_one_sink_and_one_edge_less_than_nodes(n, seed):
    graph = random_dag(np.random.default_rng(seed), "reverse_random_tree", n, DagConfig())
    assert sum(degree == 0 for _, degree in graph.out_degree()) == 1
    assert graph.number_of_edges() == n - 1


@given(n=st.integers(2, 60), seed=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_a_random_tree_has_one_source(n, seed):
    graph = random_dag(np.random.default_rng(seed), "random_tree", n, DagConfig())
    assert sum(degree == 0 for _, degree in graph.in_degree()) == 1


@given(n=st.integers(3, 60), seed=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_barabasi_albert_without_drops_has_two_edges_for_each_node_after_the_second(n, seed):
    graph = random_dag(np.random.default_rng(seed), "barabasi_albert", n, DagConfig(ba_drop=0.0))
    assert graph.number_of_edges() == 2 * (n - 2)


def test_each_sink_with_two_parents_loses_one_where_the_probability_is_one():
    for seed in range(100):
        kept, dropped = (
            random_dag(np.random.default_rng(seed), "barabasi_albert", 12, DagConfig(ba_drop=p)) for p in (0.0, 1.0)
        )
        sinks = [v for v, degree in kept.out_degree() if degree == 0 and kept.in_degree(v) > 1]
        assert kept.number_of_edges() == 20
        assert dropped.number_of_edges() >= 20 - len(sinks)
        assert dropped.number_of_edges() < 20


def test_in_a_layered_graph_every_edge_joins_neighbouring_layers():
    for seed in range(30):
        graph = random_dag(np.random.default_rng(seed), "layered", 25, DagConfig(depth=(4, 4), layered_drop=0.0))
        level = {v: number for number, layer in enumerate(nx.topological_generations(graph)) for v in layer}
        assert all(level[v] == level[u] + 1 for u, v in graph.edges)
        assert max(level.values()) == 3


@pytest.mark.parametrize("p", [0.3, 0.8])
def test_erdos_renyi_joins_a_pair_unless_both_directions_are_absent(p):
    n, repeats = 30, 40
    counts = [
        random_dag(np.random.default_rng(seed), "erdos_renyi", n, DagConfig(er_p=p)).number_of_edges()
        for seed in range(repeats)
    ]
    q, pairs = 1 - (1 - p) ** 2, n * (n - 1) / 2
    assert np.mean(counts) == pytest.approx(q * pairs, abs=4 * np.sqrt(pairs * q * (1 - q) / repeats))


def test_random_cauchy_graphs_vary_from_almost_empty_to_almost_full():
    counts = [
        random_dag(np.random.default_rng(s), "random_cauchy", 20, DagConfig()).number_of_edges() for s in range(80)
    ]
    assert min(counts) < 40
    assert max(counts) > 150


@pytest.mark.parametrize(("family", "low", "high"), [("uniform", -2, 2), ("lognormal", 0, np.inf), ("normal", -6, 6)])
def test_weights_of_one_graph_are_of_one_family(family, low, high):
    weights = np.array(edge_weights(np.random.default_rng(0), 5000, DagConfig(weights=family)))
    assert weights.min() >= low
    assert weights.max() <= high
    assert np.median(weights) == pytest.approx(1 if family == "lognormal" else 0, abs=0.12)


def test_three_columns_are_twice_as_likely_as_six():
    rng = stream(0, "test")
    counts = Counter(power_law(rng, (3, 40)) for _ in range(30_000))
    expected = np.array([1 / k for k in range(3, 41)])
    assert chisquare([counts[k] for k in range(3, 41)], expected / expected.sum() * 30_000).pvalue > 0.01
    assert counts[3] / counts[6] == pytest.approx(2, abs=0.25)  # five standard errors of the ratio are 0.24


@pytest.mark.parametrize(("columns", "share", "nodes"), [(3, 0.3, 16), (3, 0.9, 10), (40, 0.5, 123), (0, 0.5, 3)])
def test_the_number_of_nodes_is_the_papers(columns, share, nodes):
    assert node_count(columns, share) == nodes


@given(seed=st.integers(0, 10**9))
@settings(max_examples=40, deadline=None)
def test_a_drawn_schema_keeps_its_ranges(seed):
    schema = draw_schema(seed, RelationalConfig())
    graph = schema.graph()
    assert 3 <= len(schema.tables) <= 20
    assert nx.is_directed_acyclic_graph(graph)
    assert nx.is_weakly_connected(graph)
    for table in schema.tables:
        assert table.is_activity == table.has_date == (graph.out_degree(table.name) == 0)
        low, high = (2000, 5000) if table.is_activity else (500, 1000)
        assert low <= table.n_rows <= high
        assert 3 <= len(table.columns) <= 40
        assert [key.column for key in table.keys] == [f"foreign_row_{j}" for j in range(len(table.keys))]
        assert [key.parent for key in table.keys] == sorted(key.parent for key in table.keys)
        assert all(column.n_classes == 0 or 2 <= column.n_classes <= 10 for column in table.columns)
    first, last = schema.window
    assert datetime(1990, 1, 1) <= first < last < datetime(2025, 1, 1)
    validation, test = schema.cutoffs
    days = (last - first).days + 1
    assert [(day - first).days for day in (validation, test)] == [int(days * 0.8), int(days * 0.9)]


@given(rows=st.integers(20, 10**8), seed=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_rows_of_all_tables_add_up_to_what_was_asked_for(rows, seed):
    schema = draw_schema(seed, RelationalConfig(DatabaseConfig(rows=rows)))
    assert sum(table.n_rows for table in schema.tables) == rows
    assert min(table.n_rows for table in schema.tables) >= 1


def test_streams_of_other_names_are_other_streams_and_no_name_imitates_two():
    assert key(0, "a", "b") != key(0, "a, b")
    assert key(0, "a", 1) == key(0, "a", "1")
    assert stream(0, "a").random() != stream(1, "a").random()


# ----------------------------------------------------------------------------------------------------------- config


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DatabaseConfig(n_tables=0), "n_tables is 0; expected numbers from 1"),
        (lambda: DatabaseConfig(n_tables=(5, 3)), "n_tables is (5, 3): the low end is above the high end"),
        (
            lambda: DatabaseConfig(n_tables=(3.0, 5.0)),
            "n_tables is (3.0, 5.0); expected a whole number or a pair (low, high) of whole numbers",
        ),
        (lambda: DatabaseConfig(n_columns=0), "n_columns is 0; expected numbers from 1"),
        (lambda: DatabaseConfig(cardinality=(1, 4)), "cardinality is (1, 4); expected numbers from 2"),
        (lambda: DatabaseConfig(missing=(0.1, 1.5)), "missing is (0.1, 1.5); expected numbers from 0 to 1"),
        (lambda: DatabaseConfig(missing="few"), "missing is 'few'; expected a number or a pair (low, high) of numbers"),
        (
            lambda: DatabaseConfig(layouts="star"),
            "layouts holds 'star'; expected some of erdos_renyi, barabasi_albert, random_tree, reverse_random_tree, "
            "layered, watts_strogatz, random_cauchy",
        ),
        (
            lambda: DatabaseConfig(transforms=()),
            "transforms is empty; expected some of identity, rank_uniform, log1p, sqrt, standardise",
        ),
        (lambda: DatabaseConfig(categorical="yes"), "categorical is 'yes'; expected 'full' or 'boolean'"),
        (lambda: DatabaseConfig(rows=0), "rows is 0; expected a whole number from 1, or None for the drawn counts"),
        (
            lambda: DatabaseConfig(window=("2000-01-01", "1999-01-01")),
            "window is ('2000-01-01', '1999-01-01'); expected two dates at least two days apart, earlier first",
        ),
        (
            lambda: DatabaseConfig(window=("yesterday", "today")),
            "window is ('yesterday', 'today'); expected two dates such as '1990-01-01'",
        ),
        (lambda: ScmConfig(noise=0.1), "noise is 0.1; expected numbers from 0.5 to 100"),
        (lambda: ScmConfig(width=0), "width is 0; expected a whole number from 1 to 1024"),
        (lambda: DagConfig(ba_m=0), "ba_m is 0; expected a whole number from 1"),
        (lambda: DagConfig(ba_drop=2), "ba_drop is 2; expected a number from 0 to 1"),
        (
            lambda: RelationalConfig.from_dict({"database": {"n_table": 3}}),
            "config: database has no field 'n_table'; did you mean n_tables?",
        ),
        (
            lambda: RelationalConfig.from_dict({"tables": {}}),
            "config has no field 'tables'; there are database, scm, dag",
        ),
        (
            lambda: draw_schema(0, RelationalConfig(DatabaseConfig(n_tables=9, rows=5))),
            "rows is 5; expected at least one for each of the 9 tables of the database",
        ),
    ],
    ids=range(20),
)
def test_choices_that_cannot_be_are_named(make, message):
    with pytest.raises(InputError) as caught:
        make()
    assert str(caught.value) == message


def test_an_unknown_activation_is_told_all_that_there_are():
    with pytest.raises(InputError, match=r"activations holds 'relux'; expected some of relu, elu, selu, .*sine_series"):
        ScmConfig(activations=("relux",))


@pytest.mark.parametrize("config", [RelationalConfig(), RelationalConfig.paper()], ids=["default", "paper"])
def test_a_config_is_read_back_from_its_dictionary(config):
    assert RelationalConfig.from_dict(config.to_dict()) == config


def test_a_file_that_is_no_config_is_named(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("[]")
    with pytest.raises(InputError, match=r"config\.json: expected a JSON object with database, scm and dag"):
        RelationalConfig.read(path)
    path.write_text("{")
    with pytest.raises(InputError, match=r"config\.json is not JSON"):
        RelationalConfig.read(path)
    path.write_text('{"database": {"n_tables": 0}}')
    with pytest.raises(InputError, match=r"config\.json, n_tables is 0; expected numbers from 1"):
        RelationalConfig.read(path)
