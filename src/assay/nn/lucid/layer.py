"""LUCID attention as a layer: it stands where `nn.MultiheadAttention` stands in a decoder, and loads its weights."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from assay._core.errors import InputError
from assay.nn.lucid.attention import NOT_CAUSAL, causal_mask, check_keys, preconditioned


class LucidAttention(nn.Module):
    """Causal self-attention with preconditioned values.

    The call and the names of the weights are those of ``nn.MultiheadAttention(…, batch_first=True)``: its state dict
    loads where `num_kv_heads` and `qk_norm` are left alone, and `nn.TransformerEncoderLayer` takes this layer as its
    ``self_attn``.

    Parameters
    ----------
    embed_dim : int
    num_heads : int
    num_kv_heads : int, optional
        Heads of keys and values, which groups of query heads share; None: `num_heads`.
    rope : float, optional
        Base of rotary positions, such as 10000.0; None: no positions.
    qk_norm : bool
        RMS-normalise queries and keys with a learned gain, as current language models do.
    dropout : float
        On the weights of the softmax, while training.
    bias : bool
        Of the projections.
    precond_keys : {"rotated", "unrotated"}
        Whether the preconditioner sees keys after or before rotary positions.

    References
    ----------
    .. [1] Duvvuri et al., "LUCID: Attention with Preconditioned Representations", arXiv:2602.10410.

    Examples
    --------
    >>> layer = LucidAttention(32, 4, num_kv_heads=2, rope=10000.0)
    >>> layer
    LucidAttention(
      embed_dim=32, num_heads=4, num_kv_heads=2, rope=10000.0, precond_keys=rotated
      (out_proj): Linear(in_features=32, out_features=32, bias=True)
    )
    >>> layer(torch.randn(2, 6, 32))[0].shape
    torch.Size([2, 6, 32])
    """

    batch_first = True
    _qkv_same_embed_dim = False  # tells nn.TransformerEncoderLayer not to run a fused softmax in our place

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        rope: float | None = None,
        qk_norm: bool = False,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        precond_keys: Literal["rotated", "unrotated"] = "rotated",
    ) -> None:
        super().__init__()
        kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if num_heads < 1 or embed_dim % num_heads:
            raise InputError(f"embed_dim={embed_dim} and num_heads={num_heads}: expected a whole number for each head")
        if kv_heads < 1 or num_heads % kv_heads:
            raise InputError(f"num_kv_heads={kv_heads}: expected a divisor of num_heads={num_heads}")
        if precond_keys not in ("rotated", "unrotated"):
            raise InputError(f"precond_keys={precond_keys!r} is not one of 'rotated', 'unrotated'")
        if rope is not None and (embed_dim // num_heads) % 2:
            raise InputError(f"rope={rope:g}: heads of {embed_dim // num_heads} cannot be rotated in pairs")
        self.embed_dim, self.num_heads, self.num_kv_heads = embed_dim, num_heads, kv_heads
        self.head_dim = embed_dim // num_heads
        self.rope, self.dropout, self.precond_keys = rope, dropout, precond_keys
        width = embed_dim + 2 * kv_heads * self.head_dim
        self.in_proj_weight = nn.Parameter(torch.empty(width, embed_dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(width)) if bias else None
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.q_norm = nn.RMSNorm(self.head_dim, eps=1e-6) if qk_norm else None
        self.k_norm = nn.RMSNorm(self.head_dim, eps=1e-6) if qk_norm else None
        nn.init.xavier_uniform_(self.in_proj_weight)
        if bias:
            nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = True,
    ) -> tuple[Tensor, None]:
        """Attend from each position to those up to it.

        Parameters
        ----------
        query : (batch, n, embed_dim) float
        key, value : the same tensor as `query`, or None
            There is no cross-attention.
        key_padding_mask : (batch, n) bool, optional
            True at padding, as in `nn.MultiheadAttention`.
        need_weights, average_attn_weights : bool
            Must not ask for weights: they are never held.
        attn_mask : (n, n) bool, optional
            True where attention is *not* allowed, as in `nn.MultiheadAttention`; must be causal.
        is_causal : bool
            Attention is causal in any case; a hint that goes with `attn_mask`.

        Returns
        -------
        (batch, n, embed_dim), None

        Raises
        ------
        InputError
            Shapes or masks do not fit; on the CPU also where keys are not finite or all zero.
        """
        if any(other is not None and other is not query for other in (key, value)):
            raise InputError("LucidAttention attends within one sequence; key and value must be query or None")
        if need_weights:
            raise InputError("need_weights=True: the weights are never held; pass need_weights=False")
        if query.ndim != 3 or query.shape[-1] != self.embed_dim:
            raise InputError(f"query {tuple(query.shape)}: expected (batch, n, {self.embed_dim})")
        q, k, v = self._heads(query)
        rotated = k if self.rope is None else _rotate(k, self.rope)
        q = q if self.rope is None else _rotate(q, self.rope)
        mask = self._visible(query, key_padding_mask, attn_mask)
        if k.device.type == "cpu" and not torch.compiler.is_compiling():
            check_keys(k)  # to look on a GPU would stall it, and in a compiled graph break it: there NaN goes through
        solved = preconditioned(rotated if self.precond_keys == "rotated" else k, v, mask=mask)
        mixed = scaled_dot_product_attention(
            q,
            rotated,
            solved,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=mask is None,
            enable_gqa=self.num_kv_heads != self.num_heads,
        )
        return self.out_proj(mixed.transpose(1, 2).flatten(2)), None

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (batch, heads, n, head_dim), keys and values (batch, kv_heads, n, head_dim)."""
        kv_width = self.num_kv_heads * self.head_dim
        parts = torch.split(linear(x, self.in_proj_weight, self.in_proj_bias), [self.embed_dim, kv_width, kv_width], -1)
        q, k, v = (part.view(*part.shape[:2], -1, self.head_dim).transpose(1, 2) for part in parts)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return q, k, v

    def _visible(self, x: Tensor, padding: Tensor | None, hidden: Tensor | None) -> Tensor | None:
        """True where a query sees a key, with four dimensions; None for the plain causal order."""
        if padding is None and hidden is None:
            return None
        n = x.shape[1]
        visible = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()[None, None]
        if hidden is not None:
            if hidden.is_floating_point():  # nn.Transformer makes its causal masks of 0 and -inf
                if not bool(((hidden == 0) | (hidden == -torch.inf)).all()):
                    raise InputError(f"{NOT_CAUSAL} (it has weights other than 0 and -inf)")
                hidden = hidden != 0
            visible = causal_mask(~hidden, x[:, None], n)
        if padding is not None:
            visible = visible & ~padding.bool()[:, None, None, :]
        return visible

    def extra_repr(self) -> str:
        """What tells this layer from another."""
        said = f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}"
        if self.rope is not None:
            said += f", rope={self.rope}, precond_keys={self.precond_keys}"
        return said + (f", dropout={self.dropout}" if self.dropout else "")


def _rotate(x: Tensor, base: float) -> Tensor:
    """Rotary positions: dimension i and i + d/2 turn by position / base^(2i/d)."""
    n, half = x.shape[-2], x.shape[-1] // 2
    speed = base ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = torch.arange(n, device=x.device, dtype=torch.float32)[:, None] * speed
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
