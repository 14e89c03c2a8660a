"""The machine and the versions behind a result. Never environment variables: they hold keys."""

from __future__ import annotations

import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from assay._core.extras import DISTRIBUTION


def describe() -> dict[str, Any]:
    """What a result says about the machine.

    Returns
    -------
    dict
        ``python``, ``platform``, ``cpu``, ``cores``, ``memory_gib``, ``gpu`` (None if there is none that we can see
        without loading anything heavy) and ``packages`` (installed version of every package that Assay's methods use).
    """
    import psutil

    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cores": cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": _gpu(),
        "packages": _packages(),
    }


def cores() -> int:
    """Cores that this process may use: affinity and container limits count."""
    import loky

    return int(loky.cpu_count())


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def _gpu() -> str | None:
    try:
        for card in sorted(Path("/proc/driver/nvidia/gpus").iterdir()):
            found = re.search(r"^Model:\s*(.+)$", (card / "information").read_text(), re.MULTILINE)
            if found:
                return found[1].strip()
    except OSError:
        pass  # no NVIDIA driver, or not Linux
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    return None


def _packages() -> dict[str, str]:
    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        requirements = []  # a source tree on the path
    used = [text for text in requirements if not re.search(r"extra == ['\"](docs|lint|test)['\"]", text)]
    names = {re.split(r"[^A-Za-z0-9._-]", text, maxsplit=1)[0].lower() for text in used}
    versions = {}
    for name in sorted({DISTRIBUTION, *names}):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
