"""Write the parts of the README and the docs that come from the catalog.

Run by `make docs`; a test fails when they are stale. Generated parts stand between the markers
``<!-- catalog:NAME -->`` and ``<!-- /catalog:NAME -->``.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from assay import catalog
from assay.catalog import FAMILIES, Method

#: A bar inside a cell must not end it.
BAR = "\\|"

ROOT = Path(__file__).resolve().parent.parent


def pages() -> Iterator[tuple[Path, str]]:
    """Every page with generated parts and the text it should have."""
    for path in [ROOT / "README.md", ROOT / "docs" / "methods" / "index.md"]:
        folder = "docs/methods/" if path.name == "README.md" else ""
        parts = {"table": _available_table(folder), "planned": _planned_table()}
        yield path, _filled(path, parts)
    for method in catalog.METHODS:
        path = ROOT / "docs" / "methods" / f"{method.slug}.md"
        if path.exists():
            yield path, _filled(path, {"facts": _facts(method), "citation": _citation(method)})


def _filled(path: Path, parts: dict[str, str]) -> str:
    text = path.read_text(encoding="utf-8")
    for name, part in parts.items():
        pattern = rf"(<!-- catalog:{name} -->\n).*?(<!-- /catalog:{name} -->)"
        text = re.sub(pattern, lambda found, part=part: f"{found[1]}{part}\n{found[2]}", text, flags=re.DOTALL)
    return text


def _available_table(folder: str) -> str:
    rows = ["| method | family | what you get |", "|---|---|---|"]
    rows += [f"| [{m.title}]({folder}{m.slug}.md) `{m.slug}` | {m.family} | {m.summary} |" for m in _of("available")]
    return "\n".join(rows)


def _planned_table() -> str:
    rows = ["| family | what a user wants | methods to come |", "|---|---|---|"]
    for family, wish in FAMILIES.items():
        slugs = [f"`{m.slug}`" for m in _of("planned") if m.family == family]
        if slugs:
            rows.append(f"| {family} | {wish} | {', '.join(slugs)} |")
    return "\n".join(rows)


def _of(status: str) -> list[Method]:
    return [method for method in catalog.METHODS if method.status == status]


def _facts(method: Method) -> str:
    module, _, name = method.interface.partition(":")
    paper = f"[arXiv:{method.paper.arxiv}](https://arxiv.org/abs/{method.paper.arxiv})" if method.paper.arxiv else ""
    rows = {
        "Status": "" if method.status == "available" else "planned: being built, not in `assay list` yet",
        "Interface": f"`from {module} import {name}`" if method.interface else "",
        "Install": f"`pip install 'assay-ml[{method.extra}]'`" if method.extra else "",
        "Trial": f"`assay try {method.slug}`" if method.trial else "",
        "On files": f"`assay use {method.slug} --help`" if method.use else "",
        "Use it when": method.use_when,
        "Not when": method.not_when,
        "Measured": method.measured,
        "Paper": f"{method.paper.title} {paper}".strip(),
    }
    lines = [f"| {label} | {text.replace('|', BAR)} |" for label, text in rows.items() if text]
    return "\n".join(["| | |", "|---|---|", *lines])


def _citation(method: Method) -> str:
    return f"```bibtex\n{method.paper.bibtex(method.slug)}\n```"


if __name__ == "__main__":
    for page, wanted in pages():
        if page.read_text(encoding="utf-8") != wanted:
            page.write_text(wanted, encoding="utf-8", newline="\n")
            print(f"wrote {page.relative_to(ROOT)}")
