"""`assay use dataguard`: from files of answers, a saved model or texts to a written report."""

import json

import numpy as np
import pandas as pd
import pytest

SURE = "--aux-is-nontraining"


def answers(n, seed, sureness=1.0):
    """Probabilities of three classes with their labels, and two inputs."""
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=n)
    logits = rng.normal(size=(n, 3))
    logits[np.arange(n), y] += sureness
    probs = np.exp(logits)
    return probs / probs.sum(axis=1, keepdims=True), y, rng.normal(size=(n, 2))


def table(n, seed, sureness=1.0):
    probs, y, inputs = answers(n, seed, sureness)
    frame = pd.DataFrame(probs, columns=["p_ant", "p_bee", "p_cow"])
    return frame.assign(label=np.array(["ant", "bee", "cow"])[y], x_1=inputs[:, 0], x_2=inputs[:, 1])


@pytest.fixture
def tables(tmp_path):
    table(120, 0, sureness=3.0).to_csv(tmp_path / "target.csv", index=False)
    table(120, 1).to_parquet(tmp_path / "aux.parquet")


def test_the_help_opens_with_an_example(assay):
    assert "Example: `assay use dataguard probs target.csv aux.csv" in " ".join(
        assay("use", "dataguard", "--help").stdout.split()
    )


def test_tables_of_answers_become_a_page_and_its_figures(assay, tmp_path, tables):
    done = assay(
        "use", "dataguard", "probs", "target.csv", "aux.parquet", SURE, "--inputs", "x_", "-o", "reports/audit.html"
    )
    assert done.returncode == 0, done.stderr
    assert "the model: USED" in done.stdout
    assert "Written: reports/audit.html, reports/audit.json" in done.stdout.replace("\n", "")
    assert "<svg" in (tmp_path / "reports/audit.html").read_text(encoding="utf-8")
    document = json.loads((tmp_path / "reports/audit.json").read_text(encoding="utf-8"))
    assert document["verdict"] == "used"
    assert document["n_target"] == 120


def test_an_npz_of_the_same_answers_has_the_same_p(assay, tmp_path, tables):
    for name, seed, sureness in (("target", 0, 3.0), ("aux", 1, 1.0)):
        probs, y, inputs = answers(120, seed, sureness)
        np.savez(tmp_path / f"{name}.npz", probs=probs, labels=y, inputs=inputs)
    assay("use", "dataguard", "probs", "target.csv", "aux.parquet", SURE, "--inputs", "x_", "-o", "a.json")
    assay("use", "dataguard", "probs", "target.npz", "aux.npz", SURE, "-o", "b.json")
    one, other = (json.loads((tmp_path / name).read_text(encoding="utf-8")) for name in ("a.json", "b.json"))
    assert one["t2"] == pytest.approx(other["t2"], rel=1e-9)
    assert one["p_value"] == other["p_value"]


def test_several_targets_have_reports_of_their_own_and_a_common_correction(assay, tmp_path, tables):
    table(120, 2).to_csv(tmp_path / "second.csv", index=False)
    done = assay("use", "dataguard", "probs", "target.csv", "second.csv", "aux.parquet", SURE, "-o", "audit.json")
    assert done.returncode == 0, done.stderr
    names = ["audit-1-target.json", "audit-2-second.json"]
    documents = [json.loads((tmp_path / name).read_text(encoding="utf-8")) for name in names]
    assert all("corrected for 2 target data sets" in document["notes"][-1] for document in documents)


def test_a_saved_torch_model_is_asked(assay, tmp_path):
    torch = pytest.importorskip("torch")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, (torch.zeros(2, 4),), dynamic_shapes=({0: batch},))
    torch.export.save(program, str(tmp_path / "model.pt2"))
    for name, seed in (("target", 0), ("aux", 1)):
        rng = np.random.default_rng(seed)
        np.savez(tmp_path / f"{name}.npz", X=rng.normal(size=(60, 4)).astype(np.float32), y=rng.integers(3, size=60))
    done = assay("use", "dataguard", "model", "model.pt2", "target.npz", "aux.npz", SURE, "--augment", "2")
    assert done.returncode == 0, done.stderr
    assert "augmentation gap" in done.stdout


def test_a_saved_scikit_learn_model_is_asked_by_a_table(assay, tmp_path):
    skops = pytest.importorskip("skops.io")
    from sklearn.linear_model import LogisticRegression

    def frame(seed):
        rng = np.random.default_rng(seed)
        return pd.DataFrame(rng.normal(size=(80, 3)), columns=list("abc")).assign(label=rng.integers(2, size=80))

    known = frame(2)
    skops.dump(LogisticRegression().fit(known[list("abc")].to_numpy(), known["label"]), tmp_path / "model.skops")
    frame(0).to_csv(tmp_path / "target.csv", index=False)
    frame(1).to_csv(tmp_path / "aux.csv", index=False)
    done = assay("use", "dataguard", "model", "model.skops", "target.csv", "aux.csv", SURE)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "audit.html").is_file()


def test_texts_are_audited_with_a_folder_of_a_language_model(assay, tmp_path, model_dir):
    for name, seed in (("target", 0), ("aux", 1)):
        rng = np.random.default_rng(seed)
        rows = [json.dumps({"text": " ".join(f"w{i}" for i in rng.integers(1, 97, size=20))}) for _ in range(50)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    done = assay("use", "dataguard", "texts", model_dir, "target.jsonl", "aux.jsonl", SURE, "--augment", "1")
    assert done.returncode == 0, done.stderr
    assert "loss per compressed byte" in done.stdout
    document = json.loads((tmp_path / "audit.json").read_text(encoding="utf-8"))
    assert document["verdict"] != "used"  # random weights remember nothing
    assert document["diagnostics"]["shift_seen"] == "the texts"


BAD = {
    "nobody is certain": (
        ["probs", "target.csv", "aux.parquet"],
        "error: give --aux-is-nontraining if you are certain that the model never saw the auxiliary data (the last "
        "file), in training or in choosing its settings; an audit rests on that\n",
    ),
    "one file": (
        ["probs", "target.csv", SURE],
        "error: target.csv is given alone; give the target data and then the auxiliary data\n",
    ),
    "a report of no kind": (
        ["probs", "target.csv", "aux.parquet", SURE, "-o", "audit.pdf"],
        "error: audit.pdf: a report is written as one of .html, .json\n",
    ),
    "another prefix": (
        ["probs", "target.csv", "aux.parquet", SURE, "--prefix", "q_"],
        "error: aux.parquet: no column begins with 'q_'; it has 'p_ant', 'p_bee', 'p_cow', 'label', 'x_1', 'x_2'\n",
    ),
    "a pickle": (
        ["model", "model.pkl", "target.csv", "aux.parquet", SURE],
        "error: model.pkl: expected a model as .pt2 (torch.export.save) or .skops (skops.io.dump); pickles can run "
        "code and are not opened\n",
    ),
    "no file": (
        ["probs", "target.csv", "aux.npz", SURE],
        "error: aux.npz: no such file\n",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_one_sentence_and_leaves_no_file(assay, tmp_path, tables, arguments, message):
    (tmp_path / "model.pkl").write_bytes(b"\x80\x04.")
    before = sorted(tmp_path.iterdir())
    done = assay("use", "dataguard", *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)
    assert sorted(tmp_path.iterdir()) == before


def test_an_npz_with_pickles_inside_is_not_opened(assay, tmp_path, tables):
    np.savez(tmp_path / "evil.npz", probs=np.array([{"a": 1}], dtype=object), labels=np.zeros(1))
    done = assay("use", "dataguard", "probs", "evil.npz", "aux.parquet", SURE)
    assert done.returncode == 2
    assert done.stderr.startswith("error: evil.npz is no readable .npz file: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["probs", "some.npz", "aux.parquet"], "some.npz is no .npz file, whatever its name says; write one with"),
        (["model", "some.pt2", "target.csv", "aux.parquet"], "some.pt2 is no program that torch.export.save wrote: it"),
    ],
    ids=["npz", "pt2"],
)
def test_a_file_that_is_none_of_its_name_is_one_sentence(assay, tmp_path, tables, arguments, message):
    (tmp_path / arguments[1]).write_bytes(b"\x7fELF\x02\x01\xff")
    done = assay("use", "dataguard", *arguments, SURE)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {message}")
    assert done.stderr.count("\n") == 1


def test_a_model_that_does_not_take_the_samples_says_so(assay, tmp_path):
    skops = pytest.importorskip("skops.io")
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    skops.dump(LogisticRegression().fit(rng.normal(size=(20, 3)), [0, 1] * 10), tmp_path / "model.skops")
    for name in ("target", "aux"):
        np.savez(tmp_path / f"{name}.npz", X=rng.normal(size=(60, 4)), y=np.arange(60) % 2)
    done = assay("use", "dataguard", "model", "model.skops", "target.npz", "aux.npz", SURE)
    assert done.returncode == 2
    assert done.stderr.startswith("error: model.skops fails on samples of shape (60, 4): X has 4 features, but")


def test_a_saved_forest_is_asked(assay, tmp_path):
    skops = pytest.importorskip("skops.io")
    from sklearn.ensemble import RandomForestClassifier

    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 4)), np.arange(200) % 2
    skops.dump(RandomForestClassifier(20, random_state=0).fit(X[:120], y[:120]), tmp_path / "model.skops")
    for name, part in (("target", slice(60, 120)), ("aux", slice(120, 180))):
        np.savez(tmp_path / f"{name}.npz", X=X[part], y=y[part])
    done = assay("use", "dataguard", "model", "model.skops", "target.npz", "aux.npz", SURE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("model.skops: USED")  # labels are noise: a forest knows only those it has seen


def test_a_label_without_a_column_is_named_with_its_row(assay, tmp_path, tables):
    frame = table(60, 3)
    frame.loc[4, "label"] = "dog"
    frame.to_csv(tmp_path / "dog.csv", index=False)
    done = assay("use", "dataguard", "probs", "dog.csv", "aux.parquet", SURE)
    assert done.returncode == 2
    assert (
        done.stderr == "error: dog.csv, column 'label', row 5: 'dog' is no class of the model; it has ant, bee, cow\n"
    )
