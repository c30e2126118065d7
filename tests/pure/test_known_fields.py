"""The tables of what homenode knows of configurations hold what the code asks for, and what real files have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from homenode.errors import CheckpointError, UnsupportedError
from homenode.model.architectures.registry import ARCHITECTURES
from homenode.model.checkpoint.folder_spec import spec_from_config
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.checkpoint.unknown_names import unknown_names
from homenode.model.config.folder_config import FolderConfig
from homenode.model.config.known_fields import HARMLESS, READ, ROPE_HARMLESS, ROPE_READ, unknown_fields
from homenode.model.formats.fields import Fields
from homenode.model.spec import ModelSpec
from tests.checkpoints import make_folder, toy_config

WINDOWS = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 64,
}
# Configurations of one family that between them take every way through the code.
WAYS: list[dict[str, Any]] = [
    {},
    WINDOWS,
    WINDOWS | {"layer_types": ["sliding_attention"] * 2},
    {"rope_scaling": LONGROPE},
    {"rope_scaling": {"type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5}},
    {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64}},
    {"attention_bias": True, "mlp_bias": True},
    {"num_local_experts": None, "num_experts": 4},
    dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), True)
    | {"moe_every_n_layers": 2, "activation_function": "gelu"},
    {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2},
    {"rope_parameters": {"full_attention": {"rope_theta": 1e5}, "sliding_attention": {"rope_type": "default"}}},
]


# Of single architectures: what their class must have, and a class that reads more.
NEEDED = {"embedding_gemma": {"use_bidirectional_attention": True}, "apertus": {"hidden_act": "xielu"}}
NEEDED |= {"nanochat": {"hidden_act": "relu2"}, "gte": {"hidden_act": "gelu"}}
NEEDED["kimi_linear"] = {"layer_types": ["linear_attention", "full_attention"], "q_lora_rank": None}
NEEDED |= {key: {"rotary_dim": 8} for key in ("codegen", "gptj")} | {"mamba2": {"num_heads": 8}}
NEEDED["deepseek_v4"] = {
    "num_key_value_heads": 1, "qk_rope_head_dim": 8, "compress_ratios": [4, 128], "index_head_dim": 16,
}  # fmt: skip
SCORING = {
    "bert": "XLMRobertaForSequenceClassification",
    "gte": "GteForSequenceClassification",
    "modernbert": "ModernBertForSequenceClassification",
    "mpnet": "MPNetForSequenceClassification",
    "qwen3": "Qwen3ForSequenceClassification",
}
# Read with windows, which these have none of.
UNASKED = {name: {"layer_types"} for name in ("bert", "gte", "jina_bert", "jina_embeddings_v3", "mpnet", "nomic_bert")}
UNASKED["bert"] |= {"activation", "dim", "hidden_dim", "n_heads", "n_layers"}  # DistilBERT's
UNASKED["eurobert"] = {"id2label"}  # its scores are refused before
UNASKED["cohere2_moe"] = {"layer_norm_eps"}  # the toy has RMS norms
UNASKED["qwen3"] = {"classifier_from_token"}  # asked for with the tokenizer's words
# Of which the class has no rope, or one whose figures no file tells; of granitemoehybrid the toy.
WITHOUT_ROPE = (
    "bert", "bloom", "codegen", "gpt2", "gpt_bigcode", "gpt_neo", "gptj", "granitemoehybrid", "jina_bert",
    "kimi_linear", "mamba2", "mpnet", "mpt", "nemotron_h", "opt",
)  # fmt: skip
UNASKED |= {name: {"is_causal"} for name in ("gpt_neo", "mamba2")}
for _name in WITHOUT_ROPE:
    UNASKED[_name] = UNASKED.get(_name, set()) | {"partial_rotary_factor", "rope_parameters", "rope_scaling"}


class Asked(dict[str, Any]):
    """A table that remembers what it was asked for."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__({key: Asked(value) if isinstance(value, dict) else value for key, value in values.items()})
        self.names: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.names.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.names.add(str(key))
        return super().__contains__(key)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_table_of_fields_that_are_read_is_what_the_code_asks_for(architecture: str) -> None:
    asked: set[str] = set()
    scoring = [{"architectures": [SCORING[architecture]]}] if architecture in SCORING else []
    for way in [*WAYS, *scoring]:
        config = Asked(toy_config(architecture) | NEEDED.get(architecture, {}) | way)
        try:
            fields = Fields(Path("config.json"), config)
            spec_from_config(FolderConfig(fields, Fields(Path("g"), {}), has_output=True, storage="F32"))
        except (UnsupportedError, CheckpointError):  # the toy's figures do not fit every class's own
            pass
        asked |= config.names
    files = {"quantization_config", "compression_config", "quantization"}  # read before the figures are
    other_classes = {"attn_logit_softcapping", "use_bidirectional_attention"}
    # Of a field within a table the table is asked for; `Fields.table` copies what is in it.
    read = {name.partition(".")[0] for name in READ | ARCHITECTURES[architecture].folder.fields}
    assert asked - read - {"attention heads"} == set()
    unasked = {"qkv_bias", "mlp_bias"} | UNASKED.get(architecture, set())
    assert read - asked - files - other_classes - set(toy_config(architecture)) <= unasked


@pytest.mark.parametrize("architecture", WITHOUT_ROPE)
def test_figures_of_a_rope_that_the_class_lacks_are_left_alone(architecture: str) -> None:
    def spec_of(**changes: Any) -> ModelSpec:
        config = toy_config(architecture) | NEEDED.get(architecture, {}) | changes
        fields = Fields(Path("config.json"), config)
        return spec_from_config(FolderConfig(fields, Fields(Path("g"), {}), has_output=True, storage="F32"))

    yarn = {"rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 64}
    others = {"rope_theta": 777.0, "rope_scaling": yarn, "partial_rotary_factor": 0.5}
    assert spec_of(**others) == spec_of()
    if architecture not in ("granitemoehybrid", "mamba2", "nemotron_h"):  # which have heads of their own
        assert spec_of(head_dim=4, num_key_value_heads=1) == spec_of()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_field_is_in_two_tables(architecture: str) -> None:
    own = ARCHITECTURES[architecture].folder
    assert not READ & own.fields and not HARMLESS.keys() & own.harmless.keys()
    assert not READ & (HARMLESS.keys() | own.harmless.keys()) and not ROPE_READ & ROPE_HARMLESS.keys()
    assert not own.fields & own.harmless.keys()  # it may read what is harmless in others
    assert all(reason for table in (HARMLESS, own.harmless, ROPE_HARMLESS) for reason in table.values())


# The fields of configurations as the makers of some models published them.
_COMMON = (
    "architectures attention_dropout bos_token_id eos_token_id hidden_act hidden_size initializer_range "
    "intermediate_size max_position_embeddings "
    "model_type num_attention_heads num_hidden_layers num_key_value_heads rms_norm_eps rope_theta "
    "tie_word_embeddings torch_dtype "
    "transformers_version use_cache vocab_size"
)
PUBLISHED = {
    "llama": (
        "attention_bias mlp_bias pretraining_tp rope_scaling head_dim pad_token_id _name_or_path "
        "quantization_config"
    ),
    "mistral": "sliding_window head_dim",
    "mixtral": "sliding_window num_experts_per_tok num_local_experts output_router_logits router_aux_loss_coef",
    "qwen2": "max_window_layers sliding_window use_sliding_window rope_scaling layer_types",
    "qwen3": "attention_bias head_dim max_window_layers rope_scaling sliding_window use_sliding_window",
    "qwen2_moe": (
        "decoder_sparse_step max_window_layers moe_intermediate_size norm_topk_prob num_experts "
        "num_experts_per_tok output_router_logits "
        "router_aux_loss_coef shared_expert_intermediate_size sliding_window use_sliding_window"
    ),
    "qwen3_moe": (
        "attention_bias decoder_sparse_step head_dim max_window_layers mlp_only_layers moe_intermediate_size "
        "norm_topk_prob num_experts "
        "num_experts_per_tok output_router_logits rope_scaling router_aux_loss_coef sliding_window use_sliding_window"
    ),
    "phi3": (
        "attention_bias auto_map embd_pdrop original_max_position_embeddings pad_token_id partial_rotary_factor "
        "resid_pdrop rope_scaling sliding_window"
    ),
    "gemma2": (
        "attention_bias attn_logit_softcapping cache_implementation final_logit_softcapping head_dim "
        "hidden_activation pad_token_id query_pre_attn_scalar "
        "sliding_window"
    ),
    "granite": (
        "attention_bias attention_multiplier embedding_multiplier logits_scaling mlp_bias pad_token_id "
        "residual_multiplier rope_scaling"
    ),
    "olmo2": "attention_bias pad_token_id rope_scaling",
    "gemma3": (
        "attention_bias attn_logit_softcapping cache_implementation final_logit_softcapping head_dim "
        "hidden_activation pad_token_id query_pre_attn_scalar "
        "rope_local_base_freq rope_scaling sliding_window sliding_window_pattern"
    ),
}  # fmt: skip


@pytest.mark.parametrize("architecture", PUBLISHED)
def test_published_configurations_have_no_unknown_fields(architecture: str) -> None:
    config = dict.fromkeys(f"{_COMMON} {PUBLISHED[architecture]}".split())
    own = ARCHITECTURES[architecture].folder
    assert unknown_fields(config, own.fields | own.harmless.keys()) == ()


def test_unknown_fields_are_told(tmp_path: Path) -> None:
    folder = make_folder(
        tmp_path / "model",
        rope_scaling={"type": "linear", "factor": 2.0, "twist": 1},
        frobnicate=1,
        **{"esc\x1b[2J": 2},
    )
    assert unknown_names(open_checkpoint(folder)) == ("frobnicate", "esc?[2J", "rope_scaling.twist")


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "attention to what comes later": ("llama", {"is_causal": False}, "is_causal"),
    "attention to what comes later, of a Gemma": ("gemma2", {"use_bidirectional_attention": True},
        "use_bidirectional_attention"),
    "a part of a head": ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
    "a part of a head, in the table": ("qwen3",
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}}, "partial_rotary_factor"),
    "layers of two kinds": ("mistral", {"sliding_window": 7, "layer_types": ["full_attention", "sliding_attention"]},
        "layer_types"),
    "windows of a class without": ("llama", {"layer_types": ["sliding_attention"] * 2}, "layer_types"),
    "capped scores": ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    "two ropes told in two ways": ("gemma3",
        {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "rope_parameters": {"full_attention": {}}},
        "rope_scaling beside"),
    "one rope where there are two": ("gemma3", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        "for each kind of layer"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_fields_that_change_the_result_and_are_not_read_are_refused_by_name(case: str, tmp_path: Path) -> None:
    architecture, changes, message = REFUSED[case]
    with pytest.raises(UnsupportedError, match=message):
        open_checkpoint(make_folder(tmp_path / "model", architecture, **changes))
