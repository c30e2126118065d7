"""An architecture is one file of its folder, which is found there and describes itself completely."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from homenode.model import architectures
from homenode.model.architectures import registry
from homenode.model.architectures.registry import ARCHITECTURES, BY_CLASS, BY_MODEL_TYPE

NEW = """
from dataclasses import replace

from homenode.model.architectures import llama

ARCHITECTURE = replace(llama.ARCHITECTURE, name="brand_new")
"""


def test_every_file_is_named_as_what_it_describes() -> None:
    (folder,) = map(Path, architectures.__path__)
    shared = {"__init__", "architecture", "common", "parameters", "registry", "rope"}
    shared |= {"delta_net", "latent_attention", "layer_norm_decoder", "token_indexer"}
    shared |= {"encoder", "mamba_mixer"}
    assert {file.stem for file in folder.glob("*.py")} - shared == ARCHITECTURES.keys()


def test_a_new_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "brand_new.py").write_text(NEW)
    monkeypatch.setattr(architectures, "__path__", [*architectures.__path__, str(tmp_path)])
    try:
        found = registry._found()
    finally:
        sys.modules.pop(f"{architectures.__name__}.brand_new", None)
    assert found.keys() - ARCHITECTURES.keys() == {"brand_new"}


def test_no_two_are_called_the_same() -> None:
    assert len(BY_CLASS) == sum(1 + len(each.folder.older_classes) for each in ARCHITECTURES.values())
    assert len(BY_MODEL_TYPE) == sum(1 + len(each.folder.model_types) for each in ARCHITECTURES.values())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_parameter_has_its_name_in_both_formats(name: str) -> None:
    table = ARCHITECTURES[name].parameters
    assert len({p.gguf_name for p in table}) == len(table) and all(p.gguf_name for p in table)
    for parameter in table:
        assert parameter.per_layer == ("{layer}" in parameter.gguf_name)
