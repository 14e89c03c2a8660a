"""Random directed acyclic graphs in one piece: of tables that refer to each other, of columns that cause each other.

Undirected generators are networkx's; an undirected edge is directed from the smaller to the larger number.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from assay._core.extras import need
from assay.synth.plurel.draws import Rng, pick, real, whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.synth.plurel.config import DagConfig


Edges = list[tuple[int, int]]
#: A graph of networkx, which has no types.
Graph = Any


def networkx() -> Any:
    """The package, or what to install."""
    return need("networkx", extra="synth", purpose="drawing the graphs of a database")


def random_dag(rng: Rng, layout: str, n_nodes: int, config: DagConfig) -> Graph:
    """A directed acyclic graph over 0 … n_nodes - 1, weakly connected.

    Parameters
    ----------
    rng : Generator
    layout : str
        One of `assay.synth.plurel.config.LAYOUTS`.
    n_nodes : int
    config : DagConfig

    Examples
    --------
    >>> from assay.synth.plurel.config import DagConfig
    >>> graph = random_dag(np.random.default_rng(0), "reverse_random_tree", 8, DagConfig())
    >>> sum(degree == 0 for _, degree in graph.out_degree()), graph.number_of_edges()
    (1, 7)
    """
    graph = networkx().DiGraph()
    graph.add_nodes_from(range(n_nodes))
    if n_nodes > 1:
        graph.add_edges_from(_EDGES[layout](rng, n_nodes, config))
        _connect(rng, graph)
    return graph


def edge_weights(rng: Rng, n_edges: int, config: DagConfig) -> list[float]:
    """One family for the graph: N(0, 1), LogNormal(0, 1), standard Cauchy or U(-2, 2)."""
    family = pick(rng, config.weights)
    drawn: dict[str, Callable[[int], Any]] = {
        "normal": rng.standard_normal,
        "lognormal": lambda n: rng.lognormal(size=n),
        "cauchy": rng.standard_cauchy,
        "uniform": lambda n: rng.uniform(-2, 2, n),
    }
    return [float(weight) for weight in drawn[family](n_edges)]


def _connect(rng: Rng, graph: Graph) -> None:
    """Link one random node of each component with one of the next: between components no edge makes a cycle."""
    components = [sorted(part) for part in networkx().weakly_connected_components(graph)]
    for left, right in pairwise(sorted(components)):
        graph.add_edge(*sorted((pick(rng, left), pick(rng, right))))


def _oriented(graph: Graph) -> Edges:
    return [(min(edge), max(edge)) for edge in graph.edges]


def _seed(rng: Rng) -> int:
    return int(rng.integers(1 << 32))


def _erdos_renyi(rng: Rng, n: int, config: DagConfig) -> Edges:
    # Directed G(n, p) made undirected: a pair has an edge unless both directions are absent.
    p = real(rng, config.er_p)
    has_edge = rng.random((n, n)) < p
    return _pairs(has_edge | has_edge.T)


def _pairs(has_edge: Any) -> Edges:
    return [(int(i), int(j)) for i, j in np.argwhere(np.triu(has_edge, 1))]


def _barabasi_albert(rng: Rng, n: int, config: DagConfig) -> Edges:
    made = networkx().barabasi_albert_graph(n, min(config.ba_m, n - 1), seed=_seed(rng))
    name = rng.permutation(n)  # after the edges are directed: before it, cycles could arise
    edges = [(int(name[u]), int(name[v])) for u, v in _oriented(made)]
    incoming: dict[int, Edges] = {v: [] for v in range(n)}
    for edge in edges:
        incoming[edge[1]].append(edge)
    for sink in sorted(set(range(n)) - {u for u, _ in edges}):
        into = incoming[sink]
        if len(into) > 1 and rng.random() < config.ba_drop:
            edges.remove(pick(rng, into))
        elif len(into) == 1 and rng.random() < config.ba_flip and len(incoming[into[0][0]]) < config.ba_max_in:
            edges.remove(into[0])
            edges.append((sink, into[0][0]))
    return edges


def _random_tree(rng: Rng, n: int, config: DagConfig) -> Edges:
    tree = networkx().random_labeled_tree(n, seed=_seed(rng))
    return [(int(u), int(v)) for u, v in networkx().bfs_edges(tree, int(rng.integers(n)))]


def _reverse_random_tree(rng: Rng, n: int, config: DagConfig) -> Edges:
    return [(v, u) for u, v in _random_tree(rng, n, config)]


def _watts_strogatz(rng: Rng, n: int, config: DagConfig) -> Edges:
    k = max(2, min(pick(rng, (2, 4)), n) // 2 * 2)
    return _oriented(networkx().watts_strogatz_graph(n, k, real(rng, config.ws_p), seed=_seed(rng)))


def _layered(rng: Rng, n: int, config: DagConfig) -> Edges:
    depth = min(whole(rng, config.depth), n)
    layer_of = np.concatenate([np.arange(depth), rng.integers(depth, size=n - depth)])
    layers = [np.flatnonzero(layer_of == level) for level in range(depth)]
    edges: Edges = []
    for upper, lower in pairwise(layers):
        kept = rng.random((len(upper), len(lower))) >= config.layered_drop
        for j in np.flatnonzero(~kept.any(axis=0)):
            kept[rng.integers(len(upper)), j] = True
        for i in np.flatnonzero(~kept.any(axis=1)):
            kept[i, rng.integers(len(lower))] = True
        edges += [(int(upper[i]), int(lower[j])) for i, j in np.argwhere(kept)]
    return edges


def _random_cauchy(rng: Rng, n: int, config: DagConfig) -> Edges:
    logit = rng.standard_cauchy() + rng.standard_cauchy((n, 1)) + rng.standard_cauchy((1, n))
    return _pairs(rng.random((n, n)) < 0.5 * (1 + np.tanh(logit / 2)))


_EDGES = {
    "erdos_renyi": _erdos_renyi,
    "barabasi_albert": _barabasi_albert,
    "random_tree": _random_tree,
    "reverse_random_tree": _reverse_random_tree,
    "layered": _layered,
    "watts_strogatz": _watts_strogatz,
    "random_cauchy": _random_cauchy,
}
