"""Audit a causal language model: what it finds surprising in texts that it may have been trained on."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.progress import progress_bar
from assay._core.seeds import child_seed
from assay.audit.dataguard.door import check_nontraining, check_overlap, check_sizes, group_numbers
from assay.audit.dataguard.judging import Evidence, Settings, judge
from assay.audit.dataguard.texts import text_vectors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from assay.audit.dataguard.hotelling import Test
    from assay.audit.dataguard.report import AuditReport

    Array = NDArray[np.float64]

TEXT_FEATURES = (
    "token loss",
    "loss per compressed byte",
    "loss of the least likely fifth",
    "token entropy",
    "loss added by dropping tokens (negated)",
)
LEAST_LIKELY = 0.2
DROPPED = 0.1
#: Logits that are held at a time: batches are cut so that rows × tokens × vocabulary stay below this.
MAX_LOGITS = 50_000_000


def language_features(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    *,
    n_augment: int = 2,
    max_tokens: int = 512,
    random_state: int = 0,
    what: str = "texts",
) -> Array:
    """Features of texts under a causal language model, in the order of :data:`TEXT_FEATURES`, in nats.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Causal; on any device.
    tokenizer : transformers.PreTrainedTokenizerBase
    texts : sequence of str
        Each of at least 8 tokens; no more than `max_tokens` of each are read.
    n_augment : int
        Copies of each text with a tenth of its tokens dropped; 0 leaves the last feature out.
    max_tokens : int
    random_state : int
        For the tokens to drop: with the same seed, the same tokens for every model of one tokenizer.
    what : str
        Names the texts in the progress bar and in messages.

    Returns
    -------
    (n, 5) or (n, 4) float

    Raises
    ------
    InputError
        A text has fewer than 8 tokens.
    """
    ids = [
        np.asarray(tokenizer(text, truncation=True, max_length=max_tokens)["input_ids"], dtype=np.int64)
        for text in texts
    ]
    for row, tokens in enumerate(ids):
        if len(tokens) < 8:
            raise InputError(f"{what}, text {row}: it has {len(tokens)} tokens; expected at least 8")
    plain = _token_losses(model, ids, what)
    loss = np.array([surprise.mean() for surprise, _ in plain])
    columns = [
        loss,
        np.array([surprise.sum() for surprise, _ in plain]) / _compressed(tokenizer, ids),
        np.array([_least_likely(surprise) for surprise, _ in plain]),
        np.array([uncertain.mean() for _, uncertain in plain]),
    ]
    if n_augment:
        added = np.zeros(len(texts))
        for k in range(n_augment):
            rng = np.random.default_rng(child_seed(random_state, "dataguard", "drop", what, k))
            dropped = [_without_some(tokens, rng) for tokens in ids]
            changed = _token_losses(model, dropped, f"{what}, augmentation {k + 1}")
            added += np.array([surprise.mean() for surprise, _ in changed]) - loss
        columns.append(-added / n_augment)
    return np.stack(columns, axis=1)


def _compressed(tokenizer: Any, ids: list[NDArray[np.int64]]) -> Array:
    """Bytes that zlib makes of what the model read, in bytes."""
    texts = [tokenizer.decode(tokens, skip_special_tokens=True) for tokens in ids]
    return np.array([len(zlib.compress(text.encode("utf-8", "surrogatepass"))) for text in texts], dtype=np.float64)


def _least_likely(surprise: Array) -> float:
    return float(np.sort(surprise)[-max(1, round(LEAST_LIKELY * len(surprise))) :].mean())


def _without_some(tokens: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    kept = rng.random(len(tokens)) >= DROPPED
    kept[:2] = True
    return tokens[kept]


def _token_losses(model: Any, ids: list[NDArray[np.int64]], what: str) -> list[tuple[Array, Array]]:
    """Surprise at every token after the first, and the entropy of its prediction, for every text."""
    import torch

    device = next(model.parameters()).device
    order = np.argsort([-len(tokens) for tokens in ids], kind="stable")
    found: list[tuple[Array, Array]] = [(np.empty(0), np.empty(0))] * len(ids)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), progress_bar() as bar:
            task = bar.add_task(what, total=len(ids))
            start = 0
            while start < len(ids):
                longest = len(ids[order[start]])
                size = int(np.clip(MAX_LOGITS // (longest * model.config.vocab_size), 1, 32))
                rows = order[start : start + size]
                batch = torch.zeros((len(rows), longest), dtype=torch.long)
                mask = torch.zeros_like(batch)
                for i, row in enumerate(rows):
                    batch[i, : len(ids[row])] = torch.from_numpy(ids[row])
                    mask[i, : len(ids[row])] = 1
                logits = model(input_ids=batch.to(device), attention_mask=mask.to(device)).logits[:, :-1].float()
                logs = logits.log_softmax(dim=-1)
                true = -logs.gather(2, batch[:, 1:, None].to(device))[..., 0].double().cpu().numpy()
                uncertain = -(logs.exp() * logs).sum(dim=-1).double().cpu().numpy()
                for i, row in enumerate(rows):
                    length = len(ids[row]) - 1
                    found[row] = true[i, :length], uncertain[i, :length]
                start += len(rows)
                bar.advance(task, len(rows))
    finally:
        model.train(was_training)
    return found


def audit_lm(
    model: Any,
    tokenizer: Any,
    texts_target: Sequence[str],
    texts_aux: Sequence[str],
    *,
    reference: tuple[Any, Any] | Sequence[tuple[Any, Any]] | None = None,
    aux_is_nontraining: bool = False,
    groups_target: Any = None,
    groups_aux: Any = None,
    member_loss: float | None = None,
    n_augment: int = 2,
    max_tokens: int = 512,
    alpha: float = 0.01,
    test: Test = "permutation",
    n_permutations: int = 2000,
    random_state: int = 0,
    name: str = "the language model",
) -> AuditReport:
    """Test whether a causal language model was trained on texts.

    Parameters
    ----------
    model, tokenizer : transformers causal model and its tokenizer
    texts_target, texts_aux : sequences of str
        Texts in question, and texts of the same kind (source, time, preparation) that were certainly not used.
    reference : (model, tokenizer) or a sequence of such pairs, optional
        Models that saw neither: the base model of a fine-tuned one, if that is older than the texts.
    aux_is_nontraining : bool
        Must be True.
    groups_target, groups_aux : optional
        Texts of one document or author share a group.
    member_loss : float, optional
        Expected loss per token of a text that was trained on, for the share that was used.
    n_augment, max_tokens
        As in :func:`language_features`.
    alpha, test, n_permutations, random_state, name
        As in :class:`~assay.audit.dataguard.DataGuardAuditor`.

    Returns
    -------
    AuditReport

    Raises
    ------
    InputError
        Fewer than 50 texts, a text in both, a text shorter than 8 tokens, or `aux_is_nontraining` is not True.
    """
    need("torch", extra="lm", purpose="auditing a language model")
    check_nontraining(aux_is_nontraining)
    settings = Settings(alpha, test, n_permutations, random_state)
    n, m = len(texts_target), len(texts_aux)
    check_sizes(n, m)
    check_overlap(texts_target, texts_aux)
    groups = group_numbers(groups_target, groups_aux, n, m)
    parts = (("target", texts_target), ("auxiliary", texts_aux))

    def features(model: Any, tokenizer: Any) -> list[Array]:
        return [
            language_features(
                model,
                tokenizer,
                texts,
                n_augment=n_augment,
                max_tokens=max_tokens,
                random_state=random_state,
                what=what,
            )
            for what, texts in parts
        ]

    target, aux = features(model, tokenizer)
    ref_target = ref_aux = None
    if reference is not None:
        pairs = [reference] if hasattr(reference[0], "parameters") else list(reference)
        answers = [features(*pair) for pair in pairs]
        ref_target = np.mean([answer[0] for answer in answers], axis=0)
        ref_aux = np.mean([answer[1] for answer in answers], axis=0)
    evidence = Evidence(
        names=TEXT_FEATURES[: target.shape[1]],
        target=target,
        aux=aux,
        ref_target=ref_target,
        ref_aux=ref_aux,
        inputs=text_vectors(texts_target, texts_aux),
        inputs_are="the texts",
        groups=groups,
        member_loss=member_loss,
        what=name,
    )
    return judge(evidence, settings)
