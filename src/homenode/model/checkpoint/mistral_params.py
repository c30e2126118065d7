"""params.json, in which Mistral says of its models what others say in config.json, as a config.json would say it.

The figures are checked here, under the names that they have in the file; what an architecture makes of them is told by
its own module, as for any folder. Sources: published files, the mistral-inference project, and what vLLM and llama.cpp
make of the fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from homenode.errors import UnsupportedError
from homenode.model.formats import limits
from homenode.model.formats.bounded_files import printable, quoted
from homenode.model.formats.fields import Fields
from homenode.units import format_count

PARAMS = "params.json"
MISTRAL_WEIGHTS = "consolidated*.safetensors"
# Of models whose file names no longest context, as the first ones' do not.
_POSITIONS = 32768
# The base of the rope where the file names none: first that of models without a window, then of those with one.
_THETAS = (1e6, 1e4)
# Fields that this module asks for, and others that change nothing here; and those of the tables that it reads.
_KNOWN = frozenset(
    "dim n_layers head_dim hidden_dim n_heads n_kv_heads norm_eps vocab_size rope_theta sliding_window "
    "tied_embeddings max_position_embeddings max_seq_len moe yarn llama_4_scaling quantization quantization_config "
    "q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim vision_encoder multimodal model_type "
    "activation causal use_biases lora max_batch_size dtype".split()
)
_KNOWN_IN = {
    "yarn": frozenset("factor original_max_position_embeddings beta alpha apply_scale".split()),
    "llama_4_scaling": frozenset("beta original_max_position_embeddings".split()),
    "moe": frozenset(
        "num_experts num_experts_per_tok expert_hidden_dim num_shared_experts first_k_dense_replace routed_scale "
        "route_every_n num_expert_groups num_expert_groups_per_tok renorm_strategy use_load_balancing_bias "
        "expert_parallel expert_model_parallel".split()
    ),
}
_FP8 = "fp8_e4m3"


def has_mistral_form(folder: Path) -> bool:
    """Return whether a folder is described by params.json alone. Where it has a config.json, that counts."""
    return (folder / PARAMS).exists() and not (folder / "config.json").exists()


def config_of_params(fields: Fields) -> dict[str, object]:
    """Return what a config.json would say of the model of this params.json, under its names.

    CheckpointError for figures that cannot be, UnsupportedError for models homenode does not run.
    """
    _refuse_other_models(fields)
    text = _figures(fields) | _kind(fields)
    text |= {f"{PARAMS}: {name}": None for name in _unknown(fields)}
    whole = _quantisation(fields)
    if not _sees_pictures(fields):
        return text | whole
    return {"architectures": ["Mistral3ForConditionalGeneration"], "text_config": text, **whole}


def _unknown(fields: Fields) -> Iterator[str]:
    """The fields that nobody here knows, which are told like those of a config.json."""
    yield from (name for name in fields.names() if name not in _KNOWN)
    for table, known in _KNOWN_IN.items():
        inner = fields.optional_table(table)
        yield from (f"{table}.{name}" for name in (inner.names() if inner else ()) if name not in known)


def _refuse_other_models(fields: Fields) -> None:
    fields.refuse_others({"activation": "silu", "causal": True, "use_biases": False})
    if (kind := fields.text("model_type", "transformer")) != "transformer":
        raise UnsupportedError(
            f"{fields.path}: model_type {quoted(kind)} is not supported in {PARAMS}; homenode runs transformers there: "
            "give a folder with config.json"
        )
    if fields.has("lora"):
        raise UnsupportedError(
            f"{fields.path}: an adapter (lora), which changes another model, is not supported; homenode wants the two "
            "merged"
        )


def _sees_pictures(fields: Fields) -> bool:
    """Return whether the model sees pictures as well. UnsupportedError for one that hears or does something else."""
    seen = fields.table("multimodal") or Fields(fields.path, {})
    others = [name for name in seen.names() if seen.has(name) and name != "vision_encoder_args"]
    if others:
        raise UnsupportedError(
            f"{fields.path}: multimodal.{printable(others[0])} (a model that hears) is not supported in {PARAMS}; "
            "homenode runs the text of such models from folders with config.json"
        )
    return fields.has("vision_encoder") or seen.has("vision_encoder_args")


def _figures(fields: Fields) -> dict[str, object]:
    """Return those that every model has."""
    heads = fields.integer("n_heads", maximum=limits.MOST_HEADS)
    longest = fields.integer("max_seq_len", _POSITIONS, maximum=limits.MOST_POSITION)
    found: dict[str, object] = {
        "hidden_size": fields.integer("dim", maximum=limits.MOST_HIDDEN),
        "intermediate_size": fields.integer("hidden_dim", maximum=limits.MOST_INTERMEDIATE),
        "num_hidden_layers": fields.integer("n_layers", maximum=limits.MOST_LAYERS),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.integer("n_kv_heads", heads, maximum=limits.MOST_HEADS),
        "vocab_size": fields.integer("vocab_size", maximum=limits.MOST_VOCAB),
        "rms_norm_eps": fields.number("norm_eps", most=1.0),
        "max_position_embeddings": fields.integer("max_position_embeddings", longest, maximum=limits.MOST_POSITION),
    }
    if fields.has("tied_embeddings"):
        found["tie_word_embeddings"] = fields.boolean("tied_embeddings", False)
    return found


def _kind(fields: Fields) -> dict[str, object]:
    """The architecture, and its figures."""
    layers = fields.integer("n_layers", maximum=limits.MOST_LAYERS)
    window, rope = _window(fields, layers), _rope(fields)
    if fields.has("kv_lora_rank"):
        found = _latent_heads(fields) | _shared_experts(fields) | {"rope_parameters": rope, "model_type": "mistral4"}
        if window["sliding_window"] is not None:
            raise _unsupported(fields, "sliding_window", "beside latent attention")
        return found
    found = {"head_dim": fields.integer("head_dim", maximum=limits.MOST_HEAD_DIM)} | window
    found["rope_parameters"] = rope
    if (moe := fields.table("moe")) is not None:
        if "llama_4_scaling_beta" in rope:
            raise _unsupported(fields, "llama_4_scaling", "beside experts without latent attention")
        inner = fields.integer("hidden_dim", maximum=limits.MOST_INTERMEDIATE)
        return found | _experts(moe, inner) | {"model_type": "mixtral"}
    if rope["rope_type"] == "yarn":
        return found | {"model_type": "ministral3"}
    return found | {"model_type": "ministral" if "layer_types" in window else "mistral"}


def _window(fields: Fields, layers: int) -> dict[str, Any]:
    """The window of attention: of all layers a number, or a list that repeats, with null where a layer has none."""
    told = fields.value("sliding_window")
    listed = told if isinstance(told, list) else [told]
    sizes = [int(size) if isinstance(size, str) and size.isdecimal() and len(size) < 10 else size for size in listed]
    over = format_count(layers, "layer")
    wanted = f"a number up to {limits.MOST_POSITION}, null, or a list of these that repeats over {over}"
    if not all(size is None or (type(size) is int and 0 < size <= limits.MOST_POSITION) for size in sizes):
        raise fields.wrong("sliding_window", told, wanted)
    if not sizes or layers % len(sizes):
        raise fields.wrong("sliding_window", told, wanted)
    numbers = {size for size in sizes if size is not None}
    if len(numbers) > 1:
        raise _unsupported(fields, "sliding_window", "of several sizes")
    window = next(iter(numbers), None)
    if window is None or None not in sizes:
        return {"sliding_window": window}
    kinds = ["full_attention" if size is None else "sliding_attention" for size in sizes]
    return {"sliding_window": window, "layer_types": kinds * (layers // len(kinds))}


def _rope(fields: Fields) -> dict[str, Any]:
    """The rope, extended by YaRN where the file says so, and with it how queries grow with their position."""
    theta = fields.number("rope_theta", _THETAS[fields.has("sliding_window")], above=1.0, most=limits.MOST_THETA)
    table, growth = fields.table("yarn"), fields.table("llama_4_scaling")
    if table is None or not table.names():
        if growth is not None:
            raise _unsupported(fields, "llama_4_scaling", "without yarn")
        return {"rope_type": "default", "rope_theta": theta}
    original = "original_max_position_embeddings"
    rope: dict[str, Any] = {
        "rope_type": "yarn",
        "rope_theta": theta,
        "factor": table.number("factor", most=1e6),
        original: table.integer(original, maximum=limits.MOST_POSITION),
        "beta_fast": table.number("beta", 32.0),
        "beta_slow": table.number("alpha", 1.0),
    }
    if not table.boolean("apply_scale", True):
        rope["attention_factor"] = 1.0
    elif fields.has("kv_lora_rank"):  # its scores grow instead of its queries and keys
        rope |= {"mscale": 1.0, "mscale_all_dim": 1.0}
    if growth is not None:
        if growth.integer(original, maximum=limits.MOST_POSITION) != rope[original]:
            raise _unsupported(fields, f"llama_4_scaling.{original}", "other than that of yarn")
        rope["llama_4_scaling_beta"] = growth.number("beta", least=0.0)
    return rope


def _latent_heads(fields: Fields) -> dict[str, object]:
    def length(key: str) -> int:
        return fields.integer(key, maximum=limits.MOST_HEAD_DIM)

    return {
        "q_lora_rank": fields.optional_integer("q_lora_rank", maximum=limits.MOST_HIDDEN),
        **{key: length(key) for key in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")},
    }


def _shared_experts(fields: Fields) -> dict[str, object]:
    """The experts of a model with latent attention."""
    moe = fields.table("moe")
    if moe is None:
        raise _unsupported(fields, "kv_lora_rank", "without moe")
    _refuse_other_routing(moe)
    return {
        "n_routed_experts": moe.integer("num_experts", maximum=limits.MOST_EXPERTS),
        "num_experts_per_tok": moe.integer("num_experts_per_tok", maximum=limits.MOST_EXPERTS),
        "moe_intermediate_size": moe.integer("expert_hidden_dim", maximum=limits.MOST_INTERMEDIATE),
        "n_shared_experts": moe.integer("num_shared_experts", 0, minimum=0, maximum=limits.MOST_EXPERTS),
        "first_k_dense_replace": moe.integer("first_k_dense_replace", 0, minimum=0, maximum=limits.MOST_LAYERS),
        "routed_scaling_factor": moe.number("routed_scale", 1.0),
        "norm_topk_prob": True,
    }


def _experts(moe: Fields, inner: int) -> dict[str, object]:
    """The experts of Mixtral. `inner`: columns of each where the table does not say."""
    _refuse_other_routing(moe)
    moe.refuse_others({"num_shared_experts": 0, "first_k_dense_replace": 0, "routed_scale": 1.0})
    return {
        "intermediate_size": moe.integer("expert_hidden_dim", inner, maximum=limits.MOST_INTERMEDIATE),
        "num_local_experts": moe.integer("num_experts", maximum=limits.MOST_EXPERTS),
        "num_experts_per_tok": moe.integer("num_experts_per_tok", maximum=limits.MOST_EXPERTS),
    }


def _refuse_other_routing(moe: Fields) -> None:
    """UnsupportedError unless every layer has experts, whose weights for a token add up to 1."""
    moe.refuse_others(
        {
            "route_every_n": 1,
            "num_expert_groups": 1,
            "num_expert_groups_per_tok": 1,
            "renorm_strategy": "WEIGHTS",
            "use_load_balancing_bias": False,
        }
    )


def _quantisation(fields: Fields) -> dict[str, object]:
    """Return how weights are stored: as 8-bit floats, or as a table says that is like that of any folder."""
    if fields.table("quantization_config") is not None:
        return {"quantization_config": fields.value("quantization_config")}
    table = fields.table("quantization")
    if table is None or not table.names():
        return {}
    if table.has("quant_method"):
        told: Any = fields.value("quantization")
        return {"quantization_config": told | {"quant_method": table.text("quant_method").replace("_", "-")}}
    if (kind := table.text("qformat_weight")) != _FP8:
        raise UnsupportedError(
            f"{fields.path}: quantization.qformat_weight {quoted(kind)} is not supported; homenode reads {_FP8}"
        )
    return {"quantization_config": {"quant_method": "fp8"}}


def _unsupported(fields: Fields, what: str, where: str) -> UnsupportedError:
    return UnsupportedError(f"{fields.path}: {what} {where} is not supported; no model that homenode runs has that")
