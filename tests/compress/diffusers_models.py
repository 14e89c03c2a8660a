"""A tiny diffusion transformer of diffusers and inputs for it, for the tests of the family."""

import pytest
import torch


def tiny_dit():
    """Two blocks of width 32; skips the test where diffusers is not installed."""
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    return diffusers.DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=8, num_layers=2, sample_size=8,
        num_embeds_ada_norm=1000,
    ).eval()  # fmt: skip


def noise_levels(n, batch):
    draw = torch.Generator().manual_seed(0)
    return [
        {
            "hidden_states": torch.randn(batch, 4, 8, 8, generator=draw),
            "timestep": torch.randint(1000, (batch,), generator=draw),
            "class_labels": torch.randint(10, (batch,), generator=draw),
        }
        for _ in range(n)
    ]
