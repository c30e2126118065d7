"""Lines of parameter tables that most decoders share, and the conditions under which a part or a layer has them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from homenode.model.architectures.parameters import Condition, Parameter, always, of_model
from homenode.model.part import ModelPart
from homenode.model.spec import ModelSpec

_GATE_UP_DOWN = ("gate_proj", "up_proj", "down_proj")
W1_W3_W2 = ("w1", "w3", "w2")  # what some families call these


def has_embedding(spec: ModelSpec, part: ModelPart, _layer: int | None) -> bool:
    """The part looks up tokens, or multiplies with the table of a tied model."""
    return part.first_stage or (part.last_stage and spec.tie_word_embeddings and spec.pooling is None)


def has_output(_spec: ModelSpec, part: ModelPart, _layer: int | None) -> bool:
    """The part computes logits, or the rows that vectors are made of."""
    return part.last_stage


def has_output_matrix(spec: ModelSpec, part: ModelPart, _layer: int | None) -> bool:
    """The part computes logits with a matrix of their own."""
    return part.last_stage and not spec.tie_word_embeddings and spec.pooling is None


@dataclass(frozen=True)
class HeadNorms:
    """`ModelSpec.own` of architectures some of whose models have a norm over each head of q and k, and others none."""

    has: bool


has_head_norms = of_model(lambda spec: spec.own == HeadNorms(True))
has_qkv_biases = of_model(lambda spec: spec.attention_bias)
has_output_bias = of_model(lambda spec: spec.output_bias)  # of o
has_mlp_biases = of_model(lambda spec: spec.mlp_bias)


def has_experts(spec: ModelSpec, _part: ModelPart, layer: int | None) -> bool:
    """The layer has experts."""
    return spec.moe is not None and layer not in spec.moe.dense_layers


def has_shared_expert(spec: ModelSpec, part: ModelPart, layer: int | None) -> bool:
    """The layer has experts, and one that every token uses."""
    return has_experts(spec, part, layer) and spec.moe is not None and spec.moe.shared_intermediate_size > 0


def has_mlp(spec: ModelSpec, part: ModelPart, layer: int | None) -> bool:
    """The layer has an MLP."""
    return not has_experts(spec, part, layer)


def layer_weight(key: str, name: str, gguf: str, *shape: str, when: Condition = always) -> Parameter:
    """A matrix or a norm that every layer has: its names within a layer, in Hugging Face folders and in GGUF files."""
    return Parameter(key, f"model.layers.{{layer}}.{name}.weight", shape, f"blk.{{layer}}.{gguf}.weight", when)


def layer_bias(key: str, name: str, gguf: str, length: str, when: Condition) -> Parameter:
    """The bias of a matrix that every layer has."""
    return Parameter(key, f"model.layers.{{layer}}.{name}.bias", (length,), f"blk.{{layer}}.{gguf}.bias", when)


def gated_matrices(
    key: str, name: str, gguf: str, inner: str, when: Condition, modules: tuple[str, str, str] = _GATE_UP_DOWN
) -> tuple[Parameter, ...]:
    """Gate, up and down of an MLP or of experts, with so many inner columns. `key`, `gguf`: what stands before their
    keys, and behind their names in GGUF files; `modules`: their names in folders, in that of the whole.
    """
    shapes = {"gate": (inner, "hidden"), "up": (inner, "hidden"), "down": ("hidden", inner)}
    return tuple(
        layer_weight(f"{key}{part}", f"{name}.{module}", f"ffn_{part}{gguf}", *shape, when=when)
        for (part, shape), module in zip(shapes.items(), modules, strict=True)
    )


EMBEDDING_AND_HEAD = (
    Parameter("embed", "model.embed_tokens.weight", ("vocabulary", "hidden"), "token_embd.weight", has_embedding),
    Parameter("norm", "model.norm.weight", ("hidden",), "output_norm.weight", has_output),
    Parameter("lm_head", "lm_head.weight", ("vocabulary", "hidden"), "output.weight", has_output_matrix),
)
PROJECTIONS = (
    layer_weight("q", "self_attn.q_proj", "attn_q", "query", "hidden"),
    layer_weight("k", "self_attn.k_proj", "attn_k", "kv", "hidden"),
    layer_weight("v", "self_attn.v_proj", "attn_v", "kv", "hidden"),
    layer_weight("o", "self_attn.o_proj", "attn_output", "hidden", "query"),
)
# With a norm over all of q, and one over all of k, which every rank computes whole
PROJECTIONS_NORMED_WHOLE = (
    PROJECTIONS[0],
    layer_weight("k", "self_attn.k_proj", "attn_k", "all_kv", "hidden"),
    *PROJECTIONS[2:],
    layer_weight("q_norm", "self_attn.q_norm", "attn_q_norm", "all_query"),
    layer_weight("k_norm", "self_attn.k_norm", "attn_k_norm", "all_kv"),
)
INPUT_NORM = layer_weight("input_norm", "input_layernorm", "attn_norm", "hidden")
ATTENTION = (INPUT_NORM, *PROJECTIONS)
HEAD_NORMS = (
    layer_weight("q_norm", "self_attn.q_norm", "attn_q_norm", "head"),
    layer_weight("k_norm", "self_attn.k_norm", "attn_k_norm", "head"),
)
QKV_BIASES = (
    layer_bias("q_bias", "self_attn.q_proj", "attn_q", "query", when=has_qkv_biases),
    layer_bias("k_bias", "self_attn.k_proj", "attn_k", "kv", when=has_qkv_biases),
    layer_bias("v_bias", "self_attn.v_proj", "attn_v", "kv", when=has_qkv_biases),
)
OUTPUT_BIAS = (layer_bias("o_bias", "self_attn.o_proj", "attn_output", "hidden", when=has_output_bias),)
ATTENTION_AND_BIASES = (*ATTENTION, *QKV_BIASES, *OUTPUT_BIAS)
ATTENTION_AND_ALL = (*ATTENTION, *HEAD_NORMS, *QKV_BIASES, *OUTPUT_BIAS)  # biases and norms of heads
POST_NORM = (layer_weight("post_norm", "post_attention_layernorm", "ffn_norm", "hidden"),)
# The same where GGUF files call it by its place behind attention
POST_ATTENTION_NORM = layer_weight("post_norm", "post_attention_layernorm", "post_attention_norm", "hidden")
# Norms of what attention and MLP add, and the norm before the MLP of models that have both kinds
NORMS_BEHIND = (
    layer_weight("attended_norm", "post_attention_layernorm", "post_attention_norm", "hidden"),
    layer_weight("mlp_norm", "post_feedforward_layernorm", "post_ffw_norm", "hidden"),
)
NORM_BETWEEN = layer_weight("post_norm", "pre_feedforward_layernorm", "ffn_norm", "hidden")
GATE_UP_DOWN = gated_matrices("", "mlp", "", "intermediate", has_mlp)
GATED_MLP = (*POST_NORM, *GATE_UP_DOWN)
SINKS = Parameter("sinks", "model.layers.{layer}.self_attn.sinks", ("heads",), "blk.{layer}.attn_sinks.weight")
MLP_BIASES = (
    layer_bias("gate_bias", "mlp.gate_proj", "ffn_gate", "intermediate", when=has_mlp_biases),
    layer_bias("up_bias", "mlp.up_proj", "ffn_up", "intermediate", when=has_mlp_biases),
    layer_bias("down_bias", "mlp.down_proj", "ffn_down", "hidden", when=has_mlp_biases),
)
EXPERTS = (
    layer_weight("router", "mlp.gate", "ffn_gate_inp", "experts", "hidden", when=has_experts),
    *gated_matrices("expert_", "mlp.experts.{expert}", "_exps", "expert_intermediate", has_experts),
)
CHOICE_BIAS = Parameter(  # of experts, used for the choice only
    "choice_bias",
    "model.layers.{layer}.mlp.gate.e_score_correction_bias",
    ("experts",),
    "blk.{layer}.exp_probs_b.bias",
    has_experts,
)
SHARED_EXPERTS = gated_matrices(  # added as they are, for every token
    "shared_", "mlp.shared_experts", "_shexp", "shared_intermediate", has_shared_expert
)
CHOSEN_WITH_BIAS = (*EXPERTS, CHOICE_BIAS, *SHARED_EXPERTS)


def chosen_with_bias(bias: str, router: str = "mlp.gate") -> tuple[Parameter, ...]:
    """Experts that are chosen with a bias, and those that every token uses. `bias`, `router`: names within a layer."""
    return (
        replace(EXPERTS[0], name=f"model.layers.{{layer}}.{router}.weight"),
        *EXPERTS[1:],
        replace(CHOICE_BIAS, name=f"model.layers.{{layer}}.{bias}"),
        *SHARED_EXPERTS,
    )
