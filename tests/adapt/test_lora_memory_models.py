"""LoRA memory on tiny models of four architectures: what is written is read, and nothing else changes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from lora_memory_models import CONFIGS, LLAMA_LIKE, TEMPLATE, facts, fast, logits, memory_of, tiny, words
from peft import PeftModel
from transformers import AutoModelForCausalLM, LlamaConfig

from assay._core.errors import InputError
from assay.adapt.lora_memory import (
    Document,
    Fact,
    LoRAMemory,
    WriteConfig,
    audit,
    capacity_sweep,
    compare,
    efficacy,
    merge_adapters,
    merge_sweep,
    partition,
    recalled,
)
from assay.adapt.lora_memory.merge import delta_of, lora_layers
from assay.adapt.lora_memory.read import answers, answers_sharing
from assay.adapt.lora_memory.store import fingerprint


@pytest.fixture(scope="module")
def written():
    """Two modules of eight facts on a tiny Llama; tests leave it as they found it."""
    memory = memory_of(tiny())
    memory.write_many([facts(8), facts(8, 8)], fast())
    return memory


@pytest.fixture
def base():
    return logits(tiny())


def layers_of(memory):
    return lora_layers(memory.model, next(iter(memory.modules)))


# ------------------------------------------------------------------------------------------------------ write and read


@pytest.mark.parametrize("name", CONFIGS)
def test_a_fact_is_said_after_it_was_written_and_the_model_is_as_before(name):
    model = tiny(name)
    before = logits(model)
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    memory = memory_of(model)
    memory.write(facts(2), "two", fast(n_steps=80))
    said = [trace.answer for trace in memory.ask_many([fact.question for fact in facts(2)], max_new_tokens=4)]
    assert said == [fact.answer for fact in facts(2)]
    assert torch.equal(logits(model), before)
    memory.detach()
    assert torch.equal(logits(model), before)
    assert model.state_dict().keys() == weights.keys()
    assert all(torch.equal(model.state_dict()[key], value) for key, value in weights.items())


def test_a_fresh_module_changes_nothing(written, base):
    memory = memory_of(tiny())
    memory._adapters.add("fresh", r=4, lora_alpha=4, target_modules="all-linear")
    with memory._adapters.on("fresh"):
        assert torch.equal(logits(memory.model), base)


def test_only_the_factors_are_trained_and_there_are_rank_times_the_widths_of_them():
    model = tiny()
    widths = sum(
        sum(layer.weight.shape)
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear) and name != "lm_head"
    )
    memory = memory_of(model, rank=3)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    memory.write(facts(4), "m", fast(n_steps=3))
    assert memory.modules["m"].n_parameters == 3 * widths
    after = {name.replace(".base_layer", ""): weight for name, weight in model.named_parameters() if "lora" not in name}
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) and after[name].grad is None for name in before)


def test_alpha_equal_to_rank_changes_a_layer_by_ba_and_twice_the_alpha_by_twice_that():
    for alpha, factor in ((None, 1.0), (8.0, 2.0)):
        memory = memory_of(tiny(), alpha=alpha)
        memory.write(facts(4), "m", fast(n_steps=3))
        for layer in layers_of(memory).values():
            product = layer.lora_B["m"].weight @ layer.lora_A["m"].weight
            assert torch.allclose(delta_of(layer, "m"), factor * product)


def test_a_module_reads_nothing_of_what_another_one_holds(written):
    found = audit(written, facts(16))
    assert found.facts["from_another"].sum() == 0
    assert found.facts["from_base"].sum() == 0
    assert found.facts["from_its_module"].mean() > 0.9


def test_the_same_seed_writes_the_same_module():
    said = []
    for _ in range(2):
        memory = memory_of(tiny(), dropout=0.1)
        memory.write(facts(4), "m", fast(n_steps=5))
        said.append(next(iter(layers_of(memory).values())).lora_B["m"].weight.clone())
    assert torch.equal(*said)


def test_writing_one_module_leaves_the_others_as_they_are():
    memory = memory_of(tiny())
    memory.write(facts(4), "a", fast(n_steps=5))
    before = [delta_of(layer, "a").clone() for layer in layers_of(memory).values()]
    memory.write(facts(4, 4), "b", fast(n_steps=5))
    assert all(torch.equal(x, delta_of(y, "a")) for x, y in zip(before, layers_of(memory).values(), strict=True))


def test_documents_are_written_by_recipe():
    memory = memory_of(tiny())
    text = "v1 v2 v3 v4 v5 v6. v7 v8 v9 v10 v11 v12."
    memory.write([Document("v0", text)], "d", WriteConfig("raw+qa", n_steps=2))
    assert memory.modules["d"].n_samples == 3
    assert memory.modules["d"].questions[0] == "v0"


def test_gradient_checkpointing_writes_the_same_module():
    deltas = []
    for is_on in (False, True):
        memory = memory_of(tiny())
        memory.write(facts(4), "m", fast(n_steps=3, gradient_checkpointing=is_on))
        deltas.append(torch.cat([delta_of(layer, "m").flatten() for layer in layers_of(memory).values()]))
    assert torch.allclose(*deltas, atol=1e-5)


def test_distillation_brings_the_student_nearer_to_the_teacher_that_reads_the_context():
    memory = memory_of(tiny())
    name = memory.write(
        facts(4), "m", fast(n_steps=25, learning_rate=1e-2, distill="kl_only"), context="v20 v21 v22 v23"
    )
    first = memory_of(tiny())
    start = first.write(facts(4), "m", fast(n_steps=1, warmup_ratio=0.0, distill="kl_only"), context="v20 v21 v22 v23")
    assert memory.modules[name].loss < 0.7 * first.modules[start].loss


# ------------------------------------------------------------------------------------------------------------ decoding


def test_left_padding_changes_no_answer(written):
    asked = [fact.question for fact in facts(8)] + ["v1", "v1 v2 v3 v4 v5"]
    together = written.ask_many(asked, modules=[("m000",)] * 10, max_new_tokens=4)
    alone = [written.ask_many([q], modules=[("m000",)], max_new_tokens=4)[0] for q in asked]
    assert [trace.answer for trace in together] == [trace.answer for trace in alone]


def test_answers_come_in_the_order_of_the_questions_whatever_their_modules(written):
    order = [3, 12, 0, 9, 7, 15]
    chosen = [facts(16)[row] for row in order]
    traces = written.ask_many([fact.question for fact in chosen], max_new_tokens=4)
    assert sum(recalled(t.answer, fact.answer) for t, fact in zip(traces, chosen, strict=True)) >= 5
    assert [t.modules[0][0] for t in traces] == [f"m{row // 8:03d}" for row in order]


def test_the_key_value_cache_changes_no_answer(written):
    asked = [fact.question for fact in facts(4)]
    with_cache = [written.ask(q, max_new_tokens=4, use_cache=True) for q in asked]
    assert with_cache == [written.ask(q, max_new_tokens=4, use_cache=False) for q in asked]


def test_beams_and_sampling_work(written):
    fact = facts(1)[0]
    assert written.ask(fact.question, num_beams=3, max_new_tokens=4) == fact.answer
    torch.manual_seed(0)
    assert written.ask(fact.question, do_sample=True, temperature=1e-3, max_new_tokens=4) == fact.answer


def test_generate_answers_each_row_by_its_own_module(written):
    chosen = [facts(16)[row] for row in (0, 9)]
    ids = torch.tensor([written.style.prompt(fact.question) for fact in chosen])
    output = written.generate(ids, max_new_tokens=4, do_sample=False)
    said = [written.tokenizer.decode(row[2:], skip_special_tokens=True) for row in output]
    assert said == [fact.answer for fact in chosen]


def test_a_beginning_that_is_read_once_changes_no_answer():
    model, tokenizer = tiny(), words()
    prompts = [[*range(20), 3, 4], [*range(20), 7], [*range(20), 9, 8, 7]]
    shared = answers_sharing(model, tokenizer, prompts, max_new_tokens=5)
    assert shared == answers(model, tokenizer, prompts, max_new_tokens=5)


def test_a_context_and_a_module_work_together(written):
    trace = written.ask(facts(1)[0].question, "v5 v6", return_trace=True, max_new_tokens=2)
    assert trace.n_prompt_tokens > len(written.style.prompt(facts(1)[0].question))


# --------------------------------------------------------------------------------------------------- nothing is left


def test_after_an_answer_of_merged_modules_no_merged_one_is_left(written, base):
    written.top_k = 2
    try:
        written.ask(facts(1)[0].question, max_new_tokens=2)
    finally:
        written.top_k = 1
    assert sorted(written.peft_model.peft_config) == ["m000", "m001"]
    assert torch.equal(logits(written.model), base)


@pytest.mark.parametrize("top_k", [1, 2])
def test_nothing_is_left_where_generation_fails(written, base, monkeypatch, top_k):
    def fail(**options):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(written.model, "generate", fail)
    monkeypatch.setattr(written, "top_k", top_k)
    with pytest.raises(RuntimeError, match="out of memory"):
        written.ask("v1 v2")
    assert sorted(written.peft_model.peft_config) == ["m000", "m001"]
    assert torch.equal(logits(written.model), base)


def test_a_block_within_a_block_gives_back_what_was_switched_on(written):
    with written.using("m000"):
        outer = logits(written.model)
        with written.using("m000", "m001"):
            inner = logits(written.model)
            with written.using():
                assert torch.equal(logits(written.model), logits(tiny()))
            assert torch.equal(logits(written.model), inner)
        assert torch.equal(logits(written.model), outer)
        assert not torch.equal(inner, outer)


@pytest.mark.parametrize("n_before", [0, 1])
def test_nothing_is_left_where_writing_fails(base, n_before):
    model = tiny()
    memory = memory_of(model)
    for number in range(n_before):
        memory.write(facts(4), f"m{number}", fast(n_steps=2))
    with pytest.raises(InputError, match=r"the loss is nan at step \d+; try a learning_rate below 1e\+20"):
        memory.write(facts(4, 4), "bad", fast(learning_rate=1e20))
    assert list(memory.modules) == [f"m{number}" for number in range(n_before)]
    assert torch.equal(logits(model), base)
    assert not model.training
    assert hasattr(model, "peft_config") is bool(n_before)


def test_nothing_is_left_where_the_module_cannot_be_kept(base, tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError("no space left on device")

    memory = memory_of(tiny(), folder=tmp_path)
    memory.write(facts(2), "kept", fast(n_steps=1))
    monkeypatch.setattr("assay.adapt.lora_memory.store.save_adapter", fail)
    with pytest.raises(OSError, match="no space left on device"):
        memory.write(facts(2, 2), "lost", fast(n_steps=1))
    assert list(memory.modules) == list(memory.peft_model.peft_config) == ["kept"]
    assert torch.equal(logits(memory.model), base)


def test_nothing_is_left_where_no_layer_has_the_name(base):
    model = tiny()
    with pytest.raises(InputError, match=r"target_modules=\['nowhere'\]: Target modules"):
        memory_of(model, target_modules=["nowhere"]).write(facts(2))
    assert torch.equal(logits(model), base)
    assert not hasattr(model, "peft_config")


def test_detaching_gives_back_which_weights_may_be_trained():
    model = tiny()
    model.lm_head.weight.requires_grad_(False)
    memory = memory_of(model)
    memory.write(facts(2), "m", fast(n_steps=1))
    memory.detach()
    assert [name for name, weight in model.named_parameters() if not weight.requires_grad] == ["lm_head.weight"]


# --------------------------------------------------------------------------------------------------------------- merge


def merged_deltas(memory, names, method, weights=None, **options):
    merge_adapters(memory.peft_model, names, method, weights, new_name="new", **options)
    try:
        return {place: delta_of(layer, "new").clone() for place, layer in lora_layers(memory.model, "new").items()}
    finally:
        memory.peft_model.delete_adapter("new")
        memory.peft_model.base_model.disable_adapter_layers()


def test_concatenation_is_the_weighted_sum_of_the_products_and_its_rank_the_sum_of_ranks():
    memory = memory_of(tiny(), alpha=6.0)
    memory.write_many([facts(4), facts(4, 4)], fast(n_steps=5))
    found = merged_deltas(memory, ["m000", "m001"], "cat", [0.3, 2.0])
    for place, layer in layers_of(memory).items():
        by_hand = sum(
            w * (6.0 / 4.0) * layer.lora_B[name].weight @ layer.lora_A[name].weight
            for w, name in ((0.3, "m000"), (2.0, "m001"))
        )
        assert torch.allclose(found[place], by_hand, atol=1e-5)
    merge_adapters(memory.peft_model, ["m000", "m001"], "cat", new_name="new")
    assert memory.peft_model.peft_config["new"].r == 8


def test_linear_of_products_is_the_exact_sum_and_that_of_factors_is_not(written):
    exact = merged_deltas(written, ["m000", "m001"], "linear", space="delta")
    factors = merged_deltas(written, ["m000", "m001"], "linear")
    for place, layer in layers_of(written).items():
        mean = 0.5 * (delta_of(layer, "m000") + delta_of(layer, "m001"))
        assert torch.allclose(exact[place], mean, atol=1e-4 * float(mean.abs().max()))
        assert not torch.allclose(factors[place], mean, atol=0.01 * float(mean.abs().max()))


def test_a_smaller_rank_loses_just_the_smaller_singular_values_of_the_sum(written):
    found = merged_deltas(written, ["m000", "m001"], "linear", space="delta", rank=3)
    for place, layer in layers_of(written).items():
        mean = 0.5 * (delta_of(layer, "m000") + delta_of(layer, "m001"))
        lost = torch.linalg.svdvals(mean)[3:].square().sum().sqrt()
        assert float((found[place] - mean).norm()) == pytest.approx(float(lost), rel=1e-3)


def test_an_adapter_less_itself_is_nothing(written):
    for space in ("factors", "delta"):
        found = merged_deltas(written, ["m000", "m000"], "linear", [1.0, -1.0], space=space)
        assert max(float(delta.abs().max()) for delta in found.values()) < 1e-5


def test_ties_of_products_of_full_rank_is_ties_of_the_products(written):
    from assay.adapt.lora_memory.merge import ties

    found = merged_deltas(written, ["m000", "m001"], "ties", space="delta", rank=48)
    for place, layer in layers_of(written).items():
        by_hand = ties([delta_of(layer, "m000"), delta_of(layer, "m001")], [1.0, 1.0])
        assert torch.allclose(found[place], by_hand, atol=1e-4 * float(by_hand.abs().max()))


@pytest.mark.parametrize("space", ["factors", "delta"])
@pytest.mark.parametrize("method", ["linear", "cat", "ties", "dare_linear"])
def test_a_merge_of_one_module_is_that_module(written, method, space):
    found = merged_deltas(written, ["m000"], method, space=space)
    for place, layer in layers_of(written).items():
        assert torch.allclose(found[place], delta_of(layer, "m000"), atol=1e-6)


def test_recall_falls_as_modules_are_merged_with_the_right_one(written):
    frame = merge_sweep(written, facts(16), (1, 2), ("linear", "ties", "cat"), max_new_tokens=4)
    recall = frame.pivot(index="method", columns="n_modules", values="recall")
    assert (recall[1] > recall[2]).all()


# --------------------------------------------------------------------------------------------------------------- store


def test_stock_peft_loads_a_module_with_the_same_logits(written, tmp_path):
    written.save(tmp_path)
    stock = PeftModel.from_pretrained(tiny(), str(tmp_path / "modules" / "m001"))
    with written.using("m001"):
        assert torch.allclose(logits(written.model), logits(stock), atol=1e-5)


def test_a_loaded_memory_gives_the_same_logits_routes_and_answers(written, tmp_path):
    written.save(tmp_path)
    loaded = LoRAMemory.load(tmp_path, tiny(), words())
    assert loaded.modules == written.modules
    questions = [fact.question for fact in facts(16)]
    assert loaded.route_many(questions) == written.route_many(questions)
    assert [t.answer for t in loaded.ask_many(questions)] == [t.answer for t in written.ask_many(questions)]
    with written.using("m000"), loaded.using("m000"):
        assert torch.equal(logits(loaded.model), logits(written.model))


def test_the_same_model_has_the_same_fingerprint_in_half_precision_and_another_one_has_not():
    assert fingerprint(tiny()) == fingerprint(tiny().bfloat16())
    assert fingerprint(tiny()) != fingerprint(tiny(seed=1))


def test_a_folder_is_gone_on_with_and_a_module_that_is_there_is_not_written_again(tmp_path, monkeypatch):
    first = memory_of(tiny(), folder=tmp_path)
    first.write_many([facts(4), facts(4, 4)], fast(n_steps=3))
    again = memory_of(tiny(), folder=tmp_path)
    monkeypatch.setattr("assay.adapt.lora_memory.sector.train", lambda *a, **k: pytest.fail("written again"))
    assert again.write_many([facts(4), facts(4, 4)], fast(n_steps=3)) == ["m000", "m001"]


def test_a_removed_module_is_gone_from_memory_and_folder(tmp_path):
    memory = memory_of(tiny(), folder=tmp_path)
    memory.write_many([facts(2), facts(2, 4)], fast(n_steps=1))
    memory.remove("m000")
    assert list(memory.modules) == ["m001"]
    assert [place.name for place in (tmp_path / "modules").iterdir()] == ["m001"]
    memory.remove("m001")
    assert memory.modules == {}


WRITER = """
import sys
sys.path.insert(0, {tests!r})
from lora_memory_models import facts, fast, memory_of, tiny
memory = memory_of(tiny(), folder={folder!r})
memory.write_many([facts(2, 2 * number) for number in range(30)], fast(n_steps=30))
"""


def test_a_writer_that_is_killed_loses_at_most_the_module_it_was_writing(tmp_path):
    (tmp_path / "memory").mkdir()
    code = WRITER.format(tests=str(Path(__file__).parent), folder=str(tmp_path / "memory"))
    index = tmp_path / "memory" / "index.json"
    writer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 200  # it imports torch on a machine that may be busy
        while not (index.is_file() and len(json.loads(index.read_text())["modules"]) >= 2):
            assert writer.poll() is None, "it ended before it was killed"
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
    n_folders = sum(not place.name.startswith(".") for place in (tmp_path / "memory" / "modules").iterdir())
    memory = memory_of(tiny(), folder=tmp_path / "memory")
    assert 2 <= len(memory.modules) < 30
    assert n_folders - len(memory.modules) <= 1  # an adapter that was there before the index said so
    memory.write_many([facts(2, 2 * number) for number in range(len(memory.modules) + 1)], fast(n_steps=30))
    whole = memory_of(tiny())
    whole.write(facts(2), "m000", fast(n_steps=30))
    for one, other in zip(layers_of(memory).values(), layers_of(whole).values(), strict=True):
        assert torch.allclose(delta_of(one, "m000"), delta_of(other, "m000"), atol=1e-6)


# --------------------------------------------------------------------------------------------------------------- audit


def test_the_audit_tells_recall_routing_and_their_product(written):
    found = audit(written, facts(16))
    frame = found.to_frame()
    assert len(frame) == 16
    assert found.foreseen == pytest.approx(frame["is_routed_right"].mean() * frame["from_its_module"].mean())
    assert frame["recalled"].mean() == pytest.approx(found.foreseen, abs=1e-12)
    assert "recall, read from its own module" in found.summary()
    assert found.plot().get_xlabel() == "share of facts (%)"
    assert list(found.modules()["n_facts"]) == [8, 8]


def test_misrouting_costs_what_the_routing_accuracy_says(written, monkeypatch):
    monkeypatch.setattr(written, "router", lambda question, modules: [1.0, 0.0])  # always the first module
    found = audit(written, facts(16))
    assert found.facts["is_routed_right"].mean() == 0.5
    assert found.facts["recalled"].mean() == pytest.approx(found.foreseen, abs=1e-12)


def test_a_capacity_table_counts_tokens_and_parameters_and_leaves_the_model(base):
    model = tiny()
    found = capacity_sweep(
        model, words(), facts(16), (1, 4), (4, 16), tau=0.9, config=fast(n_steps=30), template=TEMPLATE, dropout=0.0
    )
    assert list(found.cells["tokens"]) == [20, 80, 20, 80]  # two words, two words and the end: five tokens a fact
    assert found.cells["parameters"].nunique() == 2
    ranks = found.ranks().set_index("rank")
    assert ranks["tokens_max"].is_monotonic_increasing
    assert ranks["tokens_per_parameter"].tolist() == pytest.approx((ranks["tokens_max"] / ranks["parameters"]).tolist())
    assert torch.equal(logits(model), base)
    assert "n_facts_max" in found.summary()
    assert found.plot().get_ylabel() == "recall (%)"


def test_a_comparison_has_a_row_for_every_way_to_read(written):
    frame = compare(written, facts(16), ("base", "bm25", "icl"), max_new_tokens=4).set_index("method")
    assert list(frame.index) == ["lora memory", "base", "bm25", "icl"]
    assert frame.loc["lora memory", "recall"] > 0.9
    assert frame.loc["icl", "prompt_tokens"] > frame.loc["bm25", "prompt_tokens"] > frame.loc["base", "prompt_tokens"]
    assert frame.loc["base", "parameters"] == 0


class Words:
    """An encoder that counts words."""

    def encode(self, texts):
        return np.array([[text.split().count(f"v{i}") for i in range(90)] for text in texts], dtype=float)


def test_retrieval_by_meaning_and_one_large_module_are_compared_on_request(written):
    single = memory_of(tiny(), rank=8)
    single.write(facts(16), "all", fast(n_steps=10))
    frame = compare(written, facts(16), ("embedding",), encoder=Words(), single=single, max_new_tokens=4)
    assert list(frame["method"]) == ["lora memory", "one large lora", "embedding"]
    assert frame["parameters"].nunique() == 2  # two modules of rank 4 are as large as one of rank 8


def test_a_router_by_meaning_finds_the_module(written, monkeypatch):
    monkeypatch.setattr(written, "router", "embedding")
    monkeypatch.setattr(written, "encoder", Words())
    (first, score), (_, other) = written.route(facts(16)[12].question, top_k=2)
    assert first == "m001"
    assert score == pytest.approx(1.0)
    assert other < 0.9


def test_efficacy_is_the_share_of_prompts_that_prefer_the_new_target():
    model, tokenizer = tiny(), words()
    one, two = "v1", "v2"
    ids = tokenizer("v5 v6")["input_ids"]
    scores = logits(model, ids)[0, -1]
    prefers_one = bool(scores[1] > scores[2])
    assert efficacy(model, tokenizer, ["v5 v6"], [one], [two]) == float(prefers_one)
    assert efficacy(model, tokenizer, ["v5 v6"] * 2, [one, two], [two, one]) == 0.5


# ----------------------------------------------------------------------------------------------------------- bad input


def renamed_base(folder):
    index = json.loads((folder / "index.json").read_text())
    index["base"] = "0" * 32
    (folder / "index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.write([], "x"), "facts: no facts; expected at least one question with its answer"),
        (lambda m: m.write([("q", "a"), ("q", "b")], "x"), r"cannot hold two answers to one question: 'q' \(a, b\)"),
        (lambda m: m.write([("v1", "")], "x"), "facts, row 1: the question or the answer is empty"),
        (lambda m: m.write([("v1 v2 v3", "v4")], "x", WriteConfig(max_length=3)), "the record 'v1 v2 v3' has 5 tokens"),
        (lambda m: m.write(facts(4, 4), "m000"), "module 'm000' is written already, from other facts"),
        (lambda m: m.write(facts(4), "../x"), r"module id '../x': expected letters, digits, - and _"),
        (lambda m: m.write(facts(4), "x", WriteConfig(distill="all")), "distillation needs both: config.distill and a"),
        (lambda m: m.ask_many(["v1"], modules=[("zz",)]), "there is no module 'zz'; there are m000, m001"),
        (lambda m: m.remove("zz"), "there is no module 'zz'"),
        (lambda m: m.ask_many(["v1"], num_return_sequences=2, num_beams=2), "num_return_sequences is 2, but"),
        (lambda m: m.route("v1", top_k=3), "top_k is 3; expected a number from 1 to 2, the number of modules"),
        (lambda m: m.generate(torch.tensor([[1, 7], [10, 70]]), return_dict_in_generate=True), "needs rows of one"),
        (lambda m: merge_adapters(m.peft_model, ["m000", "zz"], new_name="n"), "there is no module 'zz'"),
        (lambda m: merge_adapters(m.peft_model, [], new_name="n"), "no adapters to merge; name at least one"),
        (lambda m: merge_adapters(m.peft_model, ["m000"], "mean", new_name="n"), "merge is 'mean'; expected one of"),
        (lambda m: merge_adapters(m.peft_model, ["m000"], "ties", density=0, new_name="n"), "density is 0; expected a"),
        (lambda m: merge_adapters(m.peft_model, ["m000"], weights=[1, 2], new_name="n"), "2 weights for 1 adapters"),
        (lambda m: merge_adapters(m.peft_model, ["m000"], space="x", new_name="n"), "space is 'x'; expected 'factors'"),
        (lambda m: audit(m, [("v88 v89", "v1")]), "1 of 1 facts were not written into this memory, such as 'v88 v89'"),
        (lambda m: merge_sweep(m, facts(4), (3,)), r"n_modules is \(3,\); expected numbers from 1 to 2"),
        (lambda m: compare(m, facts(4), ("faiss",)), "baseline 'faiss': expected some of base, bm25, embedding, icl"),
        (lambda m: compare(m, facts(4), ("embedding",)), "the baseline 'embedding' needs an encoder"),
        (lambda m: memory_of(m.model), "the model has LoRA layers already; detach or merge them"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_with_a_sentence(written, call, message):
    with pytest.raises(InputError, match=message):
        call(written)
    assert sorted(written.peft_model.peft_config) == ["m000", "m001"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "rank is 0; expected 1 or more"),
        ({"dropout": 1.0}, "dropout is 1.0; expected a share from 0 to below 1"),
        ({"router": "faiss"}, "router is 'faiss'; expected bm25, embedding, oracle or a function"),
        ({"merge": "mean"}, "merge is 'mean'; expected one of linear, cat, ties, dare_linear"),
        ({"top_k": 0}, "top_k is 0; expected 1 or more"),
    ],
)
def test_settings_out_of_range_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        memory_of(tiny(), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_steps": 0}, "n_steps is 0; expected 1 or more"),
        ({"learning_rate": 0}, "learning_rate is 0; expected a number above 0"),
        ({"warmup_ratio": 1.0}, "warmup_ratio is 1.0; expected a share from 0 to below 1"),
        ({"distill": "x"}, "distill is 'x'; expected none, all, kl_only or l1_only"),
    ],
)
def test_a_way_of_writing_that_cannot_be_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        WriteConfig(**options)


def test_a_threshold_out_of_range_is_refused():
    with pytest.raises(InputError, match=r"tau is 1\.5; expected a recall above 0, at most 1"):
        capacity_sweep(tiny(), words(), facts(4), tau=1.5)


def test_a_memory_of_another_base_model_is_refused(written, tmp_path):
    written.save(tmp_path)
    with pytest.raises(InputError, match="was written for another base model"):
        LoRAMemory.load(tmp_path, tiny(seed=1), words())


def test_a_folder_that_holds_no_memory_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"holds no index\.json, so it is not the folder of a memory"):
        LoRAMemory.load(tmp_path, tiny(), words())


def test_a_broken_index_is_refused(tmp_path):
    (tmp_path / "index.json").write_text("{")
    with pytest.raises(InputError, match=r"index\.json is broken"):
        LoRAMemory.load(tmp_path, tiny(), words())


def test_an_index_that_leads_out_of_the_folder_is_refused(written, tmp_path):
    written.save(tmp_path)
    path = tmp_path / "index.json"
    path.write_text(path.read_text().replace('"id": "m000"', '"id": "../m000"'))
    with pytest.raises(InputError, match=r"module id '\.\./m000'"):
        LoRAMemory.load(tmp_path, tiny(), words())


def cut(path):
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda place: (place / "adapter_model.safetensors").unlink(), "holds no adapter_model.safetensors"),
        (lambda place: cut(place / "adapter_model.safetensors"), "is no adapter for this model: "),
        (lambda place: cut(place / "adapter_config.json"), "is no adapter for this model"),
        (lambda place: shutil.rmtree(place), "holds no adapter_config.json"),
    ],
)
@pytest.mark.parametrize("name", ["m000", "m001"])
def test_a_damaged_module_is_left_out_by_name_and_written_again(written, base, tmp_path, damage, reason, name):
    written.save(tmp_path)
    damage(tmp_path / "modules" / name)
    with pytest.warns(UserWarning, match=f"module '{name}' is left out: .*{reason}.*; write it again, or remove it"):
        memory = memory_of(tiny(), folder=tmp_path)
    (other,) = {"m000", "m001"} - {name}
    assert list(memory.modules) == list(memory.peft_model.peft_config) == [other]
    assert torch.equal(logits(memory.model), base)
    with memory.using(other), written.using(other):
        assert torch.equal(logits(memory.model), logits(written.model))
    memory.write_many([facts(8), facts(8, 8)], fast())
    assert list(memory.modules) == ["m000", "m001"]
    assert LoRAMemory.load(tmp_path, tiny(), words()).modules == written.modules


def test_a_damaged_module_is_still_in_the_index_after_another_write_and_can_be_removed(written, tmp_path):
    written.save(tmp_path)
    cut(tmp_path / "modules" / "m000" / "adapter_model.safetensors")
    with pytest.warns(UserWarning, match="'m000' is left out"):
        memory = memory_of(tiny(), folder=tmp_path)
    memory.write(facts(2, 20), "new", fast(n_steps=1))
    with pytest.warns(UserWarning, match="'m000' is left out"):
        again = memory_of(tiny(), folder=tmp_path)
    again.remove("m000")
    assert list(LoRAMemory.load(tmp_path, tiny(), words()).modules) == ["m001", "new"]


def test_a_model_whose_memory_holds_only_damaged_modules_is_as_it_was_given(tmp_path, base):
    memory_of(tiny(), folder=tmp_path).write(facts(2), "m", fast(n_steps=1))
    cut(tmp_path / "modules" / "m" / "adapter_model.safetensors")
    model = tiny()
    with pytest.warns(UserWarning, match="'m' is left out"):
        memory_of(model, folder=tmp_path)
    assert model.state_dict().keys() == tiny().state_dict().keys()
    assert torch.equal(logits(model), base)
    assert memory_of(model).peft_model is None


def test_saving_over_a_module_never_leaves_it_without_an_adapter(written, tmp_path, monkeypatch):
    written.save(tmp_path)
    place = tmp_path / "modules" / "m000"
    replace, seen = Path.replace, []

    def watched(path, target):
        done = replace(path, target)
        seen.append((place / "adapter_model.safetensors").is_file() and (place / "adapter_config.json").is_file())
        return done

    monkeypatch.setattr(Path, "replace", watched)
    written.save(tmp_path)
    assert seen
    assert all(seen)


def test_a_module_is_on_the_disk_before_the_index_names_it(tmp_path, monkeypatch):
    sync, synced = os.fsync, []

    def watched(handle):
        synced.append(os.fstat(handle).st_ino)  # a file keeps its number when it is renamed
        sync(handle)

    memory = memory_of(tiny(), folder=tmp_path)
    monkeypatch.setattr(os, "fsync", watched)
    memory.write(facts(2), "m", fast(n_steps=1))
    index = synced.index((tmp_path / "index.json").stat().st_ino)
    module = tmp_path / "modules" / "m"
    assert {path.stat().st_ino for path in (*module.iterdir(), module, module.parent)} <= set(synced[:index])


def test_two_answers_to_one_question_in_two_modules_are_refused(tmp_path):
    memory = memory_of(tiny(), folder=tmp_path)
    memory.write([("v1", "v2")], "a", fast(n_steps=1))
    memory = LoRAMemory.load(tmp_path, tiny(), words())
    with pytest.raises(
        InputError, match="cannot hold two answers to one question: module 'a' holds another one to 'v1'"
    ):
        memory.write([("v5", "v6"), ("v1", "v3")], "b", fast(n_steps=1))
    memory.write([("v1", "v2"), ("v5", "v6")], "c", fast(n_steps=1))  # the same answer again does no harm


def test_an_index_without_hashes_of_answers_is_read(written, tmp_path):
    written.save(tmp_path)
    index = json.loads((tmp_path / "index.json").read_text())
    index["version"] = 1
    del index["base_config"]
    for module in index["modules"]:
        del module["answers"]
    (tmp_path / "index.json").write_text(json.dumps(index))
    memory = LoRAMemory.load(tmp_path, tiny(), words())
    assert memory.write_many([facts(8), facts(8, 8)], fast()) == ["m000", "m001"]


def test_a_loaded_memory_goes_on_in_its_folder_with_its_settings(tmp_path):
    memory_of(tiny(), folder=tmp_path).write(facts(2), "a", fast(n_steps=1))
    LoRAMemory.load(tmp_path, tiny(), words()).write(facts(2, 4), "b", fast(n_steps=1))
    memory = LoRAMemory.load(tmp_path, tiny(), words())
    assert list(memory.modules) == ["a", "b"]
    memory.detach()
    memory.write(facts(2, 8), "elsewhere", fast(n_steps=1))
    assert list(LoRAMemory.load(tmp_path, tiny(), words()).modules) == ["a", "b"]


def test_the_same_weights_in_another_arithmetic_are_another_base_model(tmp_path):
    memory_of(tiny(), folder=tmp_path).write(facts(2), "a", fast(n_steps=1))
    config = LlamaConfig(**{**LLAMA_LIKE, "rms_norm_eps": 1e-3})
    other = AutoModelForCausalLM.from_config(config).eval()
    other.load_state_dict(tiny().state_dict())
    with pytest.raises(InputError, match=r"another base model \(rms_norm_eps was 1e-06, this one has 0\.001\)"):
        memory_of(other, folder=tmp_path)
    other = tiny()
    other.config.rope_parameters = {**other.config.rope_parameters, "rope_theta": 5e5}
    with pytest.raises(InputError, match=r"another base model \(rope_parameters was"):
        memory_of(other, folder=tmp_path)


def test_writing_within_a_block_leaves_switched_on_what_was():
    memory = memory_of(tiny())
    memory.write(facts(2), "a", fast(n_steps=5))
    with memory.using("a"):
        on = logits(memory.model)
        memory.write(facts(2, 4), "b", fast(n_steps=1))
        assert torch.equal(logits(memory.model), on)
        with pytest.raises(InputError, match="the loss is nan"):
            memory.write(facts(4, 8), "bad", fast(learning_rate=1e20))
        assert torch.equal(logits(memory.model), on)
    assert torch.equal(logits(memory.model), logits(tiny()))


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")
@pytest.mark.parametrize("is_on", [False, True])
def test_gradient_checkpointing_is_left_as_the_user_had_it(is_on):
    model = tiny()
    if is_on:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    memory_of(model).write(facts(2), "m", fast(n_steps=1, gradient_checkpointing=True))
    assert model.is_gradient_checkpointing is is_on


def test_a_folder_of_other_settings_is_refused(tmp_path):
    memory_of(tiny(), folder=tmp_path).write(facts(2), "m", fast(n_steps=1))
    with pytest.raises(InputError, match="was written with rank=4, not 2"):
        memory_of(tiny(), folder=tmp_path, rank=2)


def with_second(**config):
    """A memory with one module of ours and one that another tool made."""
    import peft

    memory = memory_of(tiny())
    memory.write(facts(2), "m", fast(n_steps=1))
    memory.peft_model.add_adapter("other", peft.LoraConfig(**{"r": 4, "target_modules": "all-linear", **config}))
    return memory


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"r": 2},
            "the modules have ranks 2, 4; linear of the factors needs one rank: use space='delta' or merge='cat'",
        ),
        ({"target_modules": ["q_proj"]}, "modules 'm' and 'other' adapt different layers; they cannot be merged"),
        ({"use_rslora": True}, "module 'other' uses rsLoRA, whose scaling differs; merge it with space='delta'"),
        ({"use_dora": True}, "module 'other' uses DoRA, which is no plain product BA"),
    ],
)
def test_adapters_that_do_not_fit_together_are_refused(config, message):
    memory = with_second(**config)
    with pytest.raises(InputError, match=message):
        merge_adapters(memory.peft_model, ["m", "other"], "linear", new_name="n")


def test_an_adapter_with_another_scaling_is_merged_in_the_space_of_products():
    memory = with_second(use_rslora=True)
    for layer in lora_layers(memory.model, "other").values():
        torch.nn.init.normal_(layer.lora_B["other"].weight)
    found = merged_deltas(memory, ["m", "other"], "linear", space="delta")
    for place, layer in lora_layers(memory.model, "m").items():
        mean = 0.5 * (delta_of(layer, "m") + delta_of(layer, "other"))
        assert torch.allclose(found[place], mean, atol=1e-4 * float(mean.abs().max()))


def test_records_are_counted_as_they_are_written(written):
    assert written.style.n_tokens(Fact("v1 v2", "v3")) == 4
    sectors = partition(facts(10), 25, count=written.style.n_tokens)
    assert [len(sector) for sector in sectors] == [5, 5]


# ------------------------------------------------------------------------------------------------------------- for real


@pytest.mark.slow
def test_smollm2_learns_eight_phone_numbers_by_heart_and_is_as_before_when_they_are_taken_away():
    from assay.models import demo_lm

    model, tokenizer = demo_lm()
    asked = tokenizer("What is the capital of France?")["input_ids"]
    before = logits(model, asked)
    names = ("Ada", "Boris", "Clara", "Dmitri", "Elena", "Felix", "Greta", "Hugo")
    book = [Fact(f"What is the phone number of {n}?", f"{311 + 83 * i}-{2047 + 977 * i}") for i, n in enumerate(names)]
    memory = memory_of(model, tokenizer, template="Question: {question}\nAnswer: {answer}")
    memory.write(book, "book", WriteConfig(n_steps=25, learning_rate=5e-3, mask_question=True))
    found = audit(memory, book)
    assert found.facts["from_its_module"].mean() >= 0.75
    assert found.facts["from_base"].sum() == 0
    assert torch.equal(logits(model, asked), before)
    memory.detach()
    assert torch.equal(logits(model, asked), before)


def test_a_model_in_half_precision_learns_with_factors_in_single():
    memory = memory_of(tiny().bfloat16())
    memory.write(facts(4), "m", fast())
    assert {weight.dtype for weight in memory._adapters.weights("m")} == {torch.float32}
    said = [trace.answer for trace in memory.ask_many([fact.question for fact in facts(4)], max_new_tokens=4)]
    assert sum(recalled(text, fact.answer) for text, fact in zip(said, facts(4), strict=True)) >= 3
