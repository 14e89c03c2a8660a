"""What every attack shares: check the input, attack the correctly classified series, measure what came out."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import torch

from assay._core.errors import InputError
from assay.audit.tsef import door
from assay.audit.tsef.filters import box
from assay.audit.tsef.metrics import agreement, dtw, top_share
from assay.audit.tsef.objective import Objective, at_rest
from assay.audit.tsef.result import AttackResult, Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from torch import Tensor

    from assay.audit.tsef.door import Layout
    from assay.audit.tsef.explainers import Explainer

Explained = Literal["label", "target"]


class Search(Protocol):
    """How an attack looks for its series: a batch's objective in, the kept series and a step a round out."""

    def __call__(self, objective: Objective, /) -> tuple[Tensor, list[Step]]:
        """Attack one batch."""
        ...


def run_attack(
    search: Search,
    model: Callable[[Tensor], Tensor],
    explainer: Explainer,
    X: Any,  # noqa: N803
    y: Any,
    target: Any,
    reference: Any,
    *,
    name: str,
    rho: float,
    eps: float,
    layout: Layout,
    explain: Explained,
    batch_size: int,
    seed: int,
    steers: bool,
) -> AttackResult:
    """Check the input, attack the correctly classified series batch by batch, and measure what came out.

    `search` is the attack itself; `steers` says that it needs the explainer's gradient.
    """
    if layout not in door.LAYOUTS:
        raise InputError(f"layout {layout!r} is not one of {', '.join(door.LAYOUTS)}")
    if explain not in ("label", "target"):
        raise InputError(f"explain {explain!r} is not one of label, target")
    if not eps > 0:
        raise InputError(f"eps={eps}: expected a budget above 0, as a share of each channel's range")
    if not 0 < rho <= 1:
        raise InputError(f"rho={rho}: expected a share of the cells, above 0 and at most 1")
    series = door.series_array(X, layout)
    like = next(iter(getattr(model, "parameters", list)()), torch.empty(0, dtype=torch.from_numpy(series).dtype))
    x0 = torch.from_numpy(series).to(like)

    def turned(x: Tensor) -> Tensor:
        return x.transpose(1, 2) if layout == "BTD" else x

    def logits(x: Tensor) -> Tensor:
        return model(turned(x))

    def saliency(x: Tensor, label: Tensor) -> Tensor:
        return turned(explainer(turned(x), label))

    def in_batches(function: Callable[..., Tensor], *parts: Tensor) -> Tensor:
        pieces = zip(*(torch.split(part, batch_size) for part in parts), strict=True)
        return torch.cat([function(*piece).detach() for piece in pieces])

    with at_rest(model, getattr(explainer, "model", None)):
        clean_logits = in_batches(lambda x: door.class_logits(model, turned(x)), x0)
        n_classes = clean_logits.shape[1]
        predicted = clean_logits.argmax(dim=1).cpu().numpy()
        labels = predicted if y is None else door.label_array(y, len(x0), n_classes)
        clean_x = x0.cpu().numpy()
        generators = door.series_generators(clean_x, seed)
        targets = door.target_classes(target, labels, n_classes, np.array([rng.random() for rng in generators]))
        given = None if reference is None else door.reference_maps(reference, clean_x.shape, layout)
        label, goal = (torch.from_numpy(part).to(x0.device) for part in (labels, targets))
        with torch.set_grad_enabled(True):
            clean_map = in_batches(saliency, x0, label)
        clean_maps = clean_map.double().cpu().numpy()
        if clean_maps.shape != clean_x.shape:
            raise InputError(
                f"explainer {explainer!r} returned maps of shape {clean_maps.shape[1:]} for series of shape "
                f"{clean_x.shape[1:]}; expected a value for every cell"
            )
        reference_map = top_share(clean_maps, rho) if given is None else given
        allowed = box(x0, eps)
        movable = (allowed.eps > 0).cpu().numpy()[:, :, 0]
        attacked = (predicted == labels) & movable.any(axis=1) & reference_map.any(axis=(1, 2))
        notes = _notes(predicted == labels, movable, reference_map)
        rows = np.flatnonzero(attacked)
        if len(rows) == 0:
            raise InputError(f"none of the {len(x0)} series can be attacked: {'; '.join(notes)}")
        if steers:
            few = torch.from_numpy(rows[:4]).to(x0.device)
            door.check_gradient(explainer, turned(x0[few]), label[few])
        explained = label if explain == "label" else goal
        x_adv = x0.clone()
        history: list[list[Step]] = []
        for chunk in torch.split(torch.from_numpy(rows).to(x0.device), batch_size):
            objective = Objective(
                logits, saliency, explainer.distance, x0, allowed, goal, explained,
                torch.from_numpy(reference_map).to(x0), generators,
            ).subset(chunk)  # fmt: skip
            x_adv[chunk], steps = search(objective)
            history.append(steps)
        adv_class = in_batches(logits, x_adv).argmax(dim=1).cpu().numpy()
        adv_maps = in_batches(saliency, x_adv, explained).double().cpu().numpy()
    for note in notes:
        warnings.warn(note, stacklevel=3)
    return _measured(
        name, clean_x, x_adv.cpu().numpy(), labels, targets, predicted, adv_class, attacked, reference_map, clean_maps,
        adv_maps, allowed.eps.cpu().numpy(), layout, explain, repr(explainer), notes,
        _joined(history, batch_size, len(rows)),
    )  # fmt: skip


def _notes(correct: NDArray[np.bool_], movable: NDArray[np.bool_], reference: NDArray[np.bool_]) -> tuple[str, ...]:
    """What is left out, as sentences."""
    n = len(correct)
    counts = (
        ((~correct).sum(), f"of {n} series are classified wrongly already and are skipped"),
        ((~movable).sum(), "channels of series are constant, have no budget and are left alone"),
        ((~reference.any(axis=(1, 2))).sum(), f"of {n} series have an explanation of zeros and are skipped"),
    )
    return tuple(f"{count} {what}" for count, what in counts if count)


def _joined(history: list[list[Step]], batch_size: int, n: int) -> tuple[Step, ...]:
    """One history of all batches, weighted by their sizes; a batch that stopped early stays as it ended."""
    sizes = [min(batch_size, n - start) for start in range(0, n, batch_size)]
    rounds = max(map(len, history))
    padded = np.array([steps + [steps[-1]] * (rounds - len(steps)) for steps in history])
    return tuple(Step(*map(float, row)) for row in np.average(padded, axis=0, weights=sizes))


def _measured(
    name: str,
    x: NDArray[Any],
    x_adv: NDArray[Any],
    labels: NDArray[np.int64],
    targets: NDArray[np.int64],
    predicted: NDArray[np.int64],
    adv_class: NDArray[np.int64],
    attacked: NDArray[np.bool_],
    reference: NDArray[np.bool_],
    clean_maps: NDArray[np.float64],
    adv_maps: NDArray[np.float64],
    eps: NDArray[Any],
    layout: Layout,
    explain: Explained,
    explainer: str,
    notes: tuple[str, ...],
    history: tuple[Step, ...],
) -> AttackResult:
    rows = np.flatnonzero(attacked)

    def by_row(values: Any, width: int = 0) -> NDArray[np.float64]:
        full = np.full((len(x), width) if width else len(x), np.nan)
        full[rows] = values
        return full

    before = by_row([agreement(clean_maps[row], reference[row]) for row in rows], 4)
    after = by_row([agreement(adv_maps[row], reference[row]) for row in rows], 4)
    change = np.abs(x_adv.astype(np.float64) - x)
    share = np.divide(change, eps, out=np.zeros_like(change), where=eps > 0)

    def turned(array: NDArray[Any]) -> NDArray[Any]:
        return array.transpose(0, 2, 1) if layout == "BTD" else array

    return AttackResult(
        attack=name, explainer=explainer, explain=explain, layout=layout, x=turned(x), x_adv=turned(x_adv), y=labels,
        target=targets, predicted=predicted, predicted_adv=adv_class, attacked=attacked,
        success=attacked & (adv_class == targets), reference=turned(reference), saliency=turned(clean_maps),
        saliency_adv=turned(adv_maps), auprc_clean=before[:, 0], auprc=after[:, 0], aup=after[:, 1], aur=after[:, 2],
        iou=after[:, 3], eps=turned(eps), linf=by_row(share[rows].max(axis=(1, 2))),
        l2=by_row(np.sqrt(np.square(change[rows]).sum(axis=(1, 2)))), dtw=by_row(dtw(x[rows], x_adv[rows])),
        notes=notes, history=history,
    )  # fmt: skip
