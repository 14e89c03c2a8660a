"""The trial of psr: steering SmolLM2-135M on two attributes, how closely states are mimicked, and a known truth."""

from assay.trials.adapt.psr.trial import TRIAL

__all__ = ["TRIAL"]
