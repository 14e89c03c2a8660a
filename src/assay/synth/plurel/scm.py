"""The structural causal model of one table: which columns cause which, and how a block of rows is made.

x_v = Dec_v(z_v + AGG({w_uv Enc_uv(x_u)} and {omega Enc_c(x_c of the parent row)})) (paper, stage 3). What the parent
rows contribute is the same for all nodes with the same aggregator, up to the order of the terms: it is put together
once for each aggregator and block, not once for each node.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from assay.synth.plurel.draws import (
    BLOCK,
    Floats,
    beta_quantiles,
    block_stream,
    key,
    pick,
    quantile_draws,
    real,
    stream,
    whole,
)
from assay.synth.plurel.graphs import Graph, edge_weights, networkx, random_dag
from assay.synth.plurel.mechanisms import Aggregate, Decoder, Encoder, decoder, encoder
from assay.synth.plurel.series import Source, as_floats, draw_source

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.synth.plurel.config import RelationalConfig, ScmConfig
    from assay.synth.plurel.draws import Rng
    from assay.synth.plurel.schema import Column, Table


@dataclass(frozen=True)
class Cause:
    """An edge of the causal graph, its weight inside the encoder."""

    node: int
    encode: Encoder


@dataclass(frozen=True)
class Node:
    """A node of the causal graph.

    Attributes
    ----------
    n_classes : int
        0: numerical.
    column : str or None
        The column that shows it; None: latent.
    quantiles : (4096,) float32
        Of its noise: Beta divided by the width.
    source : Source, optional
        Where it has no causes.
    """

    number: int
    n_classes: int
    column: str | None
    aggregator: str
    quantiles: Floats
    causes: tuple[Cause, ...] = ()
    source: Source | None = None
    decode: Decoder | None = None


@dataclass(frozen=True)
class Collation:
    """How the columns of one parent row enter: encoders by column, shared by all nodes of the child."""

    encoders: tuple[tuple[str, Encoder], ...]


@dataclass
class TableModel:
    """A drawn causal model of a table, ready to make rows.

    Attributes
    ----------
    graph : DiGraph
        Nodes with `column` (None: latent), `n_classes` and `aggregator`; edges with `weight`.
    nodes : tuple of Node
        In topological order; without latent nodes that no column depends on, unless they were asked for.
    is_lazy : bool
        Classes are cut from numbers when all rows are there.
    """

    table: Table
    is_lazy: bool
    graph: Graph
    nodes: tuple[Node, ...]
    collations: tuple[Collation, ...]
    coupling: float
    width: int
    rows_key: int
    _kinds: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self._kinds = frozenset(node.aggregator for node in self.nodes if node.source is None)

    def block(self, number: int, parents: Sequence[Mapping[str, Floats]]) -> dict[int, Floats]:
        """Values of all nodes on one block of rows.

        Parameters
        ----------
        number : int
            Of the block; blocks are asked for in order, since series carry a state.
        parents : sequence, one mapping for each foreign key
            Column of the parent table to its values at the rows that this block's rows refer to.

        Returns
        -------
        dict of node to (n_rows,) float32
        """
        start = number * BLOCK
        stop = min(start + BLOCK, self.table.n_rows)
        shared = {kind: self._collated(kind, parents) for kind in sorted(self._kinds)} if parents else {}
        values: dict[int, Floats] = {}
        for node in self.nodes:
            rng = block_stream(self.rows_key, node.number, number)
            if node.source is not None:
                values[node.number] = as_floats(node.source.values(rng, start, stop))
                continue
            total = Aggregate(node.aggregator)
            for cause in node.causes:
                total.add(cause.encode(values[cause.node]))
            if parents:
                total.merge(shared[node.aggregator])
            embedding = quantile_draws(rng, node.quantiles, stop - start, self.width)
            aggregated = total.value()
            if aggregated is not None:
                embedding += aggregated
            assert node.decode is not None
            values[node.number] = node.decode(embedding)
        return values

    def _collated(self, kind: str, parents: Sequence[Mapping[str, Floats]]) -> Aggregate:
        """What all parent rows contribute to nodes with one aggregator: omega is 1 / columns for sums, else 1."""
        total = Aggregate(kind)
        if self.coupling == 0:
            return total
        for collation, values in zip(self.collations, parents, strict=True):
            omega = self.coupling / max(len(collation.encoders), 1) if kind == "sum" else self.coupling
            for column, encode in collation.encoders:
                term = encode(values[column])
                total.add(term if omega == 1 else term * np.float32(omega))
        return total


def node_count(n_columns: int, observed_share: float) -> int:
    """C + ceil(C / u) + 3."""
    return n_columns + int(np.ceil(n_columns / observed_share)) + 3


def draw_graph(seed: int, table: Table, config: RelationalConfig) -> Graph:
    """Draw the causal graph of a table: its layout, which nodes are shown as columns, their types and aggregators."""
    scm = config.scm
    rng = stream(seed, "model", table.name)
    is_lazy = pick(rng, scm.propagation) == "lazy"
    layout, share = pick(rng, scm.layouts), real(rng, scm.observed_share)
    graph = random_dag(rng, layout, node_count(len(table.columns), share), config.dag)
    for (u, v), weight in zip(graph.edges, edge_weights(rng, graph.number_of_edges(), config.dag), strict=True):
        graph.edges[u, v]["weight"] = weight
    graph.graph.update(layout=layout, is_lazy=is_lazy)
    shown = rng.choice(len(graph), size=len(table.columns), replace=False)
    columns: dict[int, Column] = dict(zip(map(int, shown), table.columns, strict=True))
    for v in graph:
        column = columns.get(v)
        classes = _latent_classes(rng, config) if column is None else column.n_classes
        name = None if column is None else column.name
        graph.add_node(v, column=name, n_classes=classes, aggregator=pick(rng, scm.aggregators))
    return graph


def draw_model(
    seed: int,
    table: Table,
    parents: Sequence[tuple[Table, bool]],
    config: RelationalConfig,
    *,
    with_latents: bool = False,
) -> TableModel:
    """Draw the causal model of a table.

    Parameters
    ----------
    seed : int
    table : Table
    parents : sequence of (Table, whether its model is lazy), one for each foreign key
        A lazy parent's classes are read as numbers, as its own nodes are.
    config : RelationalConfig
    with_latents : bool
        Keep all latent nodes; columns are the same with and without.
    """
    scm = config.scm
    graph = draw_graph(seed, table, config)
    is_lazy: bool = graph.graph["is_lazy"]
    order = [int(v) for v in networkx().lexicographical_topological_sort(graph)]
    kept = set(order) if with_latents else _that_matter(graph)
    nodes = tuple(_draw_node(seed, table, graph, v, is_lazy, scm) for v in order if v in kept)
    collations = tuple(
        Collation(tuple(_collation(seed, table, j, parent, parent_is_lazy, scm)))
        for j, (parent, parent_is_lazy) in enumerate(parents)
    )
    rows_key = key(seed, "rows", table.name)
    return TableModel(table, is_lazy, graph, nodes, collations, scm.coupling, scm.width, rows_key)


def _latent_classes(rng: Rng, config: RelationalConfig) -> int:
    is_categorical = rng.random() < config.database.categorical_share
    return whole(rng, config.database.cardinality) if is_categorical else 0


def _that_matter(graph: Graph) -> set[int]:
    shown = [v for v, column in graph.nodes(data="column") if column is not None]
    return set(shown).union(*(networkx().ancestors(graph, v) for v in shown))


def _draw_node(seed: int, table: Table, graph: Graph, v: int, is_lazy: bool, scm: ScmConfig) -> Node:
    """A node with its mechanism, from a stream of its own."""
    rng = stream(seed, "node", table.name, v)
    given = graph.nodes[v]
    seen = 0 if is_lazy else given["n_classes"]
    shapes = pick(rng, scm.noise_pairs) if scm.noise_pairs else (real(rng, scm.noise), real(rng, scm.noise))
    parents = sorted(graph.predecessors(v))
    if not parents:
        source = draw_source(rng, seen, table.n_rows, table.is_activity, scm)
        return Node(v, seen, given["column"], given["aggregator"], np.empty(0, np.float32), source=source)
    causes = tuple(
        Cause(u, encoder(rng, 0 if is_lazy else graph.nodes[u]["n_classes"], scm, graph.edges[u, v]["weight"]))
        for u in parents
    )
    decode = decoder(rng, seen, scm)
    quantiles = beta_quantiles(*shapes) / np.float32(scm.width)
    return Node(v, seen, given["column"], given["aggregator"], quantiles, causes, decode=decode)


def _collation(
    seed: int, table: Table, number: int, parent: Table, is_lazy: bool, scm: ScmConfig
) -> list[tuple[str, Encoder]]:
    rng = stream(seed, "collation", table.name, number)
    return [(column.name, encoder(rng, 0 if is_lazy else column.n_classes, scm)) for column in parent.columns]
