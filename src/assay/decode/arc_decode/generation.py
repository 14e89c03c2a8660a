"""Generate: draft, read the draft once, accept, correct; with what happened on record."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch

from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.seeds import child_seed
from assay.decode.arc_decode.calibration import end_tokens, listed
from assay.decode.arc_decode.drafts import State, drafter_of
from assay.decode.arc_decode.reader import Reader, Sampling, check_model, check_prompts
from assay.decode.arc_decode.scores import lts_scores
from assay.decode.arc_decode.verify import Draws, verify_tree

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from assay.decode.arc_decode.calibration import ArcCalibration
    from assay.decode.arc_decode.drafts import Drafter
    from assay.decode.arc_decode.trees import Draft, Tree

    Scores = Sequence[Mapping[int, float]]

#: Below this p_min the tokens that may be added are too many to look at one by one.
SMALLEST_P_MIN = 0.001


@dataclass(frozen=True)
class Added:
    """A token that the boost accepted.

    Parameters
    ----------
    place : int
        In the sequence, the prompt included (and its padding not).
    token, favourite : int
        It, and the target's most probable token there.
    shift : float
        U, the estimated shift of the next step, nats.
    """

    place: int
    token: int
    favourite: int
    shift: float


@dataclass
class Record:
    """What happened while one text was written; counts add up over cycles.

    Parameters
    ----------
    n_tokens : int
        Tokens written.
    n_forwards : int
        Forward passes of the target, the one that reads the prompt among them.
    n_drafted, n_tried, n_accepted : int
        Candidates proposed, tried, and accepted.
    n_positions : int
        Positions at which a candidate was tried.
    n_eligible : int
        Tried candidates with a tolerance above 0.
    price : float
        Sum over the tried candidates of B, by which the law of the output may be off; NaN under the hard rule.
    seconds : float
    added : list of Added
        Tokens that the standard rule would have rejected.
    """

    n_tokens: int = 0
    n_forwards: int = 0
    n_drafted: int = 0
    n_tried: int = 0
    n_accepted: int = 0
    n_positions: int = 0
    n_eligible: int = 0
    price: float = 0.0
    seconds: float = 0.0
    added: list[Added] = field(default_factory=list)

    @property
    def tokens_per_forward(self) -> float:
        """Tokens written for each forward pass of the target: 1 without a draft."""
        return self.n_tokens / self.n_forwards

    @property
    def acceptance(self) -> float:
        """Share of the tried candidates that were accepted; NaN where none was."""
        return self.n_accepted / self.n_tried if self.n_tried else float("nan")

    @property
    def mean_price(self) -> float:
        """Mean B a position at which a candidate was tried; NaN where there was none."""
        return self.price / self.n_positions if self.n_positions else float("nan")


@dataclass(frozen=True)
class ArcOutput:
    """Texts and how they came about.

    Parameters
    ----------
    sequences : (batch, longest) int64
        The prompts as they were given, then what was written, then padding, as ``model.generate`` returns them.
    records : tuple of Record
        One a row.
    """

    sequences: Tensor
    records: tuple[Record, ...]


def arc_generate(
    model: Any,
    assistant: Any,
    input_ids: Tensor,
    *,
    max_new_tokens: int,
    calibration: ArcCalibration | None = None,
    attention_mask: Tensor | None = None,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    lam: float = 0.25,
    p_min: float = 0.05,
    gamma: float | None = None,
    mode: Literal["boost", "hard"] = "boost",
    num_draft: int = 5,
    tree: Tree | None = None,
    logits_processor: Any = None,
    eos_token_id: int | Sequence[int] | None = None,
    pad_token_id: int | None = None,
    stop_strings: str | Sequence[str] | None = None,
    tokenizer: Any = None,
    force: bool = False,
    seed: int = 0,
) -> ArcOutput:
    """Sample from a model with a draft, accepting more of it where the next step would hardly change.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A decoder with full attention in every layer.
    assistant : PreTrainedModel, "prompt_lookup", None, or an object with ``propose(state)``
        Who drafts; None: nobody, which is plain sampling.
    input_ids : (batch, length) int64
        Rows are generated one after the other, each with a seed of its own; batches are left-padded, with
        `attention_mask`.
    max_new_tokens : int
    calibration : ArcCalibration, optional
        Needed where `lam` is above 0.
    attention_mask : (batch, length) int64, optional
        0 at the padding on the left.
    temperature, top_k, top_p : float, int, float
        As in ``generate``, with ``do_sample=True``; temperature 0 is greedy decoding.
    lam : float
        From 0, which is lossless, to 1.
    p_min : float
        The boost leaves tokens of a lower probability alone.
    gamma : float, optional
        Tolerance in nats in place of the calibration's.
    mode : "boost" or "hard"
        "hard" is the deterministic rule of the paper's appendix: accept exactly where U <= gamma.
    num_draft : int
        Tokens of a chain; a tree has its own depth.
    tree : Tree, optional
        Let a causal draft model propose a tree of its most probable tokens in place of a sampled chain.
    logits_processor : transformers.LogitsProcessorList, optional
        Penalties; each position gets its own prefix.
    eos_token_id, pad_token_id, stop_strings, tokenizer
        As in ``generate``: the model's own end and padding tokens unless others are given; stop strings need the
        tokenizer. Nothing else is taken from the model's generation_config: no penalty, no top-k, no min_p.
    force : bool
        Use a calibration that was made for another model or other settings.
    seed : int

    Returns
    -------
    ArcOutput

    Raises
    ------
    InputError
        An argument is out of its range, a prompt is empty or holds an unknown token, the vocabularies differ, the
        calibration is for another model or other settings, or the model cannot be decoded so.

    Warns
    -----
    UserWarning
        The temperature is 0.
    """
    need("torch", extra="lm", purpose="decoding")
    check_model(model, "model")
    sampling = Sampling(temperature, top_k, top_p, logits_processor)
    rows = _rows(input_ids, attention_mask)
    check_prompts(model, rows)
    _check(max_new_tokens, num_draft, lam, p_min, gamma, mode)
    if temperature == 0 and (lam > 0 or mode == "hard"):
        warnings.warn(
            "temperature=0: greedy decoding accepts a draft where it is the most probable token; lam plays no part",
            stacklevel=2,
        )
        lam, mode = 0.0, "boost"
    if (lam > 0 or mode == "hard") and assistant is not None:
        if calibration is None:
            asked, exact = (f"lam={lam:g}", "lam=0") if mode == "boost" else ("mode='hard'", "mode='boost' with lam=0")
            raise InputError(f"{asked} needs a calibration: calibrate(model, prompts), or {exact} for exact sampling")
        if not force:
            calibration.check(model, sampling)
    ends = end_tokens(model) if eos_token_id is None else listed(eos_token_id)
    pad = _padding(model, ends) if pad_token_id is None else pad_token_id
    stop = Stop(max_new_tokens, ends, _stop_criterion(stop_strings, tokenizer))
    rule = Boost(calibration, gamma, lam, p_min, mode == "hard", model.get_input_embeddings().weight.detach())
    written, records = [], []
    n_draft = num_draft if tree is None else tree.depth
    for number, ids in enumerate(rows):
        drafter = None if assistant is None else drafter_of(assistant, model, tree)
        draws = Draws(child_seed(seed, "row", number))
        text, record = write(model, drafter, ids.to(model.device), sampling, rule, stop, n_draft, draws)
        written.append(text[len(ids) :].to(input_ids.device))
        records.append(record)
    longest = max(map(len, written))
    new = torch.stack([torch.nn.functional.pad(ids, (0, longest - len(ids)), value=pad) for ids in written])
    return ArcOutput(torch.cat([input_ids, new.to(input_ids.dtype)], dim=1), tuple(records))


def write(
    model: Any,
    drafter: Drafter | None,
    ids: Tensor,
    sampling: Sampling,
    rule: Rule,
    stop: Stop,
    num_draft: int,
    draws: Draws,
) -> tuple[Tensor, Record]:
    """One row: cycles of draft, reading and verdict until a stop."""
    reader, record = Reader(model), Record()
    started, n_prompt = time.perf_counter(), len(ids)
    drawn_from: Tensor | None = None
    no_place: tuple[int, ...] = ()
    is_done = False
    while not is_done:
        left = n_prompt + stop.max_new_tokens - len(ids)
        draft = None
        if drafter is not None and left > 1:  # the target adds a token of its own: one place needs no draft
            draft = drafter.propose(State(ids, min(num_draft, left - 1), sampling, draws, drawn_from))
            draft = draft if draft.tokens else None
        logits = reader.read(ids[reader.n_cached :], draft)
        p = sampling.probabilities(logits, _prefixes(ids, draft) if sampling.processors else None)
        if draft is None:
            path, added, token = no_place, no_place, draws.token(p[0])
        else:
            scores, shifts = rule.scores(p, draft)
            verdict = verify_tree(p, draft, scores, rule.lam, draws, is_hard=rule.is_hard)
            path, added, token = verdict.path, verdict.added, verdict.token
            record.n_drafted += len(draft.tokens)
            record.n_tried += verdict.n_tried
            record.n_positions += verdict.n_positions
            record.n_eligible += verdict.n_eligible
            record.price += verdict.price
        drawn_from = p[path[-1] + 1] if path else p[0]
        reader.keep(draft, path)
        accepted = [] if draft is None else [draft.tokens[place] for place in path]
        before = len(ids)
        ids = torch.cat([ids, ids.new_tensor([*accepted, token])])
        end, is_done = stop.end(ids, before, n_prompt)
        for depth, place in enumerate(path):
            if before + depth >= end or draft is None:
                break
            record.n_accepted += 1
            if place in added:
                row = draft.parents[place] + 1
                favourite = int(p[row].argmax())
                record.added.append(
                    Added(before + depth, draft.tokens[place], favourite, shifts[row].get(draft.tokens[place], 0.0))
                )
        ids = ids[:end]
    record.n_forwards = reader.n_forwards
    record.n_tokens = len(ids) - n_prompt
    record.seconds = time.perf_counter() - started
    return ids, record


class Rule(Protocol):
    """Which tokens may be accepted more often than the standard rule would."""

    @property
    def lam(self) -> float:
        """How much of the tolerance is taken."""

    @property
    def is_hard(self) -> bool:
        """Whether a score above 0 is accepted without a draw."""

    def scores(self, p: Tensor, draft: Draft) -> tuple[Scores, Scores]:
        """Scores and estimated shifts of tokens after the root and after each candidate."""


@dataclass(frozen=True)
class Boost:
    """The tolerance that a run works with."""

    calibration: ArcCalibration | None
    gamma: float | None
    lam: float
    p_min: float
    is_hard: bool
    embedding: Tensor

    def scores(self, p: Tensor, draft: Draft) -> tuple[Scores, Scores]:
        """Scores and estimated shifts of tokens at the root and after each candidate; none is left out that matters.

        At most 1 / p_min tokens of a position have a probability of p_min, so that these are all the boost may take.
        """
        n = len(p)
        nothing: Scores = [{}] * n
        if self.calibration is None or (self.lam == 0 and not self.is_hard):
            return nothing, nothing
        gamma = self.calibration.gamma if self.gamma is None else self.gamma
        if self.is_hard:
            x = torch.tensor(draft.tokens, device=p.device)[:, None]
            rows = [parent + 1 for parent in draft.parents]
            shift = self.calibration.shift(p[rows], x, self.embedding)
            score = (shift <= gamma).float()
        else:
            x = p.topk(min(int(1 / self.p_min) + 1, p.shape[-1])).indices
            rows = list(range(n))
            shift = self.calibration.shift(p, x, self.embedding)
            score = lts_scores(p, x, shift, gamma, self.p_min)
        scores: list[dict[int, float]] = [{} for _ in range(n)]
        shifts: list[dict[int, float]] = [{} for _ in range(n)]
        table = zip(rows, x.tolist(), score.tolist(), shift.tolist(), strict=True)
        for row, tokens, values, distances in table:
            for token, value, distance in zip(tokens, values, distances, strict=True):
                if value > 0:
                    scores[row][token] = value
                    shifts[row][token] = distance
        return scores, shifts


@dataclass(frozen=True)
class Stop:
    """Where a text ends."""

    max_new_tokens: int
    ends: list[int]
    criterion: Any

    def end(self, ids: Tensor, before: int, n_prompt: int) -> tuple[int, bool]:
        """Length at which the text ends or goes on, looking at every token from `before` on."""
        last = n_prompt + self.max_new_tokens
        for length, token in enumerate(ids[before:].tolist(), start=before + 1):
            is_end = token in self.ends or length >= last
            if is_end or (self.criterion is not None and bool(self.criterion(ids[None, :length], None).all())):
                return length, True
        return len(ids), False


def _stop_criterion(stop_strings: str | Sequence[str] | None, tokenizer: Any) -> Any:
    if not stop_strings:
        return None
    if tokenizer is None:
        raise InputError("stop_strings need the tokenizer: pass tokenizer=")
    from transformers import StopStringCriteria

    return StopStringCriteria(tokenizer, stop_strings if isinstance(stop_strings, str) else list(stop_strings))


def _padding(model: Any, ends: list[int]) -> int:
    """What ``generate`` fills a row with: the padding token of the generation_config, else the first end token."""
    own: int | None = getattr(getattr(model, "generation_config", None), "pad_token_id", None)
    if own is None:
        return ends[0] if ends else 0
    return own


def _prefixes(ids: Tensor, draft: Draft | None) -> list[Tensor]:
    if draft is None:
        return [ids]
    return [ids, *(torch.cat([ids, ids.new_tensor(draft.path(place))]) for place in range(len(draft.tokens)))]


def _rows(input_ids: Tensor, attention_mask: Tensor | None) -> list[Tensor]:
    """The rows of a batch without their padding."""
    if input_ids.ndim != 2 or not input_ids.numel():
        raise InputError(f"input_ids has the shape {tuple(input_ids.shape)}; expected (batch, length), not empty")
    if attention_mask is None:
        return list(input_ids)
    if attention_mask.shape != input_ids.shape:
        raise InputError(
            f"attention_mask has the shape {tuple(attention_mask.shape)} and input_ids {tuple(input_ids.shape)}; "
            "expected the same"
        )
    is_text = attention_mask.bool()
    if not bool(is_text[:, -1].all()) or bool((is_text[:, :-1] & ~is_text[:, 1:]).any()):
        raise InputError(
            "attention_mask has zeros behind ones, or only zeros; expected padding on the left (padding_side='left')"
        )
    return [row[there] for row, there in zip(input_ids, is_text, strict=True)]


def _check(max_new_tokens: int, num_draft: int, lam: float, p_min: float, gamma: float | None, mode: str) -> None:
    if max_new_tokens < 1:
        raise InputError(f"max_new_tokens={max_new_tokens}: expected 1 or more")
    if num_draft < 1:
        raise InputError(f"num_draft={num_draft}: expected 1 or more; assistant=None drafts nothing")
    if not 0 <= lam <= 1:
        raise InputError(f"lam={lam}: expected from 0 (lossless) to 1")
    if not SMALLEST_P_MIN <= p_min <= 1:
        raise InputError(f"p_min={p_min}: expected from {SMALLEST_P_MIN} to 1")
    if gamma is not None and not gamma > 0:
        raise InputError(f"gamma={gamma}: expected above 0; lam=0 switches the boost off")
    if mode not in ("boost", "hard"):
        raise InputError(f"mode={mode!r}: expected 'boost' or 'hard'")
