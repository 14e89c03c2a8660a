"""What is generated from the catalog is up to date."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_readme_and_the_docs_are_what_make_docs_would_write():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    stale = [path.name for path, wanted in generate.pages() if path.read_text(encoding="utf-8") != wanted]
    assert stale == [], "run `make docs`"
