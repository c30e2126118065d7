"""How far `homenode simulate` is from the real engine on this machine: three workloads, run and simulated with the
speeds measured in the same run.

    python -m benchmarks.simulate --model MODEL [--out docs/simulation.json]

`homenode bench nodes` and `homenode bench model` measure before and after the workloads what the machine can do and
what single steps reach of it. The simulation is given the means; nothing is fitted to the workloads.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from benchmarks.others import Others, disturbed
from homenode.bench.machine.node_probe import NativeProbe
from homenode.bench.machine.nodes import bench_teams, measure_nodes, memories
from homenode.bench.runner import keep_record
from homenode.engine.api.local import LocalEngine
from homenode.engine.config import EngineConfig
from homenode.engine.messages import Output
from homenode.engine.model_path.locate import locate_model
from homenode.engine.request import Request
from homenode.host.discovery.read import read_host
from homenode.host.topology.host import Host
from homenode.host.topology.measured import Measured, MeasuredNode, parse_measured
from homenode.host.topology.source import LiveSource
from homenode.model.checkpoint.index import open_checkpoint
from homenode.sampling import SamplingParams
from homenode.simulate.achieved import AchievedSpeed, load_achieved
from homenode.simulate.compare import run_specs
from homenode.simulate.deployment import engines_on
from homenode.simulate.speeds import Speeds
from homenode.simulate.workload import Job, Workload, synthetic

WORKLOADS = (
    "closed:clients=1,in=128,out=64,n=3",
    "closed:clients=8,in=128,out=64,n=24",
    "poisson:rate=1,in=256,out=32,n=12,seed=1",
)
_PATIENCE_S = 300.0
_TRIES = 3  # of a measurement, until no other program disturbs it


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


def steps_now(model: Path, folder: Path) -> AchievedSpeed:
    """What single steps reach, as `homenode bench model` measures it."""
    words = (
        "--prompt-tokens",
        "512",
        "--gen-tokens",
        "24",
        "--batch",
        "1,8",
        "--context",
        "256",
        "--repeat",
        "2",
        "--json",
    )
    argv = [sys.executable, "-m", "homenode.cli.main", "bench", "model", str(model), *words]
    file = folder / "bench.json"
    for _ in range(_TRIES):
        with Others() as others:
            file.write_bytes(subprocess.run(argv, stdout=subprocess.PIPE, check=True, timeout=_PATIENCE_S).stdout)
        if not disturbed({"the bench": others.share}):
            break
    return load_achieved(str(file))


def mean_reached(a: AchievedSpeed, b: AchievedSpeed) -> AchievedSpeed:
    """Of two measurements of the same steps."""
    shares = {name: (getattr(a.kind, name) + getattr(b.kind, name)) / 2 for name in ("reads", "multiplies", "alone")}
    return AchievedSpeed(
        replace(a.kind, **shares),
        (a.float_cost + b.float_cost) / 2,
        (a.read_gb_s + b.read_gb_s) / 2,
        (a.int8_gops + b.int8_gops) / 2,
    )


def of_one_node(measured: Measured, reached: AchievedSpeed) -> Measured:
    """On a machine of one node its speeds are those that the steps were held against."""
    if len(measured.nodes) > 1:
        return measured
    node = replace(measured.nodes[0], read_gb_s=reached.read_gb_s, int8_gops=reached.int8_gops)
    return replace(measured, nodes=(node,), read_gb_s=dict.fromkeys(measured.read_gb_s, reached.read_gb_s))


def mean(a: Measured, b: Measured) -> Measured:
    """Of two measurements of the same nodes."""
    nodes = tuple(
        MeasuredNode(x.node, x.memory_node, x.threads, (x.read_gb_s + y.read_gb_s) / 2, (x.int8_gops + y.int8_gops) / 2)
        for x, y in zip(a.nodes, b.nodes, strict=True)
    )
    reads = {pair: (speed + b.read_gb_s[pair]) / 2 for pair, speed in a.read_gb_s.items()}
    return Measured(nodes, reads, (a.barrier_us + b.barrier_us) / 2, (a.barrier_across_us + b.barrier_across_us) / 2)


def compare(model: str | None, rounds: int) -> dict[str, Any]:
    """Run every workload `rounds` times, in turns, and simulate it."""
    config = locate_model(EngineConfig.of(model, {"max_model_len": 512, "kv_cache_memory": "256MiB", "seed": 1}))
    path = Path(str(config.model.path))
    host, checkpoint = read_host(LiveSource(), accelerators=False), open_checkpoint(path)
    with tempfile.TemporaryDirectory() as folder:
        before = (measured_now(host), steps_now(path, Path(folder)))
        found = _run_all(config, checkpoint.spec.vocab_size, rounds)
        after = (measured_now(host), steps_now(path, Path(folder)))
    reached = mean_reached(before[1], after[1])
    specs = engines_on(host, config, checkpoint, Speeds(of_one_node(mean(before[0], after[0]), reached), reached))
    rows = []
    for text, runs in found.items():
        stats = run_specs("", specs, _workload(text), lambda done, total: None).stats
        assert stats is not None
        quiet = [run["tok_s"] for run in runs if not disturbed({text: run["others"]})]
        rate = statistics.median(quiet or [run["tok_s"] for run in runs])
        row = {
            "workload": text,
            "measured_tok_s": rate,
            "simulated_tok_s": stats.output_tok_s,
            "error": stats.output_tok_s / rate - 1,
        }
        rows.append({**row, "quiet": bool(quiet), "runs": runs})
    return {
        "model": path.name,
        "weight_bytes": sum(specs[0].weights.values()),
        "steps_before_and_after": [asdict(one) for _, one in (before, after)],
        "results": rows,
    }


def _run_all(config: EngineConfig, vocabulary: int, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Output tokens a second of every workload in each round, and what other programs used of the CPUs meanwhile."""
    engine = LocalEngine(config)
    found: dict[str, list[dict[str, float]]] = {text: [] for text in WORKLOADS}
    try:
        real = _Real(engine, vocabulary, 0)
        real.run(_workload("closed:clients=1,in=8,out=4,n=1"))
        for _ in range(rounds):
            for text, runs in found.items():
                with Others() as others:
                    seconds, tokens = real.run(_workload(text))
                runs.append({"tok_s": tokens / seconds, "others": others.share})
    finally:
        engine.close()
    return found


def _workload(text: str) -> Workload:
    made = synthetic(text)
    assert made is not None
    return made


def main() -> None:
    """Print the table, and keep it."""
    parser = argparse.ArgumentParser(description="Hold the simulation against the real engine.")
    parser.add_argument("--model", help="Default: the built-in model.")
    parser.add_argument("--rounds", type=int, default=3, help="How often every workload runs; the median counts.")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    found = compare(asked.model, asked.rounds)
    keep_record(asked.out, **found)
    for row in found["results"]:
        beside = "" if row["quiet"] else "  (beside other programs)"
        both = f"measured {row['measured_tok_s']:8.2f} tok/s  simulated {row['simulated_tok_s']:8.2f}"
        print(f"{row['workload']:45} {both}  {row['error']:+.1%}{beside}")


if __name__ == "__main__":
    main()
