"""Options that the commands of `homenode bench` take, and the models that they measure on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

import click

from homenode.engine.config import ComputeConfig, EngineConfig
from homenode.errors import UserError
from homenode.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from homenode.compute.native import NativeBackend, NativeMeter
    from homenode.engine.binding import EngineBinding
    from homenode.host.topology.host import Host
    from homenode.model.spec import Checkpoint

_READ_BYTES = 512 << 20  # read for the ceilings; less where little memory is free


class Numbers(click.ParamType[tuple[int, ...]]):
    """`1,4,8`."""

    name = "N,N,..."

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """The numbers, all above 0."""
        if isinstance(value, tuple):
            return value
        parts = str(value).split(",")
        if not all(p.strip().isdecimal() and int(p) > 0 for p in parts):
            self.fail(f"{value!r} is no list of numbers above 0, such as 1,4,8", param, ctx)
        return tuple(int(p) for p in parts)


class SizeList(click.ParamType[tuple[int, ...]]):
    """`64KiB,1MiB`."""

    name = "SIZE,SIZE,..."

    def __init__(self, multiple_of: int = 1) -> None:
        """Each size is to be a multiple of this many bytes."""
        self._multiple_of = multiple_of

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return the sizes in bytes, all above 0."""
        if isinstance(value, tuple):
            return value
        try:
            sizes = tuple(parse_bytes(part) for part in str(value).split(","))
        except UserError as error:
            self.fail(error.message, param, ctx)
        if not all(size > 0 and size % self._multiple_of == 0 for size in sizes):
            self.fail(f"{value!r}: sizes must be multiples of {format_bytes(self._multiple_of)}, above 0", param, ctx)
        return sizes


class Shapes(click.ParamType[tuple[tuple[int, int], ...]]):
    """`1024x4096,4096x1024`: inputs by outputs."""

    name = "KxN,KxN,..."

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[tuple[int, int], ...]:
        """The pairs, all above 0."""
        if isinstance(value, tuple):
            return value
        found = [re.fullmatch(r"\s*([1-9][0-9]{0,7})x([1-9][0-9]{0,7})\s*", part) for part in str(value).split(",")]
        if not all(found):
            self.fail(f"{value!r} is no list of shapes such as 1024x4096,4096x1024 (inputs by outputs)", param, ctx)
        return tuple((int(m[1]), int(m[2])) for m in found if m)


class HeadShapes(click.ParamType[tuple[tuple[int, int, int], ...]]):
    """`14x2x64,32x8x64`: query heads by KV heads by elements of a head."""

    name = "HxKxD,HxKxD,..."

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[tuple[int, int, int], ...]:
        """The figures, all above 0."""
        if isinstance(value, tuple):
            return value
        found = [
            re.fullmatch(r"\s*([1-9][0-9]{0,4})x([1-9][0-9]{0,4})x([1-9][0-9]{0,4})\s*", part)
            for part in str(value).split(",")
        ]
        if not all(found):
            self.fail(
                f"{value!r} is no list of shapes such as 14x2x64,32x8x64 (query heads by KV heads by elements of a "
                "head)",
                param,
                ctx,
            )
        return tuple((int(m[1]), int(m[2]), int(m[3])) for m in found if m)


class Names(click.ParamType[tuple[str, ...]]):
    """`Q8_0,Q4_0`."""

    name = "NAME,NAME,..."

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """The names in capitals; whether they exist is for others to say."""
        if isinstance(value, tuple):
            return value
        return tuple(part.strip().upper() for part in str(value).split(","))


def native_backend(threads: int | None, isa: str | None) -> NativeBackend:
    """The compiled core on the CPUs it would choose for serving."""
    from homenode.engine.backend import make_backend
    from homenode.engine.memory.sizing import choose_cpus
    from homenode.engine.plan.placement import team_groups
    from homenode.host.discovery.read import read_host
    from homenode.host.process_limits import require_large_stack
    from homenode.host.topology.source import LiveSource

    require_large_stack()
    host = read_host(LiveSource(), accelerators=False)
    cpus = choose_cpus(threads, host)
    _tell_of_neighbours(host, cpus)
    return cast(
        "NativeBackend",
        make_backend(ComputeConfig(backend="native", threads=threads, isa=isa), cpus, team_groups(host, cpus)),
    )


def engine_backend(config: EngineConfig, checkpoint: Checkpoint) -> tuple[NativeBackend, EngineBinding, Host]:
    """The compiled core in the place that an engine with these settings would have, that place and this host; what is
    to be known is told on stderr."""
    from homenode.cli.output.report import print_note
    from homenode.engine.assignment import EngineAssignment
    from homenode.engine.backend import make_backend
    from homenode.engine.memory.node_capacity import weight_nodes_of
    from homenode.engine.memory.numa import team_memory
    from homenode.engine.pinning import apply_binding
    from homenode.engine.plan.inline import place_of_engine
    from homenode.engine.plan.placement import team_groups
    from homenode.engine.plan.unbound import unbound
    from homenode.host.bind.base.optional_calls import affinity_refusal
    from homenode.host.discovery.read import read_host
    from homenode.host.process_limits import require_large_stack
    from homenode.host.topology.source import LiveSource
    from homenode.model.weights.load import plan_model

    require_large_stack()
    host = read_host(LiveSource(), accelerators=False)
    refusal = affinity_refusal()
    binding = unbound(place_of_engine(EngineAssignment(config), checkpoint, host), refusal)
    if refusal is None:
        _tell_of_neighbours(host, binding.team)
    for finding in (*binding.findings, *((refusal,) if refusal else ()), *apply_binding(binding)):
        if finding.severity != "info":
            print_note(finding.text)
    backend = make_backend(config.compute, binding.team, team_groups(host, binding.team), team_memory(binding, host))
    layout = plan_model(checkpoint, backend, quantize=config.model.quantize, dtype=config.model.dtype)
    weight_nodes_of(config, host, binding, layout, backend)
    return cast("NativeBackend", backend), binding, host


def _tell_of_neighbours(host: Host, team: Sequence[int]) -> None:
    """Say who has claimed the cores that are measured: figures are of what is left of them."""
    from homenode.cli.output.report import print_note
    from homenode.host.bind.claims import living_claims
    from homenode.host.plan.claimed import overlaps

    why = "a measurement takes the CPUs that an engine alone would have, so its figures are of shared cores"
    for finding in overlaps(host, living_claims(), team, why):
        print_note(finding.text)


def meter_of(backend: NativeBackend) -> NativeMeter:
    """Measures the limits of the backend's threads, with memory that is well beyond the caches."""
    from homenode.host.topology.allowance import Allowance

    return backend.meter(min(_READ_BYTES, Allowance.of_process().memory_available // 8))
