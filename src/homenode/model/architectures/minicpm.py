"""MiniCPM 1, 2 and 4: Granite's block, with multipliers that follow from the model's depth, and from its width as a
multiple of that of a smaller one.
"""

from __future__ import annotations

import math
from dataclasses import replace

from homenode.errors import UnsupportedError
from homenode.model.architectures import common, granite, llama
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.granite import Multipliers
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

NAME = "minicpm"
DEFAULTS = Defaults(max_position=2048, bos_id=1, eos_id=2)
EMBEDDING, DEPTH, WIDTH = 12.0, 1.4, 256.0  # of the models that people run, which early GGUF files do not say
FIELDS = frozenset(("hidden_act", "scale_emb", "scale_depth", "dim_model_base", "attention_bias"))


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    config.refuse_activation("hidden_act", "silu")
    config.refuse_other_layers(window=None)
    if config.fields.has("sparse_config"):
        raise UnsupportedError(
            f"{config.path}: sparse_config (attention to chosen blocks of the context) is not supported; without it "
            "the model attends to all of it"
        )
    bias = config.fields.boolean("attention_bias", False)
    spec = replace(config.decoder(NAME, DEFAULTS), attention_bias=bias, output_bias=bias)
    embedding = config.fields.number("scale_emb", 1.0)
    return replace(spec, embedding_scale=embedding, own=multipliers(config, spec, depth=1.0, width=1.0))


def multipliers(config: FolderConfig, spec: ModelSpec, *, depth: float, width: float) -> Multipliers:
    """What config.json says of them. `depth`, `width`: where it does not; null there asks for no multiplier."""
    fields, root = config.fields, math.sqrt(spec.num_layers)
    depth = root if fields.is_null("scale_depth") else fields.number("scale_depth", depth)
    width = spec.hidden_size if fields.is_null("dim_model_base") else fields.number("dim_model_base", width)
    return Multipliers(depth / root, spec.hidden_size / width)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    fields, spec = config.fields, config.refuse_window(config.decoder(NAME, whole_heads=True))
    residual, logits = DEPTH / math.sqrt(spec.num_layers), spec.hidden_size / WIDTH
    return replace(
        spec,
        embedding_scale=fields.number("embedding_scale", EMBEDDING),
        own=Multipliers(fields.number("residual_scale", residual), fields.number("logit_scale", logits, most=1e6)),
    )


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat("MiniCPMForCausalLM", read_folder, fields=FIELDS | {"sparse_config"}),
    GgufFormat(
        "minicpm",
        read_gguf,
        keys=frozenset(("embedding_scale", "residual_scale", "logit_scale")),
        convert=common.interleaved_heads,
    ),
    llama.PARAMETERS,
    granite.forward,
)
