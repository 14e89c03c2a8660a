"""Train under a mask with transformers' Trainer. It imports transformers: it is loaded when it is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from assay._core.errors import InputError
from assay.adapt.model_dowser.masks import Mask, build_mask, check_choice
from assay.adapt.model_dowser.scores import importance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.adapt.model_dowser.training import Tuning


@dataclass(frozen=True)
class DowserConfig:
    """How a model is scored and masked; the defaults are the method's.

    Parameters
    ----------
    rho : float
        Share of every matrix that trains: the one knob between learning and forgetting.
    n_probes, length, n_hutchinson : int
        Probes that the model writes, their tokens, backward passes of each.
    modules, layers, reduce
        As for :func:`importance`.
    scope
        As for :func:`build_mask`.
    seed : int
    """

    rho: float = 0.1
    n_probes: int = 32
    length: int = 64
    n_hutchinson: int = 8
    modules: str = "linear"
    layers: int | Sequence[int] | None = None
    reduce: Literal["position", "mean"] = "position"
    scope: Literal["layer", "global"] = "layer"
    seed: int = 0

    def __post_init__(self) -> None:
        """Check what is needed last."""
        check_choice(self.rho, self.scope)

    def mask(self, model: nn.Module, tokenizer: Any = None) -> Mask:
        """Score `model` on text that it writes, and build the mask."""
        scores = importance(
            model, None, tokenizer, self.n_probes, self.n_hutchinson, self.modules, self.layers, self.reduce, self.seed,
            length=self.length,
        )  # fmt: skip
        return build_mask(scores, self.rho, self.scope)


class DowserTrainerCallback(TrainerCallback):
    """Guard the optimiser that a Trainer makes; the mask is on the model already.

    Parameters
    ----------
    tuning : Tuning
        Of the Trainer's model.

    Examples
    --------
    >>> with mask.apply(model) as tuning:  # doctest: +SKIP
    ...     trainer = Trainer(model, arguments, callbacks=[DowserTrainerCallback(tuning)], train_dataset=data)
    ...     trainer.train()
    """

    def __init__(self, tuning: Tuning) -> None:
        self.tuning = tuning

    def on_train_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
        """Called by the Trainer once the optimiser is there."""
        self.tuning.guard(getattr(optimizer, "optimizer", optimizer))  # Accelerate wraps it


class DowserTrainer(Trainer):
    """transformers' Trainer, in which only the masked entries train.

    The mask is on the model while :meth:`train` runs. Afterwards `delta_` holds what changed.

    Parameters
    ----------
    model : transformers.PreTrainedModel
    args : transformers.TrainingArguments
    mask : Mask or DowserConfig
        A configuration scores the model first, with the tokenizer in `processing_class`.
    **kwargs
        As for Trainer.

    Attributes
    ----------
    mask : Mask
    delta_ : SparseDelta
        Set by :meth:`train`.
    """

    def __init__(self, model: nn.Module, args: TrainingArguments, mask: Mask | DowserConfig, **kwargs: Any) -> None:
        options = args.gradient_checkpointing_kwargs
        if args.gradient_checkpointing and isinstance(options, dict) and options.get("use_reentrant"):
            raise InputError(
                "gradient_checkpointing_kwargs asks for use_reentrant=True, which loses the gradients of a partly "
                "frozen model; set it to False"
            )
        self.mask = mask if isinstance(mask, Mask) else mask.mask(model, kwargs.get("processing_class"))
        super().__init__(model, args, **kwargs)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as Trainer does, under the mask; an exception leaves the model as it was."""
        assert isinstance(self.model, nn.Module)  # Trainer's own annotation allows None
        with self.mask.apply(self.model) as tuning:
            guard = DowserTrainerCallback(tuning)
            self.add_callback(guard)
            try:
                said = super().train(*args, **kwargs)
                self.delta_ = tuning.delta()
            finally:
                self.remove_callback(guard)
        return said
