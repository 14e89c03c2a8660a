"""The trial of arc-decode: its arms do what their names say, its thresholds cost the same, and it gives a verdict."""

import numpy as np
import pytest
import torch

from assay._core.errors import InputError
from assay.trials.decode import arc_decode as trial
from assay.trials.decode.arc_decode import choice, models, runs

_, CHOICE, DEMO, LOOKUP = trial.TRIAL.also
N_VOCABULARY = 300


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def tiny():
    """A random target, a draft that is its first layer, and a byte tokenizer."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers import models as tokens
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(tokens.BPE({letter: i for i, letter in enumerate(letters)}, []))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    made = []
    for n_layers in (2, 1):
        config = LlamaConfig(
            vocab_size=N_VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=n_layers,
            num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=256, initializer_range=0.5,
            bos_token_id=None, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        with torch.random.fork_rng():
            torch.manual_seed(0)
            made.append(LlamaForCausalLM(config).eval())
    made[1].load_state_dict(made[0].state_dict(), strict=False)
    return models.Pair(*made, PreTrainedTokenizerFast(tokenizer_object=plain))


@pytest.fixture(autouse=True)
def small_world(tiny, tmp_path, monkeypatch):
    """Every pair of models is the tiny one; what is made is made in a fresh folder."""
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path))
    runs.models_of.cache_clear()
    monkeypatch.setattr(models, "small_pair", lambda: tiny)
    monkeypatch.setattr(models, "demo_pair", lambda: tiny)
    monkeypatch.setattr(runs, "POSITIONS", 6)
    monkeypatch.setattr(choice, "TUNED", 6)
    yield
    runs.models_of.cache_clear()


def params(part, **changes):
    return {**part.params, "n_tokens": 8, **changes}


def first_case(part, **changes):
    data = part.load(None, "standard", params(part, **changes))
    return next(iter(part.cases(data.value, 1, 0)))


def test_cases_come_from_the_held_out_text_and_calibration_from_the_other(tiny, monkeypatch):
    calibrated = []
    monkeypatch.setattr(runs, "calibrated", lambda settings, prompts: calibrated.extend(prompts))
    source = trial.SMALL.load(None, "quick", params(trial.SMALL)).value
    held_out, other = (text.encode() for text in (runs.held_out_text(), runs.calibration_text()))
    letters = {i: letter for letter, i in tiny.tokenizer.get_vocab().items()}
    from tokenizers.decoders import ByteLevel

    for prompts, text in ((source.prompts[:50], held_out), (calibrated, other)):
        for ids in prompts:
            piece = ByteLevel().decode([letters[token] for token in ids])
            assert piece.strip("\ufffd").encode() in text


def test_the_same_seed_gives_the_same_cases_and_a_longer_run_starts_with_them():
    source = trial.SMALL.load(None, "quick", params(trial.SMALL)).value
    short, long = (list(trial.SMALL.cases(source, n, 3)) for n in (2, 4))
    assert [case.given.prompts for case in short] == [case.given.prompts for case in long[:2]]
    everything = [prompt for case in long for prompt in case.given.prompts]
    assert len(set(everything)) == 4 * runs.TEXTS["small"]


def test_a_calibration_is_made_once(monkeypatch):
    first = trial.SMALL.load(None, "quick", params(trial.SMALL)).value.calibration
    monkeypatch.setattr("assay.decode.arc_decode.calibrate", None)
    again = trial.SMALL.load(None, "quick", params(trial.SMALL)).value.calibration
    assert again.gamma == first.gamma


def test_the_lossless_arm_adds_nothing_and_plain_sampling_takes_a_pass_a_token():
    case = first_case(trial.SMALL)
    found = {
        name: runs.run_score(case, getattr(runs, name)(case.given, 0)) for name in ("lossless", "plain", "boosted")
    }
    assert found["lossless"]["price"] == found["lossless"]["added"] == 0.0
    assert found["plain"]["tokens_per_forward"] == 1.0
    assert found["boosted"]["price"] > 0
    assert found["boosted"]["tokens_per_forward"] >= 1.0


def test_the_arm_of_transformers_writes_as_many_tokens_in_fewer_passes():
    case = first_case(trial.SMALL)
    written = runs.assisted(case.given, 0)
    assert [len(text) for text in written.texts] == [runs.PROMPT + 8] * runs.TEXTS["small"]
    assert runs.run_score(case, written)["tokens_per_forward"] > 1.0


def test_at_lambda_zero_the_method_s_arm_is_the_lossless_one():
    task = first_case(trial.SMALL, lam=0.0).given
    assert runs.boosted(task, 5).texts == runs.lossless(task, 5).texts


def test_the_score_counts_every_token_alike():
    case = first_case(trial.SMALL)
    written = runs.plain(case.given, 0)
    scored = runs.run_score(case, written)
    target = runs.models_of("small", "draft")[0]
    surprises = []
    for text in written.texts:
        with torch.inference_mode():
            log_p = target(torch.tensor([text])).logits[0].log_softmax(-1)
        surprises += [-log_p[place - 1, text[place]].item() for place in range(runs.PROMPT, len(text))]
    assert scored["nll"] == pytest.approx(np.mean(surprises), abs=1e-5)


def test_all_rules_are_set_to_the_price_of_the_method():
    source = CHOICE.load(None, "quick", params(CHOICE)).value
    _, _, tokenizer = runs.models_of("small", "draft")
    first = runs.CALIBRATED["small"]
    prompts = tuple(runs.cut(tokenizer, runs.calibration_text())[first : first + 6])
    positions = choice.visited(runs.Task(prompts, source.settings, source.calibration, {}))
    wanted = np.mean([choice.price(at, at.scores, 1.0) for at in positions])
    for name in ("blind", "typical"):
        each = [
            choice.price(at, choice.open_tokens(name, at.p, at.q, 1.0), source.thresholds[name]) for at in positions
        ]
        assert np.mean(each) == pytest.approx(wanted)
    opened = [choice.open_tokens("fuzzy", at.p, at.q, source.thresholds["fuzzy"]) for at in positions]
    each = [choice.price(at, scores, 1.0) for at, scores in zip(positions, opened, strict=True)]
    assert np.mean(each) <= wanted
    # It opens a position at a time, and at most one more would be too many.
    assert np.mean(each) > wanted - 1.0 / len(positions)


def test_fuzzy_opens_a_position_and_typical_opens_tokens():
    p, q = torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.5, 0.3, 0.2])
    assert set(choice.open_tokens("fuzzy", p, q, 0.5)) == {0, 1, 2}
    assert choice.open_tokens("fuzzy", p, q, 1e-4) == {}
    entropy = -(p * p.log()).sum().item()
    assert min(0.09, 0.09**0.5 * np.exp(-entropy)) == 0.09
    assert set(choice.open_tokens("typical", p, q, 1.0)) == {0, 1, 2}
    uniform = torch.full((100,), 0.01)  # exp(-H) is 0.01
    assert len(choice.open_tokens("typical", uniform, uniform, 1.0)) == 100
    certain = torch.tensor([0.95, 0.05])
    assert set(choice.open_tokens("typical", certain, certain, 1.0)) == {0}


def test_a_rival_s_record_speaks_of_the_same_price():
    case = first_case(CHOICE)
    for arm in CHOICE.arms:
        scored = CHOICE.score(case, arm.run(case.given, 1))
        assert scored["price"] >= 0
        assert set(scored) == {metric.name for metric in CHOICE.metrics}


def test_every_part_scores_every_arm_by_every_metric():
    for part in (trial.SMALL, DEMO):
        case = first_case(part)
        for arm in part.arms:
            assert set(part.score(case, arm.run(case.given, 1))) == {metric.name for metric in part.metrics}


def test_a_part_on_a_model_of_yours_needs_its_draft():
    with pytest.raises(
        InputError, match=r"^a model of yours needs a draft that shares its tokenizer: -p draft=FOLDER$"
    ):
        DEMO.load(None, "standard", params(DEMO, model="folder"))


@pytest.mark.parametrize("part", [DEMO, LOOKUP], ids=["smollm2", "smollm2-lookup"])
def test_parts_of_minutes_are_left_to_the_standard_scale(part):
    with pytest.raises(
        InputError, match=r"^this part distils a draft once and writes with SmolLM2, which takes minutes"
    ):
        part.load(None, "quick", params(part))


def test_prompts_for_lookup_ask_to_repeat_a_passage(tiny):
    tokenizer = type(tiny.tokenizer)(tokenizer_object=tiny.tokenizer.backend_tokenizer)
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    asked = tokenizer.decode(runs.to_copy(tokenizer, " some words "))
    assert asked.startswith("Repeat this passage word for word")
    assert asked.endswith("some words")
    assert LOOKUP.load is runs.load_lookup


def test_too_few_prompts_are_refused(tmp_path):
    path = tmp_path / "prompts.csv"
    path.write_text("prompt\na b c\nd e f\n", encoding="utf-8")
    with pytest.raises(
        InputError, match=r"^there are 2 prompts; the trial needs 8 to calibrate on and 6 or more to run$"
    ):
        DEMO.load(str(path), "quick", params(DEMO))


def test_prompts_of_yours_are_split_between_calibration_and_cases(tmp_path):
    path = tmp_path / "prompts.csv"
    path.write_text("prompt\n" + "".join(f"Text {i} about snakes\n" for i in range(16)), encoding="utf-8")
    data = DEMO.load(str(path), "quick", params(DEMO))
    assert data.n == 8
    assert data.path == str(path)


@pytest.mark.parametrize(("name", "value", "message"), [
    ("lam", 2.0, r"^lam is 2\.0; expected from 0 \(lossless\) to 1$"),
    ("num_draft", 0, r"^num_draft=0, n_tokens=8: expected 1 or more, and 2 or more$"),
])  # fmt: skip
def test_a_setting_out_of_its_range_is_refused(name, value, message):
    with pytest.raises(InputError, match=message):
        trial.SMALL.load(None, "quick", params(trial.SMALL, **{name: value}))


def test_without_a_boost_there_is_nothing_to_choose():
    with pytest.raises(InputError, match=r"^lam is 0: nothing is added, and there is nothing to choose; give a lambda"):
        CHOICE.load(None, "quick", params(CHOICE, lam=0.0))


def test_the_draft_of_the_demo_model_is_its_first_layers(tiny):
    draft = models.first_layers(tiny.target)
    mine, its = draft.state_dict(), tiny.target.state_dict()
    assert all(torch.equal(mine[name], its[name]) for name in mine)
    assert len(draft.model.layers) == 2
    trained = {name for name, weight in draft.named_parameters() if weight.requires_grad}
    assert all("embed_tokens" not in name and "lm_head" not in name for name in trained)


def test_the_distance_of_a_model_to_itself_is_zero(tiny):
    ids = torch.arange(12)[None]
    assert models.distance_to(tiny.target)(tiny.target, ids).item() == pytest.approx(0.0, abs=1e-6)
    assert models.distance_to(tiny.target)(tiny.draft, ids).item() > 0.1
