"""LongCat-Flash: latent attention; a layer of its folders is two here, each with an MLP. Experts of the first one's
rows are added behind the second one's MLP; some of them return the row as it is.
"""

from __future__ import annotations

import re
from dataclasses import replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import attention, latent_attention, mlp, stage, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat
from homenode.model.architectures.deepseek_v2 import ARCHITECTURE as DEEPSEEK
from homenode.model.architectures.latent_attention import LatentHeads, heads_of
from homenode.model.architectures.parameters import ForwardContext, always
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.formats import limits
from homenode.model.spec import ModelSpec, TensorEntry, Tensors

DEFAULTS = Defaults(
    max_position=131072, heads=64, vocab=131072, bos_id=1, eos_id=2, norm_eps=1e-5, theta=1e7, intermediate=12288
)
HEADS = LatentHeads(query_rank=1536, latent=512, plain=128, rotary=64, value=128)
EXPERTS = ExpertDefaults(experts=512, experts_per_token=12, size=2048, keys=("n_routed_experts",))
PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    *latent_attention.PARAMETERS,
    *tables.POST_NORM,
    *(replace(matrix, when=always) for matrix in tables.GATE_UP_DOWN),
    *tables.EXPERTS,
    tables.CHOICE_BIAS,
)
_SPELLED = {
    "num_layers": "num_hidden_layers",
    "ffn_hidden_size": "intermediate_size",
    "moe_topk": "num_experts_per_tok",
    "expert_ffn_hidden_size": "moe_intermediate_size",
}
_PLAIN = {
    "router_bias": False, "norm_topk_prob": False, "zero_expert_type": "identity", "mla_scale_q_lora": True,
    "mla_scale_kv_lora": True, "attention_method": "MLA",
}  # fmt: skip
_HALF = re.compile(
    r"(?P<layer>[0-9]+)\.(?P<module>self_attn|mlps|input_layernorm|post_attention_layernorm)\.(?P<half>[01])\."
)
_FRONT, _EXPERT = "model.layers.", re.compile(r"mlp\.experts\.([0-9]+)\.")


def _read_folder(config: FolderConfig) -> ModelSpec:
    fields = config.fields
    halves = fields.optional_integer("num_hidden_layers", minimum=2, maximum=limits.MOST_LAYERS)
    layers = fields.integer("num_layers", halves // 2 if halves else 28, maximum=limits.MOST_LAYERS // 2)
    config = config.respelled(_SPELLED)
    config = replace(config, fields=config.fields.with_value("num_hidden_layers", 2 * layers))
    fields.refuse_others(_PLAIN)
    spec = latent_attention.read_folder(config.without("num_key_value_heads"), DEFAULTS, HEADS)
    moe = replace(
        config.moe(EXPERTS, normalise=False, dense=tuple(range(1, 2 * layers, 2))),
        scale=fields.number("routed_scaling_factor", 6.0),
        identities=fields.integer("zero_expert_num", 256, minimum=0, maximum=limits.MOST_EXPERTS),
    )
    return replace(spec, moe=moe, streams=2)


def _as_halves(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """A folder's tensors by the layers that they are of here. The latents that queries, keys and values are made of are
    multiplied by a factor, which the weights of their norms have here.
    """
    own, found, experts = heads_of(spec), {}, spec.moe.num_experts if spec.moe else 0
    halves = any(".mlps." in name for name in tensors)
    factors = {"q_a_layernorm": own.query_rank, "kv_a_layernorm": own.latent}
    for name, entry in tensors.items():
        rest = name.removeprefix(_FRONT)
        number, _, module = rest.partition(".")
        if (half := _HALF.match(rest)) is not None:
            place, ours = 2 * int(half["layer"]) + int(half["half"]), half["module"].replace("mlps", "mlp")
            name = f"{_FRONT}{place}.{ours}.{rest[half.end() :]}"
        elif halves and number.isdigit() and module.startswith("mlp."):
            if (expert := _EXPERT.match(module)) is not None and int(expert[1]) >= experts:
                continue  # transformers saves matrices of those without any
            module = module.replace("mlp.router.classifier.", "mlp.gate.").replace("mlp.router.", "mlp.gate.")
            name = f"{_FRONT}{2 * int(number)}.{module}"
        times = factors.get(name.split(".")[-2]) if name.count(".") else None
        found[name] = replace(entry, name=name, times=(spec.hidden_size / times) ** 0.5 if times else 1.0)
    return latent_attention.split_folder_heads(found, spec)


def _experts(ops: Ops, model: ForwardContext, index: int, h: Tensor) -> Tensor:
    """Return what experts make of h, those among them that return it."""
    layer, moe, part = model.parameters.layers[index], model.spec.moe, model.part
    assert moe is not None
    logits, given = ops.linear(h, (layer["router"],)), None
    if moe.identities and part.adds_residual:
        itself = ops.identity_weight(logits, layer["choice_bias"], moe.num_experts, moe.experts_per_token, moe.scale)
        given = ops.add_weighted(ops.scale(h, 0.0), h, itself, model.spec.hidden_size)
    return stage.over_ranks(ops, model, mlp.add_experts(ops, model, index, h, logits, given))


def _forward(ops: Ops, model: ForwardContext) -> Tensor:
    x, hidden = stage.enter(ops, model), model.spec.hidden_size
    late = None  # what is added behind the next layer
    if not model.part.first_stage:
        x, late = ops.split(x, (hidden, hidden))
    rotation = attention.angles(ops, model.rope)
    for index, layer in enumerate(model.parameters.layers):
        x, _ = latent_attention.attend(ops, model, index, x, rotation, None)
        h = stage.normed(ops, model, x, layer["post_norm"])
        if "router" in layer:
            late = _experts(ops, model, index, h)
        x = stage.project_out(ops, model, mlp.gated(ops, layer, h), layer["down"], None, x)
        if "router" not in layer:
            assert late is not None
            x = ops.add(x, stage.select_last(ops, model, index, late))
    if not model.part.last_stage:
        return ops.join_heads(x, x if late is None else late, 1)
    return stage.leave(ops, model, x)


ARCHITECTURE = Architecture(
    "longcat_flash",
    FolderFormat(
        "LongcatFlashForCausalLM",
        _read_folder,
        fields=latent_attention.FIELDS
        | EXPERTS.fields
        | frozenset((*_SPELLED, *_PLAIN, "routed_scaling_factor", "zero_expert_num")),
        convert=_as_halves,
    ),
    DEEPSEEK.gguf.without_files(),
    PARAMETERS,
    _forward,
)
