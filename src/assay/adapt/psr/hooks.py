"""Act on a model from outside: where its blocks are, which positions of a pass are steered, hooks that leave nothing.

In a pass without a cache behind it (the prompt) only the last real token of a row is steered, or the positions of a
mask; in a step of decoding the new token is. Without a cache a step runs the whole sequence again: a pass that is one
token longer than the one before and begins with the same prompt is steered from the prompt on. Several tokens behind a
filled cache are a further prompt, of which again the last is steered; ways to generate that split a prompt or check
several tokens of an answer at a time cannot be told from it, and are refused.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from assay._core.decoder import decoder_blocks, text_tower
from assay._core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor, nn

    #: From the states of the steered positions, (n, d), to those that take their place.
    Edit = Callable[[Tensor], Tensor]

#: Options of ``model.generate`` whose passes hold part of a prompt, or tokens of an answer that are only guessed.
SPLIT_PASSES = ("assistant_model", "prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp", "prefill_chunk_size")

#: Coordinates by which embeddings are told apart.
_TOLD_APART = 8


class Blocks:
    """The blocks of a decoder, and the module that runs them.

    Parameters
    ----------
    model : nn.Module
        Any Hugging Face decoder.
    path : str, optional
        Name of its list of blocks, such as ``"model.layers"``; None: the longest list of like modules, inside the
        decoder of a vision-language model.

    Raises
    ------
    InputError
        There is no such list.
    """

    def __init__(self, model: nn.Module, path: str | None = None) -> None:
        if path is None:
            tower, inside = text_tower(model)
            found = decoder_blocks(inside)
            if found[0][0] == "":
                raise InputError(
                    f"no list of blocks was found in {type(model).__name__}; name it, as in blocks='model.layers'"
                )
            path = f"{tower}.{found[0][0]}".lstrip(".").rpartition(".")[0]
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

    Attributes
    ----------
    now : (batch, n_tokens) bool tensor, or None
        Of the running pass; None: all, as in a step of decoding.
    """

    def __init__(self, blocks: Blocks, span: str, mask: Tensor | None) -> None:
        self._blocks, self._span, self._mask = blocks, span, mask
        self._is_checked = False
        self._prompt: tuple[Tensor, Tensor] | None = None
        self._first: Tensor | None = None
        self._n_last = 0
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
            self._prompt, self.now = None, None
            return
        own = real[:, -n_new:]
        words = tokens if tokens.ndim == 2 else tokens[..., :_TOLD_APART]
        if cache is None and self._goes_on(words, own):
            self._refuse_holes(real)
            assert self._first is not None
            self.now = torch.nn.functional.pad(self._first, (0, n_new - self._first.shape[1]), value=True)
            self._n_last = n_new
            return
        self._is_checked = False
        if self._mask is None and self._span == "question_and_answer":
            raise InputError(
                "span='question_and_answer' must know where the question is: use generate(prompts), or give mask="
            )
        given_here = None if self._mask is None else self._given(n_rows, n_new).to(own.device)
        self.now = last_positions(own) if given_here is None else given_here & own.bool()
        self._prompt, self._first, self._n_last = None, self.now, n_new
        if cache is None:
            self._prompt = (words.detach().clone(), own)

    def _goes_on(self, words: Tensor, own: Tensor) -> bool:
        """Whether a pass without a cache is the next step of the one before; beams may have changed rows since."""
        if self._prompt is None or words.shape[1] != self._n_last + 1:
            return False
        n = self._prompt[0].shape[1]
        return all(torch.equal(here[:, :n], before) for here, before in zip((words, own), self._prompt, strict=True))

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
        if now is None:
            steered = edit(hidden.flatten(0, 1)).view_as(hidden)
        else:
            now = now.to(hidden.device)
            steered = hidden.clone()
            steered[now] = edit(hidden[now])
        return (steered, *output[1:]) if isinstance(output, tuple) else steered

    return hook


class _Generate:
    """Stands in for a model's ``generate`` while it is steered, and refuses what :data:`SPLIT_PASSES` lists."""

    def __init__(self, model: Any) -> None:
        self.model, self.generate, self.n_steering = model, model.generate, 0
        self.was_own = "generate" in vars(model)  # another library stands there already

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # What a config of one call leaves open is filled from the model's own.
        configs = (kwargs.get("generation_config"), *args[1:2], self.model.generation_config)
        for name in SPLIT_PASSES:
            if kwargs.get(name) or any(getattr(config, name, None) for config in configs):
                raise InputError(f"generate with {name} cannot be steered: its passes do not show where the prompt "
                                 "ends; leave it out")  # fmt: skip
        return self.generate(*args, **kwargs)

    def remove(self) -> None:
        self.n_steering -= 1
        if self.n_steering:
            return
        del self.model.generate
        if self.was_own:
            self.model.generate = self.generate


def watch_generate(model: Any) -> list[Any]:
    """Refuse what cannot be steered; what is returned removes it. Nested steerings share one."""
    if not hasattr(model, "generate"):
        return []
    if not isinstance(model.generate, _Generate):
        model.generate = _Generate(model)
    model.generate.n_steering += 1
    return [model.generate]


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """No gradients for the model's parameters, no dropout; afterwards all is as it was."""
    wanted = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    modes = [(module, module.training) for module in model.modules()]
    try:
        for parameter, _ in wanted:
            parameter.requires_grad_(False)
        model.eval()
        yield
    finally:
        for parameter, was in wanted:
            parameter.requires_grad_(was)
        for module, mode in modes:
            module.training = mode


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
