"""Tell machine text from human text by its style, from a few examples, and say how often that is wrong.

Three kinds of detector behind one interface: likeness in style to a few known machine texts (the paper's), what a
causal language model makes of a text (log-rank, LRR, Fast-DetectGPT, Binoculars), and TF-IDF with logistic regression.
Each scores texts and accounts; none decides before it was calibrated on human text of the same kind, and no decision is
shown without the error rate that this promises.

Paper: Rivera Soto, Chen, Andrews, "Attacks on Machine-Text Detectors Retain Stylistic Fingerprints", arXiv:2505.14608.
Detector, supports, modes, groups and metrics are the authors'; the thresholds and the stylometric encoder are ours.

The folder: `prototypes` and `zero_shot` score, `metrics` measures, `conformal` puts thresholds, `encoders` and `luar`
turn texts into vectors, `door` checks what is given; `detector` is what all detectors share, `few_shot` and `others`
hold them, `report` and `evaluation` say what was found.
"""

from assay.audit.style_detect.conformal import Threshold, conformal_threshold
from assay.audit.style_detect.encoders import StylometricEncoder, load_style_encoder
from assay.audit.style_detect.evaluation import Evaluation, evaluate_detectors
from assay.audit.style_detect.few_shot import StyleFewShotDetector
from assay.audit.style_detect.metrics import auroc, blocks, pauroc, tpr_at_fpr
from assay.audit.style_detect.others import TfidfDetector, ZeroShotDetector
from assay.audit.style_detect.prototypes import few_shot_trials, group_trials
from assay.audit.style_detect.report import DetectionReport

__all__ = [
    "DetectionReport",
    "Evaluation",
    "StyleFewShotDetector",
    "StylometricEncoder",
    "TfidfDetector",
    "Threshold",
    "ZeroShotDetector",
    "auroc",
    "blocks",
    "conformal_threshold",
    "evaluate_detectors",
    "few_shot_trials",
    "group_trials",
    "load_style_encoder",
    "pauroc",
    "tpr_at_fpr",
]
