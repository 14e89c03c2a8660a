"""The example that a person would send to a colleague."""

import runpy
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import expit

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "rank_your_judges_and_models.py"


def run(capsys, path):
    runpy.run_path(str(SCRIPT))["main"](path)
    return capsys.readouterr().out.splitlines()


def votes(discriminations):
    rng = np.random.default_rng(0)
    a, b = np.array([rng.choice(4, 2, replace=False) for _ in range(3_000)]).T
    judge = rng.integers(len(discriminations), size=3_000)
    wins = rng.random(3_000) < expit(np.array(list(discriminations.values()))[judge] * (b - a))
    names = np.array([f"model {i}" for i in range(4)])
    return pd.DataFrame(
        {
            "model_a": names[a],
            "model_b": names[b],
            "judge": np.array(list(discriminations))[judge],
            "winner": np.where(wins, "model_a", "model_b"),
        }
    )


def test_it_names_the_best_model_and_the_judge_who_flips_a_coin(tmp_path, capsys):
    votes({"expert": 2.0, "good": 1.0, "coin": 0.0}).to_csv(tmp_path / "votes.csv", index=False)
    lines = run(capsys, tmp_path / "votes.csv")
    assert lines[1].split("  ")[-1] == "model 0"
    assert "The most telling of 3 judges: expert" in lines
    assert [line for line in lines if "less than half" in line and ": coin (" in line]
    assert lines[-1].startswith("  without these: a model has ")


def test_equal_judges_are_all_kept(tmp_path, capsys):
    votes({"one": 1.0, "two": 1.0}).to_csv(tmp_path / "votes.csv", index=False)
    assert run(capsys, tmp_path / "votes.csv")[-1] == "No judge is clearly worth leaving out."


def test_it_is_short_enough_to_send():
    assert len(SCRIPT.read_text(encoding="utf-8").splitlines()) < 40
