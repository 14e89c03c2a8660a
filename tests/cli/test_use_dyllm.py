"""`assay use dyllm`: text from a masked diffusion model, and what it saves, through the door that a user takes."""

import re

import pytest
import torch

from assay._core.errors import InputError
from assay._core.tables import read_table

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def masked_dir(tmp_path_factory):
    """A tiny ModernBERT with a tokenizer of words, as save_pretrained writes them; w96 is the mask."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import ModernBertConfig, ModernBertForMaskedLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("masked")
    config = ModernBertConfig(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=None, cls_token_id=1, sep_token_id=2,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        ModernBertForMaskedLM(config).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(97)}, unk_token="w3"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w3", mask_token="w96").save_pretrained(folder)
    return folder


FEW = ("--new-tokens", "16", "--block", "8")


def test_a_prompt_s_text_is_printed_with_what_it_took(run, masked_dir, tmp_path):
    printed = run(
        "generate", masked_dir, "--prompt", "w7 w8 w9", *FEW, "--steps-table", "steps.csv", "--plot", "steps.svg"
    ).stdout
    assert len(re.findall(r"\bw\d+\b", printed.splitlines()[0])) == 16
    assert re.search(r"^full +4 +19 +100\.0%", printed, re.MULTILINE)
    assert "Written: steps.csv, steps.svg" in printed
    table = read_table(tmp_path / "steps.csv", {"step": "integer", "mlp_rows": "integer"})
    assert len(table) == 2 * 16  # two blocks, a token a step
    assert (tmp_path / "steps.svg").stat().st_size > 1000


def test_a_table_of_prompts_is_answered_row_by_row(run, masked_dir, tmp_path):
    (tmp_path / "in.csv").write_text("text\nw7 w8\nw9\n", encoding="utf-8")
    printed = run(
        "generate", masked_dir, "--prompts", "in.csv", "--column", "text", "-o", "out/answers.csv", *FEW
    ).stdout
    assert printed.startswith("2 prompts, 32 tokens in ")
    table = read_table(tmp_path / "out" / "answers.csv", {"prompt": "text", "response": "text", "steps": "integer"})
    assert table["prompt"].tolist() == ["w7 w8", "w9"]
    assert table["steps"].tolist() == [16, 16]


def test_tokens_are_counted_as_they_were_written(run, masked_dir, tmp_path):
    """The first token is the end, and the other fifteen are never written."""
    import shutil

    from transformers import AutoModelForMaskedLM, AutoTokenizer

    ending = tmp_path / "ending"
    shutil.copytree(masked_dir, ending)
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(ending), AutoTokenizer.from_pretrained(ending)
    with torch.no_grad():
        model.decoder.bias[5] = 1000.0
    model.save_pretrained(ending)
    tokenizer.eos_token = "w5"
    tokenizer.save_pretrained(ending)
    (tmp_path / "in.txt").write_text("w7 w8\nw9\n", encoding="utf-8")
    printed = run(
        "generate", ending, "--prompts", "in.txt", "-o", "out.csv", "--new-tokens", "16", "--block", "1"
    ).stdout
    assert printed.startswith("2 prompts, 2 tokens in ")  # an end token each
    assert read_table("out.csv", {"tokens": "integer"})["tokens"].tolist() == [1, 1]


def test_the_written_text_is_that_of_the_library(run, masked_dir, tmp_path):
    from assay.decode.dyllm import DyLLMGenerator, load_masked_lm

    printed = run("generate", masked_dir, "--prompt", "w7 w8 w9", *FEW, "--tau", "0.9", "--steps", "8").stdout
    model, tokenizer = load_masked_lm(masked_dir)
    generator = DyLLMGenerator(model, tokenizer, tau=0.9, block_size=8)
    ids = generator.generate(torch.tensor([[7, 8, 9]]), max_new_tokens=16, steps=8).sequences[0, 3:]
    assert printed.splitlines()[0] == tokenizer.decode(ids, skip_special_tokens=True)


def test_the_ways_to_decode_are_compared_on_lines_of_text(run, masked_dir, tmp_path):
    (tmp_path / "in.txt").write_text("w7 w8\n\nw9\nw10\n", encoding="utf-8")
    printed = run("compare", masked_dir, "--prompts", "in.txt", "-n", "2", "-o", "out", *FEW).stdout
    assert "2 prompts, tau 0.99" in printed
    modes = read_table(tmp_path / "out" / "modes.csv", {"mode": "text", "agreement": "number"})
    assert modes["mode"].tolist() == ["full", "prefix_cache", "dual_cache", "dllm_cache", "dyllm"]
    assert modes["agreement"].iloc[0] == 1
    assert len(read_table(tmp_path / "out" / "prompts.csv", {"prompt": "integer"})) == 10
    assert (tmp_path / "out" / "modes.png").read_bytes().startswith(b"\x89PNG")


def test_the_help_opens_with_an_example(run):
    assert "Example: `assay use dyllm generate MODEL_DIR --prompt" in " ".join(run("--help").stdout.split())


BAD = {
    "no folder": (("generate", "./none", "-p", "w1"), "./none: no such folder"),
    "no prompt": (("generate", "MODEL"), "there is no prompt; give a file of them by --prompts FILE"),
    "two kinds of prompt": (
        ("generate", "MODEL", "-p", "w1", "--prompts", "in.csv"),
        "--prompt and --prompts exclude each other",
    ),
    "an empty prompt": (("generate", "MODEL", "-p", " "), "the prompt ' ' has no tokens; give some text"),
    "no text file": (("generate", "MODEL", "--prompts", "none.txt"), "none.txt cannot be read as UTF-8 text: "),
    "an empty file": (("compare", "MODEL", "--prompts", "EMPTY"), "empty.txt holds no prompt; write one a line"),
    "a causal model": (
        ("generate", "CAUSAL", "-p", "w1", "--mask-token", "96"),
        "LlamaForCausalLM: DyLLM needs a bidirectional masked diffusion model",
    ),
    "a mask in the prompt": (("generate", "MODEL", "-p", "w1 w96"), "prompt 0 holds the mask token 96"),
    "steps": (
        ("generate", "MODEL", "-p", "w1", "--new-tokens", "16", "--steps", "5"),
        "max_new_tokens=16 is not a multiple of steps=5",
    ),
    "tau": (("generate", "MODEL", "-p", "w1", "--tau", "99"), "tau=99.0: expected a cosine from -1"),
    "no template": (("generate", "MODEL", "-p", "w1", "--chat"), "this tokenizer has no chat template"),
    "device": (("generate", "MODEL", "-p", "w1", "--device", "abacus"), "--device abacus: "),
    "a picture of two": (
        ("generate", "MODEL", "--prompts", "TWO", "--plot", "steps.png"),
        "--steps-table and --plot show one prompt, and there are 2; use --prompt",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_one_sentence(run, masked_dir, model_dir, tmp_path, arguments, message):
    (tmp_path / "empty.txt").write_text("\n", encoding="utf-8")
    (tmp_path / "two.txt").write_text("w1\nw2\n", encoding="utf-8")
    named = {"MODEL": masked_dir, "CAUSAL": model_dir, "EMPTY": "empty.txt", "TWO": "two.txt"}
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        run(*(named.get(argument, argument) for argument in arguments))
