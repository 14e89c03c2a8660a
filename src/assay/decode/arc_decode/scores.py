"""How much a draft token may differ from the target's favourite, and what accepting it more often costs.

Everything here is a function of tensors. `p` are the target's probabilities after temperature, top-k and top-p, as they
are sampled from; the favourite of a position is the token of the highest probability. It imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

#: Probabilities are clamped here before their logarithm is taken (released code).
SMALLEST = 1e-12


def raw_distances(p: Tensor, x: Tensor, embedding: Tensor, inverse_std: Tensor) -> tuple[Tensor, Tensor]:
    """Two distances of tokens from the favourite, before they are calibrated (card, B).

    Parameters
    ----------
    p : (n, n_vocabulary) float
    x : (n, k) int64
        Tokens at each position.
    embedding : (n_vocabulary, d) float
        The target's input embeddings.
    inverse_std : (d,) float
        From :func:`inverse_deviation`.

    Returns
    -------
    by_embedding, by_logit : (n, k) float
        ``||W (e_x - e_m)||^2`` and ``(log p(m) - log p(x))^2``, m the favourite.
    """
    favourite = p.argmax(-1, keepdim=True)
    difference = (embedding[x].float() - embedding[favourite].float()) * inverse_std
    log_p = p.clamp(min=SMALLEST).log()
    return difference.square().sum(-1), (log_p.gather(-1, favourite) - log_p.gather(-1, x)).square()


def inverse_deviation(embedding: Tensor) -> Tensor:
    """The diagonal of W: one over the standard deviation of each coordinate over the vocabulary, shape (d,)."""
    return 1.0 / (embedding.float().std(0, correction=0) + 1e-6)


def estimated_shift(by_embedding: Tensor, by_logit: Tensor, c_e: float, c_l: float) -> Tensor:
    """U = min(c_e ||W (e_x - e_m)||^2, c_l (log p(m) - log p(x))^2): the estimate of the next step's shift, nats."""
    return torch.minimum(c_e * by_embedding, c_l * by_logit)


def lts_scores(p: Tensor, x: Tensor, shift: Tensor, gamma: float, p_min: float) -> Tensor:
    """Local tolerance score s(x) = 1[p(x) >= p_min] max(0, 1 - U / gamma), between 0 and 1.

    Parameters
    ----------
    p : (n, n_vocabulary) float
    x : (n, k) int64
    shift : (n, k) float
        U of each token.
    gamma, p_min : float

    Returns
    -------
    (n, k) float

    Examples
    --------
    >>> p = torch.tensor([[0.6, 0.38, 0.02]])
    >>> lts_scores(p, torch.tensor([[0, 1, 2]]), torch.tensor([[0.0, 0.5, 0.0]]), gamma=2.0, p_min=0.05)
    tensor([[1.0000, 0.7500, 0.0000]])
    """
    return (1.0 - shift / gamma).clamp(min=0.0) * (p.gather(-1, x) >= p_min)


def boosted(a0: float, score: float, lam: float) -> float:
    """Probability of acceptance of one candidate: a = min(1, a0 + lam (1 - a0) s)."""
    return min(1.0, a0 + lam * (1.0 - a0) * score)


def acceptance(
    p: Tensor, q: Tensor, x: Tensor, shift: Tensor, gamma: float, lam: float, p_min: float
) -> tuple[Tensor, Tensor]:
    """Probabilities of accepting sampled draft tokens: the standard one and the boosted one (card, C).

    Parameters
    ----------
    p, q : (n, n_vocabulary) float
        Of the target, and of what the tokens were drawn from.
    x : (n, k) int64
    shift : (n, k) float
        U of each token.
    gamma, lam, p_min : float

    Returns
    -------
    a0, a : (n, k) float

    Examples
    --------
    >>> p, q = torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[0.2, 0.7, 0.1]])
    >>> acceptance(p, q, torch.tensor([[1]]), torch.tensor([[0.4]]), gamma=1.0, lam=0.25, p_min=0.05)
    (tensor([[0.4286]]), tensor([[0.5143]]))
    """
    a0 = (p.gather(-1, x) / q.gather(-1, x).clamp(min=SMALLEST)).clamp(max=1.0)
    a = a0 + lam * (1.0 - a0) * lts_scores(p, x, shift, gamma, p_min)
    return a0, a.clamp(max=1.0)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """What is sampled from after a rejection: relu(p - q), normalised; p where nothing is left."""
    left = (p - q).clamp(min=0.0)
    total = left.sum()
    return left / total if total > 0 else p


def output_law(p: Tensor, q: Tensor, a0: Tensor, a: Tensor) -> tuple[Tensor, float]:
    """Law of the emitted token for one sampled draft, and B, its total variation distance from p (card, derived).

    Parameters
    ----------
    p, q, a0, a : (n_vocabulary,) float
        `a0` and `a` for every token of the vocabulary.

    Returns
    -------
    law : (n_vocabulary,) float
        p + q (a - a0) - B res, res = norm relu(p - q).
    B : float
        sum q (a - a0): by this the acceptance rate rises, and by this the law is off.
    """
    gain = q * (a - a0)
    price = float(gain.sum())
    return p + gain - price * residual(p, q), price


def js_topk(p: Tensor, q: Tensor, k: int = 128) -> Tensor:
    """Jensen-Shannon divergence on the union of both top-k sets, renormalised, in nats.

    Parameters
    ----------
    p, q : (n, n_vocabulary) float
    k : int
        All tokens where the vocabulary is smaller.

    Returns
    -------
    (n,) float64
        Between 0 and log 2; on the CPU, because not every device has float64.

    Examples
    --------
    >>> round(js_topk(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]])).item(), 6)
    0.215762
    """
    if k >= p.shape[-1]:
        return _js(p.cpu().double(), q.cpu().double())
    mine, other = p.topk(k).indices, q.topk(k).indices
    is_repeated = (other[:, :, None] == mine[:, None, :]).any(-1)
    union = torch.cat([mine, other], dim=-1)
    counts = torch.cat([torch.ones_like(is_repeated), ~is_repeated], dim=-1).cpu()
    return _js(*(of.gather(-1, union).cpu().double() * counts for of in (p, q)))


def _js(a: Tensor, b: Tensor) -> Tensor:
    """Divergence of rows of weights, each normalised first."""
    a, b = a / a.sum(-1, keepdim=True), b / b.sum(-1, keepdim=True)
    middle = 0.5 * (a + b)

    def entropy(of: Tensor) -> Tensor:
        return -torch.xlogy(of, of).sum(-1)

    return (entropy(middle) - 0.5 * (entropy(a) + entropy(b))).clamp(min=0.0)


def normalised_entropy(p: Tensor) -> float:
    """H = - sum p log p / log |V| of one distribution, between 0 (certain) and 1 (uniform)."""
    of = p.cpu().double()
    return float(-torch.xlogy(of, of).sum() / torch.log(torch.tensor(float(len(of)))))
