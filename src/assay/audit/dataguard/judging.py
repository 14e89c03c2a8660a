"""From features of two data sets to a report: control, test, calibrate, estimate, and say what it means."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from assay._core.errors import InputError
from assay._core.seeds import child_seed
from assay.audit.dataguard.calibration import N_SPLITS, Rate, Shift, blind_check, null_rejections
from assay.audit.dataguard.control import residuals
from assay.audit.dataguard.fraction import Fraction, detectable_fraction, detectable_gap, usage_fraction
from assay.audit.dataguard.hotelling import Test, compare, holm
from assay.audit.dataguard.report import AuditReport, Effect

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

#: p-values up to this are "inconclusive", above it there is "no evidence".
INCONCLUSIVE = 0.2
SCORE_CAP = 16.0


@dataclass(frozen=True)
class Settings:
    """How to test.

    Parameters
    ----------
    alpha : float
        Below this p the verdict is "used".
    test : "permutation" or "F"
    n_permutations : int
    random_state : int
    """

    alpha: float = 0.01
    test: Test = "permutation"
    n_permutations: int = 2000
    random_state: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 0.2:
            raise InputError(f"alpha={self.alpha}: expected a level above 0 and below {INCONCLUSIVE}, such as 0.01")
        if self.test not in ("permutation", "F"):
            raise InputError(f"test={self.test!r}: expected 'permutation' or 'F'")
        if self.test == "permutation" and self.n_permutations + 1 < 1 / self.alpha:
            raise InputError(
                f"n_permutations={self.n_permutations}: the smallest p is 1/{self.n_permutations + 1}, which is not "
                f"below alpha={self.alpha}; ask for more"
            )


@dataclass(frozen=True)
class Evidence:
    """All that an audit measured, before anything is tested.

    Parameters
    ----------
    names : tuple of str
        Of the features.
    target, aux : (n, k) and (m, k) float
    ref_target, ref_aux : (n, r) and (m, r) float, optional
        Features of the references.
    inputs : pair of (n, d) and (m, d) float, optional
        What the blind check may see; `inputs_are` names it.
    groups : pair of (n,) int and (m,) int, optional
    shadow : pair of (s, k) and (t, k) float, optional
        Features of a shadow model on its own training samples and on others.
    member_loss : float, optional
        Expected loss of a sample that was trained on.
    exchangeable : bool
        The auditor vouches for the data where no blind check can be made.
    what : str
        What was audited, for people.
    notes : tuple of str
    """

    names: tuple[str, ...]
    target: Array
    aux: Array
    ref_target: Array | None = None
    ref_aux: Array | None = None
    inputs: tuple[Array, Array] | None = None
    inputs_are: str = "inputs"
    groups: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
    shadow: tuple[Array, Array] | None = None
    member_loss: float | None = None
    exchangeable: bool = False
    what: str = "model"
    notes: tuple[str, ...] = field(default=())


def judge(evidence: Evidence, settings: Settings) -> AuditReport:
    """Test the evidence and write the report."""
    n, m = len(evidence.target), len(evidence.aux)
    if evidence.groups is not None and settings.test == "F":
        raise InputError("test='F' takes samples as independent; with groups use test='permutation'")
    notes = list(evidence.notes)
    target, aux = evidence.target, evidence.aux
    if evidence.ref_target is not None and evidence.ref_aux is not None:
        groups_aux = None if evidence.groups is None else evidence.groups[1]
        target, aux = residuals(target, aux, evidence.ref_target, evidence.ref_aux, _rng(settings, "folds"), groups_aux)
    if not np.concatenate([target, aux]).std(axis=0).any():
        notes.append("nothing is left to test: the references foresee every feature, or none of them varies")
    found = compare(
        target,
        aux,
        test=settings.test,
        n_permutations=settings.n_permutations,
        rng=_rng(settings, "permutations"),
        groups=evidence.groups,
    )
    null = null_rejections(
        evidence.aux,
        evidence.ref_aux,
        None if evidence.groups is None else evidence.groups[1],
        alpha=settings.alpha,
        test=settings.test,
        rng=_rng(settings, "null"),
        n_splits=N_SPLITS,
    )
    shift = _shift(evidence, settings)
    spread = _pooled_covariance(target, aux)
    verdict, reason = _verdict(found.p_value, settings.alpha, null, shift, evidence.exchangeable)
    detectable = None
    if evidence.shadow is not None:
        members, others = evidence.shadow
        detectable = detectable_fraction(members.mean(axis=0) - others.mean(axis=0), spread, n, m, settings.alpha)
    return AuditReport(
        what=evidence.what,
        verdict=verdict,
        reason=reason,
        score=min(-np.log10(max(found.p_value, 1e-300)), SCORE_CAP),
        p_value=found.p_value,
        p_two_sided=found.p_two_sided,
        p_sum=found.p_sum,
        p_loss=found.p_loss,
        t2=found.t2,
        rank=found.rank,
        alpha=settings.alpha,
        test=settings.test,
        n_permutations=settings.n_permutations if settings.test == "permutation" else None,
        n_target=n,
        n_aux=m,
        n_groups=None if evidence.groups is None else tuple(len(np.unique(codes)) for codes in evidence.groups),
        with_references=evidence.ref_target is not None,
        effects=_effects(evidence, target, aux, found.delta, found.z),
        usage_fraction=_fraction(evidence, target[:, 0], aux[:, 0], _rng(settings, "bootstrap")),
        null_rate=null,
        shift=shift,
        exchangeable=evidence.exchangeable,
        detectable_fraction=detectable,
        detectable_gap=detectable_gap(float(np.sqrt(spread[0, 0])), n, m, settings.alpha),
        notes=tuple(notes),
        target_features=target,
        aux_features=aux,
    )


def correct_for_several(reports: Mapping[str, AuditReport]) -> dict[str, AuditReport]:
    """Correct the p-values of several target data sets for their number (Holm), and the verdicts with them.

    Parameters
    ----------
    reports : mapping of name to AuditReport
        All of one alpha.

    Returns
    -------
    dict of name to AuditReport
        `p_value` and `score` are the corrected ones.
    """
    alphas = {report.alpha for report in reports.values()}
    if len(alphas) != 1:
        raise InputError(f"the reports have the levels {sorted(alphas)}; expected one alpha for all")
    corrected = {}
    for (name, report), p in zip(
        reports.items(), holm(np.array([report.p_value for report in reports.values()])), strict=True
    ):
        verdict, reason = _verdict(float(p), report.alpha, report.null_rate, report.shift, report.exchangeable)
        said = f"p corrected for {len(reports)} target data sets (Holm); alone it is {report.p_value:.4g}"
        corrected[name] = replace(
            report,
            p_value=float(p),
            score=min(-float(np.log10(max(p, 1e-300))), SCORE_CAP),
            verdict=verdict,
            reason=reason,
            notes=(*report.notes, said),
        )
    return corrected


def _rng(settings: Settings, purpose: str) -> np.random.Generator:
    return np.random.default_rng(child_seed(settings.random_state, "dataguard", purpose))


def _shift(evidence: Evidence, settings: Settings) -> Shift | None:
    """The blind check, on inputs and on what references say of them, the smaller p counted twice if there are both."""
    found = []
    if evidence.inputs is not None:
        auc, p = blind_check(*evidence.inputs, _rng(settings, "blind"), groups=evidence.groups)
        found.append(Shift(auc, p, evidence.inputs_are))
    if evidence.ref_target is not None and evidence.ref_aux is not None:
        rng = _rng(settings, "blind references")
        auc, p = blind_check(evidence.ref_target, evidence.ref_aux, rng, groups=evidence.groups)
        found.append(Shift(auc, p, "the references' features"))
    if not found:
        return None
    least = min(found, key=lambda shift: shift.p_value)
    return Shift(least.auc, min(1.0, len(found) * least.p_value), " and ".join(shift.seen for shift in found))


def _verdict(p: float, alpha: float, null: Rate, shift: Shift | None, exchangeable: bool) -> tuple[str, str]:
    if shift is not None and shift.found:
        return "not valid", (
            f"distribution shift: the two data sets can be told apart without the model (AUC {shift.auc:.2f}, "
            f"p = {shift.p_value:.3f}), so a difference in the model is no evidence of training"
        )
    if p >= INCONCLUSIVE:
        return "no evidence", (
            f"p = {p:.3f}: the model treats both data sets alike; that is no proof that the target was not used"
        )
    if p >= alpha:
        return "inconclusive", f"p = {p:.4g} is between {alpha:g} and {INCONCLUSIVE:g}"
    if null.share > alpha + 2 * np.sqrt(alpha * (1 - alpha) / null.n):
        return "inconclusive", (
            f"p = {p:.4g}, but the same test rejects {null.n_found} of {null.n} splits of the auxiliary data alone"
        )
    if shift is None and not exchangeable:
        return "inconclusive", (
            f"p = {p:.4g}, but nothing here shows that the data sets are of one kind; give inputs or a reference for "
            "the blind check, or vouch for it"
        )
    return "used", f"p = {p:.4g} is below {alpha:g}: the model knows the target better than data of the same kind"


def _pooled_covariance(target: Array, aux: Array) -> Array:
    scatter = sum((values - values.mean(axis=0)).T @ (values - values.mean(axis=0)) for values in (target, aux))
    return np.asarray(scatter) / (len(target) + len(aux) - 2)


def _effects(evidence: Evidence, target: Array, aux: Array, delta: Array, z: Array) -> tuple[Effect, ...]:
    """Differences with 95 % intervals that hold for groups and for unequal spreads."""
    codes = evidence.groups if evidence.groups is not None else (np.arange(len(target)), np.arange(len(aux)))
    variance = np.zeros(target.shape[1])
    for values, code in zip((target, aux), codes, strict=True):
        sums = np.zeros((int(code.max()) + 1, values.shape[1]))
        np.add.at(sums, code, values - values.mean(axis=0))
        variance += (sums**2).sum(axis=0) / len(values) ** 2
    half = 1.96 * np.sqrt(variance)
    return tuple(
        Effect(name, float(d), float(d - h), float(d + h), float(t))
        for name, d, h, t in zip(evidence.names, delta, half, z, strict=True)
    )


def _fraction(evidence: Evidence, target: Array, aux: Array, rng: np.random.Generator) -> Fraction | None:
    if evidence.shadow is not None:
        losses = evidence.shadow[0][:, 0], evidence.shadow[1][:, 0]
        return usage_fraction(target, aux, rng, shadow=losses)
    if evidence.member_loss is not None:
        return usage_fraction(target, aux, rng, full_gap=float(evidence.aux[:, 0].mean()) - evidence.member_loss)
    return None
