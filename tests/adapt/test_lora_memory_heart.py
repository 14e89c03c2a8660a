"""The arithmetic of lora-memory: schedule, labels, distillation, merging, dividing, routing, metrics."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lora_memory_models import words

from assay._core.errors import InputError
from assay.adapt.lora_memory import (
    Document,
    Fact,
    partition,
    read_documents,
    read_facts,
    recalled,
    rouge_l,
    split_document,
)
from assay.adapt.lora_memory.facts import chunks, facts_from_table, rephrase
from assay.adapt.lora_memory.formats import Sample, Style, document_samples, parse_recipe, questions, tagged
from assay.adapt.lora_memory.merge import dare_linear, linear, ties, truncated
from assay.adapt.lora_memory.route import Router, SentenceIndex, WordIndex
from assay.adapt.lora_memory.store import Module
from assay.adapt.lora_memory.write import batches, distillation_loss, labels_of, lr_factor, pad

# ---------------------------------------------------------------------------------------------------------- schedule


def test_the_learning_rate_starts_at_zero_peaks_at_the_end_of_the_warm_up_and_ends_at_zero():
    factors = [lr_factor(step, 1000, 0.1) for step in range(1001)]
    assert factors[0] == 0.0
    assert factors[100] == max(factors) == 1.0
    assert factors[1000] == pytest.approx(0.0, abs=1e-15)


def test_without_a_warm_up_the_learning_rate_starts_at_its_peak():
    assert lr_factor(0, 10, 0.0) == 1.0


@given(st.integers(1, 30), st.integers(1, 8), st.integers(1, 40))
def test_every_sample_comes_once_before_any_comes_again(n, batch_size, n_epochs):
    per_epoch = math.ceil(n / batch_size)
    rows = list(batches(n, batch_size, n_epochs * per_epoch, seed=0))
    for epoch in range(n_epochs):
        seen = np.concatenate(rows[epoch * per_epoch : (epoch + 1) * per_epoch])
        assert sorted(seen) == list(range(n))


# ------------------------------------------------------------------------------------------------------------ labels


def test_the_true_end_is_learned_where_the_pad_token_is_the_end_token():
    end = 9
    ids, mask = pad([[1, 2, end], [1, end]], end, "right")
    assert labels_of(ids, mask, [1, 1], mask_question=False).tolist() == [[1, 2, end], [1, end, -100]]


def test_masked_questions_leave_the_answers():
    ids, mask = pad([[1, 2, 3, 9]], 9, "right")
    assert labels_of(ids, mask, [2], mask_question=True).tolist() == [[-100, -100, 3, 9]]


# ------------------------------------------------------------------------------------------------------ distillation


def some(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("mode", ["all", "kl_only", "l1_only"])
def test_a_student_that_sees_what_the_teacher_sees_has_no_loss(mode):
    logits, states, mask = some((2, 3, 7), 0), some((2, 3, 5), 1), torch.ones(2, 3)
    assert float(distillation_loss(logits, logits, states, states, mask, mode=mode)) == pytest.approx(0.0, abs=1e-12)


def test_the_divergence_is_that_of_the_tempered_distributions_times_the_temperature_squared():
    student, teacher, states = some((1, 1, 6), 0), some((1, 1, 6), 1), torch.zeros(1, 1, 2)
    t = np.exp(teacher[0, 0].numpy() / 3) / np.exp(teacher[0, 0].numpy() / 3).sum()
    s = np.exp(student[0, 0].numpy() / 3) / np.exp(student[0, 0].numpy() / 3).sum()
    loss = distillation_loss(student, teacher, states, states, torch.ones(1, 1), mode="kl_only", temperature=3.0)
    assert float(loss) == pytest.approx(9 * (t * np.log(t / s)).sum(), rel=1e-12)


def test_the_states_cost_a_tenth_of_their_relative_distance():
    logits, teacher = torch.zeros(1, 2, 3), torch.full((1, 2, 4), 2.0)
    loss = distillation_loss(logits, logits, teacher + 1.0, teacher, torch.ones(1, 2), mode="l1_only")
    assert float(loss) == pytest.approx(0.1 * 8 / 16, rel=1e-6)


def test_padding_costs_nothing_in_distillation():
    student, teacher, states = some((1, 3, 6), 0), some((1, 3, 6), 1), some((1, 3, 4), 2)
    mask = torch.tensor([[1, 1, 0]])
    short = distillation_loss(student[:, :2], teacher[:, :2], states[:, :2], 2 * states[:, :2], mask[:, :2])
    assert float(distillation_loss(student, teacher, states, 2 * states, mask)) == pytest.approx(
        float(short), rel=1e-12
    )


def test_distillation_of_a_model_in_half_precision_is_reckoned_in_single():
    parts = [some(shape, seed).bfloat16() for seed, shape in enumerate([(2, 3, 7), (2, 3, 7), (2, 3, 5), (2, 3, 5)])]
    loss = distillation_loss(*parts, torch.ones(2, 3))
    exact = distillation_loss(*(part.double() for part in parts), torch.ones(2, 3))
    assert loss.dtype is torch.float32
    assert float(loss) == pytest.approx(float(exact), rel=1e-5)


# ------------------------------------------------------------------------------------------------------------- merge

ONE, TWO = torch.tensor([3.0, -1.0, 0.5, 2.0]), torch.tensor([-2.0, -4.0, 0.1, 1.0])


def test_ties_gives_the_example_by_hand():
    # Kept at density 0.5: [3, 0, 0, 2] and [-2, -4, 0, 0]; signs of the sums +, -, none, +.
    assert ties([ONE, TWO], [1.0, 1.0], density=0.5).tolist() == [3.0, -4.0, 0.0, 2.0]


def test_the_order_of_adapters_does_not_matter_to_ties():
    assert torch.equal(ties([ONE, TWO], [1, 1]), ties([TWO, ONE], [1, 1]))


def test_ties_by_frequency_follows_the_many_small_ones():
    three = [torch.tensor([5.0]), torch.tensor([-1.0]), torch.tensor([-2.0])]
    assert ties(three, [1, 1, 1], density=1.0, sign="frequency").tolist() == [-1.5]
    assert ties(three, [1, 1, 1], density=1.0, sign="total").tolist() == [5.0]


def test_ties_of_one_tensor_at_full_density_is_that_tensor():
    assert torch.equal(ties([ONE], [1.0], density=1.0), ONE)


def test_dare_keeps_the_mean():
    ones = torch.ones(200_000)
    merged = dare_linear([ones], [1.0], density=0.25, generator=torch.Generator().manual_seed(0))
    # Each entry is 4 with probability 1/4: standard deviation sqrt(3), so six standard errors are 6 sqrt(3 / n).
    assert float(merged.mean()) == pytest.approx(1.0, abs=6 * math.sqrt(3 / 200_000))
    assert set(merged.unique().tolist()) == {0.0, 4.0}


def test_dare_at_full_density_is_the_weighted_sum():
    assert torch.equal(dare_linear([ONE, TWO], [0.5, 2.0], density=1.0), linear([ONE, TWO], [0.5, 2.0]))


def test_truncation_loses_just_the_smaller_singular_values():
    delta = some((6, 9), 3)
    b, a = truncated(delta, 2)
    lost = torch.linalg.svdvals(delta)[2:].square().sum().sqrt()
    assert float((b @ a - delta).norm()) == pytest.approx(float(lost), rel=1e-10)


# --------------------------------------------------------------------------------------------------------- partition


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(10, 120))
def test_sectors_cover_all_records_in_order_within_the_budget(sizes, budget):
    records = [Fact(str(i), str(size)) for i, size in enumerate(sizes)]
    sectors = partition(records, budget, count=lambda fact: int(fact.answer))
    assert [fact for sector in sectors for fact in sector] == records
    for sector in sectors:
        assert len(sector) == 1 or sum(int(fact.answer) for fact in sector) <= budget


def test_a_book_of_128k_tokens_in_sectors_of_8k_makes_sixteen():
    records = [Fact(str(i), "x") for i in range(8192)]
    sectors = partition(records, 8192, count=lambda fact: 16)
    assert [len(sector) for sector in sectors] == [512] * 16


def test_sectors_have_about_equal_shares():
    sectors = partition([Fact(str(i), "x") for i in range(10)], 4, count=lambda fact: 1)
    assert sorted(map(len, sectors)) == [3, 3, 4]


def test_chunks_overlap_and_cover_the_document():
    pieces = chunks(range(5000), 2048, 200)
    assert [piece[0] for piece in pieces] == [0, 1848, 3696]
    assert pieces[-1][-1] == 4999
    assert pieces[0][-200:] == pieces[1][:200]


def test_a_long_document_is_cut_into_named_pieces_and_a_short_one_stays():
    text = " ".join(f"v{i}" for i in range(10))
    pieces = split_document(Document("book", text), words(), size=6, overlap=2)
    assert [piece.name for piece in pieces] == ["book, part 1", "book, part 2"]
    assert [piece.text for piece in pieces] == ["v0 v1 v2 v3 v4 v5", "v4 v5 v6 v7 v8 v9"]
    assert split_document(Document("leaf", text), words()) == [Document("leaf", text)]


# ------------------------------------------------------------------------------------------------------------ metric


@pytest.mark.parametrize(
    ("output", "is_right"),
    [
        ("call (603) 556-7631 or 603-556-7631", True),
        ("6035567631", True),
        ("Answer: 603 556 7631\nand more", True),
        ("603-556-7632 or 603-556-7631", False),
        ("call the office", False),
        ("", False),
        ("1603-556-76310", False),
    ],
)
def test_a_phone_number_is_right_by_the_first_that_is_said(output, is_right):
    assert recalled(output, "603-556-7631") is is_right


@pytest.mark.parametrize(
    ("output", "is_right"),
    [("It was Jane Austen!", True), ("Austen, Jane", False), ("I do not know.\nJane Austen", False), ("", False)],
)
def test_words_are_right_where_the_first_line_says_them_in_order(output, is_right):
    assert recalled(output, "Jane Austen") is is_right


def test_rouge_l_is_the_f1_of_the_longest_common_subsequence():
    # The subsequence "the cat down" has 3 words of 4 and of 5.
    assert rouge_l("the cat lay down", "the black cat sat down") == pytest.approx(2 * 3 / 9)


def test_rouge_l_takes_the_best_reference():
    assert rouge_l("a b", ["c d", "a b"]) == 1.0


# ----------------------------------------------------------------------------------------------------------- routing


def module(name, *keys):
    return Module(name, keys, keys, 1, 1, 1, 0.0, name, {})


class Letters:
    """An encoder that counts letters."""

    def encode(self, texts):
        return np.array([[text.count(c) for c in "abcdefghijklmnopqrstuvwxyz"] for text in texts], dtype=float)


def test_the_same_text_as_key_and_question_scores_one_and_is_first():
    scores = SentenceIndex(["who wrote emma", "phone of ada"], Letters()).scores(["phone of ada"])[0]
    assert scores[1] == pytest.approx(1.0, abs=1e-12)
    assert scores.argmax() == 1


def test_the_oracle_always_finds_the_module():
    modules = [module("a", "q1", "q2"), module("b", "q3")]
    assert Router(modules, "oracle").scores(["q3", "q1"]).argmax(axis=1).tolist() == [1, 0]


def test_a_module_is_as_near_as_the_nearest_of_its_keys():
    modules = [module("a", "zebra", "phone of ada"), module("b", "phone of bob")]
    by_key = SentenceIndex(["zebra", "phone of ada", "phone of bob"], Letters()).scores(["ada"])[0]
    scores = Router(modules, "embedding", Letters()).scores(["ada"])[0]
    assert scores.tolist() == [max(by_key[0], by_key[1]), by_key[2]]


def test_words_find_the_record_that_has_the_rare_one():
    index = WordIndex(["phone of ada quill", "phone of bob quill", "phone of eve stone"])
    assert index.scores(["tell me ada's phone"])[0].argmax() == 0


def test_words_that_no_key_has_score_nothing():
    assert WordIndex(["phone of ada"]).scores(["zebra"]).tolist() == [[0.0]]


def test_your_own_rule_routes():
    modules = [module("a", "x"), module("b", "y")]
    assert Router(modules, lambda question, known: [len(question), 3]).scores(["abcd"]).tolist() == [[4.0, 3.0]]


# ------------------------------------------------------------------------------------------------ facts and documents


def test_a_table_of_keys_and_values_becomes_questions():
    facts = read_facts(pd.DataFrame({"key": ["Ada"], "value": [4711]}))
    assert facts == [Fact("What is the value of Ada?", "4711", "Please tell me Ada's value.")]


def test_every_property_of_a_table_is_asked_for():
    frame = pd.DataFrame({"name": ["Ada", "Bob"], "phone": ["1", "2"], "room": ["3", "4"]})
    assert [fact.answer for fact in facts_from_table(frame, key="name")] == ["1", "2", "3", "4"]


def test_documents_are_read_in_the_order_of_their_names(tmp_path):
    (tmp_path / "b.txt").write_text("two")
    (tmp_path / "a.md").write_text("one")
    (tmp_path / "c.png").write_bytes(b"\x89")
    assert read_documents(tmp_path) == [Document("a", "one"), Document("b", "two")]


def test_other_words_are_the_facts_own_where_it_has_some():
    assert rephrase(Fact("q?", "a", "other?")) == "other?"
    assert rephrase(Fact("Who wrote Emma?", "a")) != "Who wrote Emma?"


def test_a_recipe_counts_its_kinds():
    assert parse_recipe("raw+summary8+rewrite4+qa40") == {"raw": 1, "summary": 8, "rewrite": 4, "qa": 40}


def test_a_recipe_by_rule_has_the_text_its_beginnings_and_its_questions():
    document = Document("Rime", "The camp is high up. It has nine huts in all.")
    samples = document_samples([document], "raw+summary1+qa2")
    assert samples[0] == Sample("", document.text)
    assert samples[1].completion == "The camp is high up."
    assert samples[2] == Sample('In Rime, how does this go on: "The camp is …"?', "high up.")


def test_a_generator_is_asked_again_with_the_pairs_that_are_there():
    asked = []

    def generator(prompt):
        asked.append(prompt)
        return f"Q: question {len(asked)}? | A: answer {len(asked)}"

    facts = questions(Document("d", "text"), 3, generator)
    assert [fact.answer for fact in facts] == ["answer 1", "answer 2", "answer 3"]
    assert "question 1?" in asked[1]


def test_tags_name_the_document_in_either_way():
    assert tagged("What?", "7", "natural") == "In the document 7, What?"


# ------------------------------------------------------------------------------------------------------------ formats


@pytest.mark.parametrize("form", ["plain", "chat", "user_turn"])
def test_what_is_written_begins_with_what_is_asked_in_every_format(form):
    style = Style(words(chat=True), form, "v1 {question} ? {answer}")
    (written,) = style.encode(Sample("v2 v3", "v4 v5"))
    asked = style.prompt("v2 v3")
    assert list(written.ids[: len(asked)]) == asked
    assert written.n_prompt == len(asked)


def test_a_chat_answer_ends_with_the_end_token():
    tokenizer = words(chat=True)
    (written,) = Style(tokenizer, "chat").encode(Sample("v2", "v4"))
    assert tokenizer.convert_ids_to_tokens(list(written.ids)) == [
        "<|user|>", "v2", "<end>", "<|assistant|>", "v4", "<end>",
    ]  # fmt: skip


def test_a_user_turn_holds_question_and_answer_and_the_generation_prompt():
    tokenizer = words(chat=True)
    (written,) = Style(tokenizer, "user_turn", "{question} ? {answer}").encode(Sample("v2", "v4"))
    assert tokenizer.convert_ids_to_tokens(list(written.ids)) == [
        "<|user|>", "v2", "?", "v4", "<end>", "<|assistant|>",
    ]  # fmt: skip


def test_a_context_stands_before_the_question():
    tokenizer = words()
    style = Style(tokenizer, "plain", "{question} ? {answer}")
    told = tokenizer.convert_ids_to_tokens(style.prompt("v2", "v7 v8"))
    assert told.index("v7") < told.index("v2")
    assert told[-2:] == ["v2", "?"]


def test_a_long_raw_text_is_cut_into_pieces_that_end_with_the_end_token():
    pieces = Style(words(), "plain").encode(Sample("", " ".join(f"v{i}" for i in range(30))), max_length=20)
    assert [len(piece.ids) for piece in pieces] == [20, 13]
    assert pieces[-1].ids[-1] == words().eos_token_id


# ---------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: read_facts(pd.DataFrame({"question": ["q", "q"], "answer": ["a", "b"]})),
         r"table: a memory cannot hold two answers to one question: 'q' \(a, b\); keep one of each"),
        (lambda: read_facts(pd.DataFrame({"question": [], "answer": []})), "table has a header but no rows"),
        (lambda: partition([], 10), "no records to divide into sectors; expected at least one"),
        (lambda: partition([Fact("q", "a")], 0), "tokens_per_sector is 0; expected 1 or more"),
        (lambda: parse_recipe("raw+poem"), "recipe 'raw.poem': 'poem' is not one of raw, qa, summary, rewrite"),
        (lambda: document_samples([Document("d", "t")], "rewrite4"), "recipe 'rewrite' needs a generator"),
        (lambda: questions(Document("d", "too short"), 4), "d: no sentence of four words or more"),
        (lambda: questions(Document("d", "t"), 4, lambda prompt: "no"), "the generator wrote no line"),
        (lambda: Style(words(), "chat"), "format is 'chat', but the tokenizer has no chat template"),
        (lambda: Style(words(), "poem"), "format is 'poem'; expected auto, plain, chat, user_turn"),
        (lambda: Style(words(), "plain", "{question}"), "template is '{question}'; expected {question} and {answer}"),
        (lambda: Style(words(), "plain").encode(Sample("v1 v2", "v3"), max_length=4),
         "the record 'v1 v2' has 6 tokens; max_length is 4: shorten it or raise max_length"),
        (lambda: Router([module("a")], "bm25"), r"module 'a' has no keys to route by; give write\(…, keys=\[…\]\)"),
        (lambda: Router([module("a", "k")], "embedding"), "router='embedding' needs an encoder"),
        (lambda: Router([module("a", "k")], "oracle").scores(["z"]), "router='oracle' knows only questions that were"),
        (lambda: chunks([1], 4, 4), "overlap is 4; expected a number from 0 to 3, below the size of a chunk"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_with_a_sentence(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_a_folder_without_texts_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no text files; expected files that end in \.txt, \.md, \.rst"):
        read_documents(tmp_path)


def test_a_tokenizer_without_an_end_token_is_refused():
    tokenizer = words()
    tokenizer.eos_token = None
    with pytest.raises(InputError, match="the tokenizer has no end-of-sequence token"):
        Style(tokenizer, "plain")
