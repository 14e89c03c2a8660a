"""`assay use amips fit|search|compare KEYS QUERIES`: a learned map before an index, on files of vectors."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay._core.errors import InputError
from assay.cli.output import PICTURES, check_file, check_table, save_picture

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.nn.amips import KeyNet, SupportNet

app = typer.Typer(add_completion=False, no_args_is_help=True)

KEYS = Annotated[
    Path, typer.Argument(metavar="KEYS", help="Vectors to search, a row each: .npy (mapped, not read), .csv, .parquet.")
]
QUERIES = Annotated[Path, typer.Argument(metavar="QUERIES", help="Queries of the kind that will come, a row each.")]
NET = Annotated[str, typer.Option("--net", help="keynet or supportnet.")]
FRACTION = Annotated[
    float, typer.Option("--fraction", help="Parameters of the net, as a share of the numbers in the keys.")
]
DEPTH = Annotated[int, typer.Option("--depth", help="Layers.")]
STEPS = Annotated[int, typer.Option("--steps", min=1, help="Of training.")]
COPIES = Annotated[int, typer.Option("--copies", min=0, help="Noisy copies of each query.")]
NOISE = Annotated[float, typer.Option("--noise", help="Sd of a coordinate of a copy.")]
LISTS = Annotated[int, typer.Option("--lists", help="Of the index; 0: the square root of the number of keys.")]
SEED = Annotated[int, typer.Option("--seed", min=0, help="Of the split, the net and its training.")]


@app.callback()
def amips() -> None:
    """Learn from a log of queries where their best keys lie, and look there first.

    Example: `assay use amips compare keys.npy queries.npy --plot compare.png`

    It learns on nine tenths of the queries and says, on the rest, what that gains before a FAISS index beside the raw
    query, HNSW and exact search: in recall, in operations and in milliseconds.
    """


@app.command()
def fit(
    keys: KEYS,
    queries: QUERIES,
    out: Annotated[Path, typer.Option("--out", "-o", help="The model, .safetensors.")] = Path("model.safetensors"),
    net: NET = "keynet",
    fraction: FRACTION = 0.05,
    depth: DEPTH = 4,
    steps: STEPS = 2_500,
    copies: COPIES = 1,
    noise: NOISE = 0.02,
    seed: SEED = 0,
) -> None:
    """Train a net on a log of queries, and save it.

    Example: `assay use amips fit keys.npy queries.npy -o model.safetensors`
    """
    check_file(out, (".safetensors",), "a model")
    model = _net(net, fraction, depth, steps, copies, noise, seed)
    vectors = _read(keys, queries)
    out.parent.mkdir(parents=True, exist_ok=True)
    with _short_warnings():
        model.fit(vectors[1], vectors[0])
    model.save(out)
    typer.echo(_said(model))
    typer.echo(f"Written: {out}")


@app.command()
def search(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="What fit wrote.")],
    keys: KEYS,
    queries: QUERIES,
    out: Annotated[Path, typer.Option("--out", "-o", help="A row for each query and found key.")] = Path("found.csv"),
    k: Annotated[int, typer.Option("-k", min=1, help="Keys to find for each query.")] = 10,
    nprobe: Annotated[int, typer.Option("--nprobe", min=1, help="Lists to look through.")] = 4,
    lists: LISTS = 0,
) -> None:
    """Search with a trained net before an IVF index: it chooses the lists, the query ranks what is in them.

    Example: `assay use amips search model.safetensors keys.npy queries.npy -k 10 --nprobe 4 -o found.csv`
    """
    import numpy as np
    import pandas as pd

    from assay._core.tables import write_table
    from assay.nn.amips import MappedIndex, ivf_index

    check_table(out)
    vectors = _read(keys, queries)
    with _short_warnings():
        loaded = _load(model, vectors[0])
        index = ivf_index(loaded.keys_, lists or None)
        index.nprobe = nprobe
        scores, ids = MappedIndex(index, loaded).search(vectors[1], k)
    n = len(ids)
    table = pd.DataFrame(
        {
            "query": np.repeat(np.arange(1, n + 1), k),
            "rank": np.tile(np.arange(1, k + 1), n),
            "key": ids.ravel() + 1,
            "score": scores.ravel().astype(np.float64),
        }
    )
    table = table[table["key"] > 0]  # 0: the lists held fewer than k keys
    out.parent.mkdir(parents=True, exist_ok=True)
    write_table(table, out)
    typer.echo(
        f"{n:,} queries, {len(table):,} keys found ({min(nprobe, index.nlist)} of {index.nlist} lists each); "
        "query and key are rows of the files, counted from 1"
    )
    typer.echo(f"Written: {out}")


@app.command()
def compare(
    keys: KEYS,
    queries: QUERIES,
    model: Annotated[
        Path | None,
        typer.Option("--model", help="What fit wrote, on other queries than these; default: learn on nine tenths."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Also write the table (.csv, .parquet …).")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Also draw it (.png, .svg, .pdf).")] = None,
    probes: Annotated[str, typer.Option("--probes", help="Numbers of lists to look through.")] = "1,2,4,8,16",
    lists: LISTS = 0,
    net: NET = "keynet",
    fraction: FRACTION = 0.05,
    depth: DEPTH = 4,
    steps: STEPS = 2_500,
    copies: COPIES = 1,
    noise: NOISE = 0.02,
    seed: SEED = 0,
) -> None:
    """Say what a learned map gains on queries it has not seen, beside the raw query, HNSW and exact search.

    Example: `assay use amips compare keys.npy queries.npy --fraction 0.05 -o compare.csv --plot compare.png`
    """
    import numpy as np

    from assay._core.tables import write_table
    from assay.nn.amips import compare_ivf

    check_table(out)
    check_file(plot, PICTURES, "a picture")
    nprobes = _probes(probes)
    vectors = _read(keys, queries)
    with _short_warnings():
        if model is None:
            fitted: Any = _net(net, fraction, depth, steps, copies, noise, seed)
            if (n_different := len(np.unique(vectors[1], axis=0))) < 20:
                raise InputError(
                    f"{queries}: {n_different} different queries; expected 20 or more, to learn from and to ask"
                )
            fitted.fit(vectors[1], vectors[0])
            asked = np.asarray(vectors[1][fitted.held_out_])
            typer.echo(_said(fitted))
        else:
            fitted, asked = _load(model, vectors[0]), vectors[1]
        compared = compare_ivf(fitted, asked, None, nprobes, n_lists=lists or None)
    written = [path for path in (out, plot) if path is not None]
    for path in written:
        path.parent.mkdir(parents=True, exist_ok=True)
    if out is not None:
        write_table(compared.to_frame(), out)
    if plot is not None:
        save_picture(compared.plot(), plot)
    typer.echo(compared.summary())
    typer.echo(_verdict(compared.table))
    if written:
        typer.echo(f"Written: {', '.join(map(str, written))}")


def _verdict(table: Any) -> str:
    """What a person should do: the cheapest way to the recall that the mapped query has at its widest."""
    mapped = table[table["way"] == "mapped, ranked by query"].iloc[-1]
    enough = table[table["recall_1"] >= mapped["recall_1"]]
    cheapest, fastest = (enough.loc[enough[column].idxmin()] for column in ("mflops", "ms"))
    return (
        f"recall@1 of {mapped['recall_1']:.3f} or more takes the fewest operations by {cheapest['way']} "
        f"({cheapest['setting']}: {cheapest['mflops']:.3f} Mflop), and the least time by {fastest['way']} "
        f"({fastest['setting']}: {fastest['ms']:.4f} ms a query)"
    )


def _said(model: Any) -> str:
    told = f"{model.n_parameters_:,} parameters ({model.n_parameters_ / model.keys_.size:.1%} of the keys' numbers)"
    if model.held_out_.size == 0:
        return f"{told}; too few different queries to hold any out"
    return (
        f"{told}; on {model.held_out_.size:,} held-out queries the squared distance to the best key is "
        f"{model.relative_error_:.2f} of the raw query's, and {model.match_rate_:.1%} lie closest to it"
    )


def _net(
    net: str, fraction: float, depth: int, steps: int, copies: int, noise: float, seed: int
) -> KeyNet | SupportNet:
    from assay.nn.amips import KeyNet, SupportNet

    kinds: dict[str, type[KeyNet] | type[SupportNet]] = {"keynet": KeyNet, "supportnet": SupportNet}
    if net not in kinds:
        raise InputError(f"--net is {net!r}; expected keynet or supportnet")
    return kinds[net](
        fraction=fraction, depth=depth, steps=steps, noise=(copies, noise), verbose=True, random_state=seed
    )


def _load(path: Path, keys: Any) -> Any:
    """A saved net of either kind, checked against the keys."""
    from assay.nn.amips import KeyNet, LearnedRouter, SupportNet
    from assay.nn.amips.learner import read_saved

    kinds: dict[str, Any] = {"KeyNet": KeyNet, "SupportNet": SupportNet, "LearnedRouter": LearnedRouter}
    return kinds[read_saved(path)[0]["kind"]].load(path, keys=keys)


def _read(keys: Path, queries: Path) -> tuple[Any, Any]:
    from assay.nn.amips import read_vectors

    found = read_vectors(keys), read_vectors(queries)
    if found[0].shape[1] != found[1].shape[1]:
        raise InputError(
            f"{queries} has {found[1].shape[1]} numbers a row, and {keys} has {found[0].shape[1]}; expected the same"
        )
    return found


def _probes(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise InputError(f"--probes takes whole numbers above zero, such as 1,2,4, not {text!r}")
    return tuple(sorted({int(part) for part in parts}))


@contextmanager
def _short_warnings() -> Iterator[None]:
    """Print each warning once, as a line on stderr."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for message in dict.fromkeys(str(warning.message) for warning in caught if warning.category is UserWarning):
        typer.echo(f"warning: {message}", err=True)
