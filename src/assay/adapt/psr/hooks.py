"""Act on a model from outside: where its blocks are, which positions of a pass are steered, hooks that leave nothing.

In a pass without a cache behind it (the prompt) only the last real token of a row is steered, or the positions of a
mask; in a step of decoding the new token is. Several tokens behind a filled cache are a further prompt, of which again
the last is steered; assisted decoding, which checks several tokens of an answer at a time, is therefore not supported.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

from assay._core.decoder import decoder_blocks
from assay._core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    #: From the states of the steered positions, (n, d), to those that take their place.
    Edit = Callable[[Tensor], Tensor]


class Blocks:
    """The blocks of a decoder, and the module that runs them.

    Parameters
    ----------
    model : nn.Module
        Any Hugging Face decoder.
    path : str, optional
        Name of its list of blocks, such as ``"model.layers"``; None: the longest list of like modules.

    Raises
    ------
    InputError
        There is no such list.
    """

    def __init__(self, model: nn.Module, path: str | None = None) -> None:
        if path is None:
            found = decoder_blocks(model)
            if found[0][0] == "":
                raise InputError(
                    f"no list of blocks was found in {type(model).__name__}; name it, as in blocks='model.layers'"
                )
            path = found[0][0].rpartition(".")[0]
            self.blocks = [block for _, block in found]
        else:
            try:
                listed: Any = model.get_submodule(path)
                self.blocks = list(listed)
            except (AttributeError, TypeError):
                raise InputError(f"blocks={path!r}: {type(model).__name__} has no list of modules there") from None
        self.path = path
        self.backbone = model.get_submodule(path.rpartition(".")[0])
        self._signature = inspect.signature(self.backbone.forward)

    def __len__(self) -> int:
        return len(self.blocks)

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """What the backbone is called with, by name."""
        bound = self._signature.bind_partial(*args, **kwargs).arguments
        for name, parameter in self._signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                bound.update(bound.pop(name, {}))
        return bound


def check_layers(layers: str | int | list[int] | tuple[int, ...], n_blocks: int) -> list[int]:
    """Numbers of layers, from 0, in order.

    Parameters
    ----------
    layers : "middle", "all", int or list of int
        Negative numbers count from the end.

    Raises
    ------
    InputError
        A number is out of range, comes twice, or there is none.

    Examples
    --------
    >>> check_layers("middle", 30), check_layers([-1, 0], 4)
    ([15], [0, 3])
    """
    if layers == "middle":
        return [n_blocks // 2]
    if layers == "all":
        return list(range(n_blocks))
    asked = [layers] if isinstance(layers, int) else layers
    if isinstance(asked, str) or not asked:
        raise InputError(f"layers={layers!r}: expected 'middle', 'all', a number or a list of numbers")
    for layer in asked:
        if not isinstance(layer, int) or not -n_blocks <= layer < n_blocks:
            raise InputError(f"layer {layer}: the model has {n_blocks}; expected {-n_blocks} to {n_blocks - 1}")
    made = sorted({layer % n_blocks for layer in asked})
    if len(made) < len(asked):
        raise InputError(f"layers={layers!r}: a layer comes twice")
    return made


def last_positions(attention_mask: Tensor) -> Tensor:
    """The last real token of every row, as a mask.

    Examples
    --------
    >>> last_positions(torch.tensor([[0, 1, 1], [1, 1, 0]])).int().tolist()
    [[0, 0, 1], [0, 1, 0]]
    """
    places = torch.arange(attention_mask.shape[1], device=attention_mask.device)
    last = (attention_mask.bool() * places).argmax(1, keepdim=True)
    return (places == last) & attention_mask.bool()


class Positions:
    """Which positions of the running pass are steered; filled in by a hook before the backbone runs.

    Parameters
    ----------
    blocks : Blocks
    span : "answer_only" or "question_and_answer"
        With the second, the prompt's pass needs a mask.
    mask : (batch, n_tokens) bool tensor, optional
        Positions of the first pass.
    """

    def __init__(self, blocks: Blocks, span: str, mask: Tensor | None) -> None:
        self._blocks, self._span, self._mask = blocks, span, mask
        self._is_checked = False
        self.now: Tensor | None = None

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Look at what the backbone is called with."""
        given = self._blocks.arguments(args, kwargs)
        tokens: Tensor = given["input_ids"] if given.get("input_ids") is not None else given["inputs_embeds"]
        n_rows, n_new = tokens.shape[:2]
        cache = given.get("cache") if given.get("cache") is not None else given.get("past_key_values")
        n_past = 0 if cache is None else int(cache.get_seq_length())
        real = given.get("attention_mask")
        if not isinstance(real, torch.Tensor) or real.ndim != 2:  # a mask of another form: rows are left-padded
            real = torch.ones(n_rows, n_past + n_new, dtype=torch.long, device=tokens.device)
        if n_past and n_new == 1:
            self._refuse_holes(real)
            self.now = torch.ones(n_rows, 1, dtype=torch.bool, device=tokens.device)
            return
        self._is_checked = False
        own = real[:, -n_new:]
        if self._mask is None and self._span == "question_and_answer":
            raise InputError(
                "span='question_and_answer' must know where the question is: use generate(prompts), or give mask="
            )
        self.now = last_positions(own) if self._mask is None else self._given(n_rows, n_new) & own.bool()

    def _given(self, n_rows: int, n_new: int) -> Tensor:
        assert self._mask is not None
        if self._mask.shape[1] != n_new or n_rows % self._mask.shape[0]:
            raise InputError(
                f"mask: expected the shape of the first pass, ({n_rows}, {n_new}), not {tuple(self._mask.shape)}"
            )
        return self._mask.repeat_interleave(n_rows // self._mask.shape[0], 0)  # beams repeat a row

    def _refuse_holes(self, real: Tensor) -> None:
        """Once for each prompt: padding between the prompt and what is generated."""
        if not self._is_checked:
            holes = (real[:, 1:] < real[:, :-1]).any(1)
            if holes.any():
                row = int(holes.int().argmax())
                raise InputError(
                    f"row {row} of the batch is padded on the right, so that its answer would follow padding; "
                    "set tokenizer.padding_side = 'left'"
                )
            self._is_checked = True


def attach(blocks: Blocks, edits: dict[int, Edit], span: str = "answer_only", mask: Tensor | None = None) -> list[Any]:
    """Put hooks on a model; what is returned removes them (``handle.remove()``).

    Parameters
    ----------
    blocks : Blocks
    edits : mapping of layer to callable
        What to make of the states of the steered positions.
    span, mask
        As in :class:`Positions`.
    """
    positions = Positions(blocks, span, mask)
    handles: list[Any] = [blocks.backbone.register_forward_pre_hook(positions.before, with_kwargs=True)]
    handles += [blocks.blocks[layer].register_forward_hook(_editing(edit, positions)) for layer, edit in edits.items()]
    return handles


def _editing(edit: Edit, positions: Positions) -> Any:
    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        hidden = output[0] if isinstance(output, tuple) else output  # some blocks return a tuple
        now = positions.now
        assert now is not None  # the backbone ran first
        if now.shape[1] == 1:
            steered = edit(hidden.flatten(0, 1)).view_as(hidden)
        else:
            now = now.to(hidden.device)
            steered = hidden.clone()
            steered[now] = edit(hidden[now])
        return (steered, *output[1:]) if isinstance(output, tuple) else steered

    return hook


class _Seen(Exception):  # noqa: N818  # no error: it ends a pass whose rest nobody needs
    pass


def states_of(blocks: Blocks, layers: list[int], **inputs: Any) -> dict[int, Tensor]:
    """What comes out of the layers, (batch, n_tokens, d), in one pass that ends at the last of them.

    Hooks that were put on before act first, so that what they made is seen.
    """
    seen: dict[int, Tensor] = {}

    def keeping(layer: int) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            seen[layer] = output[0] if isinstance(output, tuple) else output
            if layer == max(layers):
                raise _Seen

        return hook

    handles = [blocks.blocks[layer].register_forward_hook(keeping(layer)) for layer in layers]
    try:
        blocks.backbone(**inputs)
    except _Seen:
        pass
    finally:
        for handle in handles:
            handle.remove()
    return seen
