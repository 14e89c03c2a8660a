"""Train one adapter on samples: next-token loss on all tokens, or distillation from a teacher who sees the context."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from assay._core.errors import InputError
from assay._core.progress import progress_bar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor, nn

    from assay.adapt.lora_memory.formats import Encoded

IGNORED = -100  # the label that cross_entropy leaves out


@dataclass(frozen=True)
class WriteConfig:
    """How a module is written.

    Parameters
    ----------
    recipe : str
        For documents: kinds of text joined by ``+``, each with a count (``"raw+summary8+rewrite4+qa40"``). Facts are
        always written as they are.
    n_steps, batch_size : int
        Steps of AdamW and samples in each; the samples are shuffled anew whenever all have been seen.
    learning_rate : float
        At its highest. 5e-4 is the paper's for short training (150 to 250 steps), 5e-5 for 1000 or more.
    warmup_ratio : float
        Share of the steps in which it rises from zero; afterwards it falls to zero as a cosine.
    mask_question : bool
        Learn the answers alone. The paper learns questions as well.
    max_length : int
        Longest record in tokens; longer raw texts are cut into overlapping pieces.
    weight_decay, max_norm : float
        Of AdamW, and of the clipped gradient.
    distill : "none", "all", "kl_only" or "l1_only"
        Learn from the model itself as it reads the sample behind a context (``write(…, context=…)``).
    gradient_checkpointing : bool
        Less memory, a third more time.
    seed : int
        Of the initial weights, the order of the samples and dropout.
    """

    recipe: str = "qa40"
    n_steps: int = 150
    batch_size: int = 8
    learning_rate: float = 5e-4
    warmup_ratio: float = 0.1
    mask_question: bool = False
    max_length: int = 2048
    weight_decay: float = 0.01
    max_norm: float = 1.0
    distill: Literal["none", "all", "kl_only", "l1_only"] = "none"
    gradient_checkpointing: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("n_steps", "batch_size", "max_length"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; expected 1 or more")
        if not self.learning_rate > 0:
            raise InputError(f"learning_rate is {self.learning_rate}; expected a number above 0")
        if not 0 <= self.warmup_ratio < 1:
            raise InputError(f"warmup_ratio is {self.warmup_ratio}; expected a share from 0 to below 1")
        if self.distill not in ("none", "all", "kl_only", "l1_only"):
            raise InputError(f"distill is {self.distill!r}; expected none, all, kl_only or l1_only")

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for an index."""
        return asdict(self)


def lr_factor(step: int, n_steps: int, warmup_ratio: float) -> float:
    """Share of the highest learning rate after `step` steps: a linear rise, then a cosine that ends at zero.

    Examples
    --------
    >>> [round(lr_factor(step, 10, 0.2), 2) for step in (0, 2, 6, 10)]
    [0.0, 1.0, 0.5, 0.0]
    """
    warm_up = math.ceil(n_steps * warmup_ratio)
    if step < warm_up:
        return step / warm_up
    return 0.5 * (1.0 + math.cos(math.pi * (step - warm_up) / max(1, n_steps - warm_up)))


def pad(rows: Sequence[Sequence[int]], pad_id: int, side: Literal["left", "right"]) -> tuple[Tensor, Tensor]:
    """Rows of ids as a matrix, and a mask with ones on what is no padding: (n_rows, longest) int64 both."""
    import torch

    width = max(len(row) for row in rows)
    ids = torch.full((len(rows), width), pad_id, dtype=torch.long)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for place, row in enumerate(rows):
        where = slice(width - len(row), width) if side == "left" else slice(0, len(row))
        ids[place, where] = torch.tensor(row, dtype=torch.long)
        mask[place, where] = 1
    return ids, mask


def labels_of(ids: Tensor, mask: Tensor, n_prompt: Sequence[int], *, mask_question: bool) -> Tensor:
    """What is to be predicted: all that is no padding, or the answers alone.

    Padding is told by the attention mask and never by its id: where the pad token is the end-of-sequence token, the
    id would hide the true end as well, and the model would never learn to stop.
    """
    labels = ids.masked_fill(mask == 0, IGNORED)
    if mask_question:
        for row, n in enumerate(n_prompt):
            labels[row, :n] = IGNORED
    return labels


def distillation_loss(
    student_logits: Tensor,
    teacher_logits: Tensor,
    student_states: Tensor,
    teacher_states: Tensor,
    mask: Tensor,
    *,
    mode: str = "all",
    temperature: float = 2.0,
) -> Tensor:
    """Deep-context distillation: T² KL(teacher ‖ student) + 0.1 Σ|h_s − h_t| / Σ|h_t| over the sample's tokens.

    Parameters
    ----------
    student_logits, teacher_logits : (n, n_tokens, vocab_size)
        At the same tokens of the sample; the teacher has read a context before them.
    student_states, teacher_states : (n, n_tokens, d_model)
        Of the last layer.
    mask : (n, n_tokens)
        Ones on what is no padding.
    mode : "all", "kl_only" or "l1_only"
    temperature : float
        T; 2 in the paper.
    """
    import torch
    from torch.nn.functional import log_softmax

    # Half precision cannot tell a sum over a vocabulary from its neighbours: single at least, as next_token_loss.
    dtype = torch.promote_types(student_logits.dtype, torch.float32)
    student_logits, teacher_logits, student_states, teacher_states, weight = (
        part.to(dtype) for part in (student_logits, teacher_logits, student_states, teacher_states, mask)
    )
    loss = student_logits.new_zeros(())
    if mode != "l1_only":
        teacher = log_softmax(teacher_logits / temperature, dim=-1)
        student = log_softmax(student_logits / temperature, dim=-1)
        divergence = (teacher.exp() * (teacher - student)).sum(dim=-1)
        loss = loss + temperature**2 * (divergence * weight).sum() / weight.sum()
    if mode != "kl_only":
        gap = (student_states - teacher_states).abs() * weight.unsqueeze(-1)
        size = (teacher_states.abs() * weight.unsqueeze(-1)).sum()
        loss = loss + 0.1 * gap.sum() / (size + 1e-8)
    return torch.as_tensor(loss)


def batches(n: int, batch_size: int, n_steps: int, seed: int) -> Iterator[Any]:
    """Rows of each step: every sample once, in an order drawn anew, before any comes again."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(n)
    start = 0
    for _ in range(n_steps):
        if start >= n:
            order, start = rng.permutation(n), 0
        yield order[start : start + batch_size]
        start += batch_size


def train(
    model: nn.Module,
    weights: Sequence[nn.Parameter],
    samples: Sequence[Encoded],
    config: WriteConfig,
    pad_id: int,
    *,
    context: Sequence[int] = (),
    teacher: Any = None,
    name: str = "module",
) -> list[float]:
    """Train `weights`, the active adapter of `model`; return the loss of each step, in nats.

    Parameters
    ----------
    model : torch.nn.Module
        A causal language model with the adapter switched on.
    weights : sequence of torch.nn.Parameter
        The adapter's.
    samples : sequence of Encoded
    config : WriteConfig
    pad_id : int
    context : sequence of int
        Token ids that the teacher reads before each sample; only for distillation.
    teacher : context manager factory, optional
        Switches the adapter off, for distillation.
    name : str
        For the progress bar.

    Raises
    ------
    InputError
        The loss is no longer a number.
    """
    import torch

    device = weights[0].device
    optimizer = torch.optim.AdamW(weights, lr=config.learning_rate, weight_decay=config.weight_decay)
    losses: list[float] = []
    with progress_bar() as progress, torch.random.fork_rng(), torch.enable_grad():
        torch.manual_seed(config.seed)
        task = progress.add_task(f"writing {name}", total=config.n_steps)
        for step, rows in enumerate(batches(len(samples), config.batch_size, config.n_steps, config.seed)):
            for group in optimizer.param_groups:
                group["lr"] = config.learning_rate * lr_factor(step, config.n_steps, config.warmup_ratio)
            chosen = [samples[row] for row in rows]
            ids, mask = (part.to(device) for part in pad([sample.ids for sample in chosen], pad_id, "right"))
            if config.distill == "none":
                labels = labels_of(
                    ids, mask, [sample.n_prompt for sample in chosen], mask_question=config.mask_question
                )
                loss = next_token_loss(model(input_ids=ids, attention_mask=mask).logits, labels)
            else:
                loss = _distilled(model, ids, mask, context, teacher, config.distill)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            torch.nn.utils.clip_grad_norm_(weights, config.max_norm)
            optimizer.step()
            losses.append(loss.item())
            if not math.isfinite(losses[-1]):
                raise InputError(
                    f"the loss is {losses[-1]} at step {step + 1}; try a learning_rate below {config.learning_rate:g}"
                )
            progress.update(task, completed=step + 1, description=f"writing {name}, loss {losses[-1]:.2f}")
    return losses


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean surprise at each label that counts, given what stands before it; nats."""
    from torch.nn.functional import cross_entropy

    return cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=IGNORED)


def _distilled(model: nn.Module, ids: Tensor, mask: Tensor, context: Sequence[int], teacher: Any, mode: str) -> Tensor:
    """The student reads the sample, the teacher the context and the sample; they are compared on the sample."""
    import torch

    n, n_tokens = ids.shape
    before = torch.tensor(list(context), dtype=torch.long, device=ids.device).expand(n, -1)
    with torch.no_grad(), teacher():
        seen = model(
            input_ids=torch.cat([before, ids], dim=1),
            attention_mask=torch.cat([torch.ones_like(before), mask], dim=1),
            output_hidden_states=True,
        )
    own = model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
    return distillation_loss(
        own.logits,
        seen.logits[:, -n_tokens:],
        own.hidden_states[-1],
        seen.hidden_states[-1][:, -n_tokens:],
        mask,
        mode=mode,
    )
