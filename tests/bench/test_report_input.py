"""What a report is made from: a hostile name stays a name, and a file that no run writes is refused with its place."""

import json
import re

import pandas as pd
import pytest
from report_page import Page, render_one, svgs
from report_runs import RIVAL, TAU, changed, write_run

from assay._core.errors import InputError
from assay.bench.report import plots, render

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


# Bad input.


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
