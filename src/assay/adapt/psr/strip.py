"""Where steering acts, token by token: numbers, a figure, and a strip of HTML for a report."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from assay._core.errors import InputError
from assay.adapt.psr.activations import run
from assay.adapt.psr.pairs import Example, encode_prompt, question_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from matplotlib.axes import Axes
    from numpy.typing import NDArray
    from torch import Tensor

    from assay.adapt.psr.pairs import Prompt
    from assay.adapt.psr.steering import Steering

#: Okabe and Ito's blue and vermilion: towards the attribute, and away from it.
TOWARDS, AWAY = (0, 114, 178), (213, 94, 0)

#: Tokens that `summary` names.
_NAMED = 8


@dataclass(frozen=True)
class Coefficients:
    """How strongly each token of a text was steered.

    Parameters
    ----------
    tokens : tuple of str
        The steered positions: the end of the prompt (and the question, where it is steered), then the answer.
    layers : tuple of int
    strengths : (n_layers, n_tokens) float64
        The coefficients lambda.
    shifts : (n_layers, n_tokens) float64
        lambda times the length of z: how far the state is moved, in units of the residual stream.
    n_prompt : int
        How many of the tokens are the prompt's.
    """

    tokens: tuple[str, ...]
    layers: tuple[int, ...]
    strengths: NDArray[np.float64]
    shifts: NDArray[np.float64]
    n_prompt: int

    def to_frame(self) -> pd.DataFrame:
        """One row a layer and token: layer, position, token, is_prompt, strength, shift."""
        import pandas as pd

        n = len(self.tokens)
        return pd.DataFrame(
            {
                "layer": np.repeat(self.layers, n),
                "position": np.tile(np.arange(n), len(self.layers)),
                "token": list(self.tokens) * len(self.layers),
                "is_prompt": np.tile(np.arange(n) < self.n_prompt, len(self.layers)),
                "strength": self.strengths.ravel(),
                "shift": self.shifts.ravel(),
            }
        )

    def summary(self) -> str:
        """For each layer the share of untouched tokens, and the tokens that are steered most."""
        lines = [f"{len(self.tokens)} tokens, {self.n_prompt} of the prompt"]
        for number, layer in enumerate(self.layers):
            row = self.strengths[number]
            most = np.argsort(-np.abs(row), kind="stable")[:_NAMED]
            named = ", ".join(f"{self.tokens[place]!r} {row[place]:.2f}" for place in most)
            lines.append(
                f"layer {layer:>3}  mean {row.mean():7.3f}  max {row.max():7.3f}  untouched {(row == 0).mean():4.0%}  "
                f"most: {named}"
            )
        return "\n".join(lines)

    def plot(self, ax: Axes | None = None) -> Axes:
        """The coefficient of each token, a line a layer."""
        from matplotlib import pyplot as plt

        if ax is None:
            width = max(6.0, 0.18 * len(self.tokens))
            ax = plt.subplots(figsize=(width, 3.5), layout="constrained")[1]
        colours = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
        for number, layer in enumerate(self.layers):
            ax.plot(
                self.strengths[number], color=colours[number % len(colours)], marker=".", label=f"layer {layer}",
                drawstyle="steps-mid",
            )  # fmt: skip
        ax.axvline(self.n_prompt - 0.5, color="0.6", linewidth=1)
        labels = [token.replace("$", r"\$").strip() or "␣" for token in self.tokens]
        ax.set_xticks(range(len(self.tokens)), labels, rotation=90, fontsize=7)
        ax.set(xlabel="token (the line: where the answer begins)", ylabel="coefficient λ (1: one z)")
        ax.legend(frameon=False)
        return ax


@torch.no_grad()
def coefficients_of(steering: Steering, prompt: Prompt, response: str, question: str | None = None) -> Coefficients:
    """How strongly `steering` steers each token of a prompt and a response; see :meth:`Steering.coefficients`."""
    pair = {"prompt": prompt} if question is None else {"prompt": prompt, "question": question}
    said = question_of(pair) if steering.span == "question_and_answer" else None
    base, where = encode_prompt(prompt, steering.tokenizer, said)
    answer = steering.tokenizer(response, add_special_tokens=False, verbose=False)["input_ids"]
    if not answer:
        raise InputError("the response is empty")
    example = Example(tuple(base), (), tuple(answer), where)
    seen: dict[int, Tensor] = {}
    ids = [*base, *answer]
    layers = steering.layers
    run(steering.blocks, ids, example.base_span, [layers[-1]], steering.edits(1.0, seen))
    values = torch.stack([seen[layer] * steering.directions[n].norm() for n, layer in enumerate(layers)])
    tokens = tuple(steering.tokenizer.decode([ids[place]]) for place in example.base_span)
    strengths = torch.stack([seen[layer] for layer in layers])
    return Coefficients(
        tokens, tuple(layers), strengths.cpu().double().numpy(), values.cpu().double().numpy(),
        len(tokens) - len(answer),
    )  # fmt: skip


def strip_html(coefficients: Coefficients, layer: int | None = None, title: str = "") -> str:
    """The tokens as a strip of HTML, each on a ground as strong as its coefficient; a fragment with its own style.

    Parameters
    ----------
    coefficients : Coefficients
    layer : int, optional
        One of its layers; None: the shift of all, added.
    title : str

    Returns
    -------
    str
        Everything in it is escaped; blue is towards the attribute, vermilion away from it, white is untouched.

    Examples
    --------
    >>> made = Coefficients(("Aye", "<b>"), (3,), np.array([[2.0, 0.0]]), np.array([[4.0, 0.0]]), 0)
    >>> "rgba(0,114,178,0.80)" in strip_html(made), "&lt;b&gt;" in strip_html(made)
    (True, True)
    """
    if layer is not None and layer not in coefficients.layers:
        raise InputError(f"layer={layer}: coefficients are of {', '.join(map(str, coefficients.layers))}")
    row = coefficients.shifts.sum(0) if layer is None else coefficients.strengths[coefficients.layers.index(layer)]
    most = float(np.abs(row).max()) or 1.0
    boxes = []
    for place, (token, value) in enumerate(zip(coefficients.tokens, row, strict=True)):
        red, green, blue = TOWARDS if value >= 0 else AWAY
        opacity = 0.8 * abs(float(value)) / most
        shown = html.escape(token).replace("\n", "↵") or "∅"
        border = "border-bottom:2px dotted #888;" if place < coefficients.n_prompt else ""
        boxes.append(
            f'<span title="{float(value):.3f}" style="background:rgba({red},{green},{blue},{opacity:.2f});{border}'
            f'white-space:pre-wrap;padding:1px 0">{shown}</span>'
        )
    head = f'<p style="margin:0 0 4px;font-weight:600">{html.escape(title)}</p>' if title else ""
    what = "shift of all layers" if layer is None else f"coefficient at layer {layer}"
    foot = f"darkest: {most:.3g} ({what}); dotted: the prompt"
    return (
        f'<div style="font:15px/1.9 ui-monospace,monospace;color:#111;background:#fff;padding:8px">{head}'
        f'{"".join(boxes)}<p style="margin:4px 0 0;font-size:12px;color:#555">{html.escape(foot)}</p></div>'
    )


def strip_page(strips: Sequence[str], title: str) -> str:
    """Strips as a page of their own that opens offline."""
    said = html.escape(title)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{said}</title></head>\n'
        f'<body style="max-width:60em;margin:2em auto;padding:0 1em;font-family:sans-serif"><h1>{said}</h1>\n'
        + "\n".join(strips)
        + "\n</body></html>\n"
    )
