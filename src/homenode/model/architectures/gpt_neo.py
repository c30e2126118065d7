"""GPT-Neo: GPT-2's block whose scores are not scaled, each second layer with a window."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import gpt2
from homenode.model.architectures.architecture import as_stored, renamed
from homenode.model.architectures.layer_norm_decoder import folder_figures
from homenode.model.config.folder_config import HEAD_FIELDS, ROPE, Defaults, FolderConfig
from homenode.model.formats import limits
from homenode.model.formats.fields import Fields
from homenode.model.spec import ModelSpec
from homenode.units import format_count

DEFAULTS = Defaults(
    max_position=2048, heads=16, vocab=50257, bos_id=50256, eos_id=50256, norm_eps=1e-5, intermediate=8192,
    activation=None,
)  # fmt: skip
WINDOW, KINDS = 256, ("global", "local")
_SPELLED = {"num_heads": "num_attention_heads", "num_layers": "num_hidden_layers", "layer_norm_epsilon": "rms_norm_eps"}


def _read_folder(config: FolderConfig) -> ModelSpec:
    config = config.respelled(_SPELLED).without(*ROPE, *HEAD_FIELDS, "is_causal")
    spec = folder_figures(config, DEFAULTS, gpt2.STYLE, gpt2.ACTIVATION, inner="intermediate_size")
    window = config.fields.integer("window_size", WINDOW, maximum=limits.MOST_POSITION)
    local = tuple(kind == KINDS[1] for kind in _kinds(config.fields, spec.num_layers))
    return replace(
        spec,
        output_bias=True,
        mlp_bias=True,
        attention_scale=1.0,
        sliding_window=window if any(local) else None,
        sliding_layers=local if any(local) else (),
    )


def _kinds(fields: Fields, layers: int) -> tuple[object, ...]:
    """The kind of each layer: by itself in `attention_layers`, which counts where a file has both, or in runs of kinds,
    each with how often it comes, in `attention_types`. CheckpointError for others.
    """
    if named := fields.texts("attention_layers"):
        if len(named) != layers or not set(named) <= set(KINDS):
            raise fields.wrong("attention_layers", named, f"{layers} values, each {' or '.join(KINDS)}")
        return named
    runs = fields.value("attention_types")
    runs = [[list(KINDS), (layers + 1) // 2]] if runs is None and layers % 2 == 0 else runs
    kinds: list[object] = []
    for run in runs if isinstance(runs, list) else ():
        if isinstance(run, list) and len(run) == 2 and isinstance(run[0], list) and type(run[1]) is int:
            kinds += run[0] * min(max(run[1], 0), layers)
    if len(kinds) != layers or any(kind not in KINDS for kind in kinds):
        wanted = f"runs of {' and '.join(KINDS)} that are {format_count(layers, 'layer')} together"
        raise fields.wrong("attention_types", runs, wanted)
    return tuple(kinds)


ARCHITECTURE = gpt2.ARCHITECTURE.of_class(
    "gpt_neo",
    "GPTNeoForCausalLM",
    read=_read_folder,
    fields=frozenset((*_SPELLED, "attention_layers", "attention_types", "window_size", "activation_function")),
    harmless=gpt2.HARMLESS | dict.fromkeys(("resid_dropout", "embed_dropout"), "of training only"),
    modules=renamed(
        "h.{layer}.",
        "ln_1=input_layernorm ln_2=post_attention_layernorm attn.attention.[qkv]_proj=self_attn.[qkv]_proj "
        "attn.attention.out_proj=self_attn.o_proj mlp.c_fc=mlp.up_proj mlp.c_proj=mlp.down_proj",
        "wte=model.embed_tokens wpe=model.positions ln_f=model.norm",
    ),
    convert=as_stored,
)
