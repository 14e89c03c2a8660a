"""The shared matrix M of a configuration: trained once on normal noise, shipped for the common bit widths.

Training is the paper's softmin loss from orthonormal rows, then a step of our own: alternate between the nearest points
of many fresh vectors and the least-squares M for these points, which removes what is left of the softmin's smoothing.

``python -m assay.compress.liftquant.mapping`` trained the matrices that are shipped.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from assay._core.cache import made_dir
from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.files import replacing, write_text
from assay._core.seeds import child_seed
from assay.compress.liftquant.search import MOST_PADS, all_signs, decode, encode, lift_inverse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

SHIPPED = Path(__file__).parent / "mappings"

#: (D, d) of the matrices that are shipped.
PAIRS = ((16, 10), (16, 8), (15, 7), (16, 7), (12, 5), (5, 2), (20, 8), (6, 2))

#: Inverse temperature of the softmin (paper, stage 0).
TAU = 10.0
_VECTORS = 200_000


@dataclass(frozen=True)
class Mapping:
    """The matrix of one configuration.

    Parameters
    ----------
    matrix : (d, D) float32
        M.
    mse : float
        Mean squared error for a normal source of variance one, by the search that "auto" takes.
    """

    matrix: Floats
    mse: float

    @property
    def n_bits(self) -> int:
        """Signs that a vector is stored as, D."""
        return int(self.matrix.shape[1])

    @property
    def d(self) -> int:
        """Weights in a vector."""
        return int(self.matrix.shape[0])

    @property
    def rate(self) -> float:
        """Bits a weight, before scales and transforms."""
        return self.n_bits / self.d


def mean_squared_error(matrix: Floats, n_vectors: int = _VECTORS, seed: int = 0, **options: Any) -> float:
    """Error for fresh normal vectors, a weight; `options` go to :func:`encode`."""
    rng = np.random.default_rng(child_seed(seed, "test"))
    w = rng.standard_normal((n_vectors, matrix.shape[0]), dtype=np.float32)
    return float(np.mean((w - decode(encode(w, matrix, **options), matrix)) ** 2))


def fit_mapping(
    n_bits: int, d: int, *, seed: int = 0, steps: int = 600, restarts: int = 3, n_vectors: int = _VECTORS
) -> Mapping:
    """Train M for `n_bits` signs a vector of `d` weights (paper, stage 0; the last step is ours).

    Parameters
    ----------
    n_bits, d : int
        D and d: D / d bits a weight.
    seed : int
    steps : int
        Of Adam on the softmin loss.
    restarts : int
        The one with the smallest error on fresh vectors is kept.
    n_vectors : int
        That the alternating steps and the test see.

    Returns
    -------
    Mapping

    Raises
    ------
    InputError
        D is below d or above d + 20.

    Examples
    --------
    >>> round(fit_mapping(2, 1, steps=200, restarts=1, n_vectors=50_000).mse, 2)  # Lloyd and Max's four levels: 0.1175
    0.12
    """
    if not d <= n_bits <= min(63, d + MOST_PADS) or d < 1:
        raise InputError(
            f"D={n_bits}, d={d}: expected 1 <= d <= D <= d + {MOST_PADS}; nearest is {_feasible(n_bits, d)}"
        )
    best: Mapping | None = None
    for restart in range(restarts):
        matrix = _soft(n_bits, d, child_seed(seed, n_bits, d, restart), steps)
        matrix, error = _alternate(matrix, n_vectors, child_seed(seed, n_bits, d, restart))
        if best is None or error < best.mse:
            best = Mapping(matrix, error)
    if best is None:
        raise InputError(f"restarts={restarts}: expected at least one")
    return best


def _feasible(n_bits: int, d: int) -> str:
    d = max(1, d)
    return f"D={min(max(n_bits, d), d + MOST_PADS)}, d={d}"


def _soft(n_bits: int, d: int, seed: int, steps: int) -> Floats:
    """Adam on the softmin of all points, or of those that the fast search would try."""
    torch = need("torch", extra="lm", purpose="training a mapping")
    generator = torch.Generator().manual_seed(seed)
    start = torch.linalg.qr(torch.randn(n_bits, n_bits, generator=generator))[0][:d].contiguous()
    matrix = start.requires_grad_()
    every = torch.from_numpy(all_signs(n_bits)) if n_bits <= 12 else None
    pads = None if every is not None else torch.from_numpy(all_signs(min(n_bits - d, 10)))
    # mypy does not see that pads is there where every is not.
    batch = max(32, min(400, 2**18 // (2**n_bits if every is not None else len(pads))))  # type: ignore[arg-type]
    optimizer = torch.optim.Adam([matrix], lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, 0.001)
    for _ in range(steps):
        w = torch.randn(batch, d, generator=generator)
        if every is not None:
            points = every @ matrix.T
            squared = points.square().sum(1) - 2 * w @ points.T + w.square().sum(1, keepdim=True)
        else:
            with torch.no_grad():
                inverse, null = (torch.from_numpy(part) for part in lift_inverse(matrix.numpy()))
                tried = pads
                if n_bits - d > 10:  # a sample of the pads: enough for the gradient
                    tried = 2.0 * torch.randint(2, (1024, n_bits - d), generator=generator) - 1
                signs = (2.0 * ((w @ inverse.T)[:, None] + tried @ null >= 0)).sub_(1)
            squared = (w[:, None] - signs @ matrix.T).square().sum(-1)
        loss = -torch.logsumexp(-TAU * squared, 1).mean() / (TAU * d)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return np.ascontiguousarray(matrix.detach().numpy())


def _alternate(matrix: Floats, n_vectors: int, seed: int, rounds: int = 20) -> tuple[Floats, float]:
    """Nearest points, then the M that is best for them, averaged over rounds; with the error on vectors not seen."""
    rng = np.random.default_rng(seed)
    d, n_bits = matrix.shape
    size = n_vectors if n_bits <= 12 else min(n_vectors, 60_000 if n_bits - d <= 12 else 15_000)
    for number in range(rounds):
        w = rng.standard_normal((size, d), dtype=np.float32)
        signs = _signs(encode(w, matrix), n_bits)
        target = np.linalg.lstsq(signs.T @ signs, signs.T @ w, rcond=None)[0].T.astype(np.float32)
        weight = 1.0 if number < rounds // 2 else 2.0 / (2 + number - rounds // 2)  # then average the noise away
        matrix = np.ascontiguousarray(matrix + np.float32(weight) * (target - matrix))
    return matrix, mean_squared_error(matrix, size, seed)


def _signs(codes: NDArray[np.uint64], n_bits: int) -> Floats:
    bits = (codes[:, None] >> np.arange(n_bits, dtype=np.uint64)) & np.uint64(1)
    return 2 * bits.astype(np.float32) - 1


# ------------------------------------------------------------------------------------------------ what is shipped


@lru_cache(maxsize=32)
def load_mapping(n_bits: int, d: int) -> Mapping:
    """The shipped M of a pair.

    Raises
    ------
    InputError
        None is shipped for it.

    Examples
    --------
    >>> load_mapping(16, 8).rate
    2.0
    """
    path = SHIPPED / f"{n_bits}-{d}.npy"
    if not path.is_file():
        listed = ", ".join(f"{a}/{b}" for a, b in shipped_pairs())
        raise InputError(f"no matrix is shipped for D={n_bits}, d={d}; there are {listed}; train it with fit_mapping")
    errors = json.loads((SHIPPED / "mse.json").read_text(encoding="utf-8"))
    return Mapping(np.load(path, allow_pickle=False), float(errors[f"{n_bits}-{d}"]))


#: Raised when the training of M changes.
_LAYOUT = 1


def made_mapping(n_bits: int, d: int) -> Mapping:
    """The shipped M of a pair, or one that is trained once and kept in the cache folder.

    Raises
    ------
    InputError
        As of :func:`fit_mapping`.
    """
    if (n_bits, d) in shipped_pairs():
        return load_mapping(n_bits, d)
    path = made_dir() / "liftquant" / f"{n_bits}-{d}-{_LAYOUT}.npz"
    try:
        with np.load(path, allow_pickle=False) as kept:
            return Mapping(kept["matrix"], float(kept["mse"]))
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):  # not there, or damaged
        made = fit_mapping(n_bits, d)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        np.savez(temporary, matrix=made.matrix, mse=made.mse)
    return made


@lru_cache(maxsize=1)
def shipped_pairs() -> tuple[tuple[int, int], ...]:
    """(D, d) of the shipped matrices, by rising rate, then by rising d."""
    names = [path.stem.split("-") for path in SHIPPED.glob("*.npy")]
    return tuple(sorted(((int(a), int(b)) for a, b in names), key=lambda pair: (pair[0] / pair[1], pair[1])))


def ship(
    pairs: Sequence[tuple[int, int]], folder: Path = SHIPPED, *, seed: int = 0, steps: int = 800, restarts: int = 2
) -> None:
    """Train and write the matrices of `pairs`, and the table of their errors; a better one that is there is kept."""
    folder.mkdir(exist_ok=True)
    table = folder / "mse.json"
    for n_bits, d in pairs:
        more = 4 if n_bits <= 8 else 1  # small ones are quick, and differ more from start to start
        made = fit_mapping(n_bits, d, seed=seed, steps=steps, restarts=more * restarts)
        error = mean_squared_error(made.matrix, 100_000 if n_bits - d > 12 else _VECTORS, 1)
        errors = json.loads(table.read_text(encoding="utf-8")) if table.is_file() else {}
        name = f"{n_bits}-{d}"
        print(f"{n_bits}/{d}: {error:.4f}", flush=True)  # noqa: T201  # progress of a maintainer's command
        if error < errors.get(name, np.inf):
            with replacing(folder / f"{name}.npy") as temporary:
                np.save(temporary, made.matrix)
            write_text(table, json.dumps(errors | {name: round(error, 5)}, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    import sys

    wanted = [tuple(map(int, name.split("/"))) for name in sys.argv[1:]]
    ship([(a, b) for a, b in wanted] or PAIRS)
