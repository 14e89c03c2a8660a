"""The networks: input-convex ones for the support function, unconstrained ones for its gradient. Imports torch.

z_1 = a(W_x0 x + b_0), z_{i+1} = a(r(W_zi) z_i + b_i + W_xi x) for i = 1..depth, where the input x comes in again at
every `inject`-th layer. The paper's code puts the activation a at the output too; here the output is linear. With a
there, a homogenised convex net cannot be the support function of a single key, <x, y>: where that is below zero, the
convex function under a would have to be ten times it. And coordinates of keys below zero would be learned at a tenth of
the slope.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

Rectifier = Literal["softplus", "relu", "exp", "identity"]
RECTIFIERS: tuple[Rectifier, ...] = ("softplus", "relu", "exp", "identity")

#: Slope at minus infinity and sharpness of the activation.
SLOPE, SHARPNESS = 0.1, 20.0

#: A residual network starts this close to the identity.
RESIDUAL_SCALE = 0.01


def soft_leaky_relu(x: Tensor) -> Tensor:
    """Convex and smooth, s x + (1 − s) softplus(beta x) / beta: a loss on gradients has a gradient.

    Examples
    --------
    >>> round(float(soft_leaky_relu(torch.tensor(0.0))), 7)  # 0.9 ln 2 / 20
    0.0311916
    """
    return SLOPE * x + (1.0 - SLOPE) * functional.softplus(x, beta=SHARPNESS)


def rectify(weight: Tensor, rectifier: Rectifier | None) -> Tensor:
    """Map a free weight to the one that is used: above zero, unless the rectifier is the identity or None."""
    if rectifier == "softplus":
        return functional.softplus(weight)
    if rectifier == "relu":
        return functional.relu(weight)
    return weight.exp() if rectifier == "exp" else weight


def unrectify(weight: Tensor, rectifier: Rectifier) -> Tensor:
    """Inverse of :func:`rectify` for weights above zero."""
    if rectifier == "softplus":
        return weight + torch.log(-torch.expm1(-weight))  # log(exp(w) − 1), without overflow
    return weight.log() if rectifier == "exp" else weight


class PositiveInit(NamedTuple):
    """Moments of positive weights and the bias beside them that keep activations in shape through many layers.

    Parameters
    ----------
    squared_mean : float
        E[w]².
    variance : float
        Var[w].
    bias : float
    """

    squared_mean: float
    variance: float
    bias: float


def positive_init(fan_in: int, slope: float) -> PositiveInit:
    """Moments for a layer of positive weights behind a leaky ReLU of this slope (Hoedt and Klambauer, 2023).

    The bias is below zero: it takes back the mean that positive weights add. The paper's code has it above zero in the
    short form and below zero in the general one; theory says below.

    Examples
    --------
    >>> moments = positive_init(256, 0.0)
    >>> f"{moments.squared_mean:.5e} {moments.bias:.6f}"
    '5.22176e-05 -0.738004'
    """
    n, alpha = fan_in, slope
    a = (1 - alpha) ** 2 * (6 * math.pi - 6 * n + (n - 1) * (3 * math.sqrt(3) + 2 * math.pi))
    b = 6 * (n + 1) * math.pi * alpha
    squared_mean = 6 * math.pi / (n * (a + b))
    return PositiveInit(squared_mean, 1 / (n * (1 + alpha**2)), -math.sqrt(3 * n * (1 - alpha) ** 2 / (a + b)))


def positive_weights(shape: tuple[int, int], slope: float, generator: torch.Generator) -> Tensor:
    """Log-normal weights (n_out, n_in) with the moments of :func:`positive_init`."""
    squared_mean, variance, _ = positive_init(shape[1], slope)
    second = math.log(squared_mean + variance)
    mean, spread = math.log(squared_mean) - second / 2, math.sqrt(second - math.log(squared_mean))
    return torch.exp(mean + spread * torch.randn(shape, generator=generator))


def width_for_budget(n_keys: int, n_features: int, n_outputs: int, *, fraction: float, depth: int, inject: int) -> int:
    """Width at which the network has about `fraction` as many parameters as the keys have numbers.

    Solves (D−1) w² + (d + k + D + m d) w + (k − 1) = ceil(fraction n d), m the injected layers among the first D−1, and
    rounds to a multiple of four. As in the paper's code, the injection into the output layer (d k parameters, where
    `inject` divides `depth`) is not counted.

    Parameters
    ----------
    n_keys, n_features, n_outputs : int
        n, d and k.
    fraction : float
    depth : int
    inject : int

    Examples
    --------
    >>> width_for_budget(56_000, 384, 384, fraction=0.2, depth=8, inject=4)
    704
    """
    budget = math.ceil(fraction * n_keys * n_features)
    n_injected = (depth - 1) // inject if inject else 0
    a = depth - 1
    b = n_features + n_outputs + depth + n_injected * n_features
    c = n_outputs - 1 - budget
    if c >= 0:
        return 4
    width = -c / b if a == 0 else (-b + math.sqrt(b * b - 4 * a * c)) / (2 * a)
    return max(4, 4 * round(width / 4))


class InputNetwork(nn.Module):
    """The graph that both nets share.

    Parameters
    ----------
    n_features, n_outputs, width, depth : int
        `depth` hidden layers of `width`, then the output.
    inject : int
        The input comes in again at layers whose number this divides; 0: never.
    rectifier : "softplus", "relu", "exp", "identity" or None
        The first three keep every output convex in the input; "identity" starts with positive weights and does not keep
        them so. None: no weight is meant to be positive, and all start as LeCun normal.
    generator : torch.Generator
        Of the weights.
    """

    def __init__(
        self,
        n_features: int,
        n_outputs: int,
        *,
        width: int,
        depth: int,
        inject: int,
        rectifier: Rectifier | None,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.n_features, self.n_outputs, self.width, self.depth = n_features, n_outputs, width, depth
        self.inject, self.rectifier = inject, rectifier
        outs = [width] * (depth - 1) + [n_outputs]
        injected = [bool(inject) and number % inject == 0 for number in range(1, depth + 1)]

        def lecun(n_out: int, n_in: int = n_features) -> nn.Parameter:
            return nn.Parameter(torch.randn(n_out, n_in, generator=generator) * n_in**-0.5)

        self.from_input = lecun(width)
        self.first_bias = nn.Parameter(torch.zeros(width))
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        self.injections = nn.ParameterDict()
        for number, n_out in enumerate(outs, start=1):
            if rectifier is None:
                self.weights.append(lecun(n_out, width))
                self.biases.append(nn.Parameter(torch.zeros(n_out)))
            else:
                slope = 1.0 if number == depth else 0.0
                positive = positive_weights((n_out, width), slope, generator)
                self.weights.append(nn.Parameter(unrectify(positive, rectifier)))
                self.biases.append(nn.Parameter(torch.full((n_out,), positive_init(width, slope).bias)))
            if injected[number - 1]:
                self.injections[str(number)] = lecun(n_out)

    def extra_repr(self) -> str:
        """Sizes, for ``repr``."""
        return (
            f"n_features={self.n_features}, n_outputs={self.n_outputs}, width={self.width}, depth={self.depth}, "
            f"inject={self.inject}, rectifier={self.rectifier!r}"
        )

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (batch, n_outputs) for inputs (batch, n_features)."""
        z = soft_leaky_relu(functional.linear(x, self.from_input, self.first_bias))
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True), start=1):
            z = functional.linear(z, rectify(weight, self.rectifier), bias)
            if str(number) in self.injections:
                z = z + functional.linear(x, self.injections[str(number)])
            z = soft_leaky_relu(z) if number < self.depth else z
        return z


class SupportFunctions(nn.Module):
    """One scalar function a cluster of keys; the predicted best key of a cluster is its gradient.

    Parameters
    ----------
    net : InputNetwork
        With one output a cluster.
    homogenize : bool
        f(x) = |x| h(x / |x|), so that f(c x) = c f(x) for c > 0 and f(x) = <x, grad f(x)>, as the support function
        has it.
    """

    def __init__(self, net: InputNetwork, *, homogenize: bool) -> None:
        super().__init__()
        self.net, self.homogenize = net, homogenize

    def forward(self, x: Tensor) -> Tensor:
        """Values (batch, n_clusters)."""
        if not self.homogenize:
            return self.net(x)  # type: ignore[no-any-return]  # torch leaves calls of modules untyped
        length = x.norm(dim=1, keepdim=True)
        return length * self.net(x / length)  # type: ignore[no-any-return]  # as above

    def value_and_key(self, x: Tensor, *, create_graph: bool = False) -> tuple[Tensor, Tensor]:
        """Values (batch, n_clusters) and their gradients (batch, n_clusters, n_features).

        Parameters
        ----------
        x : (batch, n_features) Tensor
        create_graph : bool
            True where a loss on the gradients is to be differentiated: without it the loss would seem to train, and the
            gradients would not.
        """
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            values = self(x)
            n = values.shape[1]
            columns = [
                torch.autograd.grad(
                    values[:, c].sum(), x, create_graph=create_graph, retain_graph=create_graph or c + 1 < n
                )[0]
                for c in range(n)
            ]
        keys = torch.stack(columns, dim=1)
        return (values, keys) if create_graph else (values.detach(), keys)


class KeyMap(nn.Module):
    """The best key of each cluster predicted directly; its score is <key, x>.

    Parameters
    ----------
    net : InputNetwork
        With n_clusters × n_features outputs.
    residual : bool
        x + F(x), the last layer a hundredth of its usual size: an untrained net leaves the query where it is.
    """

    def __init__(self, net: InputNetwork, *, residual: bool) -> None:
        super().__init__()
        self.net, self.residual = net, residual
        if residual:
            with torch.no_grad():
                net.weights[-1].mul_(RESIDUAL_SCALE)
                if str(net.depth) in net.injections:
                    net.injections[str(net.depth)].mul_(RESIDUAL_SCALE)

    def forward(self, x: Tensor) -> Tensor:
        """Predicted keys (batch, n_clusters, n_features)."""
        keys: Tensor = self.net(x).view(len(x), -1, x.shape[1])
        return keys + x[:, None] if self.residual else keys

    def value_and_key(self, x: Tensor, *, create_graph: bool = False) -> tuple[Tensor, Tensor]:
        """Values (batch, n_clusters) and predicted keys (batch, n_clusters, n_features)."""
        keys = self(x)
        return (keys * x[:, None]).sum(dim=2), keys


Learned = SupportFunctions | KeyMap
