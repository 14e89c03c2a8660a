"""Fit the tolerance to a target model and its sampling settings: once, from a few hundred positions of its own text."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch

from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.files import replacing, write_text
from assay._core.progress import progress_bar
from assay._core.seeds import child_seed
from assay.decode.arc_decode.reader import Reader, Sampling, check_model, check_prompts, plain_settings
from assay.decode.arc_decode.scores import estimated_shift, inverse_deviation, js_topk, raw_distances

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

#: Share of the largest values that is dropped before a quantile is taken (released code).
TRIMMED = 0.005

#: Fewer positions than this say nothing about a quantile of 95 %.
FEWEST = 40

_SETTINGS, _WEIGHTS = "calibration.json", "calibration.safetensors"


@dataclass(frozen=True)
class ArcCalibration:
    """What the tolerance knows about a target model.

    Parameters
    ----------
    c_e, c_l : float
        Nats of shift for each unit of squared embedding distance, and of squared log-probability distance.
    gamma : float
        The shift at which tolerance ends, nats.
    delta : float
        Share of calibration positions whose shift each of the two estimates may be below.
    n_top : int
        K of the Jensen-Shannon divergence.
    temperature, top_k, top_p : float, int, float
        How the model was sampled.
    vocabulary_size : int
    embedding_hash : str
        Of the input embeddings, so that a calibration is not used with another model.
    n : int
        Positions it was fitted to.
    median_shift : float
        Median Jensen-Shannon divergence of the calibration positions, nats.
    inverse_std : (d,) float tensor
        Diagonal of W.
    """

    c_e: float
    c_l: float
    gamma: float
    delta: float
    n_top: int
    temperature: float
    top_k: int
    top_p: float
    vocabulary_size: int
    embedding_hash: str
    n: int
    median_shift: float
    inverse_std: Tensor = field(repr=False)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a folder with ``calibration.json`` and ``calibration.safetensors``; it is made where it is missing."""
        from safetensors.torch import save_file

        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        with replacing(target / _WEIGHTS) as temporary:
            save_file({"inverse_std": self.inverse_std.contiguous()}, temporary)
        settings = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "inverse_std"}
        write_text(target / _SETTINGS, json.dumps(settings, indent=2) + "\n")

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> ArcCalibration:
        """Read what :meth:`save` wrote.

        Raises
        ------
        InputError
            The folder holds no calibration, or a broken one.
        """
        need("torch", extra="lm", purpose="reading a calibration")
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        source = Path(folder)
        if not (source / _SETTINGS).is_file():
            raise InputError(f"{source} holds no {_SETTINGS}; make one with `assay use arc-decode calibrate`")
        try:
            settings = json.loads((source / _SETTINGS).read_text(encoding="utf-8"))
            made = cls(**settings, inverse_std=load_file(source / _WEIGHTS)["inverse_std"])
            numbers = [float(getattr(made, name)) for name in ("c_e", "c_l", "gamma", "delta", "temperature", "top_p")]
        except (OSError, ValueError, TypeError, KeyError, SafetensorError) as error:
            raise InputError(f"{source}: not a calibration that can be read ({error}); calibrate again") from None
        if not all(np.isfinite(numbers)) or made.gamma <= 0:
            raise InputError(f"{source}: gamma is {made.gamma}; expected finite numbers and gamma above 0")
        return made

    def check(self, model: Any, sampling: Sampling) -> None:
        """Refuse another model, or other settings, than it was made for.

        Raises
        ------
        InputError
        """
        embedding = model.get_input_embeddings().weight
        if len(embedding) != self.vocabulary_size or embedding_hash(embedding) != self.embedding_hash:
            raise InputError(
                "the calibration was made for another model (its input embeddings differ); calibrate this one, or pass "
                "force=True"
            )
        for name in ("temperature", "top_k", "top_p"):
            wanted, found = getattr(sampling, name), getattr(self, name)
            if wanted != found:
                raise InputError(
                    f"the calibration was made for {name}={found:g} and {name}={wanted:g} is asked for; calibrate at "
                    f"these settings, or pass force=True"
                )

    def shift(self, p: Tensor, x: Tensor, embedding: Tensor) -> Tensor:
        """U, the estimated shift of tokens x (n, k) at positions with probabilities p (n, n_vocabulary), nats."""
        by_embedding, by_logit = raw_distances(p, x, embedding, self.inverse_std.to(p.device))
        return estimated_shift(by_embedding, by_logit, self.c_e, self.c_l)

    def summary(self) -> str:
        """The fit in three lines."""
        return (
            f"{self.n} positions at temperature {self.temperature:g}, top-k {self.top_k}, top-p {self.top_p:g}\n"
            f"c_e {self.c_e:.3g}, c_l {self.c_l:.3g}, gamma {self.gamma:.3f} nats (delta {self.delta:g})\n"
            f"median shift of a runner-up {self.median_shift:.3f} nats; a token with gamma or more is never added"
        )


class Fitted(NamedTuple):
    """The three numbers that calibration finds."""

    c_e: float
    c_l: float
    gamma: float


def trimmed_quantile(values: NDArray[np.float64], z: float) -> float:
    """Quantile z of what is left when the largest half per cent (rounded down) is dropped."""
    kept = np.sort(values)[: len(values) - int(TRIMMED * len(values))]
    return float(np.quantile(kept, z))


def fit(
    js: NDArray[np.float64], by_embedding: NDArray[np.float64], by_logit: NDArray[np.float64], delta: float
) -> Fitted:
    """Scale both distances so that all but `delta` of the shifts lie below, and find where tolerance ends (card, D).

    Parameters
    ----------
    js, by_embedding, by_logit : (n,) float64
    delta : float

    Returns
    -------
    Fitted

    Raises
    ------
    InputError
        There are too few positions, or nothing ever shifts.

    Examples
    --------
    >>> shift = np.linspace(0.1, 0.5, 100)
    >>> fit(shift, 2 * shift, 4 * shift, delta=0.05).c_e
    0.5
    """
    if len(js) < FEWEST:
        raise InputError(f"{len(js)} positions are too few to calibrate on; give prompts for {FEWEST} or more")
    constants = []
    for raw in (by_embedding, by_logit):
        is_there = raw >= 1e-20
        constants.append(trimmed_quantile(js[is_there] / raw[is_there], 1 - delta) if is_there.any() else 0.0)
    c_e, c_l = constants
    gamma = trimmed_quantile(np.minimum(c_e * by_embedding, c_l * by_logit), 1 - delta)
    if not gamma > 0:
        raise InputError("gamma is 0: no candidate ever shifts the next step; there is nothing to calibrate")
    return Fitted(c_e, c_l, gamma)


class Measured(NamedTuple):
    """Shifts at positions of text, each (n,) float64: of the next step, and by the two distances."""

    js: NDArray[np.float64]
    by_embedding: NDArray[np.float64]
    by_logit: NDArray[np.float64]


def measure(
    model: Any,
    texts: Sequence[tuple[Tensor, int]],
    sampling: Sampling,
    inverse_std: Tensor,
    *,
    n_top: int = 128,
    candidate: Literal["runner-up", "uniform"] = "runner-up",
    seed: int = 0,
) -> Measured:
    """How far the next step shifts when a candidate stands in for the favourite, at every written position.

    Parameters
    ----------
    texts : sequence of (ids, start)
        Token ids (length,) and the place at which the model's own writing starts.
    candidate : "runner-up" or "uniform"
        The second most probable token (released code), or one of the `n_top` most probable (paper).
    """
    embedding = model.get_input_embeddings().weight.detach()
    rng = np.random.default_rng(child_seed(seed, "candidates"))
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    with progress_bar() as bar, torch.inference_mode():
        task = bar.add_task("reading the next steps", total=len(texts))
        for ids, start in texts:
            reader = Reader(model)
            logits = reader.read_all(ids)[start - 1 : -1]
            prefixes = [ids[:place] for place in range(start, len(ids))]
            p = sampling.probabilities(logits, prefixes)
            best = p.topk(min(n_top, p.shape[-1])).indices
            if candidate == "runner-up":
                chosen = best[:, 1]
            else:
                column = torch.from_numpy(rng.integers(1, best.shape[1], size=len(best))).to(best.device)
                chosen = best.gather(1, column[:, None])[:, 0]
            # What top-k or top-p ruled out is never accepted.
            open_ones = (p.gather(1, chosen[:, None])[:, 0] > 0).nonzero()[:, 0].tolist()
            if open_ones:
                p, favourite, chosen = p[open_ones], best[open_ones, 0], chosen[open_ones]
                js = shift_between(reader, ids, [start + i for i in open_ones], chosen, favourite, sampling, n_top)
                raw_e, raw_l = raw_distances(p, chosen[:, None], embedding, inverse_std.to(p.device))
                found.append((js, raw_e[:, 0], raw_l[:, 0]))
            bar.advance(task)
    if not found:
        raise InputError("no position has a second candidate: the settings leave one token only; nothing to calibrate")
    return Measured(*(torch.cat(part).cpu().double().numpy() for part in zip(*found, strict=True)))


def shift_between(
    reader: Reader,
    ids: Tensor,
    places: Sequence[int],
    x: Tensor,
    favourite: Tensor,
    sampling: Sampling,
    n_top: int,
) -> Tensor:
    """Jensen-Shannon divergence (n,) between the next steps after x and after the favourite at each place.

    The reader holds the text; all 2 n next steps are read in one forward pass.
    """
    tokens = [*x.tolist(), *favourite.tolist()]
    logits = reader.read_instead(tokens, [*places, *places])
    prefixes = None
    if sampling.processors:
        prefixes = [torch.cat([ids[:k], ids.new_tensor([t])]) for k, t in zip([*places, *places], tokens, strict=True)]
    p = sampling.probabilities(logits, prefixes)
    return js_topk(p[: len(places)], p[len(places) :], n_top)


def calibrate(
    model: Any,
    prompts: Sequence[Tensor],
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    n_tokens: int = 32,
    delta: float = 0.05,
    n_top: int = 128,
    candidate: Literal["runner-up", "uniform"] = "runner-up",
    seed: int = 0,
) -> ArcCalibration:
    """Fit the tolerance to a model: it continues the prompts, and at each of its tokens the next step is read twice.

    Parameters
    ----------
    model : transformers.PreTrainedModel
    prompts : sequence of (length,) int64 tensors
        Token ids of prompts like those that will be asked. 200 positions are enough to start, thousands are better.
    temperature, top_k, top_p : float, int, float
        As the model will be sampled: a calibration is for these settings.
    n_tokens : int
        Positions a prompt.
    delta : float
        Share of positions whose shift an estimate may be below.
    n_top : int
        K of the divergence.
    candidate : "runner-up" or "uniform"
        What stands in for the favourite: the second most probable token, or any of the `n_top` most probable.
    seed : int

    Returns
    -------
    ArcCalibration

    Raises
    ------
    InputError
        The temperature is 0, another argument is out of its range, a prompt is empty or holds an unknown token, there
        are too few positions, or the model is not a decoder with full attention.
    """
    check_model(model, "model")
    sampling = Sampling(temperature, top_k, top_p)
    if temperature == 0:
        raise InputError("temperature=0: greedy decoding accepts by exact match and has no tolerance to calibrate")
    if not 0 < delta < 1:
        raise InputError(f"delta={delta}: expected between 0 and 1")
    if candidate not in ("runner-up", "uniform"):
        raise InputError(f"candidate={candidate!r}: expected 'runner-up' or 'uniform'")
    if n_tokens < 1:
        raise InputError(f"n_tokens={n_tokens}: expected 1 or more")
    if n_top < 2:
        raise InputError(f"n_top={n_top}: expected 2 or more, so that there is a favourite and a candidate")
    check_prompts(model, prompts)
    embedding = model.get_input_embeddings().weight.detach()
    inverse_std = inverse_deviation(embedding)
    texts = roll(model, prompts, sampling, n_tokens, seed)
    found = measure(model, texts, sampling, inverse_std, n_top=n_top, candidate=candidate, seed=seed)
    fitted = fit(*found, delta)
    return ArcCalibration(
        *fitted,
        delta,
        n_top,
        temperature,
        top_k,
        top_p,
        len(embedding),
        embedding_hash(embedding),
        len(found.js),
        float(np.median(found.js)),
        inverse_std.cpu(),
    )


def roll(
    model: Any, prompts: Sequence[Tensor], sampling: Sampling, n_tokens: int, seed: int, batch: int = 16
) -> list[tuple[Tensor, int]]:
    """Let the model continue each prompt by at most `n_tokens`, plainly sampled; return (ids, length of the prompt)."""
    texts: list[tuple[Tensor, int]] = []
    ends = end_tokens(model)
    with progress_bar() as bar, torch.random.fork_rng(), torch.inference_mode(), plain_settings(model):
        torch.manual_seed(child_seed(seed, "roll"))
        task = bar.add_task("writing text to calibrate on", total=len(prompts))
        for first in range(0, len(prompts), batch):
            some = [prompt.to(model.device) for prompt in prompts[first : first + batch]]
            longest = max(map(len, some))
            pad = ends[0] if ends else 0
            ids = torch.stack(
                [torch.nn.functional.pad(prompt, (longest - len(prompt), 0), value=pad) for prompt in some]
            )
            mask = torch.stack([(torch.arange(longest) >= longest - len(prompt)).long() for prompt in some])
            written = model.generate(
                ids,
                attention_mask=mask.to(model.device),
                do_sample=True,
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
                max_new_tokens=n_tokens,
                pad_token_id=pad,
            )
            for prompt, row in zip(some, written[:, longest:].tolist(), strict=True):
                length = next((place + 1 for place, token in enumerate(row) if token in ends), len(row))
                texts.append((torch.cat([prompt, prompt.new_tensor(row[:length])]), len(prompt)))
                bar.advance(task)
    return texts


def end_tokens(model: Any) -> list[int]:
    """The tokens that end a text for ``model.generate``."""
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if ends is None:
        ends = getattr(model.config, "eos_token_id", None)
    return [] if ends is None else listed(ends)


def listed(tokens: int | Sequence[int]) -> list[int]:
    """One token, or some, as a list."""
    return [tokens] if isinstance(tokens, int) else [int(token) for token in tokens]


def embedding_hash(embedding: Tensor) -> str:
    """A hash of up to a thousand rows of an embedding table, spread over the vocabulary, in float32."""
    step = max(1, len(embedding) // 1000)
    rows = embedding[::step].detach().float().cpu().contiguous().numpy()
    return hashlib.sha256(f"{tuple(embedding.shape)}".encode() + rows.tobytes()).hexdigest()[:16]
