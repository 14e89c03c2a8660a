"""The plots of a report as inline SVG: text stays text, colours follow the theme, ids do not collide.

matplotlib draws with sentinel colours, which `_themed` replaces by CSS variables; so one SVG serves the light and the
dark page. The palette behind the variables is Okabe and Ito's, and position or words always say the same as colour.
One unit of length is a point; the page shows `WIDTH` of them in 360 to 480 pixels, so sizes are nearly pixels.
"""

from __future__ import annotations

import io
import math
import re
import unicodedata
import warnings
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.bench.report.numbers import SPACE, duration, effect, is_known, memory, number
from assay.bench.stats import ROUNDING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from assay.bench.report.load import Run
    from assay.bench.result import ArmSummary

Array = np.ndarray[Any, np.dtype[np.float64]]

WIDTH = 400.0
SIDE = 10.0  # left and right of the axes, so that no dot and no label is cut
FONT = 12.0

#: Units that an axis may have, the largest first, in seconds and in MiB.
TIME_UNITS = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
MEMORY_UNITS = ((1024.0, "GiB"), (1.0, "MiB"))

# Colours that nobody would choose; each stands for a CSS variable of the page.
INK, SOFT, LINE, BAND, METHOD, RIVAL = (f"#0102{i:02x}" for i in range(1, 7))
VARIABLES = {INK: "--ink", SOFT: "--soft", LINE: "--line", BAND: "--band", METHOD: "--method", RIVAL: "--rival"}


def paired_values(run: Run) -> tuple[list[str], Array]:
    """What the method gains over its strongest baseline on every case where both have the primary metric.

    Returns
    -------
    cases : list of str
    values : (n_cases,) float64
        Method minus baseline, or on the log scale method divided by baseline.
    """
    table = run.cases.pivot(index="case", columns="arm", values=run.primary.name)
    both = table.reindex(columns=[run.method.name, run.strongest.name]).replace([np.inf, -np.inf], np.nan).dropna()
    is_ratio = run.result.verdict.effect_scale == "ratio"
    if is_ratio:
        both = both[(both > 0).all(axis=1)]
    method, baseline = both.to_numpy(dtype=np.float64).T
    values = method / baseline if is_ratio else method - baseline
    values[np.isclose(method, baseline, rtol=ROUNDING, atol=0.0)] = 1.0 if is_ratio else 0.0
    return [str(case) for case in both.index], values


def differences(run: Run, prefix: str) -> str:
    """One dot per case, sorted: method against strongest baseline, with the margin, the mean and its interval.

    Empty when no case has both.
    """
    cases, values = paired_values(run)
    if not cases:
        return ""
    order = np.argsort(values, kind="stable")
    cases, values = [cases[i] for i in order], values[order]
    is_ratio = run.result.verdict.effect_scale == "ratio"
    neutral = 1.0 if is_ratio else 0.0
    higher = run.primary.better == "higher"
    gains, losses = (values > neutral, values < neutral) if higher else (values < neutral, values > neutral)
    verdict = run.result.verdict

    plot_height = min(max(9.0 * len(cases), 72.0), 220.0)
    top, summary, bottom = 26.0, 34.0, 44.0
    figure = _figure(top + plot_height + summary + bottom)
    axes = _axes(figure, top, plot_height + summary)
    # Cases lie between 0 and 1; the mean has the strip below zero.
    axes.set_ylim(-summary / plot_height, 1.0)
    heights = (np.arange(len(cases)) + 0.5) / len(cases)

    margin = _margin(run)
    if margin:
        axes.axvspan(*margin, color=BAND, linewidth=0, zorder=0)
    axes.axvline(neutral, color=SOFT, linewidth=1.0, zorder=1)
    size = 6.0 if len(cases) <= 60 else 3.5
    groups = {"gains": (gains, METHOD), "losses": (losses, RIVAL), "ties": (~gains & ~losses, SOFT)}
    for name, (chosen, colour) in groups.items():
        axes.plot(
            values[chosen], heights[chosen], "o", color=colour, markersize=size, markeredgewidth=0, gid=name, zorder=3
        )
    if is_known(verdict.effect):
        middle = -summary / plot_height / 2
        if is_known(verdict.ci_low) and is_known(verdict.ci_high):
            axes.plot([verdict.ci_low, verdict.ci_high], [middle, middle], color=INK, linewidth=2.5, zorder=3)
        axes.plot([verdict.effect], [middle], "D", color=INK, markersize=7.5, markeredgewidth=0, zorder=4)

    ends = [neutral, *margin, verdict.effect, verdict.ci_low, verdict.ci_high, *values]
    _scale(axes, [end for end in ends if is_known(end)], is_log=is_ratio, pad=0.06)
    _ticks(
        axes, lambda value, decimals: f"{number(value, decimals)}×" if is_ratio else number(value, decimals, sign=True)
    )
    sides = ("baseline better", "method better") if higher else ("method better", "baseline better")
    _text(figure, 0.0, 16.0, f"← {sides[0]}", align="left")
    _text(figure, WIDTH, 16.0, f"{sides[1]} →", align="right")
    unit = f" ({run.primary.unit})" if run.primary.unit and not is_ratio else ""
    axis = f"{_clipped(run.primary.name, 30)}: method {'÷' if is_ratio else '−'} strongest baseline{unit}"
    _text(figure, WIDTH / 2, figure_height(figure) - 6.0, axis, align="center")

    labels = [effect(value, None, None, verdict.effect_scale, run.primary.unit)[0] for value in values]
    titles = [f"{case}: {label}" for case, label in zip(cases, labels, strict=True)]
    svg = _svg(figure, prefix, _differences_in_words(run, values, int(gains.sum()), int(losses.sum())))
    for name, (chosen, _) in groups.items():
        svg = _with_titles(svg, f"{prefix}-{name}", [titles[i] for i in np.flatnonzero(chosen)])
    return svg


def times(run: Run, prefix: str) -> str:
    """Wall time per case of every arm: the range as a line, the middle half as a bar, the median as a dot."""
    walls = [_finite(run, arm, "wall_s") for arm in run.arms]
    every = np.concatenate(walls)
    if not len(every):
        return ""
    is_log = bool(every.min() > 0 and every.max() / every.min() > 20)
    figure, axes = _rows(run, [duration(float(np.median(wall))) if len(wall) else "" for wall in walls])
    for row, (arm, wall) in enumerate(zip(run.arms, walls, strict=True)):
        if not len(wall):
            continue
        low, quarter, median, three_quarters, high = np.quantile(wall, [0, 0.25, 0.5, 0.75, 1])
        colour = _colour(run, arm)
        axes.plot([low, high], [row, row], color=colour, linewidth=1.5)
        axes.plot([quarter, three_quarters], [row, row], color=colour, linewidth=6.0, solid_capstyle="butt")
        axes.plot([median], [row], "o", color=INK, markersize=6.5, markeredgewidth=0, zorder=3)
    _scale(axes, list(every) if is_log else [0.0, *every], is_log=is_log, pad=0.03)
    _ticks_in(axes, TIME_UNITS)
    _text(figure, WIDTH / 2, figure_height(figure) - 6.0, "wall time per case", align="center")
    words = [
        f"{arm.name}: median {duration(float(np.median(wall)))}, {duration(wall.min())} to {duration(wall.max())}"
        if len(wall)
        else f"{arm.name}: no case finished"
        for arm, wall in zip(run.arms, walls, strict=True)
    ]
    return _svg(figure, prefix, f"Wall time per case. {'; '.join(words)}.")


def memories(run: Run, prefix: str) -> str:
    """Peak memory of every arm: the largest over its cases, as a bar from zero."""
    peaks = [arm.peak_mib for arm in run.arms]
    if not any(map(is_known, peaks)):
        return ""
    figure, axes = _rows(run, [memory(peak) if is_known(peak) else "" for peak in peaks])
    for row, (arm, peak) in enumerate(zip(run.arms, peaks, strict=True)):
        if is_known(peak):
            axes.plot([0, peak], [row, row], color=_colour(run, arm), linewidth=6.0, solid_capstyle="butt")
    _scale(axes, [0.0, *filter(is_known, peaks)], is_log=False, pad=0.03)
    _ticks_in(axes, MEMORY_UNITS)
    _text(figure, WIDTH / 2, figure_height(figure) - 6.0, "peak memory, largest case", align="center")
    words = [f"{arm.name}: {memory(arm.peak_mib) if is_known(arm.peak_mib) else 'unknown'}" for arm in run.arms]
    return _svg(figure, prefix, f"Peak memory, the largest over all cases. {'; '.join(words)}.")


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers for a logarithmic axis, about four of them.

    Examples
    --------
    >>> [float(t) for t in log_ticks(0.011, 40)], [round(float(t), 2) for t in log_ticks(0.91, 1.12)]
    ([0.1, 1.0, 10.0], [0.95, 1.0, 1.05, 1.1])
    """
    from matplotlib.ticker import MaxNLocator

    if high / low < 4:
        return [tick for tick in MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low, high) if low <= tick <= high]
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        ticks = [step * 10.0**exponent for exponent in exponents for step in steps]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= 5:
            return ticks
    return ticks[:: math.ceil(len(ticks) / 5)]


def _differences_in_words(run: Run, values: Array, n_better: int, n_worse: int) -> str:
    verdict, unit = run.result.verdict, run.primary.unit
    mean, ends = effect(verdict.effect, verdict.ci_low, verdict.ci_high, verdict.effect_scale, unit)
    between = f", 95 % interval {ends}" if ends else ", too few cases for an interval"
    low, high = (effect(value, None, None, verdict.effect_scale, unit)[0] for value in (values[0], values[-1]))
    return (
        f"{run.primary.name}, {run.method.name} {'divided by' if verdict.effect_scale == 'ratio' else 'minus'} "
        f"{run.strongest.name}, {_cases(len(values))}: mean {mean}{between}. Better in {n_better}, "
        f"worse in {n_worse}, equal in {len(values) - n_better - n_worse}; from {low} to {high}."
    )


def _cases(n: int) -> str:
    return "1 case" if n == 1 else f"{n:,} cases"


def _margin(run: Run) -> tuple[float, ...]:
    """The two ends of the band in which differences do not matter; nothing when every difference matters."""
    margin = run.result.claim.margin
    if margin == 0:
        return ()
    return (1 / (1 + margin), 1 + margin) if run.result.verdict.effect_scale == "ratio" else (-margin, margin)


def _finite(run: Run, arm: ArmSummary, column: str) -> Array:
    """The values of one arm over the cases that it finished."""
    is_finished = (run.cases["arm"] == arm.name) & run.cases["error"].isna()
    values: Array = run.cases.loc[is_finished, column].to_numpy(dtype=np.float64)
    return values[np.isfinite(values)]


def _colour(run: Run, arm: ArmSummary) -> str:
    if not arm.baseline:
        return METHOD
    return RIVAL if arm.name == run.result.verdict.baseline else SOFT


def _figure(height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH / 72, height / 72))


def figure_height(figure: Figure) -> float:
    """Height of a figure in points."""
    return float(figure.get_figheight()) * 72


def _axes(figure: Figure, top: float, height: float) -> Axes:
    """Axes over the width of the figure with a line and ticks below, and nothing else."""
    total = figure_height(figure)
    axes = figure.add_axes((SIDE / WIDTH, 1 - (top + height) / total, 1 - 2 * SIDE / WIDTH, height / total))
    axes.patch.set_visible(False)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(LINE)
    axes.tick_params(axis="x", which="both", color=LINE, labelcolor=SOFT, labelsize=FONT, length=4)
    axes.set_yticks([])
    return axes


def _rows(run: Run, figures: Sequence[str]) -> tuple[Figure, Axes]:
    """A row for each arm, its name above it on the left and its figure on the right; the method on top."""
    row_height, top, bottom = 38.0, 4.0, 44.0
    n_rows = len(run.arms)
    figure = _figure(top + row_height * n_rows + bottom)
    axes = _axes(figure, top, row_height * n_rows)
    axes.set_ylim(n_rows - 1 + 0.28, -0.72)
    for row, (arm, text) in enumerate(zip(run.arms, figures, strict=True)):
        baseline = top + row_height * row + 15.0
        _text(figure, 0.0, baseline, _clipped(arm.name, 44), align="left", colour=INK)
        _text(figure, WIDTH, baseline, text or "no case finished", align="right", colour=INK if text else SOFT)
    return figure, axes


def _text(figure: Figure, x: float, y: float, text: str, *, align: str, colour: str = SOFT) -> None:
    """Text at `x`, `y` in points from the top left corner."""
    figure.text(
        x / WIDTH,
        1 - y / figure_height(figure),
        text,
        ha=align,
        va="baseline",
        color=colour,
        fontsize=FONT,
        parse_math=False,  # a model may be called $x$
    )


def _scale(axes: Axes, values: Sequence[float], *, is_log: bool, pad: float) -> None:
    low, high = min(values), max(values)
    if is_log:
        factor = (high / low) ** pad if high > low else 1.1
        axes.set_xscale("log")
        axes.set_xlim(low / factor, high * factor)
        return
    space = (high - low) * pad or abs(high) * 0.1 or 1.0
    axes.set_xlim(low - space if low != 0 else low - space * 0.5, high + space)


def _ticks(axes: Axes, label: Callable[[float, int], str], unit: float = 1.0) -> None:
    """Few ticks that are round in `unit`, labelled by `label(value, decimals that tell neighbours apart)`."""
    from matplotlib.ticker import MaxNLocator, NullLocator

    low, high = (end / unit for end in axes.get_xlim())
    if axes.get_xscale() == "log":
        ticks = log_ticks(low, high)
    else:
        ticks = [tick for tick in MaxNLocator(4, steps=[1, 2, 5, 10]).tick_values(low, high) if low <= tick <= high]
    gap = min(np.diff(ticks), default=1.0)
    decimals = max(0, -math.floor(math.log10(gap) + 1e-9))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks([tick * unit for tick in ticks], [label(tick, decimals) for tick in ticks])


def _ticks_in(axes: Axes, units: Sequence[tuple[float, str]]) -> None:
    """Ticks in the largest of `units` that the axis reaches twice; on a logarithmic axis each in its own, up to s."""
    if axes.get_xscale() == "log":
        small = [unit for unit in units if unit[0] <= 1]
        _ticks(axes, lambda value, _: _in_unit(value, next((u for u in small if value >= u[0] * 0.999), small[-1])))
        return
    size, name = next((unit for unit in units if axes.get_xlim()[1] >= 2 * unit[0]), units[-1])
    _ticks(axes, lambda value, decimals: f"{number(value, decimals)}{SPACE}{name}" if value else "0", unit=size)


def _in_unit(value: float, unit: tuple[float, str]) -> str:
    return f"{value / unit[0]:,g}{SPACE}{unit[1]}"


def _clipped(name: str, width: int) -> str:
    """`name` on one line of at most `width` letters; letters of CJK scripts count twice."""
    name = " ".join("".join(letter if letter.isprintable() else " " for letter in name).split())
    used = 0
    for position, letter in enumerate(name):
        used += 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        if used > width:
            return name[: max(position - 1, 1)].rstrip() + "…"
    return name


def _svg(figure: Figure, prefix: str, words: str) -> str:
    """The figure as an SVG element to stand in a page; `words` say what it shows."""
    import matplotlib

    buffer = io.StringIO()
    quiet = {"Date": None, "Creator": None, "Format": None, "Type": None}
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the reader's browser has the fonts, not we
        figure.patch.set_visible(False)
        figure.savefig(buffer, format="svg", metadata=quiet)
    text = buffer.getvalue()
    body = re.sub(r"<style.*?</style>", "", text[text.index(">", text.index("<svg")) + 1 :], count=1, flags=re.DOTALL)
    # matplotlib escapes < and > in text, so this matches tags and never the name of a model.
    body = re.sub(r"<[^>]*>", lambda tag: _themed(tag[0], prefix), body)
    height = figure_height(figure)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" role="img" '
        f'aria-label="{escape(words)}">{body}'
    )


def _themed(tag: str, prefix: str) -> str:
    """One tag with CSS variables for the sentinel colours, the page's font, and ids that start with `prefix`."""
    tag = re.sub(r"font-family: [^;\"]*;? ?", "", tag)
    tag = re.sub(r'\bid="', f'id="{prefix}-', tag)
    tag = tag.replace('xlink:href="#', f'href="#{prefix}-').replace("url(#", f"url(#{prefix}-")
    for colour, variable in VARIABLES.items():
        tag = tag.replace(colour, f"var({variable})")
    return re.sub(r"\s*\n\s*", " ", tag)


def _with_titles(svg: str, group: str, titles: Sequence[str]) -> str:
    """Give each marker of `group` a title, which a browser shows to who points at it."""
    start = svg.find(f'id="{group}"')
    if start < 0 or not titles:
        return svg
    remaining = iter(titles)

    def titled(use: re.Match[str]) -> str:
        return f"{use[1]}><title>{escape(next(remaining))}</title></use>"

    return svg[:start] + re.sub(r"(<use [^>]*?)/>", titled, svg[start:], count=len(titles))
