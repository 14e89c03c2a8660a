"""The trial of clean-pr: without slips every form is right, with slips of numbers only diffs suffer, and it runs."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from assay import bench
from assay._core.errors import InputError
from assay.trials.synth import clean_pr as trial

sys.path.insert(0, str(Path(__file__).parents[1] / "synth"))
from clean_pr_helpers import Repo


def first_case(slips, seed=0):
    files = trial.source_files()
    return next(iter(trial.known_edits((files, slips), 1, seed)))


@pytest.mark.parametrize("arm", trial.ARMS, ids=lambda arm: arm.name)
def test_without_slips_every_arm_is_right(arm):
    case = first_case(trial.Slips(0, 0))
    assert trial.share_exact(case, arm.run(case.given, 0))["exact"] == 1.0


@pytest.mark.parametrize("seed", range(5))
def test_slips_of_numbers_leave_blocks_as_they_are(seed):
    case = first_case(trial.Slips(1, 0), seed)
    assert trial.share_exact(case, trial.ARMS[0].run(case.given, 0))["exact"] == 1.0


def test_slips_of_all_numbers_change_every_head_of_a_hunk():
    diff = b"@@ -10,3 +20,4 @@\n x\n"
    slipped = trial.slipped_diff(diff, trial.Slips(1, 0), np.random.default_rng(0))
    numbers = [
        int(part) for part in slipped.split(b"@@")[1].replace(b"-", b"").replace(b"+", b"").replace(b",", b" ").split()
    ]
    assert all(0 < abs(number - right) <= 2 for number, right in zip(numbers, (10, 3, 20, 4), strict=True))


def test_a_slip_of_lines_changes_copied_lines_and_no_new_ones():
    slipped = trial.slipped_diff(
        b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-x\n+y\n", trial.Slips(0, 1), np.random.default_rng(0)
    )
    assert slipped.endswith(b"+y\n")
    assert b"\n-x\n" not in slipped
    assert slipped.startswith(b"--- a/x\n+++ b/x\n")


def test_the_first_cases_of_a_longer_run_are_those_of_a_shorter_one():
    data = trial.source_files(), trial.Slips(0.1, 0.1)
    short, long = (list(trial.known_edits(data, n, 3)) for n in (2, 5))
    assert [case.id for case in short] == [case.id for case in long[:2]]
    assert [case.truth for case in short] == [case.truth for case in long[:2]]


def test_it_runs_on_a_users_repository(tmp_path):
    repo = Repo(tmp_path / "shop")
    text = "".join(f"line_{k} = {k}\n" for k in range(30))
    repo.commit({"a.py": text})
    for k in range(6):
        repo.commit({"a.py": text.replace(f"line_{k} = {k}\n", "changed = 1\n")})
    result = bench.run(trial.TRIAL, data=repo.folder, cases=6, out=tmp_path / "run", progress=False)
    assert result.failures == ()
    assert result.arms[0].metrics["exact"].mean > 0.9


@pytest.mark.parametrize(
    ("params", "message"), [({"slip_lines": 2}, r"slip_lines is 2; expected a probability from 0 to 1")]
)
def test_a_probability_out_of_range_is_refused(params, message):
    with pytest.raises(InputError, match=message):
        trial.load_known(None, "quick", {**trial.PARAMS, **params})


def test_a_part_without_data_says_what_it_needs():
    with pytest.raises(InputError, match=r"needs a Git clone: assay try clean-pr --data FOLDER$"):
        trial.load_commits(None, "quick", trial.PARAMS)


def test_the_surprise_of_a_model_that_knows_nothing_is_the_log_of_its_vocabulary_a_token(monkeypatch):
    torch = pytest.importorskip("torch")

    class Tokenizer:
        def __call__(self, text):
            return SimpleNamespace(input_ids=[ord(sign) % 50 for sign in text])

    def knows_nothing(ids):
        return SimpleNamespace(logits=torch.zeros((*ids.shape, 50)))

    monkeypatch.setattr(trial, "language_model", lambda name: (knows_nothing, Tokenizer()))
    given = trial.Written(b"x\n", b"y\n", "demo")
    found = trial.surprise("blocks", given, 0)
    text = "### file.py\n<<<<<<< SEARCH\nx\n=======\ny\n>>>>>>> REPLACE\n"
    assert found["tokens"] == len(text)
    assert found["nats"] == pytest.approx(len(text) * np.log(50), rel=1e-5)
