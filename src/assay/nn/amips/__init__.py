"""Learn where the best key of a query lies, and search there: a net placed before an inner-product index.

The best inner product of a query x with fixed keys, sigma(x) = max_i <x, y_i>, is a convex function whose gradient is
the best key itself. A small network learns it from logged queries: `KeyNet` predicts the key, `SupportNet` the function
(its gradient is the key), `LearnedRouter` which part of the keys to look through.

Paper: Olausson, Monteiro, Klein, Cuturi, "Amortizing Maximum Inner Product Search with Learned Support Functions",
arXiv:2603.08001 (ICML 2026). Ranking what the mapped query finds by the query itself, and holding queries out before
noisy copies of them are made, are ours; so is the rectifier that keeps `SupportNet` convex after its start.

The folder: `vectors` reads and checks keys and queries, `labels` finds the best key of every query, `networks` and
`training` are the method, `learner`, `estimators` and `router` the interface, `index` puts it before a FAISS index,
`compare` says what that gains beside the raw query, HNSW and exact search.
"""

from assay.nn.amips.compare import Comparison, compare_ivf, compare_routing
from assay.nn.amips.estimators import KeyNet, SupportNet
from assay.nn.amips.index import MappedIndex, ivf_index
from assay.nn.amips.labels import best_keys
from assay.nn.amips.router import LearnedRouter
from assay.nn.amips.vectors import read_vectors

__all__ = [
    "Comparison",
    "KeyNet",
    "LearnedRouter",
    "MappedIndex",
    "SupportNet",
    "best_keys",
    "compare_ivf",
    "compare_routing",
    "ivf_index",
    "read_vectors",
]
