"""Real data: what it is, where it comes from, and readers for files of your own.

`list_datasets` names what there is; `get` brings it here, over the network; `path` and the `load_…` functions use
what is here, and never the network.
"""

from assay._core.cache import cache_dir
from assay._core.tables import read_table, write_table
from assay.datasets.entry import Entry
from assay.datasets.store import fetch, get, list_datasets, path
from assay.datasets.votes import load_alpaca_eval, load_judge_votes

__all__ = [
    "Entry",
    "cache_dir",
    "fetch",
    "get",
    "list_datasets",
    "load_alpaca_eval",
    "load_judge_votes",
    "path",
    "read_table",
    "write_table",
]
