"""The report in a real browser: opens from a file, stays inside narrow pages, follows the theme, prints."""

import base64
import itertools
import json
import shutil

import pytest
from report_runs import COVERAGE, METHOD, PPL, RIVAL, TAU, write_run

from assay.bench.report import render

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
CHROMEDRIVER = shutil.which("chromedriver")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None or CHROMEDRIVER is None, reason="needs chromium and chromedriver on the PATH"),
]

LONG = "a very long name of an arm that nobody thought of when the page was made, " * 3
UNBROKEN = "an_arm_whose_name_has_no_place_to_break_" * 4


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--no-first-run",
        f"--user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(CHROMEDRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Files by name: one run with everything, one with awkward names and 500 cases, and both side by side."""
    root = tmp_path_factory.mktemp("runs")
    one = write_run(
        root / "one",
        arms=(METHOD, RIVAL, "majority vote", "Elo"),
        metrics=(TAU, COVERAGE),
        margin=0.01,
        failing={"Elo": (3, 7)},
        also=("held-out votes",),
        command="assay try judge-rank --data " + "votes/" * 40 + "votes.csv",
        data={"name": "votes", "path": "/" + "folder/" * 40 + "votes.csv", "sha256": "ab" * 32, "n": 4800},
    )
    write_run(one / "held-out votes", part="held-out votes", metrics=(PPL, TAU), margin=0.02, outcome="unclear")
    awkward = write_run(
        root / "awkward",
        n=500,
        slug="awkward",
        arms=(LONG, UNBROKEN, "日本語の基準モデル", "<script>alert(1)</script>"),
        metrics=(PPL, TAU, COVERAGE),
    )
    files = {}
    for name, folders in {"one": [one], "awkward": [awkward], "several": [one, awkward]}.items():
        files[name] = root / f"{name}.html"
        files[name].write_text(render(folders), encoding="utf-8")
    return files


def open_page(browser, file, *, width=1280, theme="light"):
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    )
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    )
    browser.get(file.as_uri())


EVERY = ["one", "awkward", "several"]


@pytest.mark.parametrize("name", EVERY)
def test_the_page_opens_from_a_file_without_a_word_in_the_console(browser, pages, name):
    browser.get_log("browser")
    open_page(browser, pages[name])
    assert browser.get_log("browser") == []


def test_the_page_asks_for_nothing_but_itself(browser, pages):
    browser.get_log("performance")
    open_page(browser, pages["several"])
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"}
    assert asked - {"data:,"} == {pages["several"].as_uri()}


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("width", [320, 400, 768, 1280])
def test_the_page_never_scrolls_sideways(browser, pages, name, width):
    open_page(browser, pages[name], width=width)
    across, room = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert room == width
    assert across <= room


def test_a_table_that_is_too_wide_scrolls_in_its_own_box_by_keyboard(browser, pages):
    open_page(browser, pages["one"], width=400)
    across, room, tabindex = browser.execute_script(
        "const box = document.querySelector('.scroll'); return [box.scrollWidth, box.clientWidth, box.tabIndex]"
    )
    assert across > room
    assert tabindex == 0


def test_the_dark_theme_changes_the_ground_and_the_plots(browser, pages):
    script = """
        const dot = document.querySelector('[id$="-gains"] use');
        return [getComputedStyle(document.body).backgroundColor, getComputedStyle(dot).fill]
    """
    found = {}
    for theme in ("light", "dark"):
        open_page(browser, pages["one"], theme=theme)
        found[theme] = browser.execute_script(script)
    assert found["light"] == ["rgb(252, 252, 250)", "rgb(0, 114, 178)"]
    assert found["dark"] == ["rgb(21, 23, 26)", "rgb(86, 180, 233)"]


@pytest.mark.parametrize("name", EVERY)
def test_the_headings_of_the_accessibility_tree_are_nested(browser, pages, name):
    open_page(browser, pages[name])
    levels = browser.execute_script(
        "return [...document.querySelectorAll('h1,h2,h3,h4,h5,h6')].map(heading => Number(heading.tagName[1]))"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_text_in_plots_is_legible_at_400_pixels(browser, pages):
    open_page(browser, pages["one"], width=400)
    smallest = browser.execute_script(
        """
        return Math.min(...[...document.querySelectorAll('figure svg text')].map(text =>
            parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a))
        """
    )
    assert smallest >= 10


@pytest.mark.parametrize("name", ["one", "awkward"])
def test_no_name_in_a_plot_runs_into_its_figure_or_out_of_the_picture(browser, pages, name):
    open_page(browser, pages[name], width=400)
    overlaps = browser.execute_script(
        """
        const found = [];
        for (const svg of document.querySelectorAll('figure svg')) {
            const box = svg.getBoundingClientRect();
            const texts = [...svg.querySelectorAll('text')];
            const boxes = texts.map(text => [text.textContent, text.getBoundingClientRect()]);
            for (const [words, a] of boxes) {
                if (a.left < box.left - 12 || a.right > box.right + 12) found.push(words);
                for (const [others, b] of boxes) {
                    const onOneLine = a.top < b.bottom - 4 && b.top < a.bottom - 4;
                    if (onOneLine && a.left < b.left && a.right > b.left + 1) found.push([words, others]);
                }
            }
        }
        return found
        """
    )
    assert overlaps == []


def test_the_focus_is_visible(browser, pages):
    from selenium.webdriver.common.keys import Keys

    open_page(browser, pages["several"])
    browser.switch_to.active_element.send_keys(Keys.TAB)
    style = browser.execute_script(
        "const style = getComputedStyle(document.activeElement); return [style.outlineStyle, style.outlineWidth]"
    )
    assert style == ["solid", "3px"]


def test_the_page_prints_on_the_light_ground(browser, pages):
    open_page(browser, pages["one"], theme="dark")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    ink = browser.execute_script("return getComputedStyle(document.body).color")
    pdf = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {})["data"])
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert ink == "rgb(27, 29, 32)"
    assert pdf.startswith(b"%PDF")
