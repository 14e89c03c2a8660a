"""Loading language models from folders, with tiny random ones of the real architecture."""

import hashlib
import json

import pytest

from assay._core.errors import InputError
from assay.models import load_lm

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

WORDS = ["<unk>", "<eos>", "the", "cat", "sat", "on", "mat"]


def save_tiny_lm(folder, **options):
    from tokenizers import Tokenizer, models, pre_tokenizers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    )
    model = transformers.LlamaForCausalLM(config)
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<eos>")
    model.to(options.get("dtype", torch.float32)).save_pretrained(folder)
    fast.save_pretrained(folder)
    return model


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "tiny"
    save_tiny_lm(path)
    return path


def message(*arguments, **options) -> str:
    with pytest.raises(InputError) as caught:
        load_lm(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", [str, lambda path: path])
def test_a_saved_model_comes_back_with_the_same_logits(tmp_path, kind):
    saved = save_tiny_lm(tmp_path / "tiny").eval()
    model, tokenizer = load_lm(kind(tmp_path / "tiny"))
    inputs = tokenizer("the cat sat", return_tensors="pt")
    assert inputs["input_ids"].tolist() == [[2, 3, 4]]
    assert torch.equal(model(**inputs).logits, saved(**inputs).logits)


def test_a_model_is_in_float32_on_the_cpu_in_evaluation_mode(tmp_path):
    save_tiny_lm(tmp_path / "tiny", dtype=torch.bfloat16)
    model, _ = load_lm(tmp_path / "tiny")
    assert {(weight.dtype, weight.device.type) for weight in model.parameters()} == {(torch.float32, "cpu")}
    assert not any(module.training for module in model.modules())


def test_a_folder_may_be_named_from_home(tmp_path, monkeypatch):
    save_tiny_lm(tmp_path / "tiny")
    monkeypatch.setenv("HOME", str(tmp_path))
    load_lm("~/tiny")


def test_a_model_changed_in_place_changes_neither_the_next_one_nor_the_file(folder):
    """The weights are mapped from the file: the map must be private."""
    before = hashlib.sha256((folder / "model.safetensors").read_bytes()).digest()
    first, _ = load_lm(folder)
    second, _ = load_lm(folder)
    original = second.model.embed_tokens.weight.clone()
    with torch.no_grad():
        first.model.embed_tokens.weight.zero_()
    assert torch.equal(second.model.embed_tokens.weight, original)
    assert torch.equal(load_lm(folder)[0].model.embed_tokens.weight, original)
    assert hashlib.sha256((folder / "model.safetensors").read_bytes()).digest() == before


def test_a_model_draws_no_progress_bar(folder, capfd):
    load_lm(folder)
    written = capfd.readouterr()
    assert (written.out, written.err) == ("", "")


@pytest.mark.parametrize("was_on", [True, False])
def test_the_progress_bars_of_others_are_as_they_were(folder, was_on):
    logging = transformers.utils.logging
    (logging.enable_progress_bar if was_on else logging.disable_progress_bar)()
    try:
        load_lm(folder)
        assert logging.is_progress_bar_enabled() is was_on
    finally:
        logging.enable_progress_bar()


def test_a_folder_that_is_not_there_is_named(tmp_path):
    assert message(tmp_path / "no") == f"{tmp_path / 'no'}: no such folder"
    assert message("./no") == "./no: no such folder"


def test_an_id_that_is_not_in_the_local_cache_says_how_to_get_it():
    text = message("nobody/no-such-model")
    assert text == (
        "nobody/no-such-model is neither a folder nor a model in the local Hugging Face cache: "
        "run hf download nobody/no-such-model"
    )


def test_a_folder_without_a_configuration_is_no_model(tmp_path):
    assert message(tmp_path) == f"{tmp_path} holds no config.json, so it is not the folder of a Hugging Face model"


def test_pickled_weights_are_not_opened(folder):
    class Evil:
        def __reduce__(self):
            return (pytest.fail, ("the pickle was opened",))

    (folder / "model.safetensors").unlink()
    torch.save(Evil(), folder / "pytorch_model.bin")
    assert message(folder) == f"{folder} holds no *.safetensors; save the model again with save_pretrained"


def test_safetensors_are_read_even_where_pickled_weights_lie_beside_them(folder):
    (folder / "pytorch_model.bin").write_bytes(b"not a model")
    load_lm(folder)


def test_code_that_comes_with_a_model_is_not_run(folder):
    config = json.loads((folder / "config.json").read_text())
    config.update(model_type="evil", auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"})
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text("raise SystemExit('the code was run')")
    assert message(folder).startswith(f"{folder} cannot be loaded as a causal language model: ")


def test_an_encoder_is_no_causal_language_model(folder, tmp_path):
    config = transformers.ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    transformers.ViTModel(config).save_pretrained(tmp_path / "vit")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "vit" / file).write_bytes((folder / file).read_bytes())
    assert message(tmp_path / "vit").startswith(f"{tmp_path / 'vit'} cannot be loaded as a causal language model: ")


def test_a_model_that_lacks_weights_is_refused_rather_than_filled_with_random_ones(folder):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    expected = f"{folder} lacks weights that a causal language model has, such as lm_head.weight"
    assert message(folder) == expected


def test_weights_that_were_cut_off_are_refused(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert message(folder).startswith(f"{folder} cannot be loaded as a causal language model: ")


def test_a_folder_without_a_tokenizer_is_refused(folder):
    for file in folder.glob("tokenizer*"):
        file.unlink()
    assert message(folder).startswith(f"{folder} cannot be loaded as a causal language model: ")
