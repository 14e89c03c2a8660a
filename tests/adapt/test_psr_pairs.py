"""psr's pairs, judges, files, strips and comparisons: what goes in, what is dropped, what is kept, what is refused."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from psr_helpers import TEMPLATE, pairs, text, tiny, tokenizer

from assay._core.errors import InputError
from assay.adapt.psr import (
    PSR,
    Coefficients,
    ConstantSteering,
    DiffInMeans,
    ProjectionSteering,
    PromptSteering,
    calibrate,
    compare,
    judged,
    load,
    make_pairs,
    read_pairs,
    save,
    strip_html,
    to_control_vector,
)
from assay.adapt.psr.files import fingerprint
from assay.adapt.psr.judges import length_judge, pattern_judge, perplexity_judge, surprises, word_judge
from assay.adapt.psr.pairs import Example, encode, encode_prompt, prompts
from assay.adapt.psr.strip import strip_page

pytestmark = pytest.mark.usefixtures("one_thread")


# ------------------------------------------------------------------------------------------------- tokens and spans


def test_the_span_is_the_last_token_of_the_prompt_and_the_answer():
    one = Example(base=(1, 2, 3), steered=(9, 9, 1, 2, 3), response=(7, 8))
    assert (one.base_span, one.steered_span) == ([2, 3, 4], [4, 5, 6])


def test_the_question_is_in_the_span_where_it_is_asked_for():
    pair = {
        "prompt": text(1, 5, 6, 2),
        "steered_prompt": text(90, 91, 1, 5, 6, 2),
        "response": text(7),
        "question": "w5 w6",
    }
    (one,) = encode([pair], tokenizer(), "question_and_answer")
    assert (one.base_span, one.steered_span) == ([1, 2, 3, 4], [3, 4, 5, 6])


def test_messages_go_through_the_template_and_the_last_of_them_is_the_question():
    asked = [{"role": "system", "content": "w10"}, {"role": "user", "content": "w5 w6"}]
    ids, where = encode_prompt(asked, tokenizer(), "w5 w6")
    assert ids == [90, 10, 92, 91, 5, 6, 92, 93]
    assert list(where) == [4, 5]


def test_the_tokens_of_the_answer_are_the_same_behind_both_prompts():
    for one in encode(pairs(4), tokenizer()):
        assert len(one.base_span) == len(one.steered_span) == len(one.response) + 1
        assert len(one.steered) == len(one.base) + 2


def test_an_answer_that_does_not_fit_is_cut():
    pair = {"prompt": text(1), "steered_prompt": text(9, 1), "response": text(*range(20, 30))}
    (one,) = encode([pair], tokenizer(), longest=6)
    assert one.response == (20, 21, 22, 23)


GOOD = {"prompt": "w1", "steered_prompt": "w9 w1", "response": "w2"}
BAD_PAIRS = {
    "same prompt": ({**GOOD, "steered_prompt": "w1"}, r"^pair 1: the steered prompt is the same as the prompt, so"),
    "no answer": ({**GOOD, "response": ""}, r"^pair 1: the response is empty$"),
    "nothing fits": (
        {**GOOD, "steered_prompt": text(*range(8))},
        r"^pair 1: nothing of the response fits: the prompt has 8 tokens of 6$",
    ),
    "no key": ({"prompt": "w1", "response": "w2"}, r"^pair 1: the key 'steered_prompt' is missing; found 'prompt', "),
    "empty prompt": ({**GOOD, "prompt": ""}, r"^pair 1: a prompt is empty; expected at least one token$"),
}  # fmt: skip


@pytest.mark.parametrize(("pair", "message"), BAD_PAIRS.values(), ids=BAD_PAIRS)
def test_a_broken_pair_is_named(pair, message):
    with pytest.raises(InputError, match=message):
        encode([pair], tokenizer(), longest=6)


BAD_QUESTIONS = {
    "elsewhere": ({**GOOD, "question": "w3"}, r"^pair 1: the question 'w3' does not occur in its prompt$"),
    "unknown": (GOOD, r"^pair 1: span='question_and_answer' needs the key 'question' beside a prompt that is a text$"),
}


@pytest.mark.parametrize(("pair", "message"), BAD_QUESTIONS.values(), ids=BAD_QUESTIONS)
def test_a_question_that_is_not_there_is_named(pair, message):
    with pytest.raises(InputError, match=message):
        encode([pair], tokenizer(), "question_and_answer")


def test_no_pairs_are_refused():
    with pytest.raises(InputError, match=r"^there are no pairs; expected at least one$"):
        encode([], tokenizer())


def test_messages_without_a_template_are_refused():
    with pytest.raises(
        InputError, match=r"^the tokenizer has no chat template, so messages cannot be used; give prompts"
    ):
        encode_prompt([{"role": "user", "content": "w1"}], tokenizer(template=None))


def test_the_instruction_is_the_system_message_or_stands_before_the_question():
    with_system = prompts("w5", "w60 w61", tokenizer())
    assert with_system["steered_prompt"][0] == {"role": "system", "content": "w60 w61"}
    refusing = TEMPLATE.replace("w90 ", "{{ raise_exception('no system') }}")
    assert prompts("w5", "w60 w61", tokenizer(refusing))["steered_prompt"] == [
        {"role": "user", "content": "w60 w61\n\nw5"}
    ]
    ignoring = TEMPLATE.replace("{{ m['content'] }}", "{% if m['role'] != 'system' %}{{ m['content'] }}{% endif %}")
    assert prompts("w5", "w60 w61", tokenizer(ignoring))["steered_prompt"] == [
        {"role": "user", "content": "w60 w61\n\nw5"}
    ]
    assert prompts("w5", "w60 w61", tokenizer(None))["steered_prompt"] == "w60 w61\n\nw5\n"


def test_answers_are_sampled_under_the_instruction_by_seed():
    model, words = tiny(), tokenizer()
    first, again, other = (
        make_pairs(model, words, ["w5 w6", "w7"], "w9 w10", max_new_tokens=6, seed=seed) for seed in (0, 0, 1)
    )
    assert first == again
    assert [pair["response"] for pair in first] != [pair["response"] for pair in other]
    assert all(len(pair["response"].split()) <= 6 for pair in first)


def test_answers_that_are_missing_are_sampled_when_fitting():
    model = tiny()
    open_pairs = [{key: pair[key] for key in ("prompt", "steered_prompt")} for pair in pairs(2)]
    psr = PSR(model, tokenizer(), layers=1).fit(open_pairs, downstream=False, epochs=2)
    assert len(psr.losses_) == 2
    assert all("response" not in pair for pair in open_pairs)


def test_sampled_answers_that_are_empty_are_left_out_when_fitting(monkeypatch):
    open_pairs = [{key: pair[key] for key in ("prompt", "steered_prompt")} for pair in pairs(3)]
    monkeypatch.setattr("assay.adapt.psr.steering.respond", lambda *_, **__: ["w5", " ", "w6"])
    ready = PSR(tiny(), tokenizer(), layers=1).prepared([*open_pairs, GOOD])
    assert [pair["response"] for pair in ready] == ["w5", "w6", "w2"]


def test_answers_are_sampled_from_the_whole_distribution_whatever_the_model_s_settings_cut_away():
    model, words = tiny(), tokenizer()
    asked = (model, words, ["w5 w6", "w7"], "w9 w10")
    whole = make_pairs(*asked, max_new_tokens=6)
    cut = {"top_p": 0.01, "top_k": 1, "min_p": 0.9, "typical_p": 0.01, "epsilon_cutoff": 0.5, "eta_cutoff": 0.5,
           "top_h": 0.01, "repetition_penalty": 5.0, "no_repeat_ngram_size": 1}  # fmt: skip
    for name, value in cut.items():
        setattr(model.generation_config, name, value)
    assert make_pairs(*asked, max_new_tokens=6) == whole


def test_a_model_left_in_training_answers_without_dropout_and_stays_in_it():
    words = tokenizer()
    model = tiny("gpt2")
    psr = PSR(model, words, layers=1)
    with torch.no_grad():
        for parameter in psr.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(1))

    def seen():
        return (
            psr.surprise(pairs(2)),
            psr.coefficients("w5 w6", "w20 w21").strengths.tolist(),
            psr.generate(["w5 w6"], max_new_tokens=6),
            make_pairs(model, words, ["w5 w6"], "w9 w10", max_new_tokens=6),
            surprises(model, words, ["w5"], ["w20 w21"]).tolist(),
        )

    expected = seen()
    model.train()
    assert seen() == expected
    assert all(module.training for module in model.modules())


def test_no_questions_and_no_instruction_are_refused():
    with pytest.raises(InputError, match=r"^questions is empty; expected at least one$"):
        make_pairs(tiny(), tokenizer(), [], "w9")
    with pytest.raises(InputError, match=r"^instruction is empty; expected what the steering prompt asks for$"):
        make_pairs(tiny(), tokenizer(), ["w5"], " ")


def test_a_table_of_pairs_is_read_with_its_strengths(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({**GOOD, "alpha": 0.7}) + "\n", encoding="utf-8")
    assert read_pairs(path) == [{**GOOD, "alpha": 0.7}]


# ----------------------------------------------------------------------------------------------------------- judges


def test_judges_drop_what_is_weak_and_the_score_becomes_alpha():
    told = [{**GOOD, "response": said} for said in ("w2 w3", "w2", "w4", "w2 w3 w4 w5 w6")]
    kept = judged(told, word_judge(["w2", "w3"], enough=2), length_judge(3))
    assert [(pair["response"], pair["alpha"]) for pair in kept] == [("w2 w3", 1.0), ("w2", 0.5)]


def test_where_no_pair_is_left_it_is_said_which_judge_dropped_how_many():
    told = [{**GOOD, "response": said} for said in ("w4", "w5", "w2 w2 w2 w2")]
    message = r"^no pair is left of 3: the judge of coherence dropped 1, the judge of attribute dropped 2$"
    with pytest.raises(InputError, match=message):
        judged(told, word_judge(["w2"], enough=1), length_judge(2))


def test_a_score_beyond_one_is_refused():
    with pytest.raises(InputError, match=r"^a judge gave 2.0; expected a number from 0 to 1$"):
        judged([GOOD], lambda prompt, response: 2.0)


@given(st.text())
def test_scores_lie_between_zero_and_one(said):
    for judge in (word_judge(["a", "b"]), length_judge(3), pattern_judge("a+")):
        assert 0.0 <= judge("", said) <= 1.0


def test_the_perplexity_of_an_answer_is_the_same_in_a_batch_and_by_hand():
    model, words = tiny(), tokenizer()
    found = surprises(model, words, [text(5, 6), text(7), "w8"], [text(20), text(21, 22, 23), ""])
    with torch.no_grad():
        logits = model(torch.tensor([[7, 21, 22, 23]])).logits[0, :3].log_softmax(-1)
    assert found[1] == pytest.approx(-float(logits[range(3), [21, 22, 23]].mean()), abs=1e-5)
    assert math.isnan(found[2])
    perplexity = math.exp(found[1])
    assert perplexity_judge(model, words, 2 * perplexity)("w7", text(21, 22, 23)) == 1.0
    assert perplexity_judge(model, words, perplexity / 2)("w7", text(21, 22, 23)) == pytest.approx(0.5, rel=1e-4)


# ------------------------------------------------------------------------------------------------------------ files


@pytest.mark.parametrize("kind", [PSR, ConstantSteering, DiffInMeans, ProjectionSteering])
def test_what_was_saved_steers_to_the_bit_as_before(tmp_path, kind):
    model, words = tiny(), tokenizer()
    made = kind(model, words, layers=[0, 2])
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(3))
    save(made, tmp_path / "kept")
    again = load(tmp_path / "kept", model, words)
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad(), made.steer(0.3):
        expected = model(ids).logits
    with torch.no_grad(), again.steer(0.3):
        assert torch.equal(model(ids).logits, expected)
    assert type(again) is kind


def test_what_was_learned_on_another_model_is_refused(tmp_path):
    save(PSR(tiny(seed=0), tokenizer(), layers=1), tmp_path)
    with pytest.raises(InputError, match=r"was learned on another model than this LlamaForCausalLM; load that one$"):
        load(tmp_path, tiny(seed=1), tokenizer())


def test_the_mark_of_a_model_is_the_same_in_half_precision():
    model = tiny()
    before = fingerprint(model)
    assert fingerprint(model.to(torch.bfloat16)) == before


BROKEN = {
    "missing": (None, r"holds no steering.json; expected a folder that save or `assay use psr train` wrote$"),
    "no json": ("{", r"steering.json is broken: "),
    "a key less": ('{"kind": "psr"}', r"steering.json: layers is missing or of another type than list$"),
    "another kind": (
        '{"version": 1, "kind": "magic", "layers": [1], "span": "answer_only", "blocks": "b", "model": "m"}',
        r"steering.json: version 1, kind 'magic'; this version of Assay reads version 1 of psr, constant, ",
    ),
}


@pytest.mark.parametrize(("said", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_folder_is_named(tmp_path, said, message):
    if said is not None:
        (tmp_path / "steering.json").write_text(said, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        load(tmp_path, tiny(), tokenizer())


def test_broken_weights_are_named(tmp_path):
    model = tiny()
    save(PSR(model, tokenizer(), layers=1), tmp_path)
    (tmp_path / "steering.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"steering.safetensors cannot be read: "):
        load(tmp_path, model, tokenizer())


def test_a_constant_vector_is_written_as_repeng_and_llama_cpp_read_it(tmp_path):
    import gguf

    model = tiny()
    made = ConstantSteering(model, tokenizer(), layers=[1, 2])
    with torch.no_grad():
        made.directions.normal_(generator=torch.Generator().manual_seed(0))
    to_control_vector(made, tmp_path / "vector.gguf", alpha=2.0)
    reader = gguf.GGUFReader(tmp_path / "vector.gguf")

    def field(name):
        found = reader.get_field(name)
        return found.parts[found.data[0]]

    assert bytes(field("general.architecture")).decode() == "controlvector"
    assert bytes(field("controlvector.model_hint")).decode() == "llama"
    assert int(field("controlvector.layer_count")[0]) == 2
    found = {tensor.name: tensor.data for tensor in reader.tensors}
    assert set(found) == {"direction.1", "direction.2"}
    np.testing.assert_array_equal(found["direction.2"], 2 * made.directions[1].detach().numpy())
    assert found["direction.1"].dtype == np.float32


def test_a_control_vector_read_as_repeng_reads_it_gives_our_logits_where_every_position_is_steered(tmp_path):
    """The reading is that of repeng's ControlVector.import_gguf, the adding that of its ControlModule."""
    import gguf

    model = tiny()
    made = ConstantSteering(model, tokenizer(), layers=[1, 2])
    with torch.no_grad():
        made.directions.normal_(generator=torch.Generator().manual_seed(0))
    to_control_vector(made, tmp_path / "vector.gguf", alpha=0.5)
    reader = gguf.GGUFReader(tmp_path / "vector.gguf")
    read = {int(tensor.name.split(".")[1]): torch.tensor(np.array(tensor.data)) for tensor in reader.tensors}
    ids = torch.tensor([[5, 6, 7, 8]])
    handles = [
        model.model.layers[layer].register_forward_hook(lambda _, __, out, vector=vector: out + vector)
        for layer, vector in read.items()
    ]
    with torch.no_grad():
        theirs = model(ids).logits
        for handle in handles:
            handle.remove()
        with made.steer(0.5, mask=torch.ones(1, 4, dtype=torch.bool)):
            assert torch.equal(model(ids).logits, theirs)


def test_only_constant_vectors_above_the_first_layer_are_control_vectors(tmp_path):
    model = tiny()
    with pytest.raises(InputError, match=r"^a control vector is the same at every token, and psr is not; export "):
        to_control_vector(PSR(model, tokenizer(), layers=1), tmp_path / "v.gguf")
    with pytest.raises(InputError, match=r"^layer 0 has no place in a control vector: "):
        to_control_vector(ConstantSteering(model, tokenizer(), layers=0), tmp_path / "v.gguf")
    assert not (tmp_path / "v.gguf").exists()


# ----------------------------------------------------------------------------------------------- strips, comparisons


def test_the_coefficients_are_those_of_the_states_at_the_span():
    model = tiny()
    psr = PSR(model, tokenizer(), layers=1)
    with torch.no_grad():
        for parameter in psr.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(1))
        states = model(torch.tensor([[5, 6, 20, 21]]), output_hidden_states=True).hidden_states[2][0, 1:]
        expected = torch.relu(states @ psr.weights[0] + psr.biases[0])
    found = psr.coefficients(text(5, 6), text(20, 21))
    assert found.tokens == ("w6", "w20", "w21")
    assert found.n_prompt == 1
    np.testing.assert_allclose(found.strengths[0], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.shifts[0], expected * psr.directions[0].detach().norm(), rtol=1e-4, atol=1e-4)
    assert found.to_frame()["token"].tolist() == list(found.tokens)
    assert found.summary().startswith("3 tokens, 1 of the prompt\nlayer   1  mean")


def made_up(tokens=("a", "<script>"), strengths=((1.0, -0.5),)):
    return Coefficients(tokens, tuple(range(len(strengths))), np.array(strengths), np.array(strengths), 1)


def test_a_strip_escapes_what_a_model_said_and_is_darkest_at_the_largest():
    strip = strip_html(made_up(), title="<b>")
    assert "<script>" not in strip
    assert "&lt;script&gt;" in strip
    assert "&lt;b&gt;" in strip
    assert "rgba(0,114,178,0.80)" in strip
    assert "rgba(213,94,0,0.40)" in strip
    page = strip_page([strip], "A & B")
    assert page.startswith("<!doctype html>")
    assert "<title>A &amp; B</title>" in page


def test_a_strip_of_nothing_is_white():
    assert "rgba(0,114,178,0.00)" in strip_html(made_up(strengths=((0.0, 0.0),)))


def test_a_strip_of_another_layer_is_refused():
    with pytest.raises(InputError, match=r"^layer=7: coefficients are of 0$"):
        strip_html(made_up(), layer=7)


def test_the_picture_has_a_line_a_layer_and_names_its_axes():
    from matplotlib import pyplot as plt

    ax = made_up(strengths=((1.0, 2.0), (0.0, 1.0))).plot()
    assert [line.get_label() for line in ax.get_legend_handles_labels()[0]] == ["layer 0", "layer 1"]
    assert ax.get_ylabel() == "coefficient λ (1: one z)"
    plt.close(ax.figure)


@given(st.floats(0.2, 5.0), st.booleans())
def test_bisection_finds_the_root_of_a_line_rising_or_falling(root, falls):
    sign = -1 if falls else 1
    found = calibrate(lambda alpha: sign * (alpha - root), 0.0, 0.0, 6.0, n_steps=20)
    assert found.alpha == pytest.approx(root, abs=6 / 2**19)


def test_bisection_stops_within_the_tolerance():
    assert len(calibrate(lambda alpha: alpha, 2.9, 0.0, 6.0, n_steps=20, tolerance=0.2).tried) == 3


def test_a_target_out_of_reach_is_refused_with_what_was_measured():
    message = r"^the target 9 does not lie between the values at alpha=0 \(0\) and 2 \(4\); widen the range or choose "
    with pytest.raises(InputError, match=message):
        calibrate(lambda alpha: alpha**2, 9, 0, 2)


def test_a_comparison_has_no_steering_at_one_and_the_prompt_s_own_answers():
    model, words = tiny(), tokenizer()
    told = make_pairs(model, words, ["w5 w6", "w7", "w8"], "w9 w10", max_new_tokens=6)
    psr = PSR(model, words, layers=1).fit(told, downstream=False, epochs=20)
    judge = word_judge([f"w{n}" for n in range(0, 97, 2)], enough=2)
    table = compare({"psr": psr}, told, judge, max_new_tokens=5).set_index("method")
    assert list(table.index) == ["no steering", "prompt", "psr"]
    assert table.loc["no steering", "rmse"] == 1.0
    assert table.loc["prompt", "rmse"] == 0.0
    assert table.loc["psr", "rmse"] == pytest.approx(list(psr.relative_rmse(told).values())[-1])
    own = PromptSteering(model, words, "w9 w10").generate(["w5 w6", "w7", "w8"], max_new_tokens=5)
    assert table.loc["prompt", "attribute_score"] == pytest.approx(np.mean([judge("", said) for said in own]))
    assert (table["perplexity_low"] <= table["perplexity"]).all()


def test_nothing_to_compare_and_two_models_are_refused():
    model, words = tiny(), tokenizer()
    with pytest.raises(InputError, match=r"^0 ways of steering and 1 pairs: expected at least one of each$"):
        compare({}, [GOOD], length_judge(3))
    two = {"a": PSR(model, words, layers=1), "b": PSR(tiny(seed=1), words, layers=1)}
    with pytest.raises(InputError, match=r"^b steers another model than a; compare on one$"):
        compare(two, [GOOD], length_judge(3), max_new_tokens=2)
