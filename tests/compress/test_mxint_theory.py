"""mxint: the theory's curves and crossovers, and the comparison of formats that stands beside them."""

import numpy as np
import pytest
import torch

from assay._core.errors import InputError
from assay.compress.mxint import (
    PAPER_FORMATS,
    capture,
    compare_formats,
    crest_factor,
    crossover,
    fake_quant,
    qsnr,
    quantize,
    six_points,
    theory_qsnr,
)

pytestmark = pytest.mark.usefixtures("one_thread")


PAIRS = [("mxint8", "mxfp8"), ("mxint6", "mxfp6"), ("mxint4", "mxfp4"), ("nvint4", "nvfp4")]


@pytest.mark.parametrize(
    ("pair", "kappa", "level"),
    list(zip(PAIRS, (7.546, 1.959, 2.042, 2.390), (31.86, 31.54, 19.14, 21.14), strict=True)),
)
def test_crossovers_are_the_paper_s(pair, kappa, level):
    # The card gives NVINT4 as 2.390; its own formulas give 2.3913, the paper prints 2.39.
    assert crossover(*pair) == pytest.approx(kappa, abs=2e-3)
    assert theory_qsnr(pair[0], crossover(*pair)) == pytest.approx(level, abs=0.01)


@pytest.mark.parametrize(
    ("fmt", "expected"),
    list(zip(PAPER_FORMATS, (39.88, 31.86, 27.84, 30.81, 15.80, 18.01, 19.17, 21.88), strict=True)),
)
def test_theory_at_a_crest_factor_of_three(fmt, expected):
    assert theory_qsnr(fmt, 3.0) == pytest.approx(expected, abs=0.01)


def test_an_integer_bit_is_worth_six_decibels():
    steps = np.diff([theory_qsnr(fmt, 2.5) for fmt in ("mxint4", "mxint6", "mxint8")])
    assert steps / 2 == pytest.approx([6.02, 6.02])


def test_floating_point_meets_its_ceiling_when_all_values_are_normal():
    assert theory_qsnr("mxfp8", 1.0) == pytest.approx(13.80 + 6.02 * 3, abs=0.01)


@pytest.mark.parametrize("outliers", [False, True])
def test_mxint8_is_within_a_decibel_and_a_half_of_theorem_1(outliers):
    x = np.random.default_rng(0).standard_normal((2**13, 32)).astype(np.float32)
    if outliers:
        x[:, 3] *= 3
    scale = 2.0 ** (quantize(x, "mxint8").scales.numpy().astype(float) - 127)
    rho = np.sqrt(np.mean((scale[:, 0] * 127 / np.abs(x).max(1)) ** 2))
    kappa = np.sqrt(np.mean(crest_factor(x) ** 2))
    assert qsnr(x, fake_quant(x, "mxint8")) == pytest.approx(theory_qsnr("mxint8", kappa, rho), abs=1.5)


def test_a_crest_factor_below_one_is_refused():
    with pytest.raises(InputError, match=r"^kappa=0\.5: a crest factor max\|x\| / rms\(x\) is at least 1$"):
        theory_qsnr("mxint8", 0.5)


def test_a_crossover_of_two_integer_formats_is_refused():
    with pytest.raises(InputError, match=r"give an integer format, then a floating one$"):
        crossover("mxint8", "mxint4")


# ------------------------------------------------------------------------------------------------ comparison


@pytest.fixture(scope="module")
def tensors():
    rng = np.random.default_rng(0)
    heavy = rng.standard_normal((64, 256))
    heavy[:, ::64] *= 20
    return {"normal": rng.standard_normal((64, 256)), "outliers": heavy}


def test_a_comparison_holds_the_measured_errors(tensors):
    frame = compare_formats(tensors, rotate=[None, "hadamard"]).to_frame()
    assert len(frame) == 2 * 2 * 8
    row = frame.query("tensor == 'outliers' and format == 'nvint4' and rotate == 'hadamard'").iloc[0]
    x = tensors["outliers"]
    assert row["qsnr"] == pytest.approx(qsnr(x, fake_quant(x, "nvint4", rotate="hadamard")), abs=1e-9)


def test_rotation_turns_the_4_bit_verdict_on_outliers(tensors):
    wins = compare_formats(tensors, ["nvint4", "nvfp4"], rotate=[None, "hadamard"]).winners()
    measured = wins[wins["tensor"] == "outliers"].set_index("rotate")["measured"]
    assert measured.to_dict() == {"none": "nvfp4", "hadamard": "nvint4"}


def best_by_brute_force(found, budget):
    """The smallest sum of errors over all assignments that fit."""
    rows = found.rows.assign(error=10 ** (-found.rows["qsnr"] / 10), bytes=found.rows["bits"] * found.rows["n"] / 8)
    totals = [(0.0, 0.0)]
    for _, part in rows.groupby("tensor"):
        choices = list(zip(part["bytes"], part["error"], strict=True))
        totals = [(spent + size, error + e) for spent, error in totals for size, e in choices]
    return min(error for spent, error in totals if spent <= budget)


def test_the_recommendation_fits_and_is_the_best_that_does(tensors):
    # Three tensors of equal size and two steps up the ladder: the greedy choice is exact where every step fits.
    three = {**tensors, "second": tensors["normal"] * 2 + 1e-3}
    found = compare_formats(three, ["mxint4", "mxint6", "mxint8"])
    size = 64 * 256 / 8
    budget = size * (4.25 + 6.25 + 6.25)
    chosen = found.recommend(budget)
    rows = found.rows.set_index(["tensor", "format"])
    assert sum(rows.at[item, "bits"] for item in chosen.items()) * size <= budget
    error = sum(10 ** (-rows.at[item, "qsnr"] / 10) for item in chosen.items())
    assert error == pytest.approx(best_by_brute_force(found, budget))


def test_a_budget_that_nothing_fits_is_refused(tensors):
    with pytest.raises(
        InputError, match=r"^budget of 0\.0 MB: the narrowest formats need 0\.0 MB; raise it or allow n"
    ):
        compare_formats(tensors, ["mxint4"]).recommend(10)


def test_a_convolution_s_weight_needs_an_axis():
    with pytest.raises(InputError, match=r"^tensor 'conv' has shape \(8, 3, 5, 5\); say with axis= along which axis"):
        compare_formats({"conv": np.ones((8, 3, 5, 5))})


def test_the_message_about_nan_names_the_tensor():
    with pytest.raises(InputError, match=r"^tensor 'w': x holds 1 values that are NaN or infinite"):
        compare_formats({"w": np.array([[1.0, np.nan]])})


def test_no_tensors_are_refused():
    with pytest.raises(InputError, match=r"^0 tensors and 8 formats; expected at least one of each$"):
        compare_formats({})


def test_the_summary_and_the_picture_say_who_wins(tensors):
    found = compare_formats(tensors)
    assert "mxint8 / mxfp8: mxint8 has the smaller error on 2 of 2 tensors" in found.summary()
    axes = found.plot()
    assert "dB" in axes.get_ylabel()


def test_capture_gives_what_the_six_products_need():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    x = torch.randn(5, 6)
    seen = capture(model, lambda: model(x).sum().backward(), skip=("2",))
    ((name, (given, dy)),) = seen.items()
    assert name == "0"
    points = six_points(given, model[0].weight.detach(), dy)
    # dW = dYᵀ X, the gradient that autograd left on the weight.
    torch.testing.assert_close(points["dy_back"] @ points["x_back"].T, model[0].weight.grad)
    assert {key: tuple(value.shape) for key, value in points.items()} == {
        "x": (5, 6), "w": (4, 6), "dy": (5, 4), "w_back": (6, 4), "dy_back": (4, 5), "x_back": (6, 5),
    }  # fmt: skip
