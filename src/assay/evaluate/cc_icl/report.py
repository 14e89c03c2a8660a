"""Run a classifier or a model over a benchmark, and say what came out."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from assay._core.errors import InputError
from assay.evaluate.cc_icl.episodes import Episodes, Question, needed_features
from assay.evaluate.cc_icl.metrics import METRICS, UNPARSED, Codes, Share, shares
from assay.evaluate.cc_icl.prompt import parse_answer

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

#: Blue, vermilion and grey of Okabe and Ito's palette: told apart with every kind of colour vision.
BLUE, VERMILION, GREY = "#0072B2", "#D55E00", "#999999"

MEANING = {
    "sensitivity": "CS: right under every criterion, where the answer changes",
    "invariance": "CI: right under every criterion, where it does not",
    "overall": "Ov: right under every criterion, all items",
    "rigidity": "sensitive items with one answer for all criteria",
    "direction": "of those, answered with {alarm}",
    "flip_error": "invariant items whose answer changes",
    "unparsed": "answers that could not be read",
}


class ArrayClassifier(Protocol):
    """A classifier that looks at features: :class:`InContextClassifier` and the baselines."""

    def predict(self, support_X: Any, support_y: Any, query_X: Any) -> NDArray[np.int64]:  # noqa: N803
        """Codes of answers (n,) from supports (n, n_support, n_features), their labels and queries (n, n_features)."""
        ...


Model = Callable[[list[Question]], Sequence[str | None]]


@dataclass(frozen=True)
class CCReport:
    """How a model follows criteria that only the examples show.

    Parameters
    ----------
    shares : mapping of metric to Share
        sensitivity (CS), invariance (CI), overall (Ov), rigidity, direction, flip_error and unparsed, each with an
        interval and the number of items it is a share of.
    accuracy, accuracy_sensitive : mapping of criterion to Share
        Accuracy under each criterion taken by itself, on all items and on the sensitive ones.
    criteria, answers : tuple of str
    n_skipped : int
        Items left out because their support does not reveal the criterion.
    confidence : float
    ids : tuple of n str
    predictions, truth : (n, n_criteria) int64
    """

    shares: Mapping[str, Share]
    accuracy: Mapping[str, Share]
    accuracy_sensitive: Mapping[str, Share]
    criteria: tuple[str, ...]
    answers: tuple[str, ...]
    n_skipped: int
    confidence: float
    ids: tuple[str, ...] = field(repr=False)
    predictions: Codes = field(repr=False)
    truth: Codes = field(repr=False)

    @property
    def sensitivity(self) -> float:
        """CS; NaN where no item is sensitive."""
        return self.shares["sensitivity"].value

    @property
    def invariance(self) -> float:
        """CI; NaN where every item is sensitive."""
        return self.shares["invariance"].value

    @property
    def overall(self) -> float:
        """Ov."""
        return self.shares["overall"].value

    @property
    def rigidity(self) -> float:
        """Share of sensitive items that get the same answer under every criterion."""
        return self.shares["rigidity"].value

    @property
    def n_sensitive(self) -> int:
        """Items whose answer depends on the criterion."""
        return self.shares["sensitivity"].n

    @property
    def n_invariant(self) -> int:
        """Items whose answer does not."""
        return self.shares["invariance"].n

    def to_frame(self) -> pd.DataFrame:
        """A row for each metric: metric, criterion, value, low, high, n."""
        import pandas as pd

        rows = [(name, "", *share) for name, share in self.shares.items()]
        rows += [("accuracy", name, *share) for name, share in self.accuracy.items()]
        rows += [("accuracy_sensitive", name, *share) for name, share in self.accuracy_sensitive.items()]
        return pd.DataFrame(rows, columns=["metric", "criterion", "value", "low", "high", "n"])

    def items(self) -> pd.DataFrame:
        """A row for each item and criterion: id, criterion, sensitive, truth, answer (missing: unparsed), correct."""
        import pandas as pd

        words = np.array([*self.answers, None], dtype=object)
        n, k = self.truth.shape
        return pd.DataFrame(
            {
                "id": np.repeat(np.array(self.ids, dtype=object), k),
                "criterion": np.tile(np.array(self.criteria, dtype=object), n),
                "sensitive": np.repeat((self.truth != self.truth[:, :1]).any(axis=1), k),
                "truth": words[self.truth.ravel()],
                "answer": words[self.predictions.ravel()],
                "correct": (self.truth == self.predictions).ravel(),
            }
        )

    def to_json(self) -> str:
        """The metrics as a JSON document; what cannot be measured is null."""

        def numbers(share: Share) -> dict[str, float | int | None]:
            return {name: None if value != value else value for name, value in share._asdict().items()}

        document = {
            "criteria": list(self.criteria),
            "n_sensitive": self.n_sensitive,
            "n_invariant": self.n_invariant,
            "n_skipped": self.n_skipped,
            "confidence": self.confidence,
            **{name: numbers(share) for name, share in self.shares.items()},
            "accuracy": {name: numbers(share) for name, share in self.accuracy.items()},
            "accuracy_sensitive": {name: numbers(share) for name, share in self.accuracy_sensitive.items()},
        }
        return json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False)

    def summary(self) -> str:
        """A table to print."""
        title = f"Criterion-conditional evaluation under {', '.join(self.criteria)}"
        head = f"{'':<22}{'share':>8}  {f'{self.confidence:.0%} interval':<16}{'items':>7}"
        lines = []
        named = dict(self.shares)
        named |= {f"accuracy {name}": share for name, share in self.accuracy.items()}
        for name, share in named.items():
            meaning = MEANING.get(name, "the usual accuracy, this criterion alone").format(alarm=self.answers[-1])
            lines.append(f"{_short(name):<22}{_shown(share)}  {meaning}")
        if self.n_skipped:
            lines.append(f"{self.n_skipped} items left out: their examples do not reveal the criterion")
        width = max(map(len, lines))
        return "\n".join([title, "=" * width, head, "-" * width, *lines, "=" * width])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw joint correctness on sensitive and on invariant items, beside the accuracy that hides the difference."""
        if ax is None:
            from matplotlib import pyplot as plt

            _, ax = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
        marginal = [share.value for share in self.accuracy_sensitive.values()]
        bars = [
            ("sensitive items\n(CS)", self.shares["sensitivity"], VERMILION),
            ("invariant items\n(CI)", self.shares["invariance"], BLUE),
            ("all items\n(Ov)", self.shares["overall"], GREY),
        ]
        for place, (_, share, color) in enumerate(bars):
            if share.n:
                ax.bar(place, 100 * share.value, 0.6, color=color)
                label = f"{self.confidence:.0%} interval" if place == 2 else "_"
                ax.vlines(place, 100 * share.low, 100 * share.high, color="black", linewidth=1.5, label=label)
        if self.n_sensitive:
            mean = 100 * float(np.mean(marginal))
            ax.hlines(mean, -0.4, 0.4, color="black", linestyle=":", label="mean accuracy of single criteria")
        ax.legend(loc="upper left", frameon=False)
        ax.set_xticks(range(3), [label for label, _, _ in bars])
        ax.set_ylim(0, 130)  # room for the legend
        ax.set_yticks(range(0, 101, 20))
        ax.set_ylabel("right under every criterion (%)")
        ax.spines[["top", "right"]].set_visible(False)
        return ax


def evaluate(
    model: Model | ArrayClassifier,
    episodes: Episodes,
    *,
    criteria: Sequence[str] | None = None,
    batch_size: int = 64,
    confidence: float = 0.95,
) -> CCReport:
    """Ask a model every question of a benchmark, under every criterion.

    Parameters
    ----------
    model : callable or classifier
        A callable gets a list of :class:`Question` and returns an answer to each: a text (an answer, or a reply that
        holds one) or None. An object with ``predict(support_X, support_y, query_X)`` gets arrays of features and codes
        of answers. Batches come in an order in which the same episodes follow under each criterion, so that a model
        can keep what it computed for the images.
    episodes : Episodes
        Items whose support does not reveal the criterion are left out and counted.
    criteria : sequence of str, optional
        Evaluate under these; by default all.
    batch_size : int
        Questions at a time.
    confidence : float
        Of the intervals, which come from a bootstrap over items.

    Raises
    ------
    InputError
        The model does not answer every question, or no item can be solved.

    Examples
    --------
    A model that always says Yes follows no criterion, whatever its accuracy:

    >>> from assay.evaluate.cc_icl import CriterionSpec, Items, build_episodes
    >>> spec = CriterionSpec("Is it a defect?", ("No", "Yes"),
    ...                      {"A": {"good": "No", "ink": "No", "cut": "Yes"},
    ...                       "B": {"good": "No", "ink": "Yes", "cut": "Yes"}})
    >>> items = Items("text", ("clean", "smooth", "ink dot", "ink line", "slit", "gash"),
    ...               ("good", "good", "ink", "ink", "cut", "cut"))
    >>> report = evaluate(lambda questions: ["Yes"] * len(questions), build_episodes(items, spec, 8))
    >>> report.sensitivity, report.rigidity, report.accuracy_sensitive["B"].value
    (0.0, 1.0, 1.0)
    """
    if batch_size < 1:
        raise InputError(f"batch_size is {batch_size}; expected 1 or more")
    if criteria is not None:
        episodes = episodes.with_criteria(criteria)
    kept, n_skipped = solvable(episodes)
    return report(predict(model, kept, batch_size=batch_size), kept, n_skipped=n_skipped, confidence=confidence)


def solvable(episodes: Episodes) -> tuple[Episodes, int]:
    """The episodes whose support reveals the criterion, and how many others there were."""
    solvable_rows = np.flatnonzero(episodes.is_identifiable)
    if len(solvable_rows) == 0:
        raise InputError("no episode reveals the criterion by its examples; show a boundary item in every support")
    return episodes.take(solvable_rows), len(episodes) - len(solvable_rows)


def predict(model: Model | ArrayClassifier, episodes: Episodes, *, batch_size: int = 64) -> Codes:
    """Codes of a model's answers: (n, n_criteria) int64."""
    if hasattr(model, "predict"):
        features = needed_features(episodes)
        support, query = features[episodes.support], features[episodes.query]
        columns = [model.predict(support, episodes.labels[:, :, k], query) for k in range(len(episodes.criteria))]
        return np.stack([np.asarray(column, dtype=np.int64) for column in columns], axis=1)
    codes = np.full(episodes.truth.shape, UNPARSED, dtype=np.int64)
    for start in range(0, len(episodes), batch_size):
        rows = range(start, min(start + batch_size, len(episodes)))
        for k, name in enumerate(episodes.criteria):
            replies = model([episodes.ask(row, k) for row in rows])
            if len(replies) != len(rows):
                raise InputError(
                    f"the model gave {len(replies)} answers to {len(rows)} questions under criterion {name!r} (from "
                    f"{episodes.ids[rows[0]]!r} on); it must answer each, with None where it has no answer"
                )
            codes[rows.start : rows.stop, k] = [parse_answer(reply, episodes.answers) for reply in replies]
    return codes


def report(predictions: Codes, episodes: Episodes, *, n_skipped: int = 0, confidence: float = 0.95) -> CCReport:
    """Turn predictions for `episodes`, (n, n_criteria) codes of answers, into a report.

    Warns
    -----
    UserWarning
        No item is sensitive to the criterion, so that sensitivity cannot be measured.
    """
    found = shares(predictions, episodes.truth, n_answers=len(episodes.answers), confidence=confidence)
    if not episodes.is_sensitive.any():
        warnings.warn("no item is sensitive to the criterion: criterion sensitivity cannot be measured", stacklevel=2)
    k, first = len(episodes.criteria), len(METRICS)
    return CCReport(
        shares=dict(zip(METRICS, found, strict=False)),
        accuracy=dict(zip(episodes.criteria, found[first : first + k], strict=True)),
        accuracy_sensitive=dict(zip(episodes.criteria, found[first + k :], strict=True)),
        criteria=episodes.criteria,
        answers=episodes.answers,
        n_skipped=n_skipped,
        confidence=confidence,
        ids=episodes.ids,
        predictions=np.asarray(predictions, dtype=np.int64),
        truth=episodes.truth,
    )


def _short(name: str) -> str:
    return {"flip_error": "flip error"}.get(name, name)


def _shown(share: Share) -> str:
    if share.n == 0:
        return f"{'–':>8}  {'no such item':<16}{0:>7}"
    interval = f"[{100 * share.low:.1f}, {100 * share.high:.1f}]"
    return f"{100 * share.value:>7.1f}%  {interval:<16}{share.n:>7}"
