"""Decode from a table on disk: the feed-forward weights of the memories are never loaded.

The table stays mapped: a step reads the rows of its distinct tokens, all layers of a token in one piece, before the
first layer. The system keeps the pages that were read last, as memory allows; rows of frequent tokens can be kept for
good.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import torch
from torch import Tensor, nn

from assay._core.errors import InputError
from assay.nn.memoryllm.export import (
    _VERSION,
    BASES,
    MANIFEST,
    ROWS,
    SCALES,
    Manifest,
    is_tabulated,
    tokenizer_hash,
    weights_hash,
)
from assay.nn.memoryllm.model import MemoryLlamaConfig, MemoryLlamaForCausalLM
from assay.nn.memoryllm.numbers import LARGEST, dequantise

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True)
class CacheStats:
    """What was read from a table since it was opened, and where its bytes are.

    Parameters
    ----------
    n_tokens : int
        Tokens that were asked for.
    n_rows : int
        Rows that were gathered for them: distinct tokens of each step.
    n_resident : int
        Of these, rows that were kept in memory; the others were read from the mapped file.
    resident_bytes : int
        Of the rows that are kept, and of scales and bases.
    mapped_bytes : int
        Of the mapped file.
    mapped_in_memory_bytes : int or None
        Of these, what the system holds in memory now and this process has touched; None where it does not tell.
    disk_bytes : int
        Of all files of the table.
    """

    n_tokens: int
    n_rows: int
    n_resident: int
    resident_bytes: int
    mapped_bytes: int
    mapped_in_memory_bytes: int | None
    disk_bytes: int

    def summary(self) -> str:
        """The numbers, a line each."""
        share = self.n_resident / self.n_rows if self.n_rows else 0.0
        touched = self.mapped_in_memory_bytes
        lines = [
            f"tokens {self.n_tokens}, rows gathered {self.n_rows}, of them kept in memory {share:.0%}",
            f"kept in memory   {self.resident_bytes / 2**20:9.2f} MiB",
            f"mapped           {self.mapped_bytes / 2**20:9.2f} MiB",
            f"  in memory now  {'unknown' if touched is None else f'{touched / 2**20:9.2f} MiB'}",
            f"on disk          {self.disk_bytes / 2**20:9.2f} MiB",
        ]
        return "\n".join(lines)


class Rows:
    """What the layers add for the tokens of a step, once for each distinct token.

    Parameters
    ----------
    added : (n_distinct, n_layers, d) tensor
    where : (batch, n_tokens) tensor
        Which distinct token stands where.
    column : mapping of layer to place in the second axis
    """

    def __init__(self, added: Tensor, where: Tensor, column: dict[int, int]) -> None:
        self.added, self.where, self.column = added, where, column

    def of_layer(self, layer: int) -> Tensor | None:
        """Shape (batch, n_tokens, d); None for a layer that the table leaves out."""
        place = self.column.get(layer)
        return None if place is None else self.added[:, place][self.where]


class MappedTable:
    """A table that :func:`assay.nn.memoryllm.export_tol` wrote, mapped from disk.

    It pickles and copies as its path: each copy maps the same file.

    Parameters
    ----------
    path : str or path
    resident_tokens : int or sequence of int
        Keep the rows of so many tokens in memory, those with the lowest ids first (byte-pair encodings number their
        tokens by frequency), or of these tokens.

    Raises
    ------
    InputError
        The folder is no table, its files do not fit its manifest, or tokens are not in it.
    """

    def __init__(self, path: str | os.PathLike[str], resident_tokens: int | Sequence[int] = 0) -> None:
        self.path = Path(path)
        self.manifest = read_manifest(self.path)
        self.resident_tokens = resident_tokens
        self._table = _opened(self.path / ROWS, mapped=True)
        is_integer, is_low_rank = self.manifest.dtype in LARGEST, self.manifest.rank is not None
        self._scales = _opened(self.path / SCALES) if is_integer else None
        self._bases = torch.from_numpy(_opened(self.path / BASES)) if is_low_rank else None
        self._check_shapes()
        self._column = {layer: place for place, layer in enumerate(self.manifest.layers)}
        kept = self._kept_ids(resident_tokens)
        self._slot = np.full(self.manifest.n_tokens, -1, dtype=np.int64)
        self._slot[kept] = np.arange(len(kept))
        self._resident = np.array(self._table[kept])
        self._counts = [0, 0, 0]
        self._embedding = ""
        self._seen: tuple[Any, int] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return MappedTable, (self.path, self.resident_tokens), {"_embedding": self._embedding}

    def rows(self, input_ids: Tensor, dtype: torch.dtype = torch.float32) -> Rows:
        """Gather what all layers add for these tokens.

        Parameters
        ----------
        input_ids : (batch, n_tokens) int64
            On any device; the rows come to it.
        dtype : torch.dtype

        Raises
        ------
        InputError
            An id is not in the table.
        """
        distinct, where = torch.unique(input_ids, return_inverse=True)
        ids = distinct.cpu().numpy()
        n_tokens = self.manifest.n_tokens
        if len(ids) and ids[0] < 0:  # unique sorts
            raise InputError(f"the table has {n_tokens} rows, got id {ids[0]}: expected 0 to {n_tokens - 1}")
        if len(ids) and ids[-1] >= n_tokens:
            raise InputError(
                f"the table has {n_tokens} rows, got id {ids[-1]}: the tokenizer has grown since it was exported"
            )
        added = torch.from_numpy(self._entries(ids))
        if self._bases is not None:
            added = torch.einsum("unr,nrd->und", added.float(), self._bases)
        self._counts[0] += input_ids.numel()
        return Rows(added.to(device=input_ids.device, dtype=dtype), where, self._column)

    def _entries(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        slots = self._slot[ids]
        found = slots >= 0
        self._counts[1] += len(ids)
        self._counts[2] += int(found.sum())
        if found.all():
            codes = self._resident[slots]
        else:
            codes = np.empty((len(ids), *self._table.shape[1:]), dtype=self._table.dtype)
            codes[found] = self._resident[slots[found]]
            codes[~found] = self._table[ids[~found]]
        return codes if self._scales is None else dequantise(codes, self._scales[ids], self.manifest.dtype)

    def belongs_to(self, embedding: nn.Module) -> None:
        """Remember this embedding as the one that the table was computed from."""
        weight: Any = embedding.weight
        self._embedding = _embedding_hash(weight)
        self._seen = (weight, weight._version)

    def check(self, embedding: nn.Module) -> None:
        """Refuse an embedding that an adapter or an optimiser changed since the loading: the table is stale then.

        Its numbers are read only where the tensor is another one, or torch counts a change of it.

        Raises
        ------
        InputError
            It was changed, or another one was put in its place.
        """
        if type(embedding) is not nn.Embedding:
            raise InputError(
                f"the embedding is {type(embedding).__name__}: with an adapter on it the table is stale; adapt other "
                f"layers, or merge and export anew"
            )
        weight = embedding.weight
        if self._seen is not None and self._seen[0] is weight and self._seen[1] == weight._version:
            return
        if _embedding_hash(weight) != self._embedding:
            raise InputError("the embedding was changed after the table was exported: export it anew, or freeze it")
        self._seen = (weight, weight._version)

    def stats(self) -> CacheStats:
        """What was read so far, and where the bytes are."""
        small = sum(part.nbytes for part in (self._resident, self._scales, self._bases) if part is not None)
        names = (ROWS, SCALES, BASES, MANIFEST)
        disk = sum((self.path / name).stat().st_size for name in names if (self.path / name).is_file())
        return CacheStats(
            n_tokens=self._counts[0],
            n_rows=self._counts[1],
            n_resident=self._counts[2],
            resident_bytes=small,
            mapped_bytes=self._table.nbytes,
            mapped_in_memory_bytes=_in_memory(self.path / ROWS),
            disk_bytes=disk,
        )

    def _kept_ids(self, asked: int | Sequence[int]) -> NDArray[np.int64]:
        n_tokens = self.manifest.n_tokens
        if isinstance(asked, int):
            if not 0 <= asked <= n_tokens:
                raise InputError(f"resident_tokens={asked}: expected 0 to {n_tokens}, the rows of the table")
            return np.arange(asked)
        ids = np.unique(np.asarray(asked, dtype=np.int64))
        if len(ids) and not (ids[0] >= 0 and ids[-1] < n_tokens):
            strange = ids[0] if ids[0] < 0 else ids[-1]
            raise InputError(f"resident_tokens: the table has {n_tokens} rows, got id {strange}")
        return ids

    def _check_shapes(self) -> None:
        said = self.manifest
        width = said.rank or said.hidden_size
        n_layers = len(said.layers)
        kind = {"float16": "float16", "float32": "float32", "int8": "int8", "int4": "uint8"}[said.dtype]
        expected = (said.n_tokens, n_layers, width // 2 if said.dtype == "int4" else width)
        fits = self._table.shape == expected and self._table.dtype == kind
        if self._scales is not None:
            fits = fits and self._scales.shape == expected[:2] and self._scales.dtype == np.float32
        if self._bases is not None:
            fits = fits and tuple(self._bases.shape) == (n_layers, width, said.hidden_size)
        if not fits:
            raise InputError(f"{self.path}: its files do not fit its {MANIFEST}; export the table anew")


def _embedding_hash(weight: Tensor) -> str:
    """The same for a copy, on any device and in a wider dtype."""
    return hashlib.sha256(weight.detach().float().cpu().contiguous().numpy().tobytes()).hexdigest()


def read_manifest(path: Path) -> Manifest:
    """What a folder says of its table.

    Raises
    ------
    InputError
        There is no manifest, or it is of another form.
    """
    try:
        said = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        names = {field.name for field in fields(Manifest)}
        manifest = Manifest(**{name: said[name] for name in names} | {"layers": tuple(said["layers"])})
        sizes = (manifest.n_tokens, manifest.hidden_size, *manifest.layers, manifest.rank or 1)
        known = manifest.version == _VERSION and manifest.dtype in ("float16", "float32", "int8", "int4")
        if not known or not all(isinstance(size, int) for size in sizes):
            raise ValueError
    except OSError:
        raise InputError(f"{path} holds no {MANIFEST}, so it is no table; write one with export_tol") from None
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"{path / MANIFEST} is not of the form that this version writes; export the table anew"
        ) from None
    return manifest


def _opened(path: Path, *, mapped: bool = False) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} cannot be read: {error}; export the table anew") from None
    return array


def _in_memory(path: Path) -> int | None:
    try:
        maps = psutil.Process().memory_maps(grouped=True)
    except (AttributeError, psutil.Error):  # macOS does not tell
        return None
    wanted = str(path.resolve())
    return sum(int(part.rss) for part in maps if part.path == wanted)


# ---------------------------------------------------------------------------------------------------- whole models


class MappedMemoryLlama(MemoryLlamaForCausalLM):  # type: ignore[no-untyped-call]  # transformers leaves its hook untyped
    """A model whose memories are a table on disk. Made by :func:`load_with_tol`; cannot be saved or trained into it."""

    _from_table = True
    _keys_to_ignore_on_load_unexpected = [r"\.memory\.", r"\.memory_norm\."]  # noqa: RUF012  # transformers reads it so

    def cache_stats(self) -> CacheStats:
        """What was read from the table so far, and where its bytes are."""
        table = self.model.table
        if table is None:
            raise InputError("this model has no table yet; make it with load_with_tol")
        stats: CacheStats = table.stats()
        return stats

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Refused: the folder would lack the memories."""
        raise InputError("a model with a table holds no memories to save; save the model that the table came from")


def load_with_tol(
    model_dir: str | os.PathLike[str],
    tol_path: str | os.PathLike[str],
    resident_tokens: int | Sequence[int] = 0,
    device: str | torch.device = "cpu",
) -> MappedMemoryLlama:
    """Load a model without its memories, and let it look up what they add.

    Every weight that the table was computed from is read once to compare its hash, a tensor at a time.

    Parameters
    ----------
    model_dir : str or path
        The folder of the model that the table was exported from, as ``save_pretrained`` writes it.
    tol_path : str or path
        The folder that :func:`assay.nn.memoryllm.export_tol` wrote.
    resident_tokens : int or sequence of int
        Rows to keep in memory: see :class:`MappedTable`.
    device : str or torch.device
        Of the model. The table stays where it is; gathered rows come to the device.

    Returns
    -------
    MappedMemoryLlama
        In evaluation mode. It has ``generate``, ``cache_stats()``, ``set_alpha(a)``, ``drop_layers([...])`` and
        ``active_parameters()``.

    Raises
    ------
    InputError
        The folder is no MemoryLLM, holds an adapter, or does not belong to the table.
    """
    place = Path(model_dir)
    config = _config(place)
    table = MappedTable(tol_path, resident_tokens)
    said = table.manifest
    shape = (config.vocab_size, config.hidden_size)
    if shape != (said.n_tokens, said.hidden_size):
        raise InputError(
            f"{tol_path} is of {said.n_tokens} tokens and width {said.hidden_size}, and {place} has {shape[0]} tokens "
            f"and width {shape[1]}: it was exported from another model, or the vocabulary has grown; export it anew"
        )
    if weights_hash(config, _stored_weights(place)) != said.weights:
        raise InputError(f"the weights of {place} are not those that {tol_path} was exported from; export it anew")
    _check_tokenizer(place, said, tol_path)
    model: Any = MappedMemoryLlama.from_pretrained(place, local_files_only=True, use_safetensors=True)
    loaded: MappedMemoryLlama = model.eval().to(device)
    table.belongs_to(model.model.embed_tokens)
    model.model.table = table
    return loaded


def _config(place: Path) -> MemoryLlamaConfig:
    if (place / "adapter_config.json").is_file():
        raise InputError(f"{place} holds an adapter, and the table is of the model below it: merge and export anew")
    try:
        said = json.loads((place / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise InputError(f"{place} holds no config.json, so it is not the folder of a Hugging Face model") from None
    if said.get("model_type") != MemoryLlamaConfig.model_type:
        raise InputError(f"{place} is a model of type {said.get('model_type')!r}; expected a MemoryLLM")
    config: MemoryLlamaConfig = MemoryLlamaConfig.from_pretrained(place, local_files_only=True)
    return config


def _stored_weights(place: Path) -> Iterator[tuple[str, Tensor]]:
    """The weights that decide a table, from the folder's safetensors, one at a time."""
    from safetensors import SafetensorError, safe_open

    files = sorted(place.glob("*.safetensors"))
    if not files:
        raise InputError(f"{place} holds no *.safetensors; save the model again with save_pretrained")
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118  # it is no mapping
                    if is_tabulated(name):
                        yield name, opened.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise InputError(f"{file} cannot be read: {error}") from None


def _check_tokenizer(place: Path, said: Manifest, tol_path: str | os.PathLike[str]) -> None:
    if not (place / "tokenizer.json").is_file():
        return
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(place, local_files_only=True, trust_remote_code=False)
    if len(tokenizer) > said.n_tokens:
        raise InputError(
            f"the table has {said.n_tokens} rows, got a tokenizer of {len(tokenizer)} tokens in {place}: export it anew"
        )
    if said.tokenizer and tokenizer_hash(tokenizer) != said.tokenizer:
        raise InputError(f"the tokenizer of {place} is not the one that {tol_path} was exported with; export it anew")
