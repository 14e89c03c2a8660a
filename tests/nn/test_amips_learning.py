"""KeyNet, SupportNet and LearnedRouter: they learn, keep what they learned, and refuse what cannot be learned from."""

import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from sklearn.pipeline import make_pipeline  # noqa: E402  # after the check for torch
from sklearn.preprocessing import Normalizer  # noqa: E402
from sklearn.utils.estimator_checks import parametrize_with_checks  # noqa: E402

from assay._core.errors import InputError  # noqa: E402
from assay.nn.amips import KeyNet, LearnedRouter, SupportNet, best_keys, labels  # noqa: E402
from assay.nn.amips.training import Schedule, apply  # noqa: E402

SMALL = {"depth": 2, "width": 48, "batch_size": 256, "learning_rate": 1e-2, "random_state": 0}


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def random_unit(n, d, seed=0):
    return unit(np.random.default_rng(seed).standard_normal((n, d)))


@pytest.fixture(scope="module")
def world():
    """Keys, and queries that are a shifted, noisy view of them: where the best key lies can be learned."""
    rng = np.random.default_rng(0)
    keys = random_unit(120, 12)
    picked = rng.integers(120, size=6000)
    shift = random_unit(1, 12, seed=9)
    queries = unit(keys[picked] + 0.8 * shift + 0.15 * rng.standard_normal((6000, 12)))
    return keys, queries[:5000], queries[5000:]


@pytest.fixture(scope="module")
def keynet(world):
    keys, queries, _ = world
    return KeyNet(steps=400, noise=(1, 0.02), **SMALL).fit(queries, keys)


@pytest.fixture(scope="module")
def router(world):
    keys, queries, _ = world
    return LearnedRouter(4, steps=300, noise=(0, 0.0), **SMALL).fit(queries, keys)


@parametrize_with_checks(
    [
        KeyNet(depth=1, width=8, steps=3, noise=(1, 0.02)),
        SupportNet(depth=1, width=8, steps=3, noise=(1, 0.02)),
    ],
    expected_failed_checks=lambda estimator: {
        "check_estimators_dtypes": "its whole numbers hold a row of zeros, which has no direction and is refused",
    },
)
def test_the_estimators_pass_scikit_learns_checks(estimator, check):
    check(estimator)


# -------------------------------------------------------------------------------------------------------- it learns


@pytest.mark.parametrize("net", [KeyNet(residual=False), SupportNet()], ids=["KeyNet", "SupportNet"])
def test_one_key_is_learned_to_a_ten_thousandth(net):
    key, queries = random_unit(1, 8), random_unit(2000, 8, seed=1)
    model = net.set_params(steps=800, noise=(0, 0.0), **SMALL).fit(queries, key)
    found = model.transform(random_unit(500, 8, seed=2))
    assert float(np.square(found - key).mean()) < 1e-4


def test_the_support_function_of_two_opposite_keys_is_an_absolute_value():
    keys = np.array([[1.0, 0.0], [-1.0, 0.0]], np.float32)
    model = SupportNet(steps=500, noise=(0, 0.0), **SMALL).fit(random_unit(2000, 2, seed=1), keys)
    x = random_unit(500, 2, seed=2)
    assert float(np.abs(model.support(x) - np.abs(x[:, 0])).mean()) < 0.02


def test_held_out_queries_are_mapped_closer_to_their_keys_than_they_were(world, keynet):
    keys, _, test = world
    best = keys[best_keys(test, keys)[0]]
    mapped = keynet.transform(test)
    error = np.square(mapped - best).sum() / np.square(test - best).sum()
    assert error < 0.7
    assert keynet.score(test) == pytest.approx(1 - error, abs=1e-5)
    assert keynet.relative_error_ == pytest.approx(error, abs=0.1)
    assert keynet.score_ == 1 - keynet.relative_error_


def test_labels_that_were_shuffled_teach_little(world, keynet):
    keys, queries, test = world
    shuffled = np.random.default_rng(0).permutation(best_keys(queries, keys)[0])
    model = KeyNet(steps=400, noise=(1, 0.02), **SMALL).fit(queries, keys, labels=shuffled)
    assert model.score(test) < keynet.score(test) - 0.2


def test_predict_gives_the_key_closest_to_the_mapped_query(world, keynet):
    keys, _, test = world
    found = keynet.predict(test)
    np.testing.assert_array_equal(found, (keynet.transform(test) @ keys.T).argmax(axis=1))
    assert (found == best_keys(test, keys)[0]).mean() == pytest.approx(keynet.match_rate_, abs=0.1)


def test_an_untrained_residual_net_finds_what_the_query_finds():
    keys, queries = random_unit(500, 24), random_unit(1000, 24, seed=1)
    model = KeyNet(depth=8, width=64, steps=0, random_state=0).fit(queries, keys)
    near = unit(keys + 0.1 * np.random.default_rng(2).standard_normal(keys.shape))
    natural = (best_keys(near, keys)[0] == np.arange(500)).mean()
    assert (model.predict(near) == np.arange(500)).mean() == pytest.approx(natural, abs=0.01)


def test_the_weights_that_are_used_are_the_running_mean(world):
    keys, queries, _ = world
    options = {"noise": (0, 0.0), "test_size": 0.0, **SMALL}
    seen = []
    from assay.nn.amips import training

    original = training.torch.nn.utils.clip_grad_norm_

    def spy(parameters, longest):
        parameters = list(parameters)
        seen.append([parameter.detach().clone() for parameter in parameters])
        return original(parameters, longest)

    training.torch.nn.utils.clip_grad_norm_ = spy
    try:
        model = KeyNet(steps=4, **options).fit(queries, keys)
    finally:
        training.torch.nn.utils.clip_grad_norm_ = original
    # `seen[t]` are the weights before step t, so those after the last are not seen; Adam moves a weight by about the
    # learning rate at most, and what the mean says of the last weights must be that close to those before.
    decay = training.EMA_DECAY
    after = np.array([float(weights[0][0, 0]) for weights in seen[1:]])
    kept = float(next(model.network_.parameters())[0, 0])
    shares = decay ** np.arange(4)[::-1]
    shares /= shares.sum()
    last = (kept - shares[:3] @ after) / shares[3]
    assert abs(last - after[-1]) < 2 * SMALL["learning_rate"]
    assert kept != pytest.approx(last, abs=1e-9)


def test_the_learning_rate_rises_for_a_hundredth_and_falls_to_zero():
    schedule = Schedule(1000, 32, 1e-3)
    rates = [schedule.rate(step) for step in range(1000)]
    np.testing.assert_allclose(rates[:10], np.arange(1, 11) / 10)
    assert rates[505] == pytest.approx(0.5, abs=1e-9)
    assert rates[-1] < 1e-5
    assert max(rates) == 1.0


def test_the_same_seed_gives_the_same_net(world):
    keys, queries, test = world
    one, other = (KeyNet(steps=5, **SMALL).fit(queries, keys).transform(test) for _ in range(2))
    np.testing.assert_array_equal(one, other)


def test_without_keys_the_queries_are_keys_too():
    vectors = random_unit(50, 6)
    model = KeyNet(steps=2, **SMALL).fit(vectors)
    np.testing.assert_array_equal(model.keys_, vectors)


def test_a_one_dimensional_y_is_ignored():
    vectors = random_unit(50, 6)
    np.testing.assert_array_equal(KeyNet(steps=1, **SMALL).fit(vectors, np.arange(50)).keys_, vectors)


def test_it_works_behind_a_normalizer_in_a_pipeline(world):
    keys, queries, test = world
    pipeline = make_pipeline(Normalizer(), KeyNet(steps=5, **SMALL)).fit(3 * queries, keys)
    direct = KeyNet(steps=5, **SMALL).fit(queries, keys)
    np.testing.assert_allclose(pipeline.transform(7 * test), direct.transform(test), atol=1e-4)


def test_memory_maps_are_learned_from_and_stay_on_disk(tmp_path, world):
    keys, queries, test = world
    np.save(tmp_path / "keys.npy", keys)
    np.save(tmp_path / "queries.npy", queries)
    mapped = [np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("keys", "queries")]
    model = KeyNet(steps=5, **SMALL).fit(mapped[1], mapped[0])
    assert model.keys_ is mapped[0]
    np.testing.assert_array_equal(model.transform(test), KeyNet(steps=5, **SMALL).fit(queries, keys).transform(test))


# ------------------------------------------------------------------------------------------------------------ saving


@pytest.mark.parametrize("kind", ["keynet", "supportnet", "router", "supportnet router"])
def test_what_was_saved_comes_back_bit_for_bit(tmp_path, world, keynet, router, kind):
    keys, queries, test = world
    model = {
        "keynet": lambda: keynet,
        "supportnet": lambda: SupportNet(steps=3, **SMALL).fit(queries, keys),
        "router": lambda: router,
        "supportnet router": lambda: LearnedRouter(3, base="supportnet", steps=3, **SMALL).fit(queries, keys),
    }[kind]()
    model.save(tmp_path / "model.safetensors")
    again = type(model).load(tmp_path / "model.safetensors", keys=keys)
    np.testing.assert_array_equal(again.transform(test), model.transform(test))
    np.testing.assert_array_equal(again.predict(test), model.predict(test))
    assert (again.score_, again.match_rate_, again.n_parameters_) == (
        model.score_,
        model.match_rate_,
        model.n_parameters_,
    )
    again.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "model.safetensors").read_bytes()


def test_a_pickled_net_gives_the_same(world, keynet):
    again = pickle.loads(pickle.dumps(keynet))
    np.testing.assert_array_equal(again.transform(world[2]), keynet.transform(world[2]))


def test_a_loaded_net_asks_for_its_keys_and_knows_others(tmp_path, world, keynet):
    keys, _, test = world
    keynet.save(tmp_path / "model.safetensors")
    loaded = KeyNet.load(tmp_path / "model.safetensors")
    with pytest.raises(
        InputError, match=r"^keys: a loaded model does not hold them; give the keys that were trained on$"
    ):
        loaded.predict(test)
    np.testing.assert_array_equal(loaded.predict(test, keys), keynet.predict(test))
    with pytest.raises(InputError, match=r"^refit: keys differ from those trained on"):
        loaded.predict(test, keys[::-1])
    with pytest.raises(InputError, match=r"^refit: keys differ from those trained on"):
        KeyNet.load(tmp_path / "model.safetensors", keys=keys[:-1])


def test_keys_that_were_changed_in_place_are_found(world):
    keys, queries, test = world
    mine = keys.copy()
    net = KeyNet(steps=1, **SMALL).fit(queries, mine)
    mine[[3, 4]] = mine[[4, 3]]
    for ask in (net.predict, net.score):
        with pytest.raises(InputError, match=r"^refit: keys differ from those trained on"):
            ask(test)


def test_files_of_something_else_are_refused(tmp_path, keynet):
    keynet.save(tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"holds a KeyNet; load it by KeyNet\.load$"):
        SupportNet.load(tmp_path / "model.safetensors")
    (tmp_path / "words.safetensors").write_text("no tensors")
    with pytest.raises(InputError, match=r"words\.safetensors is not a model of amips; expected a file"):
        KeyNet.load(tmp_path / "words.safetensors")
    with pytest.raises(InputError, match=r"none: no such file$"):
        KeyNet.load(tmp_path / "none")


def test_a_header_that_tells_of_another_net_is_refused_before_memory_is_taken(tmp_path, keynet):
    import json

    from safetensors.torch import load_file, save_file

    keynet.save(tmp_path / "model.safetensors")
    from safetensors import safe_open

    with safe_open(tmp_path / "model.safetensors", "pt") as opened:
        told = json.loads(opened.metadata()["assay.amips"])
    tensors = load_file(tmp_path / "model.safetensors")
    for change in ({"width": 10**7}, {"n_features": 10**7}):
        altered = {**told, "learned": {**told["learned"], **change}}
        save_file(tensors, tmp_path / "altered.safetensors", metadata={"assay.amips": json.dumps(altered)})
        with pytest.raises(
            InputError, match=r"altered\.safetensors: the weights do not fit the settings in its header"
        ):
            KeyNet.load(tmp_path / "altered.safetensors")


# ------------------------------------------------------------------------------------------------------------ router


def test_a_router_learns_the_best_score_of_each_cluster(world, router):
    keys, _, test = world
    _, best = labels.best_keys_by_cluster(test, keys, router.members_)
    predicted = router.cluster_scores(test)
    assert float(np.square(predicted - best).mean()) < 0.4 * float(best.var())


def test_searching_all_clusters_is_exact_search(world, router):
    keys, _, test = world
    scores, ids = router.search(test, k=5, p=4)
    exact = np.argsort(-(test @ keys.T), axis=1, kind="stable")[:, :5]
    np.testing.assert_array_equal(ids, exact)
    np.testing.assert_allclose(scores, np.take_along_axis(test @ keys.T, exact, axis=1), atol=1e-6)


def test_fewer_clusters_hold_fewer_keys_and_the_rest_is_minus_one(world, router):
    smallest = int(router.sizes_.min())
    scores, ids = router.search(world[2], k=smallest + 1, p=1)
    routed = router.sizes_[router.route(world[2])[:, 0]]
    np.testing.assert_array_equal(ids[:, -1] == -1, routed == smallest)
    np.testing.assert_array_equal(np.isneginf(scores[:, -1]), routed == smallest)


def test_a_mapped_query_is_the_key_predicted_for_the_best_cluster(world, router):
    values, keys = apply(router.network_, world[2])
    chosen = router.route(world[2])[:, 0]
    np.testing.assert_array_equal(values.argmax(axis=1), chosen)
    np.testing.assert_array_equal(router.transform(world[2]), keys[np.arange(len(keys)), chosen])


def test_a_support_router_routes_by_its_values(world):
    keys, queries, test = world
    model = LearnedRouter(3, base="supportnet", steps=3, **SMALL).fit(queries, keys)
    np.testing.assert_array_equal(model.route(test, 3), np.argsort(-apply(model.network_, test)[0], axis=1))


# ---------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
def test_clusters_that_stay_empty_are_an_error(world):
    keys = np.repeat(np.eye(2, 12, dtype=np.float32), 10, axis=0)
    with pytest.raises(
        InputError, match=r"^n_clusters is 5, and k-means left 3 clusters empty .*; ask for 2 or fewer$"
    ):
        LearnedRouter(5, steps=1, **SMALL).fit(world[1], keys)


def test_few_queries_are_warned_of():
    with pytest.warns(UserWarning, match=r"^19 queries for 200 keys are fewer than a tenth: expect memorisation"):
        KeyNet(steps=1, **SMALL).fit(random_unit(19, 6), random_unit(200, 6, seed=1))


BAD = {
    "zero query": ({}, lambda q, k: (np.vstack([q, np.zeros_like(q[:1])]), k), r"^queries: 1 rows are all zeros"),
    "zero key": ({}, lambda q, k: (q, np.vstack([k, np.zeros_like(k[:1])])), r"^keys: 1 rows are all zeros"),
    "nan key": ({}, lambda q, k: (q, np.where(k == k[3, 0], np.nan, k)), r"^keys, row 4: it holds NaN or infinite"),
    "other width": ({}, lambda q, k: (q, k[:, :3]), r"^keys have 3 numbers a row; expected 6$"),
    "three-dimensional keys": ({}, lambda q, k: (q, k[:, None]), r"^keys: an array of shape \(20, 1, 6\)"),
    "one number": ({}, lambda q, k: (q, 3.0), r"^keys: an array of shape \(\) and type float64"),
    "depth": ({"depth": 0}, None, r"^depth is 0; expected a whole number from 1$"),
    "steps": ({"steps": 1.5}, None, r"^steps is 1\.5; expected a whole number from 0$"),
    "fraction": ({"fraction": 0.0}, None, r"^fraction is 0\.0; expected a number above zero$"),
    "inject": ({"inject": -1}, None, r"^inject is -1; expected True, False or a whole number from 0$"),
    "width": ({"width": 0}, None, r"^width is 0; expected a whole number from 1, or None"),
    "noise": ({"noise": 3}, None, r"^noise is 3; expected \(copies of each query, sd of a coordinate\)"),
    "test_size": ({"test_size": 1.0}, None, r"^test_size is 1\.0; expected a share from 0 to below 1$"),
}


@pytest.mark.parametrize(("options", "change", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_one_sentence(options, change, message):
    given = (random_unit(40, 6), random_unit(20, 6, seed=1))
    with pytest.raises(InputError, match=message):
        KeyNet(**{"steps": 1, **SMALL, **options}).fit(*(change(*given) if change else given))


def test_a_query_that_is_not_a_number_is_refused_by_scikit_learns_door():
    queries = random_unit(40, 6)
    queries[3, 2] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        KeyNet(steps=1, **SMALL).fit(queries)


def test_an_unknown_rectifier_base_or_p_is_refused(world, router):
    keys, queries, test = world
    with pytest.raises(InputError, match=r"^rectifier is 'abs'; expected one of softplus, relu, exp, identity$"):
        SupportNet(rectifier="abs", steps=1, **SMALL).fit(queries, keys)
    with pytest.raises(InputError, match=r"^base is 'mlp'; expected 'keynet' or 'supportnet'$"):
        LearnedRouter(base="mlp", steps=1, **SMALL).fit(queries, keys)
    with pytest.raises(InputError, match=r"^p is 5; expected 1 to 4, the number of clusters$"):
        router.route(test, 5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.zeros(3, int), r"^labels have shape \(3,\), int64; expected 40 whole numbers$"),
        (np.full(40, 20), r"^labels, row 1: 20 is not an id from 0 to 19$"),
    ],
)
def test_labels_must_be_ids(given, message):
    with pytest.raises(InputError, match=message):
        KeyNet(steps=1, **SMALL).fit(random_unit(40, 6), random_unit(20, 6, seed=1), labels=given)
