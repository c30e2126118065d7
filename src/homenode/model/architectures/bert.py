"""BERT, DistilBERT, RoBERTa and XLM-RoBERTa: encoders with a table of positions, whose norms come after each sum.
RoBERTa's first token has the row behind that of the padding token; in GGUF files the rows before are cut off.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import encoder, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, renamed
from homenode.model.config.folder_config import HEAD_FIELDS, ROPE, Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.pooling import HeadLayer, PoolingSpec
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(max_position=512, heads=12, vocab=30522, norm_eps=1e-12, intermediate=3072, activation=None)
PARAMETERS = (
    *encoder.WITHOUT_POSITIONS,
    encoder.POSITIONS,
    *tables.GATE_UP_DOWN[1:],
    *tables.MLP_BIASES[1:],
    encoder.SECOND_TYPES,
    *encoder.POST_NORMS,
)
DISTILLED, DISTILLED_TYPE = "DistilBert", "distilbert"
_SPELLED = {  # in config.json of DistilBERT, which has no types of tokens
    "dim": "hidden_size",
    "n_heads": "num_attention_heads",
    "n_layers": "num_hidden_layers",
    "hidden_dim": "intermediate_size",
    "activation": "hidden_act",
}
FIELDS = frozenset((*encoder.EPS, *_SPELLED)).union(
    "hidden_act type_vocab_size is_decoder id2label pad_token_id position_embedding_type".split()
)
ROBERTAS = ("XLMRoberta", "Roberta", "Camembert")
ROBERTA_TYPES = ("xlm-roberta", "roberta", "camembert")
BERT_HEAD = (
    HeadLayer("pooler.dense.weight", "pooler.dense.bias", "tanh"),
    HeadLayer("classifier.weight", "classifier.bias"),
)
DISTILLED_HEAD = (
    HeadLayer("pre_classifier.weight", "pre_classifier.bias", "relu"),
    HeadLayer("classifier.weight", "classifier.bias"),
)
ROBERTA_HEAD = (
    HeadLayer("classifier.dense.weight", "classifier.dense.bias", "tanh"),
    HeadLayer("classifier.out_proj.weight", "classifier.out_proj.bias"),
)
_CLASSES = (
    "BertForPreTraining", "BertForMaskedLM", "BertForSequenceClassification",
    "DistilBertModel", "DistilBertForMaskedLM", "DistilBertForSequenceClassification",
    "XLMRobertaModel", "XLMRobertaForMaskedLM", "XLMRobertaForSequenceClassification",
    "RobertaModel", "RobertaForMaskedLM", "RobertaForSequenceClassification",
    "CamembertModel", "CamembertForMaskedLM", "CamembertForSequenceClassification",
)  # fmt: skip
_MODULES = encoder.MODULES | renamed(
    "encoder.layer.{layer}.",
    "attention.self.query=self_attn.q_proj attention.self.key=self_attn.k_proj attention.self.value=self_attn.v_proj "
    "attention.output.dense=self_attn.o_proj attention.output.LayerNorm=attended_norm intermediate.dense=mlp.up_proj "
    "output.dense=mlp.down_proj output.LayerNorm=mlp_norm",
)
_DISTILLED = (
    "attention.[qkv]_lin=self_attn.[qkv]_proj attention.out_lin=self_attn.o_proj sa_layer_norm=attended_norm "
    "ffn.lin1=mlp.up_proj ffn.lin2=mlp.down_proj output_layer_norm=mlp_norm"
)


def _read_folder(config: FolderConfig) -> ModelSpec:
    named = next(iter(config.fields.texts("architectures")), "")
    is_distilled = named.startswith(DISTILLED) or (not named and config.fields.text("model_type") == DISTILLED_TYPE)
    config = (config.respelled(_SPELLED) if is_distilled else config).without(*ROPE, *HEAD_FIELDS)
    fields = config.fields
    fields.refuse_others({"is_decoder": False, "position_embedding_type": "absolute"})
    spec = encoder.folder_figures(config, DEFAULTS)
    if is_distilled:
        spec = replace(spec, norm_eps=DEFAULTS.norm_eps)  # whatever layer_norm_eps says
    is_roberta = named.startswith(ROBERTAS) or (not named and fields.text("model_type") in ROBERTA_TYPES)
    # Of RoBERTa's table the rows up to that of the padding token are no positions.
    first = fields.integer("pad_token_id", 1, minimum=0) + 1 if is_roberta else 0
    if first >= spec.max_position:
        raise fields.wrong("max_position_embeddings", spec.max_position, f"a whole number above {first}")
    types = 0 if is_distilled else encoder.types_of_folder(fields, 2)
    labels = config.labels()
    head = DISTILLED_HEAD if is_distilled else ROBERTA_HEAD if is_roberta else BERT_HEAD
    figures = {"positions": spec.max_position, "types": types}
    if len(labels) == 1 and types > 1:
        figures[encoder.SECOND] = types  # it reads pairs
    style = encoder.EncoderStyle(config.plain_activation("hidden_act", "gelu"), first)
    return replace(
        encoder.biased(spec, style, **figures),
        max_position=spec.max_position - first,
        pooling=PoolingSpec("cls", len(labels), head, labels) if labels else spec.pooling,
    )


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file. No text is longer than the table of positions."""
    spec = encoder.gguf_figures(config)
    rows = encoder.positions_in(config.tensors, spec.max_position)
    spec = replace(spec, max_position=min(spec.max_position, rows))
    return encoder.biased(spec, encoder.EncoderStyle(), positions=rows, types=encoder.types_of_gguf(config))


ARCHITECTURE = Architecture(
    "bert",
    FolderFormat(
        "BertModel",
        _read_folder,
        fields=FIELDS,
        harmless=encoder.harmless_but(FIELDS)
        | dict.fromkeys(("qa_dropout", "seq_classif_dropout", "tie_weights_"), "of training only")
        | {"sinusoidal_pos_embds": "the table of positions is in the file"},
        model_types=(*ROBERTA_TYPES, DISTILLED_TYPE),
        older_classes=_CLASSES,
        modules=encoder.FLASH_MODULES
        | renamed("layer.{layer}.", _DISTILLED)  # names lack `transformer.` in front
        | renamed("distilbert.transformer.layer.{layer}.", _DISTILLED)
        | encoder.with_fronts(_MODULES, "bert", "distilbert", "roberta"),
        convert=encoder.split_tensors,
    ),
    encoder.gguf_format("bert", read_gguf, encoder.without_unread),
    PARAMETERS,
    encoder.forward_with("table"),
)
