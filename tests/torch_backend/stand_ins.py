"""Stand-ins for flash-attn and flashinfer: their documented calls, evaluated plainly in float32 by another way than
ours.
"""

from __future__ import annotations

from typing import Any

import torch


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, window: int, softcap: float) -> torch.Tensor:
    """q [n, heads, d], the last n of the keys' positions; k and v [m, kv_heads, d]; window: keys to the left that are
    seen, -1 all.
    """
    group = q.shape[1] // k.shape[1]
    k, v = (side.float().repeat_interleave(group, dim=1) for side in (k, v))
    scores = torch.einsum("nhd,mhd->hnm", q.float(), k) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    at = torch.arange(len(k) - len(q), len(k)).unsqueeze(1)
    keys = torch.arange(len(k))
    hidden = keys > at
    if window >= 0:
        hidden |= keys < at - window
    return torch.einsum("hnm,mhd->nhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


def flash_attn_varlen_func(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False, block_table: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """flash-attn 2.6 and later."""
    assert causal and softmax_scale is not None and q.dtype == k.dtype == v.dtype == torch.bfloat16
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32 and window_size[1] == (
        -1 if window_size[0] < 0 else 0
    )
    out = torch.empty(q.shape)
    for i in range(len(cu_seqlens_q) - 1):
        rows, keys = slice(*cu_seqlens_q[i : i + 2].tolist()), slice(*cu_seqlens_k[i : i + 2].tolist())
        count = keys.stop - keys.start
        assert rows.stop - rows.start <= max_seqlen_q and count <= max_seqlen_k
        if block_table is None:
            mine = k[keys], v[keys]
        else:
            assert block_table.dtype == torch.int32 and k.shape[1] % 256 == 0
            blocks = block_table[i, : -(-count // k.shape[1])].long()
            mine = k[blocks].flatten(0, 1)[:count], v[blocks].flatten(0, 1)[:count]
        out[rows] = plain(q[rows], *mine, softmax_scale, window_size[0], softcap)
    return out.to(q.dtype)


class BatchPrefillWithPagedKVCacheWrapper:
    """flashinfer 0.2 and later."""

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD") -> None:
        assert float_workspace_buffer.dtype == torch.uint8 and kv_layout == "NHD"

    def plan(
        self, qo_indptr: torch.Tensor, paged_kv_indptr: torch.Tensor, paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int, num_kv_heads: int, head_dim_qk: int, page_size: int, *, causal: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1, logits_soft_cap: float | None = None, q_data_type: Any = None, kv_data_type: Any = None,
    ) -> None:  # fmt: skip
        assert causal and q_data_type == kv_data_type == torch.bfloat16
        self.planned = (
            qo_indptr.tolist(),
            paged_kv_indptr.tolist(),
            paged_kv_indices.long(),
            paged_kv_last_page_len.tolist(),
        )
        self.shape, self.scoring = (
            (num_qo_heads, head_dim_qk, page_size, num_kv_heads),
            (sm_scale, window_left, logits_soft_cap or 0.0),
        )

    def run(self, q: torch.Tensor, paged_kv_cache: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        queries, pages, indices, last = self.planned
        keys, values = paged_kv_cache
        assert (
            q.dtype == keys.dtype and tuple(q.shape[1:]) == self.shape[:2] and tuple(keys.shape[1:3]) == self.shape[2:]
        )
        out = torch.empty(q.shape)
        for i in range(len(last)):
            rows, mine = slice(*queries[i : i + 2]), indices[pages[i] : pages[i + 1]]
            count = (len(mine) - 1) * self.shape[2] + last[i]
            sides = (side[mine].flatten(0, 1)[:count] for side in (keys, values))
            out[rows] = plain(q[rows], *sides, *self.scoring)
        return out.to(q.dtype)
