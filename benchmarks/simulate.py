"""How far `homenode simulate` is from the real engine on this machine: three workloads, run and simulated with the speeds measured in the same run.

    python -m benchmarks.simulate --model MODEL [--out docs/simulation.json]

The speeds of the nodes are measured before and after the workloads, and their mean is what the simulation is given; nothing is fitted to the results.
"""

from __future__ import annotations

import argparse
import json
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from homenode.bench.node_probe import NativeProbe
from homenode.bench.nodes import bench_teams, measure_nodes, memories
from homenode.engine.config import EngineConfig
from homenode.engine.local import LocalEngine
from homenode.engine.location import located
from homenode.engine.messages import Output
from homenode.engine.request import Request, SamplingParams
from homenode.host.topology.host import Host
from homenode.host.topology.measured import Measured, MeasuredNode, parse_measured
from homenode.host.topology.read import read_host
from homenode.host.topology.source import LiveSource
from homenode.model.checkpoint import open_checkpoint
from homenode.simulate.compare import run_specs
from homenode.simulate.deployment import engines_on
from homenode.simulate.speeds import Speeds
from homenode.simulate.workload import Job, Workload, synthetic

WORKLOADS = (
    "closed:clients=1,in=32,out=48,n=1",
    "closed:clients=8,in=32,out=24,n=8",
    "poisson:rate=1,in=128,out=16,n=5,seed=1",
)
_PATIENCE_S = 300.0


@dataclass
class _Real:
    """The engine under a workload."""

    engine: LocalEngine
    vocabulary: int
    first: int

    def run(self, workload: Workload) -> tuple[float, int]:
        """Seconds from the first request to the last token, and output tokens."""
        sink: SimpleQueue[Output] = SimpleQueue()
        begin = time.monotonic()
        coming, unfinished, tokens = list(workload.begin()), 0, 0
        while coming or unfinished:
            now = time.monotonic() - begin
            while coming and coming[0].at <= now:
                self._submit(coming.pop(0), sink)
                unfinished += 1
            try:
                output = sink.get(timeout=max(0.0, coming[0].at - now) if coming else _PATIENCE_S)
            except Empty:
                if not coming:
                    raise SystemExit(f"no output for {_PATIENCE_S:g} s") from None
                continue
            tokens += len(output.tokens)
            if output.finish_reason is not None:
                unfinished -= 1
                if output.error:
                    raise SystemExit(output.error)
                if (job := workload.after(time.monotonic() - begin)) is not None:
                    self._submit(job, sink)
                    unfinished += 1
        return time.monotonic() - begin, tokens

    def _submit(self, job: Job, sink: SimpleQueue[Output]) -> None:
        self.first += 1
        params = SamplingParams(max_tokens=job.output, temperature=0.0, ignore_eos=True)
        ids = job.tokens(self.first, self.vocabulary)
        self.engine.submit([Request(id=self.first, prompt_ids=ids, params=params, arrival=time.monotonic())], sink)


def measured_now(host: Host) -> Measured:
    """The speeds of the nodes as `homenode bench nodes` measures them."""
    several = len(memories(host, bench_teams(host))) > 1
    found = measure_nodes(host, NativeProbe(None, several), host.allowance.memory_available, lambda name: nullcontext())
    return parse_measured(found.to_json())


def mean(a: Measured, b: Measured) -> Measured:
    """Of two measurements of the same nodes."""
    nodes = tuple(
        MeasuredNode(x.node, x.memory_node, x.threads, (x.read_gb_s + y.read_gb_s) / 2, (x.int8_gops + y.int8_gops) / 2)
        for x, y in zip(a.nodes, b.nodes, strict=True)
    )
    reads = {pair: (speed + b.read_gb_s[pair]) / 2 for pair, speed in a.read_gb_s.items()}
    return Measured(nodes, reads, (a.barrier_us + b.barrier_us) / 2, (a.barrier_across_us + b.barrier_across_us) / 2)


def compare(model: str | None) -> dict[str, Any]:
    """Run and simulate every workload."""
    config = located(EngineConfig.of(model, {"max_model_len": 512, "kv_cache_memory": "256MiB", "seed": 1}))
    host, checkpoint = read_host(LiveSource(), accelerators=False), open_checkpoint(Path(str(config.model.path)))
    before = measured_now(host)
    engine = LocalEngine(config)
    try:
        real = _Real(engine, checkpoint.spec.vocab_size, 0)
        real.run(_workload("closed:clients=1,in=8,out=4,n=1"))
        found = [real.run(_workload(text)) for text in WORKLOADS]
    finally:
        engine.close()
    after = measured_now(host)
    specs = engines_on(host, config, checkpoint, Speeds(mean(before, after)))
    rows = []
    for text, (seconds, tokens) in zip(WORKLOADS, found, strict=True):
        figures = run_specs("", specs, _workload(text), lambda done, total: None).figures
        assert figures is not None
        rate = tokens / seconds
        rows.append(
            {"workload": text, "measured_tok_s": rate, "simulated_tok_s": figures.output_tok_s, "error": figures.output_tok_s / rate - 1}
        )
    speeds = [{"read_gb_s": m.nodes[0].read_gb_s, "int8_gops": m.nodes[0].int8_gops, "barrier_us": m.barrier_us} for m in (before, after)]
    weights = sum(specs[0].weights.values())
    return {"model": Path(str(config.model.path)).name, "weight_bytes": weights, "node_0_before_and_after": speeds, "results": rows}


def _workload(text: str) -> Workload:
    made = synthetic(text)
    assert made is not None
    return made


def main() -> None:
    """Print the table, and keep it."""
    parser = argparse.ArgumentParser(description="Hold the simulation against the real engine.")
    parser.add_argument("--model", help="Default: the built-in model.")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    found = compare(asked.model)
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(found["model"], found["node_0_before_and_after"])
    for row in found["results"]:
        print(
            f"{row['workload']:45} measured {row['measured_tok_s']:8.2f} tok/s  simulated {row['simulated_tok_s']:8.2f}  {row['error']:+.1%}"
        )


if __name__ == "__main__":
    main()
