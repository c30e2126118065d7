"""The keys of a GGUF file that homenode knows in every architecture: read, refused unless they ask for nothing, or
without effect here, with the reason.

What a key does is what the reference reader makes of it for any architecture, as converters write them for some that
are built on others. A key that is in no table is left alone and told (`homenode serve --check-config`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from homenode.errors import UnsupportedError
from homenode.model.formats.bounded_files import quoted

# What is read of every architecture, without its name in front, as are all keys here; `GgufFormat.keys` has what each
# reads besides.
READ = frozenset(
    "context_length embedding_length block_count feed_forward_length attention.head_count attention.head_count_kv "
    "attention.key_length attention.value_length attention.layer_norm_rms_epsilon attention.scale "
    "attention.sliding_window attention.sliding_window_pattern nextn_predict_layers rope.freq_base "
    "rope.dimension_count rope.scale_linear "
    "rope.scaling.type rope.scaling.factor rope.scaling.original_context_length rope.scaling.attn_factor "
    "rope.scaling.yarn_ext_factor rope.scaling.yarn_attn_factor rope.scaling.yarn_log_multiplier "
    "rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow expert_count expert_used_count expert_group_count "
    "expert_group_used_count expert_gating_func expert_weights_scale expert_weights_norm expert_feed_forward_length "
    "expert_shared_feed_forward_length pooling_type classifier.output_labels classifier.pooling_type".split()
)
# The values that ask for nothing; any other changes the result, and is refused.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "attention.causal": (True,),
    "use_parallel_residual": (False,),
    "swin_norm": (False,),
    "rescale_every_n_layers": (0,),
    **dict.fromkeys(("logit_scale", "embedding_scale", "residual_scale", "attention.output_scale"), (0, 1)),
    **dict.fromkeys(
        (
            "attention.clamp_kqv",
            "attention.max_alibi_bias",
            "attention.temperature_length",
            "attention.temperature_scale",
            "router_logit_softcapping",
            "attention.relative_buckets_count",
            "attention.shared_kv_layers",
            "attention.q_lora_rank",
            "attention.kv_lora_rank",
            "attention.chunk_size",
        ),
        (0,),
    ),
}
HARMLESS: Mapping[str, str] = {
    "vocab_size": "the rows of the embedding tell it",
    "rope.dimension_sections": "axes of pictures: of text a token has the same position on all",
    "n_deepstack_layers": "of pictures",
    "rope.scaling.finetuned": "where the model comes from",
    "tensor_data_layout": "the order of rows goes by the architecture",
    "attention.layer_norm_epsilon": "of norms with a mean; architectures that have them read it",
    "expert_shared_count": "the tensors tell it",
    "leading_dense_block_count": "the tensors tell it",
    "interleave_moe_layer_step": "the tensors tell it",
    "moe_every_n_layers": "the tensors tell it",
    "attention.indexer.types": "the tensors tell it",
    "embedding_length_out": "the number of streams tells it",
}
# Kinds of GGUF files that hold no model by themselves, and what they are.
_NO_MODELS = {
    "adapter": "an adapter (LoRA), which changes another model: merge it into that",
    "mmproj": "the part of a model that sees pictures: give the file of its text model",
    "imatrix": "what a quantiser measured (an importance matrix), not a model",
}


def refuse_other_kinds(path: Path, metadata: Mapping[str, Any]) -> None:
    """UnsupportedError for a file whose `general.type` says that it is no model."""
    kind = metadata.get("general.type")
    if isinstance(kind, str) and kind in _NO_MODELS:
        raise UnsupportedError(f"{path}: a GGUF file of the type {kind!r}: {_NO_MODELS[kind]}")


def refuse_active_keys(
    path: Path, metadata: Mapping[str, Any], architecture: str, read: Collection[str] = frozenset()
) -> None:
    """UnsupportedError, naming it, for a key of `NEUTRAL` with a value that changes the result. `architecture`: the
    file's name of it; `read`: the keys that it follows.
    """
    for key, neutral in NEUTRAL.items():
        value = metadata.get(f"{architecture}.{key}")
        if value is not None and value not in neutral and key not in read:
            wanted = " or ".join(str(each).lower() for each in neutral)
            raise UnsupportedError(
                f"{path}: {architecture}.{key} {quoted(value)} is not supported; homenode wants {wanted} there"
            )


def unknown_keys(metadata: Mapping[str, Any], own: Collection[str]) -> tuple[str, ...]:
    """The keys of the file's architecture that are in no table. `own`: those that the architecture names."""
    prefix = f"{metadata.get('general.architecture')}."
    known = READ | NEUTRAL.keys() | HARMLESS.keys() | set(own)
    return tuple(key for key in metadata if key.startswith(prefix) and key.removeprefix(prefix) not in known)
