"""What SmolLM2-135M writes when it is asked to go on where a person's paragraph was cut.

It is drawn a source and a temperature at a time, and every batch is kept below the cache folder: an interrupted run
goes on where it stopped, and no text is ever written twice.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from assay._core.files import write_text
from assay._core.progress import progress_bar
from assay._core.seeds import child_seed
from assay.trials.audit.style_detect.human import WORDS, folder, plain

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from assay.trials.audit.style_detect.human import Paragraph

#: The first is the one that detectors are shown; the others are attacks on them.
TEMPERATURES = (0.7, 1.0, 1.3)
#: Enough for 40 words of most texts.
N_TOKENS = 72
_LAYOUT = 1


def continuations(paragraphs: Sequence[Paragraph]) -> dict[float, list[str]]:
    """For every temperature, SmolLM2's continuation of every paragraph's prompt, cut to the human's length."""
    batches = _batches(paragraphs)
    missing = [batch for batch in batches if not batch[2].is_file()]
    if missing:
        from assay.models import demo_lm

        model, tokenizer = demo_lm()
        with progress_bar() as bar:
            task = bar.add_task("SmolLM2 writes", total=len(batches), completed=len(batches) - len(missing))
            for temperature, prompts, path in missing:
                write_text(path, json.dumps(sample(model, tokenizer, prompts, temperature, _seed(prompts))))
                bar.advance(task)
    texts: dict[float, list[str]] = {temperature: [] for temperature in TEMPERATURES}
    for temperature, _, path in batches:
        texts[temperature].extend(finished(text) for text in json.loads(path.read_text(encoding="utf-8")))
    return texts


def finished(text: str) -> str:
    """As a human's: no markup, single spaces, no word that was cut, at most as many words."""
    whole = re.sub(r"\S+\Z", "", text)
    return " ".join(plain(whole).split()[:WORDS])


def sample(model: Any, tokenizer: Any, prompts: Sequence[str], temperature: float, seed: int) -> list[str]:
    """Continue prompts as plain text, all at once, from the whole vocabulary.

    No end of text is drawn: every continuation has the same number of tokens.
    """
    import torch

    tokenizer.padding_side = "left"
    inputs = tokenizer(list(prompts), return_tensors="pt", padding=True).to(model.device)
    with torch.random.fork_rng(), torch.inference_mode():
        torch.manual_seed(seed)
        ids = model.generate(
            **inputs,
            do_sample=True,
            temperature=temperature,
            top_k=0,
            top_p=1.0,
            min_new_tokens=N_TOKENS,
            max_new_tokens=N_TOKENS,
            pad_token_id=tokenizer.pad_token_id,
        )
    new = ids[:, inputs["input_ids"].shape[1] :]
    texts: list[str] = tokenizer.batch_decode(new, skip_special_tokens=True)
    return texts


def _batches(paragraphs: Sequence[Paragraph]) -> list[tuple[float, list[str], Path]]:
    found = []
    for temperature in TEMPERATURES:
        for source in dict.fromkeys(paragraph.source for paragraph in paragraphs):
            prompts = [paragraph.prompt for paragraph in paragraphs if paragraph.source == source]
            said = json.dumps([_LAYOUT, "smollm2-135m-instruct", temperature, N_TOKENS, prompts])
            name = f"{source}-{temperature:g}-{hashlib.sha256(said.encode()).hexdigest()[:16]}.json"
            found.append((temperature, prompts, folder() / name))
    return found


def _seed(prompts: Sequence[str]) -> int:
    return child_seed(0, "style-detect", *prompts)
