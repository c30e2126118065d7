"""MiniCPM 1, 2 and 4: Granite's block, with multipliers that follow from the model's depth, and from its width as a
multiple of that of a smaller one.
"""

from __future__ import annotations

import math
from dataclasses import replace

from homenode.errors import UnsupportedError
from homenode.model.architectures import llama
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(max_position=2048, bos_id=1, eos_id=2, attention_bias=False)
EMBEDDING, DEPTH, WIDTH = 12.0, 1.4, 256.0  # of the models that people run, which early GGUF files do not say
FIELDS = frozenset(("scale_emb", "scale_depth", "dim_model_base"))


def _read_folder(config: FolderConfig) -> ModelSpec:
    if config.fields.has("sparse_config"):
        raise UnsupportedError(
            f"{config.path}: sparse_config (attention to chosen blocks of the context) is not supported; without it "
            "the model attends to all of it"
        )
    spec = config.uniform_decoder(DEFAULTS)
    embedding = config.fields.number("scale_emb", 1.0)
    return with_multipliers(config, replace(spec, embedding_scale=embedding), depth=1.0, width=1.0)


def with_multipliers(config: FolderConfig, spec: ModelSpec, *, depth: float, width: float) -> ModelSpec:
    """`spec` with what config.json says of them. `depth`, `width`: where it does not; null there asks for no
    multiplier.
    """
    fields, root = config.fields, math.sqrt(spec.num_layers)
    depth = root if fields.is_null("scale_depth") else fields.number("scale_depth", depth)
    width = spec.hidden_size if fields.is_null("dim_model_base") else fields.number("dim_model_base", width)
    return replace(spec, residual_scale=depth / root, logits_scale=1.0 / (spec.hidden_size / width))


def _read_gguf(config: GgufConfig) -> ModelSpec:
    fields, spec = config.fields, llama.read_gguf(config)
    residual, logits = DEPTH / math.sqrt(spec.num_layers), spec.hidden_size / WIDTH
    return replace(
        spec,
        embedding_scale=fields.number("embedding_scale", EMBEDDING),
        residual_scale=fields.number("residual_scale", residual),
        logits_scale=1.0 / fields.number("logit_scale", logits, most=1e6),
    )


ARCHITECTURE = llama.ARCHITECTURE.of_class(
    "minicpm",
    "MiniCPMForCausalLM",
    read=_read_folder,
    fields=DEFAULTS.fields | FIELDS | {"sparse_config"},
    gguf=llama.gguf_format("minicpm", _read_gguf, keys=frozenset(("embedding_scale", "residual_scale", "logit_scale"))),
)
