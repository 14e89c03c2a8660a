"""Steer a model as a steering prompt would, without the prompt: learned where to act, token by token.

A prompt such as "you are a pirate" moves the hidden states of the answer. Prompt steering replacement (PSR) learns that
movement for one or several layers, A + alpha relu(A . w + b) z, from answers that were given under the prompt. It then
needs no prompt tokens, has a strength, and shows at which tokens it acts.

>>> from assay.adapt.psr import PSR, make_pairs  # doctest: +SKIP
>>> pairs = make_pairs(model, tokenizer, questions, "You are a pirate.")  # doctest: +SKIP
>>> psr = PSR(model, tokenizer, layers="middle").fit(pairs)  # doctest: +SKIP
>>> with psr.steer(alpha=1.0):  # doctest: +SKIP
...     model.generate(**inputs)

Paper: Heyman and Vandeputte, "Steer Like the LLM: Activation Steering that Mimics Prompting", arXiv:2605.03907 (ICML
2026). The start of training (z the mean difference, b = 1, inputs standardised) and the layer-by-layer fit on stored
activations (``downstream=False``) are ours.

The folder: `pairs` turns prompts and answers into tokens and spans, `judges` scores answers by rules, `hooks` acts on a
model, `activations` records what the prompt does, `objectives` and `training` are the method's losses and fits,
`learning` applies these to the layers of a model, `steering` is the interface, `baselines` what people use today,
`compare` puts them side by side, `strip` draws the coefficients, `files` keeps what was learned.
"""

from assay.adapt.psr.baselines import ConstantSteering, DiffInMeans, ProjectionSteering, PromptSteering
from assay.adapt.psr.compare import calibrate, compare
from assay.adapt.psr.files import load, save, to_control_vector
from assay.adapt.psr.pairs import judged, make_pairs, read_pairs
from assay.adapt.psr.steering import PSR
from assay.adapt.psr.strip import Coefficients, strip_html

__all__ = [
    "PSR",
    "Coefficients",
    "ConstantSteering",
    "DiffInMeans",
    "ProjectionSteering",
    "PromptSteering",
    "calibrate",
    "compare",
    "judged",
    "load",
    "make_pairs",
    "read_pairs",
    "save",
    "strip_html",
    "to_control_vector",
]
