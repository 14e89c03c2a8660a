"""Answer questions with a model that is sampled as often as each question needs, and no more."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from assay._core.errors import InputError
from assay._core.seeds import child_seed
from assay.decode.tmafc.history import History
from assay.decode.tmafc.prior import CATEGORIES, Prior, rule_difficulty
from assay.decode.tmafc.prompts import (
    MAX_ANCHORS,
    Components,
    anchored,
    anchors_in,
    anchors_prompt,
    answer_prompt,
    components_of,
    difficulty_in,
    difficulty_prompt,
    parse_object,
)
from assay.decode.tmafc.vote import (
    FINAL_ANSWER,
    N_MAX,
    TAU,
    ComponentVote,
    FractalVote,
    agreeing_answer,
    check_limits,
    fractal_consistency,
)

if TYPE_CHECKING:
    import os

    import pandas as pd

    from assay.decode.tmafc.samplers import Sampler

Classifier = Literal["llm", "rule"] | Callable[[str], str]

#: From so many replies on, a model whose replies are mostly not JSON is reported as such.
ENOUGH_REPLIES = 20
#: From so many questions on, samples that never differ are reported.
ENOUGH_QUESTIONS = 5


@dataclass(frozen=True)
class Answer:
    """The answer to one question, and what it cost.

    Parameters
    ----------
    question : str
    answer : Any
        A mapping from component to value for a schema; the final answer without one.
    components : tuple of ComponentVote
        The vote on every component.
    n_samples : int
        Samples drawn.
    n_tokens, n_prompt_tokens : int or None
        Tokens generated and read, overhead calls included; None where the sampler does not count them.
    calls_overhead : int
        Calls that drew no sample: for the anchors and for the difficulty.
    prior : Prior
        Of the stopping rule.
    category : str
        Difficulty: Easy, Middle or Hard.
    converged : bool
        Whether every component was settled within `n_max` samples.
    n_unused, n_unparsed : int
        Samples of a batch that were not needed; replies without a JSON object.
    """

    question: str
    answer: Any
    components: tuple[ComponentVote, ...]
    n_samples: int
    n_tokens: int | None
    n_prompt_tokens: int | None
    calls_overhead: int
    prior: Prior
    category: str
    converged: bool
    n_unused: int = 0
    n_unparsed: int = 0

    def to_frame(self) -> pd.DataFrame:
        """One row per component: value, votes, runner-up and its votes, confidence, converged, n_requests."""
        import pandas as pd

        names = ["component", "value", "votes", "runner_up", "runner_up_votes", "confidence", "converged", "n_requests"]
        rows = [
            (v.id, v.value, v.count, v.runner_up, v.runner_up_count, v.confidence, v.converged, v.n_requests)
            for v in self.components
        ]
        return pd.DataFrame(rows, columns=names)

    def summary(self) -> str:
        """The votes as a table, and the cost in a line."""
        tokens = "" if self.n_tokens is None else f", {self.n_tokens} tokens"
        state = "settled" if self.converged else "NOT settled"
        lines = [
            f"Answer: {self.answer}",
            f"{self.n_samples} samples + {self.calls_overhead} overhead calls{tokens}; {self.category}, "
            f"prior ({self.prior.alpha:.2f}, {self.prior.beta:.2f}); {state}",
            self.to_frame().to_string(index=False, float_format="{:.3f}".format),
        ]
        return "\n".join(lines)


@dataclass
class _Meter:
    """Replies and tokens of one question."""

    n_calls: int = 0
    tokens: int | None = 0
    prompt_tokens: int | None = 0

    def add(self, replies: Sequence[str]) -> None:
        self.tokens = _sum(self.tokens, [getattr(reply, "tokens", None) for reply in replies])
        self.prompt_tokens = _sum(self.prompt_tokens, [getattr(reply, "prompt_tokens", None) for reply in replies])


def _sum(so_far: int | None, new: list[int | None]) -> int | None:
    known = [value for value in new if value is not None]
    return None if so_far is None or len(known) < len(new) else so_far + sum(known)


class TMAFC:
    """Sample a model until the vote on every part of the answer is settled, with a stopping rule that learns.

    Parameters
    ----------
    sampler : callable
        ``sampler(prompt, n)`` returns `n` texts: a function, a :class:`TransformersSampler`, an
        :class:`OpenAISampler`, or one of these in a :class:`LoggedSampler`.
    schema : sequence of str, mapping or pydantic model, optional
        Components of every answer; None: a question has one final answer.
    anchors : "auto", list of str or None
        Without a schema: sub-questions to vote on beside the final answer. "auto" asks the model for them, one call
        a question; None votes on the final answer alone.
    tau : float
        Confidence above which a component is settled, in (0.5, 1).
    n_max : int
        At most so many samples a question.
    history : path, History or None
        Where past votes are kept, from which the stopping rule's prior is fitted; None: in memory.
        A history belongs to one model and one kind of task: priors of another would be wrong.
    calibrate : bool
        Fit the prior to the history (the paper's ASCC). It saves samples and gives back some accuracy; False keeps
        the prior (1, 1).
    classifier : "llm", "rule" or callable
        What guesses the difficulty: the model (one call a question), a rule without a model, or a function from
        question to Easy, Middle or Hard.
    batch_rounds : int
        Samples drawn at once, for GPUs.
    seed : int
        Chooses the past questions that the classifier is shown.

    Raises
    ------
    InputError
        A parameter out of its range, or (from :meth:`answer`) a model that does not follow the JSON format.

    Notes
    -----
    Paper: "Task-and-Model-Aware Fractal-Consistency for Efficient LLM Reasoning", ICML 2026.

    Examples
    --------
    >>> model = TMAFC(lambda prompt, n: ['{"name": "Ann", "age": 34}'] * n, schema=["name", "age"], classifier="rule")
    >>> found = model.answer("Ann is 34. Who, and how old?")
    >>> found.answer, found.n_samples
    ({'name': 'Ann', 'age': 34}, 4)
    """

    def __init__(
        self,
        sampler: Sampler,
        *,
        schema: Any = None,
        anchors: Literal["auto"] | list[str] | None = "auto",
        tau: float = TAU,
        n_max: int = N_MAX,
        history: str | os.PathLike[str] | History | None = None,
        calibrate: bool = True,
        classifier: Classifier = "llm",
        batch_rounds: int = 1,
        seed: int = 0,
    ) -> None:
        check_limits(tau, n_max)
        if isinstance(anchors, list):
            if len(set(anchors)) < len(anchors) or len(anchors) > MAX_ANCHORS:
                raise InputError(f"anchors are {anchors!r}; expected at most {MAX_ANCHORS} different sub-questions")
        elif anchors not in ("auto", None):
            raise InputError(f"anchors is {anchors!r}; expected 'auto', a list of sub-questions or None")
        if not callable(classifier) and classifier not in ("llm", "rule"):
            raise InputError(f"classifier is {classifier!r}; expected 'llm', 'rule' or a function of the question")
        self.sampler, self.anchors, self.tau, self.n_max = sampler, anchors, tau, n_max
        self.schema = None if schema is None else components_of(schema)
        self.history = history if isinstance(history, History) else History(history)
        self.calibrate, self.classifier, self.batch_rounds, self.seed = calibrate, classifier, batch_rounds, seed
        self._n_replies = self._n_unparsed = 0
        self._n_questions = self._n_varied = 0

    def answer(self, question: str, schema: Any = None) -> Answer:
        """Answer one question.

        Parameters
        ----------
        question : str
        schema : as in the constructor, optional
            For this question only.
        """
        if not question.strip():
            raise InputError("the question is empty")
        meter = _Meter()
        has_schema = schema is not None or self.schema is not None
        components = self._components(question, schema, meter)
        category = self._category(question, meter) if self.calibrate else "Middle"
        prior = self.history.prior(category, without=question) if self.calibrate else Prior()

        def sample(pending: tuple[str, ...], resolved: dict[str, Any], n: int) -> list[dict[str, Any] | None]:
            prompt = answer_prompt(question, {name: components[name] for name in pending}, resolved)
            return self._sample(prompt, n, meter)

        vote = fractal_consistency(
            list(components),
            sample,
            prior,
            tau=self.tau,
            n_max=self.n_max,
            batch_rounds=self.batch_rounds,
            always=() if has_schema else (FINAL_ANSWER,),
        )
        if self.calibrate:
            c1, c2 = vote.mean_counts
            self.history.append(question, c1 + c2, c1, category)
        self._notice_equal_samples(vote)
        return Answer(
            question=question,
            answer=vote.answer if has_schema else agreeing_answer(vote),
            components=vote.components,
            n_samples=vote.n_samples,
            n_tokens=meter.tokens,
            n_prompt_tokens=meter.prompt_tokens,
            calls_overhead=meter.n_calls,
            prior=prior,
            category=category,
            converged=vote.converged,
            n_unused=vote.n_unused,
            n_unparsed=vote.n_unparsed,
        )

    def answer_many(self, questions: Iterable[str]) -> Iterator[Answer]:
        """Answer questions one after the other; each one's votes are in the history of the next."""
        return map(self.answer, questions)

    def _components(self, question: str, schema: Any, meter: _Meter) -> Components:
        if schema is not None:
            return components_of(schema)
        if self.schema is not None:
            return self.schema
        if self.anchors == "auto":
            return anchors_in(self._overhead(anchors_prompt(question), meter))
        return anchored(self.anchors or [])

    def _category(self, question: str, meter: _Meter) -> str:
        if callable(self.classifier):
            label = self.classifier(question)
            return label if label in CATEGORIES else "Middle"
        if self.classifier == "rule":
            return rule_difficulty(question)
        examples = self.history.examples(child_seed(self.seed, question), without=question)
        return difficulty_in(self._overhead(difficulty_prompt(question, examples), meter))

    def _overhead(self, prompt: str, meter: _Meter) -> str:
        replies = self._ask(prompt, 1, meter)
        meter.n_calls += 1
        return replies[0]

    def _ask(self, prompt: str, n: int, meter: _Meter) -> Sequence[str]:
        replies = self.sampler(prompt, n)
        if len(replies) != n:
            raise InputError(
                f"the sampler returned {len(replies)} samples where {n} were asked for; it must return all"
            )
        meter.add(replies)
        return replies

    def _sample(self, prompt: str, n: int, meter: _Meter) -> list[dict[str, Any] | None]:
        replies = self._ask(prompt, n, meter)
        parsed = [parse_object(reply) for reply in replies]
        self._n_replies += n
        self._n_unparsed += sum(sample is None for sample in parsed)
        if self._n_replies >= ENOUGH_REPLIES and 2 * self._n_unparsed > self._n_replies:
            raise InputError(
                f"the model does not follow the JSON format: {self._n_unparsed} of {self._n_replies} replies unparsed; "
                f"the last one begins {replies[-1][:80]!r}"
            )
        return parsed

    def _notice_equal_samples(self, vote: FractalVote) -> None:
        """Warn once when no question so far had two different samples: the model is probably sampled greedily."""
        self._n_questions += 1
        self._n_varied += any(v.runner_up_count or v.n_missing not in (0, v.n_requests) for v in vote.components)
        if self._n_questions == ENOUGH_QUESTIONS and not self._n_varied:
            warnings.warn(
                f"all samples of each of the first {ENOUGH_QUESTIONS} questions are equal: is the temperature 0? "
                "A vote among equal samples says nothing",
                stacklevel=3,
            )
