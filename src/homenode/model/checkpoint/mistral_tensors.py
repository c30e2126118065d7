"""The tensors of Mistral's own form of folders, consolidated*.safetensors: under the names and in the order of rows
that a Hugging Face folder of the same model has.
"""

from __future__ import annotations

import re
from dataclasses import replace

from homenode.model.architectures.conversions import interleaved_heads
from homenode.model.architectures.latent_attention import LatentHeads
from homenode.model.formats.bounded_files import damaged
from homenode.model.spec import ModelSpec, TensorEntry

_NUMBER = re.compile(r"(?<=\.)(?:0|[1-9][0-9]{0,4})(?=\.)")
_MLP = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
# Modules -> modules, `{}` standing for the numbers of a layer and of an expert.
_ALL = {
    "tok_embeddings": "model.embed_tokens",
    "norm": "model.norm",
    "output": "lm_head",
    **{
        f"layers.{{}}.{own}": f"model.layers.{{}}.{name}"
        for own, name in {
            "attention_norm": "input_layernorm",
            "ffn_norm": "post_attention_layernorm",
            "attention.wq": "self_attn.q_proj",
            "attention.wk": "self_attn.k_proj",
            "attention.wv": "self_attn.v_proj",
            "attention.wo": "self_attn.o_proj",
            "attention.wq_a": "self_attn.q_a_proj",
            "attention.q_a_norm": "self_attn.q_a_layernorm",
            "attention.wq_b": "self_attn.q_b_proj",
            "attention.wkv_a_with_mqa": "self_attn.kv_a_proj_with_mqa",
            "attention.kv_a_norm": "self_attn.kv_a_layernorm",
            "attention.wkv_b": "self_attn.kv_b_proj",
            **{f"feed_forward.{own}": f"mlp.{name}" for own, name in _MLP.items()},
        }.items()
    },
}
_SHARED_EXPERTS = {
    "layers.{}.gate": "model.layers.{}.mlp.gate",
    **{f"layers.{{}}.shared_experts.{own}": f"model.layers.{{}}.mlp.shared_experts.{_MLP[own]}" for own in _MLP},
    **{f"layers.{{}}.experts.{{}}.{own}": f"model.layers.{{}}.mlp.experts.{{}}.{_MLP[own]}" for own in _MLP},
}
_MIXTRAL = {
    f"layers.{{}}.{front}{own}": f"model.layers.{{}}.block_sparse_moe.{own}"
    for front in ("feed_forward.", "block_sparse_moe.", "")
    for own in ("gate", *(f"experts.{{}}.{each}" for each in _MLP))
}
_SCALE, _OF_ACTIVATIONS = "qscale_weight", "qscale_act"


def renamed_tensors(tensors: dict[str, TensorEntry], model_type: str) -> dict[str, TensorEntry]:
    """The tensors as a Hugging Face folder names them, without those for rounding activations; a name that is none of
    the text model stays. `model_type`: what config.json would call the architecture.

    CheckpointError where two would have one name.
    """
    modules = _ALL | (_MIXTRAL if model_type == "mixtral" else _SHARED_EXPERTS)
    found: dict[str, TensorEntry] = {}
    for entry in tensors.values():
        module, _, part = entry.name.rpartition(".")
        if part == _OF_ACTIVATIONS:
            continue
        known = modules.get(_NUMBER.sub("{}", f"{module}.").removesuffix("."))
        name = entry.name
        if known is not None:
            part = "weight_scale" if part == _SCALE else part
            name = f"{known.format(*_NUMBER.findall(f'{module}.'))}.{part}"
        if name in found:
            raise damaged(entry.file, f"tensor {entry.name}", seen=f"another one that is {name}", wanted="it once")
        found[name] = replace(entry, name=name)
    return found


def with_ordered_heads(tensors: dict[str, TensorEntry], spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors with rows of q and k that the rope turns as neighbours marked as such, as those of GGUF files are. In
    latent attention they are neighbours in every form.
    """
    return tensors if isinstance(spec.own, LatentHeads) else interleaved_heads(tensors, spec)
