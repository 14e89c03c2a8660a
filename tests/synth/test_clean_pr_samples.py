"""Samples to train on, negatives that are negatives, and a model that edits a repository."""

import pytest

from assay._core.errors import InputError
from assay.synth.clean_pr import (
    AgentlessEditor,
    FileChange,
    PullRequest,
    clean_one,
    evaluate_edits,
    mine_negatives,
    parse_blocks,
    to_samples,
    with_negatives,
)
from assay.synth.clean_pr.negatives import bm25
from assay.synth.clean_pr.regions import MODULE, enclosing, regions

BEFORE = "import os\n\n\ndef total(prices):\n    return sum(prices)\n\n\ndef mean(prices):\n    return total(prices)\n"
AFTER = BEFORE.replace("return total(prices)", "return total(prices) / len(prices)")


def record(**options):
    change = FileChange("shop/cart.py", BEFORE.encode(), AFTER.encode())
    document = FileChange("docs/cart.py.md", kind="skipped")
    known = {"tree": ("README.md", "shop/cart.py", "shop/user.py")} | options
    return clean_one(PullRequest("o/shop", "1", "b" * 40, None, "Fix the mean", "It forgot to divide.", "ada",
                                 (change, document), license="MIT", **known))  # fmt: skip


def sample(stage, fmt="sr", **options):
    return next(to_samples([record(**options)], stage, fmt))


def test_a_midtraining_sample_shows_the_file_and_asks_for_the_blocks():
    made = sample("midtrain")
    assert "Fix the mean" in made["prompt"]
    assert BEFORE in made["prompt"]
    assert made["completion"] == record()["edit"]
    assert (made["repo"], made["license"], made["base_commit"]) == ("o/shop", "MIT", "b" * 40)


def test_localising_leaves_documents_out_of_the_tree():
    made = sample("localize")
    assert made["prompt"].endswith("\nshop/cart.py\nshop/user.py\n")
    assert made["completion"] == "shop/cart.py\n"


def test_localising_without_a_tree_is_refused():
    with pytest.raises(InputError, match=r"^record 1 has no `tree`; build with --tree to make samples of this stage$"):
        sample("localize", tree=())


def test_navigating_names_the_function_that_changes():
    assert sample("navigate")["completion"] == "### shop/cart.py\nmean\n"


@pytest.mark.parametrize(("fmt", "part"), [("diff", "@@ -6,4 +6,4 @@"), ("whole", AFTER)])
def test_the_formats_to_compare_with_are_there(fmt, part):
    assert part in sample("midtrain", fmt)["completion"]


@pytest.mark.parametrize(
    ("stage", "fmt", "message"),
    [
        ("train", "sr", "stage 'train' is not one of midtrain, localize, navigate, edit"),
        ("edit", "patch", "fmt 'patch' is not one of sr, diff, whole"),
    ],
)
def test_an_unknown_stage_or_format_is_refused(stage, fmt, message):
    with pytest.raises(InputError, match=f"^{message}$"):
        list(to_samples([record()], stage, fmt))


NESTED = """X = 1


@cached
def f():
    def g():
        return 1

    return g


class C:
    a = 1

    def m(self):
        pass
"""


@pytest.mark.parametrize(
    ("line", "name"), [(1, MODULE), (4, "f"), (5, "f"), (7, "f.g"), (9, "f"), (13, "C"), (16, "C.m"), (11, MODULE)]
)
def test_a_line_belongs_to_the_innermost_function_or_class(line, name):
    assert enclosing(regions("a.py", NESTED), line) == name


def test_other_languages_are_cut_as_git_cuts_them():
    found = regions("a.go", "package a\n\nfunc f() {\n\treturn\n}\n\nfunc g() {\n}\n")
    assert enclosing(found, 4) == "func f() {"


def test_bm25_has_the_published_form():
    # one word in one of two documents of two and four words: idf = ln(1 + 1.5/1.5), tf part = 2.5 / (1 + 1.5·0.75)
    import math

    scores = bm25("cart", ["shop cart", "one two three four"])
    expected = math.log(2) * 2.5 / (1 + 1.5 * (0.25 + 0.75 * 2 / 3))
    assert scores == pytest.approx([expected, 0.0])


def test_a_negative_is_a_file_that_looks_right_and_was_not_touched():
    files = {"shop/cart.py": BEFORE, "shop/stats.py": "def mean(): 'the mean'", "docs/cart.py.md": "mean mean divide",
             "lib/user.py": "name"}  # fmt: skip
    made = with_negatives(record(), files, n=2)
    assert [negative["path"] for negative in made["negatives"]] == ["shop/stats.py"]


def test_a_negative_is_shown_and_answered_with_no_changes():
    made = with_negatives(record(), {"shop/stats.py": "def mean(): 'the mean'"})
    navigated = next(to_samples([made], "navigate"))
    assert navigated["completion"] == "### shop/cart.py\nmean\n\n### shop/stats.py\nNo changes needed\n"
    edited = next(to_samples([made], "edit"))
    assert "### shop/stats.py" in edited["prompt"]
    assert "stats.py" not in edited["completion"]


FILES = {
    "shop/cart.py": BEFORE,
    "shop/stats.py": "def mean(values):\n    return 0\n\n\ndef mode(values):\n    return 1\n",
}


def test_a_models_own_errors_become_negatives():
    generate, prompts = model_that_says("shop/cart.py\n- `shop/stats.py`\nnowhere.py\n", "### shop/stats.py\nmode\n")
    made = mine_negatives(record(), FILES, generate)
    assert made["negatives"] == [{"path": "shop/stats.py", "content": FILES["shop/stats.py"], "regions": ["mode"]}]
    assert "shop/cart.py\nshop/stats.py\n" in prompts[0]
    assert "### shop/cart.py" in prompts[1]
    completion = next(to_samples([made], "navigate"))["completion"]
    assert completion.endswith("### shop/stats.py\nNo changes needed\n")


def test_a_model_without_errors_gives_no_negatives():
    generate, prompts = model_that_says("shop/cart.py")
    assert mine_negatives(record(), FILES, generate)["negatives"] == []
    assert len(prompts) == 1


def test_a_file_that_was_touched_is_no_negative_however_often_a_model_names_it():
    generate, _ = model_that_says("docs/cart.py.md\nshop/cart.py\n")
    assert mine_negatives(record(), {**FILES, "docs/cart.py.md": "x"}, generate)["negatives"] == []


# ----------------------------------------------------------------------------------------------------------- a model


def model_that_says(*answers):
    given, prompts = iter(answers), []

    def generate(prompt):
        prompts.append(prompt)
        return next(given)

    return generate, prompts


@pytest.fixture
def shop(tmp_path):
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "cart.py").write_text(BEFORE)
    (tmp_path / "README.md").write_text("hello\n")
    return tmp_path


def test_three_answers_make_a_diff(shop):
    generate, _ = model_that_says("- `shop/cart.py`\n- nowhere.py\n", "### shop/cart.py\nmean\n", record()["edit"])
    solution = AgentlessEditor(generate).solve("The mean is wrong", shop)
    assert (solution.files, solution.regions) == (("shop/cart.py",), {"shop/cart.py": ["mean"]})
    assert "+    return total(prices) / len(prices)\n" in solution.diff
    assert (shop / "shop" / "cart.py").read_text() == BEFORE


def test_a_second_attempt_gets_the_errors_of_the_first(shop):
    wrong = record()["edit"].replace("<<<<<<< SEARCH\n    return", "<<<<<<< SEARCH\n  return")
    generate, prompts = model_that_says("shop/cart.py", "mean", wrong, record()["edit"])
    solution = AgentlessEditor(generate, retries=1).solve("The mean is wrong", shop)
    assert solution.diff
    assert "shop/cart.py, block 1: the search text is not in the file" in prompts[-1]


def fixed(text):
    """An edit of the shop that puts `text` where the mean is taken."""
    return record()["edit"].replace("total(prices) / len(prices)", text)


def test_the_best_of_several_answers_is_the_one_given_most_often(shop):
    edits = [fixed("1"), fixed("2"), "Sorry.", fixed("2")]
    generate, _ = model_that_says(*(said for edit in edits for said in ("shop/cart.py", "mean", edit)))
    solution = AgentlessEditor(generate).solve_best_of("The mean is wrong", shop, n=4)
    assert "+    return 2\n" in solution.diff


def test_the_best_of_several_answers_is_the_one_that_scores_highest(shop):
    edits = [fixed("1"), fixed("2"), fixed("2")]
    generate, _ = model_that_says(*(said for edit in edits for said in ("shop/cart.py", "mean", edit)))
    best = AgentlessEditor(generate).solve_best_of(
        "The mean is wrong", shop, 3, lambda answer: "+    return 1" in answer.diff
    )
    assert "+    return 1\n" in best.diff


def test_where_no_answer_applies_the_first_is_returned_with_its_errors(shop):
    generate, _ = model_that_says("shop/cart.py", "mean", "", "shop/cart.py", "mean", "Sorry.")
    solution = AgentlessEditor(generate).solve_best_of("The mean is wrong", shop, n=2)
    assert (solution.diff, "the answer is empty" in solution.log[0]) == ("", True)


def test_the_best_of_no_answers_is_refused(shop):
    with pytest.raises(InputError, match=r"^n is 0; expected 1 or more answers$"):
        AgentlessEditor(str).solve_best_of("The mean is wrong", shop, n=0)


def test_an_answer_without_a_file_is_told(shop):
    solution = AgentlessEditor(lambda prompt: "I do not know.").solve("The mean is wrong", shop)
    assert solution.log == ["localise: the answer names no file of the repository"]


def test_an_empty_answer_is_told(shop):
    generate, _ = model_that_says("shop/cart.py", "mean", "")
    assert "the answer is empty" in AgentlessEditor(generate).solve("The mean is wrong", shop).log[0]


def test_strict_and_fuzzy_validity_are_told_apart():
    gold = record()
    shifted = gold["edit"].replace("\n    return", "\n  return")
    elsewhere = "### shop/cart.py\n<<<<<<< SEARCH\nimport os\n=======\n>>>>>>> REPLACE\n"
    judged = evaluate_edits([gold["edit"], shifted, elsewhere, "Sorry."], [gold] * 4)
    assert judged["valid"].tolist() == [True, False, True, False]
    assert judged["valid_fuzzy"].tolist() == [True, True, True, False]
    assert judged["line_acc"].tolist() == [True, True, False, False]
    assert judged["exact"].tolist() == [True, False, False, False]


def test_tests_are_run_on_the_edited_files_of_valid_answers_alone():
    seen = []

    def run_tests(tested, files):
        seen.append(files["shop/cart.py"])
        return b"/ len(prices)" in files["shop/cart.py"]

    answers = [record()["edit"], fixed("0"), "Sorry."]
    judged = evaluate_edits(answers, [record()] * 3, run_tests)
    assert judged["passed"].tolist() == [True, False, False]
    assert seen[0] == AFTER.encode()
    assert len(seen) == 2


def test_answers_and_records_must_pair():
    with pytest.raises(InputError, match=r"^0 answers for 1 records; expected one for each$"):
        evaluate_edits([], [record()])


def test_the_record_reads_back():
    assert len(parse_blocks(record()["edit"]).edits) == 1
