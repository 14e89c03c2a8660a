"""The trial of liftquant: its arms do what their names say, at the bytes that they say, and it gives a verdict."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from assay import bench
from assay._core.errors import InputError
from assay.trials.compress import liftquant as trial

(NORMAL,) = trial.TRIAL.also


def test_declaring_the_trial_and_the_command_does_not_load_torch_or_numba():
    script = (
        "import sys, assay.trials.compress.liftquant, assay.cli.use.liftquant, assay.compress.liftquant as m; m.encode"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", script + "; print({'torch', 'numba'} & set(sys.modules))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert loaded.stdout.strip() == "set()"


@pytest.mark.parametrize("bits", [2.0, 2.14, 2.4, 2.5, 3.0])
def test_a_baseline_has_at_least_the_bits_of_the_code(bits):
    whole, group = trial.same_bytes(bits)
    assert whole + (0.0 if group is None else (17 + whole) / group) >= bits - 1e-9


def test_lloyd_and_max_s_levels_are_the_known_ones():
    assert trial.levels(2, uniform=False) == pytest.approx([-1.5104, -0.4528, 0.4528, 1.5104], abs=2e-3)


def test_the_uniform_levels_have_the_known_step():
    assert np.diff(trial.levels(2, uniform=True)) == pytest.approx([0.9957] * 3, abs=2e-3)


def test_the_score_is_signal_over_error():
    x = np.array([3.0, 4.0, 9.0])
    found = trial.kept(bench.Case("c", None, x), np.array([3.0, 3.0]))
    assert found["mse"] == pytest.approx(1 / 25)
    assert found["snr"] == pytest.approx(10 * np.log10(25))


def test_on_normal_numbers_the_code_beats_uniform_levels_by_more_than_a_decibel():
    # 0.0911 against 0.1188: 1.15 dB. 96,000 numbers: a standard error of 0.03 dB.
    (case,) = trial.draws((2, 96_000), 1, 0)
    code, uniform = (trial.kept(case, run(case.given, 0))["snr"] for run in (trial.lift_numbers, trial.uniform))
    assert 1.0 < code - uniform < 1.3
    assert code < 2 * 20 * np.log10(2)


def test_a_run_gives_a_verdict(tmp_path):
    short = dataclasses.replace(NORMAL, arms=NORMAL.arms[:2])
    result = bench.run(short, cases=8, out=tmp_path / "run", params={"values": 4_800})
    assert "supported" in result.summary()


def test_draws_are_independent_and_a_longer_run_starts_with_a_shorter_one():
    long, short = list(trial.draws((2, 64), 5, 1)), list(trial.draws((2, 64), 3, 1))
    assert all(np.array_equal(a.given.values, b.given.values) for a, b in zip(short, long, strict=False))
    assert not np.array_equal(long[0].given.values, long[1].given.values)


def test_bits_that_other_codes_are_not_made_for_are_refused():
    with pytest.raises(InputError, match=r"^-p bits=4: expected 2 or 3, for which the other codes are made$"):
        trial.load_normal(None, "quick", {"bits": 4, "values": 100})


def test_a_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "image.png"
    path.write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(InputError, match=r"image\.png cannot be read as UTF-8 text"):
        trial.load_model(str(path), "quick", trial.TRIAL.params)
