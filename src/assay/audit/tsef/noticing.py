"""Do explainers that were not attacked notice? Their own map is compared before and after, and beside noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from assay._core.progress import progress_bar
from assay.audit.tsef import door
from assay.audit.tsef.metrics import agreement, top_share, wilson
from assay.audit.tsef.objective import at_rest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray
    from torch import Tensor

    from assay.audit.tsef.door import Layout
    from assay.audit.tsef.result import AttackResult
    from assay.audit.tsef.watchers import Watcher

#: What a watcher raises an alarm at: agreement with its clean map that noise of the same budget undercuts so rarely.
FALSE_ALARMS = 0.05
#: "Seldom or never" is said where the upper end of the interval lies below this: 0 of 16 flipped series allow it.
SELDOM = 0.2
#: Draws of noise for each series that the alarm is set by.
NOISE_DRAWS = 4

COLUMNS = ("watcher", "attack", "eps", "n_flipped", "n_noticed", "low", "high", "threshold", "verdict")


@dataclass(frozen=True)
class Noticed:
    """How often a watcher's own explanation moved, of the series that an attack flipped.

    It moved where its agreement with its clean map fell below `threshold`, which noise of the same budget undercuts on
    one in twenty series.
    """

    watcher: str
    attack: str
    eps: float
    n_flipped: int
    n_noticed: int
    threshold: float

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval of the share."""
        return wilson(self.n_noticed, self.n_flipped)

    @property
    def verdict(self) -> str:
        """What the interval allows to say."""
        low, high = self.interval
        if self.n_flipped < 5:
            return "too few flips"
        if low > 0.5:
            return "notices"
        if low > FALSE_ALARMS:
            return "sometimes"
        if high < SELDOM:
            return "seldom or never"
        return "in less than half" if high < 0.5 else "unclear"

    def row(self) -> dict[str, Any]:
        """As a row of a table."""
        low, high = self.interval
        values = (self.watcher, self.attack, self.eps, self.n_flipped, self.n_noticed, low, high, self.threshold)
        return dict(zip(COLUMNS, (*values, self.verdict), strict=True))


def watch(
    watchers: Mapping[str, Watcher],
    model: Callable[[Tensor], Tensor],
    attacked: Mapping[tuple[str, float], AttackResult],
    rho: float,
    layout: Layout,
    seed: int,
) -> tuple[Noticed, ...]:
    """Ask every watcher about every attack at every budget; all attacks are of the same series.

    Parameters
    ----------
    watchers : mapping of name to ``(x, class) -> saliency``
    model : callable
    attacked : mapping of (attack, budget) to AttackResult
    rho : float
        Share of cells that make up the watcher's clean map.
    layout : "BDT" or "BTD"
    seed : int
    """
    if not attacked:
        return ()
    first = next(iter(attacked.values()))
    rows = np.flatnonzero(first.attacked)
    clean, own = first.x[rows], first.y[rows]
    like = next(iter(getattr(model, "parameters", list)()), torch.from_numpy(first.x))
    noisy = {eps: _noise(clean, eps, layout, seed) for eps in sorted({eps for _, eps in attacked})}
    found = []
    with at_rest(model), progress_bar() as bar:
        task = bar.add_task("watchers", total=len(watchers))
        for watcher, explain in watchers.items():

            def maps(x: NDArray[Any], label: NDArray[np.int64], explain: Watcher = explain) -> NDArray[np.float64]:
                series = torch.from_numpy(np.ascontiguousarray(x)).to(like)
                saliency = explain(series, torch.from_numpy(label).to(series.device))
                return saliency.detach().double().cpu().numpy()

            top = top_share(maps(clean, own), rho)
            threshold = {
                eps: float(
                    np.nanquantile(np.concatenate([_agreements(maps(x, own), top) for x in draws]), FALSE_ALARMS)
                )
                for eps, draws in noisy.items()
            }
            for (attack, eps), result in attacked.items():
                flipped = result.success[rows]
                label = own if result.explain == "label" else result.target[rows]
                moved = np.zeros(0)
                if flipped.any():
                    moved = _agreements(maps(result.x_adv[rows][flipped], label[flipped]), top[flipped])
                n_noticed = int((moved < threshold[eps]).sum())
                found.append(Noticed(watcher, attack, eps, len(moved), n_noticed, threshold[eps]))
            bar.advance(task)
    return tuple(found)


def _noise(x: NDArray[Any], eps: float, layout: Layout, seed: int) -> list[NDArray[Any]]:
    """Noise of random signs that fills the budget, several draws for each series."""
    axis = 1 if layout == "BTD" else 2
    low, high = x.min(axis=axis, keepdims=True), x.max(axis=axis, keepdims=True)
    canonical = x.transpose(0, 2, 1) if layout == "BTD" else x
    generators = door.series_generators(canonical, seed)
    drawn = []
    for _ in range(NOISE_DRAWS):
        sign = np.stack([rng.choice([-1.0, 1.0], x.shape[1:]) for rng in generators])
        drawn.append(np.clip(x + eps * (high - low) * sign, low, high).astype(x.dtype))
    return drawn


def _agreements(maps: NDArray[np.float64], top: NDArray[np.bool_]) -> NDArray[np.float64]:
    return np.array([agreement(one, mark).auprc if mark.any() else np.nan for one, mark in zip(maps, top, strict=True)])
