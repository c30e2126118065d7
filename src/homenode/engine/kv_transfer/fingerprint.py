"""The facts that two engines must agree in before one may use the other's KV: named facts, compared one by one by
`transfer.wire.message.differences`.

KV of block identity X is of use only to an engine that would have computed the same for X. So everything is here that a
key or value depends on: the weights and how they are kept, the architecture's figures, the form of KV memory, the
vocabulary, how identities are made. Lengths (but for longrope), block sizes, memory and threads may differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields

from homenode.compute.ops import KvGeometry
from homenode.model.spec import Checkpoint, IndexerSpec, ModelSpec, MoeSpec, RopeSpec
from homenode.model.weights.weights_identity import tokenizer_digest, weights_digest
from homenode.transfer.setup.settings import TransferConfig
from homenode.transfer.wire.message import PROTOCOL

HASH_SCHEME = "blake2b-128 chain 1"  # of engine.kv.prefix; another number whenever identities are made in another way
KV_FORM = "tiles of 16 tokens 1"  # of csrc/kv/cache.h
KEYS_ALONE = " of keys alone"  # values are columns of them

# Facts of the connection; identities do not depend on them.
_OF_CONNECTION = frozenset({"protocol", "mode", "channel", "secret"})

Fingerprint = dict[str, str]


def fingerprint_of(
    config: TransferConfig,
    checkpoint: Checkpoint,
    geometry: KvGeometry,
    kept_as: str,
    max_model_len: int | None = None,
    weights: str | None = None,
) -> Fingerprint:
    """The facts of an engine. `kept_as`: how its weights are kept in memory, in words. `max_model_len`: its longest
    context (None: the model's), on which longrope depends. `weights`: of its model's identity, as they were when they
    were read; None: samples of what the files hold now. Reads the vocabulary.

    CheckpointError when they cannot be read.
    """
    return {
        "protocol": f"{PROTOCOL[0]}-{PROTOCOL[1]}",
        "mode": config.mode,
        "channel": config.transfer_channel,
        "secret": "set" if config.pd_secret else "none",
        **facts_of_kv(checkpoint, geometry, kept_as, max_model_len, weights),
    }


def facts_of_kv(
    checkpoint: Checkpoint,
    geometry: KvGeometry,
    kept_as: str,
    max_model_len: int | None = None,
    weights: str | None = None,
) -> Fingerprint:
    """The same without what is of a connection: all that a key or value depends on."""
    return {
        "weights": weights_digest(checkpoint) if weights is None else weights,
        "weights_kept_as": kept_as,
        **_architecture(checkpoint.spec, max_model_len),
        "kv_dtype": geometry.dtype,
        "kv_form": KV_FORM + (KEYS_ALONE if any(layer.sides == 1 for layer in geometry.layers) else ""),
        "tokenizer": tokenizer_digest(checkpoint),
        "hash_scheme": HASH_SCHEME,
    }


# In 0.1.0, with whose engines those of later versions have to agree: what `MoeSpec` and `RopeSpec` were called, and how
# many fields they had.
_OLD_MOE, _OLD_ROPE = ("MixtureSpec", 6), ("RopeSpec", 13)


def _architecture(spec: ModelSpec, max_model_len: int | None) -> Fingerprint:
    windows = "".join("w" if slides else "-" for slides in spec.sliding_layers)
    return {
        "architecture": spec.architecture,
        "layers": str(spec.num_layers),
        "hidden_size": str(spec.hidden_size),
        "heads": str(spec.num_heads),
        "kv_heads": str(spec.num_kv_heads),
        "head_dim": str(spec.head_dim),
        "vocab_size": str(spec.vocab_size),
        "rms_norm_eps": repr(spec.norm_eps),
        "rope": _short(_told(spec.rope, *_OLD_ROPE) + _factors(spec, max_model_len)),
        "local_rope": _told(spec.local_rope, *_OLD_ROPE) if spec.local_rope else "None",
        "scales": f"{spec.embedding_scale!r} {spec.attention_scale!r} {spec.attention_softcap!r}",
        "sliding_window": f"{spec.sliding_window} {_short(windows)}".strip() if spec.sliding_window else "none",
        "experts": _short(_told(spec.moe, *_OLD_MOE)) if spec.moe else "none",
        **({"own": _short(repr(spec.own))} if spec.own is not None else {}),
        **({"residual_scale": repr(spec.residual_scale)} if spec.residual_scale != 1.0 else {}),
        **({"delta": _short(repr(spec.delta))} if spec.delta is not None else {}),
        **({"mixer": _short(repr(spec.mixer))} if spec.mixer is not None else {}),
        **({"layer_kv": _short(repr(spec.layer_kv))} if spec.layer_kv else {}),
        **({"indexer": _short(_told(spec.indexer, "IndexerSpec", 5))} if spec.indexer is not None else {}),
        **({"pooled": _short(repr(spec.pooled.ratios))} if spec.pooled is not None else {}),
        **({"rope_layers": _short(repr(spec.rope_layers))} if spec.rope_layers else {}),
        **({"window_kind": spec.window_kind} if spec.window_kind != "sliding" else {}),
    }


def _told(figures: IndexerSpec | MoeSpec | RopeSpec, name: str, old: int) -> str:
    """The figures as their class showed them in 0.1.0, when it was called `name` and had `old` fields: the others only
    where they are unusual.
    """
    told = [
        f"{each.name}={getattr(figures, each.name)!r}"
        for number, each in enumerate(fields(figures))
        if number < old or getattr(figures, each.name) != each.default
    ]
    return f"{name}({', '.join(told)})"


def _factors(spec: ModelSpec, max_model_len: int | None) -> str:
    """Return which of longrope's factors are in use."""
    if spec.rope.kind != "longrope":
        return ""
    return (
        " long"
        if (max_model_len or spec.max_position) > (spec.rope.original_max_position or spec.max_position)
        else " short"
    )


def _short(text: str) -> str:
    """`text`, or a digest of it with its beginning where it is long (a model may have thousands of rope factors)."""
    if len(text) <= 400:
        return text
    return f"{text[:360]}... {hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}"


def hash_seed(fingerprint: Mapping[str, str], secret: str | None) -> bytes:
    """The key of block identities (32 bytes): the same for engines that agree, another one with another secret."""
    facts = [f"{name}={value}" for name, value in sorted(fingerprint.items()) if name not in _OF_CONNECTION]
    key = hashlib.blake2b(
        (secret or "").encode("utf-8", "surrogatepass"), person=b"kv-identity", digest_size=32
    ).digest()
    return hashlib.blake2b(
        "\n".join(facts).encode("utf-8", "surrogatepass"), key=key, person=b"kv-identity", digest_size=32
    ).digest()
