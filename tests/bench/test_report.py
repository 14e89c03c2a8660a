"""The report of a run: what stands on the page, in which order, and that no name or missing number breaks it."""

import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_runs import COVERAGE, METHOD, PPL, RIVAL, TAU, write_run

import assay.bench.report as report_package
from assay._core.errors import InputError
from assay.bench.report import numbers, plots, render, write_report
from assay.bench.report.load import read_run
from assay.bench.report.page import failure_groups, margin_in_words, metric_cell

CSS = Path(report_package.__file__).parents[1] / "templates" / "report.css"
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """The elements of a page as (tag, attributes, text, ancestors), and whether every tag is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements, self._open = [], []
        self.feed(text)
        assert not self._open, f"not closed: {self._open}"

    def handle_starttag(self, tag, attrs):
        element = {"tag": tag, "attrs": dict(attrs), "text": "", "within": [above["tag"] for above in self._open]}
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self._open[-1]["tag"] == tag, f"</{tag}> closes <{self._open[-1]['tag']}>"
        self._open.pop()

    def handle_data(self, data):
        for element in self._open:
            element["text"] += data

    def all(self, tag):
        return [element for element in self.elements if element["tag"] == tag]

    def texts(self, tag):
        return [" ".join(element["text"].split()) for element in self.all(tag)]

    @property
    def text(self):
        return " ".join(self.all("body")[0]["text"].split())


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A run with four arms, a margin, failures and a part on the log scale."""
    folder = write_run(
        tmp_path_factory.mktemp("runs") / "judge-rank",
        arms=(METHOD, RIVAL, "majority vote", "Elo"),
        metrics=(TAU, COVERAGE),
        margin=0.01,
        failing={"Elo": (3, 7)},
        also=("held-out votes",),
        params={"n_judges": 20},
    )
    write_run(folder / "held-out votes", part="held-out votes", metrics=(PPL, TAU), margin=0.02, outcome="unclear")
    return folder


@pytest.fixture(scope="module")
def page(run_folder):
    return Page(render([run_folder]))


def render_one(tmp_path, **options):
    return Page(render([write_run(tmp_path / "run", **options)]))


def svgs(text):
    return re.findall(r'<svg [^>]*role="img".*?</svg>', text, flags=re.DOTALL)


# The page as a whole.


def test_the_report_is_written_into_the_run_folder_and_nothing_else_is_left(tmp_path):
    folder = write_run(tmp_path / "run")
    assert write_report(folder) == folder / "report.html"
    assert sorted(path.name for path in folder.iterdir()) == ["cases.parquet", "report.html", "result.json"]


def test_the_same_run_gives_the_same_page(run_folder):
    assert render([run_folder]) == render([run_folder])


def test_a_failed_rendering_leaves_the_old_report(tmp_path):
    folder = write_run(tmp_path / "run")
    (folder / "report.html").write_text("old")
    (folder / "cases.parquet").write_bytes(b"PAR1 and garbage")
    with pytest.raises(InputError):
        write_report(folder)
    assert (folder / "report.html").read_text() == "old"


def test_the_page_has_one_h1_and_no_heading_skips_a_level(page):
    levels = [int(element["tag"][1]) for element in page.elements if re.fullmatch(r"h[1-6]", element["tag"])]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_the_sections_stand_in_the_order_in_which_a_reader_asks(page):
    headings = [element for element in page.elements if element["tag"] in ("h1", "h2")]
    assert [" ".join(heading["text"].split()) for heading in headings] == [
        "judge-rank",
        "The claim",
        "The arms",
        "Case by case, and what it costs",
        "Failures",
        "Part: held-out votes",
        "Data and machine",
        "Run it again",
        "What the intervals mean",
    ]


def test_the_verdict_sentence_comes_before_every_other_paragraph_of_the_body(page):
    paragraphs = [element for element in page.all("p") if "main" in element["within"]]
    assert paragraphs[0]["text"].strip() == "Better"
    assert paragraphs[1]["text"] == f"On kendall_tau, {METHOD} is better than {RIVAL} over 24 cases."


def test_the_page_has_a_language_and_landmarks(page):
    assert page.all("html")[0]["attrs"]["lang"] == "en"
    assert [len(page.all(tag)) for tag in ("header", "main", "footer")] == [1, 1, 1]


def test_the_page_has_no_scripts_and_asks_the_network_for_nothing(run_folder):
    text = render([run_folder])
    page = Page(text)
    assert not page.all("script")
    addresses = [
        value
        for element in page.elements
        for name, value in element["attrs"].items()
        if name in ("src", "href", "xlink:href", "action")
    ]
    assert all(address.startswith(("#", "data:")) for address in addresses)
    assert not re.search(r"@import|url\((?!#)", text)


def test_every_table_header_has_a_scope_and_every_table_a_caption(page):
    assert all(element["attrs"].get("scope") in ("col", "row") for element in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table"))


def test_ids_are_unique_and_every_reference_finds_its_id(run_folder):
    text = render([run_folder, run_folder])
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    references = re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)|aria-labelledby="([^"]*)"', text)
    assert {next(filter(None, found)) for found in references} <= set(ids)


def test_the_outcome_has_a_word_and_an_icon_that_screen_readers_skip(tmp_path):
    for outcome in ("better", "worse", "equivalent", "unclear"):
        text = render([write_run(tmp_path / outcome, outcome=outcome)])
        assert re.search(rf'<svg[^>]*aria-hidden="true"[^>]*>.*?</svg>{outcome.capitalize()}</p>', text, re.DOTALL)


def test_each_outcome_has_an_icon_of_its_own(tmp_path):
    icons = {
        re.search(
            r'<p class="outcome">(<svg.*?</svg>)', render([write_run(tmp_path / outcome, outcome=outcome)]), re.S
        )[1]
        for outcome in ("better", "worse", "equivalent", "unclear")
    }
    assert len(icons) == 4


def test_the_claim_stands_as_a_sentence_with_its_outcome_and_its_margin(page):
    assert "“The method orders models closer to the truth than judge-blind Bradley–Terry.”" in page.text
    assert "Supported on these data." in page.text
    assert "differences within ±0.01 do not matter" in page.text


def test_the_command_the_machine_and_the_parameters_are_on_the_page(page):
    assert "assay try judge-rank --scale quick --seed 0" in page.texts("code")
    for fact in (
        "Example CPU @ 2.50GHz",
        "15.6\N{NO-BREAK SPACE}GiB",
        "2026-07-06 09:30 UTC",
        "n_judges",
        "numpy 2.4.0",
    ):
        assert any(fact in element["text"] for element in page.all("dl")), fact


def test_the_path_and_checksum_of_the_data_are_on_the_page(tmp_path):
    data = {"name": "votes", "path": "votes.csv", "sha256": "ab" * 32, "n": 1234567}
    page = render_one(tmp_path, data=data)
    assert "votes, 1,234,567 records" in page.text
    assert "votes.csv" in page.text
    assert "ab" * 32 in page.text


def test_what_the_intervals_mean_takes_two_sentences(page):
    section = next(element for element in page.all("section") if element["attrs"]["class"] == "reading")
    explanation = section["text"].partition("mean\n")[2].strip()
    assert len(re.findall(r"\.(?:\s|$)", explanation)) == 2
    assert all(word in explanation for word in ("BCa bootstrap", "signed-rank", "agree"))


# The table of arms.


def rows_of(page, label):
    """The rows of the table in the region `label`, as lists of cell texts."""
    rows, inside = [], False
    for element in page.elements:
        if element["attrs"].get("role") == "region":
            inside = element["attrs"]["aria-label"] == label
        if inside and element["tag"] == "tr":
            rows.append([])
        elif inside and element["tag"] in ("th", "td"):
            rows[-1].append(" ".join(element["text"].split()))
    return rows


def test_the_method_comes_first_and_the_strongest_baseline_second_and_both_are_marked(tmp_path):
    folder = write_run(tmp_path / "run", arms=(METHOD, RIVAL, "Elo"))
    result = json.loads((folder / "result.json").read_text())
    result["arms"] = result["arms"][::-1]
    (folder / "result.json").write_text(json.dumps(result))
    rows = rows_of(Page(render([folder])), "Arms of judge-rank")
    assert [row[0] for row in rows] == ["Arm", f"{METHOD} method", f"{RIVAL} strongest baseline", "Elo baseline"]


def test_directions_are_written_in_words_beside_the_arrows(page):
    header = rows_of(page, "Arms of judge-rank")[0]
    assert header[1:3] == ["kendall_tau↑ higher is better", "coverage◎ target 0.95"]


def test_failed_cases_are_counted_in_the_table_of_arms(page):
    assert rows_of(page, "Arms of judge-rank")[4][3] == "22 of 24 2 failed"


def test_a_metric_cell_has_the_mean_and_the_interval_to_the_same_decimals(tmp_path):
    folder = write_run(tmp_path / "run")
    result = json.loads((folder / "result.json").read_text())
    result["arms"][0]["metrics"]["kendall_tau"] = {"mean": 0.81234, "ci_low": 0.7961, "ci_high": 0.83}
    (folder / "result.json").write_text(json.dumps(result))
    run = read_run(folder)
    assert metric_cell(run, run.method, run.primary) == ("0.812", "0.796 to 0.830")


def test_a_metric_that_is_nan_everywhere_is_a_dash(tmp_path):
    everywhere = tuple(range(24))
    page = render_one(tmp_path, metrics=(TAU,), missing={RIVAL: everywhere})
    assert rows_of(page, "Arms of judge-rank")[2][1] == "–"


def test_a_single_metric_with_a_target_beside_the_primary_is_shown(tmp_path):
    page = render_one(tmp_path, metrics=(TAU, COVERAGE))
    assert len(rows_of(page, "Arms of judge-rank")[1]) == 7


def test_the_unit_of_a_metric_stands_in_its_column_header(tmp_path):
    page = render_one(tmp_path, metrics=({**TAU, "name": "loss", "better": "lower", "unit": "nats"},))
    assert rows_of(page, "Arms of judge-rank")[0][1].startswith("loss (nats)")


# Failures.


def test_the_same_error_of_an_arm_is_told_once_with_its_cases(tmp_path):
    run = read_run(write_run(tmp_path / "run", failing={RIVAL: (1, 2, 5)}))
    groups = failure_groups(run)
    assert [(group.arm, group.named, group.n) for group in groups] == [(RIVAL, ("case-1", "case-2", "case-5"), 3)]


def test_cases_beyond_the_twelfth_are_counted(tmp_path):
    page = render_one(tmp_path, failing={RIVAL: tuple(range(20))})
    assert "case-11 and 8 more" in page.text


def test_a_long_error_is_cut_and_says_so(tmp_path):
    run = read_run(write_run(tmp_path / "run", failures=[{"arm": RIVAL, "case": "case-0", "error": "x" * 5000}]))
    assert failure_groups(run)[0].error == "x" * 600 + " …"


def test_an_arm_that_failed_everywhere_has_no_difference_plot_but_a_sentence(tmp_path):
    page = render_one(tmp_path, failing={RIVAL: tuple(range(24))}, outcome="unclear")
    assert "there is no difference to draw" in page.text
    assert rows_of(page, "Arms of judge-rank")[2][1:] == ["–", "0 of 24 24 failed", "–", "–", "–"]


def test_a_run_in_which_nothing_finished_still_has_a_report(tmp_path):
    everywhere = tuple(range(6))
    page = render_one(tmp_path, n=6, failing={RIVAL: everywhere, METHOD: everywhere}, outcome="unclear")
    assert not [element for element in page.all("svg") if element["attrs"].get("role") == "img"]
    assert page.all("h1")


def test_a_run_without_failures_has_no_section_about_them(tmp_path):
    assert "Failures" not in render_one(tmp_path).texts("h2")


# Names are names.

HOSTILE = "<script>alert('x')</script>"
HOSTILE_ATTRIBUTE = '" onload="alert(1)'


@pytest.mark.parametrize("name", [HOSTILE, HOSTILE_ATTRIBUTE, "&amp; &lt;b&gt;", "]]> --> {{ 7 * 7 }} {% if %}"])
def test_a_hostile_arm_name_stays_a_name_everywhere(tmp_path, name):
    page = render_one(tmp_path, arms=(name, RIVAL, f"{name} 2"))
    assert name in page.all("main")[0]["text"]
    assert name in page.texts("text")
    assert not page.all("script")
    assert not [key for element in page.elements for key in element["attrs"] if key.startswith("on")]


def test_every_free_text_of_a_result_is_escaped(tmp_path):
    folder = write_run(
        tmp_path / "run", metrics=({**TAU, "name": HOSTILE, "unit": "<i>", "help": HOSTILE},), slug=HOSTILE
    )
    text = (folder / "result.json").read_text()
    result = json.loads(text)
    result["claim"]["text"] = result["verdict"]["sentence"] = result["command"] = result["created"] = HOSTILE
    result["data"] |= {"name": HOSTILE, "path": HOSTILE, "sha256": HOSTILE}
    result["params"] = {HOSTILE: HOSTILE}
    result["environment"] = {"python": HOSTILE, "gpu": HOSTILE, "packages": {HOSTILE: HOSTILE}}
    result["failures"] = [{"arm": HOSTILE, "case": HOSTILE, "error": HOSTILE}]
    (folder / "result.json").write_text(json.dumps(result))
    page = Page(render([folder]))
    assert not page.all("script")
    assert not page.all("i")
    assert page.text.count("<script>") > 10


def test_a_hostile_case_name_stays_a_name_in_the_title_of_its_dot(tmp_path):
    folder = write_run(tmp_path / "run", n=8)
    cases = pd.read_parquet(folder / "cases.parquet")
    cases.loc[cases["case"] == "case-0", "case"] = HOSTILE
    cases.to_parquet(folder / "cases.parquet")
    page = Page(render([folder]))
    assert not page.all("script")
    assert any(title.startswith(f"{HOSTILE}: ") for title in page.texts("title"))


def test_a_name_with_dollar_signs_is_not_typeset_as_mathematics(tmp_path):
    page = render_one(tmp_path, arms=("$5 model vs $6", RIVAL))
    assert "$5 model vs $6" in page.texts("text")


def test_a_name_that_is_a_sentinel_colour_is_not_replaced(tmp_path):
    page = render_one(tmp_path, arms=(f'{plots.METHOD} id="x" url(#y)', RIVAL))
    assert f'{plots.METHOD} id="x" url(#y)' in page.texts("text")


@pytest.mark.parametrize("name", ["日本語の基準モデル", "базовый метод", "نموذج الأساس", "ελληνικά 🦉"])
def test_names_in_any_script_are_text_in_table_and_plot(tmp_path, recwarn, name):
    page = render_one(tmp_path, arms=(name, RIVAL))
    assert name in page.texts("text")
    assert not [warning for warning in recwarn if "Glyph" in str(warning.message)]


def test_a_very_long_name_is_cut_in_the_plot_and_whole_in_the_table(tmp_path):
    name = "a name that goes on " * 10 + "to its end"
    page = render_one(tmp_path, arms=(name, RIVAL))
    assert name in page.texts("th")[6]
    drawn = next(text for text in page.texts("text") if text.startswith("a name"))
    assert drawn.endswith("…")
    assert len(drawn) <= 44


def test_control_characters_in_a_name_leave_well_formed_svg(tmp_path):
    text = render([write_run(tmp_path / "run", arms=("a\x0bb\nc", RIVAL))])
    for svg in svgs(text):
        assert "\x0b" not in re.sub(r'aria-label="[^"]*"', "", svg)


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


def test_equal_arms_have_a_plot(tmp_path):
    folder = write_run(tmp_path / "run", n=8)
    cases = pd.read_parquet(folder / "cases.parquet")
    cases["kendall_tau"] = 0.5
    cases.to_parquet(folder / "cases.parquet")
    result = json.loads((folder / "result.json").read_text())
    result["verdict"] |= {"effect": 0.0, "ci_low": 0.0, "ci_high": 0.0, "p_value": 1.0}
    (folder / "result.json").write_text(json.dumps(result))
    assert "equal in 8" in plots.differences(read_run(folder), "x")


def test_margins_on_the_log_scale_are_factors(tmp_path):
    run = read_run(write_run(tmp_path / "run", metrics=(PPL,), margin=0.02))
    assert margin_in_words(run) == "differences within a factor of 1.02 do not matter"


# Several runs.


@pytest.fixture(scope="module")
def several(run_folder, tmp_path_factory):
    other = write_run(
        tmp_path_factory.mktemp("more") / "bridge", slug="bridge", outcome="worse", claim_outcome="contradicted"
    )
    return Page(render([run_folder, other]))


def test_several_runs_start_with_a_table_of_verdicts_that_links_to_their_sections(several):
    links = [(element["text"], element["attrs"]["href"]) for element in several.all("a")]
    assert links == [("judge-rank", "#run-1"), ("held-out votes", "#run-1-p1"), ("bridge", "#run-2")]
    ids = {element["attrs"].get("id") for element in several.elements}
    assert {href.removeprefix("#") for _, href in links} <= ids


def test_a_row_of_the_table_of_verdicts_has_outcome_effect_cases_time_and_claim(several):
    row = rows_of(several, "Verdicts of all trials")[3]
    assert [row[0], row[1], row[3]] == ["bridge", "Worse", "24"]
    assert re.match(r"\+0\.\d+ \+0\.\d+ to \+0\.\d+ kendall_tau, higher is better against judge-blind", row[2])
    assert re.match(r"[\d.]+ ms [\d.]+ ms", row[4])
    assert row[5].startswith("Contradicted orders models")


def test_several_runs_have_one_h1_and_no_heading_skips_a_level(several):
    levels = [int(element["tag"][1]) for element in several.elements if re.fullmatch(r"h[1-6]", element["tag"])]
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_several_runs_are_counted_in_a_sentence(several):
    assert "1 better, 1 worse. The claims: 1 supported, 1 contradicted." in several.text


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


# Bad input.


def changed(folder, **values):
    """Replace fields of result.json; a name with two underscores reaches into an object."""
    result = json.loads((folder / "result.json").read_text())
    for name, value in values.items():
        *path, last = name.split("__")
        inner = result
        for key in path:
            inner = inner[key]
        inner[last] = value
    (folder / "result.json").write_text(json.dumps(result))
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"verdict__outcome": "great"},
            "verdict.outcome: expected one of 'better', 'worse', 'equivalent', 'unclear', found 'great'",
        ),
        ({"verdict__effect": "much"}, "verdict.effect: expected a number or null, found 'much'"),
        ({"verdict__n_cases": True}, "verdict.n_cases: expected a whole number, found True"),
        ({"verdict__baseline": "nobody"}, "verdict.baseline: 'nobody' is not a baseline"),
        ({"claim__metric": "elsewhere"}, "claim.metric: 'elsewhere' is not a metric"),
        ({"also": ["../other"]}, "'../other' is not a plain name inside the run's folder"),
        ({"also": ["/etc"]}, "'/etc' is not a plain name inside the run's folder"),
        ({"cases_file": "../cases.parquet"}, "'../cases.parquet' is not a plain name inside the run's folder"),
        ({"data__n": 1.5}, "data.n: expected a whole number, found 1.5"),
        ({"failures": [{"arm": 1, "case": "a", "error": "b"}]}, "failures 1.arm: expected text, found 1"),
    ],
)
def test_a_result_that_no_run_writes_is_refused_with_the_place(tmp_path, change, message):
    folder = changed(write_run(tmp_path / "run"), **change)
    with pytest.raises(InputError, match=re.escape(message)):
        render([folder])


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere: no such folder; give the folder that assay try wrote"):
        render([tmp_path / "nowhere"])


def test_no_folder_at_all_is_refused():
    with pytest.raises(InputError, match="at least one run folder"):
        render([])


def test_a_result_without_a_method_is_refused(tmp_path):
    folder = write_run(tmp_path / "run")
    result = json.loads((folder / "result.json").read_text())
    result["arms"][0]["baseline"] = True
    (folder / "result.json").write_text(json.dumps(result))
    with pytest.raises(InputError, match="exactly one arm that is not a baseline"):
        render([folder])


def test_an_arm_that_lacks_a_metric_is_refused(tmp_path):
    folder = write_run(tmp_path / "run")
    result = json.loads((folder / "result.json").read_text())
    del result["arms"][1]["metrics"]["kendall_tau"]
    (folder / "result.json").write_text(json.dumps(result))
    with pytest.raises(InputError, match="has no metric 'kendall_tau'"):
        render([folder])


def test_a_part_that_links_out_of_the_folder_is_refused(tmp_path):
    write_run(tmp_path / "outside", part="outside")
    folder = write_run(tmp_path / "run", also=("inside",))
    (folder / "inside").symlink_to(tmp_path / "outside")
    with pytest.raises(InputError, match="'inside' is not a plain name inside the run's folder"):
        render([folder])


def test_cases_without_a_metric_column_are_refused(tmp_path):
    folder = write_run(tmp_path / "run")
    pd.read_parquet(folder / "cases.parquet").drop(columns="kendall_tau").to_parquet(folder / "cases.parquet")
    with pytest.raises(InputError, match=r"cases\.parquet: no column 'kendall_tau'; run the trial again"):
        render([folder])


def test_a_case_that_an_arm_has_twice_is_refused_with_its_row(tmp_path):
    folder = write_run(tmp_path / "run", n=3)
    cases = pd.read_parquet(folder / "cases.parquet")
    pd.concat([cases, cases.iloc[[0]]]).to_parquet(folder / "cases.parquet")
    with pytest.raises(InputError, match=r"cases\.parquet, row 7: arm 'judge-aware ranking' has case 'case-0' twice"):
        render([folder])


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
