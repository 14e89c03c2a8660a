"""`assay use amips`: fit, search and compare on files of vectors, through the door that a user takes."""

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("torch")
pytest.importorskip("faiss")


from assay._core.errors import InputError
from assay._core.tables import read_table

QUICK = ("--steps", "30", "--depth", "2", "--copies", "0")


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def vectors(tmp_path):
    rng = np.random.default_rng(0)
    keys = unit(rng.standard_normal((200, 8)))
    queries = unit(keys[rng.integers(200, size=600)] + 0.3 * rng.standard_normal((600, 8)))
    np.save(tmp_path / "keys.npy", keys)
    np.save(tmp_path / "queries.npy", queries)
    return keys, queries


@pytest.fixture
def model(run, vectors):
    return run("fit", "keys.npy", "queries.npy", "-o", "out/model.safetensors", *QUICK).stdout


def test_fit_writes_a_model_and_says_what_it_is_worth(model, tmp_path):
    assert (tmp_path / "out/model.safetensors").is_file()
    assert "on 60 held-out queries the squared distance to the best key is" in model
    assert model.endswith("Written: out/model.safetensors\n")


def test_search_through_all_lists_finds_the_best_keys(run, model, vectors, tmp_path):
    keys, queries = vectors
    out = run(
        "search", "out/model.safetensors", "keys.npy", "queries.npy", "-k", "3", "--nprobe", "99", "-o", "f/f.csv"
    ).stdout
    found = read_table(
        tmp_path / "f/f.csv", {"query": "integer", "rank": "integer", "key": "integer", "score": "number"}
    )
    product = queries @ keys.T
    assert found["key"].to_numpy().reshape(600, 3).tolist() == (np.argsort(-product, axis=1)[:, :3] + 1).tolist()
    np.testing.assert_allclose(found["score"].to_numpy().reshape(600, 3)[:, 0], product.max(axis=1), atol=1e-5)
    assert "600 queries, 1,800 keys found (14 of 14 lists each)" in out


def test_fewer_keys_than_were_asked_for_leave_no_rows(run, model, tmp_path):
    run("search", "out/model.safetensors", "keys.npy", "queries.npy", "-k", "150", "--nprobe", "1")
    found = read_table(tmp_path / "found.csv", {"query": "integer", "key": "integer"})
    assert found["key"].min() >= 1
    assert found.groupby("query").size().max() < 150


def test_compare_learns_on_some_queries_and_asks_the_others(run, vectors, tmp_path):
    printed = run(
        "compare", "keys.npy", "queries.npy", *QUICK, "-o", "c.csv", "--plot", "c.png", "--probes", "1,14"
    ).stdout
    assert "60 queries, 200 keys of 8" in printed
    assert "takes the fewest operations by" in printed
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    table = read_table(tmp_path / "c.csv", {"way": "text", "setting": "integer", "recall_1": "number"})
    assert table.query("way == 'raw query, IVF'")["setting"].tolist() == [1, 14]
    assert table.query("way == 'mapped, ranked by query' and setting == 14")["recall_1"].item() == 1.0


def test_compare_asks_nothing_that_it_learned_from(run, vectors, tmp_path):
    """30 different queries, 20 times each: three of them are held out, with all their repeats."""
    np.save(tmp_path / "log.npy", np.tile(vectors[1][:30], (20, 1)))
    assert "60 queries, 200 keys of 8" in run("compare", "keys.npy", "log.npy", *QUICK).stdout


def test_compare_takes_a_model_that_was_trained_before(run, model):
    printed = run("compare", "keys.npy", "queries.npy", "--model", "out/model.safetensors", "--probes", "2").stdout
    assert "600 queries, 200 keys of 8" in printed


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_tables_give_what_npy_files_give(run, vectors, tmp_path, suffix):
    from assay._core.tables import write_table

    for name, values in zip(("keys", "queries"), vectors, strict=True):
        write_table(pd.DataFrame(values.astype(np.float64), columns=list("abcdefgh")), tmp_path / f"{name}{suffix}")
    of_npy = run("fit", "keys.npy", "queries.npy", *QUICK).stdout
    of_table = run("fit", f"keys{suffix}", f"queries{suffix}", *QUICK).stdout
    assert of_table == of_npy


def test_vectors_of_another_length_are_scaled_with_a_warning(run, vectors, tmp_path):
    np.save(tmp_path / "long.npy", 3 * vectors[0])
    printed = run("fit", "long.npy", "queries.npy", *QUICK)
    assert printed.stderr.startswith("warning: keys are not of length one (row ")


def test_other_keys_are_known(run, model, vectors, tmp_path):
    np.save(tmp_path / "others.npy", vectors[0][::-1])
    with pytest.raises(InputError, match=r"^refit: keys differ from those trained on"):
        run("search", "out/model.safetensors", "others.npy", "queries.npy")


BAD = {
    "no file": (("fit", "none.npy", "queries.npy"), r"^none\.npy: no such file$"),
    "widths": (
        ("fit", "keys.npy", "thin.npy"),
        r"^thin\.npy has 7 numbers a row, and keys\.npy has 8; expected the same$",
    ),
    "net": (("fit", "keys.npy", "queries.npy", "--net", "mlp"), r"^--net is 'mlp'; expected keynet or supportnet$"),
    "out": (("fit", "keys.npy", "queries.npy", "-o", "m.pt"), r"^m\.pt: a model is written as \.safetensors"),
    "probes": (("compare", "keys.npy", "queries.npy", "--probes", "1,x"), r"^--probes takes whole numbers above zero"),
    "picture": (("compare", "keys.npy", "queries.npy", "--plot", "a.doc"), r"^a\.doc: a picture is written as one of"),
    "model": (("search", "keys.npy", "keys.npy", "queries.npy"), r"^keys\.npy is not a model of amips"),
    "NaN": (("fit", "keys.npy", "nan.npy"), r"^queries, row 8: it holds NaN or infinite numbers"),
    "zero row": (("fit", "zero.npy", "queries.npy"), r"^keys: 1 rows are all zeros \(rows 5\)"),
    "the same queries": (("compare", "keys.npy", "same.npy"), r"^same\.npy: 6 different queries; expected 20 or more"),
    "few queries": (("compare", "keys.npy", "few.npy"), r"^few\.npy: 5 different queries; expected 20 or more"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_one_sentence_and_leaves_no_file(run, vectors, tmp_path, arguments, message):
    keys, queries = vectors
    np.save(tmp_path / "thin.npy", queries[:, :7])
    np.save(tmp_path / "few.npy", queries[:5])
    np.save(tmp_path / "same.npy", np.tile(queries[:6], (50, 1)))
    np.save(tmp_path / "nan.npy", np.where(np.arange(600)[:, None] == 7, np.nan, queries))
    np.save(tmp_path / "zero.npy", np.where(np.arange(200)[:, None] == 4, 0, keys))
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InputError, match=message):
        run(*arguments)
    assert sorted(tmp_path.iterdir()) == before
