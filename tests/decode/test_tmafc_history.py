"""The prior of the stopping rule, the difficulty groups, and the file in which past votes are kept."""

import json
import math
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
from scipy.special import betaln

from assay._core.errors import InputError
from assay.decode.tmafc import History, Prior, difficulty_groups, fit_beta_prior, prior_nll, rule_difficulty


def brute_force_nll(votes, agreeing, a, b):
    return -sum(betaln(a + g, b + t - g) - betaln(a, b) for t, g in zip(votes, agreeing, strict=True))


CASES = {
    "no dissent": ([4, 4, 4, 4], [4, 4, 4, 4], (1.0, 0.01)),
    "much dissent": ([10, 12, 9, 11], [6, 7, 5, 6], (1.0, 1.0)),
    "some dissent": ([4, 5, 8, 20, 6], [4, 4, 6, 11, 5], (1.0, 0.534)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_fitted_prior_is_the_cards(name):
    votes, agreeing, expected = CASES[name]
    assert fit_beta_prior(votes, agreeing) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("name", CASES)
def test_the_fitted_prior_is_the_best_of_a_fine_grid(name):
    votes, agreeing, _ = CASES[name]
    grid = np.linspace(0.01, 1, 397)  # steps of 0.0025
    a, b = np.meshgrid(grid, grid, indexing="ij")
    loss = brute_force_nll(votes, agreeing, a, b)
    best = np.unravel_index(loss.argmin(), loss.shape)
    found = fit_beta_prior(votes, agreeing)
    assert found == pytest.approx((grid[best[0]], grid[best[1]]), abs=0.0025)
    assert prior_nll(votes, agreeing, found) <= loss.min() + 1e-9


@pytest.mark.parametrize(("name", "nll"), [("much dissent", 32.7439), ("some dissent", 28.6249)])
def test_the_likelihood_at_the_fit_is_the_cards(name, nll):
    votes, agreeing, _ = CASES[name]
    assert prior_nll(votes, agreeing, fit_beta_prior(votes, agreeing)) == pytest.approx(nll, abs=1e-4)


def test_alpha_leaves_its_bound_only_where_runner_ups_win_half_the_votes():
    # A fair leader, G = T / 2 with many votes: the likelihood wants a and b equal and large, so both stay at 1;
    # leaders that have all or one vote of many want a prior with weight at both ends.
    split = fit_beta_prior([20, 20, 20, 20], [20, 1, 20, 1])
    assert split.alpha < 1


def test_equal_records_are_grouped_without_changing_the_likelihood():
    votes, agreeing = [4, 4, 9, 4], [3, 3, 5, 4]
    assert prior_nll(votes, agreeing, (0.7, 0.2)) == pytest.approx(
        brute_force_nll(votes, agreeing, 0.7, 0.2), abs=1e-10
    )


def test_ten_thousand_records_are_fitted_in_fifty_milliseconds_of_processor_time():
    rng = np.random.default_rng(0)
    votes = rng.integers(2, 41, 10_000)
    agreeing = np.maximum(1, rng.binomial(votes, 0.8))
    fastest = math.inf
    for _ in range(5):
        start = time.process_time()
        fit_beta_prior(votes, agreeing)
        fastest = min(fastest, time.process_time() - start)
    assert fastest < 0.05


@pytest.mark.parametrize(
    ("votes", "agreeing", "message"),
    [
        ([4, 4], [4, 5], "record 2: G is 5 and T is 4; expected whole numbers with 1 <= G <= T"),
        ([4], [0], "record 1: G is 0"),
        ([4.5], [2], r"T is 4\.5"),
        ([4, 3], [4], "expected equal lengths"),
        ([], [], "expected equal lengths from 1"),
    ],
)
def test_votes_that_cannot_be_are_refused(votes, agreeing, message):
    with pytest.raises(InputError, match=message):
        fit_beta_prior(votes, agreeing)


def test_bounds_that_cross_are_refused():
    with pytest.raises(InputError, match=r"bounds are \(1, 0\.5\)"):
        fit_beta_prior([4], [4], (1, 0.5))


def test_difficulty_groups_are_thirds_by_the_votes_needed():
    assert dict(zip([9, 1, 5, 7, 3, 2], difficulty_groups([9, 1, 5, 7, 3, 2]), strict=True)) == {
        1: "Easy", 2: "Easy", 3: "Middle", 5: "Middle", 7: "Hard", 9: "Hard",
    }  # fmt: skip


def test_the_last_group_takes_the_remainder():
    labels = difficulty_groups([1, 2, 3, 4, 5, 6, 7])
    assert [labels.count(label) for label in ("Easy", "Middle", "Hard")] == [2, 2, 3]


def test_equal_votes_keep_their_order():
    assert difficulty_groups([4, 4, 4]) == ["Easy", "Middle", "Hard"]


@pytest.mark.parametrize(
    ("question", "label"),
    [
        ("What is 2 + 2?", "Easy"),  # two numbers: 1
        ("a" * 160, "Middle"),  # length: 2
        ("If it rains when 3 of 4 go, provided that 5 or 6 stay, who wins unless 7 do?", "Hard"),  # 2 numbers, 3 words
        ("Iffy whenever", "Easy"),  # parts of words do not count
    ],
)
def test_the_rule_counts_length_numbers_and_conditions(question, label):
    assert rule_difficulty(question) == label


def test_fewer_than_three_records_of_a_category_leave_the_uniform_prior():
    history = History()
    history.append("a", 4, 4, "Easy")
    history.append("b", 4, 4, "Easy")
    history.append("c", 4, 4, "Hard")
    assert history.prior("Easy") == Prior(1.0, 1.0)


def test_a_question_does_not_calibrate_its_own_stopping():
    history = History()
    for question in ("a", "b", "c"):
        history.append(question, 4, 4, "Easy")
    assert history.prior("Easy") == pytest.approx((1.0, 0.01))
    assert history.prior("Easy", without="a") == Prior(1.0, 1.0)


def test_counts_are_rounded_and_kept_within_one_and_the_total():
    history = History()
    history.append("nothing was parsed", 0.0, 0.0, "Hard")
    history.append("means", 4.6, 3.4, "Hard")
    assert [(record.T, record.G) for record in history.records] == [(1, 1), (5, 3)]


def test_every_fiftieth_record_renews_all_categories():
    history = History()
    for number in range(49):
        history.append(f"q{number}", number + 1, 1, "Middle")
    assert {record.category for record in history.records} == {"Middle"}
    history.append("q49", 50, 1, "Middle")
    expected = ["Easy"] * 16 + ["Middle"] * 16 + ["Hard"] * 18
    assert [record.category for record in history.records] == expected


def test_a_history_survives_a_restart(tmp_path):
    path = tmp_path / "history.jsonl"
    History(path).append("Größe?", 6, 5, "Hard", {"model": "m"})
    (record,) = History(path).records
    assert (record.question, record.T, record.G, record.category) == ("Größe?", 6, 5, "Hard")
    assert record.extra == {"model": "m"}


def test_the_file_holds_renewed_categories(tmp_path):
    path = tmp_path / "history.jsonl"
    history = History(path)
    for number in range(51):
        history.append(f"q{number}", number + 1, 1, "Middle")
    assert [record.category for record in History(path).records].count("Easy") == 16
    assert len(path.read_text(encoding="utf-8").splitlines()) == 51


def test_a_second_reader_sees_what_the_first_wrote(tmp_path):
    one, two = History(tmp_path / "history.jsonl"), History(tmp_path / "history.jsonl")
    one.append("a", 4, 4, "Easy")
    assert [record.question for record in two.records] == ["a"]


def _write(path, writer):
    history = History(path)
    for number in range(40):
        history.append(f"{writer}-{number}", 4, 4, "Easy")


def test_four_writers_at_once_lose_nothing(tmp_path):
    path = tmp_path / "history.jsonl"
    with ProcessPoolExecutor(4) as pool:
        list(pool.map(_write, [path] * 4, range(4)))
    records = History(path).records
    assert {record.question for record in records} == {f"{w}-{n}" for w in range(4) for n in range(40)}
    assert len(records) == 160
    # The last renewal was at 150 records; the ten since have the category that they were given.
    assert [record.category for record in records[:150]].count("Hard") == 50


def test_a_line_that_was_cut_off_is_left_out_and_written_over(tmp_path):
    path = tmp_path / "history.jsonl"
    History(path).append("a", 4, 4, "Easy")
    with path.open("a", encoding="utf-8") as stream:
        stream.write('{"question": "b", "T": 4')
    with pytest.warns(UserWarning, match="the last line was cut off and is left out"):
        history = History(path)
    history.append("c", 4, 4, "Easy")
    assert [record.question for record in History(path).records] == ["a", "c"]


def test_a_last_line_without_its_newline_is_kept(tmp_path):
    path = tmp_path / "history.jsonl"
    path.write_text(json.dumps({"question": "a", "T": 4, "G": 4, "category": "Easy"}), encoding="utf-8")
    History(path).append("b", 4, 4, "Easy")
    assert [record.question for record in History(path).records] == ["a", "b"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": "b", "T": 4, "G": 7, "category": "Easy"}', "line 2: G is 7 and T is 4; expected whole numbers"),
        ('{"question": "b", "T": -4, "G": -7, "category": "Easy"}', "line 2: G is -7 and T is -4"),
        ('{"question": "b", "T": true, "G": 1, "category": "Easy"}', "line 2: G is 1 and T is True"),
        ('{"question": "b", "T": 4, "G": 4, "category": "easy"}', "line 2: category 'easy' is not one of Easy, Middle"),
        ('{"question": "b", "T": 4, "category": "Easy"}', "line 2: no field 'G'"),
        ("[1]", "line 2: expected a JSON object, found list"),
        ("{oops}", "line 2 is not JSON; correct or delete the line"),
    ],
)
def test_a_wrong_line_of_a_history_is_named(tmp_path, line, message):
    path = tmp_path / "history.jsonl"
    path.write_text('{"question": "a", "T": 4, "G": 4, "category": "Easy"}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=message):
        History(path)


def test_a_history_in_a_folder_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"the folder .*nowhere does not exist"):
        History(tmp_path / "nowhere" / "history.jsonl")


def test_examples_are_two_of_each_category_without_the_question_itself():
    history = History()
    for category in ("Easy", "Middle", "Hard"):
        for number in range(4):
            history.append(f"{category} {number}", 4, 4, category)
    chosen = history.examples(seed=0, without="Easy 0")
    assert [label for _, label in chosen] == ["Easy", "Easy", "Middle", "Middle", "Hard", "Hard"]
    assert len(set(chosen)) == 6
    assert ("Easy 0", "Easy") not in chosen
    assert chosen == history.examples(seed=0, without="Easy 0")
