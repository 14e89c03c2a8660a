"""Find the blocks that a model is a stack of. It imports torch: import it only where a model is at hand."""

from __future__ import annotations

from torch import nn

#: What transformers calls the decoder inside a vision-language model.
_TEXT_TOWERS = ("language_model", "text_model")


def text_tower(model: nn.Module) -> tuple[str, nn.Module]:
    """Name and module of the decoder inside a vision-language model; any other model itself, under the empty name."""
    towers = ((name, part) for name, part in model.named_modules() if name.rpartition(".")[-1] in _TEXT_TOWERS)
    return next(towers, ("", model))


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
