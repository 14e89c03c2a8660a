"""An example to try things on: 120 notes of an incoming inspection, written for it, and three customers' criteria."""

from __future__ import annotations

from pathlib import Path

from assay.evaluate.cc_icl.items import Items, read_items
from assay.evaluate.cc_icl.spec import CriterionSpec

FOLDER = Path(__file__).parent
FILES = ("notes.csv", "criteria.yaml")


def load_example() -> tuple[Items, CriterionSpec]:
    """Return 20 short texts in each of six categories, and criteria that differ on stains and scratches.

    Examples
    --------
    >>> items, spec = load_example()
    >>> len(items), spec.boundary
    (120, ('stain', 'scratch'))
    """
    return read_items(FOLDER / "notes.csv"), CriterionSpec.from_yaml(FOLDER / "criteria.yaml")
