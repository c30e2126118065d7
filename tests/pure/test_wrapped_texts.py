"""What config.json says of a text inside of a model that sees or hears: where it is, and what of it cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homenode.errors import CheckpointError, UnsupportedError, UserError
from homenode.model.architectures.registry import ARCHITECTURES, with_class, with_picture_class
from homenode.model.checkpoint.folder import spec_without_weights
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.checkpoint.wrappers import ANY_TEXT, BY_VERSION, PLACES, SIZES
from tests.checkpoints import toy_config, toy_tensors, write_safetensors

LLAMA = toy_config("llama")
SEEN = {"architectures": ["LlavaForConditionalGeneration"], "text_config": LLAMA}
LOOKS = {
    "architectures": ["MllamaForConditionalGeneration"],
    "text_config": LLAMA
    | {"model_type": "mllama_text_model", "num_hidden_layers": 4, "cross_attention_layers": [1, 3]},
}


def write_config(folder: Path, config: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


DAMAGED: dict[str, tuple[dict[str, Any], type[UserError], str]] = {
    "no table": (SEEN | {"text_config": None}, CheckpointError, r"text_config\.model_type: seen nothing"),
    "a list": (SEEN | {"text_config": [1]}, CheckpointError, r"text_config: seen \[1\], wanted an object"),
    "no type": (SEEN | {"text_config": {"hidden_size": 8}}, CheckpointError, r"text_config\.model_type: seen nothing"),
    "no text for a type": (SEEN | {"text_config": {**LLAMA, "architectures": None, "model_type": 3}}, CheckpointError,
        r"text_config\.model_type: seen nothing"),
    "another type": (SEEN | {"text_config": {"model_type": "gemma9"}}, UnsupportedError,
        r"the text of a LlavaForConditionalGeneration is said to be 'gemma9'.*homenode runs \d+ others"),
    "another place": ({"architectures": ["InternVLChatModel"], "text_config": LLAMA}, CheckpointError,
        r"llm_config\.model_type: seen nothing"),
    "a number in the place of a table": (
        {"architectures": ["Qwen2_5OmniForConditionalGeneration"], "thinker_config": 7}, CheckpointError,
        "thinker_config: seen 7, wanted an object"),
    "another type than that of the class": (
        {"architectures": ["Glm4vForConditionalGeneration"], "text_config": LLAMA}, UnsupportedError,
        "said to be 'llama', which is not supported; homenode runs glm4 there"),
    "no such version": ({**LLAMA, "architectures": ["MiniCPMV"], "version": 9.5}, CheckpointError,
        r"version: seen 9\.5, wanted one of 2\.0"),
    "a version that is no number": ({**LLAMA, "architectures": ["MiniCPMO"], "version": [2]}, CheckpointError,
        r"version: seen \[2\]"),
    "a version that is too large": ({**LLAMA, "architectures": ["MiniCPMO"], "version": 10**400}, CheckpointError,
        "version: seen 1000"),
    "layers that are not there": (LOOKS | {"text_config": {**LOOKS["text_config"], "cross_attention_layers": [1, 4]}},
        CheckpointError, r"cross_attention_layers: seen \[1, 4\], wanted some of the 4 layers"),
    "a layer twice": (LOOKS | {"text_config": {**LOOKS["text_config"], "cross_attention_layers": [1, 1]}},
        CheckpointError, "each once"),
    "no other layer": (LOOKS | {"text_config": {**LOOKS["text_config"], "cross_attention_layers": [0, 1, 2, 3]}},
        CheckpointError, "cross_attention_layers"),
    "layers that are no list": (LOOKS | {"text_config": {**LOOKS["text_config"], "cross_attention_layers": 2}},
        CheckpointError, "cross_attention_layers: seen 2, wanted a list"),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGED)
def test_what_cannot_be_is_told(what: str, tmp_path: Path) -> None:
    config, kind, told = DAMAGED[what]
    with pytest.raises(kind, match=told) as caught:
        open_checkpoint(write_config(tmp_path, config))
    assert str(tmp_path) in caught.value.message and len(caught.value.message) < 600


def test_a_class_is_in_one_table() -> None:
    seen = [name for each in ARCHITECTURES.values() for name in each.folder.picture_classes]
    named = [*seen, *ANY_TEXT, *BY_VERSION]
    assert len(named) == len(set(named))
    assert not [name for name in named if with_class(name)]
    assert all(with_picture_class(name) for name in seen)
    assert set(ANY_TEXT.values()) <= set(PLACES)
    assert {kind for kinds in BY_VERSION.values() for kind in kinds.values()} <= set(ARCHITECTURES)


def test_figures_that_are_left_out_are_those_of_the_class(tmp_path: Path) -> None:
    """As in LLaVA 1.5, which only says what differs."""
    told = {"model_type": "llama", "vocab_size": 32064, "num_attention_heads": None}
    spec = spec_without_weights(write_config(tmp_path, SEEN | {"text_config": told | {"num_attention_heads": 64}}))
    assert spec is not None
    assert (spec.hidden_size, spec.intermediate_size, spec.num_layers, spec.num_heads, spec.vocab_size) == (
        SIZES["llama"]["hidden_size"], 11008, 32, 64, 32064,
    )  # fmt: skip


@pytest.mark.parametrize(("version", "wanted"), [(2.6, "qwen2"), ("4.5", "qwen3"), (None, "llama"), (4, "llama")])
def test_the_version_tells_the_text(version: object, wanted: str, tmp_path: Path) -> None:
    spec = spec_without_weights(write_config(tmp_path, LLAMA | {"architectures": ["MiniCPMV"], "version": version}))
    assert spec is not None and spec.architecture == wanted


def test_layers_that_attend_to_pictures_are_none_of_the_text(tmp_path: Path) -> None:
    """The others are counted without them, and rows of the embedding for pictures are left."""
    text = toy_config("llama", num_hidden_layers=4)
    tensors = toy_tensors(text)
    own = {name: values for name, values in tensors.items() if ".layers.1." not in name and ".layers.3." not in name}
    embedding = tensors["model.embed_tokens.weight"]
    own["model.embed_tokens.weight"] = np.concatenate([embedding, embedding[:8]])
    beside = {"model.layers.1.cross_attn.q_proj.weight": np.ones((4, 4), np.float32)}
    stored = {f"language_model.{name}": values for name, values in (own | beside).items()}
    write_safetensors(tmp_path / "model.safetensors", stored | {"vision_model.x.weight": np.ones(3, np.float32)})
    write_config(tmp_path, LOOKS)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.spec.num_layers == 2
    wanted = toy_tensors(toy_config("llama"))
    assert {name: entry.shape for name, entry in checkpoint.tensors.items()} == {n: v.shape for n, v in wanted.items()}
    moved = checkpoint.tensors["model.layers.1.mlp.up_proj.weight"]
    raw = moved.file.read_bytes()[moved.offset : moved.offset + moved.nbytes]
    assert raw == np.ascontiguousarray(stored["language_model.model.layers.2.mlp.up_proj.weight"]).tobytes()


@pytest.mark.parametrize(
    ("named", "reason"),
    [("PaliGemmaForConditionalGeneration", "both directions"), ("UltravoxModel", "text_model_id"),
        ("WhisperForConditionalGeneration", "writes down")],
)  # fmt: skip
def test_what_is_refused_is_told_why(named: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=f"'{named}' is not supported; .*{reason}"):
        open_checkpoint(write_config(tmp_path, {"architectures": [named], "text_config": LLAMA}))
