"""Quality against bytes for every method and baseline of the family `compress`, on the demo model.

python benchmarks/compress_curve.py --methods mxint,rtn      # measure these; what the table has already stays
python benchmarks/compress_curve.py --draw                   # only draw docs/compress.svg from the table

Each setting compresses a fresh SmolLM2-135M-Instruct and answers what `assay.models.quality` asks: perplexity and
divergence from the full model on held-out text, and multiple choice. A row is written to docs/methods/compress.csv as
soon as it is there, so that an interrupted run goes on where it was. A setting takes one to two minutes on one core.

A method joins with one function in METHODS that yields its settings. No setting has groups of 32 with an offset: the
demo model was unpacked from exactly such a format, so they would give its weights back without loss.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from assay._core.errors import InputError
from assay._core.tables import write_table
from assay.models import demo_lm, quality

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from matplotlib.axes import Axes

ROOT = Path(__file__).resolve().parents[1]
TABLE, PICTURE = ROOT / "docs" / "methods" / "compress.csv", ROOT / "docs" / "compress.svg"
COLUMNS = [
    "method", "setting", "bytes", "bits_per_weight", "perplexity", "perplexity_low", "perplexity_high",
    "kl", "kl_low", "kl_high", "choice_accuracy", "choice_low", "choice_high",
]  # fmt: skip

#: Shares of the parameters that methods of low rank keep.
RATIOS = (0.9, 0.8, 0.7, 0.6, 0.5)

#: Bytes of a weight that is left alone (embeddings, norms): models are shipped in 16 bits.
KEPT = 2


class Setting(NamedTuple):
    """One point of the picture.

    Parameters
    ----------
    name : str
        Within its method, such as ``"4 bits, groups of 64"``.
    compress : callable
        ``compress(model, tokenizer)`` changes the model in place and returns the bytes of its linear layers when
        packed, ``lm_head`` not counted.
    """

    name: str
    compress: Callable[[Any, Any], float]


def linear_weights(model: Any) -> list[Any]:
    """Weights of the linear layers that methods compress."""
    from assay.compress._layers import dense_weight, linear_layers

    return [dense_weight(layer)[0] for _, layer in linear_layers(model, ("lm_head",))]


def calibration_ids(tokenizer: Any, n_sequences: int = 32, n_tokens: int = 256) -> Any:
    """Token ids (n_sequences, n_tokens) of the calibration text."""
    import torch

    ids = tokenizer(quality.calibration_text(), return_tensors="pt", verbose=False).input_ids[0]
    there = len(ids) // n_tokens
    rows = ids[: there * n_tokens].view(there, n_tokens)
    return rows[torch.randperm(there, generator=torch.Generator().manual_seed(0))[:n_sequences]]


# ------------------------------------------------------------------------------- methods: a function, its settings


def full() -> Iterator[Setting]:
    def in_16_bits(model: Any, tokenizer: Any) -> float:
        weights = linear_weights(model)
        for weight in weights:
            weight.copy_(weight.bfloat16())
        return sum(weight.numel() for weight in weights) * 2

    yield Setting("bfloat16", in_16_bits)


def mxint() -> Iterator[Setting]:
    from assay.compress.mxint import PAPER_FORMATS, MXConfig, quantize_

    def setting(fmt: str, rotate: Any) -> Setting:
        def compress(model: Any, tokenizer: Any) -> float:
            report = quantize_(model, MXConfig(fmt, rotate=rotate))
            return sum(layer.bytes for layer in report.layers)

        return Setting(f"{fmt}, rotated" if rotate else fmt, compress)

    for fmt in PAPER_FORMATS:
        yield setting(fmt, None)
    for fmt in ("nvint4", "mxint4"):
        yield setting(fmt, "hadamard")


def rtn() -> Iterator[Setting]:
    from assay.trials.compress.baselines import rtn_

    def setting(bits: int, group_size: int | None) -> Setting:
        return Setting(_spoken(bits, group_size), lambda model, _: rtn_(model, bits, group_size).n_bytes)

    for bits, group_size in ((8, None), (6, None), (4, None), (4, 128), (4, 64), (3, 64), (2, 64)):
        yield setting(bits, group_size)


def gptq() -> Iterator[Setting]:
    from assay.trials.compress.baselines import gptq_

    def setting(bits: int, group_size: int | None) -> Setting:
        return Setting(
            _spoken(bits, group_size),
            lambda model, tokenizer: gptq_(model, calibration_ids(tokenizer), bits, group_size).n_bytes,
        )

    for bits, group_size in ((4, None), (4, 64), (3, None), (3, 64), (2, 64)):
        yield setting(bits, group_size)


def torchao() -> Iterator[Setting]:
    import torch
    from torchao.quantization import Int8WeightOnlyConfig, IntxWeightOnlyConfig, PerGroup, quantize_

    def setting(name: str, config: Any, bits: float) -> Setting:
        def compress(model: Any, tokenizer: Any) -> float:
            n_weights = sum(weight.numel() for weight in linear_weights(model))
            quantize_(model, config, lambda module, name: type(module) is torch.nn.Linear and name != "lm_head")
            return n_weights * bits / 8

        return Setting(name, compress)

    # A scale a row is counted as 16 bits over a row of 576, the shortest.
    yield setting("int8 weight-only", Int8WeightOnlyConfig(), 8 + 16 / 576)
    # Its groups must divide the rows, which have 576 and 1,536 numbers: 64 does, 128 does not.
    config = IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(64))
    yield setting("int4 weight-only, groups of 64", config, 4 + 16 / 64)


def liftquant() -> Iterator[Setting]:
    from assay.compress.liftquant import LiftQuantConfig, dense_, quantize_

    def setting(bits: float, data: bool) -> Setting:
        def compress(model: Any, tokenizer: Any) -> float:
            with torch.enable_grad():
                report = quantize_(model, LiftQuantConfig(bits), calibration_ids(tokenizer) if data else None)
            dense_(model)  # the same weights; packed they are decoded at every call
            return sum(layer.bytes for layer in report.layers)

        return Setting(f"{bits:g} bits" + (", with calibration" if data else ""), compress)

    import torch

    for bits in (3.0, 2.5, 2.0):
        yield setting(bits, data=False)
    yield setting(3.0, data=True)
    yield setting(2.0, data=True)


def dynamic_whitening() -> Iterator[Setting]:
    from assay.compress.dynamic_whitening import WhiteningConfig, factorize_

    def setting(ratio: float) -> Setting:
        def compress(model: Any, tokenizer: Any) -> float:
            report = factorize_(model, WhiteningConfig(ratio=ratio), calibration_ids(tokenizer))
            sizes = ((layer.rank, layer.out_features, layer.in_features) for layer in report.layers)
            return KEPT * sum(rank * (out + into) if rank else out * into for rank, out, into in sizes)

        return Setting(f"{ratio:g} of the parameters", compress)

    for ratio in RATIOS:
        yield setting(ratio)


def svd() -> Iterator[Setting]:
    """Nearest weights of low rank."""
    from assay.compress._layers import dense_weight, linear_layers
    from assay.trials.compress.svd_baselines import svd as nearest

    def pairs(model: Any, tokenizer: Any) -> Iterator[tuple[str, Any, Any]]:
        for name, layer in linear_layers(model, ("lm_head",)):
            weight = dense_weight(layer)[0]
            yield name, weight, nearest(weight)

    return low_rank(pairs)


def svd_llm() -> Iterator[Setting]:
    """Low rank that is nearest in the outputs of the full model's layers."""
    from assay.trials.compress.svd_baselines import seen_by_layers
    from assay.trials.compress.svd_baselines import svd_llm as nearest

    def pairs(model: Any, tokenizer: Any) -> Iterator[tuple[str, Any, Any]]:
        for name, weight, seen in seen_by_layers(model, calibration_ids(tokenizer)):
            yield name, weight, nearest(weight, seen.gram)

    return low_rank(pairs)


def low_rank(pairs: Callable[[Any, Any], Iterator[tuple[str, Any, Any]]]) -> Iterator[Setting]:
    """A setting a ratio, from name, weight and factors of every layer; the product stands in for the factors."""
    from assay.compress._layers import set_dense_weight
    from assay.trials.compress.svd_baselines import rank_at

    def setting(ratio: float) -> Setting:
        def compress(model: Any, tokenizer: Any) -> float:
            made = {}
            for name, weight, pair in pairs(model, tokenizer):
                rank = rank_at(weight.shape, ratio)
                cut = pair.cut(rank)
                made[name] = (cut.a @ cut.b).to(weight.dtype), rank * sum(weight.shape)
            for name, (weight, _) in made.items():  # only now: all layers were to see the full model's inputs
                set_dense_weight(model.get_submodule(name), weight)
            return KEPT * sum(n_kept for _, n_kept in made.values())

        return Setting(f"{ratio:g} of the parameters", compress)

    for ratio in RATIOS:
        yield setting(ratio)


def two_to_four() -> Iterator[Setting]:
    """The two largest of every four weights of a row, with two bits each that say which they are."""
    from assay.compress._layers import linear_layers
    from assay.trials.compress.rt_lynx.baselines import prune_

    def compress(model: Any, tokenizer: Any) -> float:
        prune_(model, [name for name, _ in linear_layers(model, ("lm_head",))])
        return sum(weight.numel() for weight in linear_weights(model)) / 2 * (KEPT + 2 / 8)

    yield Setting("by magnitude", compress)


METHODS: dict[str, Callable[[], Iterator[Setting]]] = {
    "full": full,
    "mxint": mxint,
    "liftquant": liftquant,
    "dynamic-whitening": dynamic_whitening,
    "rtn": rtn,
    "gptq": gptq,
    "torchao": torchao,
    "svd": svd,
    "svd-llm": svd_llm,
    "2:4": two_to_four,
}


def _spoken(bits: int, group_size: int | None) -> str:
    return f"{bits} bits, " + ("a scale a row" if group_size is None else f"groups of {group_size}")


# -------------------------------------------------------------------------------------------------- measuring


def measured(method: str, setting: Setting) -> dict[str, Any]:
    """Compress a fresh demo model and ask it; one row of the table."""
    import torch

    model, tokenizer = demo_lm()
    model.requires_grad_(False)
    reference = quality.reference(model, tokenizer)
    n_weights = sum(weight.numel() for weight in linear_weights(model))
    n_kept = sum(parameter.numel() for parameter in model.parameters()) - n_weights
    with torch.no_grad():
        n_bytes = setting.compress(model, tokenizer)
    found = quality.measure(model, tokenizer, reference)
    row: dict[str, Any] = {
        "method": method,
        "setting": setting.name,
        "bytes": round(n_bytes + KEPT * n_kept),
        "bits_per_weight": 8 * n_bytes / n_weights,
    }
    for name, of in (("perplexity", "perplexity"), ("kl", "kl_mean"), ("choice", "accuracy")):
        row["choice_accuracy" if name == "choice" else name] = getattr(found, of)
        row[f"{name}_low"], row[f"{name}_high"] = found.interval(of)
    return row


def read() -> pd.DataFrame:
    return pd.read_csv(TABLE) if TABLE.is_file() else pd.DataFrame(columns=COLUMNS)


def add(row: dict[str, Any]) -> None:
    """Put a row into the table in the order of METHODS, in place of an older one of the same setting."""
    table = read()
    older = (table["method"] == row["method"]) & (table["setting"] == row["setting"])
    parts = [part for part in (table[~older], pd.DataFrame([row])[COLUMNS]) if len(part)]
    order = {name: place for place, name in enumerate(METHODS)}
    together = pd.concat(parts, ignore_index=True).sort_values(
        ["method", "bytes"], key=lambda column: column.map(order) if column.name == "method" else -column
    )
    write_table(together.round(5), TABLE)


# --------------------------------------------------------------------------------------------------- the picture

# Okabe and Ito's colours, and marks that differ without colour too.
LOOKS = {
    "full": ("#000000", "*"),
    "mxint": ("#0072B2", "o"),
    "liftquant": ("#009E73", "v"),
    "dynamic-whitening": ("#CC79A7", "P"),
    "rtn": ("#999999", "s"),
    "gptq": ("#D55E00", "^"),
    "torchao": ("#E69F00", "D"),
    "svd": ("#999999", "<"),
    "svd-llm": ("#444444", "x"),
    "2:4": ("#000000", "1"),
}
OTHER_LOOKS = (("#56B4E9", "X"), ("#F0E442", "h"))


def draw(table: pd.DataFrame, full_perplexity: float) -> Axes:
    """Divergence and perplexity against megabytes, a mark a setting, with 95 % intervals."""
    from matplotlib import pyplot as plt

    plt.rcParams["svg.hashsalt"] = "compress"  # the same picture from the same table
    _, panels = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    others = iter(OTHER_LOOKS)
    for method, rows in table.groupby("method", sort=False):
        color, mark = LOOKS.get(str(method)) or next(others)
        size = rows["bytes"] / 1e6
        for panel, name in zip(panels, ("kl", "perplexity"), strict=True):
            spread = [rows[name] - rows[f"{name}_low"], rows[f"{name}_high"] - rows[name]]
            panel.errorbar(size, rows[name], spread, fmt=mark, color=color, label=method, markersize=5, elinewidth=0.8)
    panels[0].set_ylabel("KL from the full model (nats a token)")
    panels[1].set_ylabel("perplexity")
    panels[1].axhline(full_perplexity, color="#666666", linewidth=0.8, linestyle="--")
    for panel in panels:
        panel.set_yscale("log")
        panel.set_xlabel("weights (MB; what is left alone counted at 16 bits)")
    panels[0].figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    first: Axes = panels[0]
    return first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="", help=f"with commas, of: {', '.join(METHODS)}")
    parser.add_argument("--again", action="store_true", help="measure also what the table has already")
    parser.add_argument("--draw", action="store_true", help="only draw")
    arguments = parser.parse_args()
    for method in filter(None, arguments.methods.split(",")):
        if method not in METHODS:
            raise InputError(f"--methods: {method!r} is not one of {', '.join(METHODS)}")
        for setting in METHODS[method]():
            table = read()
            if not arguments.again and ((table["method"] == method) & (table["setting"] == setting.name)).any():
                continue
            start = time.perf_counter()
            row = measured(method, setting)
            add(row)
            print(
                f"{method:<8} {setting.name:<30} {row['bytes'] / 1e6:6.1f} MB  KL {row['kl']:.4f}  perplexity "
                f"{row['perplexity']:.2f}  choice {row['choice_accuracy']:.3f}  ({time.perf_counter() - start:.0f} s)",
                flush=True,
            )
    from assay.cli.output import save_picture

    model, tokenizer = demo_lm()
    full_perplexity = quality.reference(model, tokenizer).full.perplexity
    table = read()
    save_picture(draw(table[table["kl"].map(math.isfinite)], full_perplexity), PICTURE)
    print(f"drawn: {PICTURE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
