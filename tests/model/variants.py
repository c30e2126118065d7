"""What tests of several families do with the folder of a toy model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from homenode.compute.ops import Backend
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.weights.load import load_model
from tests.model.driver import Driver, Sequence
from tests.model.transformers_models import prompts


def changed_folder(folder: Path, changes: Mapping[str, Any], into: Path) -> Path:
    """A folder with the same weights and some fields of its config.json changed."""
    (into / "model.safetensors").symlink_to(folder / "model.safetensors")
    (into / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()) | changes))
    return into


def check_cuts_company_and_copies(folder: Path, backend: Backend) -> None:
    """A model whose layers keep a state gives the same bits however a prompt is cut, whoever shares the step, and when
    it goes on with a copy of the state.
    """
    model = load_model(open_checkpoint(folder), backend)
    prompt, other = prompts((50, 21))
    _, whole = Driver(model, backend).prefill(prompt)
    for chunk in (1, 3, 32, 49):
        assert np.array_equal(Driver(model, backend).prefill(prompt, chunk=chunk)[1], whole)
    driver = Driver(model, backend)
    first, second = Sequence(list(other)), Sequence(list(prompt))
    rows = driver.step([(first, 21), (second, 17)], every_row=True)
    second.copies = [(16, 30)]  # the slot, and the position after which it gets the state
    rows = np.concatenate([rows[21:], driver.step([(second, 33)], every_row=True)])
    assert np.array_equal(rows, whole)
    again = Sequence(list(prompt), 31, second.blocks, slot=16)
    assert np.array_equal(driver.step([(again, 19)], every_row=True), whole[31:])
