"""Hosts made up from one line, such as `2s/4n/64c/smt2/gpu=8`: for tests, for trying a plan out, for showing what a
setting does.

A line is parts in any order with `/`, spaces or commas between them:

    2s 4n 64c smt2     sockets, NUMA nodes and cores, each in all, and threads per core. Without: 1s, as many nodes as
                       sockets, smt1. `0n`: a kernel without NUMA. Cores go to the nodes and nodes to the sockets in
                       order, the first taking what does not divide.
    numbering=split    all first threads, then all second ones (siblings c and c + cores): the default. `paired`:
                       siblings next to each other. `round`: dealt out to the nodes one by one, as some servers'
                       firmware does, then as in split.
    l3=8               cores per L3 (default: all of a node on one socket; 0: the kernel shows no L3). cluster=4: cores
                       per L2 cluster.
    big=4 little=8     cores of two speeds, the big ones first, instead of `12c`; little ones have one thread.
    mem=64GiB          memory of a node (default 16GiB). memoryless=1: the last so many nodes have none. cpuless=2: so
                       many further nodes have memory only. ids=0,8: the node numbers, in that order.
    offline=3-5        CPUs that are switched off. allowed=0-15: this process's affinity mask. cpuset=0-31 and mems=0:
                       what its control group permits. quota=2.5: its CPU time, in CPUs.
    gpu=8 npu=8:A2     accelerators, spread over the nodes with CPUs: NVIDIA GPUs (gpu=8:amd for AMD's), or Ascend chips
                       of the family A2, A3, 310P or 950.
    arm                an aarch64 machine rather than an x86_64 one.

What comes out is what the kernel and the vendors' tools would say, read by the same code as a live machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from homenode.cpuset import parse_cpu_list
from homenode.errors import UserError
from homenode.host.topology.source import RecordedSource
from homenode.testing.hosts.files import kernel_files
from homenode.testing.hosts.shape import GPU_MAKERS, NPU_FAMILIES, NUMBERINGS, Shape
from homenode.testing.hosts.tools import tool_outputs
from homenode.units import parse_bytes

_SEPARATOR = re.compile(r"[/\s]+|,(?=[a-z]|[0-9]+[snc](?:[/,\s]|$))")
_COUNTED = re.compile(r"([0-9]{1,6})([snc])|(smt)([0-9]{1,3})")
_FIRST_PART = re.compile(r"\s*(?:[0-9]+[snc]|smt[0-9]+|(?:big|little)=[0-9]+)(?:[/,\s]|$)")
_MOST_LETTERS = 4096


def looks_synthetic(text: str) -> bool:
    """Return whether `text` begins as a one-line host does, rather than the name of a file."""
    return _FIRST_PART.match(text) is not None


def synthetic(text: str) -> RecordedSource:
    """The host that a line describes. Raises UserError naming the part that is wrong."""
    shape = parse_shape(text)
    return RecordedSource(shape.machine, kernel_files(shape), tool_outputs(shape))


def parse_shape(text: str) -> Shape:
    """The figures of a line. Raises UserError naming the part that is wrong."""
    if len(text) > _MOST_LETTERS:
        raise UserError(f"a one-line host has at most {_MOST_LETTERS} letters; this one has {len(text)}")
    values: dict[str, object] = {}
    for part in filter(None, _SEPARATOR.split(text.strip())):
        key, value = _part(text, part)
        if key in values:
            raise _wrong(text, part, "it is given twice")
        values[key] = value
    big, little = values.pop("big", None), values.pop("little", None)
    if (big is not None or little is not None) and "cores" in values:
        raise _wrong(text, "c", "big= and little= already say how many cores there are")
    if isinstance(big, int) or isinstance(little, int):
        values["cores"] = (big if isinstance(big, int) else 0) + (little if isinstance(little, int) else 0)
        values["little"] = little or 0
    try:
        return Shape(**values)  # type: ignore[arg-type]
    except ValueError as error:
        raise UserError(f"the host {_quoted(text)} cannot be: {error}") from error


@dataclass(frozen=True, slots=True)
class _Word:
    """A `name=value` part: the field of Shape, how to read the value, and what a right one looks like."""

    field: str
    read: Callable[[str], object]
    wanted: str


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 6):
        raise ValueError(text)
    return int(text)


def _numbers(text: str) -> tuple[int, ...]:
    """Numbers in the order given: 8,0 stays 8,0."""
    return tuple(_count(part) for part in text.split(","))


def _numbering(text: str) -> str:
    return _one_of(NUMBERINGS, text)


def _share(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,5})?", text) or float(text) < 0.01:
        raise ValueError(text)
    return float(text)


def _gpus(text: str) -> tuple[int, str]:
    count, colon, maker = text.partition(":")
    return _count(count), _one_of(GPU_MAKERS, maker if colon else GPU_MAKERS[0])


def _npus(text: str) -> tuple[int, str]:
    count, _, family = text.partition(":")
    return _count(count), _one_of(NPU_FAMILIES, family)


def _one_of(words: Sequence[str], word: str) -> str:
    if word not in words:
        raise ValueError(word)
    return word


_LIST = "a list such as 0-15"
_NUMBER = "a whole number"
_WORDS: Mapping[str, _Word] = {
    "allowed": _Word("allowed", parse_cpu_list, _LIST),
    "big": _Word("big", _count, _NUMBER),
    "cluster": _Word("cluster", _count, _NUMBER),
    "cpuless": _Word("cpuless", _count, _NUMBER),
    "cpuset": _Word("cpuset", parse_cpu_list, _LIST),
    "gpu": _Word("gpus", _gpus, "a number such as 8, or 8:amd"),
    "ids": _Word("ids", _numbers, "numbers such as 0,8"),
    "l3": _Word("l3", _count, _NUMBER),
    "little": _Word("little", _count, _NUMBER),
    "mem": _Word("memory", parse_bytes, "a size such as 64GiB"),
    "memoryless": _Word("memoryless", _count, _NUMBER),
    "mems": _Word("mems", parse_cpu_list, "a list such as 0-1"),
    "npu": _Word("npus", _npus, f"a number and a family ({', '.join(NPU_FAMILIES)}), such as 8:A2"),
    "numbering": _Word("numbering", _numbering, " or ".join(NUMBERINGS)),
    "offline": _Word("offline", parse_cpu_list, "a list such as 3-5"),
    "quota": _Word("quota", _share, "a number of CPUs such as 2.5"),
}
_COUNTS = {"s": "sockets", "n": "nodes", "c": "cores", "smt": "smt"}


def _part(text: str, part: str) -> tuple[str, object]:
    """The field that a part sets, and the value."""
    if part == "arm":
        return "machine", "aarch64"
    if counted := _COUNTED.fullmatch(part):
        number, unit = (counted[1], counted[2]) if counted[2] else (counted[4], counted[3])
        return _COUNTS[unit], int(number)
    name, equals, value = part.partition("=")
    word = _WORDS.get(name)
    if word is None or not equals:
        raise _wrong(
            text,
            part,
            "wanted counts such as 2s, 4n, 64c, smt2, the word arm, or one of "
            f"{', '.join(f'{name}=' for name in _WORDS)}",
        )
    try:
        return word.field, word.read(value)
    except (UserError, ValueError) as error:
        raise _wrong(text, part, f"wanted {word.wanted}") from error


def _wrong(text: str, part: str, reason: str) -> UserError:
    return UserError(f"the host {_quoted(text)}, part {_quoted(part)}: {reason}")


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
