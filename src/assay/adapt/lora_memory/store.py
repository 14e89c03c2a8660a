"""Keep modules as files: a PEFT adapter in a folder of its own each, and an index that tells what they hold."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from assay._core.errors import InputError
from assay._core.files import replacing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import pandas as pd
    from torch import nn

    from assay.adapt.lora_memory.sector import Sector

#: What is written in the index; raised when its form changes. Version 1, without answers and base_config, is read too.
VERSION = 2

#: Weights of each tensor that the fingerprint of a model looks at.
_LOOKED_AT = 4096

#: Parts of the names of what a configuration says on the arithmetic of a model.
_DECISIVE = ("rope", "eps", "act", "head", "window", "softcap", "scal", "norm", "multiplier")


@dataclass(frozen=True)
class Module:
    """What the index says of a memory module.

    Attributes
    ----------
    id : str
    keys : tuple of str
        Texts that the router compares a question with.
    questions : tuple of str
        What was written, for oracle routing and the audit; names of documents where documents were written.
    n_tokens, n_samples, n_parameters : int
    loss : float
        Mean over the last tenth of the steps, nats per token.
    content : str
        Hash of all that decides its weights: a module with the same one need not be written again.
    config : dict
        The :class:`WriteConfig`.
    answers : tuple of str
        Hashes of the answers to `questions`; empty where documents were written.
    """

    id: str
    keys: tuple[str, ...]
    questions: tuple[str, ...]
    n_tokens: int
    n_samples: int
    n_parameters: int
    loss: float
    content: str
    config: dict[str, Any]
    answers: tuple[str, ...] = ()


def check_answers(sector: Sector, modules: Iterable[Module]) -> None:
    """Refuse facts of which a module holds another answer: routing would find the one or the other by chance."""
    held = {
        question: (answer, module.id)
        for module in modules
        for question, answer in zip(module.questions, module.answers, strict=False)
    }
    for question, answer in zip(sector.held, sector.answers, strict=False):
        other, name = held.get(question, (answer, ""))
        if other != answer:
            raise InputError(f"a memory cannot hold two answers to one question: module {name!r} holds another one to "
                             f"{question!r:.80}; remove that module first, or leave the question out")  # fmt: skip


def fingerprint(model: nn.Module) -> str:
    """Hash of a model's shape and of a sample of each of its tensors, rounded to bfloat16.

    The same model has the same one in float32 and in bfloat16; a fine-tuned one has another. Looking at 4,096 weights
    a tensor takes a moment where all of them would take a minute for 8 billion.
    """
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        flat = tensor.detach().flatten()
        looked_at = flat[:: max(1, flat.numel() // _LOOKED_AT)]
        if looked_at.is_floating_point():
            looked_at = looked_at.to(torch.bfloat16).view(torch.int16)
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(looked_at.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]


def arithmetic(model: Any) -> dict[str, Any]:
    """Entries of a model's configuration that change what the same weights compute, such as the base of RoPE."""
    entries = model.config.get_text_config().to_dict().items()
    found = {name: value for name, value in entries if any(part in name for part in _DECISIVE)}
    plain: dict[str, Any] = json.loads(json.dumps(found, default=str))
    return plain


def _differ(one: Any, other: Any) -> bool:
    """Whether values differ; of an entry that one of them lacks nothing is known, as transformers renames some."""
    if isinstance(one, dict) and isinstance(other, dict):
        return any(_differ(one[name], other[name]) for name in one.keys() & other.keys())
    return bool(one != other)


def digest(*parts: Any) -> str:
    """Hash of what JSON can hold."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def save_adapter(peft_model: Any, name: str, folder: Path) -> None:
    """Write one adapter to ``folder/modules/name``, which appears whole or not at all.

    Each of its files is on the disk before it gets its name, so that not even a power cut leaves a part of one.
    """
    target = folder / "modules" / name
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{secrets.token_hex(4)}.{name}")
    try:
        peft_model.save_pretrained(str(temporary), selected_adapters=[name], save_embedding_layers=False)
        written = temporary / name if (temporary / name).is_dir() else temporary
        (written / "README.md").unlink(missing_ok=True)  # a model card with nothing in it
        for path in (*written.iterdir(), written):
            _to_disk(path)
        if target.is_dir():  # of an earlier save, or of a run that was ended before it stood in the index
            for path in sorted(written.iterdir()):  # file by file: at no moment is there no adapter
                path.replace(target / path.name)
            _to_disk(target)
        else:
            written.replace(target)
        _to_disk(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _to_disk(path: Path) -> None:
    """Wait until a file, or the list of a folder's files, is on the disk."""
    if path.is_dir() and os.name == "nt":  # Windows opens no folders
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_index(
    folder: Path, base: str, settings: dict[str, Any], modules: list[Module], config: dict[str, Any]
) -> None:
    """Write ``index.json``, whole or not at all."""
    document = {
        "version": VERSION,
        "base": base,
        "base_config": config,
        "settings": settings,
        "modules": [asdict(module) for module in modules],
    }
    _write_json(folder / "index.json", document)


def _write_json(path: Path, document: dict[str, Any]) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8", newline="")
        _to_disk(temporary)
    _to_disk(path.parent)


def remove_modules(folder: Path, names: Sequence[str]) -> None:
    """Take modules out of the index, then delete their files; the base model is not needed for it.

    Raises
    ------
    InputError
        The folder holds no memory, or none of its modules has one of the names.
    """
    known = [module.id for module in read_index(folder)[1]]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InputError(f"there is no module {unknown[0]!r} in {folder}; there are {', '.join(known[:20]) or 'none'}")
    document = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    document["modules"] = [entry for entry in document["modules"] if entry["id"] not in names]
    _write_json(folder / "index.json", document)
    for name in names:
        shutil.rmtree(folder / "modules" / name, ignore_errors=True)


def read_index(
    folder: Path,
    base: str | None = None,
    expected: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
) -> tuple[dict[str, Any], list[Module]]:
    """Read and check ``index.json``: the settings that decide the modules, and the modules.

    Raises
    ------
    InputError
        It is not there, broken, of another version, for another base model, or its settings are not the expected ones.
    """
    path = folder / "index.json"
    if not path.is_file():
        raise InputError(f"{folder} holds no index.json, so it is not the folder of a memory")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        version, written_for = document["version"], document["base"]
        settings = dict(document["settings"])
        written_config = dict(document.get("base_config", {}))  # version 1 had none
        modules = [_module(entry) for entry in document["modules"]]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is broken ({type(error).__name__}: {error}); write the memory again") from None
    if version not in (1, VERSION):
        raise InputError(f"{path} has version {version}; expected at most {VERSION}: it needs a newer assay")
    if base is not None and written_for != base:
        raise InputError(f"{folder} was written for another base model ({written_for[:8]}, this one is {base[:8]}); "
                         "load the model that it was written for")  # fmt: skip
    for name, value in written_config.items():
        if config is not None and name in config and _differ(value, config[name]):
            raise InputError(f"{folder} was written for another base model ({name} was {value!r}, this one has "
                             f"{config[name]!r}); load the model that it was written for")  # fmt: skip
    for module in modules:
        check_id(module.id)
    if expected is not None and settings != expected:
        name = next(name for name, value in settings.items() if value != expected.get(name))
        raise InputError(f"{folder} was written with {name}={settings[name]!r}, not {expected.get(name)!r}; "
                         "use LoRAMemory.load, or another folder")  # fmt: skip
    return settings, modules


def _module(entry: dict[str, Any]) -> Module:
    texts = {name: tuple(entry.get(name, ())) for name in ("keys", "questions", "answers")}
    return Module(**{**entry, **texts})


def to_frame(modules: Iterable[Module]) -> pd.DataFrame:
    """One row a module: id, number of facts, tokens, parameters, last loss."""
    import pandas as pd

    rows = [(m.id, len(m.questions), m.n_tokens, m.n_parameters, m.loss) for m in modules]
    return pd.DataFrame(rows, columns=["module", "n_facts", "n_tokens", "n_parameters", "loss"])


def check_id(name: str) -> str:
    """A module's id is a plain name: it becomes a folder, and a part of PEFT's names of weights."""
    if not name or not name.replace("-", "").replace("_", "").isalnum() or not name.isascii() or len(name) > 100:
        raise InputError(f"module id {name!r}: expected letters, digits, - and _ (at most 100)")
    return name
