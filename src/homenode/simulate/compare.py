"""Several ways to place one deployment, simulated one after the other, and which of them wins. Pure but for what
planning reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from homenode.engine.config import EngineConfig
from homenode.errors import UserError
from homenode.host.topology.host import Host
from homenode.model.spec import Checkpoint
from homenode.numa_policy import PLANNED_POLICIES
from homenode.simulate.deployment import EngineSpec, engines_on
from homenode.simulate.run import Outcome, ReportProgress, simulate
from homenode.simulate.speeds import Speeds
from homenode.simulate.stats import OutcomeStats
from homenode.simulate.workload import Workload

_ALIKE = 0.01  # of throughput: what arrives is all that can be answered, so that latency has to tell


@dataclass(frozen=True)
class SimulationResult:
    """One way. `specs`: of the engines of all hosts; empty, with `error`, where it cannot be."""

    name: str
    specs: tuple[EngineSpec, ...] = ()
    stats: OutcomeStats | None = None
    by_engine: tuple[int, ...] = ()
    busy: tuple[float, ...] = ()  # share of the time that each engine's slowest stage computes
    error: str = ""


def run_specs(
    name: str, specs: Sequence[EngineSpec], workload: Workload, report_progress: ReportProgress
) -> SimulationResult:
    """Simulate these engines behind one router."""
    engines = [spec.engine() for spec in specs]
    first = specs[0]
    outcome: Outcome = simulate(
        engines,
        [spec.limits.num_blocks for spec in specs],
        first.limits.block_size,
        first.limits.vocab_size,
        workload,
        caching=first.config.kv.enable_prefix_caching,
        report_progress=report_progress,
    )
    busy = tuple(engine.busy / outcome.end if outcome.end else 0.0 for engine in engines)
    return SimulationResult(name, tuple(specs), OutcomeStats.of(outcome), tuple(outcome.by_engine), busy)


def compare_numa(
    hosts: Sequence[Host],
    config: EngineConfig,
    checkpoint: Checkpoint,
    speeds: Speeds,
    workload: Workload,
    progress_of: Callable[[str], ReportProgress],
) -> list[SimulationResult]:
    """Every policy of --numa. UserError when none can be."""
    results = []
    for policy in PLANNED_POLICIES:
        asked = replace(config, placement=replace(config.placement, numa=policy))
        try:
            specs = engines_on_all(hosts, asked, checkpoint, speeds)
        except UserError as error:
            results.append(SimulationResult(policy, error=error.message))
            continue
        results.append(run_specs(policy, specs, workload, progress_of(policy)))
    if not any(result.stats for result in results):
        raise UserError(f"no policy of --numa can be simulated: {results[0].error}", param="numa")
    return results


def engines_on_all(
    hosts: Sequence[Host], config: EngineConfig, checkpoint: Checkpoint, speeds: Speeds
) -> list[EngineSpec]:
    """The engines of all hosts; one that is there several times (the same object) is planned once."""
    planned = {id(host): host for host in hosts}
    made = {name: engines_on(host, config, checkpoint, speeds) for name, host in planned.items()}
    return [spec for host in hosts for spec in made[id(host)]]


def winner(results: Sequence[SimulationResult]) -> tuple[SimulationResult, str]:
    """The most output tokens a second; among those within 1 % of it, the lowest mean latency. And why, in a
    sentence."""
    measured = [(result, result.stats) for result in results if result.stats is not None and result.stats.finished]
    if not measured:
        return results[0], "no request was finished under any of them"
    most = max(stats.output_tok_s for _, stats in measured)
    alike = [(r, f) for r, f in measured if f.output_tok_s >= most * (1 - _ALIKE)]
    best, stats = min(alike, key=lambda pair: pair[1].mean_latency)
    others = ", ".join(
        f"{r.name} {f.output_tok_s:.4g} tok/s, {f.mean_latency:.4g} s" for r, f in measured if r is not best
    )
    reason = (
        "the most output tokens a second"
        if len(alike) == 1
        else f"the lowest mean latency of {len(alike)} within 1 % of the most tokens a second"
    )
    return best, f"{best.name}: {reason}, {stats.output_tok_s:.4g} tok/s and {stats.mean_latency:.4g} s" + (
        f" ({others})" if others else ""
    )
