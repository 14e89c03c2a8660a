"""Foreign keys: the block sampler has the law of the paper's row by row one, exactly and in draws."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from assay.synth.plurel import DatabaseConfig, Links, LinkSampler, clusters, draw_links
from assay.synth.plurel.links import MATCH, block_edges, level_matrix

HIERARCHY = st.lists(st.integers(1, 3), min_size=1, max_size=4)


def links_of(parents, children, a, b, seed=0):
    rng = np.random.default_rng(seed)
    return Links(
        tuple(a), tuple(b), tuple(level_matrix(rng, x, y) for x, y in zip(a, b, strict=True)), parents, children
    )


def naive_law(links):
    """P(a | b) by the paper's words: for each pair of rows the product over levels, divided by its sum over parents."""
    law = np.empty((links.n_children, links.n_parents))
    a, b = clusters(links.n_parents, links.parent_hierarchy), clusters(links.n_children, links.child_hierarchy)
    for child in range(links.n_children):
        for parent in range(links.n_parents):
            entries = [m[a[level, parent], b[level, child]] for level, m in enumerate(links.matrices)]
            law[child, parent] = np.prod(entries)
    return law / law.sum(axis=1, keepdims=True)


def law_of_blocks(links):
    """P(a | b) as the sampler has it: the block's probability, shared equally by its rows."""
    parent_edges = block_edges(links.n_parents, links.parent_hierarchy)
    child_edges = block_edges(links.n_children, links.child_hierarchy)
    size = np.diff(parent_edges)
    by_row = np.repeat(links.block_probabilities() / np.maximum(size, 1), size, axis=1)
    return np.repeat(by_row, np.diff(child_edges), axis=0)


@given(a=HIERARCHY, b=HIERARCHY, parents=st.integers(1, 60), children=st.integers(1, 60), seed=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_the_law_by_blocks_is_the_law_by_rows(a, b, parents, children, seed):
    n = min(len(a), len(b))
    links = links_of(parents, children, a[:n], b[:n], seed)
    np.testing.assert_allclose(law_of_blocks(links), naive_law(links), rtol=1e-10, atol=1e-15)
    np.testing.assert_allclose(links.row_probabilities(), naive_law(links), rtol=1e-10, atol=1e-15)


def test_draws_by_blocks_follow_the_law_by_rows():
    links = links_of(20, 12, [2, 3], [3, 2])
    sampler, rng = LinkSampler(links), np.random.default_rng(1)
    draws = np.stack([sampler.rows(rng, 0, 12) for _ in range(40_000)])
    law = naive_law(links)
    for child in range(12):
        common = law[child] * 40_000 > 5  # chi-square needs five expected draws a cell; the rest is one cell
        counts = np.bincount(draws[:, child], minlength=20)
        observed = [*counts[common], counts[~common].sum()]
        expected = [*(law[child][common] * 40_000), law[child][~common].sum() * 40_000]
        keep = np.array(expected) > 0
        assert chisquare(np.array(observed)[keep], np.array(expected)[keep]).pvalue > 0.001  # 12 children: 0.01 in all


def test_draws_by_blocks_and_by_rows_differ_no_more_than_two_samples_of_one_law():
    links = links_of(40, 300, [2, 2, 2], [2, 3, 1])
    sampler, rng = LinkSampler(links), np.random.default_rng(2)
    law = np.cumsum(naive_law(links), axis=1)
    n = 200
    ours = np.bincount(np.concatenate([sampler.rows(rng, 0, 300) for _ in range(n)]), minlength=40)
    naive = np.bincount(((rng.random((n, 300, 1)) > law[None, :, :-1]).sum(axis=2)).ravel(), minlength=40)
    both = np.stack([ours, naive])
    statistic = ((both - both.mean(axis=0)) ** 2 / both.mean(axis=0)).sum()
    assert statistic < 39 + 3 * np.sqrt(2 * 39)  # chi-square with 39 degrees of freedom


def test_a_range_of_children_is_drawn_as_the_whole_is():
    links = links_of(100, 1000, [3, 3], [2, 3])
    law = links.row_probabilities()
    sampler, rng = LinkSampler(links), np.random.default_rng(3)
    part = np.stack([sampler.rows(rng, 700, 900) for _ in range(500)])
    mean, expected = part.mean(axis=0), law[700:900] @ np.arange(100)
    sd = np.sqrt(law[700:900] @ np.arange(100) ** 2 - expected**2)
    assert np.abs((mean - expected) / sd * np.sqrt(500)).max() < 4.5  # 200 means, P(any beyond 4.5) = 0.0014


def test_one_level_of_one_cluster_is_uniform():
    sampler = LinkSampler(links_of(50, 100_000, [1], [1]))
    counts = np.bincount(sampler.rows(np.random.default_rng(0), 0, 100_000), minlength=50)
    assert chisquare(counts).pvalue > 0.01


def test_two_clusters_a_side_keep_the_stated_share_inside():
    links = links_of(1000, 200_000, [2], [2])
    other = np.array([links.matrices[0][1, 0], links.matrices[0][0, 1]])
    expected = np.mean(MATCH / (MATCH + other))
    assert expected == pytest.approx(0.9983, abs=6e-4)  # the entries off the diagonal are between 0.001 and 0.002
    rows = LinkSampler(links).rows(np.random.default_rng(0), 0, 200_000)
    inside = (rows >= 500) == (np.arange(200_000) >= 100_000)
    assert inside.mean() == pytest.approx(expected, abs=4 * np.sqrt(expected * (1 - expected) / 200_000))


def test_three_levels_multiply():
    links = links_of(800, 160_000, [2, 2, 2], [2, 2, 2])
    a, b = clusters(800, (2, 2, 2)), clusters(160_000, (2, 2, 2))
    rows = LinkSampler(links).rows(np.random.default_rng(0), 0, 160_000)
    shares = [np.mean([MATCH / (MATCH + m[1 - k, k]) for k in (0, 1)]) for m in links.matrices]
    expected = np.prod(shares)
    inside = (a[:, rows] == b).all(axis=0).mean()
    assert inside == pytest.approx(expected, abs=4 * np.sqrt(expected * (1 - expected) / 160_000))


def test_clusters_of_eight_rows_in_two_levels_are_the_cards():
    assert clusters(8, (2, 2)).tolist() == [[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 0, 0, 1, 1]]


def test_the_diagonal_wraps_where_the_sides_differ():
    matrix = level_matrix(np.random.default_rng(0), 2, 3)
    assert (matrix == MATCH).tolist() == [[True, False, True], [False, True, False]]
    assert np.all((matrix == MATCH) | ((matrix >= 0.001) & (matrix <= 0.002)))


def test_the_last_block_takes_what_is_left():
    assert np.diff(block_edges(10, (2, 2))).tolist() == [3, 3, 3, 1]
    assert np.diff(block_edges(5, (2, 2))).tolist() == [2, 2, 1, 0]


@given(parents=st.integers(1, 30), children=st.integers(1, 3000), seed=st.integers(0, 10**6))
@settings(max_examples=50, deadline=None)
def test_every_parent_that_is_drawn_exists(parents, children, seed):
    rng = np.random.default_rng(seed)
    links = draw_links(rng, parents, children, DatabaseConfig())
    rows = LinkSampler(links).rows(rng, 0, children)
    assert rows.shape == (children,)
    assert rows.min() >= 0
    assert rows.max() < parents
