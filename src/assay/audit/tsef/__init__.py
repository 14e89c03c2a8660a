"""Test whether the explanations of a time-series classifier can be fooled.

A white-box test of the pair (classifier, explainer): it looks for a change within a budget that moves the prediction to
a chosen class while the explanation stays on a reference map. What comes out is a robustness report, not a defence.

Paper: Wang et al., "Exposing Vulnerabilities in Explanation for Time Series Classifiers via Dual-Target Attacks",
arXiv:2602.02763 (ICML 2026). The attack is that of the authors' code; integrated gradients with a true second
derivative, explanations scaled to a largest value of 1, the choice of the best iterate, an exact budget and the report
are ours.

The folder: `masks` says where a series is changed and `filters` how, `explainers` holds explanations and distances;
`objective` is what an attack wants, `attack` is TSEF and `baselines` its peers, `door` checks the input, `run` puts all
together, `metrics` and `result` measure; `watchers` are explainers that only look on, `noticing` asks
whether their maps move, `report` asks everything at several budgets, `series` reads files.
"""

from assay.audit.tsef.attack import TSEF
from assay.audit.tsef.baselines import PGD, RandomNoise
from assay.audit.tsef.explainers import FunctionExplainer, GradientxInput, IntegratedGradients, MaskExplainer, Saliency
from assay.audit.tsef.report import RobustnessReport, robustness_report
from assay.audit.tsef.result import AttackResult
from assay.audit.tsef.series import Series, read_series
from assay.audit.tsef.watchers import captum_watchers

__all__ = [
    "PGD",
    "TSEF",
    "AttackResult",
    "FunctionExplainer",
    "GradientxInput",
    "IntegratedGradients",
    "MaskExplainer",
    "RandomNoise",
    "RobustnessReport",
    "Saliency",
    "Series",
    "captum_watchers",
    "read_series",
    "robustness_report",
]
