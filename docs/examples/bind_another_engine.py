"""Place a program that is not homenode: plan for a machine, start the program bound, bind it anew, and look after it.

Run it: `python docs/examples/bind_another_engine.py`.

The program here is a stand-in that sleeps in four threads; `vllm serve MODEL -tp 4` is bound the same way.
"""

from __future__ import annotations

import os
import subprocess
import sys

from local_server import HOMENODE

STAND_IN = """
import sys, threading
for _ in range(3):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print("serving", flush=True)
sys.stdin.read()  # until whoever started this closes its end
"""


def homenode(*words: str) -> subprocess.CompletedProcess[str]:
    """What a command of the placement toolkit prints, and its exit code."""
    return subprocess.run([*HOMENODE, *words], capture_output=True, text=True, timeout=60)


def main() -> None:
    # A plan is a pure function of a host: this one is of a machine with 2 sockets, 4 nodes, 64 CPUs and 4 GPUs.
    plan = homenode("plan", "--from", "2s/4n/64c/gpu=4")
    print(plan.stdout)

    cpus = sorted(os.sched_getaffinity(0))
    first, last = str(cpus[0]), str(cpus[-1])
    # `homenode run` binds itself and becomes the program, so the process id stays the same.
    command = [*HOMENODE, "run", "--cpus", first, "--", sys.executable, "-c", STAND_IN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as engine:
        try:
            print("engine:", engine.stdout.readline().strip())
            pid = ("--pid", str(engine.pid))
            print(f"started on CPU {first}; verify says", homenode("verify", *pid, "--cpus", first).stdout.strip())
            bound = homenode("bind", *pid, "--cpus", last)
            print(f"bound to CPU {last}: exit code", bound.returncode)
            print("verify says", homenode("verify", *pid, "--cpus", last).stdout.strip())
            print("undone: exit code", homenode("bind", *pid, "--undo").returncode)
        finally:
            engine.stdin.close()
            engine.wait(30)


if __name__ == "__main__":
    main()
