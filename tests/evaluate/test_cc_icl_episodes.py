"""The benchmark: what an episode holds, where it comes from, how it is written, read and answered."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from assay._core.errors import InputError
from assay.evaluate.cc_icl import (
    CriterionSpec,
    Items,
    build_episodes,
    evaluate,
    image_items,
    pixels,
    prompt_text,
    read_cc_bench,
    read_episodes,
    read_items,
    read_predictions,
    split_items,
    table_items,
    write_episodes,
)

CATEGORIES = ("good", "print", "scratch", "cut")
SPEC = CriterionSpec(
    "Is there an anomaly?",
    ("No", "Yes"),
    {
        "A": {"good": "No", "print": "No", "scratch": "No", "cut": "Yes"},
        "B": {"good": "No", "print": "No", "scratch": "Yes", "cut": "Yes"},
        "C": {"good": "No", "print": "Yes", "scratch": "Yes", "cut": "Yes"},
    },
)


def texts(per_category=5, categories=CATEGORIES):
    pairs = [(f"{category} {number}", category) for category in categories for number in range(per_category)]
    return Items("text", *zip(*pairs, strict=True))


def test_the_worked_example_has_a_sensitive_and_an_invariant_truth():
    spec = CriterionSpec(
        "?",
        ("No", "Yes"),
        {"A": {"cut": "Yes", "print": "No", "good": "No"}, "B": {"cut": "Yes", "print": "Yes", "good": "No"}},
    )
    episodes = build_episodes(texts(categories=("cut", "print", "good")), spec, 40)
    of = {episodes.items.category[q]: tuple(t) for q, t in zip(episodes.query, episodes.truth.tolist(), strict=True)}
    assert of == {"print": (0, 1), "good": (0, 0), "cut": (1, 1)}


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_the_query_is_never_among_its_examples_and_the_examples_differ(n, shots, seed):
    episodes = build_episodes(texts(), SPEC, n, shots=shots, seed=seed)
    together = np.column_stack([episodes.support, episodes.query])
    assert all(len(set(row)) == 4 * shots + 1 for row in together.tolist())


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_every_episode_reveals_the_criterion(n, seed):
    assert build_episodes(texts(), SPEC, n, seed=seed).is_identifiable.all()


def test_labels_are_those_of_the_spec():
    episodes = build_episodes(texts(), SPEC, 30)
    for row in range(30):
        for k, name in enumerate(SPEC.names):
            asked = [SPEC.criteria[name][episodes.items.category[i]] for i in episodes.support[row]]
            assert [SPEC.answers[code] for code in episodes.labels[row, :, k]] == asked


def test_the_same_seed_gives_the_same_episodes_and_another_seed_others():
    first, again, other = (build_episodes(texts(), SPEC, 30, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.support, again.support)
    assert (first.support != other.support).any()


def test_items_and_query_are_the_same_under_all_criteria():
    episodes = build_episodes(texts(), SPEC, 10)
    asked = [[episodes.ask(row, k) for k in range(3)] for row in range(10)]
    assert all(len({(q.support, q.query, q.question) for q in row}) == 1 for row in asked)


def test_the_prompt_never_names_the_criterion():
    spec = CriterionSpec(
        "Is it bad?", ("No", "Yes"), {"lenient": {"x": "No", "y": "No"}, "strict": {"x": "No", "y": "Yes"}}
    )
    episodes = build_episodes(texts(categories=("x", "y")), spec, 4)
    prompts = " ".join(prompt_text(episodes.ask(row, k)) for row in range(4) for k in range(2))
    assert "lenient" not in prompts
    assert "strict" not in prompts


def test_half_of_the_queries_are_of_boundary_categories():
    assert build_episodes(texts(), SPEC, 50).is_sensitive.sum() == 25


def test_no_query_comes_twice_before_all_of_its_category_have_come():
    spec = CriterionSpec("?", ("No", "Yes"), {"A": {"x": "No", "y": "No"}, "B": {"x": "No", "y": "Yes"}})
    episodes = build_episodes(texts(10, categories=("x", "y")), spec, 20)
    assert len(set(episodes.query.tolist())) == 20


def test_criteria_that_agree_on_every_category_with_items_are_warned_about():
    with pytest.warns(UserWarning, match="the criteria agree on every category that has items"):
        build_episodes(texts(categories=("good", "cut")), SPEC, 4)


def test_a_split_shares_no_item_and_keeps_every_category_on_both_sides():
    train, test = split_items(texts(), seed=1)
    assert not set(train.content) & set(test.content)
    assert set(train.category) == set(test.category) == set(CATEGORIES)


@pytest.mark.parametrize(
    ("items", "options", "message"),
    [
        (texts(1), {}, "category 'cut' has 1 items; shots=1 needs at least 2"),
        (texts(3), {"shots": 3}, "category 'cut' has 3 items; shots=3 needs at least 4"),
        (
            texts(categories=("good", "hole")),
            {},
            "item 'hole 0' has the category 'hole', for which the criteria have no",
        ),
        (texts(), {"n": 0}, "n is 0"),
        (texts(), {"boundary_share": 1.5}, "boundary_share is 1.5"),
        (Items("text", (), ()), {}, "there are no items"),
    ],
)
def test_items_that_do_not_suffice_are_refused(items, options, message):
    with pytest.raises(InputError, match=message):
        build_episodes(items, SPEC, **{"n": 4, **options})


# ---------------------------------------------------------------------------------------------------------- sources


@pytest.fixture
def folder(tmp_path):
    """Three noisy images in each of four categories."""
    rng = np.random.default_rng(0)
    for category in CATEGORIES:
        (tmp_path / "images" / category).mkdir(parents=True)
        for number in range(3):
            pixels_ = rng.integers(256, size=(9, 9, 3), dtype=np.uint8)
            Image.fromarray(pixels_).save(tmp_path / "images" / category / f"{number}.png")
    return tmp_path / "images"


def test_a_folder_of_images_by_category_is_read(folder):
    items = image_items(folder)
    assert (items.kind, len(items), set(items.category)) == ("image", 12, set(CATEGORIES))


def test_pixels_are_grey_values_between_0_and_1(folder):
    features = pixels(image_items(folder), size=4).features
    assert features.shape == (12, 16)
    assert 0 <= features.min() <= features.max() <= 1


def test_an_image_that_cannot_be_read_is_refused(folder):
    (folder / "cut" / "0.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    with pytest.raises(InputError, match=r"0.png cannot be read as an image"):
        image_items(folder)


def test_one_image_in_two_categories_is_refused(folder):
    (folder / "good" / "copy.png").write_bytes((folder / "cut" / "0.png").read_bytes())
    with pytest.raises(InputError, match="stands under two categories, 'cut' and 'good'; keep it under one"):
        image_items(folder)


def test_links_out_of_the_folder_are_not_followed(folder, tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "secret.png")
    (folder / "good" / "link.png").symlink_to(tmp_path / "secret.png")
    assert len(image_items(folder)) == 12


@pytest.mark.parametrize("name", ["absent", "empty"])
def test_a_folder_without_images_is_refused(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="expected"):
        image_items(tmp_path / name)


def test_a_csv_of_image_paths_is_read_relative_to_itself(folder):
    table = pd.DataFrame({"path": ["cut/0.png", "good/1.png"], "category": ["cut", "good"]})
    table.to_csv(folder / "list.csv", index=False)
    assert read_items(folder / "list.csv").content == (str(folder / "cut/0.png"), str(folder / "good/1.png"))


def test_a_table_of_numbers_becomes_rows_with_features():
    items = table_items(pd.DataFrame({"width": [1, 2], "depth": ["3", "4.5"], "category": ["x", "y"]}))
    assert (items.kind, items.content) == ("row", ("1", "2"))
    np.testing.assert_array_equal(items.features, [[1, 3], [2, 4.5]])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"text": ["a", "a"], "category": ["x", "y"]}, "the text 'a' stands under two categories, 'x' and 'y'"),
        ({"text": ["a", None], "category": ["x", "y"]}, "items, row 2, column 'text': the cell is empty"),
        ({"text": ["a"]}, "no column 'category'"),
        ({"name": ["a"], "category": ["x"]}, "no column 'path' .images. or 'text' .texts. and no column of numbers"),
        ({"w": [1.0, 1.0], "category": ["x", "y"]}, r"the row of numbers '2' \(the same as 1\) stands under two"),
    ],
)
def test_tables_that_cannot_be_used_are_refused(table, message):
    with pytest.raises(InputError, match=message):
        table_items(pd.DataFrame(table))


def test_features_must_be_finite_and_one_row_an_item():
    with pytest.raises(InputError, match=r"expected \(20, n_features\)"):
        texts().with_features(np.zeros((3, 2)))
    with pytest.raises(InputError, match="row 2: a value is not finite"):
        texts(1).with_features([[0.0], [np.nan], [0.0], [0.0]])


# ------------------------------------------------------------------------------------------------------------ files


def test_written_episodes_are_read_back_the_same(tmp_path):
    episodes = build_episodes(texts(), SPEC, 20)
    write_episodes(episodes, tmp_path / "e.jsonl")
    again = read_episodes(tmp_path / "e.jsonl", SPEC)
    assert [again.ask(row, k) for row in range(20) for k in range(3)] == [
        episodes.ask(row, k) for row in range(20) for k in range(3)
    ]


def test_images_are_found_from_a_benchmark_in_another_folder(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made").mkdir()
    write_episodes(build_episodes(image_items("images"), SPEC, 4), "made/e.jsonl")
    monkeypatch.chdir(tmp_path.parent)
    again = read_episodes(tmp_path / "made" / "e.jsonl", SPEC)
    assert pixels(again.items).features.shape == (len(again.items), 256)


def test_rows_of_numbers_keep_their_features_in_a_file(tmp_path):
    items = Items("row", tuple("abcd"), ("x", "x", "y", "y")).with_features(np.arange(8.0).reshape(4, 2))
    spec = CriterionSpec("?", ("No", "Yes"), {"A": {"x": "No", "y": "No"}, "B": {"x": "No", "y": "Yes"}})
    episodes = build_episodes(items, spec, 4)
    write_episodes(episodes, tmp_path / "e.jsonl")
    again = read_episodes(tmp_path / "e.jsonl")
    np.testing.assert_array_equal(again.items.features[again.query], episodes.items.features[episodes.query])


def line(**changes):
    episode = {
        "id": "1",
        "support": [{"text": "a", "category": "print"}, {"text": "b", "category": "good"}],
        "query": {"text": "c", "category": "print"},
        "question": "Is there an anomaly?",
        "answers": ["No", "Yes"],
        "labels": {"A": ["No", "No"], "C": ["Yes", "No"]},
        "truth": {"A": "No", "C": "Yes"},
    }
    return {**episode, **changes}


def written(tmp_path, *lines):
    path = tmp_path / "e.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in lines))
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"truth": {"A": "No"}}, "criterion 'C' is missing in truth"),
        ({"truth": {"A": "No", "C": "Perhaps"}}, "the answer 'Perhaps' is not in the set; expected one of No, Yes"),
        ({"labels": {"A": ["No"], "C": ["Yes", "No"]}}, "labels of 'A' must be a list of 2"),
        ({"query": {"text": "a", "category": "print"}}, "the query 'a' is among its own examples"),
        ({"query": {"sound": "c"}}, "expected a mapping with one of image, text, row"),
        ({"query": None}, "query is None; expected a mapping"),
        ({"query": {"text": "c", "category": "cut"}}, "'c' .cut. is labelled 'No' under 'A', and the spec says 'Yes'"),
        (
            {"support": [{"text": "a", "category": "cut"}] * 2},
            "'a' .cut. is labelled 'No' under 'A', and the spec says 'Yes'",
        ),
        ({"question": ""}, "there is no question"),
    ],
)
def test_episodes_that_cannot_be_used_are_refused_by_line(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        read_episodes(written(tmp_path, line(**changes)), SPEC)


def test_two_episodes_with_one_id_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"line 2: the id '1' was there before"):
        read_episodes(written(tmp_path, line(), line()))


def test_criteria_must_be_the_same_on_every_line(tmp_path):
    other = line(id="2", labels={"A": ["No", "No"]}, truth={"A": "No"})
    with pytest.raises(InputError, match="line 2: the criteria are A; expected A, C"):
        read_episodes(written(tmp_path, line(), other))


def test_an_item_has_one_category_in_the_whole_file(tmp_path):
    other = line(id="2", query={"text": "c", "category": "good"})
    with pytest.raises(InputError, match="line 2: 'c' has the category 'good' here and 'print' before"):
        read_episodes(written(tmp_path, line(), other))


def cc_bench(tmp_path, **changes):
    """One episode in the layout of CC-Bench, under two criteria."""
    files = {
        "test_A": [{"id": "7", "images": ["a.png", "b.png"], "marks": ["Yes", "No"], "ask": "c.png"}],
        "test_B": [{"id": "7", "images": ["a.png", "b.png"], "marks": ["Yes", "Yes"], "ask": "c.png"}],
        "gt_A": [{"gold": "No"}],
        "gt_B": [{"gold": "Yes"}],
        **changes,
    }
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return read_cc_bench(
        tmp_path,
        question="Is there an anomaly?",
        fields={"support": "images", "labels": "marks", "query": "ask", "truth": "gold"},
    )


def test_the_layout_of_cc_bench_is_read_with_the_names_of_its_fields(tmp_path):
    episodes = cc_bench(tmp_path)
    assert episodes.criteria == ("A", "B")
    assert episodes.ask(0, 1).support_answers == ("Yes", "Yes")
    assert episodes.truth.tolist() == [[0, 1]]
    assert episodes.ask(0, 0).query == str(tmp_path / "imgs" / "c.png")


def test_images_that_differ_between_criteria_are_refused(tmp_path):
    other = [{"images": ["a.png", "d.png"], "marks": ["Yes", "No"], "ask": "c.png"}]
    with pytest.raises(
        InputError, match="item 1: the images under 'B' are not those under 'A'; only labels may differ"
    ):
        cc_bench(tmp_path, test_B=other)


def test_a_field_that_is_not_there_is_named_with_those_that_are(tmp_path):
    with pytest.raises(InputError, match=r"gt_A.json, item 1: no field 'gold'; it has answer; name it in fields"):
        cc_bench(tmp_path, gt_A=[{"answer": "No"}])


# ------------------------------------------------------------------------------------------------------ predictions


def answers(episodes, truth=True):
    rows = [
        (episodes.ids[i], name, episodes.answers[code if truth else 0])
        for i, row in enumerate(episodes.truth)
        for name, code in zip(episodes.criteria, row, strict=True)
    ]
    return pd.DataFrame(rows, columns=["id", "criterion", "answer"])


def test_a_table_of_answers_in_any_order_gives_codes_by_episode_and_criterion():
    episodes = build_episodes(texts(), SPEC, 12)
    shuffled = answers(episodes).sample(frac=1, random_state=0)
    np.testing.assert_array_equal(read_predictions(shuffled, episodes), episodes.truth)


def test_missing_answers_are_named_by_id():
    episodes = build_episodes(texts(), SPEC, 12)
    table = answers(episodes)
    table = table[~((table["criterion"] == "B") & table["id"].isin(["e03", "e07"]))]
    with pytest.raises(
        InputError, match="no answer under criterion 'B' to e03, e07; every item needs one per criterion"
    ):
        read_predictions(table, episodes)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("id", "e99", "row 1: there is no episode 'e99'"),
        ("criterion", "Z", "row 1: criterion 'Z' is not in the benchmark; it has A, B, C"),
        ("criterion", "B", "row 2: 'e01' was answered under 'B' before; keep one"),
    ],
)
def test_answers_that_belong_nowhere_are_refused(column, value, message):
    episodes = build_episodes(texts(), SPEC, 12)
    table = answers(episodes)
    table.loc[0, column] = value
    with pytest.raises(InputError, match=message):
        read_predictions(table, episodes)


# --------------------------------------------------------------------------------------------------------- evaluate


def oracle(episodes):
    """A model that reads categories out of the texts and follows the criterion that its examples show."""

    def answer(question):
        shown = {text.split()[0]: label for text, label in zip(question.support, question.support_answers, strict=True)}
        return shown[question.query.split()[0]]

    return lambda questions: [answer(question) for question in questions]


def test_a_model_that_reads_its_examples_scores_one():
    episodes = build_episodes(texts(), SPEC, 30)
    report = evaluate(oracle(episodes), episodes, batch_size=7)
    assert (report.sensitivity, report.invariance) == (1, 1)


def test_the_order_of_the_examples_does_not_change_the_score_of_stored_predictions():
    episodes = build_episodes(texts(), SPEC, 30)
    swapped = type(episodes)(
        **{**vars(episodes), "support": episodes.support[:, ::-1], "labels": episodes.labels[:, ::-1]}
    )
    assert evaluate(oracle(swapped), swapped).shares == evaluate(oracle(episodes), episodes).shares


def test_criteria_can_be_chosen_and_reordered():
    episodes = build_episodes(texts(), SPEC, 30)
    report = evaluate(oracle(episodes), episodes, criteria=["C", "A"])
    assert report.criteria == ("C", "A")
    assert report.sensitivity == 1


def test_items_whose_examples_do_not_reveal_the_criterion_are_left_out_and_counted(tmp_path):
    blind = line(id="2", labels={"A": ["No", "No"], "C": ["No", "No"]})
    report = evaluate(lambda questions: ["Yes"] * len(questions), read_episodes(written(tmp_path, line(), blind)))
    assert (report.n_skipped, report.n_sensitive) == (1, 1)
    assert "1 items left out" in report.summary()


def test_a_benchmark_that_reveals_nothing_is_refused(tmp_path):
    blind = line(labels={"A": ["No", "No"], "C": ["No", "No"]})
    with pytest.raises(InputError, match="no episode reveals the criterion by its examples"):
        evaluate(lambda questions: ["Yes"] * len(questions), read_episodes(written(tmp_path, blind)))


def test_one_criterion_is_warned_about_and_shown_as_not_measured():
    episodes = build_episodes(texts(), SPEC, 8)
    with pytest.warns(UserWarning, match="criterion sensitivity cannot be measured"):
        report = evaluate(oracle(episodes), episodes, criteria=["A"])
    assert "no such item" in report.summary()
    assert json.loads(report.to_json())["sensitivity"]["value"] is None


def test_a_model_that_answers_too_few_questions_is_refused():
    with pytest.raises(
        InputError, match=r"the model gave 0 answers to 8 questions under criterion 'A' \(from 'e1' on\)"
    ):
        evaluate(lambda questions: [], build_episodes(texts(), SPEC, 8))


def test_the_tables_of_a_report_hold_every_metric_and_every_answer():
    episodes = build_episodes(texts(), SPEC, 8)
    report = evaluate(lambda questions: ["Yes"] * len(questions), episodes)
    frame, items = report.to_frame(), report.items()
    assert len(frame) == 7 + 3 + 3
    assert len(items) == 8 * 3
    assert items["correct"].mean() == pytest.approx(np.mean([s.value for s in report.accuracy.values()]))


def test_the_plot_shows_sensitive_beside_invariant_items_in_percent():
    import matplotlib as mpl

    mpl.use("Agg")
    ax = evaluate(lambda questions: ["Yes"] * len(questions), build_episodes(texts(), SPEC, 8)).plot()
    assert [label.get_text().split("\n")[0] for label in ax.get_xticklabels()] == [
        "sensitive items",
        "invariant items",
        "all items",
    ]
    assert "%" in ax.get_ylabel()
