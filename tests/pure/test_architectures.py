"""An architecture is one file of its folder, which is found there and describes itself completely."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from homenode.model import architectures
from homenode.model.architectures.architecture import never
from homenode.model.architectures.registry import ARCHITECTURES, Architectures, class_names, with_model_type

NEW = """
from dataclasses import replace

from homenode.model.architectures import llama

ARCHITECTURE = replace(llama.ARCHITECTURE, name="brand_new")
"""


def test_every_file_is_named_as_what_it_describes() -> None:
    (folder,) = map(Path, architectures.__path__)
    described = {file.stem for file in folder.glob("*.py") if "\nARCHITECTURE = " in file.read_text("utf-8")}
    assert described == {ARCHITECTURES[name].name for name in ARCHITECTURES} == ARCHITECTURES.keys()


def test_a_new_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "brand_new.py").write_text(NEW)
    monkeypatch.setattr(architectures, "__path__", [*architectures.__path__, str(tmp_path)])
    try:
        found = Architectures(architectures.__path__)
        assert found["brand_new"].name == "brand_new"
    finally:
        sys.modules.pop(f"{architectures.__name__}.brand_new", None)
    assert found.keys() - ARCHITECTURES.keys() == {"brand_new"}


def test_no_two_are_called_the_same() -> None:
    assert len(class_names()) == len(set(class_names()))
    for each in ARCHITECTURES.values():
        assert [with_model_type(name) for name in (each.name, *each.folder.model_types)].count(each) == 1 + len(
            each.folder.model_types
        )


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_name_that_a_checkpoint_may_say_is_written_out_in_the_module(name: str) -> None:
    folder, gguf = ARCHITECTURES[name].folder, ARCHITECTURES[name].gguf
    files = () if gguf.accepts is never else gguf.all_names
    for said in (*folder.class_names, *folder.model_types, *folder.picture_classes, *files):
        assert ARCHITECTURES[name] in ARCHITECTURES.that_name(said), f'{name}.py: write "{said}" in double quotes'


def test_only_the_architecture_that_a_checkpoint_names_is_imported() -> None:
    asked = (
        "import sys; from homenode.model.architectures import registry; assert registry.with_class('Olmo2ForCausalLM');"
        "print(*(name for name in registry.ARCHITECTURES if f'homenode.model.architectures.{name}' in sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True, timeout=60).stdout
    assert set(said.split()) == {"olmo2", "llama"}  # which shares a condition with it


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_parameter_has_its_name_in_both_formats(name: str) -> None:
    table = ARCHITECTURES[name].parameters
    assert all(p.gguf_name for p in table)
    # Two that have one name are there in turn.
    assert len({(p.gguf_name, p.when) for p in table}) == len(table)
    for parameter in table:
        assert parameter.per_layer == ("{layer}" in parameter.gguf_name)
