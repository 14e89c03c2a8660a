"""Answering live: prompts, anchors, the difficulty, what is counted; functions and transformers models as samplers."""

import json
import pickle
import warnings

import pytest

from assay._core.errors import InputError
from assay.decode.tmafc import TMAFC, History, LoggedSampler, Prior, Reply, TransformersSampler
from assay.decode.tmafc.prompts import (
    anchors_in,
    answer_prompt,
    components_of,
    difficulty_in,
    difficulty_prompt,
    parse_object,
)


class Scripted:
    """A model that answers by what it is asked, and remembers the prompts."""

    def __init__(self, answer, anchors='{"anchors": []}', difficulty="Easy"):
        self.replies = {"sub-questions": anchors, "How hard": difficulty}
        self.answer, self.prompts = answer, []

    def __call__(self, prompt, n):
        self.prompts.append(prompt)
        for mark, reply in self.replies.items():
            if mark in prompt:
                return [reply] * n
        reply = self.answer(len(self.prompts)) if callable(self.answer) else self.answer
        return [reply] * n


def test_a_schema_is_answered_component_by_component():
    model = Scripted('{"name": "Ann", "age": 34}')
    found = TMAFC(model, schema=["name", "age"], classifier="rule").answer("Ann is 34.")
    assert found.answer == {"name": "Ann", "age": 34}
    assert (found.n_samples, found.calls_overhead, found.converged) == (4, 0, True)


def test_settled_components_are_given_to_the_model_and_not_asked_for():
    ages = iter(range(100))
    model = Scripted(lambda number: json.dumps({"name": "Ann", "age": next(ages)}))
    TMAFC(model, schema=["name", "age"], classifier="rule", n_max=6).answer("Ann?")
    assert 'take it as given: {"name": "Ann"}' in model.prompts[4]
    assert '"name"\n' not in model.prompts[4].split("exactly these keys")[1]
    assert "take it as given" not in model.prompts[3]


def test_anchors_are_one_overhead_call_and_components_of_the_vote():
    reply = '{"anchor_1": 3, "anchor_2": 4, "final_answer": 7}'
    model = Scripted(reply, anchors='{"anchors": ["apples?", "pears?"]}')
    found = TMAFC(model, classifier="rule").answer("How many fruits?")
    assert found.answer == 7
    assert found.calls_overhead == 1
    assert [vote.id for vote in found.components] == ["anchor_1", "anchor_2", "final_answer"]
    assert '"anchor_1": apples?' in model.prompts[1]


def test_without_anchors_the_final_answer_is_the_only_component():
    found = TMAFC(Scripted('{"final_answer": 7}', anchors="I have none"), classifier="rule").answer("How many?")
    assert [vote.id for vote in found.components] == ["final_answer"]
    assert found.n_samples == 4


def test_the_model_may_judge_the_difficulty_for_one_more_call():
    model = Scripted('{"a": 1}', difficulty="Hard.")
    found = TMAFC(model, schema=["a"]).answer("?!")
    assert (found.category, found.calls_overhead) == ("Hard", 1)


def test_the_classifier_is_shown_past_questions_and_never_the_question_itself():
    model = Scripted('{"a": 1}')
    method = TMAFC(model, schema=["a"])
    list(method.answer_many(["first", "second", "first"]))
    asked = [prompt for prompt in model.prompts if "How hard" in prompt]
    assert "Question: first\nDifficulty: Easy" in asked[1]
    assert asked[2].count("Question: first") == 1


@pytest.mark.parametrize(
    ("reply", "label"), [("hard", "Hard"), ("This is Easy!", "Easy"), ("Easy or Hard", "Middle"), ("?", "Middle")]
)
def test_a_difficulty_that_is_unclear_is_middle(reply, label):
    assert difficulty_in(reply) == label


def test_a_classifier_function_with_an_unknown_label_falls_back_to_middle():
    assert TMAFC(Scripted('{"a": 1}'), schema=["a"], classifier=lambda q: "tough").answer("?").category == "Middle"


def test_the_prior_comes_from_the_questions_before():
    method = TMAFC(Scripted('{"a": 1}'), schema=["a"], classifier=lambda question: "Easy")
    answers = list(method.answer_many(["1", "2", "3", "4"]))
    assert [found.n_samples for found in answers] == [4, 4, 4, 2]
    assert answers[2].prior == Prior()
    assert answers[3].prior == pytest.approx((1.0, 0.01))


def test_without_calibration_the_prior_stays_uniform_and_nobody_judges_the_difficulty():
    method = TMAFC(Scripted('{"a": 1}'), schema=["a"], calibrate=False)
    answers = list(method.answer_many(["1", "2", "3", "4"]))
    assert {(found.n_samples, found.calls_overhead) for found in answers} == {(4, 0)}
    assert method.history.records == ()


def test_the_history_file_carries_over_to_the_next_program(tmp_path):
    path = tmp_path / "history.jsonl"
    options = {"schema": ["a"], "classifier": lambda question: "Easy"}
    list(TMAFC(Scripted('{"a": 1}'), history=path, **options).answer_many(["1", "2", "3"]))
    assert TMAFC(Scripted('{"a": 1}'), history=path, **options).answer("4").n_samples == 2


def test_tokens_are_summed_over_samples_and_overhead_calls():
    def sampler(prompt, n):
        return [Reply('{"a": 1}', tokens=5, prompt_tokens=0 if i else 20) for i in range(n)]

    found = TMAFC(sampler, schema=["a"]).answer("?")
    assert (found.n_samples, found.calls_overhead) == (4, 1)
    assert (found.n_tokens, found.n_prompt_tokens) == (5 * 5, 5 * 20)


def test_tokens_are_unknown_where_the_sampler_does_not_count_them():
    assert TMAFC(Scripted('{"a": 1}'), schema=["a"]).answer("?").n_tokens is None


def test_batches_report_samples_that_came_too_late():
    found = TMAFC(Scripted('{"a": 1}'), schema=["a"], classifier="rule", batch_rounds=3).answer("?")
    assert (found.n_samples, found.n_unused) == (6, 2)


def test_the_answer_prints_its_votes_and_its_cost():
    text = TMAFC(Scripted('{"a": 1}'), schema=["a"], classifier="rule").answer("?").summary()
    assert "4 samples + 0 overhead calls; Easy, prior (1.00, 1.00); settled" in text
    assert "0.969" in text


def test_a_model_that_does_not_write_json_is_reported_after_twenty_replies():
    model = Scripted("The answer is 7.")
    with pytest.raises(
        InputError, match=r"does not follow the JSON format: 20 of 20 replies unparsed.*'The answer is 7"
    ):
        TMAFC(model, schema=["a"], classifier="rule").answer("?")


def test_samples_that_never_differ_are_reported_once():
    method = TMAFC(Scripted('{"a": 1}'), schema=["a"], classifier="rule")
    with pytest.warns(UserWarning, match="is the temperature 0") as caught:
        list(method.answer_many(map(str, range(9))))
    assert len(caught) == 1


def test_samples_that_differ_are_not_reported():
    model = Scripted(lambda number: json.dumps({"a": 1, "b": int(number % 4 == 0)}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(TMAFC(model, schema=["a", "b"], classifier="rule").answer_many(map(str, range(9))))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"schema": []}, "the schema has no keys"),
        ({"schema": {"properties": {}}}, "the schema has no keys"),
        ({"schema": ["a", "a"]}, "the component 'a' is named twice"),
        ({"schema": "name"}, "the schema is 'name'; expected names of components"),
        ({"tau": 0.5}, r"tau is 0\.5"),
        ({"n_max": 1}, "n_max is 1 and min_samples is 2"),
        ({"anchors": ["x", "x"]}, "expected at most 5 different sub-questions"),
        ({"anchors": "none"}, "anchors is 'none'"),
        ({"classifier": "guess"}, "classifier is 'guess'; expected 'llm', 'rule' or a function"),
    ],
)
def test_a_parameter_that_cannot_be_used_is_named(arguments, message):
    with pytest.raises(InputError, match=message):
        TMAFC(Scripted("{}"), **arguments)


def test_an_empty_question_is_refused():
    with pytest.raises(InputError, match="the question is empty"):
        TMAFC(Scripted("{}"), schema=["a"]).answer("  ")


def test_a_sampler_that_returns_too_few_is_refused():
    with pytest.raises(InputError, match="returned 0 samples where 1 were asked for"):
        TMAFC(lambda prompt, n: [], schema=["a"], classifier="rule").answer("?")


def test_a_pydantic_model_is_a_schema():
    pydantic = pytest.importorskip("pydantic")
    invoice = pydantic.create_model("Invoice", total=(int, ...), currency=(str, pydantic.Field(description="ISO 4217")))
    assert components_of(invoice) == {"total": "integer", "currency": "string, ISO 4217"}


@pytest.mark.parametrize(
    ("reply", "parsed"),
    [
        ('{"a": 1}', {"a": 1}),
        ('Here: {"a": {"b": 2}} and {"c": 3}', {"a": {"b": 2}}),
        ('{not json} but {"a": 1}', {"a": 1}),
        ('[{"a": 1}]', {"a": 1}),
        ("[1, 2]", None),
        ('{"a": 1', None),
        ("", None),
        ('{"a":' * 100_000, None),
    ],
)
def test_the_first_json_object_of_a_reply_is_read(reply, parsed):
    assert parse_object(reply) == parsed


def test_at_most_five_anchors_are_used_and_repeated_ones_are_one():
    reply = json.dumps({"anchors": ["a?", "a?", "b?", 3, "", "c?", "d?", "e?", "f?"]})
    assert [*anchors_in(reply).values()][:-1] == ["a?", "b?", "c?", "d?", "e?"]


def test_names_with_quotes_stay_one_key_in_the_prompt():
    assert '"say \\"hi\\"": a greeting' in answer_prompt("?", {'say "hi"': "a greeting"}, {})


def test_the_difficulty_prompt_ends_where_the_label_goes():
    assert difficulty_prompt("2 + 2?", [("1 + 1?", "Easy")]).endswith(
        "Question: 1 + 1?\nDifficulty: Easy\n\nQuestion: 2 + 2?\nDifficulty:"
    )


# --------------------------------------------------------------------------------------------------- log of replies


def counting(replies):
    calls = []

    def sampler(prompt, n):
        calls.append(n)
        return [next(replies) for _ in range(n)]

    return sampler, calls


def test_a_stopped_run_takes_its_replies_from_the_log_and_asks_for_the_rest(tmp_path):
    log = tmp_path / "replies.jsonl"
    first, _ = counting(iter(["a", "b", "c"]))
    LoggedSampler(first, log)("?", 3)
    second, calls = counting(iter(["d", "e"]))
    assert LoggedSampler(second, log)("?", 5) == ["a", "b", "c", "d", "e"]
    assert calls == [2]


def test_a_prompt_that_is_asked_twice_gets_two_replies_and_not_the_same_one_again(tmp_path):
    sampler, _ = counting(iter("abcd"))
    logged = LoggedSampler(sampler, tmp_path / "log.jsonl")
    assert [logged("?", 1), logged("?", 1)] == [["a"], ["b"]]


def test_replies_of_another_sampler_are_left_alone(tmp_path):
    one, two = counting(iter("abc"))[0], counting(iter("xyz"))[0]
    one.name, two.name = "one", "two"
    LoggedSampler(one, tmp_path / "log.jsonl")("?", 2)
    assert LoggedSampler(two, tmp_path / "log.jsonl")("?", 1) == ["x"]


def test_the_log_keeps_what_a_reply_cost(tmp_path):
    LoggedSampler(lambda prompt, n: [Reply("a", 3, 9)] * n, tmp_path / "log.jsonl")("?", 1)
    (reply,) = LoggedSampler(lambda prompt, n: [], tmp_path / "log.jsonl")("?", 1)
    assert (reply, reply.tokens, reply.prompt_tokens) == ("a", 3, 9)


def test_a_log_that_is_something_else_is_refused(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"x": 1}\n', encoding="utf-8")
    with pytest.raises(InputError, match="line 1: expected the texts 'prompt' and 'reply'"):
        LoggedSampler(lambda prompt, n: [], tmp_path / "log.jsonl")


def test_an_interrupted_answer_goes_on_without_paying_twice(tmp_path):
    replies = iter(['{"a": 1, "b": 1}', '{"a": 1, "b": 2}'])

    def breaks(prompt, n):
        return [next(replies)]

    def goes_on(prompt, n):
        asked.append(prompt)
        return ['{"a": 1, "b": 1}'] * n

    asked = []
    options = {"schema": ["a", "b"], "classifier": "rule"}
    with pytest.raises(RuntimeError):  # StopIteration inside a function that a generator drives
        TMAFC(_guarded(LoggedSampler(breaks, tmp_path / "log.jsonl")), **options).answer("?")
    found = TMAFC(LoggedSampler(goes_on, tmp_path / "log.jsonl"), **options).answer("?")
    assert found.n_samples == len(asked) + 2


def _guarded(sampler):
    def call(prompt, n):
        try:
            return sampler(prompt, n)
        except StopIteration:
            raise RuntimeError("the connection is gone") from None

    call.name = sampler.name
    return call


def test_a_reply_pickles_with_its_cost():
    reply = pickle.loads(pickle.dumps(Reply("a", 3, 9)))
    assert (reply, reply.tokens, reply.prompt_tokens) == ("a", 3, 9)


def test_the_method_pickles_and_answers_as_before():
    method = pickle.loads(pickle.dumps(TMAFC(same_reply, schema=["a"], classifier="rule")))
    assert method.answer("?").answer == {"a": 1}


def same_reply(prompt, n):
    return ['{"a": 1}'] * n


# ------------------------------------------------------------------------------------------------ transformers models


@pytest.fixture(scope="module")
def tiny():
    """A random two-layer Llama over bytes-like tokens, with a real tokenizer."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    alphabet = [chr(code) for code in range(32, 127)]
    vocabulary = {token: index for index, token in enumerate(["<end>", "<unk>", *alphabet])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>", unk_token="<unk>")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, eos_token_id=0, bos_token_id=None,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval(), tokenizer


def test_a_transformers_model_gives_as_many_replies_as_asked_in_batches(tiny):
    replies = TransformersSampler(*tiny, max_new_tokens=6, batch_size=3)("hello", 7)
    assert len(replies) == 7
    assert len(set(replies)) > 1
    assert [bool(reply.prompt_tokens) for reply in replies] == [True, False, False, True, False, False, True]


def test_the_tokens_of_a_reply_end_with_the_first_end_token(tiny):
    replies = TransformersSampler(*tiny, max_new_tokens=60, temperature=1.0)("hello", 16)
    # Every character is one token and the end itself is one more; a reply without an end has all 60.
    for reply in replies:
        ended = reply.tokens < 60
        assert len(reply.replace(" ", "")) <= reply.tokens - ended
    assert any(reply.tokens < 60 for reply in replies)


def test_the_same_seed_gives_the_same_replies_and_a_repeated_prompt_new_ones(tiny):
    one, two = (TransformersSampler(*tiny, max_new_tokens=8, seed=3) for _ in range(2))
    first = one("hello", 4)
    assert first == two("hello", 4)
    assert one("hello", 4) != first


def test_sampling_leaves_the_global_random_state_alone(tiny):
    import torch

    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    TransformersSampler(*tiny, max_new_tokens=4)("hello", 2)
    assert torch.equal(torch.rand(3), expected)


def test_temperature_zero_is_warned_about(tiny):
    with pytest.warns(UserWarning, match="temperature 0: all samples of a question will be equal"):
        TransformersSampler(*tiny, temperature=0)


def test_a_negative_temperature_is_refused(tiny):
    with pytest.raises(InputError, match=r"temperature is -1; expected a number above 0"):
        TransformersSampler(*tiny, temperature=-1)


@pytest.mark.slow
def test_the_demo_model_fills_in_a_form_in_json():
    from assay.models import demo_lm

    sampler = TransformersSampler(*demo_lm(), max_new_tokens=56)
    prompt = answer_prompt("Aisha Khan, 60, a baker, moved to Madrid last year.", {"name": "", "age": ""}, {})
    parsed = [parse_object(reply) for reply in sampler(prompt, 16)]
    names = [sample["name"] for sample in parsed if sample and "name" in sample]
    assert names.count("Aisha Khan") > 8


def test_a_random_model_is_told_that_it_writes_no_json(tiny):
    sampler = TransformersSampler(*tiny, max_new_tokens=4, batch_size=25)
    with pytest.raises(InputError, match="does not follow the JSON format"):
        TMAFC(sampler, schema=["a"], classifier="rule", batch_rounds=25, history=History()).answer("?")


@pytest.mark.slow
def test_the_demo_model_is_sampled_live_until_the_vote_is_settled_and_what_it_said_is_not_asked_again(tmp_path):
    from assay.models import demo_lm

    lm, tokenizer = demo_lm()

    def answer(sampler):
        logged = LoggedSampler(sampler, tmp_path / "replies.jsonl")
        method = TMAFC(logged, schema=["name", "age"], classifier="rule", n_max=12, batch_rounds=4)
        return method.answer("Aisha Khan, 60, a baker, moved to Madrid last year.")

    sampler = TransformersSampler(lm, tokenizer, max_new_tokens=40)
    found = answer(sampler)
    assert found.answer["name"] == "Aisha Khan"
    assert 4 <= found.n_samples <= 12
    assert found.n_tokens > 0

    def refuses(prompt, n, /):
        raise AssertionError("asked again")

    refuses.name = sampler.name
    assert answer(refuses) == found
