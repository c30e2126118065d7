"""A program that starts its ranks itself: each ends on the node of its rank, with the memory it had taken before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.host.children import masks
from tests.lab.machine import WHOLE, Done, command, homenode, several_nodes
from tests.lab.residency import places
from tests.waiting import PATIENCE_S, wait_until

pytestmark = several_nodes
SIZE = 16 << 20

# Starts a process for each rank, which takes memory at once; prints the number and the address of each. Ends when its
# input does.
ENGINE = f"""
import os, subprocess, sys
RANK = '''
import ctypes, mmap, os, sys
block = mmap.mmap(-1, {SIZE}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
block[:] = b"w" * len(block)
print(os.getpid(), ctypes.addressof(ctypes.c_char.from_buffer(block)), flush=True)
sys.stdin.read()
'''
ranks = [subprocess.Popen([sys.executable, "-S", "-c", RANK], stdin=subprocess.PIPE, env={{**os.environ, "LOCAL_RANK": str(rank)}}) for rank in (0, 1)]
sys.stdin.read()
for rank in ranks:
    rank.kill()
    rank.wait()
"""


def test_every_rank_ends_on_its_own_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOMENODE_STATE_DIR", str(tmp_path / "state"))
    first, last = WHOLE[0], WHOLE[-1]
    flags = ("--numa-bind", "--numa-bind-nodes", last.id, first.id, "--workers", 2)
    words = [*command("run", *flags, "--"), sys.executable, "-S", "-c", ENGINE]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as engine:
        try:
            assert engine.stdout is not None

            def verified(pid: int, rank: int) -> Done:
                return homenode("verify", "--pid", pid, *flags, "--local-rank", rank)

            ranks = dict(map(int, engine.stdout.readline().split()) for _ in range(2))
            rank_of = {
                int(Path(f"/proc/{pid}/environ").read_text().partition("LOCAL_RANK=")[2][0]): pid for pid in ranks
            }
            for rank, node in enumerate((last, first)):
                pid = rank_of[rank]
                wait_until(
                    lambda pid=pid, node=node: set(masks(pid).values()) == {node.cpus}, lambda pid=pid: masks(pid)
                )
                wait_until(lambda pid=pid, node=node: places(pid, ranks[pid], SIZE) == {node.id})
                # The block is moved first; the rest of its memory follows.
                wait_until(
                    lambda pid=pid, rank=rank: verified(pid, rank).code == 0,
                    lambda pid=pid, rank=rank: verified(pid, rank).out,
                )
        finally:
            engine.communicate(timeout=PATIENCE_S)
