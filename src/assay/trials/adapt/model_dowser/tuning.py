"""Teach the model a narrow task in every arm's way, and measure what it forgot when all have learned equally much.

Each arm trains until its loss on held-out examples has fallen to the target, an agreed share of the loss before. What
it has forgotten is measured on both sides of that point and interpolated, so that no arm looks gentle because it
learned less (questions are asked on the far side only). Each arm is tried at two learning rates (DARE: two rates of
dropping), and the better one counts, chosen on text that no case holds. Rates three times as high as these were worse
for every arm. What each rate gave is kept below the cache folder.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay._core.errors import InputError
from assay._core.files import replacing
from assay._core.progress import progress_bar
from assay._core.seeds import child_seed
from assay.bench import Case, Data
from assay.trials.adapt.model_dowser import masks
from assay.trials.adapt.model_dowser.masks import Setting, folder_of, fresh_model, prepare, said_of, setting_of
from assay.trials.adapt.model_dowser.task import Example, batch_of, dealt, examples_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from assay.bench.spec import Parameter, Scale

#: Raised when training or measuring changes.
_LAYOUT = 2

FULL, LORA, GRADIENT, DARE = "full", "lora", "gradient", "dare"

#: Learning rates of Adam to choose from; for DARE the share of changes that is dropped.
MASKED = (1e-4, 3e-4)
CHOICES: dict[str, tuple[float, ...]] = {
    masks.DOWSER: MASKED, masks.RANDOM: MASKED, masks.MAGNITUDE: MASKED, masks.WANDA: MASKED, GRADIENT: MASKED,
    FULL: (1e-5, 3e-5), LORA: (1e-4, 3e-4), DARE: (0.5, 0.9),
}  # fmt: skip
DARE_RATE = 3e-5

BATCH, EVERY = 8, 4
RANK = 16

#: Windows on which a learning rate is chosen, and what the cases share.
TUNE = 2
SIZES = {"quick": (12, 24), "standard": (12, 24), "full": (48, 200)}
SEEDS = {"quick": 1, "standard": 1, "full": 3}


class Lesson(NamedTuple):
    """What is learned: the setting, the target, the longest training, where the examples are, and the sizes."""

    setting: Setting
    target: float
    n_steps: int
    path: str | None
    n_windows: int
    n_questions: int


class Look(NamedTuple):
    """What an arm sees: the lesson, which training, and which windows and questions are its case."""

    lesson: Lesson
    seed: int
    part: int
    n_parts: int


def load(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    lesson = Lesson(setting_of(params), float(params["target"]), int(params["steps"]), path, *SIZES[scale])
    if not 0 < lesson.target < 1 or lesson.n_steps < EVERY:
        raise InputError(
            f"-p target={lesson.target:g} steps={lesson.n_steps}: expected a share of the loss between 0 and 1, and "
            f"{EVERY} steps or more"
        )
    examples = examples_at(path)
    wanted = [(arm, seed) for seed in range(SEEDS[scale]) for arm in CHOICES]
    missing = [
        (arm, choice, seed)
        for arm, seed in wanted
        for choice in CHOICES[arm]
        if not curve_path(lesson, arm, choice, seed).is_file()
    ]
    if missing and scale == "quick":
        raise InputError(
            f"this part trains the model {len(missing)} times, which takes about an hour once; run "
            f"assay try model-dowser --scale standard"
        )
    if missing:
        prepare(lesson.setting)
        with progress_bar() as progress:
            task = progress.add_task("teaching the language model, once", total=len(missing))
            for arm, choice, seed in missing:
                learn(arm, choice, lesson, examples, seed)
                progress.advance(task)
    for arm, seed in wanted:
        best_of(arm, lesson, seed)  # an arm that learned at no rate is told of before any case runs
    what = "the names of Unicode characters" if path is None else path
    return Data(f"{said_of(lesson.setting)} taught {what}", len(examples), (lesson, SEEDS[scale]), path)


def cases(data: tuple[Lesson, int], n: int, seed: int) -> Iterator[Case]:
    """A window of prose and the questions that go with it, dealt to the trainings in turn."""
    lesson, n_trainings = data
    if n > lesson.n_windows:
        raise InputError(f"{n} cases were asked for, and there are {lesson.n_windows} windows; use a larger scale")
    for part in range(n):
        training = part % n_trainings
        yield Case(f"window {part + 1}, training {training + 1}", Look(lesson, training, part, n))


def tuned(arm: str, look: Look, seed: int) -> dict[str, float]:
    """What the arm's model forgot on the case's windows and questions, at the target."""
    kept = best_of(arm, look.lesson, look.seed)
    share = float(kept["share"])
    said = {"steps": float(kept["steps"])}
    for name in ("kl", "nll"):
        before, after = (_part(kept[f"{name} {side}"], look) for side in ("before", "after"))
        said[name] = float(np.mean((1 - share) * before + share * after))
    correct = _part(kept["correct"], look)
    said["correct"] = float(correct.mean()) if len(correct) else float("nan")
    return said


def _part(values: Any, look: Look) -> Any:
    return np.array_split(values, look.n_parts)[look.part]


def score(case: Case, found: dict[str, float]) -> dict[str, float]:
    """Divergence from the model before, perplexity of prose, questions answered right, steps that were needed."""
    return {
        "kl": max(found["kl"], 1e-9),
        "perplexity": float(np.exp(found["nll"])),
        "accuracy": found["correct"],
        "steps": found["steps"],
    }


# ------------------------------------------------------------------------------------------------------- training


def curve_path(lesson: Lesson, arm: str, choice: float, seed: int) -> Path:
    """Where what an arm learned and forgot is kept; the examples count by their content."""
    examples = [] if lesson.path is None else examples_at(lesson.path)
    said = json.dumps([_LAYOUT, lesson[1:3], lesson[4:], examples, choice, DARE_RATE, BATCH, EVERY, RANK, seed])
    return folder_of(lesson.setting) / f"curve {arm} {hashlib.sha256(said.encode()).hexdigest()[:16]}.npz"


def learn(arm: str, choice: float, lesson: Lesson, examples: list[Example], seed: int) -> None:
    """Train with a choice, and keep what came of it."""
    found = trained(arm, choice, lesson, examples, seed)
    with replacing(curve_path(lesson, arm, choice, seed)) as temporary:
        np.savez(temporary, **found)


def best_of(arm: str, lesson: Lesson, seed: int) -> dict[str, Any]:
    """What came of the choice that forgot least on the tuning windows."""
    reached = []
    for choice in CHOICES[arm]:
        with np.load(curve_path(lesson, arm, choice, seed), allow_pickle=False) as kept:
            if "tune" in kept:  # it learned
                reached.append(dict(kept))
    if not reached:
        raise InputError(
            f"{arm} did not bring the loss to {lesson.target:g} of what it was in {lesson.n_steps} steps at any rate "
            f"of {', '.join(f'{choice:g}' for choice in CHOICES[arm])}; raise -p target or -p steps"
        )
    return min(reached, key=lambda kept: float(kept["tune"]))


def trained(arm: str, choice: float, lesson: Lesson, examples: list[Example], seed: int) -> dict[str, Any]:
    """Train until the target is crossed; empty where it is not."""
    from assay.models import quality

    model, tokenizer = fresh_model(lesson.setting.model)
    n_windows, n_questions = lesson.n_windows + TUNE, lesson.n_questions
    reference = quality.reference(model, tokenizer, n_windows=n_windows, n_questions=n_questions)
    train, held_out = dealt(examples, child_seed(seed, "examples"))
    watched = batch_of(tokenizer, held_out)
    learner = Learner(
        arm, choice, model, [batch_of(tokenizer, train[k : k + BATCH]) for k in range(0, 32, BATCH)], lesson
    )
    losses = [(0, watched_loss(learner.model, watched))]
    goal = lesson.target * losses[0][1]
    before = learner.state()
    for step in range(1, lesson.n_steps + 1):
        places = np.arange((step - 1) * BATCH, step * BATCH) % len(train)
        learner.model(**batch_of(tokenizer, [train[place] for place in places]), use_cache=False).loss.backward()
        learner.step()
        if step % EVERY:
            continue
        with learner.merged():
            losses.append((step, watched_loss(learner.model, watched)))
        if losses[-1][1] <= goal:
            break
        before = learner.state()
    else:
        return {}
    high, low = losses[-2][1], losses[-1][1]
    share = (high - goal) / (high - low)
    with learner.merged():
        after_said = quality.measure(learner.model, tokenizer, reference)
    learner.load(before)
    with learner.merged():
        before_said = quality.measure(learner.model, tokenizer, without_questions(reference))
    learner.close()
    found: dict[str, Any] = {"share": share, "steps": losses[-2][0] + share * EVERY, "losses": np.array(losses)}
    for name in ("kl", "nll"):
        for side, said in (("before", before_said), ("after", after_said)):
            found[f"{name} {side}"] = getattr(said, name)[: lesson.n_windows]
    found["correct"] = after_said.correct
    kl = (1 - share) * before_said.kl + share * after_said.kl
    found["tune"] = float(kl[lesson.n_windows :].mean())
    found["choice"] = choice
    return found


def without_questions(reference: Any) -> Any:
    """The same windows alone; questions are four fifths of the time."""
    return replace(
        reference, contexts=reference.contexts[:0], choices=reference.choices[:0], answers=reference.answers[:0]
    )


def watched_loss(model: Any, batch: dict[str, Any]) -> float:
    """Mean surprise at a token of the held-out answers, nats."""
    import torch

    with torch.inference_mode():
        return float(model(**batch, use_cache=False).loss)


class Learner:
    """A model with what an arm lets train of it, Adam, and the arm's way to merge."""

    def __init__(self, arm: str, choice: float, model: Any, first: list[dict[str, Any]], lesson: Lesson) -> None:
        import torch

        from assay.adapt.model_dowser import full_mask, gradient_mask

        setting = lesson.setting
        self.arm, self.choice, self.model = arm, choice, model
        self.tuning: Any = None
        rate = DARE_RATE if arm == DARE else choice
        if arm == LORA:
            self.model = with_lora(model, setting.layers)
            self.weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        else:
            if arm in (FULL, DARE):
                mask = full_mask(model, layers=setting.layers)
            elif arm == GRADIENT:
                mask = gradient_mask(model, first, setting.rho, layers=setting.layers)
            else:
                mask = masks.mask_of(arm, setting)
            self.tuning = mask.apply(model)
            self.weights = self.tuning.parameters()
        self.base = self.state() if arm == DARE else []
        self.optimizer = torch.optim.Adam(self.weights, rate)
        if self.tuning is not None and arm not in (FULL, DARE):
            self.tuning.guard(self.optimizer)

    def step(self) -> None:
        """A step of Adam on the gradients at hand."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> list[Any]:
        """A copy of what trains."""
        return [weight.detach().clone() for weight in self.weights]

    def load(self, state: list[Any]) -> None:
        """Go back to a copy."""
        import torch

        with torch.no_grad():
            for weight, value in zip(self.weights, state, strict=True):
                weight.copy_(value)

    def merged(self) -> Any:
        """While it is open the model is what the arm would hand out: for DARE with most changes dropped."""
        from contextlib import contextmanager, nullcontext

        if self.arm != DARE:
            return nullcontext()

        @contextmanager
        def dropped() -> Iterator[None]:
            from assay.adapt.model_dowser import dare_merge

            trained_state = self.state()
            names = [str(place) for place in range(len(trained_state))]
            made = dare_merge(
                dict(zip(names, self.base, strict=True)), dict(zip(names, trained_state, strict=True)), self.choice
            )
            self.load(list(made.values()))
            try:
                yield
            finally:
                self.load(trained_state)

        return dropped()

    def close(self) -> None:
        """Take the mask off."""
        if self.tuning is not None:
            self.tuning.detach()


def with_lora(model: Any, layers: int) -> Any:
    """Adapters (PEFT) on all linear layers of the same blocks."""
    from assay._core.decoder import decoder_blocks
    from assay._core.extras import need
    from assay.adapt.model_dowser import target_layers

    peft = need("peft", extra="peft", purpose="the LoRA baseline of model-dowser")
    assert len(decoder_blocks(model)) >= layers  # the masks were made with this number
    names = [name.removesuffix(".weight") for name in target_layers(model, layers=layers)]
    return peft.get_peft_model(model, peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=names))
