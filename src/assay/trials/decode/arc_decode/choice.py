"""At the same price, which rejected tokens are worth adding? Four rules, their thresholds set to one price beforehand.

Every rule that accepts more pays in total variation exactly what it gains in acceptances, whichever tokens it takes; so
rules differ in what their tokens do to the next step, and that is what is measured here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay._core.errors import InputError
from assay._core.seeds import child_seed
from assay.bench import Data
from assay.models.quality import calibration_text
from assay.trials.decode.arc_decode.runs import (
    CALIBRATED,
    Source,
    Task,
    Written,
    boosted,
    cut,
    load_small,
    models_of,
    run_score,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from assay.bench import Case
    from assay.bench.spec import Parameter, Scale
    from assay.decode.arc_decode import Draft

#: Prompts on which thresholds are set; none of them is calibrated on or written to by a case.
TUNED = 24

#: Texts of a case: a rule adds about one token to two texts, and a case without one is lost.
TEXTS = 12

#: Medusa's eps, with sqrt(eps) as its factor on exp(-H).
TYPICAL = 0.09


class Position(NamedTuple):
    """One verification of a sampled token: the target's law, the draft's, and ARC's scores."""

    p: Tensor
    q: Tensor
    scores: Mapping[int, float]


def load_choice(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    """The small part's prompts, and for every rule the threshold at which it costs what ARC-Decode costs."""
    data = load_small(path, scale, params)
    source: Source = data.value
    if source.settings.lam == 0:
        raise InputError("lam is 0: nothing is added, and there is nothing to choose; give a lambda above 0")
    _, _, tokenizer = models_of("small", "draft")
    first = CALIBRATED["small"]
    prompts = cut(tokenizer, calibration_text())[first : first + TUNED]
    positions = visited(Task(tuple(prompts), source.settings, source.calibration, {}))
    wanted = float(np.mean([price(at, at.scores, source.settings.lam) for at in positions]))
    thresholds = {"fuzzy": fuzzy_threshold(positions, wanted)}
    for name in ("blind", "typical"):
        most = float(np.mean([price(at, open_tokens(name, at.p, at.q, 1.0), 1.0) for at in positions]))
        thresholds[name] = min(1.0, wanted / most) if most > 0 else 1.0
    return Data(data.name, data.n, source._replace(thresholds=thresholds, n_texts=TEXTS))


def visited(task: Task) -> list[Position]:
    """The positions of lossless runs."""
    import torch

    from assay.decode.arc_decode import Draws, Sampling
    from assay.decode.arc_decode.drafts import drafter_of
    from assay.decode.arc_decode.generation import Boost, Stop, write

    target, draft, _ = models_of("small", "draft")
    embedding = target.get_input_embeddings().weight.detach()
    arc = Boost(task.calibration, None, 1.0, task.settings.p_min, False, embedding)
    found: list[Position] = []

    @dataclass(frozen=True)
    class Watch:
        lam: float = 0.0
        is_hard: bool = False

        def scores(self, p: Tensor, drafted: Draft) -> tuple[Any, Any]:
            scores, shifts = arc.scores(p, drafted)
            q = drafted.q
            assert q is not None
            found.append(Position(p[0], q[0], scores[0]))  # the first of a cycle is always visited
            return [{}] * len(p), shifts

    for number, ids in enumerate(task.prompts):
        drafter = drafter_of(draft, target, None)
        stop = Stop(task.settings.n_tokens, [], None)
        write(
            target, drafter, torch.tensor(ids), Sampling(), Watch(), stop, task.settings.num_draft,
            Draws(child_seed(0, "tune", number)),
        )  # fmt: skip
    return found


def price(at: Position, scores: Mapping[int, float], lam: float) -> float:
    """B = sum q(x) (a(x) - a0(x))."""
    x = list(scores)
    if not x:
        return 0.0
    p, q = at.p[x].double().numpy(), at.q[x].double().numpy()
    a0 = np.minimum(1.0, p / np.maximum(q, 1e-30))
    return float((q * lam * (1 - a0) * np.array([scores[token] for token in x])).sum())


def fuzzy_threshold(positions: Sequence[Position], wanted: float) -> float:
    """The largest threshold whose mean price is at most `wanted`: positions open in the order of their divergence."""
    divergence = np.array([divergence_of(at.p, at.q) for at in positions])
    order = np.argsort(divergence)
    prices = np.array([price(at, open_tokens("blind", at.p, at.q, 1.0), 1.0) for at in positions])
    n_open = int((np.cumsum(prices[order]) <= wanted * len(positions)).sum())
    return float(divergence[order[n_open]]) if n_open < len(order) else 1.0


def divergence_of(p: Tensor, q: Tensor) -> float:
    from assay.decode.arc_decode import js_topk

    return js_topk(p[None], q[None], len(p)).item()


def open_tokens(name: str, p: Tensor, q: Tensor, threshold: float) -> dict[int, float]:
    """Tokens that a rule gives a second chance at a position.

    Blind: all. Fuzzy: all, where the Jensen-Shannon divergence between target and draft is below the threshold.
    Typical: those with p(x) > min(eps, sqrt(eps) exp(-H(p))).
    """
    import torch

    if name == "blind" or (name == "fuzzy" and divergence_of(p, q) < threshold):
        return dict.fromkeys(range(len(p)), 1.0)
    if name == "fuzzy":
        return {}
    entropy = float(-torch.xlogy(p, p).sum())
    limit = min(TYPICAL, TYPICAL**0.5 * float(np.exp(-entropy)))
    return dict.fromkeys((p > limit).nonzero()[:, 0].tolist(), 1.0)


@dataclass(frozen=True)
class Rival:
    """Another rule in the place of the boost; the standard rule stays its floor.

    What sets its price: for fuzzy acceptance its threshold, for the others the share of second chances that are given.
    """

    name: str
    threshold: float

    is_hard = False

    @property
    def lam(self) -> float:
        """The share of its tolerance that a rule takes."""
        return 1.0 if self.name == "fuzzy" else self.threshold

    def scores(self, p: Tensor, draft: Draft) -> tuple[Any, Any]:
        """Scores at the root and after each candidate; the last row has no candidates."""
        q = draft.q
        assert q is not None  # the draft samples
        rows = [open_tokens(self.name, p[row], q[row], self.threshold) for row in range(len(q))] + [{}]
        return rows, [{}] * len(p)


def chosen_by_arc(task: Task, seed: int) -> Written:
    return boosted(task, seed)


def rival(name: str) -> Callable[[Task, int], Written]:
    def run(task: Task, seed: int) -> Written:
        import torch

        from assay.decode.arc_decode import Draws, Sampling
        from assay.decode.arc_decode.drafts import drafter_of
        from assay.decode.arc_decode.generation import Stop, write

        target, draft, _ = models_of(task.settings.model, task.settings.draft)
        texts, records = [], []
        for number, ids in enumerate(task.prompts):
            # The seeds of `arc_generate` for the same case: all rules see the same random numbers.
            draws = Draws(child_seed(child_seed(seed, number), "row", 0))
            text, record = write(
                target, drafter_of(draft, target, None), torch.tensor(ids), Sampling(),
                Rival(name, task.thresholds[name]), Stop(task.settings.n_tokens, [0], None),
                task.settings.num_draft, draws,
            )  # fmt: skip
            texts.append(tuple(text.tolist()))
            records.append(record)
        return Written(tuple(texts), tuple(records))

    return run


def blind(task: Task, seed: int) -> Written:
    """Every rejected token has the same second chance."""
    return rival("blind")(task, seed)


def fuzzy(task: Task, seed: int) -> Written:
    """Accept whatever is drafted where draft and target agree closely."""
    return rival("fuzzy")(task, seed)


def typical(task: Task, seed: int) -> Written:
    """Accept whatever is typical of the target."""
    return rival("typical")(task, seed)


def shift_score(case: Case, written: Written) -> dict[str, float]:
    found = run_score(case, written)
    return {name: found[name] for name in ("shift", "tokens_per_forward", "price", "nll")}
