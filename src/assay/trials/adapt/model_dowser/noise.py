"""The direct test of the theory: change the chosen tenth of the weights at random, and ask how far the model moved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from assay._core.errors import InputError
from assay.bench import Case, Data
from assay.trials.adapt.model_dowser.masks import Setting, full_model, mask_of, prepare, said_of, setting_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from assay.bench.spec import Parameter, Scale

#: In standard deviations of a weight matrix, and in parts of the weight itself.
UNIFORM, PROPORTIONAL = 0.2, 0.7

N_WINDOWS = {"quick": 8, "standard": 32, "full": 128}


class Shake(NamedTuple):
    """What an arm sees: the model, the kind of noise, its seed, and a window with what the full model said of it."""

    setting: Setting
    kind: str
    seed: int
    part: Any


def text_at(path: str | None) -> str | None:
    """A user's text, or None for the embedded one."""
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as UTF-8 text: {error}") from None


def load(kind: str, path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    from assay.models import quality

    setting = setting_of(params)
    text = text_at(path)
    model, tokenizer = full_model(setting.model)
    reference = quality.reference(model, tokenizer, n_windows=N_WINDOWS[scale], n_questions=0, text=text)
    prepare(setting)
    where = "the Python reference" if path is None else path
    return Data(f"{said_of(setting)} on {where}, {kind} noise", N_WINDOWS[scale], (setting, kind, reference), path)


def cases(data: tuple[Setting, str, Any], n: int, seed: int) -> Iterator[Case]:
    """A window of text and a draw of noise each."""
    from assay._core.seeds import child_seed

    setting, kind, reference = data
    if n > len(reference.windows):
        raise InputError(
            f"{n} cases were asked for, and there are {len(reference.windows)} windows; use a larger scale"
        )
    for number, part in enumerate(reference.split(len(reference.windows))[:n]):
        yield Case(f"window {number + 1}", Shake(setting, kind, child_seed(seed, "noise", number), part))


def shaken(arm: str, given: Shake, seed: int) -> Any:
    """Add noise to the entries that the arm's mask would let train, ask the model, and take the noise away."""
    import torch

    from assay.models import quality

    model, tokenizer = full_model(given.setting.model)
    weights = dict(model.named_parameters())
    generator = torch.Generator().manual_seed(given.seed)
    old = []
    try:
        with torch.no_grad():
            for name, chosen in mask_of(arm, given.setting).trainable.items():
                flat = weights[name].data.view(-1)
                index = chosen.flatten().nonzero().flatten()
                old.append((flat, index, flat[index].clone()))
                size = PROPORTIONAL * flat[index].abs() if given.kind == "proportional" else UNIFORM * flat.std()
                flat[index] += size * torch.randn(len(index), generator=generator)
        return quality.measure(model, tokenizer, given.part)
    finally:
        for flat, index, values in old:
            flat[index] = values


def score(case: Case, found: Any) -> dict[str, float]:
    """Divergence from the model that was not shaken, and how often it still prefers the same token."""
    return {"kl": found.kl_mean, "same_token": found.same_token_mean}
