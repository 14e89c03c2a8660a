"""dyllm's trial: what it trains, what its arms see, what is scored; with a model of a few steps."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from assay import bench
from assay._core.errors import InputError
from assay.models import quality, small
from assay.trials.decode import dyllm as trial
from assay.trials.decode.dyllm import model as small_model

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True, scope="module")
def little(tmp_path_factory):
    """A model of two steps on a little text, in a cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_DATA", str(tmp_path_factory.mktemp("cache")))
        text = "A few words that tell one thing from another, and a number such as 12345. " * 60
        patch.setattr(small, "training_text", lambda: text)
        patch.setattr(quality, "held_out_text", lambda: " ".join(f"Sentence {i} of many." for i in range(400)))
        for cached in (small.token_ids, small_model.trained, trial.model_of, trial.generator_of, trial.full_decoding):
            cached.cache_clear()
        yield
    for cached in (small.token_ids, small_model.trained, trial.model_of, trial.generator_of, trial.full_decoding):
        cached.cache_clear()


PARAMS = {"model": "", "steps": 2, "new_tokens": 12, "tau": 0.999}


@pytest.fixture(scope="module")
def source(little):
    return trial.load_prompts(None, "quick", PARAMS).value


def first(source):
    return next(trial.one_prompt(source, 1, 0))


class Certain(torch.nn.Module):
    """Gives the right token the probability 1/2 and all others together the rest, and keeps what it was shown."""

    def __init__(self, truth):
        super().__init__()
        self.truth = truth

    def forward(self, input_ids):
        from types import SimpleNamespace

        self.shown = input_ids
        logits = torch.zeros(*input_ids.shape, small_model.VOCABULARY + 1)
        right = math.log(small_model.VOCABULARY)
        logits.scatter_(-1, self.truth[..., None], right)
        return SimpleNamespace(logits=logits)


def test_the_loss_is_a_bound_on_the_surprise_at_a_token():
    """Where every masked token costs log 2, the weights average to one: masked over share, over all tokens."""
    ids = torch.randint(1, 2000, (400, 96), generator=torch.Generator().manual_seed(0))
    model = Certain(ids)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        loss = float(small_model.masked_diffusion_loss(model, ids))
    # Var of a sequence's (masked / share) / 96 is at most E[1 / share] / 96 = log(1000) / 96.
    assert loss == pytest.approx(math.log(2), abs=4 * math.log(2) * (math.log(1000) / 96 / 400) ** 0.5)


def test_the_shares_that_are_masked_are_spread_evenly():
    ids = torch.randint(1, 2000, (64, 96), generator=torch.Generator().manual_seed(0))
    model = Certain(ids)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        small_model.masked_diffusion_loss(model, ids)
    shares = (model.shown == small_model.VOCABULARY).float().mean(1).sort().values
    evenly = (torch.arange(64) + 0.5) / 64
    assert float((shares - evenly).abs().max()) < 1 / 64 + 4 * (0.25 / 96) ** 0.5


def test_the_model_is_trained_by_the_shared_recipe_and_decodes_with_its_mask(source):
    model, tokenizer = trial.model_of("", 2)
    assert len(tokenizer) <= small_model.VOCABULARY == model.config.vocab_size - 1
    assert trial.generator_of("", 2, 0.999).mask_token_id == small_model.VOCABULARY


def test_prompts_are_of_the_set_length_and_none_is_seen_twice(source):
    cases = list(trial.one_prompt(source, 20, 0))
    assert {len(case.given.prompt) for case in cases} == {trial.PROMPT}
    starts = [case.given.prompt for case in cases]
    assert len(set(starts)) == len(starts)


def test_a_longer_run_begins_with_the_cases_of_a_shorter_one(source):
    short, long = (list(trial.one_prompt(source, n, 3)) for n in (4, 9))
    assert [case.given for case in long[:4]] == [case.given for case in short]


def test_every_arm_fills_every_mask_behind_the_prompt(source):
    case = first(source)
    for arm in trial.TRIAL.arms:
        found = arm.run(case.given, 0)
        assert found.ids[: trial.PROMPT] == case.given.prompt
        assert len(found.ids) == trial.PROMPT + 12
        assert small_model.VOCABULARY not in found.ids


def test_full_recomputation_agrees_with_itself_and_computes_everything(source):
    case = first(source)
    full = next(arm for arm in trial.TRIAL.arms if arm.name == "full recomputation")
    scores = trial.quality(case, full.run(case.given, 0))
    assert (scores["agreement"], scores["recomputed"], scores["operations"]) == (1, 1, 1)
    assert set(scores) == {metric.name for metric in trial.TRIAL.metrics}


def test_the_control_computes_less_than_the_method(source):
    case = first(source)
    scores = {arm.name: trial.quality(case, arm.run(case.given, 0)) for arm in trial.TRIAL.arms}
    assert scores["control: never salient"]["recomputed"] <= scores["DyLLM"]["recomputed"]
    assert scores["control: never salient"]["operations"] < 1


def test_distinct_is_the_share_of_different_tokens(source):
    case = first(source)
    ids = (*case.given.prompt, *([7] * 6), *range(10, 16))
    assert trial.quality(case, trial.Decoded(ids, 1.0, 1.0, 1.0))["distinct"] == pytest.approx(7 / 12)


def test_logit_errors_are_followed_behind_the_full_steps(source):
    case = first(source)
    for arm in trial.LOGITS.arms:
        found = arm.run(case.given, 0)
        assert len(found.errors) == 12 - 4
        scores = trial.LOGITS.score(case, found)
        assert scores["logit_error"] == pytest.approx(np.mean(found.errors))
        assert scores["largest_error"] == max(found.errors)


def test_paragraphs_of_a_user_s_file_are_prompts(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("A few words.\n\nAnother thing\nof two lines.\n\n\n", encoding="utf-8")
    data = trial.load_prompts(str(path), "quick", PARAMS)
    assert data.n == 2
    _, tokenizer = trial.model_of("", 2)
    assert tokenizer.decode(data.value.pieces[1]) == "Another thing\nof two lines."


BAD = {
    "no file": ("none.txt", {}, r"none\.txt cannot be read as UTF-8 text"),
    "no paragraph": ("empty.txt", {}, r"empty\.txt holds no paragraph"),
    "nothing to fill": (None, {"new_tokens": 0}, "new_tokens=0, steps=2: expected 1 or more"),
    "no model": (None, {"model": "./none"}, r"\./none: no such folder"),
}


@pytest.mark.parametrize(("path", "params", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_refused(tmp_path, monkeypatch, path, params, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("\n", encoding="utf-8")
    with pytest.raises(InputError, match=message):
        trial.load_prompts(path, "quick", {**PARAMS, **params})


def test_the_speed_part_says_what_runs_it_and_what_a_share_is():
    with pytest.raises(InputError, match=r"`assay try dyllm --scale standard` runs it"):
        trial.load_wide(None, "quick", trial.SPEED.params)
    with pytest.raises(InputError, match=r"salient_share=2\.0: expected a share between 0 and 1"):
        trial.load_wide(None, "standard", {"salient_share": 2.0})


def test_tau_is_set_to_the_share_that_is_asked_for(monkeypatch):
    for name, value in (("width", 64), ("blocks", 2), ("prompt", 24), ("new_tokens", 16)):
        monkeypatch.setitem(trial.WIDE, name, value)
    trial.wide_model.cache_clear()
    trial.tau_of_share.cache_clear()
    tau = trial.tau_of_share(0.3)
    share = trial.wide_run("dyllm", 16, trial.Wide(0, tau)).record.salient_share
    assert share == pytest.approx(0.3, abs=0.15)
    case = next(trial.wide_prompts(tau, 1, 0))
    for arm in trial.SPEED.arms:
        scores = trial.SPEED.score(case, arm.run(case.given, 0))
        assert set(scores) == {metric.name for metric in trial.SPEED.metrics}
    trial.wide_model.cache_clear()
    trial.tau_of_share.cache_clear()


@pytest.mark.slow
def test_the_trial_runs_through_the_bench(tmp_path):
    short = replace(trial.TRIAL, also=(), params=PARAMS)
    result = bench.run(short, cases=2, out=tmp_path / "run")
    assert "DyLLM" in result.summary()
