"""Trial of lora-memory: `real` asks SmolLM2, `small` a model where nothing else varies; `documents` are the texts."""

from assay.trials.adapt.lora_memory.real import TRIAL

__all__ = ["TRIAL"]
