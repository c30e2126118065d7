"""Which fields of config.json homenode knows: those that it reads, and those that change nothing here, with the reason.

What a field does is what the model's class in transformers makes of it; `tests/model/test_config_fields.py` changes each and compares. A field whose
value would change the result and that is not read is refused by name where the configuration is read (folder_spec.py, folder_rope.py). A field that
is in neither table is left alone, as that class leaves it alone, and told (`homenode serve --check-config`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_READ_IN_ALL = frozenset(
    "architectures model_type hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim vocab_size "
    "max_position_embeddings rms_norm_eps tie_word_embeddings rope_theta rope_scaling rope_parameters partial_rotary_factor "
    "original_max_position_embeddings bos_token_id eos_token_id quantization_config compression_config quantization is_causal layer_types".split()
)
_WINDOWS = frozenset(("sliding_window", "use_sliding_window", "max_window_layers"))
_EXPERTS = frozenset(("num_experts", "num_experts_per_tok", "norm_topk_prob", "moe_intermediate_size"))
_SOME_DENSE = frozenset(("decoder_sparse_step", "mlp_only_layers"))
_GEMMA = frozenset(
    "hidden_activation sliding_window sliding_window_pattern _sliding_window_pattern query_pre_attn_scalar attn_logit_softcapping "
    "final_logit_softcapping use_bidirectional_attention attention_bias".split()
)
READ: Mapping[str, frozenset[str]] = {
    architecture: _READ_IN_ALL | own
    for architecture, own in {
        "llama": frozenset(("hidden_act", "attention_bias", "mlp_bias")),
        "mistral": frozenset(("hidden_act", "sliding_window")),
        "mixtral": frozenset(
            ("hidden_act", "sliding_window", "num_local_experts", "num_experts", "num_experts_per_tok", "qkv_bias")
        ),
        "qwen2": _WINDOWS | {"hidden_act"},
        "qwen3": _WINDOWS | {"hidden_act", "attention_bias"},
        "qwen2_moe": _WINDOWS | _EXPERTS | _SOME_DENSE | {"hidden_act", "qkv_bias", "shared_expert_intermediate_size"},
        "qwen3_moe": _EXPERTS
        | _SOME_DENSE
        | {"hidden_act", "attention_bias", "qkv_bias", "num_local_experts", "sliding_window", "use_sliding_window"},
        "phi3": frozenset(("hidden_act", "sliding_window")),
        "gemma2": _GEMMA,
        "gemma3": _GEMMA | {"rope_local_base_freq"},
    }.items()
}
_REASONS = {
    "of training only": (
        "attention_dropout hidden_dropout dropout attn_pdrop embd_pdrop resid_pdrop classifier_dropout initializer_range gradient_checkpointing "
        "output_router_logits router_aux_loss_coef router_jitter_noise router_z_loss_coef"
    ),
    "how, not what, transformers computes": (
        "use_cache pretraining_tp cache_implementation chunk_size_feed_forward torchscript use_bfloat16 attn_implementation _attn_implementation "
        "_attn_implementation_autoset _flash_attn_2_enabled use_flash_attn experts_implementation"
    ),
    "the type of the tensors, which they tell themselves": "dtype torch_dtype",
    "what else transformers returns": "output_attentions output_hidden_states return_dict",
    "of models that classify": "id2label label2id num_labels problem_type finetuning_task",
    "of models with an encoder": (
        "is_encoder_decoder is_decoder add_cross_attention cross_attention_hidden_size tie_encoder_decoder decoder_start_token_id pruned_heads"
    ),
    "where the folder comes from": (
        "transformers_version _name_or_path name_or_path _commit_hash auto_map tokenizer_class unsloth_version unsloth_fixed model_name"
    ),
    "tokens that nothing here is padded or parted with": "pad_token_id sep_token_id unk_token_id mask_token_id prefix",
    "how to draw tokens, which generation_config.json says": (
        "max_length max_new_tokens min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p "
        "typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores "
        "return_dict_in_generate begin_suppress_tokens suppress_tokens forced_bos_token_id forced_eos_token_id remove_invalid_values "
        "exponential_decay_length_penalty task_specific_params tf_legacy_loss"
    ),
}
HARMLESS: Mapping[str, str] = {name: reason for reason, names in _REASONS.items() for name in names.split()}
_LEFT_ALONE = "the family's class does not read it"
HARMLESS_IN: Mapping[str, Mapping[str, str]] = {
    "gemma2": {"hidden_act": "the class reads hidden_activation"},
    "gemma3": {"hidden_act": "the class reads hidden_activation"},
    "llama": dict.fromkeys(("sliding_window", "use_sliding_window", "max_window_layers"), _LEFT_ALONE),
    "mistral": dict.fromkeys(("attention_bias", "use_sliding_window", "max_window_layers"), _LEFT_ALONE),
    "phi3": dict.fromkeys(("attention_bias", "use_sliding_window", "lm_head_bias"), _LEFT_ALONE),
    "qwen2": {"attention_bias": "its class always has these biases, as have its tensors"},
    "qwen3_moe": {"max_window_layers": _LEFT_ALONE, "shared_expert_intermediate_size": "it has no shared expert"},
}
_ROPE_TABLES = ("rope_parameters", "rope_scaling")
ROPE_READ = frozenset(
    "rope_type type rope_theta partial_rotary_factor factor original_max_position_embeddings low_freq_factor high_freq_factor attention_factor "
    "beta_fast beta_slow mscale mscale_all_dim truncate short_factor long_factor".split()
)
ROPE_HARMLESS: Mapping[str, str] = {
    "finetuned": "where the model comes from",
    "short_mscale": "transformers does not read it",
    "long_mscale": "transformers does not read it",
    "extrapolation_factor": "transformers does not read it",
    "attn_factor": "transformers does not read it",
}


def unknown_fields(config: Mapping[str, Any], architecture: str) -> tuple[str, ...]:
    """The fields of a text model's config.json, `architecture` being ours, that are in no table, those of a rope table with its name in front."""
    known = READ[architecture] | HARMLESS.keys() | HARMLESS_IN.get(architecture, {}).keys()
    return tuple(name for name in config if name not in known) + tuple(_unknown_in_ropes(config))


def _unknown_in_ropes(config: Mapping[str, Any]) -> Iterator[str]:
    known = ROPE_READ | ROPE_HARMLESS.keys()
    for name in _ROPE_TABLES:
        table = config.get(name)
        for key, value in table.items() if isinstance(table, dict) else ():
            if isinstance(value, dict):  # of one kind of layer
                yield from (f"{name}.{key}.{inner}" for inner in value if inner not in known)
            elif key not in known:
                yield f"{name}.{key}"
