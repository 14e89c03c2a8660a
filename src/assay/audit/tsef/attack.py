"""The dual attack: reach another class while the explanation stays where it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from assay._core.errors import InputError
from assay.audit.tsef.explainers import as_explainer
from assay.audit.tsef.filters import apply_filter, gain
from assay.audit.tsef.masks import connectivity, gumbel_sigmoid, sparsity
from assay.audit.tsef.metrics import COUPLED, agreement
from assay.audit.tsef.objective import Keeper, Objective
from assay.audit.tsef.result import Step
from assay.audit.tsef.run import run_attack

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from assay.audit.tsef.door import Layout
    from assay.audit.tsef.explainers import Explainer
    from assay.audit.tsef.objective import Keep
    from assay.audit.tsef.result import AttackResult
    from assay.audit.tsef.run import Explained


class TSEF:
    """Find small changes of time series that change the class and leave the explanation alone.

    Parameters
    ----------
    model : callable
        Series to logits (n, classes): an ``nn.Module``, a TorchScript or an exported program. It is attacked in
        evaluation mode and left as it was.
    explainer : Explainer or callable
        One of this package's, or a function ``(x, target) -> attributions`` of torch operations.
    eps : float
        Budget: the largest change as a share of the range of each series and channel.
    lambda_cls, lambda_exp : float
        Weights of the classification loss and of the explanation's distance. More `lambda_cls`: more flips, at the cost
        of the explanation.
    iters, k1, k2 : int
        Rounds; steps for the mask and for the filter in each.
    lr_mask, lr_filter : float
        Length of the sign steps.
    ratio, beta, gamma : float
        r of the mask's sparsity, and the weights of sparsity and connectivity.
    layout : "BDT" or "BTD"
        Order of channels D and time T in what is given, in what the model takes, and in what is returned.
    keep : "best" or "last"
        Which iterate to return: of those that reach the target the one whose explanation is nearest to the reference,
        or the last, as in the authors' code.
    explain : "label" or "target"
        Whose explanation has to stay: that of the series' own class also after the flip (the paper's reading), or that
        of the class which the model then predicts, which is what somebody who looks at the output sees.
    early_stop : bool
        Stop with a series once it reaches the target and its explanation has an AUPRC of 0.9.
    batch_size : int
        Series at a time; memory is proportional to it and to the steps of the explainer.
    seed : int

    Notes
    -----
    Wang et al., "Exposing Vulnerabilities in Explanation for Time Series Classifiers via Dual-Target Attacks",
    arXiv:2602.02763. It costs iters · (k1 + k2) passes forward and backward through the model and the explainer.

    Examples
    --------
    >>> from assay.audit.tsef import IntegratedGradients
    >>> _ = torch.manual_seed(0)
    >>> layers = torch.nn.Linear(12, 8), torch.nn.Softplus(), torch.nn.Linear(8, 2)
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), *layers)
    >>> X = torch.randn(4, 1, 12)
    >>> attack = TSEF(model, IntegratedGradients(model), eps=0.3, iters=3, k1=2, k2=4)
    >>> result = attack(X, model(X).argmax(dim=1))
    >>> result.x_adv.shape, bool((abs(result.x_adv - X.numpy()) <= result.eps).all())
    ((4, 1, 12), True)
    """

    name = "tsef"

    def __init__(
        self,
        model: Callable[[Tensor], Tensor],
        explainer: Explainer | Callable[[Tensor, Tensor], Tensor],
        *,
        eps: float = 0.1,
        lambda_cls: float = 0.05,
        lambda_exp: float = 1.0,
        iters: int = 100,
        k1: int = 10,
        k2: int = 20,
        lr_mask: float = 1.0,
        lr_filter: float = 1.0,
        ratio: float = 0.3,
        beta: float = 1.0,
        gamma: float = 1.0,
        layout: Layout = "BDT",
        keep: Keep = "best",
        explain: Explained = "label",
        early_stop: bool = False,
        batch_size: int = 64,
        seed: int = 0,
    ) -> None:
        for option, count in (("iters", iters), ("k1", k1), ("k2", k2), ("batch_size", batch_size)):
            if count < 1:
                raise InputError(f"{option}={count}: expected at least 1")
        if not 0 < ratio < 1:
            raise InputError(f"ratio={ratio}: expected a share between 0 and 1")
        self.model, self.explainer, self.eps, self.seed = model, as_explainer(explainer), eps, seed
        self.lambda_cls, self.lambda_exp, self.iters, self.k1, self.k2 = lambda_cls, lambda_exp, iters, k1, k2
        self.lr_mask, self.lr_filter, self.ratio, self.beta, self.gamma = lr_mask, lr_filter, ratio, beta, gamma
        self.layout, self.keep, self.explain = layout, keep, explain
        self.early_stop, self.batch_size = early_stop, batch_size

    def __call__(
        self,
        X: Any,  # noqa: N803
        y: Any = None,
        target: Any = None,
        reference: Any = None,
        rho: float = 0.1,
    ) -> AttackResult:
        """Attack the series that the model classifies correctly.

        Parameters
        ----------
        X : (n, channels, length) tensor or array
            Or (n, length, channels) with layout "BTD".
        y : (n,) int, optional
            Classes. Default: what the model predicts, so that nothing is skipped.
        target : int or (n,) int, optional
            Class to reach. Default: one of the others, drawn by seed.
        reference : array of zeros and ones in the shape of X, optional
            The cells that the explanation has to stay on. Default: the top `rho` of the clean explanation.
        rho : float
            Share of cells.

        Raises
        ------
        InputError
            The input cannot be used, or the explainer passes no gradient.
        """
        return run_attack(
            self._search, self.model, self.explainer, X, y, target, reference, name=self.name, rho=rho, eps=self.eps,
            layout=self.layout, explain=self.explain, batch_size=self.batch_size, seed=self.seed, steers=True,
        )  # fmt: skip

    def _search(self, objective: Objective) -> tuple[Tensor, list[Step]]:
        current = objective.x0.clone()
        keeper = Keeper(objective.x0, self.keep)
        going = torch.arange(len(current), device=current.device)
        history = []
        for _ in range(self.iters):
            part = objective.subset(going)
            mask = self._choose_mask(part, current[going])
            current[going] = self._choose_filter(part, current[going], mask, keeper, going)
            history.append(Step(*keeper.record()))
            if self.early_stop:
                going = going[~_is_done(objective, keeper, going)]
                if not len(going):
                    break
        return keeper.x, history

    def _loss(self, distance: Tensor, cross_entropy: Tensor) -> Tensor:
        return self.lambda_exp * distance + self.lambda_cls * cross_entropy

    def _choose_mask(self, objective: Objective, x: Tensor) -> Tensor:
        """Phase A: the region whose *removal* moves the class, not the explanation (J_t). The last sample is frozen."""
        theta = objective.uniform(*x.shape[1:]).requires_grad_()
        mask = torch.empty_like(x)
        for uniform in objective.uniform(self.k1, *x.shape[1:]).unbind(dim=1):
            probability = torch.sigmoid(theta)
            mask = gumbel_sigmoid(probability, uniform)
            loss = objective((1 - mask) * x)
            total = self._loss(loss.distance, loss.cross_entropy) + self.beta * sparsity(probability, self.ratio)
            total = total + self.gamma * connectivity(probability)
            (gradient,) = torch.autograd.grad(total.sum(), theta)
            theta = (theta - self.lr_mask * gradient.sign()).detach().requires_grad_()
        return mask.detach()

    def _choose_filter(self, objective: Objective, x: Tensor, mask: Tensor, keeper: Keeper, rows: Tensor) -> Tensor:
        """Phase B: the gains of the window's frequencies, by J_f at the projected series."""
        channels, length = x.shape[1:]
        theta = objective.uniform(channels, length // 2 + 1).requires_grad_()
        changed = x
        for _ in range(self.k2):
            frequency_gain = gain(theta, objective.x0, mask, objective.allowed.eps)
            changed = objective.allowed.project(apply_filter(x, mask, frequency_gain))
            loss = objective(changed)
            keeper.offer(changed, loss, rows)
            (gradient,) = torch.autograd.grad(self._loss(loss.distance, loss.cross_entropy).sum(), theta)
            theta = (theta - self.lr_filter * gradient.sign()).detach().requires_grad_()
        return changed.detach()


def _is_done(objective: Objective, keeper: Keeper, rows: Tensor) -> Tensor:
    reference = objective.reference.cpu().numpy()
    saliency = objective.explain(keeper.x[rows], objective.explained[rows]).detach().cpu().double().numpy()
    still = [agreement(one, reference[row]).auprc >= COUPLED for one, row in zip(saliency, rows.tolist(), strict=True)]
    return keeper.reached[rows] & torch.tensor(still, device=rows.device)
