"""Speeds of CPUs beside each other: their capacities, cores of low power, and cores that may run faster than others
of their kind.

Sources: the kernel's Documentation/admin-guide/acpi/cppc_sysfs.rst, Documentation/ABI/testing/sysfs-devices-system-cpu
and, for cores that get more of a turbo than others by the vendor's design, Intel's manual of Speed Select.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from homenode.host.topology.facts import FactReader
from homenode.host.topology.host import Cpu
from homenode.host.topology.online import CPU_FOLDER

_FASTEST = 1024  # capacity of the fastest core: the scheduler's SCHED_CAPACITY_SCALE
_SMALL_KINDS = ("cpu_atom", "cpu_lowpower")
_LOW_POWER_KIND = "cpu_lowpower"
_HIGHEST_PERF = "acpi_cppc/highest_perf"
_MAX_FREQUENCY = "cpufreq/cpuinfo_max_freq"
_BASE_FREQUENCY = "cpufreq/base_frequency"  # what a core keeps up whatever the others do (intel_pstate)
# Priority cores may run faster than the others by a tenth at least, with no core in between, and are no more than half
# of all. Favoured cores of desktops differ by less, step by step.
_PRIORITY_GAP = 1.1


def with_speeds(reader: FactReader, cpus: Sequence[Cpu]) -> tuple[Cpu, ...]:
    """The CPUs with their capacity, highest performance and class."""
    online = [cpu.id for cpu in cpus]
    cores = {cpu.id: cpu.core for cpu in cpus}
    performances = _figures(reader, online, _HIGHEST_PERF)
    capacities = read_capacities(reader, online, cores)
    found = [
        replace(cpu, capacity=capacities.get(cpu.id, _FASTEST), highest_perf=performances.get(cpu.id)) for cpu in cpus
    ]
    low_power = _low_power(reader, found)
    priority = _priority(found, _figures(reader, online, _BASE_FREQUENCY))
    return tuple(replace(cpu, low_power=cpu.id in low_power, priority=cpu.core in priority) for cpu in found)


def read_capacities(reader: FactReader, online: Sequence[int], cores: Mapping[int, int]) -> dict[int, int]:
    """Capacity by CPU, 1024 for the fastest; empty when all are equal or nothing is told. Read once for each core.

    In this order: `cpu_capacity` (Arm; x86 from Linux 6.12, where it says 1024 throughout while SMT is on); then, on
    x86 parts with cores of two kinds and on Arm without that file, `acpi_cppc/highest_perf` and
    `cpufreq/cpuinfo_max_freq`. The first that every core has is taken, but on parts with two kinds the first that tells
    cores apart. Where none does, their small cores get 512, which says no more than "slower". The small differences
    between equal cores of other x86 parts are turbo preferences, not capacities, and are left out.
    """
    heads = [cpu for cpu in online if cores.get(cpu, cpu) == cpu]
    small = {cpu for kind in _SMALL_KINDS for cpu in _of_kind(reader, kind)}
    two_kinds = bool(small) or _frequencies_differ(reader, heads)
    files = ["cpu_capacity"]
    if two_kinds or reader.source.machine.startswith(("arm", "aarch64")):
        files += [_HIGHEST_PERF, _MAX_FREQUENCY]
    figures = (_figure_of_each(reader, heads, file) for file in files)
    found = next((figure for figure in figures if figure and (not two_kinds or len(set(figure.values())) > 1)), {})
    if not found and small:
        found = {cpu: 1 if cpu in small else 2 for cpu in heads}
    most = max(found.values(), default=0)
    if most == min(found.values(), default=0):
        return {}
    return {cpu: max(1, found[cores.get(cpu, cpu)] * _FASTEST // most) for cpu in online}


def _low_power(reader: FactReader, cpus: Sequence[Cpu]) -> set[int]:
    """CPUs of cores that are made to save power: those that the kernel calls so, and slower ones without the last-level
    cache that faster ones have (LP-E cores on the SoC tile of Core Ultra)."""
    named = set(_of_kind(reader, _LOW_POWER_KIND))
    cached = max((cpu.capacity for cpu in cpus if cpu.l3 is not None), default=0)
    return {cpu.id for cpu in cpus if cpu.id in named or (cpu.l3 is None and cpu.capacity < cached)}


def _priority(cpus: Sequence[Cpu], base_frequencies: Mapping[int, int]) -> set[int]:
    """Cores that the processor lets run faster than others of the same kind: by their highest performance (Intel's
    Priority Core Turbo), else by their base frequency (Speed Select). Empty where cores are of several kinds."""
    if any(cpu.capacity != _FASTEST for cpu in cpus):
        return set()
    performances = {cpu.core: cpu.highest_perf or 0 for cpu in cpus}
    frequencies = {cpu.core: base_frequencies.get(cpu.id, 0) for cpu in cpus}
    return _ahead_of_others(performances) or _ahead_of_others(frequencies)


def _ahead_of_others(figures: Mapping[int, int]) -> set[int]:
    """The cores above the first gap, where they are no more than half; empty where a core does not tell (0)."""
    levels = sorted(set(figures.values()), reverse=True)
    if 0 in levels:
        return set()
    least = next((upper for upper, lower in pairwise(levels) if upper >= _PRIORITY_GAP * lower), None)
    fast = {core for core, figure in figures.items() if least is not None and figure >= least}
    return fast if 2 * len(fast) <= len(figures) else set()


def _of_kind(reader: FactReader, kind: str) -> tuple[int, ...]:
    return reader.cpus(f"/sys/devices/{kind}/cpus") or ()


def _frequencies_differ(reader: FactReader, heads: Sequence[int]) -> bool:
    """Return whether a core is slower than another by more than a turbo step: what is left to tell two kinds by without
    cpu_atom.
    """
    frequencies = _figures(reader, heads, _MAX_FREQUENCY).values()
    return min(frequencies, default=0) * 5 < max(frequencies, default=0) * 4


def _figures(reader: FactReader, cpus: Sequence[int], file: str) -> dict[int, int]:
    """The figure of every CPU that tells one above 0. Nobody is asked where the first of them has no such file."""
    if not cpus or reader.source.read(f"{CPU_FOLDER}/cpu{cpus[0]}/{file}") is None:
        return {}
    figures = ((cpu, reader.number(f"{CPU_FOLDER}/cpu{cpu}/{file}")) for cpu in cpus)
    return {cpu: figure for cpu, figure in figures if figure is not None and figure > 0}


def _figure_of_each(reader: FactReader, cpus: Sequence[int], file: str) -> dict[int, int]:
    """The same where all of them tell one; else empty."""
    found = _figures(reader, cpus, file)
    return found if len(found) == len(cpus) else {}
