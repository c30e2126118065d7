"""GTE (Alibaba-NLP): BERT's layer with a rope in place of a table of positions and a gated MLP, of which only down has
a bias. Published folders call the class New.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from homenode.errors import UnsupportedError
from homenode.model.architectures import encoder, jina_bert, nomic_bert, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, renamed
from homenode.model.architectures.bert import BERT_HEAD
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.pooling import PoolingSpec
from homenode.model.spec import ModelSpec, RopeSpec

DEFAULTS = Defaults(
    max_position=8192, heads=12, vocab=250048, norm_eps=1e-12, intermediate=3072, theta=160000.0, activation=None
)
PARAMETERS = (
    *encoder.WITHOUT_POSITIONS,
    *tables.GATE_UP_DOWN,
    tables.MLP_BIASES[2],
    *encoder.POST_NORMS,
)
_PLAIN: Mapping[str, object] = {  # what the class of the makers can have, and published models have not
    "position_embedding_type": "rope",
    "layer_norm_type": "layer_norm",
    "logn_attention_scale": False,
    "hidden_act": "gelu",
}
_IN_LAYER = (
    "attention.qkv_proj=self_attn.qkv_proj attention.o_proj=self_attn.o_proj attn_ln=attended_norm mlp_ln=mlp_norm "
    f"mlp.up_gate_proj mlp.gate_proj mlp.up_proj mlp.down_proj {encoder.OURS}"
)
_MODULES = encoder.MODULES | renamed("encoder.layer.{layer}.", _IN_LAYER) | renamed("layers.{layer}.", _IN_LAYER)


def _read_folder(config: FolderConfig) -> ModelSpec:
    fields = config.fields
    fields.refuse_others(_PLAIN)
    table = fields.table("rope_scaling")
    is_ntk = table is not None and table.text("type") == "ntk"
    spec = encoder.folder_figures(config.without("rope_scaling") if is_ntk else config, DEFAULTS)
    if is_ntk and table is not None:
        if table.has("mixed_b"):
            raise UnsupportedError(
                f"{config.path}: rope_scaling with mixed_b is not supported in {config.architecture}"
            )
        spec = replace(spec, rope=_ntk(spec, table.number("factor", most=1e6)))
    types = encoder.types_of_folder(fields, 1)
    labels = config.labels()
    spec = encoder.biased(spec, encoder.EncoderStyle(gate="gelu_erf"), types=types)
    return replace(spec, pooling=PoolingSpec("cls", len(labels), BERT_HEAD, labels)) if labels else spec


def _ntk(spec: ModelSpec, factor: float) -> RopeSpec:
    """The rope of the makers' class: theta grows by the factor, and frequencies shrink by that power of it which makes
    the lowest one turn so many times slower.
    """
    pairs = spec.head_dim // 2
    return replace(spec.rope, theta=spec.rope.theta * factor, factors=(factor ** (1 / pairs),) * pairs)


ARCHITECTURE = Architecture(
    "gte",
    FolderFormat(
        "GteModel",
        _read_folder,
        fields=frozenset((*encoder.EPS, *_PLAIN, "type_vocab_size", "id2label")),
        harmless=encoder.harmless_but([*_PLAIN, "type_vocab_size"])
        | dict.fromkeys(
            "pack_qkv unpad_inputs use_memory_efficient_attention logn_attention_clip1".split(),
            "how, not what, its makers' class computes",
        ),
        model_types=("new",),
        older_classes=(
            "GteForMaskedLM",
            "GteForSequenceClassification",
            "NewModel",
            "NewForMaskedLM",
            "NewForSequenceClassification",
        ),
        modules=encoder.with_fronts(_MODULES, "new", "gte"),
        convert=jina_bert.split_tensors,
    ),
    jina_bert.ARCHITECTURE.gguf.without_files(),
    PARAMETERS,
    nomic_bert.forward,
)
