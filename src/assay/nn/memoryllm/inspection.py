"""Look into the memories: cells of a token, tokens of a cell, groups of tokens that use the same cells.

A memory is FFN_L(x) = sum over cells k of c_k W_down[:, k] with c = (x W_up^T) o SiLU(x W_gate^T): what a token adds
is a sum of value vectors, each with the token's coefficient. As x is the token's embedding alone, c is known for the
whole vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from assay._core.errors import InputError
from assay.nn.memoryllm.export import check_exportable

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from assay.nn.memoryllm.model import MemoryLlamaForCausalLM

#: Tokens whose coefficients are computed at a time.
_CHUNK = 1024

#: Coefficients further from their token's mean than so many of its standard deviations are outliers.
OUTLIER = 3.0


def coefficients(layer: Any, embeddings: Tensor) -> Tensor:
    """Coefficients of a layer's memory cells for tokens of these embeddings.

    Parameters
    ----------
    layer : MemoryLlamaLayer
    embeddings : (..., d) tensor

    Returns
    -------
    (..., n_cells) tensor
        ``coefficients @ layer.memory.down_proj.weight.T`` is what the memory adds.
    """
    x = layer.memory_norm(embeddings)
    memory = layer.memory
    found: Tensor = memory.up_proj(x) * memory.act_fn(memory.gate_proj(x))
    return found


class TokenMemory:
    """Tables of what the memories of a model hold.

    Parameters
    ----------
    model : MemoryLlamaForCausalLM
        MemoryLLM or Flex-MemoryLLM with its memories, not one with a table.
    tokenizer : transformers.PreTrainedTokenizerBase, optional
        Then tokens are shown as text, and may be given as text.

    Raises
    ------
    InputError
        The model is dense, has a table, or carries an adapter.

    Examples
    --------
    >>> from assay.nn.memoryllm import MemoryLlamaConfig, MemoryLlamaForCausalLM
    >>> config = MemoryLlamaConfig(
    ...     vocab_size=99, hidden_size=32, intermediate_size=86, num_hidden_layers=2, num_attention_heads=4
    ... )
    >>> memory = TokenMemory(MemoryLlamaForCausalLM(config))
    >>> list(memory.cells(token=7, layer=0, k=3))
    ['cell', 'coefficient', 'norm']
    """

    def __init__(self, model: MemoryLlamaForCausalLM, tokenizer: Any = None) -> None:
        check_exportable(model)
        self.model = model
        self.tokenizer = tokenizer
        self._embedding: Tensor = model.model.embed_tokens.weight

    def cells(self, token: int | str, layer: int, k: int = 10) -> pd.DataFrame:
        """The cells that a token uses most in a layer.

        Parameters
        ----------
        token : int or str
            An id, or with a tokenizer a text of one token.
        layer : int
        k : int
            How many.

        Returns
        -------
        DataFrame
            cell, coefficient (of the token), norm (of what the cell adds: |coefficient| times the length of its value),
            the largest norm first.

        Raises
        ------
        InputError
            There is no such token or layer.
        """
        import pandas as pd

        block = self._layer(layer)
        with torch.inference_mode():
            found = coefficients(block, self._embedding[self.token_id(token)])
            norm = found.abs() * block.memory.down_proj.weight.norm(dim=0)
            top = norm.topk(_at_most(k, len(norm))).indices
        return pd.DataFrame({"cell": top.cpu().numpy(), "coefficient": _floats(found[top]), "norm": _floats(norm[top])})

    def tokens(self, cell: int, layer: int, k: int = 10) -> pd.DataFrame:
        """The tokens that use a cell most.

        Returns
        -------
        DataFrame
            token, text (with a tokenizer), coefficient; the largest absolute coefficient first.

        Raises
        ------
        InputError
            There is no such cell or layer.
        """
        block = self._layer(layer)
        self._check_cell(cell, layer)
        with torch.inference_mode():
            x = block.memory_norm(self._embedding)
            memory = block.memory
            found = (x @ memory.up_proj.weight[cell]) * memory.act_fn(x @ memory.gate_proj.weight[cell])
            top = found.abs().topk(_at_most(k, len(found))).indices
        return self._frame(top.cpu().numpy(), coefficient=_floats(found[top]))

    def directions(self, cell: int, layer: int, k: int = 10) -> pd.DataFrame:
        """The tokens whose logits the cell's value vector raises most, read through the output head.

        Returns
        -------
        DataFrame
            token, text (with a tokenizer), logit: the product of the token's output vector, the final norm's weights
            and the value of the cell; the largest first. A negative coefficient lowers what this raises.

        Raises
        ------
        InputError
            There is no such cell or layer.
        """
        block = self._layer(layer)
        self._check_cell(cell, layer)
        with torch.inference_mode():
            value = self.model.model.norm.weight * block.memory.down_proj.weight[:, cell]
            logits = self.model.lm_head.weight @ value
            top = logits.topk(_at_most(k, len(logits))).indices
        return self._frame(top.cpu().numpy(), logit=_floats(logits[top]))

    def cluster(self, layer: int, k: int = 16, *, random_state: int | None = 0) -> pd.DataFrame:
        """Group the vocabulary by the cells that it uses: k-means of the coefficients.

        Parameters
        ----------
        layer : int
        k : int
            How many groups.
        random_state : int, optional

        Returns
        -------
        DataFrame
            A row for each token: token, text (with a tokenizer), cluster, distance to its centre; sorted by both, so
            that the first tokens of a cluster are the most typical.

        Raises
        ------
        InputError
            There is no such layer, or `k` is not between 1 and the size of the vocabulary.
        """
        from sklearn.cluster import KMeans

        n_tokens = len(self._embedding)
        if not 1 <= k <= n_tokens:
            raise InputError(f"k={k} clusters: expected 1 to {n_tokens}, the size of the vocabulary")
        found = np.concatenate(list(self._all_coefficients(self._layer(layer))))
        kmeans = KMeans(k, n_init=1, random_state=random_state).fit(found)
        distance = np.linalg.norm(found - kmeans.cluster_centers_[kmeans.labels_], axis=1)
        order = np.lexsort((distance, kmeans.labels_))
        return self._frame(order, cluster=kmeans.labels_[order], distance=distance[order])

    def outliers(self, layer: int) -> pd.DataFrame:
        """How many cells stand out for each token: further than 3 standard deviations from its mean coefficient.

        Returns
        -------
        DataFrame
            token, text (with a tokenizer), outliers; the most first.

        Raises
        ------
        InputError
            There is no such layer.
        """
        counts = [
            (np.abs(part - part.mean(1, keepdims=True)) > OUTLIER * part.std(1, keepdims=True)).sum(1)
            for part in self._all_coefficients(self._layer(layer))
        ]
        found = np.concatenate(counts)
        order = np.argsort(-found, kind="stable")
        return self._frame(order, outliers=found[order])

    def token_id(self, token: int | str) -> int:
        """The id of a token.

        Raises
        ------
        InputError
            A text is no single token, or an id is beyond the vocabulary.
        """
        if isinstance(token, str):
            if self.tokenizer is None:
                raise InputError(f"token={token!r}: give an id, or a tokenizer to find it by text")
            ids = self.tokenizer(token, add_special_tokens=False)["input_ids"]
            if len(ids) != 1:
                raise InputError(
                    f"token={token!r} is {len(ids)} tokens to this tokenizer ({self._texts(ids)}); give one of them"
                )
            token = int(ids[0])
        if not 0 <= token < len(self._embedding):
            raise InputError(f"token={token}: expected an id from 0 to {len(self._embedding) - 1}")
        return int(token)

    def _layer(self, layer: int) -> Any:
        n_layers = len(self.model.model.layers)
        if not 0 <= layer < n_layers:
            raise InputError(f"layer={layer}: expected 0 to {n_layers - 1}")
        return self.model.model.layers[layer]

    def _check_cell(self, cell: int, layer: int) -> None:
        n_cells = self.model.config.memory_size
        if not 0 <= cell < n_cells:
            raise InputError(f"cell={cell}: layer {layer} has cells 0 to {n_cells - 1}")

    def _all_coefficients(self, layer: Any) -> Any:
        for start in range(0, len(self._embedding), _CHUNK):
            with torch.inference_mode():
                yield coefficients(layer, self._embedding[start : start + _CHUNK]).float().cpu().numpy()

    def _texts(self, ids: Any) -> list[str]:
        return [self.tokenizer.decode([int(number)]) for number in ids]

    def _frame(self, ids: NDArray[np.int64], **columns: Any) -> pd.DataFrame:
        import pandas as pd

        said: dict[str, Any] = {"token": ids}
        if self.tokenizer is not None:
            said["text"] = self._texts(ids)
        return pd.DataFrame(said | columns)


def _at_most(k: int, there: int) -> int:
    if k < 1:
        raise InputError(f"k={k}: expected 1 or more")
    return min(k, there)


def _floats(values: Tensor) -> NDArray[np.float64]:
    found: NDArray[np.float64] = values.cpu().double().numpy()  # not every device has float64
    return found
