"""The report of a run: what stands on the page, in which order, and what it says of failures."""

import itertools
import json
import re

import pytest
from report_page import Page, render_one, rows_of
from report_runs import COVERAGE, METHOD, RIVAL, TAU, changed, write_full_run, write_run

from assay._core.errors import InputError
from assay.bench.report import render, write_report
from assay.bench.report.load import read_run
from assay.bench.report.page import failure_groups, metric_cell


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    return write_full_run(tmp_path_factory.mktemp("runs") / "judge-rank")


@pytest.fixture(scope="module")
def page(run_folder):
    return Page(render([run_folder]))


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


def test_a_part_that_ran_alone_is_headed_by_its_method(run_folder):
    (part,) = [folder for folder in run_folder.iterdir() if (folder / "result.json").is_file()]
    headings = [one for one in Page(render([part])).elements if one["tag"] == "h1"]
    assert [" ".join(one["text"].split()) for one in headings] == ["judge-rank, held-out votes"]


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


def test_what_the_intervals_mean_names_everything_that_a_verdict_needs(page):
    section = next(element for element in page.all("section") if element["attrs"]["class"] == "reading")
    needed = ("BCa bootstrap", "studentised", "signed-rank", "agree", "margin", "six cases", "a tenth")
    assert [word for word in needed if word not in section["text"]] == []


@pytest.mark.parametrize(
    ("outcome", "low", "high", "is_asked"),
    [("unclear", 0.001, 0.04, True), ("unclear", -0.01, 0.04, False), ("better", 0.001, 0.04, False)],
)
def test_an_unclear_verdict_whose_interval_leaves_out_zero_says_that_more_is_needed(
    tmp_path, outcome, low, high, is_asked
):
    folder = changed(write_run(tmp_path / "run", outcome=outcome), verdict__ci_low=low, verdict__ci_high=high)
    assert ("a verdict needs more than this interval" in Page(render([folder])).text) == is_asked


# The table of arms.


def test_the_method_comes_first_and_the_strongest_baseline_second_and_both_are_marked(tmp_path):
    folder = write_run(tmp_path / "run", arms=(METHOD, RIVAL, "Elo"))
    changed(folder, arms=json.loads((folder / "result.json").read_text())["arms"][::-1])
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


def test_a_part_that_was_left_out_stands_on_the_page_with_its_reason(tmp_path):
    page = render_one(tmp_path, skipped=[{"part": "real votes", "reason": "votes.csv <is> not there"}])
    assert "real votes" in page.texts("dt")
    assert "votes.csv <is> not there" in page.texts("dd")


def test_a_run_without_failures_has_no_section_about_them(tmp_path):
    assert "Failures" not in render_one(tmp_path).texts("h2")


# Several runs.


@pytest.fixture(scope="module")
def several(run_folder, tmp_path_factory):
    other = write_run(
        tmp_path_factory.mktemp("more") / "bridge", slug="bridge", outcome="worse", claim_outcome="contradicted"
    )
    return Page(render([run_folder, other]))


def test_several_runs_start_with_a_table_of_verdicts_that_links_to_their_sections(several):
    links = [
        (element["text"], element["attrs"]["href"]) for element in several.all("a") if "table" in element["within"]
    ]
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


# ------------------------------------------------------------------------------------------------------- pictures


def test_a_picture_stands_in_a_frame_without_scripts(tmp_path):
    folder = write_run(tmp_path / "run")
    picture = {"title": "Where it <acts>", "html": '<b style="color:red">"quoted"</b><script>alert(1)</script>'}
    (folder / "pictures.json").write_text(json.dumps([picture]))
    page = render([folder])
    frame = re.search(r"<iframe ([^>]*)>", page)[1]
    assert frame.startswith("sandbox srcdoc=")
    assert "&lt;script&gt;alert(1)" in frame
    assert "<script" not in page
    assert "<figcaption>Where it &lt;acts&gt;</figcaption>" in page


def test_a_run_without_pictures_has_no_frame(tmp_path):
    assert "<iframe" not in render([write_run(tmp_path / "run")])


@pytest.mark.parametrize("text", ["{", "[1]", '[{"title": "x"}]', '[{"title": 1, "html": "x"}]', "null"])
def test_pictures_that_assay_did_not_write_are_refused(tmp_path, text):
    folder = write_run(tmp_path / "run")
    (folder / "pictures.json").write_text(text)
    with pytest.raises(InputError, match=r"pictures\.json: expected a list of objects with the texts title and html"):
        render([folder])
