"""The plots and numbers of a report: what is drawn, said in words, and legible in both themes."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_page import render_one, svgs
from report_runs import METHOD, PPL, RIVAL, changed, write_full_run, write_run

import assay.bench.report as report_package
from assay.bench.report import numbers, plots, render, write_report
from assay.bench.report.load import read_run
from assay.bench.report.page import margin_in_words

CSS = Path(report_package.__file__).parents[1] / "templates" / "report.css"


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    return write_full_run(tmp_path_factory.mktemp("runs") / "judge-rank")


# Plots.


def test_every_plot_is_an_image_whose_label_states_the_figures(run_folder):
    labels = re.findall(r'<svg [^>]*role="img" aria-label="([^"]*)"', render([run_folder]))
    assert len(labels) == 6  # differences, times and memory, for the run and for its part
    assert all(re.search(r"\d", label) for label in labels)


def test_the_label_of_the_differences_counts_better_and_worse_cases(tmp_path):
    folder = write_run(tmp_path / "run", n=30)
    cases = pd.read_parquet(folder / "cases.parquet")
    table = cases.pivot(index="case", columns="arm", values="kendall_tau")
    difference = table[METHOD] - table[RIVAL]
    label = plots.differences(read_run(folder), "x")
    assert f"Better in {(difference > 0).sum()}, worse in {(difference < 0).sum()}, equal in 0;" in label
    assert f"from {difference.min():+.3g} to {difference.max():+.3g}.".replace("-", "−") in label


def test_for_a_metric_where_lower_is_better_the_cases_below_one_are_gains(tmp_path):
    folder = write_run(tmp_path / "run", metrics=(PPL,), n=30)
    cases = pd.read_parquet(folder / "cases.parquet")
    table = cases.pivot(index="case", columns="arm", values="perplexity")
    n_gains = int((table[METHOD] < table[RIVAL]).sum())
    svg = plots.differences(read_run(folder), "x")
    gains = svg[svg.index('id="x-gains"') : svg.index('id="x-losses"')]
    assert gains.count("<title>") == n_gains
    assert re.search(r"← method better.*baseline better →", svg, re.DOTALL)


def test_on_the_log_scale_the_paired_values_are_ratios(tmp_path):
    run = read_run(write_run(tmp_path / "run", metrics=(PPL,), n=12))
    table = run.cases.pivot(index="case", columns="arm", values="perplexity")
    names, values = plots.paired_values(run)
    assert values == pytest.approx((table[METHOD] / table[RIVAL])[names].to_numpy())


def test_a_case_without_the_metric_in_one_arm_has_no_dot(tmp_path):
    run = read_run(write_run(tmp_path / "run", n=10, missing={METHOD: (0, 4), RIVAL: (4, 5)}))
    names, _ = plots.paired_values(run)
    assert set(names) == {f"case-{i}" for i in (1, 2, 3, 6, 7, 8, 9)}


@pytest.mark.parametrize("n", [1, 2, 24, 500])
def test_every_paired_case_is_one_dot_with_its_name(tmp_path, n):
    svg = plots.differences(read_run(write_run(tmp_path / "run", n=n)), "x")
    titles = re.findall(r"<title>(case-\d+): ", svg)
    assert sorted(titles) == sorted(f"case-{i}" for i in range(n))


def test_the_dots_stand_in_the_order_of_the_differences(tmp_path):
    svg = plots.differences(read_run(write_run(tmp_path / "run")), "x")
    dots = re.findall(r'<use [^>]*x="([\d.]+)" y="([\d.]+)"[^>]*><title>', svg)
    across, down = np.array(dots, dtype=float).T
    order = np.argsort(across)
    assert (np.diff(down[order]) < 0).all()


def test_five_hundred_cases_and_five_arms_stay_below_a_quarter_of_a_megabyte(tmp_path):
    folder = write_run(tmp_path / "run", n=500, arms=(METHOD, RIVAL, "a", "b", "c"))
    assert write_report(folder).stat().st_size < 250_000


def test_too_few_cases_have_a_diamond_without_an_interval(tmp_path):
    few, enough = (read_run(write_run(tmp_path / str(n), n=n)) for n in (4, 12))
    assert "too few cases for an interval" in plots.differences(few, "x")
    # One line fewer in ink: the interval.
    thick = r"stroke: var\(--ink\); stroke-width: 2.5"
    assert len(re.findall(thick, plots.differences(few, "x"))) == 0
    assert len(re.findall(thick, plots.differences(enough, "x"))) == 1


def test_too_few_cases_say_so_where_the_test_would_stand(tmp_path):
    page = render_one(tmp_path, n=4, outcome="unclear")
    figures = dict(zip(page.texts("dt"), page.texts("dd"), strict=True))
    assert figures["Signed-rank test"] == "too few cases"


def test_no_sentinel_colour_and_no_fixed_colour_is_left_in_a_plot(run_folder):
    for svg in svgs(render([run_folder])):
        assert not re.search(r"#[0-9a-fA-F]{6}", svg)


def test_every_colour_of_a_plot_is_a_variable_of_both_themes(run_folder):
    used = set(re.findall(r"var\((--\w+)\)", "".join(svgs(render([run_folder])))))
    assert used == {"--ink", "--soft", "--line", "--band", "--method", "--rival"}
    assert all(used <= set(theme) for theme in themes())


def test_the_plots_are_well_formed_and_keep_text_as_text(run_folder):
    for svg in svgs(render([run_folder])):
        root = ElementTree.fromstring(svg)
        assert root.findall(".//{http://www.w3.org/2000/svg}text")


def test_text_in_a_plot_is_at_least_nine_pixels_on_a_page_of_400(run_folder):
    room = 400 - 2 * 16
    for svg in svgs(render([run_folder])):
        width = float(re.search(r'viewBox="0 0 ([\d.]+)', svg)[1])
        sizes = [float(size) for size in re.findall(r"font-size: ([\d.]+)px", svg)]
        assert min(sizes) * room / width >= 9


def test_the_time_axis_is_logarithmic_when_the_arms_lie_far_apart(tmp_path):
    folder = write_run(tmp_path / "run")
    cases = pd.read_parquet(folder / "cases.parquet")
    cases["wall_s"] = np.where(cases["arm"] == METHOD, 0.001, 10.0)
    cases.to_parquet(folder / "cases.parquet")
    words = re.findall(r">([^<>]+)</text>", plots.times(read_run(folder), "x"))
    assert {"1\xa0ms", "10\xa0ms", "100\xa0ms", "1\xa0s", "10\xa0s"} <= set(words)


def test_the_memory_axis_counts_in_gib_when_there_are_some(tmp_path):
    folder = write_run(tmp_path / "run")
    result = json.loads((folder / "result.json").read_text())
    result["arms"][1]["peak_mib"] = 4096.0
    (folder / "result.json").write_text(json.dumps(result))
    svg = plots.memories(read_run(folder), "x")
    assert ">4.00\xa0GiB</text>" in svg
    assert ">2\xa0GiB</text>" in svg


def test_a_margin_is_a_band_and_no_margin_is_none(tmp_path):
    with_band = plots.differences(read_run(write_run(tmp_path / "a", margin=0.01)), "x")
    without = plots.differences(read_run(write_run(tmp_path / "b", margin=0.0)), "x")
    assert "var(--band)" in with_band
    assert "var(--band)" not in without


def test_cases_that_differ_by_rounding_alone_are_ties(tmp_path):
    folder = write_run(tmp_path / "run", n=8)
    cases = pd.read_parquet(folder / "cases.parquet")
    cases["kendall_tau"] = np.where(cases["arm"] == METHOD, 0.1 + 0.2, 0.3)
    cases.to_parquet(folder / "cases.parquet")
    assert "Better in 0, worse in 0, equal in 8;" in plots.differences(read_run(folder), "x")


def test_a_ratio_that_does_not_exist_is_not_drawn(tmp_path):
    folder = write_run(tmp_path / "run", metrics=(PPL,), n=8)
    cases = pd.read_parquet(folder / "cases.parquet")
    cases.loc[cases["case"] == "case-3", "perplexity"] = 0.0
    cases.to_parquet(folder / "cases.parquet")
    names, _ = plots.paired_values(read_run(folder))
    assert set(names) == {f"case-{i}" for i in range(8)} - {"case-3"}


def test_equal_arms_have_a_plot(tmp_path):
    folder = write_run(tmp_path / "run", n=8)
    cases = pd.read_parquet(folder / "cases.parquet")
    cases["kendall_tau"] = 0.5
    cases.to_parquet(folder / "cases.parquet")
    changed(folder, verdict__effect=0.0, verdict__ci_low=0.0, verdict__ci_high=0.0, verdict__p_value=1.0)
    assert "equal in 8" in plots.differences(read_run(folder), "x")


def test_margins_on_the_log_scale_are_factors(tmp_path):
    run = read_run(write_run(tmp_path / "run", metrics=(PPL,), margin=0.02))
    assert margin_in_words(run) == "differences within a factor of 1.02 do not matter"


# Contrast, from the variables of the style sheet.


def themes():
    """The colour variables of the light and of the dark page."""
    blocks = re.findall(r":root \{(.*?)\}", CSS.read_text(), flags=re.DOTALL)
    light, dark = (dict(re.findall(r"(--\w+): (#[0-9a-f]{6});", block)) for block in blocks)
    return light, {**light, **dark}


def luminance(colour):
    """Relative luminance (WCAG 2.2)."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def contrast(first, second):
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("variable", ["--ink", "--soft", "--link", "--good", "--bad", "--same", "--open"])
@pytest.mark.parametrize("ground", ["--paper", "--raised"])
def test_text_has_a_contrast_of_at_least_4_5(theme, variable, ground):
    colours = themes()[theme]
    assert contrast(colours[variable], colours[ground]) >= 4.5


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("variable", ["--method", "--rival", "--soft"])
@pytest.mark.parametrize("ground", ["--paper", "--band"])
def test_marks_in_plots_have_a_contrast_of_at_least_3(theme, variable, ground):
    colours = themes()[theme]
    assert contrast(colours[variable], colours[ground]) >= 3


# Numbers.


@given(st.floats(min_value=1e-4, max_value=9e6))
def test_a_number_is_within_half_of_its_third_significant_digit(value):
    shown = float(numbers.number(value).replace(",", "").replace("\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}10⁻⁵", "e-5"))
    assert abs(shown - value) <= 0.0050001 * value


@given(st.floats(min_value=-1e6, max_value=1e6))
def test_a_signed_number_has_a_sign_unless_it_shows_zero(value):
    text = numbers.number(value, 3, sign=True)
    assert text == "0.000" or text[0] == ("+" if value > 0 else "−")


@given(st.floats(min_value=1e-7, max_value=1e6))
def test_a_duration_is_within_a_percent_or_a_minute(seconds):
    text = numbers.duration(seconds).replace(",", "").split("\N{NO-BREAK SPACE}")
    sizes = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
    shown = sum(float(value) * sizes[unit] for value, unit in zip(text[::2], text[1::2], strict=True))
    assert abs(shown - seconds) <= max(
        0.0051 * seconds, 0.5 if seconds >= 100 else 0.0, 30.0 if seconds >= 3600 else 0.0
    )


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (0.0003, -0.02, 0.021, ("+0.0003", "−0.0200 to +0.0210")),
        (23.41, 23.389, 23.431, ("+23.410", "+23.389 to +23.431")),
        (1234.5, 1200.0, 1300.0, ("+1,234", "+1,200 to +1,300")),
        (1.23e-6, 1.1e-6, 1.4e-6, ("+1.23\xa0×\xa010⁻⁶", "+1.10\xa0×\xa010⁻⁶ to +1.40\xa0×\xa010⁻⁶")),
        (0.0, 0.0, 0.0, ("0.00", "0.00 to 0.00")),
        (None, None, None, ("–", "")),
    ],
)
def test_an_effect_and_its_interval_have_the_same_decimals(value, low, high, text):
    assert numbers.effect(value, low, high, "difference") == text


def test_a_number_that_rounds_to_zero_has_no_sign():
    assert numbers.number(-0.0001, 2, sign=True) == "0.00"
