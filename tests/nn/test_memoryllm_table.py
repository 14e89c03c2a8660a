"""Tables on disk: their bytes and errors, decoding from them, and tables that belong to another model."""

import copy
import json
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from assay._core.errors import InputError
from assay.nn.memoryllm import MappedTable, MemoryLlamaConfig, MemoryLlamaForCausalLM, export_tol, load_with_tol
from assay.nn.memoryllm.numbers import best_basis, dequantise, quantise, table_bytes

V, D, N = 61, 24, 3
SHAPE = {
    "vocab_size": V, "hidden_size": D, "intermediate_size": 64, "num_hidden_layers": N, "num_attention_heads": 4,
    "bos_token_id": 1, "eos_token_id": None, "pad_token_id": None, "max_position_embeddings": 64,
}  # fmt: skip


pytestmark = pytest.mark.usefixtures("one_thread")


def made(seed=0, **options):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return MemoryLlamaForCausalLM(MemoryLlamaConfig(**{**SHAPE, **options})).eval()


def ids(*shape, seed=0):
    return torch.randint(V, shape, generator=torch.Generator().manual_seed(seed))


def rows_of(model):
    """FFN_L(LN_L(E[t])) written out, (V, N, D) float64; the norms weigh 1 at the start."""
    table = []
    x = model.model.embed_tokens.weight.double()
    x = x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
    for layer in model.model.layers:
        up, gate, down = (getattr(layer.memory, f"{name}_proj").weight.double() for name in ("up", "gate", "down"))
        table.append((x @ up.T * torch.nn.functional.silu(x @ gate.T)) @ down.T)
    return torch.stack(table, dim=1).detach().numpy()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A MemoryLLM and its tables."""
    place = tmp_path_factory.mktemp("memory")
    model = made()
    model.save_pretrained(place / "model")
    for dtype in ("float32", "float16", "int8", "int4"):
        export_tol(model, place / dtype, dtype)
    return place


# ------------------------------------------------------------------------------------------------------- numbers

ROWS = arrays(np.float32, (3, 8), elements=st.floats(-1000, 1000, width=32, allow_subnormal=False))


@given(ROWS)
@pytest.mark.parametrize(("dtype", "steps"), [("int8", 254), ("int4", 14)])
def test_an_entry_is_off_by_half_a_step_at_most(dtype, steps, rows):
    """absmax/254 or absmax/14; float32 rounds the scale and the product, an ulp of absmax each."""
    codes, scales = quantise(rows, dtype)
    found = dequantise(codes, scales, dtype)
    absmax = np.abs(rows).max(axis=-1, keepdims=True)
    assert (np.abs(found - rows) <= absmax / steps + 4 * np.finfo(np.float32).eps * absmax + 1e-37).all()


def test_the_largest_entry_of_a_row_is_kept():
    rows = np.array([[0.3, -5.0, 2.0, 0.0]], dtype=np.float32)
    for dtype in ("int8", "int4"):
        assert dequantise(*quantise(rows, dtype), dtype)[0, 1] == pytest.approx(-5.0, rel=1e-6)


def test_two_int4_codes_share_a_byte():
    codes, scales = quantise(np.array([[7.0, -7.0, 1.0, 0.0]], dtype=np.float32), "int4")
    assert codes.tolist() == [[15 + 16 * 1, 9 + 16 * 8]]  # 7 + 8, -7 + 8; 1 + 8, 0 + 8
    assert scales.tolist() == [1.0]


def test_a_row_of_zeros_stays_zero():
    zeros = np.zeros((2, 4), dtype=np.float32)
    for dtype in ("int8", "int4"):
        assert (dequantise(*quantise(zeros, dtype), dtype) == 0).all()


def test_low_rank_is_the_nearest_by_the_singular_values():
    """Eckart and Young: what is lost is the sum of the squares of the singular values left out."""
    table = np.random.default_rng(0).normal(size=(50, 8))
    basis = best_basis(table.T @ table, 3)
    lost = table - (table @ basis.T) @ basis
    singular = np.linalg.svd(table, compute_uv=False)
    assert (lost**2).sum() == pytest.approx((singular[3:] ** 2).sum(), rel=1e-5)


def test_bytes_of_the_real_shape_are_the_card_s():
    shape = (128_256, 24, 2048)
    assert table_bytes(*shape, "float16") == 12_608_077_824
    assert table_bytes(*shape, "int8") == 12_608_077_824 // 2 + 128_256 * 24 * 4
    assert table_bytes(*shape, "float16", 512) == 2 * 128_256 * 24 * 512 + 4 * 24 * 512 * 2048


# ------------------------------------------------------------------------------------------------------- the files


def test_a_row_is_what_the_memories_add_for_its_token(folder):
    table = np.load(folder / "float32" / "table.npy")
    assert table.shape == (V, N, D)
    assert table.flags.c_contiguous  # all layers of a token are one read
    assert table == pytest.approx(rows_of(made()), abs=1e-6)


@pytest.mark.parametrize(("dtype", "n_bytes"), [("float32", 4.0), ("float16", 2.0), ("int8", 1.0), ("int4", 0.5)])
def test_a_table_has_v_n_d_entries_and_a_scale_a_row_if_integer(folder, dtype, n_bytes):
    scales = 4 * V * N if dtype.startswith("int") else 0
    manifest = json.loads((folder / dtype / "manifest.json").read_text())
    assert manifest["n_bytes"] == V * N * D * n_bytes + scales
    kept = [np.load(path) for path in (folder / dtype).glob("*.npy")]
    assert sum(part.nbytes for part in kept) == manifest["n_bytes"]


@pytest.mark.parametrize(("dtype", "steps"), [("int8", 254), ("int4", 14)])
def test_rows_of_integers_keep_within_their_bound(folder, dtype, steps):
    exact = rows_of(made())
    found = MappedTable(folder / dtype).rows(torch.arange(V)[None]).added.numpy()
    absmax = np.abs(exact).max(axis=-1, keepdims=True)
    assert (np.abs(found - exact) <= absmax / steps + 1e-6 * absmax).all()


def test_full_rank_gives_the_table_again(tmp_path):
    model = made()
    export_tol(model, tmp_path / "table", "float32", rank=D)
    found = MappedTable(tmp_path / "table").rows(torch.arange(V)[None]).added.numpy()
    assert found == pytest.approx(rows_of(model), abs=1e-4)


def test_low_rank_has_v_plus_d_times_r_numbers_a_layer(tmp_path):
    export_tol(made(), tmp_path / "table", "float32", rank=5)
    kept = [np.load(path).size for path in (tmp_path / "table").glob("*.npy")]
    assert sum(kept) == N * (V + D) * 5


def test_a_bfloat16_model_is_tabulated_in_float32(tmp_path):
    half = made().to(torch.bfloat16)
    export_tol(half, tmp_path / "table", "float32")
    assert half.model.layers[0].memory.up_proj.weight.dtype == torch.bfloat16
    assert np.load(tmp_path / "table" / "table.npy") == pytest.approx(rows_of(half.float()), abs=1e-6)


def test_an_interrupted_export_leaves_nothing(tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("assay.nn.memoryllm.export.memory_rows", stop)
    with pytest.raises(KeyboardInterrupt):
        export_tol(made(), tmp_path / "table")
    assert list(tmp_path.iterdir()) == []


# -------------------------------------------------------------------------------------------------------- decoding


@pytest.mark.parametrize("beta", [0, 1, 3])
def test_a_table_stands_for_the_memories(beta, tmp_path):
    model = made(ffn_beta=beta)
    model.save_pretrained(tmp_path / "model")
    export_tol(model, tmp_path / "table", "float32")
    mapped = load_with_tol(tmp_path / "model", tmp_path / "table")
    assert torch.allclose(mapped(ids(2, 9)).logits, model(ids(2, 9)).logits, atol=1e-5)
    options = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(mapped.generate(ids(2, 5), **options), model.generate(ids(2, 5), **options))


def test_memories_are_not_loaded_with_a_table(folder):
    mapped = load_with_tol(folder / "model", folder / "int8")
    assert not [name for name, _ in mapped.named_parameters() if "memory" in name]
    assert mapped.active_parameters() == made().active_parameters() == N * 4 * D * D


def test_generation_from_a_table_with_the_cache_is_generation_without(folder):
    mapped = load_with_tol(folder / "model", folder / "float16")
    with_cache, without = (
        mapped.generate(ids(2, 5), max_new_tokens=10, do_sample=False, use_cache=use, pad_token_id=0)
        for use in (True, False)
    )
    assert torch.equal(with_cache, without)


def test_padding_on_the_left_changes_nothing_with_a_table(folder):
    mapped, tokens = load_with_tol(folder / "model", folder / "float16"), ids(1, 5)
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), tokens], dim=1)
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])
    options = {"max_new_tokens": 10, "do_sample": False, "pad_token_id": 0}
    found = mapped.generate(padded, attention_mask=mask, **options)
    expected = mapped.generate(tokens, attention_mask=torch.ones_like(tokens), **options)
    assert torch.equal(found[:, 3:], expected)


def test_alpha_and_dropped_layers_mean_the_same_with_a_table(folder):
    model, mapped = made(), load_with_tol(folder / "model", folder / "float32")
    for changed in (model, mapped):
        changed.set_alpha(0.7)
        changed.drop_layers([1])
    assert torch.allclose(mapped(ids(1, 6)).logits, model(ids(1, 6)).logits, atol=1e-5)


def test_a_table_without_a_layer_is_the_model_with_it_dropped(folder, tmp_path):
    model = made()
    export_tol(model, tmp_path / "table", "float32", layers=[2, 0])
    model.drop_layers([1])
    mapped = load_with_tol(folder / "model", tmp_path / "table")
    assert torch.allclose(mapped(ids(1, 6)).logits, model(ids(1, 6)).logits, atol=1e-5)


def test_a_model_saved_in_bfloat16_finds_its_table(tmp_path):
    half = made().to(torch.bfloat16)
    half.save_pretrained(tmp_path / "model")
    export_tol(half.float(), tmp_path / "table")  # the same numbers: as read by a loader that makes them float32
    assert load_with_tol(tmp_path / "model", tmp_path / "table")(ids(1, 4)).logits.dtype == torch.bfloat16


@pytest.mark.parametrize("resident", [0, 7, [3, 60, 5], V], ids=["none", "some", "named", "all"])
@pytest.mark.parametrize("dtype", ["float16", "int4"])
def test_rows_that_are_kept_in_memory_are_the_mapped_ones(folder, dtype, resident):
    tokens = ids(2, 30)
    expected = MappedTable(folder / dtype).rows(tokens).of_layer(1)
    assert torch.equal(MappedTable(folder / dtype, resident).rows(tokens).of_layer(1), expected)


def test_only_distinct_tokens_are_gathered_and_counted(folder):
    table = MappedTable(folder / "float16", [4])
    table.rows(torch.tensor([[4, 4, 9, 4], [9, 9, 30, 30]]))
    stats = table.stats()
    assert (stats.n_tokens, stats.n_rows, stats.n_resident) == (8, 3, 1)
    assert stats.resident_bytes == N * D * 2
    assert stats.mapped_bytes == V * N * D * 2
    assert stats.disk_bytes == sum(path.stat().st_size for path in (folder / "float16").iterdir())
    assert "rows gathered 3, of them kept in memory 33%" in stats.summary()


def test_a_table_pickles_and_copies_as_its_path(folder):
    table = MappedTable(folder / "int8", 5)
    for again in (pickle.loads(pickle.dumps(table)), copy.deepcopy(table)):
        assert len(pickle.dumps(table)) < 1000
        assert torch.equal(again.rows(ids(1, 9)).added, table.rows(ids(1, 9)).added)


# ------------------------------------------------------------------------------------------------------- bad input


def refused(message, call, *arguments, **options):
    with pytest.raises(InputError, match=f"^{message}$"):
        call(*arguments, **options)


def test_an_id_beyond_the_table_is_refused(folder):
    refused(
        "the table has 61 rows, got id 61: the tokenizer has grown since it was exported",
        load_with_tol(folder / "model", folder / "int8"), torch.tensor([[3, 61]]),
    )  # fmt: skip


def test_a_negative_id_is_refused(folder):
    refused(
        "the table has 61 rows, got id -1: expected 0 to 60",
        load_with_tol(folder / "model", folder / "int8"), torch.tensor([[3, -1]]),
    )  # fmt: skip


def test_a_grown_vocabulary_is_refused(folder, tmp_path):
    grown = made()
    grown.resize_token_embeddings(V + 3, mean_resizing=False)
    grown.save_pretrained(tmp_path)
    refused(
        r"\S+ is of 61 tokens and width 24, and \S+ has 64 tokens and width 24: it was exported from another model, or "
        r"the vocabulary has grown; export it anew",
        load_with_tol, tmp_path, folder / "int8",
    )  # fmt: skip


@pytest.mark.parametrize(
    "name", ["embed_tokens.weight", "layers.1.memory_norm.weight", "layers.2.memory.gate_proj.weight"]
)
def test_weights_that_changed_after_the_export_are_refused(folder, name, tmp_path):
    changed = made()
    with torch.no_grad():
        changed.get_parameter(f"model.{name}").view(-1)[0] += 1e-3
    changed.save_pretrained(tmp_path)
    refused(
        r"the weights of \S+ are not those that \S+ was exported from; export it anew",
        load_with_tol, tmp_path, folder / "int8",
    )  # fmt: skip


def test_weights_that_the_table_does_not_depend_on_may_change(folder, tmp_path):
    changed = made()
    with torch.no_grad():
        changed.model.layers[0].self_attn.q_proj.weight.mul_(2)
    changed.save_pretrained(tmp_path)
    assert torch.allclose(
        load_with_tol(tmp_path, folder / "float32")(ids(1, 5)).logits, changed(ids(1, 5)).logits, atol=1e-5
    )


def test_an_embedding_that_is_trained_makes_the_table_stale(folder):
    mapped = load_with_tol(folder / "model", folder / "float32")
    optimizer = torch.optim.SGD(mapped.parameters(), lr=0.1)
    mapped(ids(1, 6), labels=ids(1, 6)).loss.backward()
    optimizer.step()
    refused("the embedding was changed after the table was exported: export it anew, or freeze it", mapped, ids(1, 6))


def test_an_embedding_that_was_changed_before_the_first_call_makes_the_table_stale(folder):
    mapped = load_with_tol(folder / "model", folder / "float32")
    with torch.no_grad():
        mapped.model.embed_tokens.weight[3] += 1e-3
    refused("the embedding was changed after the table was exported: export it anew, or freeze it", mapped, ids(1, 6))


@pytest.mark.parametrize("is_copied", [False, True])
def test_another_embedding_in_its_place_makes_the_table_stale(folder, is_copied):
    mapped = load_with_tol(folder / "model", folder / "float32")
    mapped(ids(1, 6))
    mapped = copy.deepcopy(mapped) if is_copied else mapped
    mapped.model.embed_tokens.weight = torch.nn.Parameter(mapped.model.embed_tokens.weight + 1e-3)
    refused("the embedding was changed after the table was exported: export it anew, or freeze it", mapped, ids(1, 6))


def test_the_same_numbers_in_another_tensor_are_no_change(folder):
    mapped = load_with_tol(folder / "model", folder / "float32")
    expected = mapped(ids(1, 6)).logits
    mapped.load_state_dict(mapped.state_dict())  # copied in place: torch counts a change
    assert torch.equal(mapped(ids(1, 6)).logits, expected)
    again = copy.deepcopy(mapped)
    again.model.embed_tokens.weight = torch.nn.Parameter(mapped.model.embed_tokens.weight.detach().clone())
    assert torch.equal(again(ids(1, 6)).logits, expected)


def test_an_adapter_on_the_embedding_makes_the_table_stale(folder):
    peft = pytest.importorskip("peft")
    mapped = load_with_tol(folder / "model", folder / "float32")
    adapted = peft.get_peft_model(mapped, peft.LoraConfig(target_modules=["embed_tokens"]))
    refused(
        "the embedding is Embedding: with an adapter on it the table is stale; adapt other layers, or merge and "
        "export anew",
        adapted, ids(1, 6),
    )  # fmt: skip


def test_an_adapter_on_attention_works_with_a_table(folder):
    peft = pytest.importorskip("peft")
    mapped = load_with_tol(folder / "model", folder / "float32")
    adapted = peft.get_peft_model(mapped, peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    merged = peft.get_peft_model(made(), peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    merged.load_state_dict({n: w for n, w in adapted.state_dict().items() if "lora" in n}, strict=False)
    assert torch.allclose(adapted(ids(1, 6)).logits, merged(ids(1, 6)).logits, atol=1e-5)


def test_a_folder_with_an_adapter_is_refused(folder, tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    refused(
        r"\S+ holds an adapter, and the table is of the model below it: merge and export anew",
        load_with_tol, tmp_path, folder / "int8",
    )  # fmt: skip


def test_a_model_with_an_adapter_is_not_exported(tmp_path):
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(made(), peft.LoraConfig(target_modules=["up_proj"]))
    refused(
        r"PeftModel carries an adapter: merge it first \(merge_and_unload\), then export the table anew",
        export_tol, adapted, tmp_path / "table",
    )  # fmt: skip
    refused(
        r"layers.0.memory.up_proj is Linear of peft.tuners.lora.layer, not torch's own: merge adapters and undo "
        r"replacements before the export",
        export_tol, adapted.get_base_model(), tmp_path / "table",
    )  # fmt: skip
    export_tol(adapted.merge_and_unload(), tmp_path / "table")


def test_a_dense_model_cannot_be_tabulated(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    message = "{} is dense: its FFN depends on context and cannot be tabulated; train a model with ffn_beta below 8"
    refused(message.format("MemoryLlamaForCausalLM"), export_tol, made(ffn_beta="base"), tmp_path / "table")
    llama = LlamaForCausalLM(LlamaConfig(**SHAPE))
    refused(message.format("LlamaForCausalLM"), export_tol, llama, tmp_path / "table")


def test_int4_needs_an_even_width(tmp_path):
    odd = made(hidden_size=21, num_attention_heads=1, head_dim=8)
    message = "dtype='int4' puts two numbers into a byte, and rows have an odd width of {}; use int8"
    refused(message.format(21), export_tol, odd, tmp_path / "table", "int4")
    refused(message.format(5), export_tol, made(), tmp_path / "table", "int4", rank=5)


def test_entries_beyond_float16_are_refused(tmp_path):
    large = made()
    with torch.no_grad():
        large.model.layers[1].memory.down_proj.weight.mul_(1e9)
    refused("layer 1 has entries beyond float16; use dtype='float32' or 'int8'", export_tol, large, tmp_path / "table")
    export_tol(large, tmp_path / "table", "int8")


EXPORT = {
    "dtype": ({"dtype": "int2"}, "dtype='int2' is not one of float16, float32, int8, int4"),
    "rank": ({"rank": 25}, "rank=25: expected 1 to 24, the hidden size"),
    "layers": ({"layers": [0, 3]}, r"layers=\[0, 3\]: expected different numbers from 0 to 2, at least one"),
    "twice": ({"layers": [0, 0]}, r"layers=\[0, 0\]: expected different numbers from 0 to 2, at least one"),
}


@pytest.mark.parametrize(("options", "message"), EXPORT.values(), ids=EXPORT)
def test_an_export_out_of_range_is_refused(options, message, tmp_path):
    refused(message, export_tol, made(), tmp_path / "table", **options)


def test_a_folder_in_use_is_not_written_to(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    refused(r"\S+ is there already; give the name of a new or empty folder", export_tol, made(), tmp_path)


def test_a_folder_without_a_manifest_is_no_table(folder):
    refused(r"\S+ holds no manifest.json, so it is no table; write one with export_tol", MappedTable, folder / "model")


def test_a_manifest_that_does_not_fit_its_files_is_refused(folder, tmp_path):
    for path in (folder / "int8").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | {"n_tokens": 60}))
    refused(r"\S+: its files do not fit its manifest.json; export the table anew", MappedTable, tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | {"dtype": "float8"}))
    refused(r"\S+ is not of the form that this version writes; export the table anew", MappedTable, tmp_path)


def test_a_table_of_pickles_is_not_opened(folder, tmp_path):
    (tmp_path / "manifest.json").write_bytes((folder / "float32" / "manifest.json").read_bytes())
    np.save(tmp_path / "table.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match=r"table\.npy cannot be read: "):
        MappedTable(tmp_path)


def test_too_many_resident_rows_are_refused(folder):
    refused("resident_tokens=62: expected 0 to 61, the rows of the table", MappedTable, folder / "int8", 62)
    refused("resident_tokens: the table has 61 rows, got id 70", MappedTable, folder / "int8", [1, 70])
    refused("resident_tokens: the table has 61 rows, got id -1", MappedTable, folder / "int8", [3, -1])


def test_another_tokenizer_is_refused(folder, tmp_path):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    def words(n, first="w"):
        backend = Tokenizer(models.WordLevel({f"{first}{i}": i for i in range(n)}, unk_token=f"{first}0"))
        return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token=f"{first}0")

    model = made()
    export_tol(model, tmp_path / "table", tokenizer=words(V))
    model.save_pretrained(tmp_path / "model")
    words(V).save_pretrained(tmp_path / "model")
    load_with_tol(tmp_path / "model", tmp_path / "table")
    words(V, "other").save_pretrained(tmp_path / "model")
    refused(
        r"the tokenizer of \S+ is not the one that \S+ was exported with; export it anew",
        load_with_tol, tmp_path / "model", tmp_path / "table",
    )  # fmt: skip
    words(V + 2).save_pretrained(tmp_path / "model")
    refused(
        r"the table has 61 rows, got a tokenizer of 63 tokens in \S+: export it anew",
        load_with_tol, tmp_path / "model", tmp_path / "table",
    )  # fmt: skip


def test_another_kind_of_model_is_refused(folder, model_dir):
    refused(r"\S+ is a model of type 'llama'; expected a MemoryLLM", load_with_tol, model_dir, folder / "int8")


def test_a_model_with_a_table_takes_no_embeddings_and_cannot_be_saved(folder, tmp_path):
    mapped = load_with_tol(folder / "model", folder / "int8")
    refused(
        "this model looks its feed-forward outputs up by token: pass input_ids, not embeddings",
        mapped, inputs_embeds=torch.zeros(1, 3, D),
    )  # fmt: skip
    refused(
        "a model with a table holds no memories to save; save the model that the table came from",
        mapped.save_pretrained, tmp_path,
    )  # fmt: skip
    refused(
        "MappedMemoryLlama has a table in place of its memories; export from the model that the table came from",
        export_tol, mapped, tmp_path / "again",
    )  # fmt: skip
