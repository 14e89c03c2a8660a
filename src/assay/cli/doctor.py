"""`assay doctor`: what this machine has, and what is missing for which extra."""

from __future__ import annotations

import re
from importlib import metadata
from typing import Any

from assay._core.extras import DISTRIBUTION
from assay.cli.browse import JsonFlag
from assay.cli.output import console, print_json, table


def doctor(as_json: JsonFlag = False) -> None:
    """Show versions, cores, memory, GPU, the packages of every extra, and where data is cached.

    Example: `assay doctor`
    """
    from assay import __version__, datasets
    from assay.bench import environment

    machine = environment.describe()
    extras = {extra: _installed(packages) for extra, packages in _extras().items()}
    cached = {entry.name: entry.cached for entry in datasets.list_datasets()}
    if as_json:
        print_json(
            {
                "assay": __version__,
                "machine": machine,
                "extras": extras,
                "cache": {"path": str(datasets.cache_dir()), "data": cached},
            }
        )
        return
    out = console()
    out.print(f"assay {__version__}", style="bold")
    for name in ("python", "platform", "cpu", "cores", "memory_gib", "gpu"):
        value = machine[name]
        out.print(f"{name.replace('_gib', ''):<10}{_readable(name, value)}")
    rows = table("extra", "packages", "install")
    for extra, versions in extras.items():
        text = ", ".join(f"{package} {version or 'missing'}" for package, version in versions.items())
        complete = all(versions.values())
        rows.add_row(extra, text, "complete" if complete else f"pip install '{DISTRIBUTION}[{extra}]'")
    out.print(rows)
    out.print(f"data      {datasets.cache_dir()}")
    for name, here in cached.items():
        out.print(f"          {name}: {'here' if here else f'not here (assay data get {name})'}")


def _readable(name: str, value: Any) -> str:
    if name == "memory_gib":
        return f"{value:.1f} GiB"
    return "none" if value is None else str(value)


def _extras() -> dict[str, list[str]]:
    """The packages that each extra of this distribution asks for, itself left out."""
    found: dict[str, list[str]] = {}
    for requirement in metadata.requires(DISTRIBUTION) or []:
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
        package = re.match(r"[\w.-]+", requirement)
        if extra and package and package.group() != DISTRIBUTION:
            found.setdefault(extra.group(1), []).append(package.group())
    return {extra: packages for extra, packages in found.items() if extra not in ("test", "lint", "docs")}


def _installed(packages: list[str]) -> dict[str, str | None]:
    versions: dict[str, str | None] = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return versions
