"""What training changed, in a file of about the mask's share of the model, put on a model and taken off again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from assay._core.errors import InputError
from assay._core.files import replacing
from assay.adapt.model_dowser.layers import named_weights
from assay.adapt.model_dowser.masks import read_safetensors, read_shape

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from types import TracebackType

    from numpy.typing import NDArray

_FORMAT = "assay model-dowser delta 1"


def encode_gaps(index: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Rising places as bytes: how many entries are skipped before each; 255 means "255, and more to come".

    One byte a place down to a density of a few in a thousand, where whole numbers would take four or eight.

    Examples
    --------
    >>> encode_gaps(np.array([0, 3, 500])).tolist()  # skipped: 0, 2 and 496 = 255 + 241
    [0, 2, 255, 241]
    """
    gaps = np.diff(index, prepend=-1) - 1
    whole, rest = np.divmod(gaps, 255)
    ends = np.cumsum(whole + 1) - 1
    made = np.full(int(ends[-1]) + 1 if len(ends) else 0, 255, dtype=np.uint8)
    made[ends] = rest
    return made


def decode_gaps(code: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Places from :func:`encode_gaps`.

    Examples
    --------
    >>> decode_gaps(np.array([0, 2, 255, 241], dtype=np.uint8)).tolist()
    [0, 3, 500]
    """
    skipped = np.cumsum(code, dtype=np.int64)[code < 255]
    return skipped + np.arange(len(skipped))


@dataclass(frozen=True)
class Entries:
    """The changed entries of one weight.

    Parameters
    ----------
    shape : tuple of int
    index : (n,) int64 Tensor
        Places in the flattened weight, rising.
    values : (n,) Tensor
        What stands there after training, not the difference: it comes back to the last bit.
    base : str
        A hash of the weight that they belong to.
    """

    shape: tuple[int, ...]
    index: Tensor
    values: Tensor
    base: str


@dataclass(frozen=True)
class SparseDelta:
    """The entries that differ between a model and its tuned form.

    Parameters
    ----------
    entries : dict of parameter name to Entries
    """

    entries: dict[str, Entries]

    @property
    def n_entries(self) -> int:
        """Number of changed entries."""
        return sum(len(part.index) for part in self.entries.values())

    @classmethod
    def between(cls, base: nn.Module | Mapping[str, Tensor], tuned: nn.Module | Mapping[str, Tensor]) -> SparseDelta:
        """Compare two models, or two mappings of names to weights.

        Raises
        ------
        InputError
            Names, shapes or dtypes differ.

        Examples
        --------
        >>> old, new = {"w": torch.tensor([1.0, 2.0, 3.0])}, {"w": torch.tensor([1.0, 5.0, 3.0])}
        >>> SparseDelta.between(old, new).n_entries
        1
        """
        before, after = _tensors(base), _tensors(tuned)
        if before.keys() != after.keys():
            first = min(before.keys() ^ after.keys())
            raise InputError(f"{first} is in one of the two models only; a delta is between two of one architecture")
        made = {}
        for name, old in before.items():
            new = after[name].detach()
            if old.shape != new.shape or old.dtype != new.dtype:
                raise InputError(
                    f"{name} is {tuple(old.shape)} {old.dtype} in one model and {tuple(new.shape)} {new.dtype} in the "
                    f"other"
                )
            changed = _bits(old) != _bits(new)
            index = changed.nonzero().flatten().cpu()
            if len(index):
                values = new.reshape(-1)[index.to(new.device)].cpu()
                made[name] = Entries(tuple(new.shape), index, values, weight_hash(old))
        return cls(made)

    def apply(self, model: nn.Module) -> Applied:
        """Write the entries into `model` until they are taken off; see :class:`Applied`.

        Raises
        ------
        InputError
            The model does not have these weights, or has other values in them.
        """
        return Applied(model, self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as safetensors: the values, and a byte or so for the place of each."""
        from safetensors.torch import save_file

        tensors, notes = {}, {"format": _FORMAT}
        for name, part in self.entries.items():
            tensors[f"{name} places"] = torch.from_numpy(encode_gaps(part.index.numpy()))
            tensors[f"{name} values"] = part.values.contiguous()
            notes[f"shape {name}"] = "x".join(map(str, part.shape))
            notes[f"base {name}"] = part.base
        with replacing(path) as temporary:
            save_file(tensors, str(temporary), metadata=notes)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SparseDelta:
        """Read what :meth:`save` wrote.

        Raises
        ------
        InputError
            It is not there, no delta, or inconsistent.
        """
        tensors, notes = read_safetensors(path, _FORMAT, "a delta")
        names = [key.removesuffix(" places") for key in tensors if key.endswith(" places")]
        made = {}
        for name in names:
            code, values = tensors[f"{name} places"], tensors.get(f"{name} values")
            shape = read_shape(notes.get(f"shape {name}", ""), f"{path}, {name}")
            if code.dtype != torch.uint8 or values is None:
                raise InputError(f"{path}, {name}: places or values are missing; the file is broken")
            index = torch.from_numpy(decode_gaps(code.numpy()))
            if len(index) != len(values) or (len(index) and int(index[-1]) >= int(np.prod(shape))):
                raise InputError(
                    f"{path}, {name}: {len(index)} places and {len(values)} values do not fit the shape {shape}; the "
                    f"file is broken"
                )
            made[name] = Entries(shape, index, values, notes.get(f"base {name}", ""))
        return cls(made)


class Applied:
    """A delta on a model, until :meth:`detach` puts every bit back.

    Also a context manager. Keep it at least until the model is wanted as it was: it holds the old entries.
    """

    def __init__(self, model: nn.Module, delta: SparseDelta) -> None:
        shapes = {name: part.shape for name, part in delta.entries.items()}
        weights = named_weights(model, shapes, what="the delta")
        for name, part in delta.entries.items():
            if weights[name].dtype != part.values.dtype:
                raise InputError(
                    f"{name} is {weights[name].dtype} in the model and {part.values.dtype} in the delta; load the "
                    f"model in {str(part.values.dtype).removeprefix('torch.')}"
                )
            if part.base != weight_hash(weights[name]):
                raise InputError(
                    f"{name} has other values than the weight that the delta was made for; apply it to that model"
                )
        self._old: list[tuple[nn.Parameter, Tensor, Tensor]] = []
        with torch.no_grad():
            for name, part in delta.entries.items():
                weight = weights[name]
                index = part.index.to(weight.device)
                self._old.append((weight, index, weight.data.take(index)))
                weight.data.put_(index, part.values.to(weight.device))

    def detach(self) -> None:
        """Put the old entries back. A second call does nothing."""
        with torch.no_grad():
            for weight, index, old in self._old:
                weight.data.put_(index, old)
        self._old.clear()

    def __enter__(self) -> Applied:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        self.detach()


def weight_hash(weight: Tensor) -> str:
    """A hash of a weight's bits."""
    plain = weight.detach().cpu().contiguous().flatten().view(torch.uint8)
    return hashlib.sha256(plain.numpy().data).hexdigest()[:32]


def _tensors(model: nn.Module | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    return dict(model.named_parameters()) if isinstance(model, nn.Module) else model


def _bits(weight: Tensor) -> Tensor:
    """The flattened weight as whole numbers, so that -0.0 and NaN are compared by their bits."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return weight.detach().contiguous().flatten().view(kinds[weight.element_size()])
