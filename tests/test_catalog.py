"""The catalog: one list, and every entry leads somewhere."""

import os
import re
import subprocess
import sys
import sysconfig
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from assay import catalog
from assay._core.errors import InputError
from assay.bench.spec import Trial

ROOT = Path(__file__).resolve().parent.parent
AVAILABLE = catalog.available()
SIZES = {
    "compress": 4, "decode": 3, "nn": 5, "adapt": 5, "rl": 5, "evaluate": 4,
    "audit": 6, "generate": 4, "solve": 4, "synth": 2, "vision": 3, "explain": 4,
}  # fmt: skip


def test_all_49_methods_stand_in_it_by_family():
    assert Counter(method.family for method in catalog.METHODS) == SIZES
    assert sum(SIZES.values()) == 49


def test_slugs_are_unique_and_can_be_typed():
    slugs = [method.slug for method in catalog.METHODS]
    assert len(set(slugs)) == len(slugs)
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug) for slug in slugs)


def test_arxiv_ids_are_arxiv_ids():
    ids = [method.paper.arxiv for method in catalog.METHODS if method.paper.arxiv]
    assert all(re.fullmatch(r"\d{4}\.\d{5}", arxiv) for arxiv in ids)
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("method", AVAILABLE, ids=lambda method: method.slug)
class TestAvailableMethods:
    def test_its_code_loads_and_its_trial_is_its_own(self, method):
        assert method.load_interface().__doc__
        trial = method.load_trial()
        assert isinstance(trial, Trial)
        assert trial.slug == method.slug

    def test_its_files_lie_where_the_slug_says(self, method):
        name = method.slug.replace("-", "_")
        places = [
            ROOT / "src/assay" / method.family / name,
            ROOT / "src/assay/trials" / method.family / name,
            ROOT / "docs/methods" / f"{method.slug}.md",
            ROOT / "benchmarks" / name,
        ]
        assert [p for p in places if not p.exists() and not p.with_suffix(".py").exists()] == []

    def test_a_person_learns_when_to_use_it_when_not_and_what_was_measured(self, method):
        assert all([method.use_when, method.not_when, method.measured])

    def test_the_changelog_names_it(self, method):
        assert f"**{method.slug}**" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_a_planned_method_says_that_it_is_not_there_yet():
    with pytest.raises(InputError, match=r"^fatrack is planned and not available yet; `assay list` shows what is$"):
        catalog.get("fatrack").load_trial()


def test_a_misspelt_slug_gets_the_nearest():
    with pytest.raises(InputError, match=r"^there is no method 'judgerank'; did you mean 'judge-rank'\?$"):
        catalog.get("judgerank")


def test_a_citation_has_a_brace_for_every_brace():
    for method in catalog.METHODS:
        text = method.paper.bibtex(method.slug)
        assert text.startswith(f"@inproceedings{{{method.slug},\n")
        assert text.count("{") == text.count("}")


PLUGIN = {
    "pyproject.toml": """
        [build-system]
        requires = ["hatchling"]
        build-backend = "hatchling.build"
        [project]
        name = "assay-coin"
        version = "1.0"
        [project.entry-points."assay.methods"]
        coin = "assay_coin:METHOD"
        broken = "assay_coin:NOT_THERE"
        taken = "assay_coin:TAKEN"
        """,
    "assay_coin.py": """
        from assay.catalog import Method, Paper
        METHOD = Method("coin-flip", "Coin flip", "luck", "Decide by a coin.", Paper("On coins"), status="available",
                        interface="assay_coin:flip")
        TAKEN = Method("judge-rank", "Another", "luck", "Wants a taken slug.", Paper("On names"))
        def flip():
            "Heads."
            return "heads"
        """,
}


def test_an_installed_package_adds_its_methods_and_a_broken_one_only_warns(tmp_path):
    for name, text in PLUGIN.items():
        (tmp_path / "coin").mkdir(exist_ok=True)
        (tmp_path / "coin" / name).write_text(textwrap.dedent(text))
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    (Path(site) / "with_assay.pth").write_text(f"import site; site.addsitedir({sysconfig.get_paths()['purelib']!r})")
    install = ["install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", str(tmp_path / "coin")]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *install], check=True)

    def run(*arguments):
        return subprocess.run([python, "-m", "assay", *arguments], check=False, capture_output=True, text=True)

    listed = run("list")
    assert "coin-flip" in listed.stdout
    assert "Decide by a coin." in listed.stdout
    assert "'broken' (assay_coin:NOT_THERE) cannot be loaded" in listed.stderr
    assert "'taken' (assay_coin:TAKEN) is left out: its slug is taken" in listed.stderr
    assert "Coin flip" in run("show", "coin-flip").stdout
