"""Train a small language model on the spot: one recipe for every trial that needs a model of its own.

The text is prose that every installation of Python holds, the tokenizer byte-level BPE trained on it, the loop AdamW
with warm-up and cosine decay. What was trained is kept below the cache folder under a hash of its configuration, and an
interrupted training goes on where it stopped, to the same weights.

>>> from transformers import LlamaConfig, LlamaForCausalLM  # doctest: +SKIP
>>> recipe = Recipe(n_steps=400)
>>> config = LlamaConfig(vocab_size=recipe.vocab_size, hidden_size=128, num_hidden_layers=4)  # doctest: +SKIP
>>> small = train("llama", config.to_dict(), lambda: LlamaForCausalLM(config), recipe)  # doctest: +SKIP
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
import sysconfig
import time
import warnings
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from assay._core.cache import made_dir
from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.files import replacing, write_text
from assay._core.progress import progress_bar
from assay._core.seeds import child_seed
from assay.models.quality import calibration_text, held_out_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch
    from numpy.typing import NDArray
    from torch import Tensor, nn

#: Raised when the loop, the text or the tokenizer changes: what was trained before is then trained anew.
_LAYOUT = 1

#: Seconds between two checkpoints; a killed run loses no more.
CHECKPOINT_EVERY = 30.0

END_OF_TEXT = "<|endoftext|>"


@dataclass(frozen=True)
class Recipe:
    """How a small model is trained.

    Parameters
    ----------
    n_steps : int
        Steps of the optimiser.
    batch_size : int
        Windows a step.
    n_tokens : int
        Tokens of a window.
    learning_rate : float
        At its peak, after a twentieth of the steps; it falls to a tenth of this along a cosine.
    weight_decay : float
        On matrices; vectors are not decayed.
    vocab_size : int
        Tokens of the tokenizer, from 260.
    seed : int
        Of the weights, of the windows and of whatever the loss draws.
    """

    n_steps: int
    batch_size: int = 16
    n_tokens: int = 256
    learning_rate: float = 1e-3
    weight_decay: float = 0.1
    vocab_size: int = 4096
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("n_steps", "batch_size", "n_tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)}: expected 1 or more")
        if self.vocab_size < 260:
            raise InputError(
                f"vocab_size={self.vocab_size}: expected 260 or more, one for every byte and some to spare"
            )
        if not self.learning_rate > 0:
            raise InputError(f"learning_rate={self.learning_rate}: expected a positive number")


@dataclass(frozen=True)
class Small:
    """A model that was trained, its tokenizer, and how the training went.

    Parameters
    ----------
    model : nn.Module
        In evaluation mode.
    tokenizer : transformers.PreTrainedTokenizerFast
    losses : (n_steps,) float64
        Loss of every step.
    """

    model: nn.Module
    tokenizer: Any
    losses: NDArray[np.float64]


# ----------------------------------------------------------------------------------------------- text and tokenizer


@cache
def training_text() -> str:
    """English about Python: docstrings of its standard library and half its reference, about 1.7 million characters.

    It shares no paragraph with :func:`assay.models.quality.held_out_text`, on which models are measured. It belongs to
    the installed Python, so figures compare within a version of it.
    """
    version = sysconfig.get_python_version()
    path = _folder() / f"text-{version}-{_LAYOUT}.txt"
    if not path.is_file():
        texts = [*_docstrings(Path(sysconfig.get_path("stdlib"))), calibration_text()]
        held_out = {_essence(paragraph) for paragraph in held_out_text().split("\n\n")}
        paragraphs = "\n\n".join(texts).split("\n\n")
        write_text(path, "\n\n".join(paragraph for paragraph in paragraphs if _essence(paragraph) not in held_out))
    return path.read_text(encoding="utf-8")


def _docstrings(folder: Path) -> list[str]:
    """Every docstring of more than a line in the modules below `folder`, each once, in the order of the files."""
    found: dict[str, None] = {}
    for path in sorted(folder.rglob("*.py")):
        if {"site-packages", "dist-packages", "test", "tests", "idlelib"} & set(path.relative_to(folder).parts):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # old escapes in other people's strings
                tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                if "\n" in text:
                    found[text] = None
    return list(found)


def _essence(paragraph: str) -> str:
    return " ".join(paragraph.split())


def tokenizer(vocab_size: int = 4096) -> Any:
    """Byte-level BPE trained on :func:`training_text`; every text comes back from its tokens.

    Returns
    -------
    transformers.PreTrainedTokenizerFast
        ``<|endoftext|>`` is its token for the end, for the beginning and for padding, with id 0.
    """
    transformers = need("transformers", extra="lm", purpose="training a small language model")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    path = _folder() / f"tokenizer-{vocab_size}-{_digest(training_text())}.json"
    if not path.is_file():
        fresh = Tokenizer(models.BPE())
        fresh.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        fresh.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[END_OF_TEXT],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        fresh.train_from_iterator(training_text().split("\n\n"), trainer)
        write_text(path, fresh.to_str())
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_file(str(path)),
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
    )


@cache
def token_ids(vocab_size: int = 4096) -> NDArray[np.int64]:
    """:func:`training_text` as tokens of :func:`tokenizer`, shape (n_tokens,)."""
    return _read_with(tokenizer(vocab_size))


def _read_with(reader: Any) -> NDArray[np.int64]:
    ids = reader(training_text(), add_special_tokens=False, verbose=False)["input_ids"]
    return np.asarray(ids, dtype=np.int64)


# -------------------------------------------------------------------------------------------------------- training


def next_token_loss(model: nn.Module, ids: Tensor) -> Tensor:
    """Mean surprise at each next token, nats; the model returns logits or an object that has them."""
    from torch.nn.functional import cross_entropy

    output = model(ids)
    logits = getattr(output, "logits", output)
    return cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def train(
    name: str,
    config: Mapping[str, Any],
    build: Callable[[], nn.Module],
    recipe: Recipe,
    *,
    loss: Callable[[nn.Module, Tensor], Tensor] = next_token_loss,
    device: str | torch.device = "cpu",
    shared_tokenizer: Any = None,
) -> Small:
    """Train a model, or load it if the same one was trained before.

    Parameters
    ----------
    name : str
        What it is, for the progress bar and as part of the file's name: letters, digits and hyphens.
    config : mapping that JSON can hold
        All that tells this model and its loss from others of the same recipe: with the recipe it names the file.
    build : callable
        Returns the model, freshly initialised from torch's global generator, which is seeded by the recipe.
    recipe : Recipe
    loss : callable
        ``loss(model, ids)`` with ids of shape (batch_size, n_tokens); it may draw from torch's global generator, which
        is seeded anew at every step.
    device : str or torch.device
    shared_tokenizer : transformers.PreTrainedTokenizerFast, optional
        Of another model, for a model that must speak its tokens, such as a draft of it: the text is read with it, and
        the recipe's `vocab_size` is not used.

    Returns
    -------
    Small

    Raises
    ------
    InputError
        `config` is nothing that JSON can hold, the loss is no longer a number, `shared_tokenizer` is not a fast
        tokenizer, or the extra ``lm`` is not installed.
    """
    need("torch", extra="lm", purpose="training a small language model")
    import torch
    from filelock import FileLock
    from safetensors.torch import load_model, save_model

    if not name.replace("-", "").isalnum():
        raise InputError(f"name={name!r}: expected letters, digits and hyphens")
    with torch.random.fork_rng():
        torch.manual_seed(recipe.seed)
        model = build().to(device)
    path = _folder() / f"{name}-{_key(name, config, recipe, shared_tokenizer)}.safetensors"
    curve = path.with_suffix(".json")
    with FileLock(path.with_suffix(".lock")):  # another process may be training the same model: it is waited for
        if not (path.is_file() and curve.is_file()):
            ids = token_ids(recipe.vocab_size) if shared_tokenizer is None else _read_with(shared_tokenizer)
            losses = _run(name, model, ids, recipe, loss, path.with_suffix(".part"))
            with replacing(path) as temporary:
                save_model(model, str(temporary))
            write_text(curve, json.dumps({"config": dict(config), "recipe": asdict(recipe), "losses": losses}))
            path.with_suffix(".part").unlink(missing_ok=True)
    load_model(model, path, device=str(device))
    found = json.loads(curve.read_text(encoding="utf-8"))
    return Small(model.eval(), shared_tokenizer or tokenizer(recipe.vocab_size), np.asarray(found["losses"]))


def _run(
    name: str,
    model: nn.Module,
    ids: NDArray[np.int64],
    recipe: Recipe,
    loss: Callable[[nn.Module, Tensor], Tensor],
    checkpoint: Path,
) -> list[float]:
    """Take the steps that are still to take; return the loss of all of them."""
    import torch

    device = next(model.parameters()).device
    matrices = [weight for weight in model.parameters() if weight.ndim > 1]
    vectors = [weight for weight in model.parameters() if weight.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=recipe.learning_rate,
        betas=(0.9, 0.95),
    )
    losses = _resume(checkpoint, model, optimizer)
    model.train()
    saved = time.monotonic()
    with progress_bar() as progress, torch.random.fork_rng():
        task = progress.add_task(f"training {name}", total=recipe.n_steps, completed=len(losses))
        for step in range(len(losses), recipe.n_steps):
            seed = child_seed(recipe.seed, "step", step)  # of the step alone: a resumed run draws the same
            torch.manual_seed(seed)
            for group in optimizer.param_groups:
                group["lr"] = recipe.learning_rate * _schedule(step, recipe.n_steps)
            value = loss(model, torch.from_numpy(_windows(ids, recipe, seed)).to(device))
            optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(value.item())
            if not math.isfinite(losses[-1]):
                raise InputError(
                    f"the loss of {name} is {losses[-1]} at step {step + 1}; try a learning rate below "
                    f"{recipe.learning_rate:g}"
                )
            progress.update(task, completed=step + 1, description=f"training {name}, loss {losses[-1]:.2f}")
            if time.monotonic() - saved > CHECKPOINT_EVERY:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
                with replacing(checkpoint) as temporary:
                    torch.save(state, temporary)
                saved = time.monotonic()
    return losses


def _resume(checkpoint: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    import torch

    if not checkpoint.is_file():
        return []
    state = torch.load(checkpoint, weights_only=True, map_location=next(model.parameters()).device)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return list(state["losses"])


def _windows(ids: NDArray[np.int64], recipe: Recipe, seed: int) -> NDArray[np.int64]:
    if len(ids) < recipe.n_tokens:
        raise InputError(f"n_tokens={recipe.n_tokens}: the text has {len(ids)} tokens; ask for shorter windows")
    starts = np.random.default_rng(seed).integers(len(ids) - recipe.n_tokens + 1, size=recipe.batch_size)
    windows: NDArray[np.int64] = ids[starts[:, None] + np.arange(recipe.n_tokens)]
    return windows


def _schedule(step: int, n_steps: int) -> float:
    """Share of the peak learning rate: linear warm-up, then a cosine to a tenth."""
    warm_up = max(1, n_steps // 20)
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm_up) / max(1, n_steps - warm_up)))


def _key(name: str, config: Mapping[str, Any], recipe: Recipe, shared_tokenizer: Any = None) -> str:
    told = [_LAYOUT, name, config, asdict(recipe), _digest(training_text())]
    if shared_tokenizer is not None:
        backend = getattr(shared_tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise InputError(f"shared_tokenizer of {name} is {type(shared_tokenizer).__name__}; give a fast tokenizer")
        state = json.loads(backend.to_str()) | {"padding": None, "truncation": None}  # these are its last caller's
        told.append(_digest(json.dumps(state, sort_keys=True)))
    try:
        said = json.dumps(told, sort_keys=True)
    except TypeError as error:
        raise InputError(f"config of {name}: {error}; give what JSON can hold, as to_dict() does") from None
    return _digest(said)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _folder() -> Path:
    folder = made_dir() / "models" / "small"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
