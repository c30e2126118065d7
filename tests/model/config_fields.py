"""The fields of a configuration, changed one by one: the logits are those of transformers, or the load is refused by a
sentence of ours.

A folder of a toy model keeps its weights while one value of its config.json is changed, taken away or added, among them
fields that the family's class does not have and the older spellings of those it has. What transformers makes of it is
the measure: it reads the field, leaves it alone, or fails. A field that is read there and not here, or here and not
there, shows as other logits.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from homenode.compute.ops import FloatArray
from homenode.errors import UserError
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.weights.load import load_model
from tests.model.conftest import make_backend
from tests.model.driver import Driver
from tests.model.transformers_models import load_whole, logprobs, make_model, prompts, quiet_and_on_one_thread

(PROMPT,) = prompts((40,))
BOUND = 1e-5  # of the spread; two orders of float32 summation
ABSENT = "(absent)"
# What the model is called, and what its classes are chosen by.
_NAMES = ("architectures", "model_type", "transformers_version", "id2label", "label2id", "_name_or_path")
_LAYERS = 8  # lists of so many values are cut to the model's number of layers
_COUNTS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")  # what configurations call that
ADDED: dict[str, list[Any]] = {
    "is_causal": [False], "use_bidirectional_attention": [True], "is_decoder": [True], "add_cross_attention": [True],
    "attn_logit_softcapping": [1.0], "final_logit_softcapping": [2.0], "query_pre_attn_scalar": [7],
    "attention_multiplier": [0.5],
    "embedding_multiplier": [3.0], "residual_multiplier": [0.5], "logit_scale": [0.5], "logits_scaling": [2.0],
    "clip_qkv": [0.1], "alibi": [True],
    "use_sliding_window": [True, False], "sliding_window": [5], "sliding_window_pattern": [2, 3],
    "_sliding_window_pattern": [2],
    "max_window_layers": [0, 1, 2], "layer_types": [["sliding_attention"] * _LAYERS, ["full_attention"] * _LAYERS],
    "attention_chunk_size": [8], "no_rope_layers": [[0] * _LAYERS], "attn_temperature_tuning": [True],
    "rope_theta": [777.0], "rope_local_base_freq": [55.0], "partial_rotary_factor": [0.5],
    "original_max_position_embeddings": [16, 64],
    "rope_scaling": [{"rope_type": "linear", "factor": 2.0},
        {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, {}],
    "rope_parameters": [{"rope_type": "default", "rope_theta": 500.0},
        {"rope_type": "proportional", "rope_theta": 500.0, "factor": 2.0}],
    "hidden_act": ["gelu", "swish", "silu", "relu"], "hidden_activation": ["gelu", "silu"], "attention_bias": [True],
    "mlp_bias": [True], "qkv_bias": [False],
    "norm_eps": [0.3], "layer_norm_eps": [0.3], "head_dim": [8], "num_key_value_heads": [1, 4],
    "tie_word_embeddings": [True], "qk_norm": [True],
    "norm_topk_prob": [True, False], "num_local_experts": [2], "num_experts": [2], "decoder_sparse_step": [2],
    "mlp_only_layers": [[0]],
    "routed_scaling_factor": [3.0], "scoring_func": ["sigmoid"], "first_k_dense_replace": [1],
    "num_nextn_predict_layers": [1],
    "pretraining_tp": [2], "torch_dtype": ["float16"], "attention_dropout": [0.5], "router_jitter_noise": [0.5],
    "initializer_range": [0.5],
}  # fmt: skip
ADDED_TO_ROPE: dict[str, Any] = {
    "truncate": False, "mscale": 0.7, "mscale_all_dim": 0.3, "attention_factor": 1.7, "attn_factor": 3.0,
    "beta_fast": 8.0, "beta_slow": 2.0, "factor": 3.0,
    "low_freq_factor": 2.0, "high_freq_factor": 9.0, "original_max_position_embeddings": 32,
    "partial_rotary_factor": 0.5, "rope_type": "linear",
    "type": "linear", "finetuned": True, "extrapolation_factor": 0.5, "mrope_section": [2, 2, 4],
    "short_factor": [1.0] * 4, "long_factor": [1.5] * 4,
    "alpha": 2.0, "short_mscale": 1.3,
}  # fmt: skip
# Refused although transformers leaves them alone: other engines follow them, tensors would be left unread, or no model
# has such a value.
REFUSED_ANYWAY = frozenset(
    ("attention_bias", "mlp_bias", "use_bidirectional_attention", "partial_rotary_factor", "attn_logit_softcapping",
        "layer_types", "intermediate_size", "key_multiplier",
     "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon",
     "factor", "beta_fast", "beta_slow", "swiglu_limit", "use_expert_bias", "rotary_dim")
)  # fmt: skip
# Of which transformers is no measure: it divides weights of Mamba 2 that it has loaded, and has limits of steps in
# prompts that it does not have in answers.
NO_MEASURE = frozenset(("rescale_prenorm_residual", "time_step_min"))


Path_ = tuple[str, ...]
Config = dict[str, Any]


def other_values(value: Any) -> list[Any]:
    """Values of the same kind, and for null some of several kinds."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value * 2, value // 2]
    if isinstance(value, float):
        return [value * 1.5, value * 100, 0.0]
    if isinstance(value, str):
        return [value + "x"]
    if isinstance(value, list):
        return [value[::-1], value[:-1]] if value else [[0]]
    return [5, 2.5, True]


def changes_of(config: Config) -> Iterator[tuple[Path_, Any]]:
    """The path of a field in config.json, and its new value."""
    for path, value in fields(config):
        if not isinstance(value, dict):
            yield from ((path, other) for other in other_values(value))
        elif "rope" in path[0] and not any(isinstance(inner, dict) for inner in value.values()):
            yield from (((*path, key), added) for key, added in ADDED_TO_ROPE.items() if key not in value)
        yield path, ABSENT
    for key, values in ADDED.items():
        for value in values:
            layers = next((config[each] for each in _COUNTS if each in config), None) or len(
                config["layers_block_type"]
            )
            cut = value[:layers] if isinstance(value, list) and len(value) == _LAYERS else value
            if config.get(key, ABSENT) != cut:
                yield (key,), cut


def fields(config: Config, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    for key, value in config.items():
        if path or key not in _NAMES:
            yield (*path, key), value
            if isinstance(value, dict):
                yield from fields(value, (*path, key))


def changed(config: Config, path: Path_, value: Any) -> Config:
    new = copy.deepcopy(config)
    table = new
    for key in path[:-1]:
        table = table[key]
    table.pop(path[-1], None)
    if value != ABSENT:
        table[path[-1]] = value
    return new


def theirs(folder: Path) -> FloatArray | None:
    """Log-probabilities as transformers has them; None where it fails, or makes up tensors."""
    try:
        return logprobs(load_whole(folder, "float32"), PROMPT)
    except Exception:  # whatever a configuration that does not hold together runs into
        return None


def ours(folder: Path) -> FloatArray | UserError:
    backend = make_backend("native", rounding=False)
    try:
        model = load_model(open_checkpoint(folder), backend, max_model_len=len(PROMPT))
    except UserError as error:
        return error
    return Driver(model, backend, kv_dtype="f32").prefill(PROMPT)[1]


def differ(one: FloatArray, other: FloatArray, bound: float = BOUND) -> bool:
    """By more than the order of sums, and what a logarithm of all of them together is rounded to."""
    rounding = 2 * np.spacing(np.abs(other).max())
    return not np.abs(one - other).max() <= bound * (other.max() - other.min()) + rounding


def judged(
    key: str,
    wanted: FloatArray | None,
    found: FloatArray | UserError,
    before: FloatArray,
    refused: frozenset[str] = frozenset(),
    bound: float = BOUND,
) -> str | None:
    """What is wrong, None where nothing is."""
    if isinstance(found, UserError):
        if wanted is not None and not differ(wanted, before) and key not in REFUSED_ANYWAY | refused:
            return f"refused, though it changes nothing: {found.message[-120:]}"
        return None
    if wanted is None or not differ(found, wanted, bound):
        return None
    return (
        f"read as {'before' if not differ(found, before, bound) else 'something else'}, transformers "
        f"{'reads it' if differ(wanted, before) else 'leaves it alone'}"
    )


def check_fields(
    kind: str,
    changes: Mapping[str, Any],
    folder: Path,
    only: frozenset[str] | None = None,
    refused: frozenset[str] = frozenset(),
    bound: float = BOUND,
    unmeasured: frozenset[str] = frozenset(),
) -> None:
    """`check_changes` of the model `make_model(kind, changes)` and the logits of a prompt."""
    with quiet_and_on_one_thread():
        make_model(kind, changes, folder)
    check_changes(folder, theirs, ours, only, refused, bound, unmeasured)


def check_changes(
    folder: Path,
    theirs: Callable[[Path], FloatArray | None],
    ours: Callable[[Path], FloatArray | UserError],
    only: frozenset[str] | None = None,
    refused: frozenset[str] = frozenset(),
    bound: float = BOUND,
    unmeasured: frozenset[str] = frozenset(),
) -> None:
    """AssertionError that lists every change, of fields in `only` if given, of which the load makes something else than
    transformers does.

    `theirs`, `ours`: what transformers and homenode compute with a folder. `refused`: fields whose other values no
    model of the family has, or other engines follow, so that they may be refused. `bound`: how far the two may be
    apart, of the spread. `unmeasured`: fields of which transformers is no measure in this family, as `NO_MEASURE`.
    """
    with quiet_and_on_one_thread():
        wrong = _wrong(folder, theirs, ours, only, refused, bound, NO_MEASURE | unmeasured)
    assert not wrong, "\n" + "\n".join(wrong)


def _wrong(
    folder: Path,
    theirs: Callable[[Path], FloatArray | None],
    ours: Callable[[Path], FloatArray | UserError],
    only: frozenset[str] | None,
    refused: frozenset[str],
    bound: float,
    unmeasured: frozenset[str],
) -> list[str]:
    file = folder / "config.json"
    config = json.loads(file.read_text())
    before = theirs(folder)
    assert before is not None
    wrong = []
    for path, value in changes_of(config):
        if path[-1] in unmeasured or (only is not None and path[-1] not in only):
            continue
        new = changed(config, path, value)
        if new.get("max_position_embeddings", 10**6) < len(PROMPT):
            continue  # no context of that length is served
        file.write_text(json.dumps(new))
        if problem := judged(path[-1], theirs(folder), ours(folder), before, refused, bound):
            wrong.append(f"{'.'.join(path)} = {value!r}: {problem}")
    return wrong
