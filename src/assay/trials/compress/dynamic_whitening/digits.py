"""Deep residual networks on scikit-learn's digits, trained on the spot: each case is one start and one split."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.seeds import child_seed
from assay.bench import Case, Data

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from assay.bench.spec import Parameter, Scale

WIDTH, STEPS = 64, 150


class Network(NamedTuple):
    """What an arm sees: trained weights, what they were trained on, and the share to keep."""

    weights: dict[str, np.ndarray[Any, Any]]
    x: np.ndarray[Any, Any]
    depth: int
    ratio: float


class HeldOut(NamedTuple):
    """What only the score sees: held-out digits, and the full network."""

    x: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]
    weights: dict[str, np.ndarray[Any, Any]]
    depth: int


@cache
def network_class() -> Any:
    """The class is made on demand, as torch is loaded on demand."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            return x + self.down(torch.relu(self.up(self.norm(x))))

    class Residual(nn.Module):
        def __init__(self, depth: int) -> None:
            super().__init__()
            self.inlet, self.head = nn.Linear(64, WIDTH), nn.Linear(WIDTH, 10)
            self.blocks = nn.ModuleList([Block() for _ in range(depth // 2)])

        def forward(self, x: Any) -> Any:
            x = self.inlet(x)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    return Residual


def load(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    need("torch", extra="lm", purpose="the trial of dynamic-whitening")
    from sklearn.datasets import load_digits

    ratio, depth = float(params["digits_ratio"]), int(params["depth"])
    if not 0 < ratio < 1 or depth < 2 or depth % 2:
        raise InputError(
            f"-p digits_ratio={ratio} -p depth={depth}: expected a share between 0 and 1, and an even depth from 2"
        )
    x, labels = load_digits(return_X_y=True)
    name = f"residual networks of {depth} layers on digits, {ratio:g} of their inner layers kept"
    return Data(name, len(x), (x.astype(np.float32) / 16, labels, depth, ratio))


def networks(data: Any, n: int, seed: int) -> Iterator[Case]:
    x, labels, depth, ratio = data
    for number in range(n):
        own = child_seed(seed, "network", number)
        order = np.random.default_rng(own).permutation(len(x))
        known, held = order[:1200], order[1200:]
        weights = trained(x[known], labels[known], depth, own)
        yield Case(
            f"network {number + 1}",
            Network(weights, x[known], depth, ratio),
            HeldOut(x[held], labels[held], weights, depth),
        )


def trained(x: Any, labels: Any, depth: int, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = network_class()(depth)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    inputs, targets = torch.from_numpy(x), torch.from_numpy(labels)
    batches = np.random.default_rng(seed).integers(len(x), size=(STEPS, 128))
    for rows in torch.from_numpy(batches):
        loss = torch.nn.functional.cross_entropy(model(inputs[rows]), targets[rows])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
    return {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}


def restored(weights: dict[str, np.ndarray[Any, Any]], depth: int) -> Any:
    import torch

    model = network_class()(depth)
    model.load_state_dict({name: torch.from_numpy(values) for name, values in weights.items()})
    return model.eval()


def whitened(whiten: Any, target: Any, given: Network, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """Dense weights of the compressed network."""
    import torch

    from assay.compress.dynamic_whitening import WhiteningConfig, factorize_, merge_

    model = restored(given.weights, given.depth)
    config = WhiteningConfig(given.ratio, whiten=whiten, target=target, skip=("inlet", "head"))
    factorize_(model, config, [torch.from_numpy(given.x)])
    merge_(model)
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def baseline(kind: str, given: Network, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    import torch

    from assay.trials.compress.svd_baselines import asvd, rank_at, seen_by_layers, svd, svd_llm

    model = restored(given.weights, given.depth)
    cut = dict(given.weights)
    for name, weight, seen in seen_by_layers(model, [torch.from_numpy(given.x)], ("inlet", "head")):
        pair = {
            "svd-llm": lambda w, s: svd_llm(w, s.gram),
            "asvd": lambda w, s: asvd(w, s.absolute / s.n_tokens),
            "svd": lambda w, s: svd(w),
        }[kind](weight, seen).cut(rank_at(weight.shape, given.ratio))
        cut[f"{name}.weight"] = (pair.a @ pair.b).numpy()
    return cut


def kept(case: Case, weights: dict[str, np.ndarray[Any, Any]]) -> dict[str, float]:
    import torch

    truth: HeldOut = case.truth
    with torch.inference_mode():
        full, found = (restored(w, truth.depth)(torch.from_numpy(truth.x)) for w in (truth.weights, weights))
    return {
        "output_error": float((found - full).norm() / full.norm()),
        "accuracy": float(np.mean(found.argmax(1).numpy() == truth.labels)),
    }
