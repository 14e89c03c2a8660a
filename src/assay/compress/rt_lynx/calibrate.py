"""Stream a model's activations into statistics of its layers, a few layers at a time, and compare whole outputs.

All inputs come from the dense model, as in the paper, so layers are independent of each other. A model that is a plain
stack of blocks is walked block by block, which runs it once; of any other, as many layers as fit a share of its memory
are watched in a pass.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from assay._core.decoder import decoder_blocks
from assay._core.errors import InputError
from assay.compress._blocks import Call, after, batches_of, block_inputs, each_block_input, run_block, watch_inputs
from assay.compress._layers import dense_weight, linear_layers, some
from assay.compress._memory import SpilledCalls, spilled_outputs
from assay.compress.rt_lynx.repair import RepairStats

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

    from assay.compress._blocks import Calibration as Batches
    from assay.compress.rt_lynx.layers import ActivationSparsityConfig

    #: Batches, or a function that runs the model on what it likes, the same at every call, and may return the output.
    Calibration = Batches | Callable[[nn.Module], Any]

#: Statistics that are held at a time: as a share of the model's bytes, or this many bytes if that is more, and at
#: least one layer's.
_SHARE, _LEAST = 0.1, 32e6

#: Calls on which whole outputs are compared.
_N_COMPARED = 8

# Names that diffusers, timm, transformers and the papers' own code give to these layers. A name has to be inside a
# block (one of its parts is a number) and must not belong to an embedding, a modulation or the head.
_ATTENTION = r"(q|k|v|qkv|to_q|to_k|to_v|to_qkv|(add_)?[qkv]_proj|qkv_proj|c_attn|query|key|value|query_key_value|wqkv)"
_MLP = (
    r"(up|down|up_proj|down_proj|gate_proj|gate_up_proj|fc1|fc2|fc_in|fc_out|c_fc|proj_mlp|linear_?[12]|w[123]"
    r"|dense_h_to_4h|dense_4h_to_h|(ff|ff_context|feed_forward|mlp|[a-z]+_mlp)\..*"
    r"|(intermediate|output)\.dense)"
)
_AUTO = re.compile(rf"(^|\.)\d+\.(.*\.)?({_ATTENTION}|{_MLP})$", re.IGNORECASE)
_NEVER = re.compile(
    r"(^|[._])(ada\w*|mod|modulation|norm\w*|emb\w*|time\w*|embedder|lm_head|head|router)([._]|$)", re.I
)
_OTHERS = re.compile(r"(attention\.output\.dense|(mlp|moe)\.gate)$")  # the latter sends tokens to experts


def target_layers(model: nn.Module, config: ActivationSparsityConfig) -> dict[str, nn.Module]:
    """The linear layers that the configuration means, by name.

    Raises
    ------
    InputError
        There are none, or the regular expression cannot be read.
    """
    layers = dict(linear_layers(model, config.skip, with_tied=True))
    if config.targets == "auto":
        found = {name: layer for name, layer in layers.items() if is_auto(name)}
    else:
        try:
            pattern = re.compile(config.targets)
        except re.error as error:
            raise InputError(f"targets={config.targets!r} is no regular expression: {error}") from None
        found = {name: layer for name, layer in layers.items() if pattern.search(name)}
    if not found:
        hint = "; give targets a regular expression" if config.targets == "auto" else ""
        raise InputError(f"no linear layer matches targets={config.targets!r}{hint}; the model has {some(layers)}")
    return found


def is_auto(name: str) -> bool:
    """Whether `targets="auto"` takes a layer of this name.

    Examples
    --------
    >>> is_auto("transformer_blocks.3.attn.to_q"), is_auto("transformer_blocks.3.attn.to_out.0"), is_auto("proj_out")
    (True, False, False)
    """
    return bool(_AUTO.search(name)) and not _NEVER.search(name) and not _OTHERS.search(name)


class _Enough(Exception):  # noqa: N818  # it is no error: it ends a forward pass early
    pass


class Runner:
    """Run a model on its calibration data, as often as needed, in evaluation mode and without gradients.

    Parameters
    ----------
    model : nn.Module
    calibration
        Batches as :func:`~assay.compress._blocks.batches_of` takes them, or a function of the model.
    folder : path, optional
        Where hidden states are written, to a temporary file; None: the system's temporary folder.

    Raises
    ------
    InputError
        The batches are empty or no inputs of a model.
    """

    def __init__(
        self, model: nn.Module, calibration: Calibration, folder: str | os.PathLike[str] | None = None
    ) -> None:
        self.model, self.folder = model, folder
        self.batches: list[Call] = []
        if callable(calibration) and not isinstance(calibration, torch.Tensor):
            self.calls: list[Callable[[], Any]] = [lambda: calibration(model)]
        else:
            self.batches = batches_of(calibration)
            self.calls = [
                lambda call=call: model(*call.args, **call.kwargs)  # type: ignore[misc]  # a default binds the loop's
                for call in self.batches
            ]

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        training = {name for name, module in self.model.named_modules() if module.training}
        self.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for name, module in self.model.named_modules():
                module.training = name in training

    def show_inputs(self, see: Callable[[Call], None]) -> None:
        """Hand all that the model is called with to `see`; a function has to be run for that."""
        if self.batches:
            for call in self.batches:
                see(call)
            return
        handle = self.model.register_forward_pre_hook(
            lambda module, args, kwargs: see(Call(args, kwargs)), with_kwargs=True
        )
        try:
            with self._quiet():
                for run in self.calls:
                    run()
        finally:
            handle.remove()

    def collect(
        self, layers: Mapping[str, nn.Module], config: ActivationSparsityConfig
    ) -> Iterator[tuple[str, RepairStats]]:
        """Statistics of each layer, each to be used before the next is asked for."""
        with self._quiet():
            blocks = self._stack(layers)
            counts = {} if blocks else self._count(layers)
        if blocks:
            yield from self._walk(blocks, layers, config)
            return
        is_single = len(self.calls) > 1 and all(count == 1 for count in counts.values())
        order = [*counts, *(name for name in layers if name not in counts)]
        for group in self._groups({name: layers[name] for name in order}):
            stats = _empty(group, config)
            with self._quiet():
                self._watch(group, stats, next(reversed(group)) if is_single else None)
            for name in group:
                yield name, stats.pop(name)

    def _stack(self, layers: Mapping[str, nn.Module]) -> list[tuple[str, nn.Module]]:
        """The blocks that hold all these layers, if each is called once, with what the one before returned."""
        blocks = decoder_blocks(self.model)
        if not self.batches or len(blocks) < 2:
            return []
        if not all(any(name.startswith(f"{prefix}.") for prefix, _ in blocks) for name in layers):
            return []
        seen: list[tuple[str, float, float]] = []

        def hook(prefix: str) -> Callable[..., None]:
            return lambda module, args, kwargs: seen.append((prefix, *_mark(_first(args, kwargs))))

        handles = [block.register_forward_pre_hook(hook(prefix), with_kwargs=True) for prefix, block in blocks]
        try:
            self.calls[0]()
        finally:
            for handle in handles:
                handle.remove()
        if [prefix for prefix, _, _ in seen] != [prefix for prefix, _ in blocks]:
            return []
        try:
            call = block_inputs(self.model, blocks[0][1], self.batches[:1])[0]
            for (_, block), (_, *mark) in zip(blocks, seen, strict=True):
                found = _mark(_first(call.args, call.kwargs))
                if not torch.allclose(torch.tensor(found), torch.tensor(mark), rtol=1e-4):
                    return []
                call = after(call, run_block(block, call))
        except (AssertionError, TypeError, ValueError, RuntimeError):  # its blocks hand on more than one tensor
            return []
        return blocks

    def _walk(
        self, blocks: list[tuple[str, nn.Module]], layers: Mapping[str, nn.Module], config: ActivationSparsityConfig
    ) -> Iterator[tuple[str, RepairStats]]:
        with self._quiet():
            calls = SpilledCalls.of(each_block_input(self.model, blocks[0][1], self.batches), self.folder)
        for prefix, block in blocks:
            inside = {name: layer for name, layer in layers.items() if name.startswith(f"{prefix}.")}
            for group in self._groups(inside):  # one, unless the block is much of the model
                stats = _empty(group, config)
                with self._quiet():
                    watch_inputs(block, group, calls, lambda name, rows, stats=stats: _update(stats, name, rows))  # type: ignore[misc]  # a default binds the loop's
                for name in group:
                    yield name, stats.pop(name)
            if block is not blocks[-1][1]:
                with self._quiet():
                    calls = calls.with_states(spilled_outputs(block, calls, self.folder))

    def _count(self, layers: Mapping[str, nn.Module]) -> dict[str, int]:
        """How often the first call uses each layer, in the order in which it does."""
        counts: dict[str, int] = {}

        def hook(name: str) -> Callable[..., None]:
            def seen(module: nn.Module, args: tuple[Any, ...]) -> None:
                counts[name] = counts.get(name, 0) + 1

            return seen

        handles = [layer.register_forward_pre_hook(hook(name)) for name, layer in layers.items()]
        try:
            self.calls[0]()
        finally:
            for handle in handles:
                handle.remove()
        return counts

    def _groups(self, layers: Mapping[str, nn.Module]) -> Iterator[dict[str, nn.Module]]:
        room = max(_LEAST, _SHARE * sum(p.numel() * p.element_size() for p in self.model.parameters()))
        group: dict[str, nn.Module] = {}
        used = 0.0
        for name, layer in layers.items():
            out_features, in_features = dense_weight(layer)[0].shape
            size = 4.0 * in_features * (in_features + out_features)
            if group and used + size > room:
                yield group
                group, used = {}, 0.0
            group[name] = layer
            used += size
        if group:
            yield group

    def _watch(self, group: Mapping[str, nn.Module], stats: Mapping[str, RepairStats], last: str | None) -> None:
        def hook(name: str) -> Callable[..., None]:
            def seen(module: nn.Module, args: tuple[Any, ...]) -> None:
                _update(stats, name, args[0])
                if name == last:  # nothing after it is needed
                    raise _Enough

            return seen

        handles = [layer.register_forward_pre_hook(hook(name)) for name, layer in group.items()]
        try:
            for run in self.calls:
                with contextlib.suppress(_Enough):
                    run()
        finally:
            for handle in handles:
                handle.remove()

    def output_error(self, dense: Callable[[], contextlib.AbstractContextManager[None]]) -> float:
        """Relative squared error of the outputs against those inside ``dense()``; NaN if there are no tensors."""
        wrong = total = 0.0
        step = max(1, len(self.calls) // _N_COMPARED)
        with self._quiet():
            for run in self.calls[::step][:_N_COMPARED]:
                with dense():
                    full = _tensor(run())
                seen = _tensor(run())
                if full is None or seen is None:
                    return float("nan")
                full, seen = full.float(), seen.float()  # first: differences of bytes would wrap around
                wrong += float((full - seen).square().sum())
                total += float(full.square().sum())
        return wrong / total if total else 0.0


def _empty(layers: Mapping[str, nn.Module], config: ActivationSparsityConfig) -> dict[str, RepairStats]:
    return {
        name: RepairStats(dense_weight(layer)[0], config.n, config.m, config.norm_comp, hold_out=True)
        for name, layer in layers.items()
    }


def _update(stats: Mapping[str, RepairStats], name: str, x: Tensor) -> None:
    try:
        stats[name].update(x)
    except InputError as error:
        raise InputError(f"layer {name!r}, {error}") from None


def _first(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The hidden states among the arguments of a block."""
    return args[0] if args else kwargs.get("hidden_states", next(iter(kwargs.values())))


def _mark(x: Any) -> tuple[float, float]:
    """Two numbers that tell one tensor from another."""
    wide = x.detach().double()
    return float(wide.norm()), float(wide.flatten() @ torch.linspace(0, 1, wide.numel(), dtype=torch.float64).to(wide))


def _tensor(output: Any) -> Tensor | None:
    """The tensor that a model or a pipeline returned, alone or where transformers and diffusers put it."""
    for name in ("logits", "sample", "last_hidden_state", "images"):
        output = getattr(output, name, output)
    if isinstance(output, list) and output and hasattr(output[0], "__array_interface__"):  # as pictures of PIL have
        output = np.stack([np.asarray(picture) for picture in output])
    if hasattr(output, "__array_interface__"):
        output = torch.from_numpy(np.array(output))
    if isinstance(output, tuple | list) and output:
        return _tensor(output[0])
    return output if isinstance(output, torch.Tensor) else None
