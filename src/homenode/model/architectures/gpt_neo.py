"""GPT-Neo: GPT-2's block whose scores are not scaled, each second layer with a window."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import gpt2
from homenode.model.architectures.architecture import Architecture, FolderFormat
from homenode.model.architectures.layer_norm_decoder import PARAMETERS, forward
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
_LAYER = "model.layers.{layer}."


def _read_folder(config: FolderConfig) -> ModelSpec:
    config = config.respelled(_SPELLED).without(*ROPE, *HEAD_FIELDS, "is_causal")
    fields = config.fields
    spec = config.uniform_decoder(DEFAULTS)
    window = fields.integer("window_size", WINDOW, maximum=limits.MOST_POSITION)
    local = tuple(kind == KINDS[1] for kind in _kinds(fields, spec.num_layers))
    return replace(
        spec,
        num_kv_heads=spec.num_heads,
        intermediate_size=fields.integer("intermediate_size", 4 * spec.hidden_size, maximum=limits.MOST_INTERMEDIATE),
        output_bias=True,
        mlp_bias=True,
        attention_scale=1.0,
        sliding_window=window if any(local) else None,
        sliding_layers=local if any(local) else (),
        dimensions={"positions": spec.max_position},
        own=replace(gpt2.STYLE, activation=config.plain_activation("activation_function", "gelu_new")),
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


ARCHITECTURE = Architecture(
    "gpt_neo",
    FolderFormat(
        "GPTNeoForCausalLM",
        _read_folder,
        fields=frozenset((*_SPELLED, "attention_layers", "attention_types", "window_size", "activation_function")),
        harmless=gpt2.HARMLESS | dict.fromkeys(("resid_dropout", "embed_dropout"), "of training only"),
        modules={
            "wte": "model.embed_tokens",
            "wpe": "model.positions",
            "ln_f": "model.norm",
            "h.{layer}.ln_1": _LAYER + "input_layernorm",
            "h.{layer}.ln_2": _LAYER + "post_attention_layernorm",
            **{f"h.{{layer}}.attn.attention.{part}_proj": f"{_LAYER}self_attn.{part}_proj" for part in "qkv"},
            "h.{layer}.attn.attention.out_proj": _LAYER + "self_attn.o_proj",
            "h.{layer}.mlp.c_fc": _LAYER + "mlp.up_proj",
            "h.{layer}.mlp.c_proj": _LAYER + "mlp.down_proj",
        },
    ),
    gpt2.ARCHITECTURE.gguf.without_files(),
    PARAMETERS,
    forward,
)
