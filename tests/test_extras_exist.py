"""A message that says which extra to install names one that there is."""

import ast
import tomllib
from pathlib import Path

import pytest

HOME = Path(__file__).parent.parent
EXTRAS = tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]


def needed():
    """Where the package asks for an optional dependency, and what the call says is its extra."""
    for path in sorted((HOME / "src" / "assay").rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "need":
                extra = next(keyword.value for keyword in call.keywords if keyword.arg == "extra")
                yield f"{path.relative_to(HOME)}:{call.lineno}", extra


@pytest.fixture(scope="module")
def named():
    return {place: extra.value for place, extra in needed() if isinstance(extra, ast.Constant)}


def test_every_extra_that_a_message_names_is_in_pyproject(named):
    assert {place: extra for place, extra in named.items() if extra not in EXTRAS} == {}


def test_the_calls_are_found_at_all(named):
    assert len(named) > 100
