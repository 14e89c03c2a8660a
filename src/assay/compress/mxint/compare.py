"""Which format for which tensor: measured error beside the theory's, winners, and a recommendation."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from assay._core.errors import InputError
from assay.compress._layers import linear_layers
from assay.compress.mxint.formats import PAPER_FORMATS, Format, get_format
from assay.compress.mxint.metrics import crest_factor, qsnr
from assay.compress.mxint.tensors import checked_tensor, fake_quant, rotate_blocks, to_rows
from assay.compress.mxint.theory import theory_qsnr

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from matplotlib.axes import Axes
    from torch import Tensor, nn

    from assay.compress.mxint.tensors import Rotation


@dataclass(frozen=True)
class FormatComparison:
    """Errors of formats on tensors.

    Parameters
    ----------
    rows : DataFrame
        One row a tensor, rotation and format: tensor, n, format, rotate, bits, kappa_q1, kappa_median, kappa_q3
        (quartiles of the crest factor over blocks), qsnr, theory (both in dB).
    """

    rows: pd.DataFrame

    def to_frame(self) -> pd.DataFrame:
        """A copy of `rows`."""
        return self.rows.copy()

    def winners(self) -> pd.DataFrame:
        """INT against FP of equal bits: tensor, rotate, pair, kappa (median), predicted, measured, lead (dB of INT)."""
        found = []
        for (tensor, rotate), part in self.rows.groupby(["tensor", "rotate"], sort=False):
            errors: Any = part.set_index("format").to_dict("index")
            for name in errors:
                twin = name.replace("int", "fp")
                if twin == name or twin not in errors:
                    continue
                theory, lead = (errors[name][kind] - errors[twin][kind] for kind in ("theory", "qsnr"))
                predicted, measured = (name if gap > 0 else twin for gap in (theory, lead))
                kappa = errors[name]["kappa_median"]
                found.append((tensor, rotate, f"{name} / {twin}", kappa, predicted, measured, lead))
        return pd.DataFrame(found, columns=["tensor", "rotate", "pair", "kappa", "predicted", "measured", "lead"])

    def recommend(self, budget: float) -> dict[str, str]:
        """A format for each tensor so that all together fit and the sum of relative errors is small.

        Every tensor starts at its cheapest format; what gains most error a byte is widened until nothing fits.
        Rotated rows are left out unless all are, as are formats that another beats at no more bits.

        Parameters
        ----------
        budget : float
            Bytes of all tensors together.

        Returns
        -------
        dict of tensor to format name

        Raises
        ------
        InputError
            Even the cheapest formats do not fit.
        """
        plain = self.rows[self.rows["rotate"] == "none"]
        rows = plain if len(plain) else self.rows
        ladders = {str(name): _ladder(part) for name, part in rows.groupby("tensor")}
        spent = sum(ladder[0][0] for ladder in ladders.values())
        if spent > budget:
            raise InputError(
                f"budget of {budget / 1e6:.1f} MB: the narrowest formats need {spent / 1e6:.1f} MB; raise it or allow "
                f"narrower formats"
            )
        step = dict.fromkeys(ladders, 0)
        queue = [(-_gain(ladder, 0), name) for name, ladder in ladders.items() if len(ladder) > 1]
        heapq.heapify(queue)
        while queue:
            _, name = heapq.heappop(queue)
            ladder, at = ladders[name], step[name]
            more = ladder[at + 1][0] - ladder[at][0]
            if spent + more > budget:
                continue
            spent += more
            step[name] = at + 1
            if at + 2 < len(ladder):
                heapq.heappush(queue, (-_gain(ladder, at + 1), name))
        return {name: ladder[step[name]][2] for name, ladder in ladders.items()}

    def summary(self) -> str:
        """Mean error of every format over the tensors with a 95 % interval, and who wins how often."""
        lines = ["format       rotate    bits   mean QSNR (dB)         theory"]
        for (fmt, rotate), part in self.rows.groupby(["format", "rotate"], sort=False):
            finite = part["qsnr"].replace([np.inf, -np.inf], np.nan).dropna()
            half = 1.96 * float(finite.std(ddof=1)) / np.sqrt(len(finite)) if len(finite) > 1 else float("nan")
            lines.append(
                f"{fmt:<12} {rotate:<9} {part['bits'].iloc[0]:<6g} {finite.mean():6.2f} ± {half:<5.2f}"
                f"        {part['theory'].mean():6.2f}"
            )
        wins = self.winners()
        lines.append("")
        for (pair, rotate), part in wins.groupby(["pair", "rotate"], sort=False):
            integer = str(pair).partition(" / ")[0]
            agree = int((part["predicted"] == part["measured"]).sum())
            lines.append(
                f"{pair}{'' if rotate == 'none' else ', rotated'}: {integer} has the smaller error on "
                f"{int((part['measured'] == integer).sum())} of {len(part)} tensors; theory right on {agree}"
            )
        lines.append("Formats of one name's digit differ in bits a value (MX 4.25, NV 4.5): compare within a pair.")
        return "\n".join(lines)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Lead of INT over FP (dB) against the crest factor, a colour a pair."""
        from matplotlib import pyplot as plt

        axes = ax or plt.figure(figsize=(6.5, 4), layout="constrained").add_subplot()
        wins = self.winners()
        for color, (pair, part) in zip(
            ("#0072B2", "#D55E00", "#009E73", "#CC79A7"), wins.groupby("pair", sort=False), strict=False
        ):
            axes.scatter(part["kappa"], part["lead"], s=14, color=color, label=str(pair))
        axes.axhline(0, color="#666666", linewidth=0.8)
        axes.set_xlabel("median crest factor of a block (max / rms)")
        axes.set_ylabel("QSNR of INT minus FP (dB)")
        axes.legend(frameon=False)
        return axes


def _ladder(part: pd.DataFrame) -> list[tuple[float, float, str]]:
    """(bytes, relative error, format), each step larger and better than the one before, gains shrinking."""
    error = 10 ** (-part["qsnr"] / 10)
    options = sorted(zip(part["bits"] * part["n"] / 8, error, part["format"], strict=True))
    hull: list[tuple[float, float, str]] = []
    for option in options:
        if hull and option[1] >= hull[-1][1]:
            continue
        if hull and option[0] == hull[-1][0]:
            hull.pop()
        # A step that gains less a byte than the one after it is never worth stopping at.
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) < _slope(hull[-2], option):
            hull.pop()
        hull.append(option)
    return hull


def _slope(first: tuple[float, float, str], second: tuple[float, float, str]) -> float:
    return (first[1] - second[1]) / (second[0] - first[0])


def _gain(ladder: list[tuple[float, float, str]], at: int) -> float:
    return _slope(ladder[at], ladder[at + 1])


def compare_formats(
    tensors: Mapping[str, Any],
    formats: Sequence[str | Format] = PAPER_FORMATS,
    *,
    rotate: Sequence[Rotation | None] = (None,),
    axis: int | None = None,
    seed: int = 0,
) -> FormatComparison:
    """Quantise tensors in every format and measure the error.

    Parameters
    ----------
    tensors : mapping of name to float array or tensor
        Weights (out_features, in_features), activations (tokens, features), or other matrices with the
        axis that is summed over last.
    formats : sequence of str or Format
    rotate : sequence of None and "hadamard"
    axis : int, optional
        Along which blocks run. None: the last, of tensors with one or two axes.
    seed : int
        Of rotations.

    Returns
    -------
    FormatComparison

    Raises
    ------
    InputError
        No tensors, no formats, a tensor with more than two axes and no `axis`, NaN or infinity.

    Examples
    --------
    >>> normal = np.random.default_rng(0).standard_normal((64, 256))
    >>> found = compare_formats({"w": normal}, ["mxint4", "mxfp4"])
    >>> found.winners()[["predicted", "measured"]].to_numpy().tolist()
    [['mxfp4', 'mxfp4']]
    """
    made = [get_format(fmt) for fmt in formats]
    if not tensors or not made:
        raise InputError(f"{len(tensors)} tensors and {len(made)} formats; expected at least one of each")
    rows = []
    for name, values in tensors.items():
        along = _axis(name, values, axis)
        try:
            x = checked_tensor(values, along).detach()
            for turned in rotate:
                rows += [_row(name, x, fmt, turned, along, seed) for fmt in made]
        except InputError as error:
            raise InputError(f"tensor {name!r}: {error}") from None
    return FormatComparison(pd.DataFrame(rows))


def _axis(name: str, values: Any, axis: int | None) -> int:
    if axis is None and np.ndim(values) > 2:
        raise InputError(
            f"tensor {name!r} has shape {tuple(values.shape)}; say with axis= along which axis the product sums "
            f"(of a convolution's weight: 1, the input channels)"
        )
    return -1 if axis is None else axis


def _row(name: str, x: Tensor, fmt: Format, rotate: Rotation | None, axis: int, seed: int) -> dict[str, Any]:
    error = qsnr(x, fake_quant(x, fmt, axis, rotate=rotate, seed=seed))
    seen = x
    if rotate is not None:
        rows, size = to_rows(x, axis % x.ndim, fmt)
        seen, axis = rotate_blocks(rows.reshape(-1, size), seed), -1
    kappa = crest_factor(seen, fmt.block, axis)
    quartiles = np.percentile(kappa, [25, 50, 75]) if len(kappa) else [np.nan] * 3
    # The error of a tensor is a ratio of sums, so what the theory needs is the quadratic mean over blocks.
    typical = float(np.sqrt(np.mean(kappa**2))) if len(kappa) else np.nan
    return {
        "tensor": name,
        "n": x.numel(),
        "format": fmt.name,
        "rotate": rotate or "none",
        "bits": fmt.bits_per_element,
        "kappa_q1": quartiles[0],
        "kappa_median": quartiles[1],
        "kappa_q3": quartiles[2],
        "qsnr": error,
        "theory": theory_qsnr(fmt, max(1.0, typical)) if len(kappa) else np.nan,
    }


def six_points(x: Tensor, weight: Tensor, dy: Tensor) -> dict[str, Tensor]:
    """The operands of a linear layer's three products, each with the axis that is summed over last.

    Parameters
    ----------
    x : (n_tokens, in_features)
    weight : (out_features, in_features)
    dy : (n_tokens, out_features)
        Gradient of the loss with respect to the layer's output.
    """
    return {"x": x, "w": weight, "dy": dy, "w_back": weight.T, "dy_back": dy.T, "x_back": x.T}


def capture(
    model: nn.Module, run: Callable[[], Any], skip: tuple[str, ...] = ("lm_head",)
) -> dict[str, tuple[Tensor, Tensor | None]]:
    """Inputs of the linear layers, and gradients of their outputs if `run` goes backward.

    Parameters
    ----------
    model : nn.Module
    run : callable
        Runs the model once (and ``loss.backward()`` where gradients are wanted).
    skip : tuple of str

    Returns
    -------
    dict of layer to (x, dy)
        (n_tokens, in_features), and (n_tokens, out_features) or None.
    """
    inputs: dict[str, Tensor] = {}
    gradients: dict[str, Tensor] = {}
    handles = []

    def watch(name: str) -> Callable[[Any, Any, Any], None]:
        def seen(module: Any, given: Any, output: Tensor) -> None:
            inputs[name] = given[0].detach().reshape(-1, given[0].shape[-1])
            if output.requires_grad:
                output.register_hook(  # type: ignore[no-untyped-call]  # torch leaves it untyped
                    lambda gradient: gradients.__setitem__(name, gradient.detach().reshape(-1, gradient.shape[-1]))
                )

        return seen

    for name, layer in linear_layers(model, skip):
        handles.append(layer.register_forward_hook(watch(name)))
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return {name: (x, gradients.get(name)) for name, x in inputs.items()}
