"""Language models that were tuned on some passages and not on others: what they say of all of them.

The passages are 20 words each of text that the small model was not trained on (half of Python's reference; SmolLM2 may
have read all of it, members and others alike). A third is drawn at random to tune on. Blocks of passages become the
cases: in each, data sets that were used to a quarter, a half, wholly and not at all are put together.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay._core.cache import made_dir
from assay._core.errors import InputError
from assay._core.files import replacing
from assay._core.seeds import child_seed
from assay.bench import Case, Data
from assay.trials.audit.dataguard.arms import Suspect

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from assay.bench.spec import Parameter, Scale

    Array = NDArray[np.float64]

FRACTIONS = (0.0, 0.25, 0.5, 1.0)
WORDS = 20
#: Cases, and members in each; as many others are auxiliary data, and as many fill the targets up.
N_BLOCKS = {"small": 8, "smollm2": 6}
N_MEMBERS = {"small": 48, "smollm2": 52}
#: Steps, passages a step (drawn by chance: each passage about ten times, and three times) and learning rate of tuning.
TUNING = {"small": (140, 32, 1e-3), "smollm2": (118, 8, 1e-4)}
N_AUGMENT = {"small": 2, "smollm2": 1}
_LAYOUT = 1


class Said(NamedTuple):
    """Features of passages under the tuned model and under its base, members first."""

    suspect: Array
    reference: Array
    kind: str


def load_small(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    return _load("small", "a small Llama tuned on passages of Python's reference", scale)


def load_demo(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    return _load("smollm2", "SmolLM2-135M tuned on passages of Python's reference", scale)


def _load(kind: str, name: str, scale: Scale) -> Data:
    texts = passages(3 * N_BLOCKS[kind] * N_MEMBERS[kind])
    path = made_dir() / "trials" / "dataguard" / f"{_key(kind, texts)}-features.npz"
    if not path.is_file():
        if scale == "quick":
            raise InputError(
                "tuning the model takes minutes the first time; run assay try dataguard --scale standard once"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        suspect, reference = _features(kind, texts)
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, suspect=suspect, reference=reference)
    with np.load(path) as file:
        said = Said(file["suspect"], file["reference"], kind)
    return Data(name, len(texts), said)


def passages(n: int) -> list[str]:
    """Random passages of 20 words that do not overlap, in random order."""
    from assay.models.quality import held_out_text

    words = held_out_text().split()
    cut = [" ".join(words[start : start + WORDS]) for start in range(0, len(words) - WORDS + 1, WORDS)]
    texts = list(dict.fromkeys(text for text in cut if len(text) > 60))
    if len(texts) < n:
        raise InputError(f"the reference of this Python has {len(texts)} passages; the trial needs {n}")
    return [texts[i] for i in np.random.default_rng(0).permutation(len(texts))[:n]]


def _key(kind: str, texts: Sequence[str]) -> str:
    said = json.dumps([_LAYOUT, kind, list(texts), TUNING[kind], N_AUGMENT[kind]])
    return f"{kind}-{hashlib.sha256(said.encode()).hexdigest()[:16]}"


def _features(kind: str, texts: Sequence[str]) -> tuple[Array, Array]:
    from assay.audit.dataguard.language import language_features

    base, tokenizer = _base(kind)
    members = texts[: N_BLOCKS[kind] * N_MEMBERS[kind]]
    suspect = tuned(kind, members)
    found = [
        language_features(model, tokenizer, texts, n_augment=N_AUGMENT[kind], max_tokens=128, what=what)
        for what, model in (("the tuned model", suspect), ("its base", base))
    ]
    return found[0], found[1]


def _base(kind: str) -> tuple[Any, Any]:
    if kind == "smollm2":
        from assay.models import demo_lm

        return demo_lm()
    from transformers import LlamaConfig, LlamaForCausalLM

    from assay.models import small

    recipe = small.Recipe(n_steps=400, batch_size=8, n_tokens=128)
    config = LlamaConfig(
        vocab_size=recipe.vocab_size,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
    )
    made = small.train("dataguard-base", config.to_dict(), lambda: LlamaForCausalLM(config), recipe)
    return made.model, made.tokenizer


def tuned(kind: str, members: Sequence[str]) -> Any:
    """The base model, trained on passages for a few epochs."""
    import torch

    from assay.models import small

    base, tokenizer = _base(kind)
    n_steps, batch_size, learning_rate = TUNING[kind]
    ids = [tokenizer(text)["input_ids"] for text in members]
    rng = np.random.default_rng(child_seed(0, "dataguard", "tuning"))
    order = np.concatenate([rng.permutation(len(ids)) for _ in range(1 + n_steps * batch_size // len(ids))])

    def on_passages(model: Any, windows: torch.Tensor) -> torch.Tensor:
        # The recipe's windows only say which step it is: the passages of a step are drawn by their content.
        step = int(child_seed(0, str(windows[0, :8].tolist()))) % n_steps
        rows = order[step * batch_size : (step + 1) * batch_size]
        longest = max(len(ids[row]) for row in rows)
        batch = torch.zeros((len(rows), longest), dtype=torch.long)
        labels = torch.full_like(batch, -100)
        for i, row in enumerate(rows):
            batch[i, : len(ids[row])] = labels[i, : len(ids[row])] = torch.tensor(ids[row])
        logits = model(input_ids=batch, attention_mask=(labels >= 0).long()).logits[:, :-1]
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels[:, 1:].flatten())

    recipe = small.Recipe(n_steps, batch_size=1, n_tokens=16, learning_rate=learning_rate, weight_decay=0.0)
    settings = {"tuned on": _key(kind, members)}
    return small.train(f"dataguard-{kind}", settings, lambda: base, recipe, loss=on_passages).model


def blocks(said: Said, n: int, seed: int) -> Iterator[Case]:
    """Disjoint blocks of passages; in each, target data sets of which a known share are members."""
    kind = said.kind
    size, n_blocks = N_MEMBERS[kind], N_BLOCKS[kind]
    rng = np.random.default_rng(child_seed(seed, "blocks"))
    members = rng.permutation(n_blocks * size)
    others = n_blocks * size + rng.permutation(2 * n_blocks * size)
    for number in range(min(n, n_blocks)):
        used = members[number * size : (number + 1) * size]
        aux, unused = others[2 * number * size : 2 * (number + 1) * size].reshape(2, size)
        suspects = []
        for rho in FRACTIONS:
            n_used = round(rho * size)
            target = np.concatenate([used[:n_used], unused[: size - n_used]])
            suspects.append(
                Suspect(
                    said.suspect[target],
                    said.suspect[aux],
                    said.reference[target],
                    said.reference[aux],
                    # A threshold needs some loss of members: those of the other blocks, which favours that baseline.
                    said.suspect[np.setdiff1d(members, used)],
                    said.suspect[np.setdiff1d(others, np.concatenate([aux, unused]))],
                )
            )
        yield Case(f"block {number + 1}", suspects, FRACTIONS)
