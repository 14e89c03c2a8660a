"""Find out whether a model follows a criterion that only its examples show, and train one that does.

The wording of a task stays, its strictness changes from customer to customer: is a smudge of ink a defect? The same
examples and the same query are labelled under several criteria, and an item counts only when it is right under all of
them. Criterion sensitivity (CS) is that share where the answer changes, criterion invariance (CI) where it does not.

Paper: Yang, Yang, Yao, Wang, Ge, "Criterion-Conditional In-Context Learning: Evaluating Criterion-Shift Adaptation in
Vision-Language Models", arXiv:2607.02575 (ICML 2026). The setting is the paper's; the formulas of the metrics are
inferred from its tables, which they reproduce; the details of training are reconstructed.

The folder: `spec` holds the criteria, `items` and `episodes` build the benchmark, `files` reads and writes it,
`metrics` and `report` say what came out, `prompt` and `language` ask language and vision-language models, `training`
trains them under many criteria, `classifier` is a small model so trained, beside its baselines.
"""

from assay.evaluate.cc_icl.classifier import FixedBoundary, InContextClassifier, NearestSupport
from assay.evaluate.cc_icl.episodes import Episodes, Question, build_episodes
from assay.evaluate.cc_icl.files import read_cc_bench, read_episodes, read_predictions, write_episodes
from assay.evaluate.cc_icl.items import Items, image_items, pixels, read_items, split_items, table_items
from assay.evaluate.cc_icl.language import HFVLMPredictor, LMPredictor
from assay.evaluate.cc_icl.metrics import Score, Share, is_identifiable, score
from assay.evaluate.cc_icl.prompt import parse_answer, prompt_text
from assay.evaluate.cc_icl.report import CCReport, evaluate
from assay.evaluate.cc_icl.spec import CriterionSpec
from assay.evaluate.cc_icl.training import MCTCollator, MCTConfig, mct_, mct_dataset, with_lora

__all__ = [
    "CCReport",
    "CriterionSpec",
    "Episodes",
    "FixedBoundary",
    "HFVLMPredictor",
    "InContextClassifier",
    "Items",
    "LMPredictor",
    "MCTCollator",
    "MCTConfig",
    "NearestSupport",
    "Question",
    "Score",
    "Share",
    "build_episodes",
    "evaluate",
    "image_items",
    "is_identifiable",
    "mct_",
    "mct_dataset",
    "parse_answer",
    "pixels",
    "prompt_text",
    "read_cc_bench",
    "read_episodes",
    "read_items",
    "read_predictions",
    "score",
    "split_items",
    "table_items",
    "with_lora",
    "write_episodes",
]
