"""Pictures: tables and their keys, and the causal graph of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from assay.synth.plurel.graphs import networkx

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from assay.synth.plurel.schema import Schema

# Okabe and Ito's palette, which colour-blind readers tell apart.
_BLUE, _ORANGE, _GREEN, _GREY = "#56B4E9", "#E69F00", "#009E73", "#BBBBBB"


def plot_schema(schema: Schema, axes: Axes | None = None) -> Axes:
    """Tables as nodes, foreign keys as arrows from the table that is referred to; parents stand above."""
    graph = schema.graph()
    axes = _axes(axes)
    where = _layered(graph)
    colours = [_ORANGE if schema.by_name[name].is_activity else _BLUE for name in graph]
    labels = {name: f"{name}\n{schema.by_name[name].n_rows:,} rows" for name in graph}
    nx = networkx()
    nx.draw_networkx_nodes(graph, where, ax=axes, node_color=colours, node_size=900)
    nx.draw_networkx_edges(nx.DiGraph(graph), where, ax=axes, node_size=900, edge_color="#555555")
    nx.draw_networkx_labels(graph, where, labels, ax=axes, font_size=7)
    return _finish(axes, "Tables and the keys between them", {"entity": _BLUE, "activity": _ORANGE})


def plot_causes(graph: Any, table: str, axes: Axes | None = None) -> Axes:
    """Columns and latent nodes, causes above effects; the width of an arrow grows with its weight."""
    axes = _axes(axes)
    where = _layered(graph)
    kinds = {node: _kind(attributes) for node, attributes in graph.nodes(data=True)}
    colours = {"numerical": _BLUE, "categorical": _GREEN, "latent": _GREY}
    widths = [0.3 + min(abs(weight), 3.0) * 0.5 for _, _, weight in graph.edges(data="weight")]
    nx = networkx()
    nx.draw_networkx_nodes(graph, where, ax=axes, node_color=[colours[kinds[node]] for node in graph], node_size=260)
    nx.draw_networkx_edges(graph, where, ax=axes, width=widths, edge_color="#777777", node_size=260, arrowsize=6)
    names = {node: name.replace("feature_", "") for node, name in graph.nodes(data="column") if name is not None}
    nx.draw_networkx_labels(graph, where, names, ax=axes, font_size=7)
    return _finish(axes, f"Causal graph of {table}", colours)


def _kind(attributes: dict[str, Any]) -> str:
    if attributes["column"] is None:
        return "latent"
    return "categorical" if attributes["n_classes"] else "numerical"


def _axes(axes: Axes | None) -> Axes:
    if axes is not None:
        return axes
    from matplotlib import pyplot as plt

    return plt.subplots(figsize=(9, 6))[1]


def _layered(graph: Any) -> dict[Any, tuple[float, float]]:
    """A row for each generation, the first one above."""
    where = {}
    for level, generation in enumerate(networkx().topological_generations(graph)):
        for place, node in enumerate(sorted(generation)):
            where[node] = ((place + 1) / (len(generation) + 1) + 0.03 * (level % 2), -float(level))
    return where


def _finish(axes: Axes, title: str, legend: dict[str, str]) -> Axes:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], marker="o", linestyle="", color=colour, label=name) for name, colour in legend.items()]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=len(handles), frameon=False)
    axes.set_title(title)
    axes.margins(0.12)
    axes.set_axis_off()
    return axes
