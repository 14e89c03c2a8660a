"""Keep modules as files: a PEFT adapter in a folder of its own each, and an index that tells what they hold."""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from assay._core.errors import InputError
from assay._core.files import write_text

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pandas as pd
    from torch import nn

#: What is written in the index; raised when its form changes.
VERSION = 1

#: Weights of each tensor that the fingerprint of a model looks at.
_LOOKED_AT = 4096


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


def digest(*parts: Any) -> str:
    """Hash of what JSON can hold."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def save_adapter(peft_model: Any, name: str, folder: Path) -> None:
    """Write one adapter to ``folder/modules/name``, which appears whole or not at all."""
    target = folder / "modules" / name
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary, old = (target.with_name(f".{secrets.token_hex(4)}.{name}") for _ in range(2))
    try:
        peft_model.save_pretrained(str(temporary), selected_adapters=[name], save_embedding_layers=False)
        written = temporary / name if (temporary / name).is_dir() else temporary
        (written / "README.md").unlink(missing_ok=True)  # a model card with nothing in it
        if target.exists():  # of an earlier save, or of a run that was ended before it stood in the index
            target.replace(old)
        written.replace(target)
    finally:
        for left in (temporary, old):
            shutil.rmtree(left, ignore_errors=True)


def write_index(folder: Path, base: str, settings: dict[str, Any], modules: list[Module]) -> None:
    """Write ``index.json``, whole or not at all."""
    document = {
        "version": VERSION,
        "base": base,
        "settings": settings,
        "modules": [asdict(module) for module in modules],
    }
    write_text(folder / "index.json", json.dumps(document, ensure_ascii=False, indent=1) + "\n")


def read_index(
    folder: Path, base: str | None = None, expected: dict[str, Any] | None = None
) -> tuple[dict[str, Any], list[Module]]:
    """Read and check ``index.json``: the settings that decide the modules, and the modules.

    Raises
    ------
    InputError
        It is not there, broken, of another version, for another base model, an adapter that it names is missing, or
        its settings are not the expected ones.
    """
    path = folder / "index.json"
    if not path.is_file():
        raise InputError(f"{folder} holds no index.json, so it is not the folder of a memory")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        version, written_for = document["version"], document["base"]
        settings = dict(document["settings"])
        modules = [_module(entry) for entry in document["modules"]]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is broken ({type(error).__name__}: {error}); write the memory again") from None
    if version != VERSION:
        raise InputError(f"{path} has version {version}; expected {VERSION}")
    if base is not None and written_for != base:
        raise InputError(f"{folder} was written for another base model ({written_for[:8]}, this one is {base[:8]}); "
                         "load the model that it was written for")  # fmt: skip
    for module in modules:
        check_id(module.id)
        if not (folder / "modules" / module.id / "adapter_model.safetensors").is_file():
            raise InputError(f"{path} names the module {module.id!r}, but its adapter is missing; write it again")
    if expected is not None and settings != expected:
        name = next(name for name, value in settings.items() if value != expected.get(name))
        raise InputError(f"{folder} was written with {name}={settings[name]!r}, not {expected.get(name)!r}; "
                         "use LoRAMemory.load, or another folder")  # fmt: skip
    return settings, modules


def _module(entry: dict[str, Any]) -> Module:
    fields = dict(entry)
    return Module(**{**fields, "keys": tuple(fields["keys"]), "questions": tuple(fields["questions"])})


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
