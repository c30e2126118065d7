"""CPU lists and node lists as numactl reads them (numactl(8), `--physcpubind`, `--membind`), but never wider than the
allowance.

    list  := ["!"] ["+"] item ("," item)*
    item  := number | number "-" number          number := decimal | 0x hexadecimal
    last item also: "all", for nodes one of the words netdev: file: ip: block: pci: with its argument

`!` turns the whole list round, `+` counts within the allowance (`+0` is the first allowed CPU). A whole node list may
be `same`: the list given before. Both ends of a range must be allowed; what lies between them and is not allowed is
left out. numactl itself turns `!` round over all CPUs of the machine and so escapes an inherited affinity mask, takes
`1-0` for 1, and reads `010` as octal: here the first stays inside, the others are refused.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from homenode.cpuset import format_cpu_list
from homenode.errors import PlacementError
from homenode.host.plan.resources.nodes import permitted_nodes
from homenode.host.topology.host import Host

_LONGEST = 32768  # characters of a list: 2048 CPUs one by one take about 10 000
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]{1,8}|0|[1-9][0-9]{0,8}")
_PCI = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:[.:]([0-7]))?")
_WORDS = ("netdev", "file", "ip", "block", "pci")


@dataclass(frozen=True, slots=True)
class _Grammar:
    """The differences of the two lists. `refuse_number` raises for a number that is not in `universe`. `seen`: what a
    refusal shows, else the text.
    """

    kind: str  # "CPU" | "node"
    code: str
    text: str
    universe: tuple[int, ...]
    refuse_number: Callable[[int], PlacementError]
    resolve_word: Callable[[str], tuple[int, ...]]
    seen: str = ""

    def error(self, why: str) -> PlacementError:
        return PlacementError(
            self.code,
            f"the {self.kind} list {_quoted(self.text)} cannot be read: {why}",
            seen=_quoted(self.seen or self.text),
            wanted="numbers and ascending ranges such as 0-3,8, perhaps after one ! or + for the whole list, or all",
            remedy=f"Write the {self.kind}s that are meant.",
        )


def parse_cpus(text: str, allowed: Sequence[int], online: Sequence[int], *, named: str = "") -> tuple[int, ...]:
    """CPUs that `text` means, ascending, never outside `allowed`. `named`: what a refusal shows as seen, where it is
    more than the text.

    Raises PlacementError: bad_cpu_list, cpus_not_allowed.
    """
    seen, there, permitted = named or text, set(online), tuple(sorted(set(allowed)))

    def refuse(cpu: int) -> PlacementError:
        return PlacementError(
            "cpus_not_allowed",
            f"CPU {cpu} of the list {_quoted(text)} "
            + ("may not be used by this process" if cpu in there else "does not exist or is offline"),
            seen=_quoted(seen),
            wanted=f"CPUs among {format_cpu_list(permitted) or 'none'}",
            remedy="Name allowed CPUs only, or widen what this process inherits (taskset, Slurm, cpuset).",
        )

    def word(found: str) -> tuple[int, ...]:
        raise grammar.error(f"{_quoted(found)} is no CPU number")

    grammar = _Grammar("CPU", "bad_cpu_list", text, permitted, refuse, word, seen)
    return _parse(grammar)


def left_out(text: str, allowed: Sequence[int], online: Sequence[int]) -> tuple[int, ...]:
    """Online CPUs inside the ranges of a valid `text` that are left out as not allowed; nothing for lists with `!`, `+`
    or `all`."""
    if text.strip().startswith(("!", "+")) or text.strip().endswith("all"):
        return ()
    return tuple(sorted(set(parse_cpus(text, online, online)) - set(allowed)))


def parse_nodes(text: str, host: Host, *, previous: Sequence[int] | None = None) -> tuple[int, ...]:
    """Nodes that `text` means, ascending, of those whose memory this process may take. `previous`: what `same` stands
    for.

    Raises PlacementError: bad_node_list, no_such_node, nodes_not_allowed.
    """
    permitted = permitted_nodes(host)

    def word(found: str) -> tuple[int, ...]:
        node = _node_of_word(host, found, grammar)
        if node not in permitted:
            raise refused_node(host, node, found)
        return (node,)

    grammar = _Grammar("node", "bad_node_list", text, permitted, lambda node: refused_node(host, node, text), word)
    if text.strip() == "same":
        if not previous:
            raise grammar.error("`same` repeats the list given before, and there is none")
        return tuple(previous)
    return _parse(grammar)


def check_memory_nodes(host: Host, nodes: Sequence[int], origin: str = "--memory-nodes") -> None:
    """Raises PlacementError no_such_node, node_without_memory or nodes_not_allowed for the first of these nodes whose
    memory may not be taken. `origin`: the flag or the variable that named them."""
    for node in nodes:
        if node not in permitted_nodes(host):
            raise refused_node(host, node, f"{origin} {format_cpu_list(nodes)}")


def refused_node(host: Host, node: int, text: str) -> PlacementError:
    """Return why memory of a node may not be asked for: no_such_node, node_without_memory or nodes_not_allowed. `text`:
    the list it was named in.
    """
    permitted, online = permitted_nodes(host), tuple(sorted(host.node_by_id)) or (0,)
    exists = node in online
    known = host.node_by_id.get(node)
    if known is not None and known.memory == 0:
        return PlacementError(
            "node_without_memory",
            f"NUMA node {node} has no memory",
            seen=_quoted(text),
            wanted=f"nodes among {format_cpu_list(permitted) or 'none'}",
            remedy="Name nodes that have memory; `homenode host` shows how much each has.",
        )
    return PlacementError(
        "nodes_not_allowed" if exists else "no_such_node",
        f"memory of NUMA node {node} may not be taken by this process"
        if exists
        else f"this host has no NUMA node {node}",
        seen=_quoted(text),
        wanted=f"nodes among {format_cpu_list(permitted) or 'none'}",
        remedy="Name allowed nodes only, or widen cpuset.mems of the container."
        if exists
        else "See the nodes there are with `homenode host`.",
    )


def _parse(grammar: _Grammar) -> tuple[int, ...]:
    """The set a list means: parsed, cut to the universe, turned round where asked. Never empty."""
    rest = grammar.text.strip()
    if not rest:
        raise grammar.error("it is empty")
    if len(rest) > _LONGEST:
        raise grammar.error(f"it is longer than {_LONGEST} characters")
    inverted = rest.startswith("!")
    rest = rest.removeprefix("!")
    relative = rest.startswith("+")
    rest = rest.removeprefix("+")
    chosen = _items(grammar, rest, relative)
    if inverted:
        chosen = set(grammar.universe) - chosen
    if not chosen:
        raise grammar.error(f"no {grammar.kind} is left")
    return tuple(sorted(chosen))


def _items(grammar: _Grammar, rest: str, relative: bool) -> set[int]:
    chosen: set[int] = set()
    while True:
        if rest == "all":
            return chosen | set(grammar.universe)
        if rest[:1].isalpha():  # a word takes all that follows: a path may hold commas
            return chosen | set(grammar.resolve_word(rest))
        item, comma, rest = rest.partition(",")
        chosen.update(_range(grammar, item, relative))
        if not comma:
            return chosen


def _range(grammar: _Grammar, item: str, relative: bool) -> tuple[int, ...]:
    first, dash, last = item.partition("-")
    low = _number(grammar, first, relative)
    high = _number(grammar, last, relative) if dash else low
    if high < low:
        raise grammar.error(f"the range {_quoted(item)} descends")
    return grammar.universe[bisect_left(grammar.universe, low) : bisect_right(grammar.universe, high)]


def _number(grammar: _Grammar, text: str, relative: bool) -> int:
    if not _NUMBER.fullmatch(text):
        raise grammar.error(f"{_quoted(text)} is no number" if text else "a number is missing")
    number = int(text, 0)
    if not relative:
        if bisect_left(grammar.universe, number) == bisect_right(grammar.universe, number):
            raise grammar.refuse_number(number)
        return number
    if number >= len(grammar.universe):
        raise grammar.error(f"+{number} counts beyond the {len(grammar.universe)} that are allowed")
    return grammar.universe[number]


def _node_of_word(host: Host, word: str, grammar: _Grammar) -> int:
    """The node of the PCI device a word names; the other words need facts that are not gathered here."""
    name, colon, address = word.partition(":")
    if not colon or name not in _WORDS:
        raise grammar.error(
            f"{_quoted(word)} is neither a number nor one of the words all, same, "
            f"{', '.join(f'{word}:' for word in _WORDS)}"
        )
    if name != "pci":
        raise grammar.error(
            f"`{name}:` is not supported; look up the device's node with `homenode host` and name that, or use "
            "pci:ADDRESS"
        )
    match = _PCI.fullmatch(address.lower())
    if not match:
        raise grammar.error(f"{_quoted(address)} is no PCI address such as 0000:c1:00.0")
    domain, bus, slot, function = match.groups()
    full = f"{int(domain or '0', 16):04x}:{bus}:{slot}.{function or '0'}"
    device = next((device for device in host.devices if device.address == full), None)
    if device is None or device.node is None:
        raise grammar.error(
            f"this host has no PCI device {full}"
            if device is None
            else f"the firmware does not say which node the PCI device {full} is on"
        )
    return device.node


def _quoted(text: str) -> str:
    """A user's text for a message: one line, not too long."""
    return repr(text if len(text) <= 80 else text[:77] + "...")
