"""The trial of amips: its cases are what they say, no arm sees an answer, and every arm does what its name says."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("faiss")

from assay import bench
from assay._core.errors import InputError
from assay.nn.amips import best_keys
from assay.trials.nn.amips import TRIAL, arms, data
from assay.trials.nn.amips.data import Sources, Task, Training

SENTENCES = TRIAL.also[-1]
TINY = Training(16, 5, 64, 4e-3)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def few_sources(monkeypatch):
    """2,000 windows of sixty made-up words, and a map from text to numbers that needs no fitting."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((60, 16)).astype(np.float32)

    def embed(texts):
        return np.array([vectors[[int(word[1:]) for word in data.words(text)]].sum(axis=0) for text in texts])

    windows = [" ".join(f"w{word}" for word in rng.integers(60, size=12)) for _ in range(2000)]
    monkeypatch.setattr(data, "sources", lambda: Sources(windows, embed(windows), embed))


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def task():
    rng = np.random.default_rng(1)
    keys = unit(rng.standard_normal((300, 8)))
    queries = unit(keys[rng.integers(300, size=2300)] + 0.4 * rng.standard_normal((2300, 8)))
    return Task(keys, queries[300:], queries[:300], Training(32, 100, 256, 4e-3))


@pytest.fixture(scope="module")
def case(task):
    return bench.Case("one", task, data.best_scores(task))


def test_a_case_has_queries_to_ask_that_are_not_in_its_log(few_sources):
    (case,) = data.source_cases(("words", 300, 10, TINY), 1, seed=0)
    log = {row.tobytes() for row in case.given.log}
    assert len(case.given.keys) == 300
    assert len(case.given.queries) == len(case.given.log) // 3 or len(case.given.queries) == data.ASKED
    assert not any(row.tobytes() in log for row in case.given.queries)


def test_sets_of_keys_share_no_window(few_sources):
    cases = list(data.source_cases(("words", 300, 3, TINY), 6, seed=0))
    keys = np.concatenate([case.given.keys for case in cases])
    assert len(np.unique(keys, axis=0)) == len(keys) == 1800


def test_cases_are_the_same_again_and_a_longer_run_starts_with_them(few_sources):
    short, long = (list(data.source_cases(("near", 300, 2, TINY), n, seed=3)) for n in (2, 3))
    for one, other in zip(short, long, strict=False):
        for part in ("keys", "log", "queries"):
            np.testing.assert_array_equal(getattr(one.given, part), getattr(other.given, part))


def test_near_queries_lie_closer_to_their_keys(few_sources):
    far, near = (
        next(iter(data.source_cases((kind, 300, 4, TINY), 1, seed=0))).truth[:, 0].mean() for kind in ("words", "near")
    )
    assert near > far


def test_the_truth_is_the_best_score_by_exact_search(few_sources):
    (case,) = data.source_cases(("words", 300, 10, TINY), 1, seed=0)
    exact = np.sort(case.given.queries @ case.given.keys.T, axis=1)[:, ::-1][:, :10]
    np.testing.assert_allclose(case.truth, exact, atol=1e-6)


def test_the_raw_arm_is_a_plain_faiss_search(task, case):
    answer = arms.raw(task, seed=5)
    index, _ = arms.index_of(task, 5)
    index.nprobe = 4
    np.testing.assert_array_equal(answer.ids[4], index.search(task.queries, 10)[1])
    assert arms.recall(case, answer)["relative_error"] == pytest.approx(1.0)


def test_the_learned_arm_counts_the_operations_of_its_net(task):
    from assay.nn.amips import KeyNet

    answer = arms.learned(task, seed=5)
    net = KeyNet(depth=4, width=32, steps=0, test_size=0.0).fit(task.log, task.keys)
    looked = answer.scanned[2] * 300
    assert answer.flops[2] == pytest.approx(2 * net.n_parameters_ + 2 * 8 * (17 + looked))


def test_hnsw_computes_no_more_distances_than_ivf(task):
    ivf, graph = arms.raw(task, 5), arms.hnsw(task, 5)
    assert all(graph.flops[n] <= ivf.flops[n] for n in (4, 8))
    assert all(ids.shape == (300, 10) for ids in graph.ids.values())


def test_the_linear_arm_undoes_a_rotation():
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.standard_normal((8, 8)))[0].astype(np.float32)
    keys = np.eye(8, dtype=np.float32)
    # The best key of a query is the axis of its largest coordinate: the log says so of turned axes only where the
    # rotation keeps that axis, so the rotation is drawn close to none.
    turn = unit(keys + 0.3 * turn)
    queries = np.repeat(turn, 50, axis=0)
    answer = arms.linear(Task(keys, queries, turn, TINY), seed=0)
    assert answer.relative_error < 0.01


def test_recall_is_the_share_of_best_keys_found(task, case):
    best = best_keys(task.queries, task.keys)[0]
    right = np.full((300, 10), -1)
    right[:200, 0] = best[:200]
    right[200:250, 3] = best[200:250]
    answer = arms.Answer(dict.fromkeys(arms.PROBES, right), dict.fromkeys(arms.PROBES, 0.1),
                          dict.fromkeys(arms.PROBES, 5e3), 0.5)  # fmt: skip
    found = arms.recall(case, answer)
    assert found["recall_1_1"] == pytest.approx(2 / 3)
    assert found["ten_1"] == pytest.approx(250 / 3000)  # a best key is among the ten best
    assert (found["kflops_1"], found["scanned_1"]) == (5.0, 0.1)


def test_the_gradient_arm_counts_forward_and_backward(task):
    from assay.nn.amips import SupportNet

    answer = arms.gradient(task, seed=5)
    net = SupportNet(depth=4, width=32, steps=0, test_size=0.0).fit(task.log, task.keys)
    assert net.flops_ == 2 * 2 * net.n_parameters_
    assert answer.flops[2] == pytest.approx(net.flops_ + 2 * 8 * (17 + answer.scanned[2] * 300))


@pytest.mark.parametrize("base", ["keynet", "supportnet"])
def test_all_routers_have_the_same_clusters(task, case, base):
    learned, centroids = arms.learned_router(task, 3, base=base), arms.centroid_router(task, 3)
    np.testing.assert_array_equal(learned.cluster, centroids.cluster)
    found = arms.routed(case, learned)
    assert found["routed_1"] <= found["routed_2"] <= 1.0


@pytest.mark.parametrize("part", TRIAL.also[:-1], ids=lambda part: part.part)
def test_every_arm_of_the_further_parts_gets_every_metric(few_sources, part):
    loaded = part.load(None, "quick", {"keys": 200, "steps": 3})
    (case,) = part.cases(loaded.value, 1, 0)
    for arm in part.arms:
        assert set(part.score(case, arm.run(case.given, 0))) == {metric.name for metric in part.metrics}


def test_a_users_folder_of_vectors_is_cut_into_disjoint_folds(tmp_path, task):
    np.save(tmp_path / "keys.npy", task.keys)
    np.save(tmp_path / "queries.npy", task.log)
    loaded = SENTENCES.load(str(tmp_path), "quick", {"steps": 2})
    cases = list(data.folds(loaded.value, 6, 0))
    asked = np.concatenate([case.given.queries for case in cases])
    assert len(asked) == len(np.unique(asked, axis=0)) == 2000
    for case in cases:
        assert len(case.given.log) + len(case.given.queries) == 2000


def test_no_fold_is_asked_what_its_log_holds(task):
    queries = np.repeat(task.log[:90], 4, axis=0)
    for case in data.folds((task.keys, queries, task.training), 6, 0):
        assert len(np.unique(case.given.queries, axis=0)) == 15
        assert len(case.given.queries) + len(case.given.log) == 360
        assert not {row.tobytes() for row in case.given.queries} & {row.tobytes() for row in case.given.log}


def test_different_queries_are_cut_into_folds_of_their_permutation(task):
    """The split with which the results in the docs were measured."""
    parts = np.array_split(np.random.default_rng(3).permutation(len(task.log)), 6)
    for case, part in zip(data.folds((task.keys, task.log, task.training), 6, 3), parts, strict=True):
        np.testing.assert_array_equal(case.given.queries, task.log[part[: data.ASKED]])
        np.testing.assert_array_equal(case.given.log, np.delete(task.log, part, axis=0))


def test_a_folder_without_keys_or_with_few_queries_is_refused(tmp_path, task):
    np.save(tmp_path / "queries.npy", task.queries[:9])
    with pytest.raises(InputError, match=r"0 files named keys\.\*; expected a folder with keys\.npy and queries\.npy"):
        SENTENCES.load(str(tmp_path), "quick", {"steps": 2})
    np.save(tmp_path / "keys.npy", task.keys)
    with pytest.raises(InputError, match=r": 9 different queries; expected 60 or more, to learn from and to ask$"):
        SENTENCES.load(str(tmp_path), "quick", {"steps": 2})


@pytest.mark.parametrize("params", [{"keys": 100, "steps": 5}, {"keys": 300, "steps": -1}])
def test_sizes_out_of_range_are_refused(params):
    with pytest.raises(InputError, match=r"expected 200 or more keys and 1 or more steps$"):
        TRIAL.load(None, "quick", params)


@pytest.fixture
def small_library(tmp_path, monkeypatch):
    (tmp_path / "test").mkdir()
    long = "Say in eight words or more what this does."
    (tmp_path / "one.py").write_text(f'"""Too short."""\ndef f():\n    """{long}\n\n    More of it."""\n')
    (tmp_path / "two.py").write_text(f'class A:\n    """{long}"""\n')
    (tmp_path / "broken.py").write_text("def (")
    (tmp_path / "test" / "three.py").write_text('"""A test that says in eight words or more."""\n')
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(tmp_path)})
    data.sources.cache_clear()
    yield
    data.sources.cache_clear()


def test_docstrings_are_first_sentences_of_eight_words_once_each_and_not_of_tests(small_library):
    assert data.docstrings() == ["Say in eight words or more what this does."]


def test_a_python_without_sources_is_said_so(small_library):
    with pytest.raises(InputError, match=r": 0 windows of source text; the trial needs a Python library with sources$"):
        TRIAL.load(None, "quick", {"keys": 0, "steps": 0})
