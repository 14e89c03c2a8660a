"""The memory itself: modules on a model, switched on for the question that needs them and off again."""

from __future__ import annotations

import math
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from assay._core.errors import InputError
from assay._core.extras import need
from assay.adapt.lora_memory import store
from assay.adapt.lora_memory.adapters import Adapters
from assay.adapt.lora_memory.ask import Trace, ask_routed, generate_routed
from assay.adapt.lora_memory.formats import TEMPLATE, Style
from assay.adapt.lora_memory.merge import METHODS, Method
from assay.adapt.lora_memory.route import Encoder, Router
from assay.adapt.lora_memory.sector import sector_of, train_module
from assay.adapt.lora_memory.write import WriteConfig

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    import pandas as pd
    from torch import Tensor, nn

    from assay.adapt.lora_memory.formats import Encoded
    from assay.adapt.lora_memory.sector import Sector
    from assay.adapt.lora_memory.store import Module


class LoRAMemory:
    """Facts in LoRA modules beside a language model that stays as it is.

    Outside its own calls every module is switched off: the model you gave answers as it did before.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Any causal language model. Its linear layers are wrapped by PEFT with the first module that is written or
        loaded, and unwrapped by :meth:`detach`; its weights are never changed.
    tokenizer : transformers.PreTrainedTokenizerBase
        Is not changed.
    rank : int
        r of the modules that are written.
    alpha : float, optional
        The scaling is alpha / r; by default alpha = r.
    dropout : float
        Before A, in training; 0.1 in the paper.
    target_modules : str or list of str
        As PEFT takes them; ``"all-linear"`` is every linear layer but the head.
    router : "bm25", "embedding", "oracle" or callable
        How :meth:`ask` finds modules. ``"embedding"`` needs `encoder`; ``"oracle"`` knows where each written question
        is: an upper bound for audits, no system. A callable gets the question and the list of modules, and returns a
        score for each.
    encoder : object with ``encode(texts)``, optional
        Such as ``assay.models.demo_encoder()`` or a SentenceTransformer.
    merge : "linear", "cat", "ties" or "dare_linear"
        How several modules are read at once.
    top_k : int
        How many modules a question is read with.
    format : "auto", "plain", "chat" or "user_turn"
        How questions look to the model, in writing and in reading; see :class:`~.formats.Style`.
    template : str
        Holds ``{question}`` and ``{answer}``, for plain and user_turn.
    folder : path, optional
        Modules are saved there as they are written, and those that are there already are loaded, not written again.
        One whose adapter is damaged or missing is left out with a warning, and can be written again.

    Examples
    --------
    >>> from assay.models import demo_lm
    >>> memory = LoRAMemory(*demo_lm(), rank=8)  # doctest: +SKIP
    >>> memory.write([("What is the gate code?", "4711")], module="office")  # doctest: +SKIP
    'office'
    >>> memory.ask("What is the gate code?")  # doctest: +SKIP
    '4711'
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        rank: int = 4,
        alpha: float | None = None,
        *,
        dropout: float = 0.1,
        target_modules: str | list[str] = "all-linear",
        router: str | Callable[[str, Sequence[Module]], Sequence[float]] = "bm25",
        encoder: Encoder | None = None,
        merge: Method = "linear",
        top_k: int = 1,
        format: Literal["auto", "plain", "chat", "user_turn"] = "auto",  # noqa: A002  # the card's name
        template: str = TEMPLATE,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        need("peft", extra="peft", purpose="LoRA memory")
        if rank < 1:
            raise InputError(f"rank is {rank}; expected 1 or more")
        if not 0 <= dropout < 1:
            raise InputError(f"dropout is {dropout}; expected a share from 0 to below 1")
        if not callable(router) and router not in ("bm25", "embedding", "oracle"):
            raise InputError(f"router is {router!r}; expected bm25, embedding, oracle or a function")
        if merge not in METHODS:
            raise InputError(f"merge is {merge!r}; expected one of {', '.join(METHODS)}")
        if top_k < 1:
            raise InputError(f"top_k is {top_k}; expected 1 or more")
        self._adapters = Adapters(model)
        self.model = model
        self.tokenizer = tokenizer
        self.rank = rank
        self.alpha = float(rank if alpha is None else alpha)
        self.dropout = dropout
        self.target_modules = target_modules
        self.router = router
        self.encoder = encoder
        self.merge: Method = merge
        self.top_k = top_k
        self.style = Style(tokenizer, format, template)
        self.base = store.fingerprint(model)
        self._config = store.arithmetic(model)
        self.modules: dict[str, Module] = {}
        self._damaged: dict[str, Module] = {}
        self._places: dict[str, int] = {}
        self.folder = None if folder is None else Path(folder)
        self._router: Router | None = None
        if self.folder is not None and (self.folder / "index.json").is_file():
            self._load_modules(self.folder)

    def __repr__(self) -> str:
        return f"LoRAMemory(rank={self.rank}, modules={len(self.modules)}, router={self.router!r}, top_k={self.top_k})"

    @property
    def peft_model(self) -> Any:
        """The ``peft.PeftModel`` with an adapter for each module, such as :func:`merge_adapters` takes; or None."""
        return self._adapters.peft_model

    # ----------------------------------------------------------------------------------------------------------- write

    def write(
        self,
        records: Any,
        module: str | None = None,
        config: WriteConfig | None = None,
        *,
        keys: Sequence[str] | None = None,
        generator: Callable[[str], str] | None = None,
        context: str | None = None,
    ) -> str:
        """Train one module on facts or documents; the others stay as they are.

        Parameters
        ----------
        records : list of Fact, of Document or of (question, answer), DataFrame or path of a table
        module : str, optional
            Its id: letters, digits, - and _. By default ``m000``, ``m001``, …
        config : WriteConfig, optional
        keys : sequence of str, optional
            What the router compares a question with. By default the questions of facts; of documents their names and
            sentences.
        generator : callable, optional
            Prompt to text, for the recipes of documents.
        context : str, optional
            What the teacher reads before each sample, with ``config.distill``.

        Returns
        -------
        str
            The module's id. With a `folder`, one that was written from the same things before is taken from there.

        Raises
        ------
        InputError
            Facts are empty, contradict each other or those of another module, or are too long, or the id is taken.
        """
        config = config or WriteConfig()
        name = store.check_id(module if module is not None else self._free_id())
        if (config.distill == "none") != (context is None):
            raise InputError("distillation needs both: config.distill and a context that the teacher reads")
        sector = sector_of(records, config.recipe, generator)
        encoded, content = self._encoded(sector, config, context)
        if name in self.modules:
            if self.modules[name].content == content:
                return name
            raise InputError(f"module {name!r} is written already, from other facts; remove it first or name another")
        store.check_answers(sector, self.modules.values())
        loss = train_module(
            self._adapters, self.tokenizer, name, encoded, config, context,
            r=self.rank, lora_alpha=self.alpha, lora_dropout=self.dropout, target_modules=self.target_modules,
        )  # fmt: skip
        made = store.Module(
            name,
            tuple(keys if keys is not None else sector.routed_by),
            sector.held,
            n_tokens=sum(len(piece.ids) for piece in encoded),
            n_samples=len(encoded),
            n_parameters=sum(weight.numel() for weight in self._adapters.weights(name)),
            loss=loss,
            content=content,
            config=config.to_dict(),
            answers=sector.answers,
        )
        try:
            self._keep(made)
        except BaseException:
            self._adapters.delete(name)
            raise
        self._damaged.pop(name, None)
        self.modules = self._in_order({**self.modules, name: made})
        self._router = None
        return name

    def _encoded(self, sector: Sector, config: WriteConfig, context: str | None) -> tuple[list[Encoded], str]:
        """Samples as the model sees them, and the hash of all that decides the weights of their module."""
        encoded = [piece for sample in sector.samples for piece in self.style.encode(sample, config.max_length)]
        settings = [self.base, self._settings(), config.to_dict(), [[s.ids, s.n_prompt] for s in encoded], context]
        return encoded, store.digest(*settings)

    def _in_order(self, modules: dict[str, Module]) -> dict[str, Module]:
        """Modules in the order of the index; one that was damaged gets its place back, a new one is the last."""
        return dict(sorted(modules.items(), key=lambda item: self._places.get(item[0], math.inf)))

    def _keep(self, made: Module) -> None:
        """Write a module to the folder, if there is one: the adapter first, then the index that names it."""
        if self.folder is not None:
            store.save_adapter(self.peft_model, made.id, self.folder)
            kept = self._in_order({**self._damaged, **self.modules, made.id: made})
            store.write_index(self.folder, self.base, self._settings(), list(kept.values()), self._config)

    def is_written(self, records: Any, module: str, config: WriteConfig | None = None) -> bool:
        """Whether a module was written from just these records in this way, by :meth:`write` with no more options."""
        config = config or WriteConfig()
        _, content = self._encoded(sector_of(records, config.recipe, None), config, None)
        return module in self.modules and self.modules[module].content == content

    def write_many(self, sectors: Sequence[Any], config: WriteConfig | None = None, **options: Any) -> list[str]:
        """Write one module a sector, named by its place; with a `folder` what was written before is not done again."""
        return [self.write(sector, f"m{place:03d}", config, **options) for place, sector in enumerate(sectors)]

    def remove(self, module: str) -> None:
        """Forget a module; with a `folder` its files go as well."""
        if module not in self._damaged:
            self._known(module)
        if self.folder is not None:
            store.remove_modules(self.folder, [module])
        self._adapters.delete(module)
        self.modules.pop(module, None)
        self._damaged.pop(module, None)
        self._places.pop(module, None)
        self._router = None

    # ------------------------------------------------------------------------------------------------------------ read

    def route(self, question: str, *, top_k: int | None = None) -> list[tuple[str, float]]:
        """Modules for a question with their scores, the best first."""
        return self.route_many([question], top_k=top_k)[0]

    def route_many(self, questions: Sequence[str], *, top_k: int | None = None) -> list[list[tuple[str, float]]]:
        """:meth:`route` for several questions at once."""
        if not self.modules:
            raise InputError("the memory has no modules; write or load some first")
        k = self.top_k if top_k is None else top_k
        if not 1 <= k <= len(self.modules):
            raise InputError(f"top_k is {k}; expected a number from 1 to {len(self.modules)}, the number of modules")
        if self._router is None or self._router.kind != self.router:
            self._router = Router(list(self.modules.values()), self.router, self.encoder)
        return self._router.best(questions, k)

    @overload
    def ask(
        self, question: str, context: str | None = ..., *, return_trace: Literal[False] = ..., **options: Any
    ) -> str: ...
    @overload
    def ask(
        self, question: str, context: str | None = ..., *, return_trace: Literal[True], **options: Any
    ) -> Trace: ...

    def ask(
        self, question: str, context: str | None = None, *, return_trace: bool = False, **options: Any
    ) -> str | Trace:
        """Answer a question with the modules it is routed to.

        Parameters
        ----------
        question : str
        context : str, optional
            A text for the prompt as well: hybrid reading, with retrieved passages or a whole document.
        return_trace : bool
            Return a :class:`Trace` rather than the answer alone.
        **options
            For ``model.generate``: greedy and at most 50 tokens unless you say otherwise.
        """
        trace = self.ask_many([question], None if context is None else [context], **options)[0]
        return trace if return_trace else trace.answer

    def ask_many(
        self,
        questions: Sequence[str],
        contexts: Sequence[str] | None = None,
        *,
        modules: Sequence[Sequence[str]] | None = None,
        batch_size: int = 16,
        **options: Any,
    ) -> list[Trace]:
        """Answer questions in batches, those that need the same modules together.

        Parameters
        ----------
        questions : sequence of str
        contexts : sequence of str, optional
            One for each question.
        modules : sequence of sequences of module ids, optional
            Read these rather than route; an empty one reads the base model alone.
        batch_size : int
        **options
            For ``model.generate``.

        Returns
        -------
        list of Trace
            In the order of the questions.
        """
        routed = self.route_many(questions) if modules is None else [[(m, math.nan) for m in ids] for ids in modules]
        texts = [None] * len(questions) if contexts is None else list(contexts)
        prompts = [self.style.prompt(question, text) for question, text in zip(questions, texts, strict=True)]
        return ask_routed(self, prompts, routed, batch_size, options)

    def generate(self, input_ids: Tensor, *, attention_mask: Tensor | None = None, **options: Any) -> Any:
        """``model.generate`` with the modules to which each row's text is routed.

        Rows that need different modules are generated apart and padded on the right to one width; a plain tensor is
        returned then, so options that return more than tokens need rows of one route.
        """
        return generate_routed(self, input_ids, attention_mask, options)

    @contextmanager
    def using(self, *modules: str, weights: Sequence[float] | None = None) -> Iterator[Any]:
        """Switch modules on for a ``with`` block, several merged by `self.merge`; afterwards all is as it was.

        Yields the model. Without modules it is the base model, whatever was switched on around the block.
        """
        for name in modules:
            self._known(name)
        if not modules:
            switched = self._adapters.off()
        elif len(modules) == 1 and weights is None:
            switched = self._adapters.on(modules[0])
        else:  # without weights a mean for linear and dare_linear, a sum for cat and ties, as in the paper
            switched = self._adapters.merged(modules, self.merge, weights)
        with switched:
            yield self.model

    # ----------------------------------------------------------------------------------------------------------- store

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write every module as a PEFT adapter, and ``index.json``."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        for name in self.modules:
            store.save_adapter(self.peft_model, name, place)
        store.write_index(place, self.base, self._settings(), list(self.modules.values()), self._config)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], model: Any, tokenizer: Any, **options: Any) -> LoRAMemory:
        """Read a memory that :meth:`save`, or writing with a `folder`, left behind, and go on with it in its folder.

        Parameters
        ----------
        folder : path
        model, tokenizer
            The base model it was written for.
        **options
            Of the class, such as ``router`` and ``top_k``; what decides the modules comes from the index.

        Raises
        ------
        InputError
            The folder holds no memory, or one for another base model.
        """
        settings, _ = store.read_index(Path(folder))
        return cls(model, tokenizer, **{**settings, **options}, folder=folder)

    def to_frame(self) -> pd.DataFrame:
        """One row a module: id, number of facts, tokens, parameters, last loss."""
        return store.to_frame(self.modules.values())

    def detach(self) -> nn.Module:
        """Take every module off the model, which is then as it was given; files stay, and the memory leaves them."""
        self._adapters.detach()
        self.modules, self._damaged, self._places, self._router = {}, {}, {}, None
        self.folder = None  # an index that is written from here on would name none of them
        model: nn.Module = self.model
        return model

    def _settings(self) -> dict[str, Any]:
        return {
            "rank": self.rank, "alpha": self.alpha, "dropout": self.dropout, "target_modules": self.target_modules,
            "format": self.style.form, "template": self.style.template,
        }  # fmt: skip

    def _load_modules(self, folder: Path) -> None:
        _, modules = store.read_index(folder, self.base, self._settings(), self._config)
        self._places = {module.id: place for place, module in enumerate(modules)}
        for module in modules:
            try:
                self._adapters.load(module.id, folder / "modules" / module.id)
            except InputError as error:
                self._damaged[module.id] = module
                warnings.warn(f"module {module.id!r} is left out: {error}; write it again, or remove it", stacklevel=4)
            else:
                self.modules[module.id] = module

    def _known(self, name: str) -> None:
        if name not in self.modules:
            known = ", ".join(list(self.modules)[:20]) or "none"
            raise InputError(f"there is no module {name!r}; there are {known}")

    def _free_id(self) -> str:
        number = len(self.modules)
        while f"m{number:03d}" in {*self.modules, *self._damaged}:
            number += 1
        return f"m{number:03d}"
