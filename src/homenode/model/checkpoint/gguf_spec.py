"""GGUF metadata -> ModelSpec.

Source: the key list of the GGUF specification; the meaning of missing keys is that of its reference reader.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from homenode.errors import UnsupportedError
from homenode.model.checkpoint.embedding_models import refuse_embedding_gguf
from homenode.model.checkpoint.folder_spec import derived_head_dim, extended_position, sampling_defaults
from homenode.model.checkpoint.gguf_gemma import GEMMAS, with_gemma
from homenode.model.checkpoint.known_keys import refuse_active_keys, refuse_other_kinds
from homenode.model.formats import limits
from homenode.model.formats.fields import Fields
from homenode.model.formats.gguf_token_ids import token_id_of, token_ids_of
from homenode.model.formats.reading import damaged, quoted, read_at
from homenode.model.spec import ModelSpec, MoeSpec, RopeSpec, TensorEntry
from homenode.units import format_count

# general.architecture -> ours. Converters name Mistral and Mixtral llama, too: see `gguf_architecture`.
ARCHITECTURES = {
    "llama": "llama", "qwen2": "qwen2", "qwen2moe": "qwen2_moe", "qwen3": "qwen3", "qwen3moe": "qwen3_moe", "gemma2": "gemma2", "gemma3": "gemma3",
    "phi3": "phi3",
}  # fmt: skip
_ROUTER = re.compile(r"model\.layers\.([0-9]+)\.(mlp|block_sparse_moe)\.gate\.weight")
INTERLEAVED = ("llama", "mistral", "mixtral")  # whose query and key rows converters reorder: see `permuted_heads`
# Whose configurations name the layers that have a window, and perhaps none.
_LAYERS_UNKNOWN = frozenset(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"))
_FACTORS, _LONG, _SHORT = ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_ENDS = ("eos", "eot", "eom")  # the roles of tokens that end an answer
_SAMPLING = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}


def gguf_architecture(path: Path, metadata: Mapping[str, Any]) -> str:
    """Our name for general.architecture, which is one of `ARCHITECTURES`; UnsupportedError for another one."""
    refuse_other_kinds(path, metadata)
    name = Fields(path, metadata).text("general.architecture")
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UnsupportedError(
            f"{path}: architecture {quoted(name)} is not supported; homenode runs GGUF files of {known}",
            architecture=name,
            known=tuple(ARCHITECTURES),
        )
    refuse_embedding_gguf(path, metadata, name)
    refuse_active_keys(path, metadata, name)
    fields = Fields(path, metadata, name + ".")
    if not num_experts(path, metadata):
        if name.endswith("moe"):
            raise fields.wrong("expert_count", None, "the number of experts")
        return (
            "mistral"
            if name == "llama" and fields.optional_integer("attention.sliding_window", minimum=0)
            else ARCHITECTURES[name]
        )
    if name == "llama":
        return "mixtral"
    if not name.endswith("moe"):
        raise UnsupportedError(
            f"{path}: mixtures of experts are not supported in architecture {name!r}; homenode runs dense models of it"
        )
    return ARCHITECTURES[name]


def num_experts(path: Path, metadata: Mapping[str, Any]) -> int:
    """Experts of a layer, 0 in dense models."""
    name = Fields(path, metadata).text("general.architecture")
    return Fields(path, metadata, name + ".").integer("expert_count", 0, minimum=0, maximum=limits.MOST_EXPERTS)


def spec_from_gguf(
    path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, TensorEntry], rope_factors: Mapping[str, TensorEntry]
) -> ModelSpec:
    """The figures of the model with these key-value pairs and `tensors` (Hugging Face names)."""
    architecture = gguf_architecture(path, metadata)
    fields = Fields(path, metadata, Fields(path, metadata).text("general.architecture") + ".")
    hidden = fields.integer("embedding_length", maximum=limits.MOST_HIDDEN)
    heads = fields.integer("attention.head_count", maximum=limits.MOST_HEADS)
    head_dim = _head_dim(fields, hidden, heads)
    vocab = _vocab_size(fields, metadata, tensors)
    position = fields.integer("context_length", maximum=limits.MOST_POSITION)
    rope = _rope(fields, architecture, head_dim, position, rope_factors)
    layers = fields.integer("block_count", maximum=limits.MOST_LAYERS)
    inner = fields.integer("feed_forward_length", maximum=limits.MOST_INTERMEDIATE)
    gemma = GEMMAS.get(architecture)
    window = _window(fields, architecture, position)
    spec = ModelSpec(
        architecture=architecture,
        hidden_size=hidden,
        intermediate_size=inner,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=fields.integer("attention.head_count_kv", heads, maximum=limits.MOST_HEADS),
        head_dim=head_dim,
        vocab_size=vocab,
        max_position=extended_position(rope, position),
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon", most=1.0),
        rope=rope,
        tie_word_embeddings=limits.OUTPUT not in tensors,
        attention_bias="model.layers.0.self_attn.q_proj.bias" in tensors,
        output_bias="model.layers.0.self_attn.o_proj.bias" in tensors,
        mlp_bias="model.layers.0.mlp.gate_proj.bias" in tensors,
        moe=_moe(fields, architecture, layers, inner, tensors) if num_experts(path, metadata) else None,
        sliding_window=window,
        bos_token_id=token_id_of(metadata, "bos", vocab),
        eos_token_ids=tuple(dict.fromkeys(i for role in _ENDS for i in token_ids_of(metadata, role, vocab))),
        storage=limits.main_storage(dict(tensors)),
        generation=sampling_defaults(Fields(path, metadata, "general.sampling."), _SAMPLING),
    )
    if gemma:
        spec = with_gemma(spec, gemma, fields)
    _check_pattern(fields, spec)
    limits.check_spec(spec, path)
    return spec


def _window(fields: Fields, architecture: str, position: int) -> int | None:
    """The sliding window. UnsupportedError where a file has one and does not say in which layers, as those may be some or none."""
    gemma = GEMMAS.get(architecture)
    window = fields.integer("attention.sliding_window", gemma.window if gemma else 0, minimum=0) or None
    if architecture not in _LAYERS_UNKNOWN or window is None or window >= position:
        return None if architecture in _LAYERS_UNKNOWN else window
    raise UnsupportedError(
        f"{fields.path}: attention.sliding_window {window} is not supported in {architecture} GGUF files, which do not say which layers have it"
    )


def _check_pattern(fields: Fields, spec: ModelSpec) -> None:
    """UnsupportedError where the file names other layers as those with a window than the architecture has: truth values, or each n-th has none."""
    key = "attention.sliding_window_pattern"
    if spec.sliding_window is None or not fields.has(key):
        return
    layers = range(spec.num_layers)
    if (listed := fields.optional_booleans(key)) is None:
        each = fields.integer(key, minimum=0)
        listed = tuple(each == 0 or (layer + 1) % each != 0 for layer in layers)
    if listed != (spec.sliding_layers or tuple(True for _ in layers)):
        raise UnsupportedError(
            f"{fields.path}: {key} that differs from the architecture's own is not supported; homenode runs {spec.architecture} with that"
        )


def _moe(
    fields: Fields, architecture: str, layers: int, intermediate: int, tensors: Mapping[str, TensorEntry]
) -> MoeSpec | None:
    """The experts: how many, of which size, and in which layers, which are those that have a router."""
    for key, plain in (("expert_gating_func", 1), ("expert_group_count", 1), ("expert_group_used_count", 1)):
        if fields.integer(key, plain, minimum=0) not in (0, plain):
            raise UnsupportedError(
                f"{fields.path}: {key} {fields.integer(key)} is not supported; homenode runs a softmax over all experts"
            )
    if (scale := fields.number("expert_weights_scale", 1.0, least=0.0)) not in (0.0, 1.0):
        raise UnsupportedError(f"{fields.path}: expert_weights_scale {scale:g} is not supported; homenode wants 1")
    used = fields.integer("expert_used_count", maximum=limits.MOST_EXPERTS)
    # As the reference reader has it where a size is missing: the experts of a token share the length of an MLP.
    size = intermediate if architecture == "mixtral" else max(intermediate // used, 1)
    shared = "model.layers.{}.mlp.shared_expert_gate.weight"
    routed = {int(match[1]) for name in tensors if (match := _ROUTER.fullmatch(name))}
    dense = tuple(layer for layer in range(layers) if layer not in routed)
    if len(dense) == layers:
        raise damaged(
            fields.path,
            "experts",
            seen="no layer with a router",
            wanted="ffn_gate_inp.weight in the layers that have experts",
        )
    has_shared = any(shared.format(layer) in tensors for layer in routed)
    return MoeSpec(
        num_experts=fields.integer("expert_count", maximum=limits.MOST_EXPERTS),
        experts_per_token=used,
        intermediate_size=fields.integer("expert_feed_forward_length", size, maximum=limits.MOST_INTERMEDIATE),
        normalise=fields.boolean("expert_weights_norm", architecture != "qwen2_moe"),
        shared_intermediate_size=(
            fields.integer("expert_shared_feed_forward_length", intermediate, maximum=limits.MOST_INTERMEDIATE)
            if has_shared
            else 0
        ),
        dense_layers=dense,
    )


def _head_dim(fields: Fields, hidden: int, heads: int) -> int:
    key = fields.optional_integer("attention.key_length", maximum=limits.MOST_HEAD_DIM) or derived_head_dim(
        fields, hidden, heads
    )
    value = fields.integer("attention.value_length", key, maximum=limits.MOST_HEAD_DIM)
    if value != key:
        raise UnsupportedError(
            f"{fields.path}: keys of {key} and values of {format_count(value, 'element')} a head are not supported; homenode wants both equal"
        )
    scale = fields.optional_number("attention.scale", least=0.0) or 0.0
    if scale and not math.isclose(scale, key**-0.5, rel_tol=1e-4):
        raise UnsupportedError(
            f"{fields.path}: attention.scale {scale:g} is not supported; homenode wants 1/sqrt({key})"
        )
    return key


def _vocab_size(fields: Fields, metadata: Mapping[str, Any], tensors: Mapping[str, TensorEntry]) -> int:
    """Rows of the token embedding. A vocabulary with more tokens than that would look up rows that do not exist."""
    embedding = tensors.get(limits.EMBEDDING)
    if embedding is None or len(embedding.shape) != 2 or embedding.shape[0] > limits.MOST_VOCAB:
        seen = "none (is this a vocabulary without a model?)" if embedding is None else list(embedding.shape)
        raise damaged(
            fields.path, "token_embd.weight", seen=seen, wanted=f"a matrix of at most {limits.MOST_VOCAB} rows"
        )
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise damaged(fields.path, "tokenizer.ggml.tokens", seen=quoted(tokens), wanted="an array of strings")
    if len(tokens) > embedding.shape[0]:
        wanted = f"at most the {format_count(embedding.shape[0], 'row')} of the embedding"
        raise damaged(fields.path, "tokenizer.ggml.tokens", seen=format_count(len(tokens), "token"), wanted=wanted)
    return embedding.shape[0]


def _rope(
    fields: Fields, architecture: str, head_dim: int, position: int, factors: Mapping[str, TensorEntry]
) -> RopeSpec:
    default = GEMMAS[architecture].theta if architecture in GEMMAS else 10000.0
    theta = fields.number("rope.freq_base", default, above=1.0, most=limits.MOST_THETA)
    rotary = fields.integer("rope.dimension_count", head_dim, maximum=limits.MOST_HEAD_DIM)
    if rotary != head_dim and architecture in INTERLEAVED:
        # The converter interleaves whole heads, so the stored order and a shorter rotation do not agree on which elements turn.
        raise UnsupportedError(
            f"{fields.path}: rope over {rotary} of {format_count(head_dim, 'element')} of a head is not supported in llama GGUF files; homenode wants the whole head"
        )
    divisors = _rope_factors(factors[_FACTORS]) if _FACTORS in factors else ()
    linear = fields.number("rope.scale_linear", 1.0, least=0.0, most=1e6) or 1.0  # how early files spelled it
    factor = fields.number("rope.scaling.factor", linear, least=0.0, most=1e6) or 1.0
    kind = fields.text("rope.scaling.type") or ("linear" if factor != 1.0 else "none")
    part = None if rotary == head_dim else rotary
    if _LONG in factors and _SHORT in factors:
        return RopeSpec(
            theta=theta, kind="longrope", rotary_dim=part,
            original_max_position=fields.integer("rope.scaling.original_context_length", position, maximum=limits.MOST_POSITION),
            attention_factor=fields.number("rope.scaling.attn_factor", 1.0, least=0.0) or 1.0,
            short_factors=_rope_factors(factors[_SHORT]), long_factors=_rope_factors(factors[_LONG]),
        )  # fmt: skip
    if kind == "none":
        return RopeSpec(theta=theta, rotary_dim=part, factors=divisors)
    if kind == "linear":
        return RopeSpec(
            theta=theta, kind=kind if factor != 1.0 else "default", rotary_dim=part, factor=factor, factors=divisors
        )
    if kind == "yarn":
        return _yarn(fields, theta, part, factor, position, divisors)
    raise UnsupportedError(
        f"{fields.path}: rope scaling {quoted(kind)} is not supported; homenode runs none, linear and yarn in GGUF files",
        kind=kind,
    )


def _yarn(
    fields: Fields, theta: float, rotary: int | None, factor: float, position: int, divisors: tuple[float, ...]
) -> RopeSpec:
    for key, plain in (("yarn_ext_factor", 1.0), ("yarn_log_multiplier", 0.0)):
        if (seen := fields.optional_number(f"rope.scaling.{key}", least=-1.0)) not in (None, plain, -1.0):
            raise UnsupportedError(
                f"{fields.path}: rope.scaling.{key} {seen:g} is not supported; homenode wants {plain:g}"
            )
    return RopeSpec(
        theta=theta, kind="yarn", rotary_dim=rotary, factor=factor, factors=divisors,
        original_max_position=fields.integer("rope.scaling.original_context_length", position, maximum=limits.MOST_POSITION),
        attention_factor=_yarn_scale(fields, factor),
        beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0), beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
    )  # fmt: skip


def _yarn_scale(fields: Fields, factor: float) -> float | None:
    """What cosines and sines are multiplied with; None for what YaRN prescribes for the factor.

    `yarn_attn_factor` is what converters make of a folder's `attention_factor`, the whole scale; 1, 0 and -1 are how others write that there is none.
    `attn_factor` multiplies.
    """
    times = fields.number("rope.scaling.attn_factor", 1.0, least=0.0) or 1.0
    whole = fields.number("rope.scaling.yarn_attn_factor", 1.0, least=-1.0, most=1e6)
    if whole > 0 and whole != 1.0:
        return times * whole
    return None if times == 1.0 else times * (1.0 if factor <= 1 else 0.1 * math.log(factor) + 1.0)


def _rope_factors(entry: TensorEntry) -> tuple[float, ...]:
    """The divisors of `rope_freqs.weight`, one for each pair of elements."""
    wanted = f"at most {limits.MOST_HEAD_DIM // 2} positive F32 numbers in a row"
    if entry.dtype.name != "F32" or len(entry.shape) != 1 or entry.shape[0] > limits.MOST_HEAD_DIM // 2:
        raise damaged(entry.file, entry.name, seen=f"{entry.dtype.name} {list(entry.shape)}", wanted=wanted)
    values = np.frombuffer(read_at(entry.file, entry.offset, entry.nbytes), "<f4").astype(np.float64)
    if not bool(np.all(np.isfinite(values) & (values > 0))):
        raise damaged(entry.file, entry.name, seen="a value that is not positive", wanted=wanted)
    return tuple(float(value) for value in values)
