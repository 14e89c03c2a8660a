"""A small diffusion transformer of handwritten digits, trained on the spot by rectified flow and kept on disk.

The images are the 1797 of 8 by 8 pixels that scikit-learn holds, scaled to [-1, 1]. Noise is at t = 0, data at t = 1,
x_t = (1 - t) noise + t data, and the model foretells the velocity data - noise for a class and a time.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay._core.cache import made_dir
from assay._core.files import replacing
from assay._core.progress import progress_bar
from assay._core.seeds import child_seed

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

SIDE, PATCH, N_CLASSES = 8, 2, 10
WIDTH, N_BLOCKS, N_HEADS = 96, 4, 4
BATCH = 64

#: Images that the model makes of its own, from which the repairs are calibrated.
N_GENERATED = 1024

#: Raised when the model or its training changes.
_LAYOUT = 1


@cache
def images() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Images (1797, 64) in [-1, 1] and their classes."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return (found.data / 8 - 1).astype(np.float32), found.target.astype(np.int64)


@cache
def model_class() -> Any:
    """The transformer; the class is made on demand, as torch is loaded on demand."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        """Attention and MLP, shifted, scaled and gated by the condition (adaLN-zero)."""

        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
            self.modulation = nn.Linear(WIDTH, 6 * WIDTH)
            nn.init.zeros_(self.modulation.weight)
            nn.init.zeros_(self.modulation.bias)

        def forward(self, x: Any, condition: Any) -> Any:
            shift, scale, gate, shift_mlp, scale_mlp, gate_mlp = self.modulation(condition)[:, None].chunk(6, dim=-1)
            n, n_tokens, _ = x.shape
            h = functional.layer_norm(x, (WIDTH,)) * (1 + scale) + shift
            q, k, v = self.qkv(h).view(n, n_tokens, 3, N_HEADS, -1).permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
            x = x + gate * self.out(mixed)
            h = functional.layer_norm(x, (WIDTH,)) * (1 + scale_mlp) + shift_mlp
            return x + gate_mlp * self.down(functional.gelu(self.up(h)))

    class DigitsTransformer(nn.Module):
        """Velocity (n, 64) of images (n, 64) at times (n,) given classes (n,)."""

        def __init__(self) -> None:
            super().__init__()
            n_tokens = (SIDE // PATCH) ** 2
            self.embedder = nn.Linear(PATCH * PATCH, WIDTH)
            self.place = nn.Parameter(0.02 * torch.randn(n_tokens, WIDTH))
            self.time_embedder = nn.Sequential(nn.Linear(64, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
            self.class_embedder = nn.Embedding(N_CLASSES, WIDTH)
            self.blocks = nn.ModuleList([Block() for _ in range(N_BLOCKS)])
            self.final_modulation = nn.Linear(WIDTH, 2 * WIDTH)
            self.head = nn.Linear(WIDTH, PATCH * PATCH)
            for layer in (self.final_modulation, self.head):
                nn.init.zeros_(layer.weight)
                nn.init.zeros_(layer.bias)

        def forward(self, x: Any, t: Any, label: Any) -> Any:
            frequencies = torch.exp(torch.arange(32) * (-math.log(1000.0) / 32))
            angles = 1000.0 * t[:, None] * frequencies
            condition = self.time_embedder(torch.cat([angles.cos(), angles.sin()], dim=1)) + self.class_embedder(label)
            condition = functional.silu(condition)
            n, grid = len(x), SIDE // PATCH
            patches = x.view(n, grid, PATCH, grid, PATCH).transpose(2, 3).reshape(n, grid * grid, -1)
            h = self.embedder(patches) + self.place
            for block in self.blocks:
                h = block(h, condition)
            shift, scale = self.final_modulation(condition)[:, None].chunk(2, dim=-1)
            h = self.head(functional.layer_norm(h, (WIDTH,)) * (1 + scale) + shift)
            return h.view(n, grid, grid, PATCH, PATCH).transpose(2, 3).reshape(n, SIDE * SIDE)

    return DigitsTransformer


class Trained(NamedTuple):
    """The model, and images of its own (n, 64) with the classes that were asked for."""

    model: Any
    generated: Any
    labels: Any


@lru_cache(maxsize=2)
def trained(seed: int, n_steps: int) -> Trained:
    """The model of this seed: trained, or read from disk; an interrupted training goes on where it was."""
    from filelock import FileLock
    from safetensors.torch import load_file, save_file

    said = json.dumps([_LAYOUT, seed, n_steps, WIDTH, N_BLOCKS, N_HEADS, BATCH, N_GENERATED])
    folder = made_dir() / "models" / "digits"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"flow-{hashlib.sha256(said.encode()).hexdigest()[:16]}.safetensors"
    import torch

    with FileLock(path.with_suffix(".lock")):  # another process may be training the same: it is waited for
        if not path.is_file():
            model = _train(seed, n_steps, path.with_suffix(".part"))
            labels = torch.arange(N_GENERATED) % N_CLASSES
            generated = sample(model, start_noise(child_seed(seed, "generated"), N_GENERATED), labels, 25)
            with replacing(path) as temporary:
                save_file({**model.state_dict(), "generated": generated, "labels": labels}, str(temporary))
            path.with_suffix(".part").unlink(missing_ok=True)
    state = load_file(str(path))
    generated, labels = state.pop("generated"), state.pop("labels")
    model = model_class()()
    model.load_state_dict(state)
    return Trained(model.eval().requires_grad_(False), generated, labels)


def _train(seed: int, n_steps: int, checkpoint: Path) -> Any:
    import torch

    pixels, classes = (torch.from_numpy(part) for part in images())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class()()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=n_steps, pct_start=0.1)
    first = 0
    if checkpoint.is_file():
        state = torch.load(checkpoint, weights_only=True)
        for part, name in ((model, "model"), (optimizer, "optimizer"), (schedule, "schedule")):
            part.load_state_dict(state[name])
        first = state["step"]
    saved = time.monotonic()
    with progress_bar() as progress:
        task = progress.add_task("training a diffusion transformer of digits", total=n_steps, completed=first)
        for step in range(first, n_steps):
            generator = torch.Generator().manual_seed(child_seed(seed, "step", step))  # the same in a resumed run
            rows = torch.randint(len(pixels), (BATCH,), generator=generator)
            noised, t, velocity = noised_batch(pixels[rows], generator)
            loss = (model(noised, t, classes[rows]) - velocity).square().mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            progress.advance(task)
            if time.monotonic() - saved > 30:
                parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                with replacing(checkpoint) as temporary:
                    torch.save({**parts, "schedule": schedule.state_dict(), "step": step + 1}, temporary)
                saved = time.monotonic()
    return model.eval()


def noised_batch(clean: Any, generator: Any) -> tuple[Any, Any, Any]:
    """Images at random times: x_t, t and the true velocity."""
    import torch

    noise = torch.randn(clean.shape, generator=generator)
    t = torch.rand(len(clean), generator=generator)
    return (1 - t[:, None]) * noise + t[:, None] * clean, t, clean - noise


def start_noise(seed: int, n: int) -> Any:
    import torch

    return torch.randn(n, SIDE * SIDE, generator=torch.Generator().manual_seed(seed))


def sample(model: Any, noise: Any, labels: Any, n_steps: int) -> Any:
    """Images (n, 64) from noise, by Euler's method from t = 0 to 1."""
    import torch

    x = noise
    with torch.inference_mode():
        for step in range(n_steps):
            t = torch.full((len(x),), step / n_steps)
            x = x + model(x, t, labels) / n_steps
    return x.clone()


def calibration(found: Trained, seed: int, n_batches: int) -> list[tuple[Any, Any, Any]]:
    """Batches of the model's own images at random times."""
    import torch

    batches = []
    for number in range(n_batches):
        generator = torch.Generator().manual_seed(child_seed(seed, "calibration", number))
        rows = torch.randint(len(found.generated), (BATCH,), generator=generator)
        noised, t, _ = noised_batch(found.generated[rows], generator)
        batches.append((noised, t, found.labels[rows]))
    return batches


def frechet(a: NDArray[np.floating[Any]], b: NDArray[np.floating[Any]]) -> float:
    """Fréchet distance between normal distributions with the means and covariances of two samples (n, d)."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    first, second = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    values, vectors = np.linalg.eigh(first)
    root = (vectors * np.sqrt(values.clip(0))) @ vectors.T
    overlap = np.sqrt(np.linalg.eigvalsh(root @ second @ root).clip(0)).sum()
    return float(((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(first) + np.trace(second) - 2 * overlap)


@cache
def classifier() -> Any:
    """A support vector machine that reads the real digits."""
    from sklearn.svm import SVC

    pixels, classes = images()
    return SVC(gamma=0.06, C=10).fit(pixels, classes)
