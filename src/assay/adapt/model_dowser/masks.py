"""Which weights may change: the share with the lowest scores of every matrix, as a mask on disk and on a model."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from assay._core.errors import InputError
from assay._core.files import replacing

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    import pandas as pd

    from assay.adapt.model_dowser.packed import Packed
    from assay.adapt.model_dowser.training import Tuning

_FORMAT = "assay model-dowser mask 1"


def n_chosen(share: float, numel: int) -> int:
    """floor(share * numel), with the share as it is written: 0.29 of 100 is 29, which binary fractions make 28.

    Examples
    --------
    >>> n_chosen(0.29, 100), n_chosen(0.1, 19)
    (29, 1)
    """
    return int(Decimal(repr(float(share))) * numel)


def lowest(values: Tensor, k: int) -> Tensor:
    """Mark the `k` lowest of `values`; of equals those that come first.

    Parameters
    ----------
    values : (...) float
    k : int
        From 0 to the number of values.

    Returns
    -------
    (...) bool
        With exactly `k` True.

    Examples
    --------
    >>> lowest(torch.tensor([[3.0, 1.0], [1.0, 1.0]]), 2).tolist()
    [[False, True], [True, False]]
    """
    flat = values.flatten()
    if k == 0:
        return torch.zeros_like(values, dtype=torch.bool)
    bound = flat.kthvalue(k).values
    chosen = flat < bound
    equal = (flat == bound).nonzero().flatten()
    chosen[equal[: k - int(chosen.sum())]] = True
    return chosen.view(values.shape)


def check_choice(rho: float, scope: str) -> None:
    """Refuse what :func:`build_mask` would, before minutes of scoring.

    Raises
    ------
    InputError
    """
    if not 0 <= rho <= 1:
        raise InputError(f"rho={rho}: expected the share of weights that train, from 0 to 1")
    if scope not in ("layer", "global"):
        raise InputError(f"scope={scope!r}: expected 'layer' or 'global'")


def build_mask(
    scores: Mapping[str, Tensor],
    rho: float = 0.1,
    scope: Literal["layer", "global"] = "layer",
    *,
    unused: Literal["freeze", "train"] = "freeze",
) -> Mask:
    """Let the share `rho` with the lowest scores train; freeze the rest.

    Parameters
    ----------
    scores : mapping of parameter name to Tensor
        As :func:`importance` returns them.
    rho : float
        From 0 to 1. Of a matrix with n weights exactly floor(rho n) train.
    scope : {"layer", "global"}
        ``"layer"``: in every matrix by itself, as in the paper. ``"global"``: the lowest of all matrices together,
        which leaves some without any.
    unused : {"freeze", "train"}
        What becomes of a matrix whose scores are all zero because no probe reached it (an expert that was never
        routed to): nothing of it trains, or all.

    Returns
    -------
    Mask

    Raises
    ------
    InputError
        `rho` is out of range, there are no scores, or a score is not finite.

    Examples
    --------
    >>> mask = build_mask({"weight": torch.tensor([[0.3, 0.1, 0.2, 0.4]])}, rho=0.5)
    >>> mask.trainable["weight"].tolist()
    [[False, True, True, False]]
    """
    check_choice(rho, scope)
    if unused not in ("freeze", "train"):
        raise InputError(f"unused={unused!r}: expected 'freeze' or 'train'")
    if not scores:
        raise InputError("scores is empty; there is no weight to choose from")
    for name, score in scores.items():
        if not bool(torch.isfinite(score).all()):
            raise InputError(f"{name} has scores that are not finite; score the model again in float32")
    dead = [name for name, score in scores.items() if not score.any()]
    if dead:
        warnings.warn(
            f"{len(dead)} of {len(scores)} matrices have only zero scores, such as {dead[0]}: no probe reached them; "
            f"unused={unused!r} decides about them",
            stacklevel=2,
        )
    alive = {name: score for name, score in scores.items() if name not in set(dead)}
    made = {name: torch.full(scores[name].shape, unused == "train") for name in dead}
    if scope == "layer":
        made |= {name: lowest(score, n_chosen(rho, score.numel())).cpu() for name, score in alive.items()}
    elif alive:
        flat = torch.cat([score.flatten().cpu() for score in alive.values()])
        parts = torch.split(lowest(flat, n_chosen(rho, len(flat))), [score.numel() for score in alive.values()])
        made |= {name: part.view(alive[name].shape) for name, part in zip(alive, parts, strict=True)}
    return Mask({name: made[name] for name in scores})


@dataclass(frozen=True)
class Mask:
    """Which entries of which weights train.

    Parameters
    ----------
    trainable : dict of parameter name to bool Tensor
        Of the parameters' shapes, on the CPU. Parameters that are not named are frozen.
    """

    trainable: dict[str, Tensor]

    def density(self) -> float:
        """Share of the entries of the named weights that train."""
        n = sum(mask.numel() for mask in self.trainable.values())
        return self.n_trainable / n if n else 0.0

    @property
    def n_trainable(self) -> int:
        """Number of entries that train."""
        return sum(int(mask.sum()) for mask in self.trainable.values())

    def overlap(self, other: Mask) -> float:
        """Entries that train in both, as a share of the mean of the two numbers; NaN where nothing trains.

        Of two random masks of density rho it is about rho.
        """
        both = sum(
            int((mask & other.trainable[name]).sum())
            for name, mask in self.trainable.items()
            if name in other.trainable and other.trainable[name].shape == mask.shape
        )
        n = self.n_trainable + other.n_trainable
        return 2 * both / n if n else float("nan")

    def apply(self, model: nn.Module) -> Tuning:
        """Freeze all else in `model` until it is detached; see :class:`Tuning`.

        Raises
        ------
        InputError
            The mask is about weights that the model does not have, or nothing trains.
        """
        from assay.adapt.model_dowser.training import Tuning

        return Tuning(model, self)

    def pack(self, model: nn.Module) -> Packed:
        """Train the entries as one short vector a weight, with an optimiser's state of that size; see :class:`Packed`.

        Raises
        ------
        InputError
            As for :meth:`apply`.
        """
        from assay.adapt.model_dowser.packed import Packed

        return Packed(model, self)

    def to_frame(self) -> pd.DataFrame:
        """One row a weight: name, entries, trainable, share."""
        import pandas as pd

        rows = [(name, mask.numel(), int(mask.sum())) for name, mask in self.trainable.items()]
        frame = pd.DataFrame(rows, columns=["name", "entries", "trainable"])
        frame["share"] = frame["trainable"] / frame["entries"]
        return frame

    def summary(self) -> str:
        """How much trains, in two lines."""
        frame = self.to_frame()
        return (
            f"{self.n_trainable:,} of {frame['entries'].sum():,} entries of {len(frame)} weights train "
            f"({self.density():.4f})\n"
            f"share in a weight: {frame['share'].min():.4f} to {frame['share'].max():.4f}"
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the mask as safetensors, one bit an entry."""
        from safetensors.torch import save_file

        tensors = {name: _packed(mask) for name, mask in self.trainable.items()}
        shapes = {f"shape {name}": "x".join(map(str, mask.shape)) for name, mask in self.trainable.items()}
        with replacing(path) as temporary:
            save_file(tensors, str(temporary), metadata={"format": _FORMAT, **shapes})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Mask:
        """Read what :meth:`save` wrote.

        Raises
        ------
        InputError
            It is not there, or no mask.
        """
        tensors, metadata = read_safetensors(path, _FORMAT, "a mask")
        made = {}
        for name, bits in tensors.items():
            shape = read_shape(metadata.get(f"shape {name}", ""), f"{path}, {name}")
            n = int(np.prod(shape))
            if bits.dtype != torch.uint8 or bits.numel() != -(-n // 8):
                raise InputError(f"{path}, {name}: {bits.numel()} bytes do not hold one bit for each of {n} entries")
            flags = np.unpackbits(bits.numpy(), count=n).astype(bool)
            made[name] = torch.from_numpy(flags).view(shape)
        return cls(made)


def _packed(mask: Tensor) -> Tensor:
    return torch.from_numpy(np.packbits(mask.flatten().numpy()))


def read_safetensors(path: str | os.PathLike[str], form: str, what: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and notes of a file that Assay wrote.

    Raises
    ------
    InputError
        The file is not there, is broken, or is something else than `what`.
    """
    from safetensors import SafetensorError, safe_open

    handle: Any
    try:
        with safe_open(str(path), framework="pt") as handle:
            metadata = dict(handle.metadata() or {})
            tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118  # it is no mapping
    except (OSError, SafetensorError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{path} cannot be read as safetensors: {first}") from None
    if metadata.get("format") != form:
        raise InputError(f"{path} is not {what} of model-dowser; expected a file that it wrote")
    return tensors, metadata


def read_shape(text: str, where: str) -> tuple[int, ...]:
    """A shape as the files write it, ``"64x32"``."""
    parts = text.split("x")
    if not all(part.isdecimal() and len(part) < 12 for part in parts):
        raise InputError(f"{where}: {text!r} is not a shape such as 64x32")
    return tuple(map(int, parts))
