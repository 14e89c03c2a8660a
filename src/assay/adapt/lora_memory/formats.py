"""What is written for a fact or a document, and how a question looks to the model: formats and templates."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from assay._core.errors import InputError
from assay.adapt.lora_memory.facts import Document, Fact, chunks, sentences

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Format = Literal["plain", "chat", "user_turn"]
FORMATS: tuple[Format, ...] = ("plain", "chat", "user_turn")

#: What a question and its answer look like where there is no chat template, and inside a ``user_turn``.
TEMPLATE = "Question: {question}\nAnswer: {answer}"

#: How a question is asked together with a text (hybrid reading, retrieval, in-context learning).
WITH_CONTEXT = "Based on the context below, answer the question.\n\nContext:\n{context}\n\n{question}"

KINDS = ("raw", "qa", "summary", "rewrite")


@dataclass(frozen=True)
class Sample:
    """What the model is asked and what it learns to say; a raw text has an empty prompt."""

    prompt: str
    completion: str


@dataclass(frozen=True)
class Encoded:
    """Token ids of a sample: those of the prompt come first."""

    ids: tuple[int, ...]
    n_prompt: int


# ------------------------------------------------------------------------------------------------- supervision formats


def parse_recipe(recipe: str) -> dict[str, int]:
    """Read a recipe such as ``"raw+summary8+qa40"``: kinds of text and how many of each a document gets.

    Examples
    --------
    >>> parse_recipe("raw+summary8+qa40")
    {'raw': 1, 'summary': 8, 'qa': 40}
    >>> parse_recipe("qa")
    {'qa': 40}
    """
    found: dict[str, int] = {}
    for part in recipe.split("+"):
        match = re.fullmatch(r"([a-z]+)(\d*)", part.strip().lower())
        if match is None or match[1] not in KINDS or match[2] == "0":
            raise InputError(
                f"recipe {recipe!r}: {part!r} is not one of {', '.join(KINDS)}, with a number such as qa40"
            )
        found[match[1]] = 1 if match[1] == "raw" else int(match[2] or (40 if match[1] == "qa" else 4))
    return found


def fact_samples(facts: Sequence[Fact]) -> list[Sample]:
    """Each question with its answer, as they are."""
    return [Sample(fact.question, fact.answer) for fact in facts]


def document_samples(
    documents: Sequence[Document], recipe: str, generator: Callable[[str], str] | None = None
) -> list[Sample]:
    """Texts to learn a document from (paper: QA40, Summary8+QA40, Original+Summary8+Rewrite4+QA40, …).

    Parameters
    ----------
    documents : sequence of Document
    recipe : str
        See :func:`parse_recipe`.
    generator : callable, optional
        Prompt to text: any language model. Without one questions are made by rule (a sentence's beginning asks for its
        end), summaries are the document's first sentences, and rewrites are refused.

    Returns
    -------
    list of Sample
    """
    kinds = parse_recipe(recipe)
    if generator is None and "rewrite" in kinds:
        raise InputError(
            "recipe 'rewrite' needs a generator, a function from prompt to text; leave it out, or give one"
        )
    samples: list[Sample] = []
    for document in documents:
        if "raw" in kinds:
            samples.append(Sample("", document.text))
        for kind in ("summary", "rewrite"):
            samples += [
                Sample(f"{_ASKED[kind]} {document.name}, version {number + 1}.", text)
                for number, text in enumerate(_texts(document, kind, kinds.get(kind, 0), generator))
            ]
        if "qa" in kinds:
            samples += fact_samples(questions(document, kinds["qa"], generator))
    return samples


_ASKED = {"summary": "Summarise", "rewrite": "Retell"}
_TASKS = {
    "summary": "Summarise the following text in a few sentences. Keep every name and number.",
    "rewrite": "Rewrite the following text in other words. Keep every name and number.",
}


def _texts(document: Document, kind: str, n: int, generator: Callable[[str], str] | None) -> list[str]:
    if generator is None:
        lead = sentences(document.text)
        return [" ".join(lead[: number + 1]) for number in range(min(n, len(lead)))]
    return [generator(f"{_TASKS[kind]} Version {number + 1}.\n\n{document.text}").strip() for number in range(n)]


def questions(
    document: Document, n: int, generator: Callable[[str], str] | None = None, n_rounds: int = 2
) -> list[Fact]:
    """At most `n` questions about a document, with answers.

    With a generator it is asked once, and then in `n_rounds` rounds for more, each time with the pairs that are there
    already (as in the paper's long-context recipe). Pairs are read from lines ``Q: … | A: …``.
    """
    if generator is None:
        return _by_rule(document, n)
    found: dict[str, Fact] = {}
    for number in range(n_rounds + 1):
        known = "\n".join(f"Q: {fact.question} | A: {fact.answer}" for fact in found.values())
        different = f"\nThey must differ from these:\n{known}\n" if known else ""
        wanted = max(1, (n - len(found)) // (n_rounds + 1 - number))
        reply = generator(
            f"Write {wanted} questions about the text, with short answers, one a line, as Q: question | A: answer. "
            f"Name the subject in every question.{different}\n\nText ({document.name}):\n{document.text}\n"
        )
        for q, a in re.findall(r"Q:\s*(.+?)\s*\|\s*A:\s*(.+)", reply):
            found.setdefault(q.strip(), Fact(q.strip(), a.strip()))
        if len(found) >= n:
            break
    if not found:
        raise InputError(f"the generator wrote no line 'Q: … | A: …' about {document.name}; try another, or none")
    return list(found.values())[:n]


def _by_rule(document: Document, n: int) -> list[Fact]:
    """The first words of a sentence ask for the others: cloze questions that any text has."""
    made: dict[str, Fact] = {}
    for sentence in sentences(document.text):
        words = sentence.split()
        if len(words) >= 4:
            half = (len(words) + 1) // 2
            question = f'In {document.name}, how does this go on: "{" ".join(words[:half])} …"?'
            made.setdefault(question, Fact(question, " ".join(words[half:])))
    if not made:
        raise InputError(
            f"{document.name}: no sentence of four words or more, so no questions can be made of it by rule"
        )
    return list(made.values())[:n]


def tagged(question: str, source: str, style: Literal["bracket", "natural"] = "bracket") -> str:
    """Say in the question which document is meant; used in writing it must be used in reading too.

    Examples
    --------
    >>> tagged("What is the loss?", "12")
    '[Document: 12] What is the loss?'
    """
    return f"[Document: {source}] {question}" if style == "bracket" else f"In the document {source}, {question}"


# ------------------------------------------------------------------------------------------------------------ templates


class Style:
    """How questions and samples become tokens of one model: the same in writing and in reading.

    Parameters
    ----------
    tokenizer : transformers.PreTrainedTokenizerBase
        Is not changed.
    form : "auto", "plain", "chat" or "user_turn"
        ``chat``: the question is the user's turn and the answer the assistant's. ``user_turn``: question and answer
        stand together in the user's turn, with the generation prompt behind it, as the authors' code has it.
        ``plain``: `template` without any chat. ``auto``: chat where the tokenizer has a chat template, else plain.
    template : str
        Holds ``{question}`` and ``{answer}``, for plain and user_turn.
    """

    def __init__(self, tokenizer: Any, form: str = "auto", template: str = TEMPLATE) -> None:
        if form not in ("auto", *FORMATS):
            raise InputError(f"format is {form!r}; expected auto, {', '.join(FORMATS)}")
        has_chat = bool(getattr(tokenizer, "chat_template", None))
        if form in ("chat", "user_turn") and not has_chat:
            raise InputError(f"format is {form!r}, but the tokenizer has no chat template; use format='plain'")
        if template.count("{question}") != 1 or template.count("{answer}") != 1:
            raise InputError(f"template is {template!r}; expected {{question}} and {{answer}} once each")
        if template.index("{question}") > template.index("{answer}"):
            raise InputError(f"template is {template!r}; expected {{question}} before {{answer}}")
        if tokenizer.eos_token_id is None:
            raise InputError("the tokenizer has no end-of-sequence token, so the model cannot learn to stop; set one")
        self.tokenizer = tokenizer
        self.form = ("chat" if has_chat else "plain") if form == "auto" else form
        self.template = template

    def prompt(self, question: str, context: str | None = None) -> list[int]:
        """Token ids up to where the answer begins."""
        before = self._before(question)
        if self.form == "chat":
            return self._chat(WITH_CONTEXT.format(context=context, question=question) if context else question)
        asked = WITH_CONTEXT.format(context=context, question=before) if context else before
        if self.form == "plain":
            return self._plain(asked)
        return self._ids(self._open_turn(asked))

    def encode(self, sample: Sample, max_length: int | None = None) -> list[Encoded]:
        """Token ids of a sample, the end of the sequence included; a raw text may need several pieces.

        Raises
        ------
        InputError
            A question with its answer has more than `max_length` tokens.
        """
        eos = int(self.tokenizer.eos_token_id)
        if not sample.prompt:
            ids = [*self._plain(sample.completion), eos]
            size = max_length or len(ids)
            return [Encoded(tuple(piece), 0) for piece in chunks(ids, size, min(200, size // 10))]
        prompt = self.prompt(sample.prompt)
        completion = [*self._ids(self._gap() + sample.completion), *self._after()]
        encoded = Encoded((*prompt, *completion), len(prompt))
        if max_length is not None and len(encoded.ids) > max_length:
            raise InputError(
                f"the record {sample.prompt!r:.60} has {len(encoded.ids)} tokens; max_length is {max_length}: "
                "shorten it or raise max_length"
            )
        return [encoded]

    def n_tokens(self, record: Fact | Document) -> int:
        """Tokens of a record as it is written."""
        sample = Sample("", record.text) if isinstance(record, Document) else Sample(record.question, record.answer)
        return sum(len(piece.ids) for piece in self.encode(sample))

    def _before(self, question: str) -> str:
        """The template up to the answer, without the space before it: that belongs to the answer's first token."""
        return self.template.partition("{answer}")[0].replace("{question}", question).rstrip(" ")

    def _gap(self) -> str:
        if self.form == "chat":
            return ""
        head = self.template.partition("{answer}")[0]
        return head[len(head.rstrip(" ")) :]

    def _after(self) -> list[int]:
        eos = int(self.tokenizer.eos_token_id)
        behind = self.template.partition("{answer}")[2]
        if self.form == "chat":
            return [eos]
        if self.form == "plain":
            return [*(self._ids(behind) if behind else []), eos]
        mark = "\x00"
        rest = self._render(mark).partition(mark)[2]  # the end of the user's turn and the generation prompt
        return self._ids(behind + rest)

    def _open_turn(self, text: str) -> str:
        """The user's turn without its end: what a sample of this format begins with."""
        return self._render("\x00").partition("\x00")[0] + text

    def _render(self, text: str) -> str:
        turn = [{"role": "user", "content": text}]
        return str(self.tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False))

    def _chat(self, text: str) -> list[int]:
        return self._ids(self._render(text))

    def _plain(self, text: str) -> list[int]:
        ids = list(self.tokenizer(text)["input_ids"])
        return ids[:-1] if ids and ids[-1] == self.tokenizer.eos_token_id else ids  # some tokenizers add it

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
