"""The fields of config.json that homenode knows in every architecture: those that it reads, and those that change
nothing here, with the reason.

What a field does is what the model's class in transformers makes of it; `tests/model/test_config_fields.py` changes
each and compares. A field whose value would change the result and that is not read is refused by name where the
configuration is read (folder_config.py, folder_rope.py). A field that is in neither table is left alone, as that class
leaves it alone, and told (`homenode serve --check-config`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

# What is read of every architecture; `FolderFormat.fields` has what each reads besides.
READ = frozenset(
    "architectures model_type hidden_size intermediate_size num_hidden_layers num_attention_heads "
    "num_key_value_heads head_dim vocab_size max_position_embeddings rms_norm_eps tie_word_embeddings rope_theta "
    "rope_scaling rope_parameters partial_rotary_factor original_max_position_embeddings bos_token_id eos_token_id "
    "quantization_config compression_config quantization is_causal layer_types".split()
)
_REASONS = {
    "of training only": (
        "attention_dropout hidden_dropout dropout attn_pdrop embd_pdrop resid_pdrop classifier_dropout "
        "initializer_range gradient_checkpointing output_router_logits router_aux_loss_coef router_jitter_noise "
        "router_z_loss_coef"
    ),
    "how, not what, transformers computes": (
        "use_cache pretraining_tp cache_implementation chunk_size_feed_forward torchscript use_bfloat16 "
        "attn_implementation _attn_implementation _attn_implementation_autoset _flash_attn_2_enabled use_flash_attn "
        "experts_implementation"
    ),
    "the type of the tensors, which they tell themselves": "dtype torch_dtype",
    "what else transformers returns": "output_attentions output_hidden_states return_dict",
    "its parts tell it": "qk_head_dim",
    "of blocks that predict further tokens, which are left unread": (
        "num_nextn_predict_layers num_mtp_layers mtp_num_hidden_layers mtp_num_layers mtp_use_dedicated_embeddings"
    ),
    "of models that classify": "id2label label2id num_labels problem_type finetuning_task",
    "of models with an encoder": (
        "is_encoder_decoder is_decoder add_cross_attention cross_attention_hidden_size tie_encoder_decoder "
        "decoder_start_token_id pruned_heads"
    ),
    "where the folder comes from": (
        "transformers_version _name_or_path name_or_path _commit_hash auto_map tokenizer_class unsloth_version "
        "unsloth_fixed model_name"
    ),
    "tokens that nothing here is padded or parted with": "pad_token_id sep_token_id unk_token_id mask_token_id prefix",
    "how to draw tokens, which generation_config.json says": (
        "max_length max_new_tokens min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty "
        "temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size "
        "encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores return_dict_in_generate "
        "begin_suppress_tokens suppress_tokens forced_bos_token_id forced_eos_token_id remove_invalid_values "
        "exponential_decay_length_penalty task_specific_params tf_legacy_loss"
    ),
}
HARMLESS: Mapping[str, str] = {name: reason for reason, names in _REASONS.items() for name in names.split()}
NOT_READ = "the architecture's class does not read it"
_ROPE_TABLES = ("rope_parameters", "rope_scaling")
ROPE_READ = frozenset(
    "rope_type type rope_theta partial_rotary_factor factor original_max_position_embeddings low_freq_factor "
    "high_freq_factor attention_factor beta_fast beta_slow mscale mscale_all_dim truncate short_factor "
    "long_factor".split()
)
ROPE_HARMLESS: Mapping[str, str] = {
    "finetuned": "where the model comes from",
    **dict.fromkeys(
        ("mrope_section", "mrope_interleaved", "xdrope_section"),
        "axes of pictures: of text a token has the same position on all",
    ),
    "short_mscale": "transformers does not read it",
    "long_mscale": "transformers does not read it",
    "extrapolation_factor": "transformers does not read it",
    "attn_factor": "transformers does not read it",
}


def unknown_fields(config: Mapping[str, Any], own: Collection[str]) -> tuple[str, ...]:
    """The fields of a text model's config.json that are in no table, those of a rope table with its name in front.
    `own`: those that its architecture names likewise, as read or as harmless.
    """
    known = READ | HARMLESS.keys() | set(own)
    return tuple(name for name in (*config, *_unknown_in_ropes(config)) if name not in known)


def _unknown_in_ropes(config: Mapping[str, Any]) -> Iterator[str]:
    known = ROPE_READ | ROPE_HARMLESS.keys()
    for name in _ROPE_TABLES:
        table = config.get(name)
        for key, value in table.items() if isinstance(table, dict) else ():
            if isinstance(value, dict):  # of one kind of layer
                yield from (f"{name}.{key}.{inner}" for inner in value if inner not in known)
            elif key not in known:
                yield f"{name}.{key}"
