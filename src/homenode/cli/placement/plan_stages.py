"""`homenode plan --stages MODEL`: which worker would have which layers, on what, and how much; headers are read, no
weight is."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from homenode.cli.output.report import print_json
from homenode.cli.placement.given_settings import refuse_beside
from homenode.errors import UserError
from homenode.units import format_count

if TYPE_CHECKING:
    from homenode.cli.placement.plan_flags import PlanFlags
    from homenode.engine.assignment import EngineAssignment
    from homenode.engine.config import EngineConfig
    from homenode.engine.plan.engine_plan import EnginePlan
    from homenode.host.topology.host import Host

_SETTINGS = ("stage_devices", "layer_split", "enable_expert_parallel", "expert_placement")
_KEPT = ("threads", "quantize", "dtype", "kv_cache_dtype")  # as for --weights
_PLACED = ("cpu_threads_bind", "memory_nodes", "reserve_cpus", "numa_bind", "numa_bind_nodes", "numa_bind_cpus")
_SIZES = ("tensor_parallel_size", "pipeline_parallel_size")
_OF_SEVERAL = ("data_parallel_size", "data_parallel_rank")
_READ = (*_SETTINGS, *_KEPT, *_PLACED, *_SIZES, *_OF_SEVERAL, "source", "ignore_openmp_mask", "as_json")


def with_stage_flags(command: Any) -> Any:
    """Decorator: --stages and what goes with it."""
    for add in reversed(
        [
            click.option(
                "--stages",
                metavar="MODEL",
                help="Plan the workers of an engine for this model: --pipeline-parallel-size stages of "
                "--tensor-parallel-size ranks. `builtin`: the model that comes along.",
            ),
            click.option(
                "--stage-devices",
                envvar="HOMENODE_STAGE_DEVICES",
                default="auto",
                metavar="auto|DEVICE,...",
                help="As for `homenode serve`.",
            ),
            click.option(
                "--layer-split",
                envvar="HOMENODE_LAYER_SPLIT",
                default="auto",
                metavar="auto|N,...",
                help="As for `homenode serve`.",
            ),
            click.option(
                "--enable-expert-parallel",
                envvar="HOMENODE_ENABLE_EXPERT_PARALLEL",
                is_flag=True,
                help="As for `homenode serve`.",
            ),
            click.option(
                "--expert-placement",
                envvar="HOMENODE_EXPERT_PLACEMENT",
                default="spread",
                metavar="spread|packed|FILE",
                help="As for `homenode serve`.",
            ),
        ]
    ):
        command = add(command)
    return command


def stage_flags(ctx: click.Context, values: dict[str, Any]) -> dict[str, Any] | None:
    """The values of these flags, taken out of `values`; None where no stages are planned. UserError for flags that go
    with nothing else.

    --enable-expert-parallel goes with --weights, too, and is left in `values` for it.
    """
    mine = {name: values.pop(name) for name in ("stages", *_SETTINGS)}
    given = [name for name in _SETTINGS if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE]
    if mine["stages"] is None and values["weights"] is not None:
        values["enable_expert_parallel"] = mine["enable_expert_parallel"]
        given = [name for name in given if name != "enable_expert_parallel"]
    if mine["stages"] is not None:
        refuse_beside(ctx, "--stages", "which plans the workers of one engine for a model", _READ)
        return mine | {name: values[name] for name in (*_KEPT, *_PLACED, *_SIZES)}
    if given:
        flag = f"--{given[0].replace('_', '-')}"
        raise UserError(f"{flag} is about the stages of a model: name it with --stages MODEL", param=flag)
    return None


def plan_stages(flags: PlanFlags, asked: dict[str, Any], as_json: bool) -> int:
    """Print the workers. The result is the exit code. Raises what reading the host and the model and planning raise."""
    from homenode.cli.placement.claims_beside import claims_on
    from homenode.engine.plan.worker_layout import computing_cpus

    planned = _planned(flags, asked)
    layout = planned.worker_layout
    beside = claims_on(flags, planned.host, computing_cpus(layout))
    planned = replace(planned, worker_layout=replace(layout, findings=(*layout.findings, *beside)))
    in_common = any(planned.kept(worker).common for worker in planned.worker_layout.workers)
    if as_json:
        lines = [_line(planned, n) for n in range(len(planned.worker_layout.workers))]
        print_json(
            {"workers": lines, "rooms": [asdict(room) for room in planned.capacities], "findings": _findings(planned)}
        )
        return 0
    from homenode.cli.output.fitted_text import FittedLine, FittedTable
    from homenode.cli.output.report import print_fitted
    from homenode.cli.placement.draw_plan import draw_findings
    from homenode.engine.plan.stages.layers import in_words
    from homenode.units import format_bytes

    others = ("of other engines",) if in_common else ()
    table = FittedTable(
        "worker", "device", "stage", "rank", "layers", "weights", *others, "KV of a token", "CPUs", "memory nodes"
    )
    for n in range(len(planned.worker_layout.workers)):
        line = _line(planned, n)
        first, last = line["layers"]
        table.add_row(
            str(n), line["device"], str(line["stage"]), str(line["rank"]), f"{first}-{last} ({last - first + 1})",
            format_bytes(line["weight_bytes"]), *([format_bytes(line["shared_weight_bytes"])] if in_common else []),
            format_bytes(line["kv_bytes_per_token"]), _cpus_in_words(line), line["memory_nodes"] or "any",
        )  # fmt: skip
    print_fitted(table)
    for room in planned.capacities:
        print_fitted(FittedLine(f"{room.where}: room for {in_words(room)}"))
    for shown in draw_findings(planned.worker_layout.findings):
        print_fitted(shown)
    return 0


def _planned(flags: PlanFlags, asked: dict[str, Any]) -> EnginePlan:
    from homenode.cli.output.engine_notes import tell_unused_settings
    from homenode.cli.placement.plan_flags import open_source
    from homenode.engine.config import EngineConfig
    from homenode.engine.devices import is_accelerator, worker_devices
    from homenode.engine.experts.group import expert_group_rank
    from homenode.engine.experts.sizing import ExpertSharing
    from homenode.engine.plan.accelerators.driven_chips import torch_devices
    from homenode.engine.plan.workers import plan_workers
    from homenode.host.discovery.read import read_host
    from homenode.model.checkpoint.index import open_checkpoint
    from homenode.model.hub.locate import locate

    model = asked.pop("stages")
    settings = {name: tuple(v) if isinstance(v, list) else v for name, v in asked.items() if v not in (None, (), False)}
    config = EngineConfig.of(model, settings)
    checkpoint = open_checkpoint(locate(model, offline=True))
    host = read_host(open_source(flags.source), accelerators=config.parallel.stage_devices.strip() != "cpu")
    if flags.ignore_openmp_mask:
        host = replace(host, allowance=host.allowance.widened())
    there = tuple(torch_devices(host))
    parallel = config.parallel
    assignment, engines = _as_one_of_several(config, host, flags), max(1, flags.data_parallel_size)
    everybody = [
        worker_devices(
            parallel.stage_devices,
            parallel.pipeline_parallel_size,
            parallel.tensor_parallel_size,
            there,
            number,
            engines,
        )
        for number in range(engines)
    ]
    devices = everybody[flags.data_parallel_rank]
    if missing := [device for device in devices if is_accelerator(device) and device not in there]:
        raise UserError(f"--stage-devices: {missing[0].removeprefix('torch:')} is not there", param="stage_devices")
    tell_unused_settings(config, devices, assignment.replica.count if assignment.replica else None)
    group_rank = expert_group_rank(assignment, everybody)
    return plan_workers(
        assignment, checkpoint, host, devices, common=None if group_rank is None else ExpertSharing(group_rank)
    )


def _as_one_of_several(config: EngineConfig, host: Host, flags: PlanFlags) -> EngineAssignment:
    """The engine --data-parallel-rank of --data-parallel-size, in its place; one that is alone where there is one."""
    from homenode.engine.assignment import EngineAssignment
    from homenode.engine.binding import Replica
    from homenode.engine.plan.replica_bindings import replica_places

    count, rank = flags.data_parallel_size, flags.data_parallel_rank
    if rank >= count:
        raise UserError(
            f"--data-parallel-rank {rank}: there are {format_count(count, 'engine')} (--data-parallel-size), "
            "numbered from 0",
            param="--data-parallel-rank",
        )
    if count == 1:
        return EngineAssignment(config)
    binding = replica_places(host, config, count)[rank]
    return EngineAssignment(config, Replica(rank, count, binding, host.allowance.cpus))


def _line(planned: EnginePlan, number: int) -> dict[str, Any]:
    from homenode.cpuset import format_cpu_list

    worker, geometry = planned.worker_layout.workers[number], planned.geometries[number]
    cpus = sorted(cpu for cpu in worker.binding.team or worker.binding.others if cpu >= 0)
    roles = worker.binding.roles.roles if worker.binding.roles else {}
    return {
        "name": worker.name,
        "device": worker.device.removeprefix("torch:") if worker.device != "torch:cpu" else worker.device,
        "stage": worker.stage,
        "rank": worker.rank,
        "layers": [worker.part.layers.first, worker.part.layers.end - 1],
        "weight_bytes": planned.kept(worker).own,
        "shared_weight_bytes": planned.kept(worker).common,
        "kv_bytes_per_token": geometry.block_bytes // geometry.block_size,
        "cpus": format_cpu_list(cpus),
        "roles": {role: format_cpu_list(own) for role, own in roles.items()},
        "memory_nodes": format_cpu_list(worker.binding.memory_nodes),
    }


def _cpus_in_words(line: dict[str, Any]) -> str:
    """Return where it runs, with the CPUs of its other roles."""
    others = [f"{role} {cpus}" for role, cpus in line["roles"].items() if role != "main"]
    return ", ".join([line["cpus"] or "-", *others])


def _findings(planned: EnginePlan) -> list[dict[str, Any]]:
    return [finding.to_dict() for finding in planned.worker_layout.findings]
