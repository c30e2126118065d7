"""Vendors' tools as real programs on PATH: honest ones, and ones that hang, fail, flood or speak another language."""

from __future__ import annotations

import os
import signal
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from homenode.host.topology.accelerators.ascend import board_address
from homenode.host.topology.accelerators.read import read_accelerators
from homenode.host.topology.host import Accelerators, Node
from homenode.host.topology.source import LiveSource
from tests.waiting import wait_until

DEADLINE_S = 0.3  # for tools that hang at once
FAIR_S = 1.5  # for tools that answer one question, on a busy machine, and hang on the next
SOON_S = 5.0  # on a busy machine; a tool that was waited for would take a minute
NODES = (Node(0, (0, 1), 1 << 30, {}),)
MAP = (
    "NPU ID  Chip ID  Chip Logic ID  Chip Name\n0       0        0              Ascend 910B3\n1       0        1  "
    "            Ascend 910B3"
)
TOPO = "NPU0 NPU1 CPU Affinity\nNPU0 X HCCS 0-1\nNPU1 HCCS X 0-1"

Tool = Callable[[str, str], None]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """Puts a program of this name before all others on PATH: a shell script."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("TOOL_FOLDER", str(tmp_path))

    def make(name: str, script: str) -> None:
        file = folder / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)

    return make


def read(deadline_s: float = 10.0) -> Accelerators:
    return read_accelerators(LiveSource(command_deadline_s=deadline_s), (), NODES, (0, 1))


def npu_smi(map_part: str = "", info: str = "", topo: str = "") -> str:
    """A script that answers the three questions; an empty part means: as a healthy host does."""
    return f"""case "$*" in
"info -m") {map_part or f"cat <<'END'{chr(10)}{MAP}{chr(10)}END"}
;;
"info") {info or "echo '| NPU     Chip | Process id | Process name |'; echo '| 1       0    | 4242       | python3      |'"}
;;
"info -t topo") {topo or f"cat <<'END'{chr(10)}{TOPO}{chr(10)}END"}
;;
"info -t board -i 1 -c 0") echo '  PCIe Bus Info                  : 0000:C1:00.0'
;;
*) exit 9
;;
esac"""


def test_a_healthy_tool(tool: Tool) -> None:
    tool("npu-smi", npu_smi())
    found = read()
    assert [(chip.id, chip.local_cpus, chip.node, chip.processes) for chip in found.chips] == [
        (0, (0, 1), 0, ()),
        (1, (0, 1), 0, (4242,)),
    ]
    assert (found.device_type, found.errors, found.notes) == ("A2", (), ())
    assert board_address(LiveSource(), found.chips[1]) == "0000:c1:00.0"
    assert board_address(LiveSource(), found.chips[0]) is None


def test_what_a_tool_says_on_standard_error_is_quoted_when_it_fails(tool: Tool) -> None:
    tool("npu-smi", "echo 'npu-smi: error while loading shared libraries: libdcmi.so' >&2; exit 127")
    found = read()
    assert any("libdcmi.so" in note.message for note in found.notes)


def test_a_flood_on_standard_error_holds_nobody_up_and_is_not_kept(tool: Tool) -> None:
    flood = "i=0; while [ $i -lt 20000 ]; do echo 'a line of a logger that nobody reads' >&2; i=$((i+1)); done"
    tool("npu-smi", npu_smi(info=f"{flood}; exit 3"))
    found = read()
    assert [error.code for error in found.errors] == ["tool_failed"] and len(found.chips) == 2
    assert len(LiveSource().command(("npu-smi", "info")).err) <= 1 << 16


def test_a_tool_that_hangs_is_ended_with_its_children(tool: Tool, tmp_path: Path) -> None:
    tool("npu-smi", npu_smi(info='sleep 60 & echo $! > "$TOOL_FOLDER/child"; echo $$ > "$TOOL_FOLDER/parent"; wait'))
    start = time.monotonic()
    found = read(FAIR_S)
    assert time.monotonic() - start < SOON_S
    assert [error.code for error in found.errors] == ["tool_timeout"]
    assert len(found.chips) == 2 and found.chips[0].local_cpus == ()  # a tool that hangs is not asked again
    for name in ("child", "parent"):
        pid = int((tmp_path / name).read_text())
        wait_until(lambda pid=pid: _has_ended(pid), f"{name} still runs", SOON_S)


def test_a_tool_whose_child_keeps_the_pipe_open(tool: Tool) -> None:
    tool("npu-smi", "sleep 60 &\nexit 0")
    start = time.monotonic()
    assert [error.code for error in read(DEADLINE_S).errors] == ["tool_timeout"]
    assert time.monotonic() - start < SOON_S


def test_a_tool_that_cannot_be_killed_is_left_behind(
    tool: Tool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in a driver that never comes back: the signal stays pending."""
    tool("npu-smi", 'echo $$ > "$TOOL_FOLDER/pid"; exec sleep 60')
    groups: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, number: groups.append(group))
    start = time.monotonic()
    found = read(DEADLINE_S)
    assert time.monotonic() - start < SOON_S
    assert [error.code for error in found.errors] == ["tool_timeout"] and len(groups) == 1
    monkeypatch.undo()
    os.killpg(groups[0], signal.SIGKILL)
    wait_until(lambda: _has_ended(int((tmp_path / "pid").read_text())), "it still runs", SOON_S)


def test_a_tool_that_fails(tool: Tool) -> None:
    tool("npu-smi", npu_smi(map_part="echo 'dcmi model initialized failed, ret is -8020'; exit 7"))
    found = read()
    assert found.errors == () and len(found.chips) == 2  # the topology names them
    codes = [note.code for note in found.notes if note.code != "device_type_unknown"]
    assert codes == ["tool_failed", "npu_map_replaced"]
    assert "exit code 7" in found.notes[0].message and "-8020" in found.notes[1].message
    tool("npu-smi", npu_smi(topo="exit 3"))
    found = read()
    assert found.errors == () and [note.code for note in found.notes] == ["tool_failed"] and len(found.chips) == 2
    tool("npu-smi", npu_smi(info="kill -SEGV $$"))
    assert [error.code for error in read().errors] == ["tool_failed"]


def test_a_tool_that_is_no_program(tool: Tool, tmp_path: Path) -> None:
    tool("npu-smi", "")
    (tmp_path / "bin" / "npu-smi").write_bytes(b"\x7fELF of another machine")
    assert read().chips == () and read().errors == ()


def test_a_tool_that_never_stops_printing(tool: Tool) -> None:
    tool("npu-smi", "exec yes 'no such device'")
    start = time.monotonic()
    found = read(60.0)
    assert time.monotonic() - start < 20  # ended when enough had been seen, long before its deadline
    assert [error.code for error in found.errors] == ["npu_map_unparseable"]
    assert [note.code for note in found.notes] == ["tool_failed"]


def test_a_table_of_megabytes(tool: Tool) -> None:
    script = f"print({MAP!r}); print('0 0 - Mcu\\n' * 300_000)"
    tool("npu-smi", npu_smi(map_part=f'exec {sys.executable} -S -c "{script}"'))
    found = read()
    assert len(found.chips) == 2 and found.errors == ()


def test_tools_are_asked_in_the_c_locale(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    monkeypatch.setenv("LC_MESSAGES", "de_DE.UTF-8")
    german = "echo 'NPU-Nummer  Chip-Nummer'"
    healthy = npu_smi()
    tool("npu-smi", f'if [ "$LC_ALL$LANG$LC_MESSAGES" != CCC ]; then {german}; exit 0; fi\n{healthy}')
    assert len(read().chips) == 2


def test_tools_get_no_terminal_and_no_input(tool: Tool) -> None:
    tool("npu-smi", f"if read answer; then exit 1; fi\n{npu_smi()}")
    assert len(read().chips) == 2


def test_bytes_that_are_no_text(tool: Tool) -> None:
    tool("npu-smi", npu_smi(info=r"printf '| NPU Chip | Process id |\n| 0 0 | 7 | \377\376\000 |\n'"))
    assert [chip.processes for chip in read().chips] == [(7,), ()]


def test_nvidia_beside_a_hanging_npu_tool(tool: Tool) -> None:
    tool("npu-smi", "exec sleep 60")
    tool(
        "nvidia-smi",
        """case "$*" in
--query-gpu*) echo '0, GPU-77, 00000000:1B:00.0, NVIDIA L4' ;;
--query-compute-apps*) echo 'GPU-77, 31' ;;
"topo -m") printf '\\tGPU0\\tCPU Affinity\\tNUMA Affinity\\nGPU0\\t X \\t0-1\\t0\\n' ;;
*) exit 9 ;;
esac""",
    )
    found = read(FAIR_S)
    assert [error.code for error in found.errors] == ["tool_timeout"] and found.kind == "cuda"
    (chip,) = found.chips
    assert (chip.name, chip.address, chip.local_cpus, chip.node, chip.processes) == (
        "NVIDIA L4",
        "0000:1b:00.0",
        (0, 1),
        0,
        (31,),
    )


def _has_ended(pid: int) -> bool:
    """Whether the process has ended; a zombie whose parent is elsewhere has ended too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True
