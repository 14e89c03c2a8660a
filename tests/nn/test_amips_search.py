"""Mapped search and comparisons of amips: the right keys, the right counts, and no cost left out."""

import numpy as np
import pytest

pytest.importorskip("torch")
faiss = pytest.importorskip("faiss")

from assay._core.errors import InputError  # noqa: E402  # after the checks for what is needed
from assay.nn.amips import (  # noqa: E402
    KeyNet,
    LearnedRouter,
    MappedIndex,
    SupportNet,
    best_keys,
    compare_ivf,
    compare_routing,
    ivf_index,
)
from assay.nn.amips.compare import hnsw_index, wilson  # noqa: E402

SMALL = {"depth": 2, "width": 64, "batch_size": 256, "learning_rate": 1e-2, "random_state": 0}


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def world():
    rng = np.random.default_rng(0)
    keys = unit(rng.standard_normal((400, 12)))
    shift = unit(rng.standard_normal((1, 12)))
    queries = unit(keys[rng.integers(400, size=4500)] + 2 * shift + 0.1 * rng.standard_normal((4500, 12)))
    return keys, queries[:4000], queries[4000:]


@pytest.fixture(scope="module")
def net(world):
    return KeyNet(steps=600, noise=(0, 0.0), **SMALL).fit(world[1], world[0])


@pytest.fixture(scope="module")
def compared(world, net):
    return compare_ivf(net, world[2], nprobes=(1, 4, 20))


def test_all_lists_ranked_by_the_query_is_exact_search(world, net):
    keys, _, test = world
    index = ivf_index(keys)
    index.nprobe = index.nlist
    scores, ids = MappedIndex(index, net).search(test, 10)
    product = test @ keys.T
    np.testing.assert_array_equal(ids, np.argsort(-product, axis=1, kind="stable")[:, :10])
    np.testing.assert_allclose(scores[:, 0], product.max(axis=1), atol=1e-5)


def test_the_mapped_query_chooses_the_lists_and_the_query_ranks(world, net):
    keys, _, test = world
    index = ivf_index(keys)
    index.nprobe = 2
    _, ids = MappedIndex(index, net).search(test, 3)
    centroids = index.quantizer.reconstruct_n(0, index.nlist)
    list_of_key = (keys @ centroids.T).argmax(axis=1)
    lists = np.argsort(-(net.transform(test) @ centroids.T), axis=1)[:, :2]
    allowed = (list_of_key[None, None, :] == lists[:, :, None]).any(axis=1)
    scores = np.where(allowed, test @ keys.T, -np.inf)
    np.testing.assert_array_equal(ids, np.argsort(-scores, axis=1, kind="stable")[:, :3])


def test_without_reranking_the_index_is_searched_with_the_mapped_query(world, net):
    keys, _, test = world
    index = ivf_index(keys)
    scores, ids = MappedIndex(index, net, rerank=False).search(test, 5)
    expected_scores, expected_ids = index.search(np.ascontiguousarray(net.transform(test)), 5)
    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_array_equal(scores, expected_scores)


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_other_indexes_give_candidates_that_the_query_ranks(world, net, kind):
    keys, _, test = world
    index = hnsw_index(keys)
    if kind == "flat":
        index = faiss.IndexFlatIP(keys.shape[1])
        index.add(keys)
    scores, ids = MappedIndex(index, net).search(test, 3)
    _, candidates = index.search(np.ascontiguousarray(net.transform(test)), 12)
    for row in range(0, 500, 50):
        order = np.argsort(-(keys[candidates[row]] @ test[row]), kind="stable")[:3]
        np.testing.assert_array_equal(ids[row], candidates[row][order])
        np.testing.assert_allclose(scores[row], keys[ids[row]] @ test[row], atol=1e-6)


def test_quantised_lists_get_the_scores_that_they_need(world, net):
    """IVF-PQ adds <x, centroid> to the score of a residual: it must be that of the query, not of the mapped query."""
    keys, _, test = world
    index = faiss.IndexIVFPQ(faiss.IndexFlatIP(12), 12, 4, 6, 4, faiss.METRIC_INNER_PRODUCT)
    index.train(keys)
    index.add(keys)
    index.nprobe = 4  # all: the lists are then the same for both
    scores, _ = MappedIndex(index, net).search(test, 5)
    np.testing.assert_allclose(scores, index.search(test, 5)[0], atol=1e-4)


def test_an_l2_index_is_asked_with_mapped_queries_of_length_one(world, net):
    keys, _, test = world
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(12), 12, 10)
    index.train(keys)
    index.add(keys)
    index.nprobe = 10
    with pytest.warns(
        UserWarning, match=r"^index: it measures L2 distances, .*; mapped queries are scaled to length one$"
    ):
        mapped = MappedIndex(index, net)
    np.testing.assert_allclose(np.linalg.norm(mapped.mapped(test), axis=1), 1.0, atol=1e-5)
    distances, ids = mapped.search(test, 1)
    np.testing.assert_array_equal(ids[:, 0], best_keys(test, keys)[0])
    np.testing.assert_allclose(distances[:, 0], 2 - 2 * best_keys(test, keys)[1], atol=1e-5)


def test_an_index_of_other_keys_is_refused(world, net):
    with pytest.raises(
        InputError, match=r"^index: 399 keys of 12 numbers; the model was trained on 400 of 12; add the same"
    ):
        MappedIndex(ivf_index(world[0][:-1]), net)


OTHERS = {
    "IVF": ivf_index,
    "HNSW": hnsw_index,
    "IVF-PQ": lambda keys: trained("IVF4,PQ6x4np", keys),
    "scalar": lambda keys: trained("SQ8", keys),
}


def trained(description, keys):
    index = faiss.index_factory(keys.shape[1], description, faiss.METRIC_INNER_PRODUCT)
    index.train(keys)
    index.add(keys)
    return index


@pytest.mark.parametrize("kind", OTHERS)
def test_an_index_of_as_many_other_keys_is_refused(world, net, kind):
    keys = world[0]
    MappedIndex(OTHERS[kind](keys), net)
    for others in (keys[::-1].copy(), unit(np.random.default_rng(5).standard_normal(keys.shape))):
        with pytest.raises(InputError, match=r"^index: its keys are not those that the model was trained on; add the"):
            MappedIndex(OTHERS[kind](others), net)


def test_looking_at_its_keys_leaves_an_index_as_it_was(world, net):
    index = ivf_index(world[0])
    MappedIndex(index, net)
    assert index.direct_map.no()
    index.make_direct_map()
    MappedIndex(index, net)
    assert not index.direct_map.no()


def test_keys_in_the_index_may_be_longer_than_one(world, net):
    index = faiss.IndexFlatIP(12)
    index.add(7 * world[0])
    MappedIndex(index, net)


# -------------------------------------------------------------------------------------------------------- comparisons


def test_exact_search_finds_all_and_looks_at_all(compared):
    row = compared.table.query("way == 'exact'").iloc[0]
    assert (row["recall_1"], row["recall_100"], row["mrr"], row["scanned"]) == (1.0, 1.0, 1.0, 1.0)
    assert row["mflops"] == pytest.approx(2 * 12 * 400 / 1e6)


def test_with_all_lists_raw_and_reranked_find_all(compared):
    table = compared.table.set_index(["way", "setting"])["recall_1"]
    assert table["raw query, IVF", 20] == table["mapped, ranked by query", 20] == 1.0
    assert table["mapped, ranked by map", 20] < 1.0


def test_recall_at_one_is_that_of_a_search_by_hand(world, compared):
    keys, _, test = world
    index = ivf_index(keys)
    found = index.search(test, 1)[1][:, 0]
    by_hand = (found == best_keys(test, keys)[0]).mean()
    table = compared.table.set_index(["way", "setting"])["recall_1"]
    assert table["raw query, IVF", 1] == pytest.approx(by_hand, abs=1e-9)


def test_operations_are_those_of_net_lists_and_keys(world, net, compared):
    rows = compared.table.set_index(["way", "setting"])
    raw, mapped = rows.loc[("raw query, IVF", 4)], rows.loc[("mapped, ranked by query", 4)]
    assert raw["mflops"] * 1e6 == pytest.approx(2 * 12 * (20 + 400 * raw["scanned"]))
    assert mapped["mflops"] * 1e6 == pytest.approx(2 * net.n_parameters_ + 2 * 12 * (20 + 400 * mapped["scanned"]))


def test_a_support_net_costs_a_pass_backward_too(world):
    model = SupportNet(steps=1, **SMALL).fit(world[1], world[0])
    assert model.flops_ == 4 * model.n_parameters_


def test_a_support_router_maps_by_a_pass_backward_a_cluster_and_routes_without(world, monkeypatch):
    from assay.nn.amips import networks

    model = LearnedRouter(3, base="supportnet", steps=1, **SMALL).fit(world[1], world[0])
    passes, backward = [], networks.torch.autograd.grad
    monkeypatch.setattr(
        networks.torch.autograd, "grad", lambda *args, **options: passes.append(1) or backward(*args, **options)
    )
    model.transform(world[2])
    assert model.flops_ == 2 * (1 + len(passes)) * model.n_parameters_ == 8 * model.n_parameters_
    passes.clear()
    model.route(world[2])
    assert (len(passes), model.routing_flops_) == (0, 2 * model.n_parameters_)


def test_a_mapped_query_finds_more_in_one_list_where_queries_lie_far_from_their_keys(compared):
    table = compared.table.set_index(["way", "setting"])
    assert table["low_1"]["mapped, ranked by query", 1] > table["high_1"]["raw query, IVF", 1]


def test_a_key_that_is_there_twice_counts_whichever_is_found(world):
    keys = np.vstack([world[0], world[0]])
    model = KeyNet(steps=0, depth=1, width=8).fit(world[1], keys)
    table = compare_ivf(model, world[2], nprobes=(1000,), n_lists=20).table
    assert set(table["way"]) == {"raw query, HNSW", "exact"}  # no more lists than there are
    assert table.set_index("way")["recall_1"]["exact"] == 1.0


def test_the_summary_and_the_picture_show_every_way(compared):
    from matplotlib import pyplot as plt

    text = compared.summary()
    axes = compared.plot()
    labels = [entry.get_text() for entry in axes.figure.axes[1].get_legend().get_texts()]
    plt.close(axes.figure)
    ways = list(dict.fromkeys(compared.to_frame()["way"]))
    assert labels == ways
    assert all(way in text for way in ways)
    assert text.startswith("500 queries, 400 keys of 12; the net has ")


def test_routing_through_all_clusters_finds_all(world):
    router = LearnedRouter(4, steps=100, noise=(0, 0.0), **SMALL).fit(world[1], world[0])
    table = compare_routing(router, world[2], p=(1, 4)).table.set_index(["way", "setting"])
    assert table["recall_1"]["learned router", 4] == table["recall_1"]["centroids", 4] == 1.0
    assert table["scanned"]["learned router", 4] == 1.0
    assert table["recall_1"]["learned router", 1] > table["recall_1"]["centroids", 1]


def test_comparisons_know_other_keys(world, net):
    with pytest.raises(InputError, match=r"^refit: keys differ from those trained on"):
        compare_ivf(net, world[2], world[0][::-1])


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_wilsons_interval_reaches_a_share_at_its_bound_whatever_the_rounding(share):
    assert all(low <= share <= high for low, high in (wilson(share, n) for n in range(1, 3000)))


@pytest.mark.parametrize(("share", "n"), [(0.0, 10), (0.3, 50), (1.0, 500)])
def test_wilsons_interval_solves_its_equation(share, n):
    """Its ends are the p with |share − p| = z sqrt(p (1 − p) / n)."""
    z = 1.959964
    for end in wilson(share, n):
        assert (share - end) ** 2 == pytest.approx(z * z * end * (1 - end) / n, abs=1e-9)
