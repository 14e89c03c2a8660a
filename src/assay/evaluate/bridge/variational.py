"""The paper's own fit: mean-field variational inference under hierarchical priors, in torch.

Priors: theta_j ~ N(mu_theta, 1/u_theta), b_i ~ N(mu_b, 1/u_b), log a_i ~ N(mu_a, 1/u_a), where 1/u is a *standard
deviation*; every mu ~ N(0, 10⁶), every u ~ Gamma(1, 1). The guide is a normal for each theta, b and log a and for the
mu's, a Gamma for the u's. One Monte-Carlo sample of the evidence bound a step, all responses at once, Adam.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from assay._core.extras import need
from assay.evaluate.bridge.likelihood import Parameters, Responses, log_likelihood
from assay.evaluate.bridge.posterior import Fit

PARTS = ("ability", "difficulty", "log_discrimination")
MEAN_SD = 1e6


def fit_svi(
    responses: Responses,
    *,
    epochs: int = 1000,
    learning_rate: float = 0.1,
    decay: float = 0.9999,
    seed: int = 0,
    device: str = "cpu",
) -> Fit:
    """Maximise the evidence lower bound and keep the parameters of the epoch with the lowest (noisy) loss.

    Parameters
    ----------
    responses : Responses
    epochs : int
        Steps of Adam over all responses.
    learning_rate, decay : float
        The rate of the first epoch, and its factor from one epoch to the next.
    seed : int
        Draws of the guide; torch's global generator is left as it was.
    device : str
        A torch device; above 10⁸ responses a GPU pays.

    Returns
    -------
    Fit
        Guide locations: posterior means of theta and b, posterior medians of a. Standard errors are the guide's
        standard deviations, which mean-field inference makes too small.

    Raises
    ------
    InputError
        torch is not installed.
    """
    torch = need("torch", extra="lm", purpose='method="svi"')
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return _fit(torch, responses, epochs, learning_rate, decay, torch.device(device))


def _fit(torch: Any, responses: Responses, epochs: int, learning_rate: float, decay: float, device: Any) -> Fit:
    guide = _Guide(torch, responses.n_subjects, responses.n_items, device)
    subject, item = (torch.as_tensor(index, device=device).long() for index in (responses.subject, responses.item))
    solved, attempts = (
        torch.as_tensor(counts, device=device, dtype=torch.float32) for counts in (responses.solved, responses.attempts)
    )
    optimiser = torch.optim.Adam(guide.free, lr=learning_rate)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimiser, decay)
    best, kept = np.inf, guide.copy()
    for _ in range(epochs):
        before = guide.copy()
        draw, prior_minus_guide = guide.sample()
        a, theta, b = draw["log_discrimination"].exp(), draw["ability"], draw["difficulty"]
        # index_select, not a[item]: its backward pass adds up in place and is several times faster on a CPU.
        z = a.index_select(0, item) * (theta.index_select(0, subject) - b.index_select(0, item))
        fit_to_data = (solved * z - attempts * torch.nn.functional.softplus(z)).sum()
        loss = -(fit_to_data + prior_minus_guide)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if loss.item() < best:
            best, kept = loss.item(), before  # the parameters that had this loss, not the ones after the step
    ability, difficulty, log_a = (kept[f"{part} loc"].double().cpu().numpy() for part in PARTS)
    spread = {part: kept[f"{part} log_scale"].exp().double().cpu().numpy() for part in PARTS}
    point = Parameters(ability, difficulty, log_a)
    return Fit(
        point,
        spread["ability"],
        spread["difficulty"],
        spread["log_discrimination"],
        log_likelihood(point, responses),
        epochs,
        bool(np.isfinite(best)),
    )


class _Guide:
    """The variational family: locations and log scales of everything, shapes and rates of the Gammas."""

    def __init__(self, torch: Any, n_subjects: int, n_items: int, device: Any) -> None:
        self.torch = torch
        self.values: dict[str, Any] = {}
        sizes = {"ability": n_subjects, "difficulty": n_items, "log_discrimination": n_items}
        for part, size in sizes.items():
            starts = {"loc": torch.zeros(size), "log_scale": torch.zeros(size)}
            starts |= {"mean loc": torch.zeros(()), "mean log_scale": torch.log(torch.tensor(10.0))}
            starts |= {"log_shape": torch.zeros(()), "log_rate": torch.zeros(())}
            for name, value in starts.items():
                self.values[f"{part} {name}"] = value.to(device).requires_grad_()

    @property
    def free(self) -> list[Any]:
        return list(self.values.values())

    def copy(self) -> dict[str, Any]:
        return {name: value.detach().clone() for name, value in self.values.items()}

    def sample(self) -> tuple[dict[str, Any], Any]:
        """One draw of theta, b and log a, and log prior − log guide of everything drawn."""
        distributions = self.torch.distributions
        draw, total = {}, 0.0
        for part in PARTS:
            value = {name.removeprefix(f"{part} "): v for name, v in self.values.items() if name.startswith(f"{part} ")}
            mean_guide = distributions.Normal(value["mean loc"], value["mean log_scale"].exp())
            precision_guide = distributions.Gamma(value["log_shape"].exp(), value["log_rate"].exp())
            guide = distributions.Normal(value["loc"], value["log_scale"].exp())
            mean, inverse_sd, draw[part] = mean_guide.rsample(), precision_guide.rsample(), guide.rsample()
            inverse_sd = inverse_sd.clamp_min(1e-6)  # float32 draws of a Gamma can be exactly zero
            total = total + distributions.Normal(0.0, MEAN_SD).log_prob(mean) - mean_guide.log_prob(mean)
            total = total + distributions.Gamma(1.0, 1.0).log_prob(inverse_sd) - precision_guide.log_prob(inverse_sd)
            # 1/u is the standard deviation: neither a variance nor a precision.
            total = total + distributions.Normal(mean, 1.0 / inverse_sd).log_prob(draw[part]).sum()
            total = total - guide.log_prob(draw[part]).sum()
        return draw, total
