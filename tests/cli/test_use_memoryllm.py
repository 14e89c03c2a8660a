"""`assay use memoryllm`: train, export, generate, inspect and probe, through the door that a user takes."""

import re

import numpy as np
import pytest
import torch

from assay._core.errors import InputError
from assay._core.tables import read_table

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny MemoryLLM with a tokenizer of 97 words, as save_pretrained writes them."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from assay.nn.memoryllm import MemoryLlamaConfig, MemoryLlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny")
    config = MemoryLlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=86, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=128, bos_token_id=1, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        MemoryLlamaForCausalLM(config).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(97)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(folder)
    return folder


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(" ".join(f"w{(i * i) % 97}" for i in range(700)), encoding="utf-8")
    return path


def test_a_table_is_written_and_its_bytes_are_told(run, model, tmp_path):
    printed = run("export", model, "--dtype", "int8", "-o", "table").stdout
    n_bytes = 97 * 2 * 32 + 4 * 97 * 2  # codes and scales
    assert f"97 tokens, 2 layers, width 32, int8\n{n_bytes:,} bytes on disk stand for " in printed
    kept = [np.load(path).nbytes for path in (tmp_path / "table").glob("*.npy")]
    assert sum(kept) == n_bytes


def test_a_table_of_low_rank_and_some_layers_is_written(run, model, tmp_path):
    run("export", model, "--rank", "4", "--layers", "1", "--dtype", "float32", "-o", "table")
    assert np.load(tmp_path / "table" / "table.npy").shape == (97, 1, 4)


def test_a_table_of_some_layers_stands_for_their_parameters_alone(run, model):
    said = [
        int(re.search(r"stand for ([\d,]+) parameters", run("export", model, *more).stdout).group(1).replace(",", ""))
        for more in (("-o", "both"), ("--layers", "1", "-o", "one"))
    ]
    assert said[0] == 2 * said[1]


def test_the_text_from_a_table_is_the_model_s_own(run, model):
    run("export", model, "--dtype", "float32", "-o", "table")
    own = run("generate", model, "-p", "w5 w7", "--tokens", "6").stdout
    mapped = run("generate", model, "--table", "table", "-p", "w5 w7", "--tokens", "6", "--resident", "50").stdout
    assert own.splitlines()[0] == mapped.splitlines()[0]
    assert own.startswith("w5 w7 w")
    assert "6 tokens, " in mapped
    assert re.search(r"^mapped +0\.02 MiB$", mapped, re.MULTILINE)  # 97 x 2 x 32 x 4 bytes


def test_less_is_held_in_memory_with_a_table(run, model):
    run("export", model, "-o", "table")
    found = [
        float(re.search(r"weights in memory ([\d.]+) MiB", run("generate", model, "-p", "w5", *more).stdout).group(1))
        for more in ((), ("--table", "table"))
    ]
    assert found[1] < found[0]


def test_the_cells_of_a_token_are_told(run, model, tmp_path):
    printed = run("inspect", model, "--token", "w7", "--layer", "1", "--top", "3", "--table", "cells.csv").stdout
    assert printed.startswith("cells of token 7, layer 1\n")
    table = read_table(tmp_path / "cells.csv", {"cell": "integer", "coefficient": "number", "norm": "number"})
    assert len(table) == 3
    assert run("inspect", model, "--token", "id:7", "--layer", "1", "--top", "3").stdout == printed


def test_the_tokens_of_a_cell_and_what_its_value_raises_are_told(run, model):
    printed = run("inspect", model, "--cell", "5", "--top", "4").stdout
    assert printed.startswith("tokens that use cell 5 of layer 0, and tokens whose logits its value raises\n")
    assert len(re.findall(r"'w\d+'", printed)) == 8


def test_clusters_hold_the_whole_vocabulary(run, model, tmp_path):
    printed = run("inspect", model, "--clusters", "3", "--table", "clusters.csv").stdout
    assert printed.startswith("3 clusters of the vocabulary by their cells in layer 0\n")
    table = read_table(tmp_path / "clusters.csv", {"token": "integer", "text": "text", "cluster": "integer"})
    assert sorted(table["token"]) == list(range(97))
    assert set(table["cluster"]) == {0, 1, 2}


def test_tokens_that_stand_out_are_told(run, model):
    printed = run("inspect", model, "--top", "5").stdout
    assert len(printed.splitlines()) == 1 + 1 + 5


@pytest.mark.parametrize(("what", "rows"), [("layers", 2), ("alpha", 7)])
def test_a_probe_is_written_and_drawn(run, model, text, tmp_path, what, rows):
    options = ("--text", text, "--windows", "4", "--tokens", "20", "--table", "curve.csv", "--plot", "curve.svg")
    printed = run("probe", model, "--what", what, *options).stdout
    assert printed.startswith("4 windows; as it is: ")
    assert len(read_table(tmp_path / "curve.csv", {"loss": "number", "extra": "number"})) == rows
    assert (tmp_path / "curve.svg").stat().st_size > 1000


@pytest.fixture
def little_text(monkeypatch):
    """The recipe makes a tokenizer of its own text first; a little text will do here."""
    from assay.models import small

    monkeypatch.setattr(small, "training_text", lambda: "A few words that tell one thing from another. " * 40)
    small.token_ids.cache_clear()
    yield
    small.token_ids.cache_clear()


@pytest.mark.usefixtures("little_text")
@pytest.mark.parametrize("own_text", [False, True], ids=["the recipe's text", "a user's text"])
def test_a_model_is_trained_and_exports(run, tmp_path, text, own_text):
    options = ("--width", "48", "--layers", "1", "--steps", "2", "--batch", "2", "--tokens", "16", "--beta", "1")
    more = ("--text", text) if own_text else ()
    printed = run("train", *options, *more, "-o", "small").stdout
    assert re.search(r"^perplexity of held-out text +[\d.e+]+ +\[", printed)
    # Attention 4 h^2 and a context layer of 16 cells: 3 x 48 x 16 = h^2.
    assert f"active outside the embedding {5 * 48**2:,}" in printed
    assert "parameters" in run("export", "small", "-o", "table").stdout


def test_the_help_opens_with_an_example(run):
    assert "Example: `assay use memoryllm train --steps 100 -o small`" in " ".join(run("--help").stdout.split())


BAD = {
    "no folder": (("export", "./none", "-o", "table"), "none: no such folder"),
    "a folder in use": (("train", "-o", "."), ". is there already; give the name of a new or empty folder"),
    "beta": (("train", "-o", "out", "--beta", "most"), "--beta most: expected a number from 0 to below 8, or base"),
    "beta of 9": (
        ("train", "-o", "out", "--beta", "9"),
        "ffn_beta=9.0: expected a number from 0 to below 8, or 'base'",
    ),
    "width": (
        ("train", "-o", "out", "--width", "100"),
        "--width 100 --layers 4 --tokens 128 --batch 8: expected a multiple of 48, 1, 8 and 1 or more",
    ),
    "layers": (
        ("export", "MODEL", "-o", "table", "--layers", "1-2"),
        "--layers takes whole numbers with commas, such as 0,1,3, not '1-2'",
    ),
    "a dense model": (("export", "DENSE", "-o", "table"), "LlamaForCausalLM is dense: its FFN depends on context"),
    "no table": (("generate", "MODEL", "--table", "MODEL", "-p", "w1"), "MODEL holds no manifest.json"),
    "no prompt": (("generate", "MODEL", "-p", ""), "--prompt is empty; give a text to go on with"),
    "no tokens": (("generate", "MODEL", "-p", "w1", "--tokens", "0"), "--tokens 0: expected 1 or more"),
    "two questions": (
        ("inspect", "MODEL", "--cell", "1", "--clusters", "3"),
        "--token, --cell and --clusters are three questions; ask one at a time",
    ),
    "no rows": (("inspect", "MODEL", "--top", "0"), "--top 0: expected 1 or more"),
    "what": (("probe", "MODEL", "--what", "heads"), "--what heads: expected layers or alpha"),
    "a picture of no kind": (
        ("probe", "MODEL", "--plot", "curve.doc"),
        "curve.doc: a picture is written as one of .png, .svg, .pdf",
    ),
    "no text": (("probe", "MODEL", "--text", "none.txt"), "none.txt cannot be read as UTF-8 text: "),
    "a short text": (
        ("probe", "MODEL", "--text", "TEXT"),
        "--windows 20 of --tokens 128: expected 2 or more of each, and the text has 700 tokens",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_one_sentence(run, model, model_dir, text, arguments, message):
    named = {"MODEL": model, "TEXT": text, "DENSE": model_dir}
    with pytest.raises(InputError, match=f"^{re.escape(message.replace('MODEL', str(model)))}"):
        run(*(named.get(argument, argument) for argument in arguments))
