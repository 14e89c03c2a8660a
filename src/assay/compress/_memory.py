"""Give memory back to the system while a model is made smaller: weights that were replaced, and hidden states."""

from __future__ import annotations

import ctypes
import mmap
import sys
import tempfile
import weakref
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, overload

import torch

from assay._core.errors import InputError
from assay.compress._blocks import Call, after, run_block, states_of
from assay.compress._layers import dense_weight, replace_layer

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator

    from torch import Tensor, nn

_PAGEOUT = 21  # MADV_PAGEOUT of Linux: reclaim these pages; what was written to them is kept
_PAGE = mmap.PAGESIZE


# ---------------------------------------------------------------------------------------------------------- weights


def let_go(weight: Tensor) -> None:
    """Tell the system that a dense weight is not needed in memory any more; its values stay as they are.

    A weight that is mapped from a file stays resident for as long as any other weight of the file is in use. Its pages
    can be read again, so the system may drop them; elsewhere than on Linux it does so when memory runs short.
    """
    if not sys.platform.startswith("linux") or weight.device.type != "cpu" or not weight.numel():
        return
    storage = weight.untyped_storage()
    start = storage.data_ptr() + weight.storage_offset() * weight.element_size()
    end = start + weight.numel() * weight.element_size()
    if weight.is_contiguous() or weight.T.is_contiguous():  # else the weight is not all of what lies between
        first, last = -(-start // _PAGE) * _PAGE, end // _PAGE * _PAGE
        if last > first and _is_mapped_from_a_file(first, last):
            _libc().madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _PAGEOUT)


def put(model: nn.Module, name: str, layer: nn.Module) -> None:
    """Put a layer in the place of a dense one, whose weight is let go."""
    weight, _ = dense_weight(model.get_submodule(name))
    replace_layer(model, name, layer)
    let_go(weight)


def _is_mapped_from_a_file(first: int, last: int) -> bool:
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return False
    for line in lines:
        span, _, _, _, inode = line.split(maxsplit=5)[:5]
        low, high = (int(part, 16) for part in span.split("-"))
        if low <= first < high:
            return last <= high and inode != "0"
    return False


def trim() -> None:
    """Return what was freed to the system: the allocator keeps it else, in holes that later tensors may not fit."""
    if sys.platform.startswith("linux") and hasattr(_libc(), "malloc_trim"):  # not in every C library
        _libc().malloc_trim(ctypes.c_size_t(0))


@cache
def _libc() -> Any:
    return ctypes.CDLL(None)


# ---------------------------------------------------------------------------------------------------- hidden states


class _Place(NamedTuple):
    offset: int
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


class Spilled(Sequence["Tensor"]):
    """Tensors in a temporary file: each is read into memory of its own when it is asked for, with the same values.

    Parameters
    ----------
    folder : path, optional
        Where the file is made; it has no name there and goes with this object. None: the system's temporary folder.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = folder
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # open for as long as the object lives
        weakref.finalize(self, self._file.close)
        self._places: list[_Place] = []
        self._end = 0

    def append(self, tensor: Tensor) -> None:
        """Write a tensor behind the others.

        Raises
        ------
        InputError
            The disk is full.
        """
        plain = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        try:
            self._file.seek(self._end)
            self._file.write(plain.numpy().data)
            self._file.flush()
        except OSError as error:
            where = self.folder or tempfile.gettempdir()
            raise InputError(
                f"{where}: hidden states of the calibration data cannot be written there ({error.strerror}); give "
                f"fewer sequences, free space, or set TMPDIR to a folder with more"
            ) from None
        self._places.append(_Place(self._end, tensor.shape, tensor.dtype, tensor.device))
        self._end += plain.numel()

    @overload
    def __getitem__(self, number: int) -> Tensor: ...
    @overload
    def __getitem__(self, number: slice) -> list[Tensor]: ...
    def __getitem__(self, number: int | slice) -> Tensor | list[Tensor]:
        if isinstance(number, slice):
            return [self[n] for n in range(*number.indices(len(self)))]
        place = self._places[number]
        made = torch.empty(place.shape, dtype=place.dtype)
        self._file.seek(place.offset)
        self._file.readinto(made.flatten().view(torch.uint8).numpy().data)
        return made.to(place.device)

    def __len__(self) -> int:
        return len(self._places)


class SpilledCalls(Sequence[Call]):
    """Calls of a block whose hidden states are in a temporary file.

    Parameters
    ----------
    states : Spilled
    others : list of Call
        The same calls without their hidden states.
    """

    def __init__(self, states: Spilled, others: list[Call]) -> None:
        self.states, self.others = states, others

    @classmethod
    def of(cls, calls: Iterable[Call], folder: str | os.PathLike[str] | None = None) -> Self:
        """Take calls one after the other; arguments that are equal from call to call are held once."""
        made = cls(Spilled(folder), [])
        for call in calls:
            made.states.append(states_of(call))
            bare = after(call, None)
            made.others.append(_sharing(bare, made.others[-1]) if made.others else bare)
        return made

    @overload
    def __getitem__(self, number: int) -> Call: ...
    @overload
    def __getitem__(self, number: slice) -> list[Call]: ...
    def __getitem__(self, number: int | slice) -> Call | list[Call]:
        if isinstance(number, slice):
            return [self[n] for n in range(*number.indices(len(self)))]
        return after(self.others[number], self.states[number])

    def __iter__(self) -> Iterator[Call]:
        return (self[number] for number in range(len(self)))

    def __len__(self) -> int:
        return len(self.others)

    def with_states(self, states: Spilled) -> SpilledCalls:
        """The calls of the next block, for the outputs of this one."""
        return SpilledCalls(states, self.others)


@torch.no_grad()
def spilled_outputs(block: nn.Module, calls: Iterable[Call], folder: str | os.PathLike[str] | None = None) -> Spilled:
    """Hidden states behind a block."""
    made = Spilled(folder)
    for call in calls:
        made.append(run_block(block, call))
    return made


def _sharing(call: Call, known: Call) -> Call:
    if len(call.args) != len(known.args):
        return call
    kwargs = {name: _shared(value, known.kwargs.get(name)) for name, value in call.kwargs.items()}
    return Call(tuple(map(_shared, call.args, known.args)), kwargs)


def _shared(value: Any, known: Any) -> Any:
    if isinstance(value, torch.Tensor) and isinstance(known, torch.Tensor):
        is_same = value.dtype == known.dtype and value.device == known.device and torch.equal(value, known)
        return known if is_same else value
    if type(value) is tuple and type(known) is tuple and len(value) == len(known):
        return tuple(map(_shared, value, known))
    return value
