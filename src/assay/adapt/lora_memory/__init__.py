"""Keep facts in LoRA modules beside a language model: write, route, merge, read, and audit what it still knows.

A module is a small LoRA adapter that was trained on a sector of the facts until the model says them by heart. It is
kept as a file, an ordinary PEFT adapter, and switched on for the questions that are routed to it. The audit tells
before you rely on it how many facts fit, what routing loses, and what retrieval would have done.

Paper: Back, Lee, Kang, Lee, Hong, Gwon, Ahn, "Understanding LoRA as Knowledge Memory: An Empirical Analysis",
arXiv:2603.01097 (ICML 2026). Losses, formats, routing and merging are the paper's; several keys a module in routing,
merging of products rather than factors, and questions by rule where no language model writes them are ours.

The folder: `facts` reads and divides, `formats` says what is written of them, `write` trains, `sector` makes a module
of them, `store` keeps, `route` finds, `merge` combines, `read` asks a model and `ask` the routed modules, `adapters`
switches, `memory` is all of it on a model, and `audit` and `compare` measure.
"""

from assay.adapt.lora_memory.ask import Trace
from assay.adapt.lora_memory.audit import Capacity, MemoryAudit, audit, capacity_sweep, merge_sweep
from assay.adapt.lora_memory.compare import compare
from assay.adapt.lora_memory.facts import (
    Document,
    Fact,
    facts_from_table,
    partition,
    read_documents,
    read_facts,
    split_document,
)
from assay.adapt.lora_memory.memory import LoRAMemory
from assay.adapt.lora_memory.merge import merge_adapters
from assay.adapt.lora_memory.read import efficacy, recalled, rouge_l
from assay.adapt.lora_memory.write import WriteConfig

__all__ = [
    "Capacity",
    "Document",
    "Fact",
    "LoRAMemory",
    "MemoryAudit",
    "Trace",
    "WriteConfig",
    "audit",
    "capacity_sweep",
    "compare",
    "efficacy",
    "facts_from_table",
    "merge_adapters",
    "merge_sweep",
    "partition",
    "read_documents",
    "read_facts",
    "recalled",
    "rouge_l",
    "split_document",
]
