"""Writes a trained model as a Hugging Face folder in bf16.

    python -m tools.builtin_model.export run/ src/homenode/builtin

The folder's README is written by hand and left alone.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from .model import CONTEXT, config
from .tokens import CHAT_TEMPLATE, END, END_OF_TEXT, SPECIAL, load_tokenizer, token_id


def export(run: Path, out: Path) -> None:
    """Writes weights, config, generation config, tokenizer and chat template of the run's last saved state."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = load_tokenizer(run / "tokenizer.json")
    tokenizer.save(str(out / "tokenizer.json"))
    weights = torch.load(run / "state.pt", weights_only=True)["model"]
    # The head is the embedding: it is written once, as tie_word_embeddings says.
    kept = {
        name: weight.to(torch.bfloat16).contiguous()
        for name, weight in sorted(weights.items())
        if name != "lm_head.weight"
    }
    save_file(kept, str(out / "model.safetensors"), metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    _write(out / "config.json", _config(tokenizer))
    _write(out / "generation_config.json", _generation(tokenizer))
    _write(out / "tokenizer_config.json", _tokenizer_config(tokenizer))
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def _config(tokenizer: Tokenizer) -> dict[str, Any]:
    """The model's config with the keys that every reader knows: rope_theta as a number of its own, the type as
    torch_dtype.
    """
    values = config(token_id(tokenizer, END_OF_TEXT), token_id(tokenizer, END)).to_dict()
    names = (
        "attention_bias", "bos_token_id", "eos_token_id", "hidden_act", "hidden_size", "initializer_range",
        "intermediate_size", "max_position_embeddings",
        "mlp_bias", "model_type", "num_attention_heads", "num_hidden_layers", "num_key_value_heads", "pad_token_id",
        "rms_norm_eps", "tie_word_embeddings", "vocab_size",
    )  # fmt: skip
    chosen = {name: values[name] for name in names}
    chosen |= {
        "architectures": ["LlamaForCausalLM"],
        "head_dim": values["hidden_size"] // values["num_attention_heads"],
    }
    return chosen | {"rope_scaling": None, "rope_theta": 10000.0, "torch_dtype": "bfloat16"}


def _generation(tokenizer: Tokenizer) -> dict[str, Any]:
    end_of_text, end = token_id(tokenizer, END_OF_TEXT), token_id(tokenizer, END)
    return {
        "bos_token_id": end_of_text,
        "do_sample": False,
        "eos_token_id": [end, end_of_text],
        "pad_token_id": end_of_text,
    }


def _tokenizer_config(tokenizer: Tokenizer) -> dict[str, Any]:
    added = {
        str(token_id(tokenizer, text)): {
            "content": text,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for text in SPECIAL
    }
    return {
        "add_bos_token": False,
        "add_eos_token": False,
        "added_tokens_decoder": added,
        "bos_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "eos_token": END,
        "model_max_length": CONTEXT,
        "pad_token": END_OF_TEXT,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of the training run")
    parser.add_argument("out", type=Path, help="folder to write")
    chosen = parser.parse_args()
    export(chosen.run, chosen.out)
    size = sum(path.stat().st_size for path in chosen.out.iterdir() if path.is_file())
    print(f"{chosen.out}: {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
