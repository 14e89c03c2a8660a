"""The live part of tmafc's trial: what its arms see, what they pay, and that the demo model itself answers."""

from dataclasses import replace

import numpy as np
import pytest

from assay._core.errors import InputError
from assay.decode.tmafc import Record, Recorded, Reply, Task
from assay.decode.tmafc.prompts import parse_object
from assay.decode.tmafc.replay import Settings, adaptive_consistency
from assay.trials.decode import tmafc_live
from assay.trials.decode.tmafc import LIVE
from assay.trials.decode.tmafc_forms import FORMS, forms

TASK = Task("Ann is 34.", {"name": "", "age": ""}, {"name": "Ann", "age": 34})
SETTINGS = Settings(0.95, 40, 5)


class Noisy:
    """Names are right four times in five, ages always; a reply costs seven tokens and a request eleven."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.requests = []

    def __call__(self, prompt, n, /):
        self.requests.append((prompt, n))
        names = self.rng.choice(["Ann", "Bob"], p=[0.8, 0.2], size=n)
        return [
            Reply(f'{{"name": "{name}", "age": 34}}', tokens=7, prompt_tokens=0 if i else 11)
            for i, name in enumerate(names)
        ]


@pytest.fixture
def model(monkeypatch):
    made = []

    def sampler_of(name, seed):
        made.append(Noisy(seed))
        return made[-1]

    monkeypatch.setattr(tmafc_live, "sampler_of", sampler_of)
    return made


def asked(batch=4, past=()):
    return tmafc_live.Asked(replace(TASK, gold=None), past, SETTINGS, batch, "")


def live(n=tmafc_live.N_LIVE):
    return tmafc_live.Live(forms(FORMS["standard"] + n)[FORMS["standard"] :], (), SETTINGS, 4, "")


def test_no_form_that_is_asked_live_is_among_the_recorded_ones():
    recorded = {task.question for task in forms(FORMS["standard"])}
    assert not recorded & {task.question for task in live().tasks}


def test_the_arms_see_no_gold_answers():
    cases = list(tmafc_live.one_form(live(), 8, 0))
    assert len({case.given.task.question for case in cases}) == 8
    assert all(case.given.task.gold is None and case.truth.gold for case in cases)


def test_quick_says_what_runs_the_part():
    with pytest.raises(InputError, match=r"asks the language model anew.* `assay try tmafc --scale standard` runs it"):
        tmafc_live.live_forms(None, "quick", LIVE.params)


def test_no_samples_at_a_time_are_refused():
    with pytest.raises(InputError, match="batch is 0; expected a whole number from 1"):
        tmafc_live.live_forms(None, "standard", {**LIVE.params, "batch": 0})


def test_self_consistency_pays_for_all_samples_in_one_request(model):
    paid = tmafc_live.self_consistency_live(asked(), 0)
    assert (paid.n_samples, paid.n_tokens, paid.n_prompt_tokens, len(model[0].requests)) == (40, 280, 11, 1)
    assert paid.answer == {"name": "Ann", "age": 34}


@pytest.mark.parametrize("seed", range(5))
def test_adaptive_consistency_stops_live_where_it_stops_on_the_same_replies_recorded(model, seed):
    paid = tmafc_live.adaptive_consistency_live(asked(batch=1), seed)
    again = Noisy(seed)
    samples = tuple(parse_object(again("", 1)[0]) for _ in range(40))
    recorded = Recorded(TASK.question, ("name", "age"), samples)
    assert paid.n_samples == adaptive_consistency(recorded, SETTINGS).n_samples


def test_the_method_asks_again_for_what_is_open_and_gives_what_is_settled(model):
    paid = tmafc_live.fractal_live(asked(batch=1), 1)
    prompts = [prompt for prompt, _ in model[0].requests]
    assert paid.answer == {"name": "Ann", "age": 34}
    assert paid.n_samples == len(prompts)
    assert (paid.n_tokens, paid.n_prompt_tokens) == (7 * len(prompts), 11 * len(prompts))
    assert any('take it as given: {"age": 34}' in prompt for prompt in prompts)


def test_votes_on_other_forms_make_the_method_stop_earlier(model):
    past = tuple(Record(f"q{i}", 4, 4, category) for i in range(12) for category in ("Easy", "Middle", "Hard"))
    fresh, learned = (tmafc_live.fractal_live(asked(batch=1, past=votes), 1) for votes in ((), past))
    assert learned.n_samples < fresh.n_samples


def test_scores_are_those_of_the_answer_and_its_cost():
    case = next(tmafc_live.one_form(live(), 1, 0))
    right = tmafc_live.Paid(case.truth.gold, 6, 12, 100, 50)
    scores = LIVE.score(case, right)
    assert (scores["samples"], scores["requests"], scores["tokens"], scores["prompt_tokens"]) == (6, 4, 100, 50)
    assert (scores["accuracy"], scores["component_f1"]) == (1, 1)
    assert set(scores) == {metric.name for metric in LIVE.metrics}


@pytest.mark.slow
def test_every_arm_gets_its_answer_from_the_demo_model_itself():
    case = next(tmafc_live.one_form(live()._replace(settings=Settings(0.95, 6, 5), batch=3), 1, 0))
    for arm in LIVE.arms:
        scores = LIVE.score(case, arm.run(case.given, 0))
        assert 2 <= scores["samples"] <= 6
        assert scores["tokens"] > 0
        assert scores["prompt_tokens"] > 0
