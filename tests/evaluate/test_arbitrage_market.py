"""Reading recorded attempts, and what a reader is told about attempts that cannot be used."""

import gzip
import json
import warnings

import numpy as np
import pandas as pd
import pytest
from arbitrage_helpers import random_market, specialists

from assay._core.errors import InputError
from assay.evaluate.arbitrage import EXAMPLE_PRICES, Market, read_market, read_prices

ROWS = specialists(4)


def write(path, lines):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.fixture
def providers(tmp_path):
    small = [{"id": f"t{i}", "mean_cost": 0.1 * (i + 1), "attempts": [0, 1, i % 2, 0]} for i in range(6)]
    big = [{"id": f"t{i}", "mean_cost": 1.0, "attempts": [1, 1]} for i in range(1, 7)]
    return [write(tmp_path / "small.jsonl.gz", small), write(tmp_path / "big.jsonl", big)]


def test_a_file_per_provider_is_named_after_the_file_and_kept_where_all_attempted(providers):
    market = read_market(providers)
    assert market.providers == ("small", "big")
    assert market.problems == ("t1", "t2", "t3", "t4", "t5")
    assert market.n_correct[0].tolist() == [2, 1, 2, 1, 2]
    assert market.attempt_cost[0] == pytest.approx([0.2, 0.3, 0.4, 0.5, 0.6])


def test_a_long_table_and_a_file_per_provider_say_the_same(providers, tmp_path):
    market = read_market(providers)
    rows = []
    for path in providers:
        table = pd.read_json(path, lines=True)
        for _, row in table.iterrows():
            rows += [(path.name.split(".")[0], row["id"], solved, row["mean_cost"]) for solved in row["attempts"]]
    pd.DataFrame(rows, columns=["model", "task", "solved", "cost"]).to_csv(tmp_path / "runs.csv", index=False)
    other = read_market(tmp_path / "runs.csv")
    np.testing.assert_array_equal(other.solved, market.solved)


def test_columns_of_the_papers_names_and_of_yours_are_found():
    market = Market.from_attempts(ROWS, max_budget=2)
    paper = ROWS.set_axis(["provider", "problem", "correct", "cost"], axis=1)
    mine = ROWS.set_axis(["llm", "issue", "ok", "usd"], axis=1)
    for other in (
        Market.from_attempts(paper, max_budget=2),
        Market.from_attempts(mine, model="llm", task="issue", solved="ok", cost="usd", max_budget=2),
    ):
        np.testing.assert_array_equal(other.solved, market.solved)


def test_tokens_become_money_by_the_price_list_and_reasoning_counts_as_output(tmp_path):
    (tmp_path / "prices.csv").write_text("model,input_per_million,output_per_million\na,2,10\nb,1,5\n")
    rows = "".join(f"{m},t{i},1,1000000,200000,100000\n" for m in "ab" for i in (0, 1) for _ in (0, 1))
    (tmp_path / "runs.csv").write_text("model,task,solved,input_tokens,output_tokens,reasoning_tokens\n" + rows)
    market = read_market(tmp_path / "runs.csv", prices=tmp_path / "prices.csv")
    assert market.attempt_cost[:, 0] == pytest.approx([2 + 0.3 * 10, 1 + 0.3 * 5])


def test_the_example_price_list_is_dated_and_marked_as_an_example():
    table = pd.read_csv(EXAMPLE_PRICES)
    assert table["note"].str.startswith("EXAMPLE").all()
    assert (table["as_of"] == "2025-12").all()
    assert len(read_prices(EXAMPLE_PRICES)) == len(table)


def test_the_market_price_is_the_cheapest_provider_at_each_solve_rate():
    market = random_market(providers=3, max_budget=400)
    rates = np.linspace(0.1, 0.9, 9)
    each = np.stack([market.price(name, rates) for name in market.providers])
    np.testing.assert_array_equal(market.market_price(rates), each.min(axis=0))


def test_a_subset_keeps_budgets_and_the_curves_of_its_problems():
    market = random_market()
    part = market.subset(["t3", "t7"])
    np.testing.assert_array_equal(part.budgets, market.budgets)
    np.testing.assert_array_equal(part.solved, market.solved[:, [3, 7]])


def test_a_budget_beyond_the_record_of_a_lucky_problem_is_flagged_as_saturated():
    # One success in two attempts: at a budget for two the estimate has jumped to 1. The second task succeeded often.
    rows = [("a", "rare", s, 1.0) for s in (1, 0)] + [("a", "easy", 1, 1.0) for _ in range(9)]
    rows += [("b", task, 1, 1.0) for task in ("rare", "easy") for _ in range(9)]
    market = Market.from_attempts(pd.DataFrame(rows, columns=["model", "task", "solved", "cost"]), max_budget=20)
    assert market.saturation("a", [1.9, 2.0]).tolist() == [0.0, 0.5]
    assert market.saturation("b", 20.0) == 0.0


def test_single_attempts_are_warned_of():
    once = ROWS.drop_duplicates()
    with pytest.warns(
        UserWarning, match=r"^one attempt on most tasks by a, b: a pass curve of one attempt is a single"
    ):
        Market.from_attempts(once)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Market.from_attempts(ROWS)


# --------------------------------------------------------------------------------------------------------- bad input


def changed(row, column, value):
    frame = ROWS.astype({"cost": float, "solved": float}).copy()
    frame.loc[row, column] = value
    return frame


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (changed(2, "cost", 0.0), r"^attempts, row 3, column 'cost': 0 is not above zero; an attempt has a cost"),
        (changed(2, "cost", -1.5), r"^attempts, row 3, column 'cost': -1\.5 is not above zero"),
        (changed(2, "cost", np.nan), r"^attempts, row 3, column 'cost': the cell is empty"),
        (changed(0, "solved", 0.5), r"^attempts, row 1, column 'solved': 0\.5 is not 0 or 1; an attempt is verified"),
        (ROWS[ROWS["model"] == "a"], r"^attempts: 'a' is the only provider; arbitrage needs attempts of at least two$"),
        (
            ROWS.assign(task=ROWS["task"] + ROWS["model"]),
            r"^attempts: no task was attempted by every provider \(tasks of each: a 4, b 4\)$",
        ),
        (
            ROWS.assign(cost=np.where(ROWS["model"] == "a", 2_000_000.0, 0.5)),
            r"^attempts: an attempt costs 2e\+06 at 'a' and 0\.5 at 'b'; that looks like tokens beside money",
        ),
        (ROWS.assign(cascade_stage=1), r"^attempts is the log of a cascade: it stops at the first success"),
        (ROWS.drop(columns="cost"), r"^attempts: no column 'cost'; it has 'model', 'task', 'solved'"),
    ],
)
def test_attempts_that_cannot_be_used_are_refused(frame, message):
    with pytest.raises(InputError, match=message):
        Market.from_attempts(frame)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_budget": 0.5}, r"^a budget of 0\.5 per task buys no attempt \(the cheapest costs 1\); raise it$"),
        ({"budgets": [1.0, 1.0]}, r"^budgets are at least two increasing finite numbers above zero$"),
        ({"verify_fpr": 1.0}, r"^verify_fpr 1\.0 is not a probability below 1; give the verifier's error rate$"),
    ],
)
def test_options_that_cannot_be_used_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        Market.from_attempts(ROWS, **options)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            {"id": "t9", "mean_cost": 1.0, "attempts": []},
            r"row 7: attempts is a list of 0 and 1 with at least one entry",
        ),
        ({"id": "t9", "mean_cost": 1.0, "attempts": [0, 2]}, r"row 7: attempts is a list of 0 and 1"),
        ({"id": "t9", "mean_cost": 0, "attempts": [1]}, r"row 7: mean_cost 0 is not above zero; an attempt has a cost"),
        (
            {"id": "t1", "mean_cost": 1.0, "attempts": [1]},
            r"row 7: the task 't1' occurs twice; put its attempts into one",
        ),
    ],
)
def test_a_line_that_cannot_be_used_is_named(providers, line, message):
    with providers[1].open("a") as stream:
        stream.write(json.dumps(line) + "\n")
    with pytest.raises(InputError, match=message):
        read_market(providers)


def test_the_same_attempts_in_two_files_are_refused(providers, tmp_path):
    (tmp_path / "copy").mkdir()
    copy = tmp_path / "copy" / "big.jsonl"
    copy.write_bytes(providers[1].read_bytes())
    with pytest.raises(InputError, match=r"copy/big\.jsonl: attempts of 'big' on 't1' are in .*big\.jsonl already"):
        read_market([*providers, copy])


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ("5,", r"runs\.csv, row 2, column 'output_tokens': the cell is empty; without it the attempt has no cost"),
        ("5,many", r"row 2, column 'output_tokens': 'many' is not a number of tokens"),
        ("0,0", r"row 2: the attempt of 'a' costs nothing \(no tokens, or a price of zero\)"),
    ],
)
def test_tokens_that_are_no_cost_are_refused(tmp_path, cells, message):
    (tmp_path / "prices.csv").write_text("model,input_per_million,output_per_million\na,2,10\nb,1,5\n")
    (tmp_path / "runs.csv").write_text(f"model,task,solved,input_tokens,output_tokens\nb,t,1,5,5\na,t,1,{cells}\n")
    with pytest.raises(InputError, match=message):
        read_market(tmp_path / "runs.csv", prices=tmp_path / "prices.csv")


def test_tokens_without_prices_ask_for_a_price_list(tmp_path):
    (tmp_path / "runs.csv").write_text("model,task,solved,input_tokens,output_tokens\na,t,1,5,5\nb,t,1,5,5\n")
    with pytest.raises(
        InputError, match=r"runs\.csv has tokens but no costs; give a price list \(model, input_per_mil"
    ):
        read_market(tmp_path / "runs.csv")


def test_a_model_without_a_price_is_named(tmp_path):
    (tmp_path / "runs.csv").write_text("model,task,solved,input_tokens,output_tokens\nmystery,t,1,5,5\n")
    with pytest.raises(InputError, match=r"the price list has no row for the model 'mystery'; add one, or leave the"):
        read_market(tmp_path / "runs.csv", prices="example")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("a,1,2,USD\na,1,2,USD", r"row 2: 'a' has a price already; keep one of the rows"),
        ("a,-1,2,USD", r"row 1, column 'input_per_million': the price -1 is negative"),
        ("a,1,2,USD\nb,1,2,EUR", r"prices are in several currencies \(USD, EUR\); give all in one"),
    ],
)
def test_a_price_list_that_cannot_be_used_is_refused(tmp_path, rows, message):
    (tmp_path / "prices.csv").write_text(f"model,input_per_million,output_per_million,currency\n{rows}\n")
    with pytest.raises(InputError, match=message):
        read_prices(tmp_path / "prices.csv")


def test_an_unknown_provider_is_answered_with_the_known_ones(providers):
    with pytest.raises(InputError, match=r"^there is no provider 'huge'; there are small, big$"):
        read_market(providers).price("huge", 0.5)


def test_a_subset_of_unknown_problems_is_refused():
    with pytest.raises(InputError, match=r"^none of the problems asked for is in the market"):
        random_market().subset(["elsewhere"])
