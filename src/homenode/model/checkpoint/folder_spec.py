"""Hugging Face config.json and generation_config.json -> ModelSpec.

What a missing key means is what the model's configuration class in transformers takes it to mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from homenode.errors import UnsupportedError
from homenode.model.checkpoint.folder_rope import ropes_from_config
from homenode.model.formats import limits
from homenode.model.formats.fields import Fields
from homenode.model.formats.reading import quoted
from homenode.model.spec import ModelSpec, MoeSpec, RopeSpec
from homenode.units import format_count


@dataclass(frozen=True)
class _Family:
    """How the architectures differ in their configuration."""

    architecture: str
    max_position: int
    heads: int | None = None  # when nobody says, as are the next two; None: somebody has to
    kv_heads: int | None = None  # None: as many as heads
    vocab: int | None = None
    head_dim: int | None = None  # None: hidden size / heads
    special_ids: tuple[int, int] | None = None  # beginning and end of text when nobody names them
    attention_bias: bool | None = None  # None: q, k, v and o follow `attention_bias`; True: q, k and v always
    # "": none; "all": every layer. If `use_sliding_window`: "upper": layers named by kind, else those from `max_window_layers` on;
    # "alternating": layers named by kind, else every other one below that; "if_used": every layer. "pattern": layers named by kind, else all but
    # each `sliding_window_pattern`-th.
    window: str = ""
    window_size: int | None = 4096  # when nobody says; None: no window then
    moe: str = ""  # "": no experts; "all": in every layer, of `intermediate_size`; "some": with sizes, and perhaps layers, of their own
    shared_expert: int = 0  # size of the expert that every token uses when nobody says; 0: there is none
    num_experts: int = 0  # when nobody says, as are the next two
    experts_per_token: int = 0
    expert_size: int = 0
    theta: float = 10000.0  # of rope, when nobody says
    norm_eps: float = 1e-6  # when nobody says
    original_position: int | None = None  # length before an extension, when nobody says; None: the longest position
    rotates_part: bool = False  # `partial_rotary_factor` is read; the others' classes leave it alone, or fail on it
    experts_keys: tuple[str, ...] = ("num_local_experts", "num_experts")  # that say how many there are; the first wins
    local_theta: float | None = None  # of another rope in layers with a window; None: they have the same
    activation: str = "silu"
    pattern: int = 2  # when nobody says
    gemma: bool = False  # with caps, and scales of its own
    attention_softcap: float | None = None  # when nobody says, as is the next
    logits_softcap: float | None = None


# Whose norms' weights are stored less one.
NORMS_LESS_ONE = ("gemma2", "gemma3")
_GELU = "gelu_pytorch_tanh"
FAMILIES = {
    "LlamaForCausalLM": _Family("llama", 2048, special_ids=(1, 2)),
    "MistralForCausalLM": _Family("mistral", 131072, special_ids=(1, 2), attention_bias=False, window="all"),
    "Qwen2ForCausalLM": _Family("qwen2", 32768, attention_bias=True, window="upper"),
    "Qwen3ForCausalLM": _Family("qwen3", 32768, head_dim=128, window="upper"),
    "Phi3ForCausalLM": _Family(
        "phi3", 4096, special_ids=(1, 32000), attention_bias=False, window="all", window_size=None, norm_eps=1e-5, original_position=4096, rotates_part=True,
    ),
    "MixtralForCausalLM": _Family(
        "mixtral", 131072, special_ids=(1, 2), attention_bias=False, window="all", window_size=None,
        moe="all", num_experts=8, experts_per_token=2, theta=1e6, norm_eps=1e-5,
    ),
    "Qwen2MoeForCausalLM": _Family(
        "qwen2_moe", 32768, attention_bias=True, window="alternating",
        moe="some", shared_expert=5632, num_experts=60, experts_per_token=4, expert_size=1408, experts_keys=("num_experts",),
    ),
    "Qwen3MoeForCausalLM": _Family(
        "qwen3_moe", 32768, window="if_used", moe="some", num_experts=128, experts_per_token=8, expert_size=768
    ),
    "Gemma2ForCausalLM": _Family(
        "gemma2", 8192, head_dim=256, special_ids=(2, 1), window="pattern", activation=_GELU, gemma=True,
        attention_softcap=50.0, logits_softcap=30.0,
    ),
    "Gemma3ForCausalLM": _Family(
        "gemma3", 131072, heads=8, kv_heads=4, vocab=262208, head_dim=256, special_ids=(2, 1), window="pattern", activation=_GELU, gemma=True,
        theta=1e6, local_theta=10000.0, pattern=6,
    ),
}  # fmt: skip
_BY_MODEL_TYPE = {family.architecture: family for family in FAMILIES.values()} | {
    "gemma3_text": FAMILIES["Gemma3ForCausalLM"]
}
_GEMMA_HEAD = 256  # `query_pre_attn_scalar` when nobody says
_ACTIVATIONS = {"silu": ("silu", "swish"), _GELU: (_GELU,)}
_SAMPLING = {name: name for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")}


def spec_from_config(
    path: Path,
    config: dict[str, object],
    generation: Fields,
    *,
    has_output: bool,
    output_is_embedding: bool = True,
    storage: str,
    tokenizer_names_eos: bool = False,
) -> ModelSpec:
    """The figures of the model described by `config` (the content of `path`).

    `generation` holds generation_config.json (possibly empty); `has_output` says whether the weights hold an output
    matrix, `output_is_embedding` whether that, where the two are said to be tied, is the embedding again (one that is
    not is used all the same, as transformers has it), `tokenizer_names_eos` whether the tokenizer's files name a token
    that ends a text: then the class's own is not added where the configurations name none.
    Raises UnsupportedError for another architecture or an option we lack, CheckpointError for values that cannot be.
    """
    fields = Fields(path, config)
    family = _family(fields)
    _refuse_unsupported(fields, family)
    hidden = fields.integer("hidden_size", maximum=limits.MOST_HIDDEN)
    heads = fields.integer("num_attention_heads", family.heads, maximum=limits.MOST_HEADS)
    layers = fields.integer("num_hidden_layers", maximum=limits.MOST_LAYERS)
    vocab = fields.integer("vocab_size", family.vocab, maximum=limits.MOST_VOCAB)
    head_dim = (
        fields.optional_integer("head_dim", maximum=limits.MOST_HEAD_DIM)
        or family.head_dim
        or derived_head_dim(fields, hidden, heads)
    )
    position = fields.integer("max_position_embeddings", family.max_position, maximum=limits.MOST_POSITION)
    inner = fields.integer("intermediate_size", maximum=limits.MOST_INTERMEDIATE)
    rope, local_rope = ropes_from_config(
        fields, family.theta, family.local_theta, position, head_dim, family.original_position
    )
    window, sliding = _window(fields, family, layers)
    bias = fields.boolean("attention_bias", False) if family.attention_bias is None else family.attention_bias
    if family.moe:
        bias = bias and fields.boolean("qkv_bias", True)
    spec = ModelSpec(
        architecture=family.architecture,
        hidden_size=hidden,
        intermediate_size=inner,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=fields.integer("num_key_value_heads", family.kv_heads or heads, maximum=limits.MOST_HEADS),
        head_dim=head_dim,
        vocab_size=vocab,
        max_position=extended_position(rope, position),
        rms_norm_eps=fields.number("rms_norm_eps", family.norm_eps, most=1.0),
        rope=rope,
        tie_word_embeddings=fields.boolean("tie_word_embeddings", not has_output) and output_is_embedding,
        attention_bias=bias,
        output_bias=bias and family.attention_bias is None,
        mlp_bias=family.architecture == "llama" and fields.boolean("mlp_bias", False),
        moe=_moe(fields, family, layers, inner),
        sliding_window=window,
        sliding_layers=sliding,
        local_rope=local_rope,
        embedding_scale=math.sqrt(hidden) if family.gemma else 1.0,
        attention_scale=fields.number("query_pre_attn_scalar", _GEMMA_HEAD) ** -0.5 if family.gemma else None,
        attention_softcap=_softcap(fields, family, "attn_logit_softcapping", family.attention_softcap),
        logits_softcap=_softcap(fields, family, "final_logit_softcapping", family.logits_softcap),
        bos_token_id=_bos_id(fields, generation, vocab, family),
        eos_token_ids=_eos_ids(fields, generation, vocab, family, named_by_tokenizer=tokenizer_names_eos),
        storage=storage,
        generation=sampling_defaults(generation, _SAMPLING),
    )
    limits.check_spec(spec, path)
    return spec


def derived_head_dim(fields: Fields, hidden: int, heads: int) -> int:
    """Hidden size shared out over the heads."""
    if hidden % heads or hidden // heads > limits.MOST_HEAD_DIM:
        raise fields.wrong(
            "attention heads",
            heads,
            f"a divisor of the hidden size {hidden} into heads of at most {limits.MOST_HEAD_DIM}",
        )
    return hidden // heads


def extended_position(rope: RopeSpec, position: int) -> int:
    """Longest context. YaRN configurations keep the length before the extension, so the factor is applied here."""
    if rope.kind == "yarn" and rope.original_max_position:
        return min(max(position, math.floor(rope.original_max_position * rope.factor)), limits.MOST_POSITION)
    return position


def sampling_defaults(fields: Fields, keys: Mapping[str, str]) -> dict[str, float | int]:
    """The model's own way of drawing tokens: the values there are, by our names; `keys` maps those to the keys of the file."""
    found: dict[str, float | int] = {}
    for name, (least, most) in {
        "temperature": (0.0, 1e6),
        "min_p": (0.0, 1.0),
        "repetition_penalty": (1e-3, 1e3),
    }.items():
        if (value := fields.optional_number(keys[name], least=least, most=most)) is not None:
            found[name] = value
    if (top_p := fields.optional_number(keys["top_p"], most=1.0)) is not None:
        found["top_p"] = top_p
    if (top_k := fields.optional_integer(keys["top_k"], minimum=-1)) is not None:
        found["top_k"] = max(top_k, 0)  # -1 is another spelling of off
    return found


def _family(fields: Fields) -> _Family:
    named = fields.texts("architectures")
    model_type = fields.text("model_type")
    family = FAMILIES.get(named[0]) if named else _BY_MODEL_TYPE.get(model_type)
    if family is None:
        seen = named[0] if named else model_type or "none"
        known = ", ".join(FAMILIES)
        base = any(seen == name.replace("ForCausalLM", "Model") for name in FAMILIES)
        kind = " (a base model without an output for text, as embedding models are)" if base else ""
        also = f"; its model_type is {quoted(model_type)}" if named and model_type else ""
        raise UnsupportedError(
            f"{fields.path}: architecture {quoted(seen)}{kind} is not supported; homenode runs {known}{also}",
            architecture=seen,
            known=tuple(FAMILIES),
        )
    return family


def _refuse_unsupported(fields: Fields, family: _Family) -> None:
    key = "hidden_activation" if family.gemma else "hidden_act"
    activation = fields.text(key, family.activation)
    if activation not in _ACTIVATIONS[family.activation]:
        raise UnsupportedError(
            f"{fields.path}: {key} {quoted(activation)} is not supported; homenode runs {family.activation!r}"
        )
    if not fields.boolean("is_causal", True) or (family.gemma and fields.boolean("use_bidirectional_attention", False)):
        key = (
            "is_causal"
            if fields.has("is_causal") and not fields.boolean("is_causal", True)
            else "use_bidirectional_attention"
        )
        raise UnsupportedError(
            f"{fields.path}: attention to what comes later ({key}) is not supported; homenode runs causal models"
        )
    if family.local_theta is not None and fields.has("attn_logit_softcapping"):
        raise UnsupportedError(
            f"{fields.path}: attn_logit_softcapping is not supported in {family.architecture}; homenode wants null there"
        )
    if not family.rotates_part:
        _refuse_part_of_head(fields)


def _refuse_part_of_head(fields: Fields) -> None:
    """UnsupportedError for a rope over a part of each head where the class has none: some engines leave the key alone, others follow it."""
    tables = [fields, *(table for key in ("rope_parameters", "rope_scaling") if (table := fields.table(key)))]
    tables += [inner for table in tables[1:] for name in table.names() if (inner := table.optional_table(name))]
    for table in tables:
        if (part := table.optional_number("partial_rotary_factor", most=1.0)) not in (None, 1.0):
            raise UnsupportedError(
                f"{fields.path}: partial_rotary_factor {part:g} is not supported in this architecture; homenode rotates whole heads there"
            )


def _softcap(fields: Fields, family: _Family, key: str, default: float | None) -> float | None:
    """None where the file says null, or nothing and there is none by default."""
    if not family.gemma or not (fields.has(key) or fields.is_null(key)):
        return default
    return fields.optional_number(key)


def _window(fields: Fields, family: _Family, layers: int) -> tuple[int | None, tuple[bool, ...]]:
    """The sliding window and which layers use it (empty: all)."""
    window, sliding = _said_window(fields, family, layers)
    if family.window in ("", "all", "if_used"):
        _check_kinds(fields, window)
    return window, sliding


def _check_kinds(fields: Fields, window: int | None) -> None:
    """UnsupportedError for `layer_types` that ask for layers of two kinds, or another, where all layers of the architecture are of one."""
    wanted = "full_attention" if window is None else "sliding_attention"
    if other := next((kind for kind in fields.texts("layer_types") if kind != wanted), None):
        raise UnsupportedError(
            f"{fields.path}: layer_types with {quoted(other)} is not supported here; homenode runs {wanted} in all layers of this model"
        )


def _said_window(fields: Fields, family: _Family, layers: int) -> tuple[int | None, tuple[bool, ...]]:
    if not family.window or (
        family.window not in ("all", "pattern") and not fields.boolean("use_sliding_window", False)
    ):
        return None, ()
    if fields.is_null("sliding_window") or not (fields.has("sliding_window") or family.window_size):
        return None, ()
    window = fields.integer("sliding_window", family.window_size, maximum=limits.MOST_POSITION)
    if family.window in ("all", "if_used"):
        return window, ()
    kinds = fields.texts("layer_types")
    if not kinds and family.window == "pattern":
        pattern = fields.optional_integer("sliding_window_pattern") or fields.integer(
            "_sliding_window_pattern", family.pattern
        )
        sliding = tuple((layer + 1) % pattern != 0 for layer in range(layers))
    elif not kinds:
        first = fields.integer("max_window_layers", 28, minimum=0)
        alternating = family.window == "alternating"
        sliding = tuple(layer < first and layer % 2 == 0 if alternating else layer >= first for layer in range(layers))
    elif len(kinds) != layers or not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise fields.wrong(
            "layer_types", kinds, f"{format_count(layers, 'value')}, each full_attention or sliding_attention"
        )
    else:
        sliding = tuple(kind == "sliding_attention" for kind in kinds)
    return (window, sliding) if any(sliding) else (None, ())


def _moe(fields: Fields, family: _Family, layers: int, intermediate: int) -> MoeSpec | None:
    """The experts, None in architectures without and where all layers are said to be dense."""
    if not family.moe:
        return None
    every = family.moe == "all"
    key = next((key for key in family.experts_keys if fields.has(key)), family.experts_keys[0])
    experts = fields.integer(key, family.num_experts, minimum=0, maximum=limits.MOST_EXPERTS)
    dense = () if every else _dense_layers(fields, layers, experts)
    if len(dense) == layers:
        return None
    if experts == 0:
        raise fields.wrong(key, experts, f"a whole number from 1 to {limits.MOST_EXPERTS}")
    size = (
        intermediate
        if every
        else fields.integer("moe_intermediate_size", family.expert_size, maximum=limits.MOST_INTERMEDIATE)
    )
    shared = family.shared_expert
    if shared:
        shared = fields.integer("shared_expert_intermediate_size", shared, maximum=limits.MOST_INTERMEDIATE)
    return MoeSpec(
        num_experts=experts,
        experts_per_token=fields.integer("num_experts_per_tok", family.experts_per_token, maximum=limits.MOST_EXPERTS),
        intermediate_size=size,
        normalise=every or fields.boolean("norm_topk_prob", False),
        shared_intermediate_size=shared,
        dense_layers=dense,
    )


def _dense_layers(fields: Fields, layers: int, experts: int) -> tuple[int, ...]:
    """Layers with an MLP: those listed, and all but each `decoder_sparse_step`-th."""
    step = fields.integer("decoder_sparse_step", 1)
    listed = set(fields.integers("mlp_only_layers"))
    return tuple(layer for layer in range(layers) if layer in listed or experts == 0 or (layer + 1) % step)


def _bos_id(fields: Fields, generation: Fields, vocab: int, family: _Family) -> int | None:
    """generation_config.json wins."""
    for source in (generation, fields):
        if source.has("bos_token_id"):
            return next(iter(source.token_ids("bos_token_id", vocab)), None)
    return None if family.special_ids is None or fields.is_null("bos_token_id") else family.special_ids[0]


def _eos_ids(
    fields: Fields, generation: Fields, vocab: int, family: _Family, *, named_by_tokenizer: bool
) -> tuple[int, ...]:
    """What both files name together, as some models tell some of it in one only; the class's own where no file names one."""
    key = "eos_token_id"
    told = [source for source in (generation, fields) if source.has(key)]
    if told:
        return tuple(dict.fromkeys(i for source in told for i in source.token_ids(key, vocab)))
    return () if family.special_ids is None or fields.is_null(key) or named_by_tokenizer else (family.special_ids[1],)
