"""PEFT, underneath the memory: adapters on a model, all switched off unless a ``with`` block says otherwise."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from assay._core.errors import InputError
from assay.adapt.lora_memory.merge import Method, lora_layers, merge_adapters

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

#: The file of an adapter that PEFT keeps its weights in.
WEIGHTS = "adapter_model.safetensors"

_MERGED = "merged-for-this-question"


class Adapters:
    """The adapters of one model.

    Attributes
    ----------
    model : transformers.PreTrainedModel
    peft_model : peft.PeftModel or None
        None while the model has no adapter; it is then as it was given.
    """

    def __init__(self, model: Any) -> None:
        if any(hasattr(layer, "lora_A") for layer in model.modules()):
            raise InputError("the model has LoRA layers already; detach or merge them, or load the model anew")
        self.model = model
        self.peft_model: Any = None
        self._trainable = {name: weight.requires_grad for name, weight in model.named_parameters()}

    def __contains__(self, name: str) -> bool:
        return self.peft_model is not None and name in self.peft_model.peft_config

    def add(self, name: str, **config: Any) -> None:
        """Add an adapter that changes nothing yet (B = 0)."""
        import peft

        try:
            with self._as_they_were():
                self._wrap(name, peft.LoraConfig(bias="none", task_type="CAUSAL_LM", **config))
        except ValueError as error:
            raise InputError(f"target_modules={config['target_modules']!r}: {str(error).splitlines()[0]}") from None

    def _wrap(self, name: str, lora: Any) -> None:
        import peft

        try:
            if self.peft_model is None:
                self.peft_model = peft.get_peft_model(self.model, lora, adapter_name=name)
            else:
                self.peft_model.add_adapter(name, lora)
        except ValueError:
            if self.peft_model is None and hasattr(self.model, "peft_config"):
                del self.model.peft_config  # no layer was wrapped, but PEFT leaves its name on the model
            raise

    def load(self, name: str, folder: Path) -> None:
        """Add an adapter from its folder; where that fails, the model is left as it was."""
        import peft
        import torch
        from safetensors import SafetensorError

        missing = [file for file in ("adapter_config.json", WEIGHTS) if not (folder / file).is_file()]
        if missing:
            raise InputError(f"{folder} holds no {missing[0]}")
        try:
            with self._as_they_were():
                lora = peft.LoraConfig.from_pretrained(str(folder))
                lora.base_model_name_or_path = None  # PEFT warns where the model lies elsewhere now
                self._wrap(name, lora)
                self.peft_model.load_adapter(str(folder), adapter_name=name)
        except BaseException as error:
            self.delete(name)
            of_the_file = ValueError, RuntimeError, KeyError, TypeError, OSError, SafetensorError
            if isinstance(error, torch.OutOfMemoryError) or not isinstance(error, of_the_file):
                raise
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise InputError(f"{folder} is no adapter for this model: {reason}") from None

    @contextmanager
    def _as_they_were(self) -> Iterator[None]:
        """An adapter that is added within is frozen and off; what was on before is on again."""
        was = [] if self.peft_model is None else list(self.peft_model.base_model.active_adapters)
        was_off = self.peft_model is None or self._is_off()
        try:
            with quiet():
                yield
        finally:
            if self.peft_model is not None:
                for weight in self.peft_model.parameters():
                    weight.requires_grad_(False)
                self._set(was)
                if was_off:
                    self.peft_model.base_model.disable_adapter_layers()

    def weights(self, name: str) -> list[Any]:
        """Factors A and B of every layer."""
        layers = lora_layers(self.model, name).values()
        return [factor[name].weight for layer in layers for factor in (layer.lora_A, layer.lora_B)]

    def delete(self, name: str) -> None:
        """Take an adapter away, if it is there; with the last one the model is unwrapped."""
        if name not in self:
            return
        if len(self.peft_model.peft_config) == 1:
            self.detach()
            return
        is_off = self._is_off()
        with quiet():
            self.peft_model.delete_adapter(name)
        if is_off:
            self.peft_model.base_model.disable_adapter_layers()

    def detach(self) -> None:
        """Unwrap the model: it is as it was given."""
        if self.peft_model is None:
            return
        self.peft_model.base_model.unload()
        self.peft_model = None
        for name, weight in self.model.named_parameters():
            weight.requires_grad_(self._trainable[name])

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        """Switch one adapter on; afterwards what was on is on again."""
        was, was_off = self.peft_model.base_model.active_adapters, self._is_off()
        self._set([name])
        self.peft_model.base_model.enable_adapter_layers()
        try:
            yield
        finally:
            self._set(was)
            if was_off:
                self.peft_model.base_model.disable_adapter_layers()

    @contextmanager
    def off(self) -> Iterator[None]:
        """Switch all off; afterwards what was on is on again."""
        if self.peft_model is None or self._is_off():
            yield
            return
        self.peft_model.base_model.disable_adapter_layers()
        try:
            yield
        finally:
            self.peft_model.base_model.enable_adapter_layers()

    @contextmanager
    def merged(self, names: Sequence[str], method: Method, weights: Sequence[float] | None) -> Iterator[None]:
        """Switch a merge of several on; it exists within the block alone."""
        was, was_off = self.peft_model.base_model.active_adapters, self._is_off()
        name = _MERGED
        while name in self:  # a block within a block
            name += "-"
        try:
            merge_adapters(self.peft_model, names, method, weights, new_name=name)
            with self.on(name):
                yield
        finally:
            self.delete(name)
            self._set(was)
            if was_off:
                self.peft_model.base_model.disable_adapter_layers()

    def _is_off(self) -> bool:
        return any(layer.disable_adapters for layer in self.peft_model.modules() if hasattr(layer, "lora_A"))

    def _set(self, names: list[str]) -> None:
        known = [name for name in names if name in self]
        if known:
            self.peft_model.base_model.set_adapter(known, inference_mode=True)


@contextmanager
def quiet() -> Iterator[None]:
    """Without what PEFT warns of and sets right itself, and what is between it and transformers."""
    with warnings.catch_warnings():
        for message in ("fan_in_fan_out", ".*gradient_checkpointing.* is dep", "Adapter .* was active", "Adapter name"):
            warnings.filterwarnings("ignore", message=message)
        yield
