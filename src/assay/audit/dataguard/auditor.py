"""Audit a classifier: by asking it, or from logs of what it answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from assay._core.errors import InputError
from assay._core.seeds import child_seed
from assay.audit.dataguard.door import (
    check_nontraining,
    check_overlap,
    check_same_answers,
    check_sizes,
    class_numbers,
    group_numbers,
    probability_array,
)
from assay.audit.dataguard.features import CLASS_FEATURES, class_features
from assay.audit.dataguard.judging import Evidence, Settings, judge
from assay.audit.dataguard.queries import augmentations, column_ranges, measure
from assay.audit.dataguard.texts import are_texts, text_vectors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from assay.audit.dataguard.hotelling import Test
    from assay.audit.dataguard.report import AuditReport

    Array = NDArray[np.float64]

#: Wider inputs are projected at random before the blind check, which keeps distances.
MAX_WIDTH = 1000


@dataclass(frozen=True)
class Shadow:
    """A model that the auditor trained, with samples that it saw and samples that it did not see.

    It shows what being trained on does to a sample's features. It should be of the kind of the audited model, trained
    as that was; none of its samples is in the audited data sets.

    Parameters
    ----------
    model : as the audited model
    X_member, y_member
        Samples it was trained on.
    X_other, y_other
        Samples of the same kind that it was not trained on.
    """

    model: Any
    X_member: Any
    y_member: Any
    X_other: Any
    y_other: Any


class DataGuardAuditor:
    """Test whether a classifier was trained on a data set, in whole or in part.

    Parameters
    ----------
    alpha : float
        The level: so often a data set that was not used is called "used".
    n_augment : int
        Augmented queries of each sample; 0: none.
    augment : "auto" or callable
        "auto": noise of 0.05 of each column's range on tables, shifts and mirror images of images, dropped words of
        texts. A callable gets (X, numpy Generator) and returns changed samples.
    references : sequence of models, optional
        Trained without target and auxiliary data: what they say of a sample is its difficulty, and is taken off.
    shadow : Shadow, optional
        For the share that was used, and for the least share that the audit could find.
    test : "permutation" or "F"
    n_permutations : int
    random_state : int

    Examples
    --------
    A decision tree remembers half of the digits, and is asked about both halves:

    >>> from sklearn.datasets import load_digits
    >>> from sklearn.tree import DecisionTreeClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> order = np.random.default_rng(0).permutation(600)
    >>> target, aux = order[:300], order[300:]
    >>> suspect = DecisionTreeClassifier(random_state=0).fit(X[target], y[target])
    >>> auditor = DataGuardAuditor(random_state=0)
    >>> report = auditor.audit(suspect, X[target], y[target], X[aux], y[aux], aux_is_nontraining=True)
    >>> report.verdict
    'used'
    """

    def __init__(
        self,
        alpha: float = 0.01,
        n_augment: int = 8,
        augment: Any = "auto",
        references: Sequence[Any] | None = None,
        shadow: Shadow | None = None,
        test: Test = "permutation",
        n_permutations: int = 2000,
        random_state: int = 0,
    ) -> None:
        self.alpha = alpha
        self.n_augment = n_augment
        self.augment = augment
        self.references = references
        self.shadow = shadow
        self.test = test
        self.n_permutations = n_permutations
        self.random_state = random_state

    def audit(
        self,
        model: Any,
        X_target: Any,  # noqa: N803, the ecosystem's names
        y_target: Any,
        X_aux: Any,  # noqa: N803
        y_aux: Any,
        *,
        aux_is_nontraining: bool = False,
        groups_target: Any = None,
        groups_aux: Any = None,
        member_loss: float | None = None,
        name: str = "the model",
    ) -> AuditReport:
        """Ask the model about both data sets and test whether it knows the target better.

        Parameters
        ----------
        model : scikit-learn classifier, torch module (logits), or callable
            A callable returns probabilities of shape (n, n_classes), or classes of shape (n,): then features are errors
            under augmentation, and less is found.
        X_target, y_target : samples and labels in question
            A table (n, d), a frame, images (n, h, w) or (n, c, h, w), a list of texts, or what `augment` and the
            model understand.
        X_aux, y_aux : samples and labels that were certainly not used, of the same kind
        aux_is_nontraining : bool
            Must be True: the audit rests on it, and only you can know.
        groups_target, groups_aux : (n,) and (m,), optional
            Samples that resemble each other (crops, near-duplicates, records of one person) share a group.
        member_loss : float, optional
            Expected loss of a sample that was trained on, in place of a shadow model.
        name : str
            Of the model, for the report.

        Returns
        -------
        AuditReport

        Raises
        ------
        InputError
            Fewer than 50 samples, a sample in both data sets, labels that are no class of the model, answers that are
            no probabilities, or `aux_is_nontraining` is not True.
        """
        check_nontraining(aux_is_nontraining)
        settings = Settings(self.alpha, self.test, self.n_permutations, self.random_state)
        if self.n_augment < 0:
            raise InputError(f"n_augment={self.n_augment}: expected 0 or more")
        if self.shadow is not None and member_loss is not None:
            raise InputError("member_loss and a shadow model are both given; give one of them")
        n, m = len(X_target), len(X_aux)
        check_sizes(n, m)
        _check_shapes(X_target, X_aux)
        check_overlap(*(X if are_texts(X) else _rows(X) for X in (X_target, X_aux)))
        groups = group_numbers(groups_target, groups_aux, n, m)
        scale = column_ranges(X_aux)
        changed = {part: self._augmented(X, scale, part) for part, X in (("target", X_target), ("aux", X_aux))}
        target = measure(model, X_target, y_target, changed["target"], name, "y_target")
        aux = measure(model, X_aux, y_aux, changed["aux"], name, "y_aux")
        notes = ["the model says classes only, so features are errors; probabilities would tell more"] * target.hard
        ref_target = ref_aux = None
        if self.references:
            refs = [(f"reference {i + 1}", reference) for i, reference in enumerate(self.references)]
            ref_target = np.mean(
                [measure(r, X_target, y_target, changed["target"], who, "y_target").values for who, r in refs], axis=0
            )
            ref_aux = np.mean(
                [measure(r, X_aux, y_aux, changed["aux"], who, "y_aux").values for who, r in refs], axis=0
            )
        return judge(
            Evidence(
                names=target.names,
                target=target.values,
                aux=aux.values,
                ref_target=ref_target,
                ref_aux=ref_aux,
                inputs=_blind_inputs(X_target, y_target, X_aux, y_aux),
                inputs_are="the inputs and labels",
                groups=groups,
                shadow=self._shadow_features(scale),
                member_loss=member_loss,
                what=name,
                notes=tuple(notes),
            ),
            settings,
        )

    def _augmented(self, X: Any, scale: Array | None, part: str) -> list[Any]:  # noqa: N803
        rng = np.random.default_rng(child_seed(self.random_state, "dataguard", "augment", part))
        return augmentations(X, scale, self.n_augment, self.augment, rng) if self.n_augment else []

    def _shadow_features(self, scale: Array | None) -> tuple[Array, Array] | None:
        if self.shadow is None:
            return None
        shadow = self.shadow
        found = []
        for part, samples, y in (
            ("member", shadow.X_member, shadow.y_member),
            ("other", shadow.X_other, shadow.y_other),
        ):
            changed = self._augmented(samples, scale, f"shadow {part}")
            found.append(
                measure(shadow.model, samples, y, changed, "the shadow model", f"the shadow's y_{part}").values
            )
        return found[0], found[1]


def audit_probs(
    P_target: Any,  # noqa: N803
    y_target: Any,
    P_aux: Any,  # noqa: N803
    y_aux: Any,
    *,
    P_target_aug: Any = None,  # noqa: N803
    P_aux_aug: Any = None,  # noqa: N803
    ref_target: Any = None,
    ref_aux: Any = None,
    inputs_target: Any = None,
    inputs_aux: Any = None,
    groups_target: Any = None,
    groups_aux: Any = None,
    member_loss: float | None = None,
    aux_is_nontraining: bool = False,
    exchangeable: bool = False,
    alpha: float = 0.01,
    test: Test = "permutation",
    n_permutations: int = 2000,
    random_state: int = 0,
    name: str = "the model",
) -> AuditReport:
    """Audit a model from what it answered: logs of an API, say.

    Parameters
    ----------
    P_target, P_aux : (n, n_classes) and (m, n_classes) float
        Probabilities; rows sum to 1.
    y_target, y_aux : (n,) and (m,) int
        True classes, as columns from 0.
    P_target_aug, P_aux_aug : (n_augment, n, n_classes) float, optional
        Answers to augmented queries.
    ref_target, ref_aux : (n, n_classes) or (n_references, n, n_classes) float, optional
        Answers of reference models to the same samples.
    inputs_target, inputs_aux : (n, d) float, optional
        The samples, or embeddings of them: for the blind check and the check of overlap.
    groups_target, groups_aux, member_loss, aux_is_nontraining, name
        As in :meth:`DataGuardAuditor.audit`.
    exchangeable : bool
        Vouch that both data sets are of one kind, where neither inputs nor references allow a blind check. Without
        either, the verdict is at most "inconclusive".
    alpha, test, n_permutations, random_state
        As in :class:`DataGuardAuditor`.

    Returns
    -------
    AuditReport

    Raises
    ------
    InputError
        As :meth:`DataGuardAuditor.audit`.
    """
    check_nontraining(aux_is_nontraining)
    settings = Settings(alpha, test, n_permutations, random_state)
    target = probability_array(P_target, "P_target")
    n, n_classes = target.shape
    aux = probability_array(P_aux, "P_aux", n_classes=n_classes)
    m = len(aux)
    check_sizes(n, m)
    labels = (
        class_numbers(y_target, range(n_classes), "y_target", n),
        class_numbers(y_aux, range(n_classes), "y_aux", m),
    )
    for one, other, what in (
        (P_target_aug, P_aux_aug, "P_target_aug and P_aux_aug"),
        (ref_target, ref_aux, "ref_target and ref_aux"),
        (inputs_target, inputs_aux, "inputs_target and inputs_aux"),
    ):
        if (one is None) != (other is None):
            raise InputError(f"{what} go together; one of them is missing")
    more = [
        None if values is None else _stack(values, what, size, n_classes)
        for values, what, size in ((P_target_aug, "P_target_aug", n), (P_aux_aug, "P_aux_aug", m))
    ]
    features = [class_features(probs, y, aug) for probs, y, aug in zip((target, aux), labels, more, strict=True)]
    refs: list[Array | None] = [None, None]
    if ref_target is not None:
        refs = [
            np.mean([class_features(probs, y) for probs in _stack(values, what, len(y), n_classes)], axis=0)
            for values, what, y in ((ref_target, "ref_target", labels[0]), (ref_aux, "ref_aux", labels[1]))
        ]
    inputs = None
    if inputs_target is None:
        check_same_answers(target, aux)
    else:
        _check_shapes(inputs_target, inputs_aux)
        for values, what, size in ((inputs_target, "inputs_target", n), (inputs_aux, "inputs_aux", m)):
            if len(values) != size:
                raise InputError(f"{what} has {len(values)} rows; expected {size}, one for each sample")
        check_overlap(_rows(inputs_target), _rows(inputs_aux))
        inputs = _blind_inputs(inputs_target, labels[0], inputs_aux, labels[1])
    evidence = Evidence(
        names=CLASS_FEATURES[: features[0].shape[1]],
        target=features[0],
        aux=features[1],
        ref_target=refs[0],
        ref_aux=refs[1],
        inputs=inputs,
        inputs_are="the inputs and labels",
        groups=group_numbers(groups_target, groups_aux, n, m),
        member_loss=member_loss,
        exchangeable=exchangeable,
        what=name,
    )
    return judge(evidence, settings)


def _stack(values: Any, name: str, n: int, n_classes: int) -> Array:
    array = np.asarray(values)
    array = array[None] if array.ndim == 2 else array
    if array.ndim != 3 or len(array) == 0:
        raise InputError(f"{name} has shape {np.shape(values)}; expected (repeats, samples, classes)")
    return np.stack([probability_array(part, f"{name}[{i}]", n, n_classes) for i, part in enumerate(array)])


def _check_shapes(target: Any, aux: Any) -> None:
    if np.shape(target)[1:] != np.shape(aux)[1:]:
        raise InputError(
            f"target samples have shape {np.shape(target)[1:]} and auxiliary ones {np.shape(aux)[1:]}; "
            "expected one shape"
        )


def _rows(X: Any) -> Array:  # noqa: N803
    """Samples as rows of numbers; columns of a frame that hold none become one column a value, by its hash."""
    if hasattr(X, "select_dtypes"):
        import pandas as pd

        numbers = {
            column: X[column]
            if pd.api.types.is_numeric_dtype(X[column])
            else pd.util.hash_array(X[column].astype(str).to_numpy(dtype=object)) / 2.0**64
            for column in X.columns
        }
        X = pd.DataFrame(numbers)  # noqa: N806
    array = np.asarray(X.detach().cpu() if hasattr(X, "detach") else X)
    if array.dtype.kind not in "fiub":
        raise InputError(f"samples hold values of type {array.dtype}; expected numbers")
    return np.asarray(array.reshape(len(array), -1), dtype=np.float64)


def _blind_inputs(target: Any, y_target: Any, aux: Any, y_aux: Any) -> tuple[Array, Array]:
    """Inputs beside labels, as the blind check sees them."""
    parts = text_vectors(target, aux) if are_texts(target) else (_rows(target), _rows(aux))
    both = np.nan_to_num(np.concatenate(parts))
    if both.shape[1] > MAX_WIDTH:
        from sklearn.random_projection import SparseRandomProjection

        both = SparseRandomProjection(MAX_WIDTH, random_state=0).fit_transform(both)
    names, code = np.unique(np.concatenate([np.asarray(y_target), np.asarray(y_aux)]), return_inverse=True)
    labels = np.eye(len(names))[code] if len(names) <= 100 else np.empty((len(both), 0))
    both = np.concatenate([both, labels], axis=1)
    return both[: len(target)], both[len(target) :]
