"""Worlds of known truth: models that were, or were not, trained on a part of a data set, and what they answer.

A table is cut at random into the target, auxiliary data, other training data of the suspect, and a pool of the auditor
(who trains two references and a shadow on it). Networks are trained in parallel and kept, as features, below the cache
folder.
"""

from __future__ import annotations

import hashlib
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import sklearn
from joblib import Parallel, delayed
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

from assay._core.cache import made_dir
from assay._core.errors import InputError
from assay._core.files import replacing
from assay._core.progress import progress_bar
from assay._core.seeds import child_seed
from assay.audit.dataguard.queries import augmentations, column_ranges, measure

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

#: Raised when worlds are made in another way.
_LAYOUT = 1
N_AUGMENT = 8
N_REFERENCES = 2
#: Shares of the table for target, auxiliary data, other training data and pool: 300, 300, 400 and 600 digits.
SHARES = (0.167, 0.167, 0.2227, 0.334)
MIN_ROWS = 600


class Table(NamedTuple):
    """Samples with labels, and the share of labels that are wrong, in training as in the audit."""

    X: Array
    y: NDArray[np.int64]
    label_noise: float


class World(NamedTuple):
    """What an auditor can see of one split: features of suspects and references, and inputs.

    Parameters
    ----------
    target, aux : (suspects, n, 4) and (suspects, m, 4) float
    ref_target, ref_aux : (n, 4) and (m, 4) float
        Means over references.
    shadow_member, shadow_other : (s, 4) and (t, 4) float
    inputs_target, inputs_aux : (n, d) and (m, d) float
    """

    target: Array
    aux: Array
    ref_target: Array
    ref_aux: Array
    shadow_member: Array
    shadow_other: Array
    inputs_target: Array
    inputs_aux: Array


def digits(label_noise: float) -> Table:
    """Handwritten digits of scikit-learn, 1,797 of 8 × 8 grey values in [0, 1]."""
    X, y = load_digits(return_X_y=True)  # noqa: N806
    return Table(X / 16, y.astype(np.int64), label_noise)


def table_of(path: str, label: str, label_noise: float) -> Table:
    """A user's table: a column of labels, all others numbers, which are standardised."""
    from assay._core.tables import check_columns, read_table

    frame = read_table(path, {label: "text"})
    if len(frame) < MIN_ROWS:
        raise InputError(f"{path} has {len(frame)} rows; the trial cuts it into four parts and needs {MIN_ROWS}")
    columns = [column for column in frame.columns if column != label]
    numbers = check_columns(frame, dict.fromkeys(columns, "number"), where=path)[columns].to_numpy(dtype=np.float64)
    names, y = np.unique(frame[label].to_numpy(dtype=str), return_inverse=True)
    if not 2 <= len(names) <= 100:
        raise InputError(f"{path}, column {label!r}: it has {len(names)} different labels; expected 2 to 100 classes")
    spread = numbers.std(axis=0)
    kept = spread > 0
    return Table((numbers[:, kept] - numbers[:, kept].mean(axis=0)) / spread[kept], y.astype(np.int64), label_noise)


def made_worlds(table: Table, fractions: Sequence[float], n: int, seed: int) -> Iterator[World]:
    """Make `n` worlds, each with a suspect for every share of the target that it was trained on; 0 is unrelated.

    They are made a few at a time by as many processes as there are cores, and read from the cache where they are there.
    """
    folder = made_dir() / "trials" / "dataguard"
    folder.mkdir(parents=True, exist_ok=True)
    content = hashlib.sha256(table.X.tobytes() + table.y.tobytes()).hexdigest()
    said = repr((_LAYOUT, content, table.label_noise, tuple(fractions), seed, sklearn.__version__))
    key = hashlib.sha256(said.encode()).hexdigest()[:16]
    paths = [folder / f"{key}-{number}.npz" for number in range(n)]
    missing = [number for number in range(n) if not paths[number].is_file()]
    if missing:
        _make_files(table, fractions, seed, {number: paths[number] for number in missing})
    for number, path in enumerate(paths):
        with np.load(path) as file:
            features = {name: file[name] for name in file.files}
        target, aux, *_ = _split(table, child_seed(seed, "world", number))
        yield World(inputs_target=table.X[target], inputs_aux=table.X[aux], **features)


def _make_files(table: Table, fractions: Sequence[float], seed: int, paths: Mapping[int, Path]) -> None:
    with progress_bar() as bar:
        task = bar.add_task("training suspects and references", total=len(paths))
        made = Parallel(n_jobs=-1, return_as="generator")(
            delayed(_make_file)(table, tuple(fractions), child_seed(seed, "world", number), path)
            for number, path in paths.items()
        )
        for _ in made:
            bar.advance(task)


def _split(table: Table, seed: int) -> list[NDArray[np.int64]]:
    order = np.random.default_rng(seed).permutation(len(table.X))
    ends = np.cumsum([round(share * len(order)) for share in SHARES])
    return np.split(order, ends)[:4]


def _make_file(table: Table, fractions: tuple[float, ...], seed: int, path: Path) -> None:
    world = _make(table, fractions, seed)
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **world)


def _make(table: Table, fractions: tuple[float, ...], seed: int) -> dict[str, Array]:
    target, aux, other, pool = _split(table, seed)
    rng = np.random.default_rng(child_seed(seed, "labels"))
    n_classes = int(table.y.max()) + 1
    wrong = rng.random(len(table.y)) < table.label_noise
    y = np.where(wrong, (table.y + rng.integers(1, n_classes, size=len(table.y))) % n_classes, table.y)
    scale = column_ranges(table.X[aux])

    def features(model: Any, rows: NDArray[np.int64], part: str) -> Array:
        changed = augmentations(table.X[rows], scale, N_AUGMENT, "auto", np.random.default_rng(child_seed(seed, part)))
        return measure(model, table.X[rows], y[rows], changed, "the suspect", part).values

    def fitted(rows: NDArray[np.int64], name: str) -> Any:
        return network(table.X[rows], y[rows], child_seed(seed, name))

    suspects = [
        fitted(np.concatenate([other, target[: round(rho * len(target))]]), f"suspect {rho}") for rho in fractions
    ]
    references = [fitted(pool, f"reference {i}") for i in range(N_REFERENCES)]
    half = 2 * len(pool) // 3
    shadow = fitted(pool[:half], "shadow")
    return {
        "target": np.stack([features(model, target, "target") for model in suspects]),
        "aux": np.stack([features(model, aux, "aux") for model in suspects]),
        "ref_target": np.mean([features(model, target, "target") for model in references], axis=0),
        "ref_aux": np.mean([features(model, aux, "aux") for model in references], axis=0),
        "shadow_member": features(shadow, pool[:half], "member"),
        "shadow_other": features(shadow, pool[half:], "other"),
    }


def network(X: Array, y: NDArray[np.int64], seed: int) -> Any:  # noqa: N803
    """A network of 64 hidden units, trained until it remembers: 60 epochs in batches of 50."""
    model = MLPClassifier(
        64, max_iter=60, batch_size=50, learning_rate_init=5e-3, n_iter_no_change=60, tol=0.0, random_state=seed
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that 60 epochs were not enough to converge; they are meant
        return model.fit(X, y)
