"""A short fine-tuning with LoRA on the Python reference, from three starts; a case is an order of the data."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.seeds import child_seed
from assay.bench import Case, Data

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from assay.bench.spec import Parameter, Scale

CONTEXT, BATCH, N_HELD_OUT, N_VALIDATION = 64, 4, 12, 6
STEPS = {"quick": 20, "standard": 60, "full": 400}


class Lesson(NamedTuple):
    """What an arm sees: the model, windows to train on in their order, windows to choose a rate by, and to answer."""

    model: str
    windows: np.ndarray[Any, Any]
    validation: np.ndarray[Any, Any]
    asked: np.ndarray[Any, Any]
    n_steps: int
    rank: int
    rates: tuple[float, ...]


@lru_cache(maxsize=1)
def small_model() -> tuple[Any, Any]:
    """A Llama of 1.3 million parameters, trained on docstrings; kept after the first time."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from assay.models.small import Recipe, train

    recipe = Recipe(n_steps=300, batch_size=8, n_tokens=64, learning_rate=3e-3, vocab_size=1024)
    config = LlamaConfig(
        vocab_size=1024, hidden_size=128, intermediate_size=352, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=256, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    made = train("llama-for-lora", config.to_dict(), lambda: LlamaForCausalLM(config), recipe)
    return made.model, made.tokenizer


def fresh_model(name: str) -> tuple[Any, Any]:
    """A model of the caller's own."""
    import copy

    from assay.trials.compress.dynamic_whitening.real import full_model

    if name != "small":
        return full_model(name)
    model, tokenizer = small_model()
    return copy.deepcopy(model), tokenizer


def load(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    for module, extra in (("torch", "lm"), ("peft", "peft")):
        need(module, extra=extra, purpose="the LoRA part of the trial of dynamic-whitening")
    from assay.models import quality

    name, rank = str(params["lora_model"]), int(params["rank"])
    try:
        rates = tuple(float(rate) for rate in str(params["rates"]).split(","))
    except ValueError:
        raise InputError(f"-p rates={params['rates']}: expected numbers with commas, such as 1e-3,4e-3") from None
    n_steps = int(params["steps"]) or STEPS[scale]
    _, tokenizer = fresh_model(name)
    known, held = (
        np.asarray(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
        for text in (quality.calibration_text(), quality.held_out_text())
    )
    said = {"small": "a small Llama trained on docstrings", "demo": "SmolLM2-135M-Instruct"}.get(name, name)
    title = f"{said}, fine-tuned on the Python reference for {n_steps} steps"
    return Data(title, len(known), (name, known, held, n_steps, rank, rates))


def lessons(data: Any, n: int, seed: int) -> Iterator[Case]:
    name, known, held, n_steps, rank, rates = data
    known, held = (ids[: len(ids) // CONTEXT * CONTEXT].reshape(-1, CONTEXT) for ids in (known, held))
    for number in range(n):
        rng = np.random.default_rng(child_seed(seed, "lesson", number))
        order = rng.permutation(len(known))
        validation, windows = known[order[:N_VALIDATION]], known[order[N_VALIDATION:]]
        windows = np.resize(windows, (n_steps * BATCH, CONTEXT))
        asked = held[rng.choice(len(held), N_HELD_OUT, replace=False)]
        yield Case(f"order {number + 1}", Lesson(name, windows, validation, asked, n_steps, rank, rates))


def tuned(start: str, given: Lesson, seed: int) -> dict[str, float]:
    """Fine-tune at every rate; the losses on held-out text of the rate that is best on validation windows."""
    tried = [fine_tuned(start, given, rate) for rate in given.rates]
    return min(tried, key=lambda found: found["validation"])


def fine_tuned(start: str, given: Lesson, rate: float) -> dict[str, float]:
    import peft
    import torch

    from assay.compress.dynamic_whitening import init_lora_whitened

    model, _ = fresh_model(given.model)
    config = peft.LoraConfig(
        r=given.rank,
        lora_alpha=given.rank,
        target_modules=["q_proj", "v_proj", "up_proj", "down_proj"],
        init_lora_weights="pissa" if start == "pissa" else True,
    )
    windows = torch.from_numpy(given.windows.astype(np.int64)).view(given.n_steps, BATCH, CONTEXT)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = peft.get_peft_model(model, config)
    if start == "whitened":
        # As many windows as the layers have inputs, and no more than training sees.
        rows = windows.flatten(0, 1)
        init_lora_whitened(model, rows[: max(1, 2048 // CONTEXT)])
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=given.n_steps)
    found: dict[str, float] = {}
    for step, batch in enumerate(windows):
        model.train()
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step + 1 == given.n_steps // 2:
            found["half_way"] = surprise(model, given.asked)
    return {
        "loss": surprise(model, given.asked),
        "half_way": found.get("half_way", float("nan")),
        "validation": surprise(model, given.validation),
    }


def surprise(model: Any, windows: np.ndarray[Any, Any]) -> float:
    """Nats a token."""
    import torch

    model.eval()
    with torch.inference_mode():
        ids = torch.from_numpy(windows.astype(np.int64))
        return float(np.mean([model(input_ids=rows, labels=rows).loss.item() for rows in torch.split(ids, 4)]))


def losses(case: Case, found: dict[str, float]) -> dict[str, float]:
    return {"loss": found["loss"], "half_way": found["half_way"]}
