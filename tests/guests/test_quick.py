"""The lab on this machine: one guest with two nodes, what it sees, what it may not do, and when it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.waiting import wait_until
from tools.lab.folder import DEFAULT, LabFolder
from tools.lab.guest import Guest
from tools.lab.prepare import lacking
from tools.lab.topologies import TOPOLOGIES

LACKING = lacking("x86_64")
FOLDER = LabFolder(DEFAULT)
pytestmark = [
    pytest.mark.skipif(bool(LACKING), reason=LACKING or "all is there"),
    pytest.mark.skipif(
        not FOLDER.ready("x86_64"), reason="no kernel for guests; `python -m tools.lab.prepare` downloads one (100 MiB)"
    ),
    pytest.mark.skipif("HOMENODE_LAB" in os.environ, reason="this is a guest"),
]
GUEST = Guest(TOPOLOGIES["2x2"], "x86_64", FOLDER)
FOREVER = ["tail", "-f", "/dev/null"]
LONG_S, SHORT_S = 240.0, 1.0

PARENT = f"""
from pathlib import Path
from tools.lab.folder import DEFAULT, LabFolder
from tools.lab.guest import Guest
from tools.lab.topologies import TOPOLOGIES
Guest(TOPOLOGIES["2x2"], "x86_64", LabFolder(DEFAULT)).run({FOREVER!r}, {{}}, {LONG_S}, lambda text: print("running", flush=True))
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_quick_lab_passes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.lab", "--quick", "--json"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (machine,) = json.loads(done.stdout)
    outcomes = [check["outcome"] for check in machine["checks"]]
    assert outcomes.count("passed") >= 12 and "failed" not in outcomes
    assert f"{outcomes.count('passed')} passed, 0 failed" in done.stderr.splitlines()[-1]


def test_output_errors_exit_code_and_files_come_back() -> None:
    words = (
        "echo said; echo told >&2; echo left >/run/lab/left; cat /sys/devices/system/node/node1/cpulist; echo "
        "$COLOUR; exit 7"
    )
    outcome = GUEST.run(["sh", "-c", words], {"COLOUR": "deep 'blue'"}, LONG_S)
    assert (outcome.code, outcome.out, outcome.err, outcome.timed_out) == (
        7,
        "said\n2-3\ndeep 'blue'\n",
        "told\n",
        False,
    )
    assert outcome.files == {"left": b"left\n"}


def test_what_a_guest_writes_stays_in_it(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("ours")
    words = (
        f"echo theirs >{kept} && cat {kept} && rm -r {tmp_path} && mkdir {tmp_path} && touch {tmp_path}/more && "
        f"ls {tmp_path}"
    )
    outcome = GUEST.run(["sh", "-c", words], {}, LONG_S)
    assert (outcome.code, outcome.out) == (0, "theirs\nmore\n"), outcome.trouble
    assert (kept.read_text(), [file.name for file in tmp_path.iterdir()]) == ("ours", ["kept"])


def test_a_command_without_end_is_ended() -> None:
    outcome = GUEST.run(FOREVER, {}, SHORT_S)
    assert (outcome.code, outcome.timed_out) == (None, True)
    assert "deadline passed" in outcome.trouble


def test_a_guest_ends_with_the_process_that_started_it() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == "running\n"
        (guest,) = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        assert "qemu-system" in Path(f"/proc/{guest}/cmdline").read_text()
        parent.kill()
    wait_until(lambda: not alive(guest))


def alive(pid: str) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
