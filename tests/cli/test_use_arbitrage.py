"""`assay use arbitrage` on files, as a person uses it."""

import json

import numpy as np
import pandas as pd
import pytest

from assay._core.errors import InputError
from assay.evaluate.arbitrage import CascadePolicy, CascadeRunner


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    providers = {"small": (0.6, 0.0, 1.0), "big": (0.7, 0.5, 10.0)}
    for name, (on_easy, on_hard, cost) in providers.items():
        rows = []
        for i in range(40):
            p = on_easy if i % 2 else on_hard
            rows.append({"id": f"t{i}", "mean_cost": cost, "attempts": (rng.random(15) < p).astype(int).tolist()})
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path / "small.jsonl", tmp_path / "big.jsonl"


def test_it_writes_a_policy_prices_and_two_pictures(run, files, tmp_path):
    done = run(*files, "-o", tmp_path / "out" / "deep", "--boot", 30)
    assert "mean, held-out tasks" in done.output
    written = {path.name: path for path in (tmp_path / "out" / "deep").iterdir()}
    assert set(written) == {"policy.json", "prices.csv", "cost.png", "margin.png"}
    policy = json.loads(written["policy.json"].read_text())
    assert policy["order"] == ["small", "big"]
    for numbers in (policy, policy["held_out"]):
        for name in ("mean_margin", "max_margin", "at_solve_rate"):
            assert numbers[name]["low"] <= numbers[name]["high"]
    assert set(policy["thresholds_interval"]) == set(policy["thresholds"]) == {"small", "big"}
    table = pd.read_csv(written["prices.csv"])
    assert {"solve_rate", "cost_small", "cost_big", "market_price", "cascade_cost", "margin"} <= set(table.columns)
    assert written["cost.png"].read_bytes().startswith(b"\x89PNG")


def test_the_policy_that_it_writes_drives_the_runner(run, files, tmp_path):
    run(*files, "-o", tmp_path / "out", "--boot", 5)
    solvers = {"small": lambda problem: (None, 1.0), "big": lambda problem: ("done", 10.0)}
    runner = CascadeRunner(tmp_path / "out" / "policy.json", solvers, lambda problem, solution: solution == "done")
    assert runner.solve("t").stage == "big"


def test_from_sets_the_lowest_solve_rate_and_order_the_cascade(run, files, tmp_path):
    run(*files, "-o", tmp_path / "out", "--boot", 5, "--from", "0.6", "--order", "big,small", "--budget", "200")
    policy = CascadePolicy.load(tmp_path / "out" / "policy.json")
    assert policy.order_ == ("big", "small")
    assert policy.thresholds_.sum() == pytest.approx(200)
    assert pd.read_csv(tmp_path / "out" / "prices.csv")["solve_rate"].iloc[0] == pytest.approx(0.6)


def test_a_table_with_tokens_and_other_column_names_is_priced(run, tmp_path):
    rows = "".join(
        f"{m},t{i},{int(i % 2 or m == 'big')},1000,{500 * k}\n"
        for m, k in (("small", 1), ("big", 9))
        for i in range(20)
        for _ in "ab"
    )
    (tmp_path / "runs.csv").write_text("llm,issue,ok,input_tokens,output_tokens\n" + rows)
    (tmp_path / "prices.csv").write_text("model,input_per_million,output_per_million\nsmall,1,2\nbig,5,10\n")
    columns = ["--model-column", "llm", "--task-column", "issue", "--solved-column", "ok"]
    run(tmp_path / "runs.csv", "--prices", tmp_path / "prices.csv", *columns, "--boot", 5, "-o", tmp_path / "out")
    costs = json.loads((tmp_path / "out" / "policy.json").read_text())["attempt_costs"]
    assert costs == pytest.approx({"small": 0.002, "big": 0.05})


def test_single_attempts_are_warned_of_once(run, tmp_path):
    rows = "".join(f"{m},t{i},{i % 2},1\n" for m in ("a", "b") for i in range(20))
    (tmp_path / "runs.csv").write_text("model,task,solved,cost\n" + rows)
    done = run(tmp_path / "runs.csv", "--boot", 5, "-o", tmp_path / "out")
    assert done.stderr.count("warning: one attempt on most tasks by a, b") == 1


def test_nothing_is_written_when_the_input_is_wrong(run, files, tmp_path):
    with pytest.raises(InputError, match=r"^there is no provider 'huge'; there are small, big$"):
        run(*files, "--order", "small,huge", "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_missing_file_is_named(run, tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.jsonl: no such file$"):
        run(tmp_path / "nowhere.jsonl", "-o", tmp_path / "out")


def test_an_output_folder_that_is_a_file_is_refused(run, files, tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(InputError, match=r"^cannot make the folder .*taken: "):
        run(*files, "-o", tmp_path / "taken", "--boot", 5)


def test_help_opens_with_an_example(run):
    assert "Example: `assay use arbitrage" in " ".join(run("--help").output.split())
