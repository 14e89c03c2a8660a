"""The trial of memoryllm: equal sizes, held-out text that is held out, pruned twins, and runs that give a verdict."""

import dataclasses
import re

import numpy as np
import pytest
import torch

from assay import bench
from assay._core.errors import InputError
from assay.models import small
from assay.nn.memoryllm import MemoryLlamaConfig, MemoryLlamaForCausalLM
from assay.trials.nn.memoryllm import TRIAL, decoding, models, reading

PARTS = {trial.part: trial for trial in TRIAL.also}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def untrained(tmp_path, monkeypatch):
    """Tiny models that were never trained, and a cache of their own."""
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path / "cache"))
    for name, value in {"WIDTH": 48, "LAYERS": 2, "VOCABULARY": 300}.items():
        monkeypatch.setattr(models, name, value)
    monkeypatch.setattr(models, "KINDS", {"base": {"ffn_beta": "base"}, "memory": {"ffn_beta": 0}})
    monkeypatch.setattr(small, "training_text", lambda: "A few words that tell one thing from another. " * 400)

    def train(name, said, build, recipe, **options):
        with torch.random.fork_rng():
            torch.manual_seed(recipe.seed)
            return small.Small(build().eval(), small.tokenizer(300), np.zeros(0))

    monkeypatch.setattr(small, "train", train)
    caches = (models.trained, models.text_ids, reading.pruned, reading.tabled, decoding.twin, small.token_ids)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


TRAINING = models.Training(None, 1)


def model_of(kind):
    with torch.device("meta"):
        return MemoryLlamaForCausalLM(MemoryLlamaConfig(**models.config_of(kind)))


@pytest.mark.parametrize(("kind", "above"), [("shallow", 0.0), ("narrow", 0.002)])
def test_the_small_dense_models_have_memoryllm_s_active_parameters(kind, above):
    memory, dense = (model_of(name).active_parameters() for name in ("memory", kind))
    assert memory <= dense <= (1 + above) * memory


def test_a_pruned_dense_model_keeps_as_many_as_memoryllm_has_active():
    dense = model_of("base").active_parameters()
    assert (1 - reading.PRUNED) * dense == pytest.approx(model_of("memory").active_parameters())


def test_all_kinds_of_the_whole_size_have_as_many_matrix_weights():
    counts = {
        sum(weight.numel() for weight in model_of(kind).parameters() if weight.ndim == 2)
        for kind in ("base", "memory", "flex1", "flex2", "flex3")
    }
    assert len(counts) == 1


def test_the_loss_is_cross_entropy_and_the_z_loss(untrained):
    model, _ = models.trained("memory", TRAINING, 0)
    ids = torch.arange(12).view(2, 6)
    with torch.no_grad():
        logits = model(ids).logits[:, :-1].double()
        surprise = -logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).mean()
        z = torch.logsumexp(logits, -1).square().mean()
        assert float(models.language_loss(model, ids)) == pytest.approx(float(surprise + 1e-6 * z), abs=1e-5)


def test_every_tenth_paragraph_of_a_user_s_text_is_held_out(tmp_path):
    paragraphs = [f"{number:04d} " + "word " * 1200 for number in range(40)]
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(paragraphs), encoding="utf-8")
    kept, held_out = models.read_text(str(path))
    assert [part[:4] for part in held_out.split("\n\n")] == ["0009", "0019", "0029", "0039"]
    assert sorted(kept.split("\n\n") + held_out.split("\n\n")) == paragraphs


@pytest.mark.parametrize("how", ["magnitude", "wanda"])
def test_two_of_three_weights_are_pruned_and_the_rest_stay(untrained, how):
    dense, _ = models.trained("base", TRAINING, 0)
    model, _ = reading.pruned(how, TRAINING, 0)
    before = [w for w in dense.model.layers.parameters() if w.ndim == 2]
    after = [w for w in model.model.layers.parameters() if w.ndim == 2]
    zeros = sum(int((w == 0).sum()) for w in after)
    assert zeros / sum(w.numel() for w in after) == pytest.approx(2 / 3, abs=1e-3)
    assert all(torch.equal(b[a != 0], a[a != 0]) for b, a in zip(before, after, strict=True))


def test_wanda_keeps_what_weighs_most_times_its_input():
    mask = reading._wanda_mask(torch.tensor([[3.0, -2.0, 1.0]]), torch.tensor([1.0, 1.0, 10.0]))
    assert mask.tolist() == [[0.0, 0.0, 1.0]]


def test_a_table_reads_as_the_memories_do(untrained):
    (case, *_) = reading.windows(TRAINING, 6, 0)
    own, mapped = (
        reading.perplexity(case, found)["perplexity"]
        for found in (reading.read("memory", case.given, 0), reading.read_table("float32", case.given, 0))
    )
    assert mapped == pytest.approx(own, rel=1e-5)


def test_the_same_seed_gives_the_same_windows_dealt_to_the_starts(untrained):
    training = models.Training(None, 1, 2)
    first, second = (list(reading.windows(training, 6, 0)) for _ in range(2))
    assert [case.id for case in first] == [case.id for case in second]
    assert sorted(case.given.start for case in first) == [0, 0, 0, 1, 1, 1]
    assert all((a.given.part.windows == b.given.part.windows).all() for a, b in zip(first, second, strict=True))
    assert len({case.given.part.windows.tobytes() for case in first}) == 6


def test_every_arm_reads_every_window(untrained):
    for part in (TRIAL, PARTS["total"], PARTS["table"]):
        arms = [arm for arm in part.arms if "dense, " not in arm.name]  # two shapes that are not built here
        (case, *_) = part.cases(TRAINING, 2, 0)
        assert all(part.score(case, arm.run(case.given, 0))["perplexity"] > 1 for arm in arms)


def test_speed_gives_a_verdict(tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path / "cache"))
    part = dataclasses.replace(PARTS["speed"], part="", params={"width": 64, "layers": 1, "tokens": 3})
    result = bench.run(part, cases=6, out=tmp_path / "run", progress=False, jobs=1)
    assert result.failures == ()
    table, dense = (arm.metrics for arm in result.arms)
    assert table["mapped_mib"].mean == pytest.approx(4096 * 64 * 2 / 2**20)
    # What the dense twin holds more: a feed-forward layer of 3 x 64 x 168 float32 and its norm, less the other's.
    assert dense["memory_mib"].mean - table["memory_mib"].mean == pytest.approx(
        4 * (3 * 64 * 168 + 64) / 2**20, abs=1e-3
    )


def test_a_switched_llama_has_the_weights_of_the_dense_one(model_dir):
    reading.switched.cache_clear()
    dense, _ = reading.switched(str(model_dir), "dense")
    memory, _ = reading.switched(str(model_dir), "memory")
    for here, there in zip(dense.model.layers, memory.model.layers, strict=True):
        assert torch.equal(here.mlp.gate_proj.weight, there.memory.gate_proj.weight)
        assert torch.equal(here.post_attention_layernorm.weight, there.memory_norm.weight)
        assert torch.equal(here.self_attn.q_proj.weight, there.self_attn.q_proj.weight)
    reading.switched.cache_clear()


BAD = {
    "few steps": (
        lambda path: reading.load_trained((), None, "quick", {"steps": -1}),
        "steps=-1: expected 1 or more, or 0 for as many as the scale has",
    ),
    "a short text": (
        lambda path: reading.load_trained((), path, "quick", {"steps": 1}),
        "PATH has 1 paragraphs and 5 characters; expected 20 paragraphs",
    ),
    "no text": (
        lambda path: reading.load_trained((), path + ".none", "quick", {"steps": 1}),
        "PATH.none cannot be read as UTF-8 text: ",
    ),
    "width": (
        lambda path: decoding.load_speed(None, "quick", {"width": 100, "layers": 1, "tokens": 2}),
        "width=100, layers=1, tokens=2: expected a multiple of 64",
    ),
}


@pytest.mark.parametrize(("call", "message"), BAD.values(), ids=BAD)
def test_what_cannot_be_run_is_refused(call, message, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("short", encoding="utf-8")
    with pytest.raises(InputError, match="^" + re.escape(message.replace("PATH", str(path)))):
        call(str(path))


def test_without_the_demo_model_the_part_says_what_brings_it(monkeypatch):
    def missing():
        raise InputError("run assay data get demo-lm")

    monkeypatch.setattr("assay.models.demo_lm", missing)
    reading.switched.cache_clear()
    with pytest.raises(InputError, match="assay data get demo-lm"):
        reading.load_switched(None, "quick", PARTS["switched"].params)


@pytest.mark.slow
def test_a_dense_model_is_not_itself_with_memories(tmp_path):
    result = bench.run(dataclasses.replace(PARTS["switched"], part=""), cases=6, out=tmp_path / "run", progress=False)
    assert result.failures == ()
    method, baseline = (arm.metrics["perplexity"].mean for arm in result.arms)
    assert method > 10 * baseline
