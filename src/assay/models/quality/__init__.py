"""How well a compressed language model still speaks: perplexity, divergence from the full model, multiple choice.

The same fixed text for every method of the family, so that their numbers can stand in one table. What the full model
says is kept below the cache folder, under a hash of its weights, the text and the settings.

>>> from assay.models import demo_lm, quality
>>> model, tokenizer = demo_lm()  # doctest: +SKIP
>>> reference = quality.reference(model, tokenizer)  # doctest: +SKIP
>>> print(quality.measure(compressed, tokenizer, reference).summary())  # doctest: +SKIP
"""

from assay.models.quality.measuring import measure, model_bytes, reference
from assay.models.quality.results import Quality, Reference
from assay.models.quality.text import Question, calibration_text, held_out_text, questions

__all__ = [
    "Quality",
    "Question",
    "Reference",
    "calibration_text",
    "held_out_text",
    "measure",
    "model_bytes",
    "questions",
    "reference",
]
