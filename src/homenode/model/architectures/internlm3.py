"""InternLM 3: Llama's block under another class. GGUF files of it are those of Llama."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import llama
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.spec import ModelSpec

NAME = "internlm3"
DEFAULTS = Defaults(
    max_position=32768,
    heads=32,
    kv_heads=2,
    head_dim=128,
    vocab=128512,
    bos_id=1,
    eos_id=2,
    norm_eps=1e-5,
    intermediate=10240,
)
FIELDS = {"qkv_bias": "attention_bias", "bias": "mlp_bias"}


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    return llama.read_folder_as(config.respelled(FIELDS), NAME, DEFAULTS)


ARCHITECTURE = replace(
    llama.ARCHITECTURE,
    name=NAME,
    folder=llama.ARCHITECTURE.folder.of_class(
        "InternLM3ForCausalLM",
        read=read_folder,
        fields=llama.ARCHITECTURE.folder.fields | FIELDS.keys(),
    ),
    gguf=llama.ARCHITECTURE.gguf.without_files(NAME),
)
