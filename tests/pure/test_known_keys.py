"""Every key of a GGUF file's architecture: read, refused by name when its value changes the result, without effect, or
told as unknown.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from homenode.errors import UnsupportedError, UserError
from homenode.model.architectures import registry
from homenode.model.checkpoint import index
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.checkpoint.unknown_names import unknown_names
from homenode.model.config.known_keys import HARMLESS, NEUTRAL, READ
from homenode.model.formats.gguf_set import read_gguf_set
from homenode.model.spec import ModelSpec
from tests.checkpoints import TOYS, make_folder, make_gguf

pytest.importorskip("gguf", reason="needs the gguf package to write files")

ARCHITECTURES = tuple(name for name in TOYS if name != "mistral")  # which is a llama with a window
YARN: dict[str, Any] = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
}
# Another value than the toy's, and what has to be there for it to count.
OTHER: dict[str, tuple[Any, dict[str, Any]]] = {
    "context_length": (128, {}), "attention.layer_norm_rms_epsilon": (0.1, {}), "rope.freq_base": (777.0, {}),
    "rope.scaling.type": ("yarn", {"rope.scaling.factor": 2.0}),
    "rope.scaling.factor": (2.0, {"rope.scaling.type": "linear"}),
    "rope.scale_linear": (2.0, {}), "rope.scaling.original_context_length": (32, YARN),
    "rope.scaling.attn_factor": (1.5, YARN),
    "rope.scaling.yarn_attn_factor": (1.5, YARN), "rope.scaling.yarn_ext_factor": (0.5, YARN),
    "rope.scaling.yarn_log_multiplier": (0.5, YARN),
    "rope.scaling.yarn_beta_fast": (16.0, YARN), "rope.scaling.yarn_beta_slow": (2.0, YARN),
    "attention.sliding_window": (16, {}),
    "attention.scale": (0.5, {}), "pooling_type": (1, {}),
}  # fmt: skip
OF_MIXTURES: dict[str, Any] = {
    "expert_gating_func": 2, "expert_group_count": 2, "expert_group_used_count": 2, "expert_weights_scale": 2.5,
    "expert_used_count": 1,
}  # fmt: skip
ACTIVE: dict[str, Any] = {
    key: False if neutral == (True,) else True if neutral == (False,) else 3
    if key.endswith(("count", "layers", "length", "rank", "size")) else 0.5
    for key, neutral in NEUTRAL.items()
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A toy file of each architecture."""
    folder = tmp_path_factory.mktemp("files")
    return {architecture: make_gguf(folder / f"{architecture}.gguf", architecture) for architecture in ARCHITECTURES}


def prefixed(architecture: str, keys: dict[str, Any]) -> dict[str, Any]:
    name = "llama" if architecture == "mixtral" else architecture.replace("_", "")
    return {f"{name}.{key}": value for key, value in keys.items()}


def outcome(file: Path, keys: dict[str, Any] | None = None) -> ModelSpec | UserError:
    """The figures of a file in which these keys have these values, or the refusal."""
    found = read_gguf_set(file)
    with pytest.MonkeyPatch.context() as patch:
        changed = dataclasses.replace(found, metadata={**found.metadata, **(keys or {})})
        patch.setattr(index, "read_gguf_set", lambda path: changed)
        try:
            return open_checkpoint(file).spec
        except UserError as error:
            return error


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_another_value_of_a_key_that_is_read_shows_or_is_refused_by_its_name(architecture: str, tmp_path: Path) -> None:
    file = make_gguf(tmp_path / "m.gguf", architecture)
    mixture = architecture == "mixtral" or "moe" in architecture
    tried = OTHER | ({key: (value, {}) for key, value in OF_MIXTURES.items()} if mixture else {})
    for key, (value, beside) in tried.items():
        plain = outcome(file, prefixed(architecture, {k: v for k, v in beside.items() if k != key}))
        other = outcome(file, prefixed(architecture, beside | {key: value}))
        if isinstance(other, UserError):
            assert key in other.message, (key, other)
        else:
            assert other != plain, key


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("key", NEUTRAL)
def test_values_that_ask_for_nothing_are_taken_and_others_refused_by_name(
    key: str, architecture: str, files: dict[str, Path]
) -> None:
    plain = outcome(files[architecture])
    if key in registry.ARCHITECTURES[architecture].gguf.keys:
        assert outcome(files[architecture], prefixed(architecture, {key: 0.75})) != plain, "it is read"
        return
    for value in NEUTRAL[key]:
        assert outcome(files[architecture], prefixed(architecture, {key: value})) == plain
    refused = outcome(files[architecture], prefixed(architecture, {key: ACTIVE[key]}))
    assert isinstance(refused, UnsupportedError) and f".{key} " in refused.message


def test_no_key_is_in_two_tables() -> None:
    otherwise = {"modernbert": {"attention.sliding_window_pattern"}}  # reads a common key in a way of its own
    for each in registry.ARCHITECTURES.values():
        assert (READ | HARMLESS.keys()) & each.gguf.keys == otherwise.get(each.name, set())
    assert not READ & NEUTRAL.keys() and not READ & HARMLESS.keys() and not NEUTRAL.keys() & HARMLESS.keys()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_unknown_keys_are_told(architecture: str, tmp_path: Path) -> None:
    assert unknown_names(open_checkpoint(make_gguf(tmp_path / "plain.gguf", architecture))) == ()
    keys = prefixed(architecture, {"frobnicate": 1, "rope.twist": 2.0})
    assert unknown_names(open_checkpoint(make_gguf(tmp_path / "odd.gguf", architecture, keys=keys))) == tuple(keys)


@pytest.mark.parametrize("factor", [0.9, 1.0, 1.3])
def test_the_scale_of_yarn_is_that_of_the_folder_it_was_converted_from(factor: float, tmp_path: Path) -> None:
    """The converter writes `attention_factor` as `yarn_attn_factor`, and of 1 reads both as nothing said."""
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": factor}
    folder = open_checkpoint(make_folder(tmp_path / "hf", rope_scaling=rope)).spec
    keys = prefixed("llama", YARN | {"rope.scaling.yarn_attn_factor": factor})
    found = open_checkpoint(make_gguf(tmp_path / "m.gguf", keys=keys)).spec
    if factor == 1.0:
        assert found.rope.attention_factor is None
    else:
        assert found.rope.attention_factor == pytest.approx(folder.rope.attention_factor)
    assert dataclasses.replace(found.rope, attention_factor=None) == dataclasses.replace(
        folder.rope, attention_factor=None
    )


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "qwen3_moe"])
def test_a_window_in_layers_that_a_file_does_not_name(architecture: str, tmp_path: Path) -> None:
    for window, refused in ((0, False), (16, True), (2**20, False)):
        file = make_gguf(
            tmp_path / f"{window}.gguf", architecture, keys=prefixed(architecture, {"attention.sliding_window": window})
        )
        found = outcome(file)
        assert (
            isinstance(found, UnsupportedError)
            if refused
            else isinstance(found, ModelSpec) and found.sliding_window is None
        )


@pytest.mark.parametrize(
    ("architecture", "pattern", "taken"),
    [
        ("gemma2", 2, True), ("gemma2", 6, False), ("gemma3", 6, True), ("gemma3", 2, False),
        ("gemma2", [True, False], True),
        ("gemma2", [False, True], False), ("gemma2", [True], False),
    ],
)  # fmt: skip
def test_the_layers_with_a_window_are_those_that_the_file_names(
    architecture: str, pattern: Any, taken: bool, tmp_path: Path
) -> None:
    keys = prefixed(architecture, {"attention.sliding_window_pattern": pattern})
    found = outcome(make_gguf(tmp_path / "m.gguf", architecture, keys=keys))
    assert (
        isinstance(found, ModelSpec)
        if taken
        else isinstance(found, UserError) and "sliding_window_pattern" in found.message
    )


@pytest.mark.parametrize("kind", ["adapter", "mmproj", "imatrix"])
def test_files_that_hold_no_model_are_called_what_they_are(kind: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=f"of the type '{kind}'"):
        open_checkpoint(make_gguf(tmp_path / "m.gguf", keys={"general.type": kind}))
    assert math.isfinite(
        open_checkpoint(make_gguf(tmp_path / "n.gguf", keys={"general.type": "model"})).spec.rope.theta
    )
