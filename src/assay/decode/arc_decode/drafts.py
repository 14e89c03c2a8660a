"""Who proposes: a small causal model (a chain of sampled tokens, or a tree of its best), or the text itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch

from assay._core.errors import InputError
from assay._core.extras import need
from assay.decode.arc_decode.reader import Reader, check_model
from assay.decode.arc_decode.scores import normalised_entropy
from assay.decode.arc_decode.trees import Draft, Tree, chain, prune_tree

if TYPE_CHECKING:
    from torch import Tensor

    from assay.decode.arc_decode.reader import Sampling
    from assay.decode.arc_decode.verify import Draws

#: Longest n-gram at the end of the text that prompt lookup searches for, as in transformers.
NGRAM = 2


@dataclass(frozen=True)
class State:
    """What a draft may look at.

    Parameters
    ----------
    ids : (length,) int64
        The accepted text.
    n_draft : int
        Tokens in a row that are worth drafting: what is asked for, or what is left of the text to write.
    sampling : Sampling
        How the target samples; a draft that does the same is accepted more often.
    draws : Draws
    drawn_from : (n_vocabulary,) float, optional
        Probabilities of the target that the last token was drawn from; None before the first.
    """

    ids: Tensor
    n_draft: int
    sampling: Sampling
    draws: Draws
    drawn_from: Tensor | None = None


class Drafter(Protocol):
    """Anything that proposes, such as an EAGLE head."""

    def propose(self, state: State, /) -> Draft:
        """Candidates below the last token of ``state.ids``; none is an empty draft."""


class PromptLookup:
    """Propose what followed the last words the last time they stood in the text."""

    def propose(self, state: State, /) -> Draft:
        """A chain of chosen tokens, often empty."""
        need("transformers", extra="lm", purpose="prompt lookup")
        from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

        length = len(state.ids)
        lookup: Any = PromptLookupCandidateGenerator(
            num_output_tokens=state.n_draft, max_matching_ngram_size=NGRAM, max_length=length + state.n_draft + 1
        )
        found, _ = lookup.get_candidates(state.ids[None])
        return chain(found[0, length:].tolist()[: state.n_draft])


class _CausalDraft:
    """A causal model that reads the accepted text as far as it does not know it."""

    def __init__(self, model: Any) -> None:
        check_model(model, "assistant")
        self._reader = Reader(model)
        self._seen: list[int] = []

    def _catch_up(self, ids: Tensor) -> Tensor:
        """Logits after the accepted text, (n_vocabulary,)."""
        text = ids.tolist()
        n = 0
        for mine, theirs in zip(self._seen, text[:-1], strict=False):
            if mine != theirs:
                break
            n += 1
        self._reader.forget(self._reader.n_cached - n)
        self._seen = text
        return self._reader.read(ids[n:])[0]


class SampledChain(_CausalDraft):
    """Propose a chain that a small causal model samples."""

    def propose(self, state: State, /) -> Draft:
        """A chain of sampled tokens, with the probabilities they were drawn from."""
        if state.n_draft < 1:
            return Draft([], [], [])
        logits = self._catch_up(state.ids)
        ids, rows = state.ids, []
        while True:
            q = state.sampling.probabilities(logits[None], [ids])[0]
            rows.append(q)
            token = torch.tensor([state.draws.draft_token(q)], dtype=ids.dtype, device=ids.device)
            ids = torch.cat([ids, token])
            if len(rows) == state.n_draft:
                break
            logits = self._reader.read(token)[0]
        tokens = ids[len(state.ids) :].tolist()
        self._seen = ids[:-1].tolist()
        return chain(tokens, torch.stack(rows).to(state.ids.device))


class BestTree(_CausalDraft):
    """Propose the most probable tree under a small causal model, grown level by level (EAGLE-2) and pruned."""

    def __init__(self, model: Any, tree: Tree) -> None:
        super().__init__(model)
        self._tree = tree

    def propose(self, state: State, /) -> Draft:
        """A tree of chosen tokens."""
        tree, depth = self._tree, min(self._tree.depth, state.n_draft)
        if depth < 1:
            return Draft([], [], [])
        # Greedy decoding as well needs to know which tokens come second.
        sampling = replace(state.sampling, temperature=state.sampling.temperature or 1.0)
        # Candidates of the level below `level`: (log-probability of the path, of the step, parent in the pool, token).
        pool: list[tuple[float, float, int, int]] = []
        ids, level, logits = state.ids, [-1], self._catch_up(state.ids)[None]
        for step in range(depth):
            prefixes = [torch.cat([ids, ids.new_tensor(_path(pool, place))]) for place in level]
            best = sampling.probabilities(logits, prefixes).topk(min(tree.top_k, logits.shape[-1]))
            found = len(pool)
            for place, values, tokens in zip(level, best.values.log().tolist(), best.indices.tolist(), strict=True):
                above = pool[place][0] if place >= 0 else 0.0
                fine = [(above + v, v, place, x) for v, x in zip(values, tokens, strict=True) if v > -70.0]
                pool.extend(fine)  # what top-k or top-p ruled out has no place in the tree
            level = sorted(range(found, len(pool)), key=lambda place: (-pool[place][0], place))[: tree.top_k]
            if step + 1 == depth or not level:
                break
            logits = self._after(pool, level)
        chosen = sorted(sorted(range(len(pool)), key=lambda place: (-pool[place][0], place))[: tree.n_tokens])
        draft = Draft([x[3] for x in pool], [x[2] for x in pool], [x[1] for x in pool]).kept(chosen)
        if len(draft.tokens) <= tree.prune_above:
            return draft
        entropy = 0.0 if state.drawn_from is None else normalised_entropy(state.drawn_from)
        return prune_tree(draft, entropy, lambda_h=tree.lambda_h, theta=tree.theta, tau_leaf=tree.tau_leaf)[0]

    def _after(self, pool: list[tuple[float, float, int, int]], level: list[int]) -> Tensor:
        """Logits after each candidate of a level: the paths to it are read together, as a tree, and forgotten."""
        places = set(level)
        for place in level:
            while (place := pool[place][2]) >= 0:
                places.add(place)
        needed = sorted(places)
        draft = Draft([x[3] for x in pool], [x[2] for x in pool], [x[1] for x in pool]).kept(needed)
        last = torch.tensor(self._seen[-1:])
        self._reader.forget(1)  # the root is read again, so that the tree hangs below it
        logits = self._reader.read(last, draft)
        self._reader.forget(len(needed))
        rows = [1 + needed.index(place) for place in level]
        return logits[rows]


def _path(pool: list[tuple[float, float, int, int]], place: int) -> list[int]:
    tokens: list[int] = []
    while place >= 0:
        tokens.append(pool[place][3])
        place = pool[place][2]
    return tokens[::-1]


def drafter_of(assistant: Any, model: Any, tree: Tree | None) -> Drafter:
    """What `assistant` means.

    Raises
    ------
    InputError
        It is none of the three, or a model with another vocabulary.
    """
    if isinstance(assistant, str):
        if assistant != "prompt_lookup":
            raise InputError(
                f"assistant={assistant!r}: expected 'prompt_lookup', a causal language model, or an object with propose"
            )
        return PromptLookup()
    if hasattr(assistant, "propose"):
        drafter: Drafter = assistant
        return drafter
    check_model(assistant, "assistant")
    mine, its = (int(m.get_input_embeddings().weight.shape[0]) for m in (model, assistant))
    if mine != its:
        raise InputError(
            f"assistant: its vocabulary has {its} tokens and the model's {mine}; a draft must share the tokenizer of "
            "its target"
        )
    return SampledChain(assistant) if tree is None else BestTree(assistant, tree)
