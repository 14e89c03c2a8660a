"""`assay use caot-stc TEXTS --clusters 20 -o clusters.csv`: a file of short texts into named clusters."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay._core.errors import InputError
from assay.cli.output import save_picture

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

app = typer.Typer(add_completion=False)

PICTURES = (".png", ".svg", ".pdf")


@app.command()
def caot_stc(
    texts: Annotated[
        Path,
        typer.Argument(
            metavar="TEXTS", help="A table with one row a text (CSV, JSONL, Parquet …), or .txt, one line a text."
        ),
    ],
    clusters: Annotated[str, typer.Option("--clusters", "-k", help="Number of clusters, or auto.")] = "auto",
    out: Annotated[Path, typer.Option("--out", "-o", help="The rows with their cluster and its name.")] = Path(
        "clusters.csv"
    ),
    names: Annotated[Path | None, typer.Option("--names", help="Also write a row for each cluster.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Also draw the clusters (.png, .svg, .pdf).")] = None,
    column: Annotated[str, typer.Option("--text", help="Column with the text.")] = "text",
    label: Annotated[
        str | None, typer.Option("--label", help="Column with the true topic: only to say how well it was found.")
    ] = None,
    embeddings: Annotated[
        Path | None, typer.Option("--embeddings", help="A .npy file with a row for each text, in place of the encoder.")
    ] = None,
    lam_size: Annotated[
        float,
        typer.Option("--lam-size", help="Smaller: sizes may differ more; 1 can let one swallow the others."),
    ] = 100.0,
    steps: Annotated[int, typer.Option("--steps", help="Training steps at most.")] = 600,
    seed: Annotated[int, typer.Option("--seed", help="Of k-means and training.")] = 0,
) -> None:
    """Cluster short texts, name the clusters by their top terms, and compare with k-means.

    Example: `assay use caot-stc texts.csv --clusters 20 -o clusters.csv --plot clusters.png`

    The demo encoder reads English. Texts in other languages: give --embeddings of an encoder of your own.
    """
    from assay._core.tables import write_table
    from assay.solve.caot_stc import ShortTextClusterer, top_terms
    from assay.solve.caot_stc.texts import checked_texts

    if plot is not None and plot.suffix.lower() not in PICTURES:
        raise InputError(f"{plot}: a picture is written as one of {', '.join(PICTURES)}")
    n_clusters = _n_clusters(clusters)
    table = _read(texts, column, label)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        given = checked_texts(table[column].tolist(), f"{texts}, column {column!r}: the list of texts")
        vectors = _embedded(given) if embeddings is None else _stored(embeddings, len(given))
        clusterer = ShortTextClusterer(n_clusters, lam_size=lam_size, max_iter=steps, random_state=seed).fit(vectors)
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        typer.echo(f"warning: {message}", err=True)
    terms = top_terms(given, clusterer.labels_, n_clusters=clusterer.n_clusters_)
    name_of = [", ".join(words) or "(no terms)" for words in terms]
    write_table(_with_clusters(table, clusterer, name_of), out)
    by_cluster = _by_cluster(clusterer, name_of, given, vectors)
    if names is not None:
        write_table(by_cluster, names)
    if plot is not None:
        from assay.solve.caot_stc.plots import draw_clusters

        save_picture(draw_clusters(vectors, clusterer.labels_, name_of), plot)
    typer.echo(clusterer.summary())
    typer.echo(_sizes(by_cluster))
    typer.echo(_beside_kmeans(clusterer, vectors, None if label is None else table[label].tolist()))
    written = [out, *(path for path in (names, plot) if path is not None)]
    typer.echo(f"\nWritten: {', '.join(map(str, written))}")


def _n_clusters(text: str) -> Any:
    if text.lower() == "auto":
        return "auto"
    if not text.isdecimal() or int(text) < 2:
        raise InputError(f"--clusters is {text!r}; expected a whole number from 2, or auto")
    return int(text)


def _read(path: Path, column: str, label: str | None) -> pd.DataFrame:
    import pandas as pd

    from assay._core.tables import read_table

    if path.suffix.lower() != ".txt":
        columns: dict[str, Any] = {column: "text"} | ({} if label is None else {label: "text"})
        return read_table(path, columns)
    if label is not None:
        raise InputError(f"{path} is plain text and has no column {label!r}; give a table, or leave --label out")
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start + 1} is not UTF-8; save the file as UTF-8") from None
    return pd.DataFrame({column: [line for line in lines if line.strip()]}, dtype="str")


def _embedded(texts: list[str]) -> NDArray[np.float32]:
    import numpy as np

    from assay._core.progress import progress_bar
    from assay.models import demo_encoder

    encoder = demo_encoder()
    parts = []
    with progress_bar() as bar:
        task = bar.add_task("reading texts", total=len(texts))
        order = np.argsort([len(text) for text in texts], kind="stable")  # texts of a length together: little padding
        for start in range(0, len(order), 1024):
            rows = order[start : start + 1024]
            parts.append(encoder.encode([texts[row] for row in rows]))
            bar.advance(task, len(rows))
    vectors = np.empty((len(texts), encoder.n_features), dtype=np.float32)
    vectors[order] = np.concatenate(parts)
    return vectors


def _stored(path: Path, n_texts: int) -> NDArray[np.float64]:
    import numpy as np

    try:
        vectors = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError, EOFError):
        raise InputError(f"{path} is not a .npy file of numbers; write it with numpy.save") from None
    if getattr(vectors, "ndim", 0) != 2 or len(vectors) != n_texts:
        shape = getattr(vectors, "shape", "no shape")
        raise InputError(f"{path} holds an array of shape {shape}; expected {n_texts} rows, one for each text")
    return np.asarray(vectors, dtype=np.float64)


def _with_clusters(table: pd.DataFrame, clusterer: Any, name_of: list[str]) -> pd.DataFrame:
    import numpy as np

    taken = [name for name in ("cluster", "cluster_name", "kmeans_cluster") if name in table.columns]
    if taken:
        raise InputError(f"the table has a column {taken[0]!r} already; rename it, the clusters go there")
    return table.assign(
        cluster=clusterer.labels_,
        cluster_name=np.array(name_of, dtype=object)[clusterer.labels_],
        kmeans_cluster=clusterer.kmeans_labels_,
    )


def _by_cluster(clusterer: Any, name_of: list[str], texts: list[str], vectors: Any) -> pd.DataFrame:
    """A row for each cluster: its size, its name and the text that the classifier is surest of."""
    import numpy as np
    import pandas as pd

    surest = clusterer.predict_proba(vectors).argmax(axis=0)
    example = [texts[row] if size else "" for row, size in zip(surest, clusterer.cluster_sizes_, strict=True)]
    of_kmeans = np.bincount(clusterer.kmeans_labels_, minlength=clusterer.n_clusters_)
    return pd.DataFrame(
        {
            "cluster": np.arange(clusterer.n_clusters_),
            "name": name_of,
            "n_texts": clusterer.cluster_sizes_,
            "n_texts_kmeans": of_kmeans,
            "example": example,
        }
    ).sort_values("n_texts", ascending=False, kind="stable", ignore_index=True)


def _sizes(by_cluster: pd.DataFrame, most: int = 30) -> str:
    lines = [f"\n{'cluster':>7} {'texts':>6}  name"]
    lines += [f"{row.cluster:>7} {row.n_texts:>6}  {row.name_}" for row in by_cluster.head(most).rename(
        columns={"name": "name_"}).itertuples()]  # fmt: skip
    if len(by_cluster) > most:
        lines.append(f"… and {len(by_cluster) - most} more")
    return "\n".join(lines)


def _beside_kmeans(clusterer: Any, vectors: Any, truth: list[str] | None) -> str:
    """With topics: accuracy, NMI and ARI of both; without: silhouette of both."""
    import numpy as np
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score, silhouette_score

    from assay.solve.caot_stc import clustering_accuracy

    both = {"caot-stc": clusterer.labels_, "k-means": clusterer.kmeans_labels_}
    if truth is None:
        rows = np.random.default_rng(0).permutation(len(vectors))[:2000]
        lines = [f"\n{'':<10} {'silhouette':>10}"]
        for name, labels in both.items():
            n_used = len(np.unique(labels[rows]))
            value = silhouette_score(vectors[rows], labels[rows]) if 1 < n_used < len(rows) else float("nan")
            lines.append(f"{name:<10} {value:>10.3f}")
        return "\n".join(lines)
    lines = [f"\n{'':<10} {'accuracy':>8} {'NMI':>6} {'ARI':>6}"]
    for name, labels in both.items():
        values = (
            clustering_accuracy(truth, labels),
            normalized_mutual_info_score(truth, labels),
            adjusted_rand_score(truth, labels),
        )
        lines.append(f"{name:<10} {values[0]:>8.3f} {values[1]:>6.3f} {values[2]:>6.3f}")
    return "\n".join(lines)
