"""Ask a model: probabilities of samples and of their augmentations, from whatever kind of model it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay._core.errors import InputError
from assay.audit.dataguard.door import SUM_TOLERANCE, class_numbers, probability_array
from assay.audit.dataguard.features import CLASS_FEATURES, LABEL_FEATURES, class_features, label_features
from assay.audit.dataguard.texts import are_texts, without_some_words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

BATCH = 256
#: Noise on tables, as a share of each column's range.
NOISE = 0.05
#: Images move by up to this share of their sides.
MAX_SHIFT = 0.125


class Asked(NamedTuple):
    """How to ask a model: `answer` gives probabilities, or classes where `hard` is true."""

    answer: Callable[[Any], NDArray[Any]]
    classes: tuple[Any, ...] | None
    hard: bool


def asked(model: Any, name: str = "the model") -> Asked:
    """Find out how a model is asked.

    Parameters
    ----------
    model : scikit-learn classifier, torch module, or callable
        A module returns logits (or probabilities), a callable probabilities of shape (n, n_classes), or classes of
        shape (n,).

    Raises
    ------
    InputError
        It is none of these.
    """
    if hasattr(model, "predict_proba"):
        return Asked(_explained(model.predict_proba, name), tuple(model.classes_), hard=False)
    if hasattr(model, "predict") and hasattr(model, "classes_"):
        return Asked(_explained(model.predict, name), tuple(model.classes_), hard=True)
    if hasattr(model, "state_dict") and callable(model):
        answer = _explained(lambda samples: _torch_probabilities(model, samples, name), name)
        return Asked(answer, None, hard=False)
    if callable(model):
        return Asked(lambda samples: np.asarray(model(samples)), None, hard=False)
    raise InputError(
        f"{name} is a {type(model).__name__}; expected a scikit-learn classifier, a torch module, or a function that "
        "returns probabilities"
    )


def _explained(answer: Callable[[Any], NDArray[Any]], name: str) -> Callable[[Any], NDArray[Any]]:
    """The same answers; where the model does not take the samples, that is said."""

    def explained(samples: Any) -> NDArray[Any]:
        try:
            return answer(samples)
        except InputError:
            raise
        except (ValueError, TypeError, RuntimeError, AssertionError, IndexError) as error:
            why = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise InputError(
                f"{name} fails on samples of shape {np.shape(samples)}: {why}; give the inputs that it was trained on, "
                "and nothing else"
            ) from error

    return explained


def _torch_probabilities(model: Any, X: Any, name: str) -> Array:  # noqa: N803
    import torch

    parameter = next(model.parameters(), torch.zeros(0))
    can_switch = not isinstance(model, torch.fx.GraphModule)  # an exported program has one mode, and refuses eval()
    was_training = model.training
    if can_switch:
        model.eval()
    answers = []
    try:
        with torch.no_grad():
            for start in range(0, len(X), BATCH):
                part = torch.as_tensor(np.asarray(X[start : start + BATCH]))
                if part.is_floating_point():
                    part = part.to(parameter.dtype if parameter.is_floating_point() else torch.float32)
                answers.append(model(part.to(parameter.device)).double().cpu())
    finally:
        if can_switch:
            model.train(was_training)
    outputs = torch.cat(answers)
    if outputs.ndim != 2 or outputs.shape[1] < 2:
        raise InputError(
            f"{name} returns shape {tuple(outputs.shape)}; expected (samples, classes), at least 2 classes"
        )
    if bool((outputs >= 0).all()) and bool(((outputs.sum(dim=1) - 1).abs() < SUM_TOLERANCE).all()):
        return np.asarray(outputs.numpy())  # the module ends in a softmax of its own
    return np.asarray(outputs.softmax(dim=1).numpy())


class Measured(NamedTuple):
    """Features of samples, and their names."""

    values: Array
    names: tuple[str, ...]
    hard: bool


def measure(model: Any, X: Any, y: Any, augmented: Sequence[Any], name: str, what: str) -> Measured:  # noqa: N803
    """Features of a classifier on samples and their augmentations.

    Parameters
    ----------
    model : as in :func:`asked`
    X : samples
    y : (n,) labels
    augmented : sequence of samples
        The same samples augmented, in their order.
    name, what : str
        The model and the labels, in messages.
    """
    how = asked(model, name)
    answer = np.asarray(how.answer(X))
    if how.hard or answer.ndim == 1:
        classes = how.classes or tuple(np.unique(np.concatenate([answer, np.asarray(y)])).tolist())
        labels = class_numbers(y, classes, what, len(answer))
        predicted = class_numbers(answer, classes, f"the answers of {name}", len(answer))
        more = [class_numbers(how.answer(part), classes, f"the answers of {name}", len(answer)) for part in augmented]
        values = label_features(predicted, labels, np.stack(more) if more else None)
        return Measured(values, LABEL_FEATURES[: values.shape[1]], hard=True)
    probs = probability_array(answer, f"what {name} returns")
    labels = class_numbers(y, how.classes or range(probs.shape[1]), what, len(probs))
    parts = [probability_array(how.answer(part), f"what {name} returns", len(probs)) for part in augmented]
    values = class_features(probs, labels, np.stack(parts) if parts else None)
    return Measured(values, CLASS_FEATURES[: values.shape[1]], hard=False)


# --------------------------------------------------------------------------------------------------- augmentations


def augmentations(
    X: Any,  # noqa: N803
    scale: Array | None,
    n_augment: int,
    augment: Any,
    rng: np.random.Generator,
) -> list[Any]:
    """Small changes that leave a sample's class as it is: noise on tables, images moved or mirrored, words dropped.

    Parameters
    ----------
    X : (n, d) table, (n, h, w) or (n, c, h, w) images, or texts
    scale : (d,) float or None
        Range of each column, for tables.
    n_augment : int
    augment : "auto" or callable
        ``augment(X, rng)`` returns changed samples.
    rng : numpy Generator
    """
    if callable(augment):
        return [augment(X, rng) for _ in range(n_augment)]
    if are_texts(X):
        return [without_some_words(X, rng) for _ in range(n_augment)]
    if np.ndim(X) == 2:
        return [_noisy(X, scale, rng) for _ in range(n_augment)]
    if np.ndim(X) in (3, 4):
        images = np.asarray(X)
        return [_moved(images, rng) for _ in range(n_augment)]
    raise InputError(
        f"samples of shape {np.shape(X)} have no augmentation of their own; give augment=a function (X, rng), or "
        "n_augment=0 to do without"
    )


def column_ranges(X: Any) -> Array | None:  # noqa: N803
    """Range of each column of a table; 0 for columns that hold no numbers."""
    if np.ndim(X) != 2:
        return None
    if hasattr(X, "select_dtypes"):
        numbers = X.select_dtypes("number")
        spread = (numbers.max() - numbers.min()).reindex(X.columns, fill_value=0.0)
        return np.asarray(spread.to_numpy(dtype=np.float64))
    return np.asarray(np.ptp(np.asarray(X, dtype=np.float64), axis=0))


def _noisy(X: Any, scale: Array | None, rng: np.random.Generator) -> Any:  # noqa: N803
    assert scale is not None
    noise = rng.normal(size=np.shape(X)) * NOISE * scale
    if not hasattr(X, "select_dtypes"):
        return np.asarray(X, dtype=np.float64) + noise
    changed = X.copy()
    for place, column in enumerate(X.columns):
        if scale[place] > 0:
            changed[column] = X[column].to_numpy(dtype=np.float64) + noise[:, place]
    return changed


def _moved(images: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Each image shifted by up to an eighth with its edge repeated, and half of them mirrored."""
    height, width = images.shape[-2:]
    reach = max(1, round(MAX_SHIFT * height)), max(1, round(MAX_SHIFT * width))
    pad = [(0, 0)] * (images.ndim - 2) + [(reach[0], reach[0]), (reach[1], reach[1])]
    padded = np.pad(images, pad, mode="edge")
    down = rng.integers(2 * reach[0] + 1, size=len(images))
    right = rng.integers(2 * reach[1] + 1, size=len(images))
    mirrored = rng.random(len(images)) < 0.5
    moved = np.empty_like(images)
    for i in range(len(images)):
        part = padded[i, ..., down[i] : down[i] + height, right[i] : right[i] + width]
        moved[i] = part[..., ::-1] if mirrored[i] else part
    return moved
