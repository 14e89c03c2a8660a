"""Read a rendered report in tests: its elements with their texts, the rows of its tables, its plots."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from report_runs import write_run

from assay.bench.report import render

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """The elements of a page as (tag, attributes, text, ancestors), and whether every tag is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements, self._open = [], []
        self.feed(text)
        assert not self._open, f"not closed: {self._open}"

    def handle_starttag(self, tag, attrs):
        element = {"tag": tag, "attrs": dict(attrs), "text": "", "within": [above["tag"] for above in self._open]}
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self._open[-1]["tag"] == tag, f"</{tag}> closes <{self._open[-1]['tag']}>"
        self._open.pop()

    def handle_data(self, data):
        for element in self._open:
            element["text"] += data

    def all(self, tag):
        return [element for element in self.elements if element["tag"] == tag]

    def texts(self, tag):
        return [" ".join(element["text"].split()) for element in self.all(tag)]

    @property
    def text(self):
        return " ".join(self.all("body")[0]["text"].split())


def render_one(tmp_path, **options):
    """The page of a run that is written for it."""
    return Page(render([write_run(tmp_path / "run", **options)]))


def svgs(text):
    """The plots of a page, as they stand in it."""
    return re.findall(r'<svg [^>]*role="img".*?</svg>', text, flags=re.DOTALL)


def rows_of(page, label):
    """The rows of the table in the region `label`, as lists of cell texts."""
    rows, inside = [], False
    for element in page.elements:
        if element["attrs"].get("role") == "region":
            inside = element["attrs"]["aria-label"] == label
        if inside and element["tag"] == "tr":
            rows.append([])
        elif inside and element["tag"] in ("th", "td"):
            rows[-1].append(" ".join(element["text"].split()))
    return rows
