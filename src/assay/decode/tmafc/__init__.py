"""Sample a language model only as often as its answer needs: vote by component, stop when the vote is settled.

Self-consistency draws forty answers and takes the most frequent one. Fractal consistency votes on every part of the
answer, asks again only for the parts that are still open, and (optionally) fits its stopping rule to how this model
voted on questions of the same difficulty before.

:func:`replay` compares it with self-consistency and its adaptive relatives on samples you already have; :class:`TMAFC`
answers questions live, from a function, a transformers model or an OpenAI-compatible endpoint.

Paper: "Task-and-Model-Aware Fractal-Consistency for Efficient LLM Reasoning", ICML 2026. Settled components are given
to the model as context and every round collects a final answer, as the paper's text implies; the prompts are ours.
"""

from assay.decode.tmafc.compare import Replay, replay
from assay.decode.tmafc.history import History, Record
from assay.decode.tmafc.live import TMAFC, Answer
from assay.decode.tmafc.prior import Prior, difficulty_groups, fit_beta_prior, prior_nll, rule_difficulty
from assay.decode.tmafc.recorded import Recorded, Task, read_samples, read_tasks, record_samples, write_samples
from assay.decode.tmafc.samplers import LoggedSampler, OpenAISampler, Reply, Sampler, SamplerError, TransformersSampler
from assay.decode.tmafc.vote import (
    ComponentVote,
    FractalVote,
    agreeing_answer,
    beta_confidence,
    fractal_consistency,
    normalised,
)

__all__ = [
    "TMAFC",
    "Answer",
    "ComponentVote",
    "FractalVote",
    "History",
    "LoggedSampler",
    "OpenAISampler",
    "Prior",
    "Record",
    "Recorded",
    "Replay",
    "Reply",
    "Sampler",
    "SamplerError",
    "Task",
    "TransformersSampler",
    "agreeing_answer",
    "beta_confidence",
    "difficulty_groups",
    "fit_beta_prior",
    "fractal_consistency",
    "normalised",
    "prior_nll",
    "read_samples",
    "read_tasks",
    "record_samples",
    "replay",
    "rule_difficulty",
    "write_samples",
]
