"""The page that teaches how to add a method is a program that runs."""

import re
import types
from pathlib import Path

from assay import bench

PAGE = Path(__file__).resolve().parent.parent / "docs" / "contributing.md"


def run_page(tmp_path, monkeypatch):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    page = types.ModuleType("contributing")
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), page.__dict__)
    return page


def test_every_block_of_the_page_runs_and_its_trial_gives_a_verdict(tmp_path, monkeypatch):
    page = run_page(tmp_path, monkeypatch)
    assert isinstance(page.result, bench.Result)
    assert page.result.verdict.n_cases == 12
    assert page.result.failures == ()
    assert (tmp_path / "runs" / "first-try" / "report.html").is_file()
    for name in [name for name in vars(page) if name.startswith("test_")]:
        getattr(page, name)()


def test_its_command_works_on_a_file(tmp_path, monkeypatch, capsys):
    page = run_page(tmp_path, monkeypatch)
    (tmp_path / "table.csv").write_text("value\n1\n1\n1\n700\n")
    page.app(["table.csv", "--blocks", "4"], standalone_mode=False)
    assert capsys.readouterr().out.splitlines()[-1] == "1"
