"""Checks that hold for every ModelSpec, whichever file it came from, so that nothing absurd reaches an allocation."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from homenode.model.formats.bounded_files import damaged
from homenode.model.spec import ModelSpec, MoeSpec, RopeSpec, TensorEntry
from homenode.units import format_count

MOST_LAYERS = 10_000
MOST_VOCAB = 10_000_000
MOST_HIDDEN = 1_000_000
MOST_INTERMEDIATE = 10_000_000
MOST_EXPERTS = 4096
MOST_EXPERTS_IN_ALL = 100_000  # of all layers
MOST_HEADS = 100_000
MOST_HEAD_DIM = 4096
MOST_POSITION = 2**30
MOST_THETA = 1e12
EMBEDDING = "model.embed_tokens.weight"
OUTPUT = "lm_head.weight"

_ASK = "correct or fetch the model's configuration again"


def check_spec(spec: ModelSpec, source: Path) -> None:
    """CheckpointError when the figures contradict each other. Their single ranges were checked where they were read."""
    if spec.num_heads % spec.num_kv_heads:
        wanted = f"a divisor of the {format_count(spec.num_heads, 'attention head')}"
        raise damaged(source, "key-value heads", seen=spec.num_kv_heads, wanted=wanted, do=_ASK)
    if spec.moe is not None:
        _check_moe(spec.moe, spec.num_layers, source)
    for rope in filter(None, (spec.rope, spec.local_rope)):
        _check_rope(rope, spec.head_dim, source)


def _check_rope(rope: RopeSpec, head_dim: int, source: Path) -> None:
    rotary = head_dim if rope.rotary_dim is None else rope.rotary_dim
    if rotary % 2 or not 2 <= rotary <= head_dim:
        wanted = f"an even number up to the head's {head_dim}"
        raise damaged(source, "rotary dimensions", seen=rotary, wanted=wanted, do=_ASK)
    lists = (rope.short_factors, rope.long_factors) if rope.kind == "longrope" else (rope.factors or None,)
    for factors in lists:
        if factors is not None and len(factors) != rotary // 2:
            raise damaged(source, "rope frequency factors", seen=f"{len(factors)} of them", wanted=str(rotary // 2))
    if rope.kind == "llama3" and not rope.low_freq_factor < rope.high_freq_factor:
        seen = f"low_freq_factor {rope.low_freq_factor}, high_freq_factor {rope.high_freq_factor}"
        raise damaged(source, "rope scaling", seen=seen, wanted="the low one below the high one", do=_ASK)
    if rope.kind == "yarn" and not rope.beta_slow <= rope.beta_fast:
        seen = f"beta_slow {rope.beta_slow}, beta_fast {rope.beta_fast}"
        raise damaged(source, "rope scaling", seen=seen, wanted="the slow one not above the fast one", do=_ASK)


def _check_moe(moe: MoeSpec, layers: int, source: Path) -> None:
    if moe.experts_per_token > moe.num_experts:
        raise damaged(
            source,
            "experts of a token",
            seen=moe.experts_per_token,
            wanted=f"at most the {moe.num_experts} there are",
            do=_ASK,
        )
    if moe.groups < 1 or moe.num_experts % moe.groups or not 1 <= moe.groups_chosen <= moe.groups:
        groups, experts = format_count(moe.groups, "group"), format_count(moe.num_experts, "expert")
        seen = f"{moe.groups_chosen} of {groups} chosen, of {experts}"
        raise damaged(
            source, "groups of experts", seen=seen, wanted="groups of equal length, some or all chosen", do=_ASK
        )
    if moe.experts_per_token > moe.num_experts // moe.groups * moe.groups_chosen:
        raise damaged(
            source,
            "experts of a token",
            seen=moe.experts_per_token,
            wanted=f"at most those in {format_count(moe.groups_chosen, 'group')} of {moe.num_experts // moe.groups}",
            do=_ASK,
        )
    if layers * moe.num_experts > MOST_EXPERTS_IN_ALL:
        seen = f"{moe.num_experts} in each of {format_count(layers, 'layer')}"
        raise damaged(source, "experts", seen=seen, wanted=f"at most {MOST_EXPERTS_IN_ALL} in all", do=_ASK)


def check_embedding(spec: ModelSpec, tensors: dict[str, TensorEntry], source: Path) -> None:
    """CheckpointError unless the token embedding is there, as large as the figures say: it is the first thing anyone
    allocates by.
    """
    entry = tensors.get(EMBEDDING)
    wanted = f"[{spec.vocab_size}, {spec.hidden_size}]"
    if entry is None:
        raise damaged(
            source,
            "token embedding",
            seen=f"none among {format_count(len(tensors), 'tensor')}",
            wanted=f"a matrix {wanted}",
        )
    if entry.shape != (spec.vocab_size, spec.hidden_size):
        raise damaged(entry.file, f"shape of {EMBEDDING}", seen=list(entry.shape), wanted=wanted)


def main_storage(tensors: dict[str, TensorEntry]) -> str:
    """Name of the type most of the bytes are in."""
    sizes: Counter[str] = Counter()
    for entry in tensors.values():
        sizes[entry.dtype.name] += entry.stored_bytes
    return sizes.most_common(1)[0][0] if sizes else "F32"
