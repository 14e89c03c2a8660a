"""Write a model's memories as a table: for every token, what each layer's memory adds.

ToL[t, L] = FFN_L(LN_L(E[t])), of shape (V, N, d) in C order, so that one token's layers are one read. The folder holds
``table.npy``, ``scales.npy`` for integers, ``bases.npy`` for low rank, and ``manifest.json``, which says what it is and
of which weights.
"""

from __future__ import annotations

import copy
import hashlib
import json
import secrets
import shutil
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from assay._core.errors import InputError
from assay._core.progress import progress_bar
from assay.nn.memoryllm.model import MemoryLlamaForCausalLM
from assay.nn.memoryllm.numbers import LARGEST, best_basis, check_even, quantise, table_bytes

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

DTYPES = ("float16", "float32", "int8", "int4")
MANIFEST, ROWS, SCALES, BASES = "manifest.json", "table.npy", "scales.npy", "bases.npy"

#: Raised when the files change.
_VERSION = 1

#: Tokens that go through a memory at a time.
_CHUNK = 1024


@dataclass(frozen=True)
class Manifest:
    """What a table is.

    Parameters
    ----------
    n_tokens, hidden_size : int
        V and d.
    layers : tuple of int
        Layers that the table holds, in the order of its second axis; the others add nothing.
    dtype : str
        "float16", "float32", "int8" or "int4".
    rank : int or None
        Rows hold this many coordinates in a basis of each layer's own.
    n_bytes : int
        Of the entries, scales and bases.
    weights : str
        Hash of what it was computed from: embedding, norms, memories.
    tokenizer : str
        Hash of the tokenizer's vocabulary; empty if none was given.
    version : int
    """

    n_tokens: int
    hidden_size: int
    layers: tuple[int, ...]
    dtype: str
    rank: int | None
    n_bytes: int
    weights: str
    tokenizer: str = ""
    version: int = _VERSION


def export_tol(
    model: MemoryLlamaForCausalLM,
    path: str | os.PathLike[str],
    dtype: str = "float16",
    rank: int | None = None,
    layers: Sequence[int] | None = None,
    *,
    tokenizer: Any = None,
) -> Manifest:
    """Compute what every layer's memory adds for every token, and write it to a new folder, whole or not at all.

    Rows are computed in float32 on the model's device, whatever the model's own dtype is.

    Parameters
    ----------
    model : MemoryLlamaForCausalLM
        MemoryLLM or Flex-MemoryLLM.
    path : str or path
        A folder that does not exist yet, or is empty.
    dtype : "float16", "float32", "int8" or "int4"
        Of the entries; the integers have a float32 scale for each token and layer.
    rank : int, optional
        Keep this many coordinates of a row, in the best basis of its layer. It saves room below V d / (V + d).
    layers : sequence of int, optional
        Write only these; the others will add nothing.
    tokenizer : transformers.PreTrainedTokenizerBase, optional
        The model's: :func:`load_with_tol` then refuses another one.

    Returns
    -------
    Manifest

    Raises
    ------
    InputError
        The model is dense, or its memories are adapted or replaced; an argument is out of its range, float16 overflows,
        or the folder is in use or has no room.

    Examples
    --------
    >>> import tempfile
    >>> from assay.nn.memoryllm import MemoryLlamaConfig
    >>> config = MemoryLlamaConfig(
    ...     vocab_size=99, hidden_size=32, intermediate_size=86, num_hidden_layers=2, num_attention_heads=4
    ... )
    >>> folder = Path(tempfile.mkdtemp()) / "table"
    >>> export_tol(MemoryLlamaForCausalLM(config), folder).n_bytes  # 99 tokens, 2 layers, 32 numbers of 2 bytes
    12672
    """
    check_exportable(model)
    config = model.config
    chosen = tuple(range(config.num_hidden_layers)) if layers is None else tuple(layers)
    _check_options(config, dtype, rank, chosen)
    n_bytes = table_bytes(config.vocab_size, len(chosen), config.hidden_size, dtype, rank)
    manifest = Manifest(
        config.vocab_size, config.hidden_size, chosen, dtype, rank, n_bytes,
        weights_hash(config, named_weights(model)), tokenizer_hash(tokenizer),
    )  # fmt: skip
    with _new_folder(Path(path), n_bytes) as folder, torch.inference_mode():
        _write(model, folder, manifest)
        text = json.dumps(asdict(manifest), indent=1)
        (folder / MANIFEST).write_text(text, encoding="utf-8")
    return manifest


def check_exportable(model: Any) -> None:
    """Refuse what no table can stand for.

    Raises
    ------
    InputError
        See :func:`export_tol`.
    """
    name = type(model).__name__
    if hasattr(model, "peft_config") and not isinstance(model, MemoryLlamaForCausalLM):
        raise InputError(f"{name} carries an adapter: merge it first (merge_and_unload), then export the table anew")
    is_dense = not isinstance(model, MemoryLlamaForCausalLM) or not model.config.has_memory
    if is_dense:
        raise InputError(
            f"{name} is dense: its FFN depends on context and cannot be tabulated; train a model with ffn_beta below 8"
        )
    if model.model.from_table:
        raise InputError(f"{name} has a table in place of its memories; export from the model that the table came from")
    parts: list[tuple[str, nn.Module, type[nn.Module]]] = [("embed_tokens", model.model.embed_tokens, nn.Embedding)]
    for number, layer in enumerate(model.model.layers):
        names = ("gate_proj", "up_proj", "down_proj")
        parts += [(f"layers.{number}.memory.{name}", getattr(layer.memory, name), nn.Linear) for name in names]
    for place, module, expected in parts:
        if type(module) is not expected:
            raise InputError(
                f"{place} is {type(module).__name__} of {type(module).__module__}, not torch's own: merge adapters "
                f"and undo replacements before the export"
            )


def _check_options(config: Any, dtype: str, rank: int | None, layers: tuple[int, ...]) -> None:
    if dtype not in DTYPES:
        raise InputError(f"dtype={dtype!r} is not one of {', '.join(DTYPES)}")
    if rank is not None and not 1 <= rank <= config.hidden_size:
        raise InputError(f"rank={rank}: expected 1 to {config.hidden_size}, the hidden size")
    if dtype == "int4":
        check_even(config.hidden_size if rank is None else rank)
    there = config.num_hidden_layers
    if not layers or len(set(layers)) != len(layers) or not all(0 <= layer < there for layer in layers):
        raise InputError(f"layers={list(layers)}: expected different numbers from 0 to {there - 1}, at least one")


def _write(model: Any, folder: Path, manifest: Manifest) -> None:
    n_tokens, n_layers = manifest.n_tokens, len(manifest.layers)
    width = manifest.rank or manifest.hidden_size
    kind: Any = {"float16": np.float16, "float32": np.float32, "int8": np.int8, "int4": np.uint8}[manifest.dtype]
    shape = (n_tokens, n_layers, width // 2 if manifest.dtype == "int4" else width)
    table = np.lib.format.open_memmap(folder / ROWS, mode="w+", dtype=kind, shape=shape)
    scales = np.zeros((n_tokens, n_layers), dtype=np.float32)
    bases = []
    embedding = model.model.embed_tokens.weight
    with progress_bar() as progress:
        task = progress.add_task("writing the table", total=n_layers)
        for column, number in enumerate(manifest.layers):
            block = in_float32(model.model.layers[number])
            basis = None
            if manifest.rank is not None:
                basis = best_basis(_gram(block, embedding), manifest.rank)
                bases.append(basis)
            for span, rows in memory_rows(block, embedding):
                kept = rows if basis is None else rows @ basis.T
                if manifest.dtype in LARGEST:
                    table[span, column], scales[span, column] = quantise(kept, manifest.dtype)
                    continue
                if manifest.dtype == "float16" and np.abs(kept).max(initial=0) > np.finfo(np.float16).max:
                    raise InputError(f"layer {number} has entries beyond float16; use dtype='float32' or 'int8'")
                table[span, column] = kept
            progress.update(task, advance=1)
    table.flush()
    if manifest.dtype in LARGEST:
        np.save(folder / SCALES, scales, allow_pickle=False)
    if bases:
        np.save(folder / BASES, np.stack(bases), allow_pickle=False)


def in_float32(layer: Any) -> Any:
    """The layer's norm and memory, in float32: copies where they have another dtype."""
    if layer.memory.up_proj.weight.dtype == torch.float32:
        return layer
    copied = copy.copy(layer)
    copied._modules = {name: copy.deepcopy(layer._modules[name]).float() for name in ("memory", "memory_norm")}
    return copied


def memory_rows(layer: Any, embedding: Tensor) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    """FFN_L(LN_L(E)) in chunks of tokens, float32."""
    for start in range(0, len(embedding), _CHUNK):
        span = slice(start, min(start + _CHUNK, len(embedding)))
        yield span, layer.remember(embedding[span].float()).cpu().numpy()


def _gram(layer: Any, embedding: Tensor) -> NDArray[np.float64]:
    total: Any = 0.0
    for _, rows in memory_rows(layer, embedding):
        exact = rows.astype(np.float64)
        total = total + exact.T @ exact
    gram: NDArray[np.float64] = total
    return gram


# ------------------------------------------------------------------------------------------------------ identity


def is_tabulated(name: str) -> bool:
    """Whether a weight of this name decides what the table holds."""
    return name == "model.embed_tokens.weight" or ".memory." in name or ".memory_norm." in name


def named_weights(model: Any) -> Iterable[tuple[str, Tensor]]:
    """The weights that decide what the table holds, by their names in a checkpoint."""
    return ((name, weight) for name, weight in model.named_parameters() if is_tabulated(name))


def weights_hash(config: Any, weights: Iterable[tuple[str, Tensor]]) -> str:
    """SHA-256 of weights by name; the same whether they are held in bfloat16, or in float32 with the same values."""
    digests = {
        name: hashlib.sha256(weight.detach().float().cpu().contiguous().numpy().tobytes()).hexdigest()
        for name, weight in weights
    }
    told = json.dumps([config.rms_norm_eps, config.hidden_act, sorted(digests.items())])
    return hashlib.sha256(told.encode()).hexdigest()


def tokenizer_hash(tokenizer: Any) -> str:
    """SHA-256 of a tokenizer's vocabulary, empty for None."""
    if tokenizer is None:
        return ""
    return hashlib.sha256(json.dumps(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()


@contextmanager
def _new_folder(target: Path, n_bytes: int) -> Iterator[Path]:
    """A temporary folder beside `target` that takes its place at the end."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target} is there already; give the name of a new or empty folder")
    if not target.absolute().parent.is_dir():
        raise InputError(f"cannot write {target}: the folder {target.absolute().parent} does not exist")
    free = shutil.disk_usage(target.absolute().parent).free
    if n_bytes > free:
        raise InputError(f"{target} will take {n_bytes:,} bytes and {free:,} are free; use int8, int4 or a rank")
    temporary = target.with_name(f".{secrets.token_hex(4)}.{target.name}")
    temporary.mkdir()
    try:
        yield temporary
        if target.is_dir():
            target.rmdir()
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
