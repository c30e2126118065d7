"""Toy models made by transformers with random weights: the independent implementation ours is compared with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from homenode.compute.ops import FloatArray

SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 160, "max_position_embeddings": 256, "tie_word_embeddings": False, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
QWEN_EXPERTS = {"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 48}
WINDOWS = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2}
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "short_factor": [1.0, 1.2, 1.5, 2.0],
    "long_factor": [9.0] * 4,
    "attention_factor": 1.2,
}  # fmt: skip
GEMMA = {
    "head_dim": 24,
    "query_pre_attn_scalar": 20,
    "sliding_window": 9,
    "tie_word_embeddings": True,
    "num_hidden_layers": 4,
}
TWO_ROPES = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
}
PICTURES: dict[str, Any] = {  # no picture is ever given
    "vision_config": {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "image_size": 28, "patch_size": 14},
    "mm_tokens_per_image": 1, "image_token_index": 2, "boi_token_index": 1, "eoi_token_index": 0,
}  # fmt: skip
# name -> (model type, changes to the configuration). Every prompt below is longer than the sliding windows.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied-biased": (
        "llama",
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "head_dim": 24},
    ),
    "llama-rope-llama3": ("llama", {"rope_theta": 500000.0, "rope_scaling": LLAMA3}),
    "llama-rope-linear": ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 3.0}}),
    "llama-rope-yarn": ("llama", {"rope_scaling": YARN}),
    "llama-rope-dynamic": ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}),
    "mistral": ("mistral", {"sliding_window": None, "head_dim": 8}),
    "mistral-window": ("mistral", {"sliding_window": 9}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "mixtral": ("mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "mixtral-window": ("mixtral", {"sliding_window": 11, "num_local_experts": 3, "num_experts_per_tok": 3}),
    "qwen2-moe": ("qwen2_moe", QWEN_EXPERTS | {"shared_expert_intermediate_size": 72, "norm_topk_prob": False}),
    "qwen2-moe-mixed": (
        "qwen2_moe",
        QWEN_EXPERTS
        | WINDOWS
        | {"shared_expert_intermediate_size": 40, "norm_topk_prob": True, "decoder_sparse_step": 2},
    ),
    "qwen3-moe": ("qwen3_moe", QWEN_EXPERTS | {"head_dim": 32, "norm_topk_prob": True}),
    "qwen3-moe-mixed": ("qwen3_moe", QWEN_EXPERTS | {"head_dim": 16, "norm_topk_prob": False, "mlp_only_layers": [1]}),
    "gemma2": (
        "gemma2",
        GEMMA | {"attn_logit_softcapping": 1.5, "final_logit_softcapping": 20.0},
    ),  # low enough to show
    "gemma3": ("gemma3", PICTURES | {"text_config": SIZES | GEMMA | TWO_ROPES}),
    "phi3": (
        "phi3",
        {
            "sliding_window": 11,
            "head_dim": 16,
            "rope_parameters": LONGROPE,
            "original_max_position_embeddings": 256,
            "pad_token_id": 0,
        },
    ),
    "odd-sizes": (
        "llama",
        {"intermediate_size": 75, "vocab_size": 163, "num_key_value_heads": 1, "head_dim": 10, "rms_norm_eps": 1e-3},
    ),
}
# Further ones whose fields are changed one by one (test_config_fields.py).
OF_FIELDS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3-windows": ("qwen3", WINDOWS | {"head_dim": 16}),
    "qwen3-moe-window": ("qwen3_moe", QWEN_EXPERTS | {"head_dim": 16, "use_sliding_window": True, "sliding_window": 7}),
    "gemma3-text": ("gemma3_text", GEMMA | TWO_ROPES),
    "phi3-part-of-head": (
        "phi3",
        {"sliding_window": 11, "head_dim": 16, "partial_rotary_factor": 0.5, "pad_token_id": 0},
    ),
}


_UNLISTED = {"mistral4": "Mistral4ForCausalLM"}


@contextmanager
def quiet_and_on_one_thread() -> Iterator[None]:
    """At these sizes more threads only wait for each other, and transformers has something to say of every change."""
    import torch
    from transformers.utils import logging

    threads, verbosity = torch.get_num_threads(), logging.get_verbosity()
    torch.set_num_threads(1)
    logging.set_verbosity(logging.CRITICAL)
    yield
    logging.set_verbosity(verbosity)
    torch.set_num_threads(threads)


def make(name: str, folder: Path, dtype: str = "float32") -> Any:
    """The toy model `name` of `CASES` or `OF_FIELDS`, saved to `folder` in `dtype`, returned computing in float32 on
    the saved values.
    """
    kind, changes = (CASES | OF_FIELDS)[name]
    return make_model(kind, changes, folder, dtype, seed=sum(map(ord, name)))


def make_model(kind: str, changes: Mapping[str, Any], folder: Path, dtype: str = "float32", *, seed: int = 0) -> Any:
    """The same of a `model_type` of transformers with these changes to the configuration, its weights random but fixed
    by `seed`.

    Norms, biases and embeddings are random too (transformers starts them as ones, zeros and almost nothing), so that a
    forgotten one shows.
    """
    import torch
    from transformers import AutoConfig

    config = AutoConfig.for_model(kind, **(changes if "text_config" in changes else {**SIZES, **changes}))
    torch.manual_seed(seed)
    model: Any = _made_of(_class_of(config.to_dict()), config).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            if "norm" in key:
                parameter.copy_(1 + 0.2 * noise)
            elif parameter.dim() == 1:
                parameter.copy_(0.3 * noise)
            else:
                parameter.copy_(noise * (1.0 if "embed" in key else 1.5 / parameter.shape[-1] ** 0.5))
        for key, buffer in model.named_buffers():
            if key.endswith("layer_scalar"):
                buffer.fill_(0.7 + 0.6 * float(torch.rand(())))
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    return load(folder, "float32")


def _made_of(kind: Any, config: Any) -> Any:
    make = getattr(kind, "from_config", None) or kind._from_config
    return make(config, attn_implementation="eager")


def _class_of(config: Mapping[str, Any]) -> Any:
    """What makes models of a configuration: its own class where transformers has that in no list of such classes."""
    import transformers

    listed = "AutoModelForMultimodalLM" if "text_config" in config else "AutoModelForCausalLM"
    return getattr(transformers, _UNLISTED.get(config["model_type"], listed))


def load(folder: Path, dtype: str) -> Any:
    """A saved model computing in `dtype`. Loaded afresh, as `Module.to` would also round the rotary frequencies, which
    loading does not.
    """
    kind = _class_of(json.loads((folder / "config.json").read_text()))
    model: Any = kind.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    return model.eval()


def load_whole(folder: Path, dtype: str) -> Any:
    """The same; KeyError where the folder lacks tensors, which transformers then draws by lot."""
    kind = _class_of(json.loads((folder / "config.json").read_text()))
    model, told = kind.from_pretrained(folder, dtype=dtype, attn_implementation="eager", output_loading_info=True)
    if told["missing_keys"]:
        raise KeyError(*told["missing_keys"])
    return model.eval()


def logprobs(model: Any, tokens: list[int]) -> FloatArray:
    """Natural log-probabilities after every token, float32 [tokens, vocabulary]."""
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0]
        return np.asarray(logits.float().log_softmax(-1).numpy(), np.float32)


def check_greedy(rows: FloatArray, tokens: list[int], least_lead: float = 0.0) -> None:
    """Each of `tokens` is the most likely one of its row, by `least_lead` at least.

    Rows behind a prompt and behind each of its tokens but the last, of one pass: what follows a token changes nothing
    at it, so that these are the tokens that would be drawn one by one.
    """
    assert rows.argmax(axis=1).tolist() == tokens
    highest = np.sort(rows, axis=1)[:, -2:]
    lead = float((highest[:, 1] - highest[:, 0]).min())
    assert lead >= least_lead, f"the toy model hesitates between two tokens ({lead:.1e} apart): choose another seed"


def prompts(lengths: tuple[int, ...] = (40, 13, 75)) -> list[list[int]]:
    """Random token ids, the same ones every time."""
    random = np.random.default_rng(5)
    return [random.integers(3, SIZES["vocab_size"], n).tolist() for n in lengths]
