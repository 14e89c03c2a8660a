"""The attacks that one would try first: random noise, and projected gradient steps on the label or on both losses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from assay._core.errors import InputError
from assay.audit.tsef.explainers import as_explainer
from assay.audit.tsef.objective import Keeper
from assay.audit.tsef.result import Step
from assay.audit.tsef.run import run_attack

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from assay.audit.tsef.door import Layout
    from assay.audit.tsef.explainers import Explainer
    from assay.audit.tsef.objective import Keep, Objective
    from assay.audit.tsef.result import AttackResult
    from assay.audit.tsef.run import Explained


class PGD:
    """Projected gradient descent by sign steps of eps / 10 from the clean series, within the same budget as TSEF.

    Without `lambda_exp` it wants the class only and never asks the explainer; with it, it minimises
    lambda_exp · d + lambda_cls · CE as TSEF does, without TSEF's mask and filter: the ablation of that structure.

    Parameters
    ----------
    model, explainer, eps, lambda_cls, layout, explain, batch_size, seed
        As in :class:`TSEF`.
    lambda_exp : float
        Weight of the explanation's distance; 0: the label only.
    steps : int
    keep : "best" or "last"
        As in :class:`TSEF`; for the label only "best" is the first iterate that reaches the target.
    """

    def __init__(
        self,
        model: Callable[[Tensor], Tensor],
        explainer: Explainer | Callable[[Tensor, Tensor], Tensor],
        *,
        eps: float = 0.1,
        lambda_cls: float = 0.05,
        lambda_exp: float = 0.0,
        steps: int = 300,
        layout: Layout = "BDT",
        keep: Keep = "best",
        explain: Explained = "label",
        batch_size: int = 64,
        seed: int = 0,
    ) -> None:
        for option, count in (("steps", steps), ("batch_size", batch_size)):
            if count < 1:
                raise InputError(f"{option}={count}: expected at least 1")
        self.model, self.explainer, self.eps, self.seed = model, as_explainer(explainer), eps, seed
        self.lambda_cls, self.lambda_exp, self.steps = lambda_cls, lambda_exp, steps
        self.layout, self.keep, self.explain, self.batch_size = layout, keep, explain, batch_size

    @property
    def name(self) -> str:
        """Which of the three it is."""
        if self.lambda_exp:
            return "pgd_joint"
        return "pgd" if self.keep == "last" else "pgd_first"

    def __call__(
        self,
        X: Any,  # noqa: N803
        y: Any = None,
        target: Any = None,
        reference: Any = None,
        rho: float = 0.1,
    ) -> AttackResult:
        """Attack; arguments as for :class:`TSEF`."""
        return run_attack(
            self._search, self.model, self.explainer, X, y, target, reference, name=self.name, rho=rho, eps=self.eps,
            layout=self.layout, explain=self.explain, batch_size=self.batch_size, seed=self.seed,
            steers=self.lambda_exp > 0,
        )  # fmt: skip

    def _search(self, objective: Objective) -> tuple[Tensor, list[Step]]:
        joint = self.lambda_exp > 0
        keeper = Keeper(objective.x0, self.keep)
        rows = torch.arange(len(objective.x0), device=objective.x0.device)
        x = objective.x0.clone()
        history = []
        for number in range(self.steps + 1):
            x.requires_grad_()
            loss = objective(x, with_explanation=joint)
            if joint:
                total = self.lambda_exp * loss.distance + self.lambda_cls * loss.cross_entropy
            else:
                total = loss.cross_entropy
                loss = loss._replace(distance=torch.full_like(total, float(number)))  # nearest: the earliest
            if number:  # the clean series is no attack
                keeper.offer(x, loss, rows)
                history.append(Step(*keeper.record()))
            if number < self.steps:
                (gradient,) = torch.autograd.grad(total.sum(), x)
                x = objective.allowed.project((x - objective.allowed.eps / 10 * gradient.sign()).detach())
        return keeper.x, history


class RandomNoise:
    """Noise of random signs that fills the budget: what stability under noise, without an adversary, looks like.

    Parameters
    ----------
    model, explainer, eps, layout, explain, batch_size, seed
        As in :class:`TSEF`.
    """

    name = "random"

    def __init__(
        self,
        model: Callable[[Tensor], Tensor],
        explainer: Explainer | Callable[[Tensor, Tensor], Tensor],
        *,
        eps: float = 0.1,
        layout: Layout = "BDT",
        explain: Explained = "label",
        batch_size: int = 64,
        seed: int = 0,
    ) -> None:
        self.model, self.explainer, self.eps, self.seed = model, as_explainer(explainer), eps, seed
        self.layout, self.explain, self.batch_size = layout, explain, batch_size

    def __call__(
        self,
        X: Any,  # noqa: N803
        y: Any = None,
        target: Any = None,
        reference: Any = None,
        rho: float = 0.1,
    ) -> AttackResult:
        """Add the noise; arguments as for :class:`TSEF`."""
        return run_attack(
            self._search, self.model, self.explainer, X, y, target, reference, name=self.name, rho=rho, eps=self.eps,
            layout=self.layout, explain=self.explain, batch_size=self.batch_size, seed=self.seed, steers=False,
        )  # fmt: skip

    def _search(self, objective: Objective) -> tuple[Tensor, list[Step]]:
        sign = torch.where(objective.uniform(*objective.x0.shape[1:]) < 0.5, -1.0, 1.0)
        x = objective.allowed.project(objective.x0 + objective.allowed.eps * sign)
        loss = objective(x)
        reached, distance, entropy = loss.reached.double(), loss.distance.detach(), loss.cross_entropy.detach()
        return x, [Step(float(reached.mean()), float(distance.mean()), float(entropy.mean()))]
