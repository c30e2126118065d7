"""Say what a fleet would reach before anybody has it: the real scheduler and router over a model of costs.

Run it: `python docs/examples/simulate_fleet.py`.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

from local_server import HOMENODE

MACHINE = "2s/8n/96c"  # two sockets, eight NUMA nodes, 96 CPUs; a recording of a real machine does as well
MODEL = "shape:layers=24,hidden=896,heads=14,kv_heads=2,intermediate=4864,vocab=151936,format=Q4_0,tied=1"
RATE, REQUESTS = 12, 30


def simulate(hosts: int) -> dict[str, Any]:
    """The figures of so many machines under the same load."""
    workload = f"poisson:rate={RATE},in=512,out=32,n={REQUESTS},seed=1"
    command = [*HOMENODE, "simulate", "--from", MACHINE, "--hosts", str(hosts), "--model", MODEL]
    ran = subprocess.run(
        [*command, "--node-memory", "32GiB", "--workload", workload, "--json"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    if ran.returncode:
        raise SystemExit(ran.stderr)
    return json.loads(ran.stdout)["results"][0]


def main() -> None:
    print(f"{REQUESTS} requests of 512 tokens, {RATE} a second, on machines of {MACHINE}")
    print(f"{'machines':>8} {'finished':>8} {'tokens/s':>8} {'first token':>12} {'whole answer':>12}")
    for hosts in (1, 3):
        found = simulate(hosts)
        first, whole = found["ttft_s"]["p90"], found["latency_s"]["p90"]
        print(f"{hosts:8} {found['finished']:8} {found['output_tok_s']:8.0f} {first:10.3f} s {whole:10.3f} s")
    print("weights on each machine:", found["engines"][0]["policy"])


if __name__ == "__main__":
    main()
