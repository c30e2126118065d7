"""What is told of a model to who asks about it."""

from __future__ import annotations

from pathlib import Path

from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.facts import model_facts

FOLDER = Path(__file__).resolve().parents[2] / "src/homenode/builtin"


def test_facts_of_the_built_in_model() -> None:
    checkpoint = open_checkpoint(FOLDER)
    facts, spec = model_facts(checkpoint), checkpoint.spec
    size = (FOLDER / "model.safetensors").stat().st_size
    assert facts["format"] == "safetensors" and facts["storage"] == spec.storage
    assert 0.9 * size < facts["bytes"] < size and facts["bytes"] == facts["parameters"] * 2
    assert (facts["layers"], facts["hidden_size"], facts["heads"]) == (
        spec.num_layers,
        spec.hidden_size,
        spec.num_heads,
    )
    assert facts["modified"] == FOLDER.stat().st_mtime
