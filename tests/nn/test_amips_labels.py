"""Labels, splits and copies of amips: exact, in blocks, and with held-out queries that stay held out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay._core.errors import InputError
from assay.nn.amips import best_keys, labels, read_vectors
from assay.nn.amips.vectors import digest, unit_rows


def unit(n, d, seed=0):
    vectors = np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("n_keys", [1, 7, 2048, 5000])
def test_labels_are_those_of_brute_force(n_keys):
    queries, keys = unit(3000, 12, seed=1), unit(n_keys, 12)
    ids, scores = best_keys(queries, keys)
    product = queries.astype(np.float64) @ keys.T.astype(np.float64)
    np.testing.assert_array_equal(ids, product.argmax(axis=1))
    np.testing.assert_allclose(scores, product.max(axis=1), atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 4), st.integers(0, 99))
def test_of_equal_scores_the_lowest_id_wins(n_queries, n_keys, d, seed):
    """Small whole numbers: products are exact, and most keys are there more than once."""
    rng = np.random.default_rng(seed)
    queries, keys = (rng.integers(-2, 3, (n, d)).astype(np.float32) for n in (n_queries, n_keys))
    ids, _ = best_keys(queries, keys)
    np.testing.assert_array_equal(ids, (queries @ keys.T).argmax(axis=1))


def test_a_key_that_is_there_again_in_a_later_block_does_not_win():
    keys = np.tile(np.eye(3, dtype=np.float32), (2000, 1))
    assert best_keys(np.eye(3, dtype=np.float32), keys)[0].tolist() == [0, 1, 2]


def test_keys_in_strips_give_the_same_labels(monkeypatch):
    queries, keys = unit(500, 6, seed=1), unit(900, 6)
    whole = best_keys(queries, keys)[0]
    monkeypatch.setattr(labels, "STRIP", 256)
    monkeypatch.setattr(labels, "KEY_BLOCK", 100)
    np.testing.assert_array_equal(best_keys(queries, keys)[0], whole)


def test_the_number_of_threads_does_not_matter():
    queries, keys = unit(5000, 6, seed=1), unit(900, 6)
    np.testing.assert_array_equal(best_keys(queries, keys, n_jobs=1)[0], best_keys(queries, keys, n_jobs=3)[0])


def test_labels_by_cluster_are_ids_among_all_keys():
    queries, keys = unit(200, 5, seed=1), unit(90, 5)
    cluster = np.random.default_rng(2).integers(4, size=90)
    members = [np.flatnonzero(cluster == number) for number in range(4)]
    ids, scores = labels.best_keys_by_cluster(queries, keys, members)
    product = queries @ keys.T
    for number in range(4):
        masked = np.where(cluster == number, product, -np.inf)
        np.testing.assert_array_equal(ids[:, number], masked.argmax(axis=1))
        np.testing.assert_allclose(scores[:, number], masked.max(axis=1), atol=1e-6)


def test_memory_stays_far_below_the_matrix_of_scores():
    import tracemalloc

    queries, keys = unit(20_000, 8, seed=1), unit(20_000, 8)
    tracemalloc.start()
    best_keys(queries, keys, n_jobs=2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * 20_000 * 20_000 / 20  # 1.6 GB


def test_noisy_copies_have_length_one_and_the_noise_that_was_asked_for():
    queries = unit(2000, 400)
    pool = labels.noisy_copies(queries, 3, 0.02, np.random.default_rng(0))
    assert pool.shape == (8000, 400)
    np.testing.assert_array_equal(pool[:2000], queries)
    np.testing.assert_allclose(np.linalg.norm(pool, axis=1), 1.0, atol=1e-5)
    # x + e has length sqrt(1 + 400 × 0.02²) on average; its cosine with x is one over that.
    cosine = np.einsum("nd,nd->n", pool[2000:4000], queries).mean()
    assert cosine == pytest.approx(1 / np.sqrt(1 + 400 * 0.02**2), abs=0.002)


def test_no_copy_of_a_held_out_query_is_learned_from():
    queries = unit(300, 8)
    pool = labels.make_pool(queries, noise=(5, 0.01), test_size=0.2, official_split=False, rng=np.random.default_rng(0))
    assert (len(pool.held_out), len(pool.queries)) == (60, 240 * 6)
    assert not set(pool.source) & set(pool.held_out_source)
    np.testing.assert_array_equal(pool.held_out, queries[pool.held_out_source])


def test_repeats_of_a_query_are_held_out_together():
    queries = np.tile(unit(40, 8), (25, 1))
    pool = labels.make_pool(queries, noise=(0, 0.0), test_size=0.2, official_split=False, rng=np.random.default_rng(0))
    assert (len(pool.held_out), len(pool.queries)) == (8 * 25, 32 * 25)
    assert not {row.tobytes() for row in pool.held_out} & {row.tobytes() for row in pool.queries}


def test_different_queries_are_split_by_their_permutation():
    """The split with which the results in the docs were measured."""
    queries = unit(300, 8)
    pool = labels.make_pool(queries, noise=(2, 0.1), test_size=0.2, official_split=False, rng=np.random.default_rng(7))
    rng = np.random.default_rng(7)
    order = rng.permutation(300)
    kept = np.sort(order[60:])
    np.testing.assert_array_equal(pool.held_out_source, np.sort(order[:60]))
    np.testing.assert_array_equal(pool.source, np.tile(kept, 3))
    np.testing.assert_array_equal(pool.queries, labels.noisy_copies(queries[kept], 2, 0.1, rng))


def test_the_official_split_learns_from_copies_of_held_out_queries():
    pool = labels.make_pool(
        unit(300, 8), noise=(5, 0.01), test_size=0.2, official_split=True, rng=np.random.default_rng(0)
    )
    assert len(pool.queries) == 300 * 6 - 60
    assert set(pool.held_out_source) <= set(pool.source)


def test_source_says_which_query_a_copy_came_from():
    queries = unit(50, 8)
    pool = labels.make_pool(queries, noise=(2, 1e-4), test_size=0.1, official_split=False, rng=np.random.default_rng(0))
    np.testing.assert_allclose(pool.queries, queries[pool.source], atol=1e-3)


# ------------------------------------------------------------------------------------------------------- at the door


def test_rows_of_length_one_are_not_copied():
    vectors = unit(10, 4)
    assert unit_rows(vectors, "keys") is vectors


def test_other_rows_are_scaled_with_a_warning():
    with pytest.warns(UserWarning, match=r"^keys are not of length one \(row 2: 5\); they are scaled to it"):
        scaled = unit_rows(np.array([[1.0, 0.0], [3.0, 4.0]]), "keys")
    np.testing.assert_allclose(scaled, [[1.0, 0.0], [0.6, 0.8]], atol=1e-7)
    assert scaled.dtype == np.float32


BAD = {
    "zero rows": (
        [[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]],
        r"^keys: 2 rows are all zeros \(rows 2, 3\), and have no direction; remove them$",
    ),
    "not finite": (
        [[1.0, 0.0], [np.nan, 1.0]],
        r"^keys, row 2: it holds NaN or infinite numbers; remove the row or repair it$",
    ),
    "one dimension": ([1.0, 2.0], r"^keys: an array of shape \(2,\) and type float64; expected numbers of shape"),
    "no rows": (np.empty((0, 3)), r"^keys: an array of shape \(0, 3\)"),
    "text": ([["a", "b"]], r"^keys: an array of shape \(1, 2\) and type <U1; expected numbers"),
    "other width": ([[1.0, 0.0, 0.0]], r"^keys have 3 numbers a row; expected 2$"),
}


@pytest.mark.parametrize(("vectors", "message"), BAD.values(), ids=BAD)
def test_bad_vectors_are_refused_in_a_sentence(vectors, message):
    with pytest.raises(InputError, match=message):
        unit_rows(vectors, "keys", n_features=2)


def test_npy_files_are_mapped_not_read(tmp_path):
    np.save(tmp_path / "keys.npy", unit(100, 4))
    stored = read_vectors(tmp_path / "keys.npy")
    assert isinstance(stored, np.memmap)
    assert unit_rows(stored, "keys") is stored
    np.testing.assert_array_equal(
        best_keys(unit(5, 4, seed=1), stored)[0], best_keys(unit(5, 4, seed=1), unit(100, 4))[0]
    )


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
def test_tables_are_read_as_vectors(tmp_path, suffix):
    import pandas as pd

    from assay._core.tables import write_table

    vectors = unit(20, 3)
    write_table(pd.DataFrame(vectors.astype(np.float64), columns=["a", "b", "c"]), tmp_path / f"keys{suffix}")
    np.testing.assert_allclose(read_vectors(tmp_path / f"keys{suffix}"), vectors, atol=1e-7)


def test_files_that_are_no_vectors_are_refused(tmp_path):
    np.save(tmp_path / "flat.npy", np.zeros(3))
    (tmp_path / "not.npy").write_bytes(b"nonsense")
    np.save(tmp_path / "objects.npy", np.array([[{}]], dtype=object), allow_pickle=True)
    (tmp_path / "words.csv").write_text("a,b\n1,x\n")
    for name, message in {
        "flat.npy": r"has the shape \(3,\); expected \(rows, numbers a row\)",
        "not.npy": r"is not a \.npy file of numbers",
        "objects.npy": r"is not a \.npy file of numbers",
        "words.csv": r"words\.csv, row 1, column 'b': 'x' is not a finite number$",
        "none.npy": r"none\.npy: no such file$",
    }.items():
        with pytest.raises(InputError, match=message):
            read_vectors(tmp_path / name)


def test_a_digest_tells_other_keys_and_other_shapes_apart():
    keys = unit(10, 4)
    changed = keys.copy()
    changed[9, 3] += 1e-6
    assert len({digest(keys), digest(changed), digest(keys.reshape(20, 2)), digest(keys[::-1])}) == 4
    assert digest(keys) == digest(keys.copy())
