"""How far a change of each weight moves what the model says: the score of every weight, without data.

For z = W h and f the output, a change of W_ij moves f by about ||df/dz_i|| |dW_ij| |h_j|. With |W_ij| for the unknown
|dW_ij| that is the score. ||df/dz_i|| comes from a few backward passes of random signs, for all layers at once.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from assay._core.errors import InputError
from assay._core.progress import progress_bar
from assay._core.seeds import child_seed
from assay.adapt.model_dowser.layers import is_transposed, target_layers, weight_of
from assay.adapt.model_dowser.probes import Probes, as_batches, generate_probes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


# ------------------------------------------------------------------------------------------------ the numeric heart


def rademacher(shape: tuple[int, ...], seed: int, like: Tensor) -> Tensor:
    """Random signs in the dtype and on the device of `like`, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(0, 2, shape, generator=generator, dtype=torch.uint8)
    return bits.to(like.device).to(like.dtype).mul_(2).sub_(1)


def squared_gains(output: Tensor, layer_outputs: Sequence[Tensor], draws: Sequence[Tensor]) -> list[Tensor]:
    """Mean over draws of the squared gradient of ``(draw * output).sum()`` with respect to each layer's output.

    With random signs this is Hutchinson's estimate of ||J_i||^2, the squared length of what output unit i does to the
    whole of `output`; with the unit vectors in place of signs and their number as a factor it is exact.

    Parameters
    ----------
    output : (...) float
        With a graph behind it.
    layer_outputs : sequence of (..., d_out) float
        Tensors of that graph.
    draws : sequence of (...) float
        Each of the shape of `output`.

    Returns
    -------
    list of (..., d_out) float
        Zero where a layer's output does not reach `output`.
    """
    sums = [torch.zeros(z.shape, dtype=_wide(z), device=z.device) for z in layer_outputs]
    for number, draw in enumerate(draws):
        keep = number < len(draws) - 1
        found = torch.autograd.grad(output, layer_outputs, draw, retain_graph=keep, allow_unused=True)
        for total, g in zip(sums, found, strict=True):
            if g is not None:
                total.addcmul_(g.to(total.dtype), g.to(total.dtype))
    return [total.div_(len(draws)) for total in sums]


def rank_one_sum(gains: Tensor, inputs: Tensor) -> Tensor:
    """Sum over samples of gain_i |h_j|, the matrix M of the score, (d_out, d_in).

    Parameters
    ----------
    gains : (n, d_out) float
        ||J_i|| of every sample, not squared.
    inputs : (n, d_in) float
        Inputs h of the layer.

    Examples
    --------
    >>> rank_one_sum(torch.tensor([[1.0, 2.0]]), torch.tensor([[-3.0, 0.0]])).tolist()
    [[3.0, 0.0], [6.0, 0.0]]
    """
    return gains.T @ inputs.abs().to(gains.dtype)


# ------------------------------------------------------------------------------------------------------ whole models


def importance(
    model: nn.Module,
    probes: Probes | None = None,
    tokenizer: Any = None,
    n_probes: int = 32,
    n_hutchinson: int | Literal["exact"] = 8,
    modules: str = "linear",
    layers: int | Sequence[int] | None = None,
    reduce: Literal["position", "mean"] = "position",
    seed: int = 0,
    *,
    length: int = 64,
    batch_size: int = 4,
    verbose: bool = False,
) -> dict[str, Tensor]:
    """Score every weight of a model's linear layers by how far a change of it moves the model's output.

    High scores are what the model's abilities rest on: freeze them, train the lowest (:func:`build_mask`).

    Parameters
    ----------
    model : torch.nn.Module
        Any module with ``nn.Linear`` (or transformers' Conv1D). Nothing of it is changed.
    probes : tensor, mapping, list of str, or list of batches, optional
        What to run it on. None: text that the model writes itself (:func:`generate_probes`). A tensor of whole numbers
        is token ids, any other goes to the model as it is; a mapping holds keyword arguments of the model.
    tokenizer : transformers.PreTrainedTokenizerBase, optional
        For probes that are strings, and for a first token where the model wants one.
    n_probes, length : int
        Of probes that the model writes: how many, and their tokens.
    n_hutchinson : int or "exact"
        Backward passes of random signs a probe. ``"exact"``: one for each output number, for small models and tests.
    modules, layers
        Which layers: see :func:`target_layers`. By default all linear layers of the last 20 blocks.
    reduce : {"position", "mean"}
        ``"position"``: every token is a sample of its own. ``"mean"``: gains and inputs are averaged over the tokens of
        a probe first, which is a little cheaper and coarser.
    seed : int
        Of the probes and the signs. The result does not depend on `batch_size`.
    batch_size : int
        Probes a forward pass.
    verbose : bool
        Show progress, where stderr is a terminal.

    Returns
    -------
    dict of str to Tensor
        By the name of the parameter, of its shape, float32 (float64 for a model in float64), on its device. Only the
        order within a layer means something.

    Raises
    ------
    InputError
        No layer matches, weights are quantised, probes are missing where the model cannot write, or a score is not
        finite.

    Notes
    -----
    Paper (arXiv:2602.04509): S_ij = mean_n ||J_i,n|| |W_ij| |h_j,n|. It costs N forward and N R backward passes without
    gradients of weights, and one matrix in float32 for each that is scored. For vision-language models the decoder
    alone is scored.

    Examples
    --------
    >>> layer = nn.Linear(2, 1, bias=False)
    >>> _ = layer.weight.data.copy_(torch.tensor([[2.0, -3.0]]))
    >>> importance(layer, torch.tensor([[1.0, -2.0]]))["weight"].tolist()  # |W| |x|
    [[2.0, 6.0]]
    """
    if n_hutchinson != "exact" and n_hutchinson < 1:
        raise InputError(f"n_hutchinson={n_hutchinson}: expected 1 or more, or 'exact'")
    if reduce not in ("position", "mean"):
        raise InputError(f"reduce={reduce!r}: expected 'position' or 'mean'")
    targets = target_layers(model, modules, layers)
    if probes is None:
        probes = generate_probes(model, tokenizer, n_probes, length, seed=child_seed(seed, "probes"))
    batches = list(as_batches(probes, tokenizer, batch_size))
    sums = {
        name: torch.zeros(_out_in(module), dtype=_wide(weight_of(module)), device=weight_of(module).device)
        for name, module in targets.items()
    }
    if torch.is_inference_mode_enabled():
        raise InputError("scores need gradients, which inference mode forbids; call importance outside it")
    counts = dict.fromkeys(targets, 0)
    number = 0
    with progress_bar() if verbose else nullcontext() as bar, _watched(model, targets) as calls:
        for batch in batches if bar is None else bar.track(batches, description="scoring"):
            for made in calls.values():
                made.clear()
            output, mask = _forward(model, batch)
            draws = _draws(output, mask, n_hutchinson, seed, number)
            number += len(output)
            flat = [(name, h, z) for name, made in calls.items() for h, z in made]
            squares = squared_gains(output, [z for _, _, z in flat], draws)
            if n_hutchinson == "exact":
                squares = [square.mul_(len(draws)) for square in squares]
            for (name, h, _), square in zip(flat, squares, strict=True):
                gains, inputs, n = _samples(square.sqrt_(), h, mask, reduce)
                sums[name] += rank_one_sum(gains, inputs)
                counts[name] += n
    return {name: _score(name, module, sums[name], max(counts[name], 1)) for name, module in targets.items()}


def _score(name: str, module: nn.Module, total: Tensor, count: int) -> Tensor:
    weight = weight_of(module).detach()
    total.div_(count)
    score = (total.T if is_transposed(module) else total).contiguous().mul_(weight.abs())
    if not bool(torch.isfinite(score).all()):
        raise InputError(
            f"{name} has scores that are not finite; look for NaN in its weights, or load the model in float32"
        )
    return score


def _samples(gains: Tensor, h: Tensor, mask: Tensor | None, reduce: str) -> tuple[Tensor, Tensor, int]:
    """Rows (n, d_out) and (n, d_in), and by how many samples their sum is to be divided."""
    if gains.ndim != 3 or h.ndim != 3:
        gains, h = gains.flatten(0, -2), h.flatten(0, -2)
        return gains, h, len(gains)
    real = torch.ones(gains.shape[:2], dtype=torch.bool, device=gains.device)
    if mask is not None and mask.shape == gains.shape[:2]:
        real = mask
    if reduce == "position":
        return gains[real], h[real], int(real.sum())
    n_real = real.sum(1, keepdim=True).clamp(min=1)
    # What stands at padding may be anything, NaN too.
    gains, inputs = (part.masked_fill(~real[..., None], 0).sum(1) / n_real for part in (gains, h.abs().to(gains.dtype)))
    return gains, inputs, len(gains)


def _draws(output: Tensor, mask: Tensor | None, n: int | str, seed: int, first: int) -> list[Tensor]:
    """Directions in the space of outputs, independent at every position; none at padding."""
    by_token = mask is not None and output.ndim == 3 and output.shape[:2] == mask.shape
    if n == "exact":
        size = output[0].numel()
        units = torch.eye(size, dtype=output.dtype, device=output.device).view(size, 1, *output.shape[1:])
        found = [unit.expand(output.shape) for unit in units]
        return [draw * mask[..., None] for draw in found] if by_token and mask is not None else found
    draws = []
    for draw in range(int(n)):
        signs = torch.zeros_like(output)
        for row in range(len(output)):
            # A seed for each probe: neither its neighbours in the batch nor its padding change what it draws.
            own = child_seed(seed, "signs", first + row, draw)
            if by_token and mask is not None:
                signs[row, mask[row]] = rademacher((int(mask[row].sum()), output.shape[2]), own, output)
            else:
                signs[row] = rademacher(tuple(output.shape[1:]), own, output)
        draws.append(signs)
    return draws


def _forward(model: nn.Module, batch: Tensor | Mapping[str, Any]) -> tuple[Tensor, Tensor | None]:
    """The output of a batch with its graph, and which positions are text (None: no positions are known)."""
    device = next(model.parameters()).device
    mask: Tensor | None = None
    try:
        if isinstance(batch, Tensor):
            said = model(batch.to(device))
        else:
            given = {key: value.to(device) if isinstance(value, Tensor) else value for key, value in batch.items()}
            given.pop("labels", None)
            known = given.get("attention_mask")
            mask = known.bool() if isinstance(known, Tensor) and known.ndim == 2 else None
            takes = inspect.signature(model.forward).parameters
            if mask is not None and not bool(mask[:, 0].all()) and "position_ids" in takes:
                given.setdefault("position_ids", (mask.long().cumsum(1) - 1).clamp(min=0))
            if hasattr(model, "generate"):
                given["use_cache"] = False
            said = model(**given)
    except RuntimeError as error:
        if "not implemented for" not in str(error):
            raise
        raise InputError(f"the model cannot run in its dtype on {device} ({error}); load it in float32") from None
    output = next(
        (found for key in ("logits", "last_hidden_state") if (found := getattr(said, key, None)) is not None), said
    )
    output = output[0] if isinstance(output, tuple) else output
    if not isinstance(output, Tensor) or not output.requires_grad:
        raise InputError(
            f"the model returned {type(output).__name__} that does not depend on the layers to be scored; expected a "
            f"tensor, a tuple that begins with one, or an output with logits"
        )
    return output, mask


@contextmanager
def _watched(model: nn.Module, targets: Mapping[str, nn.Module]) -> Iterator[dict[str, list[tuple[Tensor, Tensor]]]]:
    """Collect inputs and outputs of the layers while the model runs in evaluation mode without gradients of weights.

    The graph begins at the outputs of the first layers that are scored: what lies below costs no backward pass.
    """
    calls: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in targets}
    modes = [(module, module.training) for module in model.modules()]
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]

    def watch(name: str) -> Any:
        def hook(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            z = output if output.requires_grad else output.requires_grad_()
            calls[name].append((inputs[0].detach(), z))
            return z.clone()  # the caller may write into what it gets

        return hook

    handles = []
    try:
        for name, module in targets.items():
            handles.append(module.register_forward_hook(watch(name)))
        model.eval()
        model.requires_grad_(False)
        with torch.inference_mode(False), torch.enable_grad():
            yield calls
    finally:
        for handle in handles:
            handle.remove()
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
        for module, mode in modes:
            module.training = mode


def _out_in(module: nn.Module) -> tuple[int, int]:
    rows, columns = weight_of(module).shape
    return (columns, rows) if is_transposed(module) else (rows, columns)


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
