"""Instruction set levels: which there are, how one is chosen and what is said of the others."""

from __future__ import annotations

import json
import platform

import pytest
from click.testing import CliRunner

from homenode.cli.main import cli
from homenode.cli.placement.native_levels import NativeLevels
from homenode.compute.native import LEVELS, LevelState, NativeBackend, available_levels, choose_level, level_states
from homenode.errors import UserError

OF_PROCESSOR = {
    "x86_64": {"avx2", "avx2vnni", "avx512", "avx512bf16", "amx"},
    "aarch64": {"neon", "dotprod", "i8mm"},
}


def test_levels_of_this_kind_of_processor_only() -> None:
    names = available_levels()
    assert names[0] == "scalar"
    assert set(names[1:]) <= OF_PROCESSOR.get(platform.machine(), set())
    for state in level_states():
        assert state.available == (state.name in names)
        assert state.built or state.lack


def _best() -> str:
    return [state for state in level_states() if state.available and not state.drawback][-1].name


def test_the_best_is_chosen_and_any_other_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_level(None).name == _best()
    for name in available_levels():
        assert NativeBackend([-1], level=name).statistics()["level"] == name
        monkeypatch.setenv("HOMENODE_ISA", name)
        found = json.loads(CliRunner().invoke(cli, ["doctor", "--json"]).stdout)["native_core"]
        assert found["chosen"] == name
        assert [level["name"] for level in found["levels"]] == list(LEVELS)


@pytest.mark.parametrize("name", [*LEVELS, "avx1024"])
def test_what_cannot_run_here_is_refused_with_its_reason(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    if name in available_levels():
        pytest.skip("it can run here")
    reason = f"{name} cannot run here, it needs " if name in LEVELS else f"'{name}' is unknown"
    with pytest.raises(UserError, match=reason):
        choose_level(name)
    monkeypatch.setenv("HOMENODE_ISA", name)
    result = CliRunner().invoke(cli, ["doctor", "--json"])
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["native_core"]["chosen"] is None
    assert found["findings"][0]["code"] == "isa_impossible"


def test_doctor_names_every_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOMENODE_ISA", raising=False)
    page = CliRunner(env={"COLUMNS": "200"}).invoke(cli, ["doctor"]).stdout
    assert all(name in page for name in LEVELS)
    assert f"{_best():11}chosen" in page
    for state in level_states():
        assert not (state.available and state.drawback) or state.drawback in page


def test_a_slower_level_runs_only_when_asked_for() -> None:
    states = (LevelState("avx512", True, None, None), LevelState("avx512bf16", True, None, "its pairs are slow"))
    lines = NativeLevels(states, "avx512").lines()
    assert lines == ["avx512     chosen", "avx512bf16 runs here when asked for: its pairs are slow"]
    assert NativeLevels(states, "avx512bf16").lines()[-1] == "avx512bf16 chosen"
