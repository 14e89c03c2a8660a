"""Find the blocks that a model is a stack of. It imports torch: import it only where a model is at hand."""

from __future__ import annotations

from torch import nn


def decoder_blocks(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Names and modules of the blocks that a model is a stack of, in order.

    They are the members of its longest ``nn.ModuleList`` whose members are of one class and hold linear layers. A model
    without one is itself the only block, under the empty name.
    """
    best: list[tuple[str, nn.Module]] = []
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) or len({type(child) for child in module}) != 1:
            continue
        if type(module[0]) is not nn.Linear and len(module) > len(best) and _has_linear(module[0]):
            best = [(f"{name}.{i}" if name else str(i), child) for i, child in enumerate(module)]
    return best or [("", model)]


def _has_linear(module: nn.Module) -> bool:
    return any(isinstance(part, nn.Linear) or type(part).__name__ == "Conv1D" for part in module.modules())
