"""LUCID attention as a function, with the arguments of `scaled_dot_product_attention`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from assay._core.errors import InputError
from assay.nn.lucid.solve import similarities, solve, unit_keys, wide

BLOCK_SIZE = 128

NOT_CAUSAL = "lucid_attention supports causal masks; pass is_causal=True or a causal boolean mask"


def lucid_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = True,
    scale: float | None = None,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
    block_size: int | None = None,
    precond_keys: Tensor | None = None,
) -> Tensor:
    """Causal softmax attention over preconditioned values: softmax(Q K^T / sqrt(d) + mask) P^{-1} V.

    The weights on V, softmax times P^{-1}, may be negative and do not sum to one.

    Parameters
    ----------
    query : (batch, heads, n, d) float
    key : (batch, kv_heads, n, d) float
    value : (batch, kv_heads, n, d_v) float
    is_causal : bool
        False only together with `attn_mask`: there is no form without a causal order.
    scale : float, optional
        Of the logits; None: 1 / sqrt(d). P follows it: exp(scale d (cos - 1)).
    attn_mask : (n, n) to (batch, 1 or kv_heads, n, n) bool, optional
        True where a query sees a key: padding, sliding windows and packed sequences, as long as none sees a later key.
        P is masked alike.
    dropout_p : float
        On the weights of the softmax.
    enable_gqa : bool
        Whether `query` may have several times the heads of `key`. One system is solved for each head of `key`.
    block_size : int, optional
        Rows of P that are held at a time; None: 128.
    precond_keys : like key, optional
        Keys that P is made of, such as those before RoPE; None: `key`.

    Returns
    -------
    (batch, heads, n, d_v), dtype of `value`
        Half precision is solved in float32.

    Raises
    ------
    InputError
        Shapes do not fit, the mask is not causal, or keys are not finite or all zero.

    References
    ----------
    .. [1] Duvvuri et al., "LUCID: Attention with Preconditioned Representations", arXiv:2602.10410.

    Examples
    --------
    >>> query, key, value = torch.randn(3, 1, 2, 5, 8).unbind()
    >>> lucid_attention(query, key, value).shape
    torch.Size([1, 2, 5, 8])
    """
    if query.ndim != 4 or key.ndim != 4 or query.shape[-1] != key.shape[-1] or query.shape[0] != key.shape[0]:
        raise InputError(
            f"query {tuple(query.shape)} and key {tuple(key.shape)}: expected (batch, heads, n, d) with the same batch "
            f"and d"
        )
    if query.shape[-2] != key.shape[-2]:
        raise InputError(
            f"query {tuple(query.shape)} and key {tuple(key.shape)}: expected as many positions; to decode, keep Y "
            f"with precondition_values(past=…) or LucidCache"
        )
    heads, kv_heads = query.shape[1], key.shape[1]
    if heads != kv_heads and not (enable_gqa and heads % kv_heads == 0):
        raise InputError(
            f"query has {heads} heads and key {kv_heads}; expected the same, or a multiple with enable_gqa=True"
        )
    if attn_mask is None and not is_causal:
        raise InputError(NOT_CAUSAL)
    solved = precondition_values(
        key if precond_keys is None else precond_keys,
        value,
        scale=scale if scale is not None else key.shape[-1] ** -0.5,
        attn_mask=attn_mask,
        block_size=BLOCK_SIZE if block_size is None else block_size,
    )
    return scaled_dot_product_attention(
        query,
        key,
        solved,
        attn_mask=attn_mask,
        dropout_p=dropout_p,
        is_causal=attn_mask is None,
        scale=scale,
        enable_gqa=enable_gqa,
    )


def precondition_values(
    key: Tensor,
    value: Tensor,
    *,
    scale: float | None = None,
    attn_mask: Tensor | None = None,
    past: Tensor | None = None,
    block_size: int = BLOCK_SIZE,
) -> Tensor:
    """Y = P^{-1} V, which takes the place of V in any kernel for causal attention.

    Parameters
    ----------
    key : (batch, kv_heads, n, d) float
        As they enter the logits, that is after RoPE; their lengths do not matter.
    value : (batch, kv_heads, m, d_v) float
        Of the last m of the n positions; m = n without `past`.
    scale : float, optional
        Of the logits; None: 1 / sqrt(d).
    attn_mask : (m, n) to (batch, 1 or kv_heads, m, n) bool, optional
        True where one of the last m positions sees another; None: all that come before it.
    past : (batch, kv_heads, n - m, d_v) float, optional
        Y of the positions before, when decoding.
    block_size : int
        Rows of P that are held at a time.

    Returns
    -------
    (batch, kv_heads, n, d_v), dtype of `value`
        Of all n positions.

    Raises
    ------
    InputError
        Shapes do not fit, the mask is not causal, or keys are not finite or all zero.

    Examples
    --------
    Where all keys are equal, a position keeps the difference from the one before it:

    >>> value = torch.tensor([1.0, 3.0, 6.0]).view(1, 1, 3, 1)
    >>> precondition_values(torch.ones(1, 1, 3, 4), value).flatten().tolist()
    [1.0, 2.0, 3.0]
    """
    n_past = 0 if past is None else past.shape[-2] if past.ndim == 4 else -1
    if key.ndim != 4 or value.ndim != 4 or key.shape[:2] != value.shape[:2]:
        raise InputError(
            f"key {tuple(key.shape)} and value {tuple(value.shape)}: expected (batch, heads, n, d) with the same batch "
            f"and heads"
        )
    if key.shape[-2] != n_past + value.shape[-2]:
        known = "" if past is None else f", past {tuple(past.shape)}"
        raise InputError(
            f"key {tuple(key.shape)} and value {tuple(value.shape)}{known}: expected a key for every position"
        )
    if block_size < 1:
        raise InputError(f"block_size={block_size}: expected 1 or more")
    check_keys(key)
    mask = None if attn_mask is None else causal_mask(attn_mask, key, value.shape[-2])
    return preconditioned(key, value, scale=scale, mask=mask, past=past, block_size=block_size)


def check_keys(key: Tensor) -> None:
    """Refuse keys that are not finite, or all zero."""
    if not bool(torch.isfinite(key).all()):
        raise InputError(f"key {tuple(key.shape)} holds NaN or infinity; the preconditioner needs finite keys")
    if key.numel() and not bool(key.any()):
        raise InputError(f"key {tuple(key.shape)} is zero everywhere, so there are no angles between keys")


def preconditioned(
    key: Tensor,
    value: Tensor,
    *,
    scale: float | None = None,
    mask: Tensor | None = None,
    past: Tensor | None = None,
    block_size: int = BLOCK_SIZE,
) -> Tensor:
    """As :func:`precondition_values` without its checks; NaN goes in and comes out."""
    sharpness = key.shape[-1] ** 0.5 if scale is None else scale * key.shape[-1]
    dtype = torch.promote_types(wide(key).dtype, wide(value).dtype)
    known = None if past is None else past.to(dtype)
    solved = solve(unit_keys(key).to(dtype), value.to(dtype), known, mask, (sharpness, block_size))
    return solved.to(value.dtype)


def causal_mask(attn_mask: Tensor, key: Tensor, n_rows: int) -> Tensor:
    """The mask with four dimensions; refuse one that is not boolean, lets a query see a later key, or does not fit."""
    shape = (key.shape[0], key.shape[1], n_rows, key.shape[-2])
    mask = attn_mask[(None,) * (4 - attn_mask.ndim)] if attn_mask.ndim < 4 else attn_mask
    if mask.dtype != torch.bool:
        raise InputError(f"{NOT_CAUSAL} (it is {mask.dtype})")
    if (
        mask.ndim != 4
        or mask.shape[2:] != shape[2:]
        or mask.shape[0] not in (1, shape[0])
        or mask.shape[1] not in (1, shape[1])
    ):
        raise InputError(
            f"attn_mask {tuple(attn_mask.shape)}: expected {shape}, where batch and heads may be 1; heads that share "
            f"a key share its mask"
        )
    if bool(mask.triu(shape[3] - shape[2] + 1).any()):
        raise InputError(NOT_CAUSAL)
    return mask


def preconditioner(key: Tensor, *, scale: float | None = None) -> Tensor:
    """P itself, to look at: exp(scale d (cos(k_i, k_j) - 1)) on and below the diagonal.

    Parameters
    ----------
    key : (..., n, d) float
    scale : float, optional
        None: 1 / sqrt(d).

    Returns
    -------
    (..., n, n) float32 or float64
        It is held as a whole here.

    Examples
    --------
    >>> key = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 3**0.5, 0.0, 0.0]])
    >>> round(preconditioner(key)[1, 0].item(), 4)
    0.3679
    """
    units = unit_keys(key)
    sharpness = key.shape[-1] ** 0.5 if scale is None else scale * key.shape[-1]
    p = similarities(units, units, sharpness).tril()
    p.diagonal(dim1=-2, dim2=-1).fill_(1.0)
    return p


def condition_number(key: Tensor, *, scale: float | None = None) -> Tensor:
    """Largest over smallest singular value of P, (...): near 1, the values hardly change; it grows with n.

    Computed in float64 on the CPU, where the result stays: not every device has float64.

    Parameters
    ----------
    key : (..., n, d) float
    scale : float, optional
        None: 1 / sqrt(d).

    Examples
    --------
    >>> condition_number(torch.eye(256, dtype=torch.float64)).item() < 1.001
    True
    """
    singular: Tensor = torch.linalg.svdvals(preconditioner(key.cpu().double(), scale=scale))
    return singular[..., 0] / singular[..., -1]
