"""Memory as the kernel accounts for it: sizes, huge pages, and the settings that move pages about.

Source: proc_meminfo(5); the kernel's Documentation/admin-guide/mm/{hugetlbpage,transhuge}.rst and
Documentation/admin-guide/sysctl/kernel.rst.
"""

from __future__ import annotations

from collections.abc import Collection

from homenode.host.topology.facts import FactReader, parse_number
from homenode.host.topology.online import NODE_FOLDER, read_node_ids
from homenode.host.topology.reclaimable import easily_had

_TRANSPARENT = ("always", "madvise", "never")
_PREFIX, _SUFFIX = "hugepages-", "kB"


def read_meminfo(reader: FactReader, path: str) -> dict[str, int]:
    """Bytes by name: of /proc/meminfo, or of a node's meminfo, whose lines begin with `Node 0`. Lines of other kinds
    are left out."""
    found = {}
    for line in reader.text(path).splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB" and (size := parse_number(words[0])) is not None and size >= 0:
            found[name.rpartition(" ")[2]] = size * 1024
    return found


def read_available(reader: FactReader) -> int:
    """Bytes of the machine that can be taken without swapping: MemAvailable, else, where it is not told, what that is
    made of; 0 without either.
    """
    found = read_meminfo(reader, "/proc/meminfo")
    return found.get("MemAvailable", easily_had(found))


def available_on(reader: FactReader, nodes: Collection[int]) -> int:
    """Bytes that can be taken from `nodes` without swapping: their part of MemAvailable, which the kernel tells of the
    whole machine only.

    Their part is that of the pages that are free or can be read again. All of it where the nodes do not say.
    """
    whole = read_available(reader)
    easy = _easily_had(reader, read_node_ids(reader))
    total = sum(easy.values())
    return whole * sum(easy.get(node, 0) for node in set(nodes)) // total if total else whole


def available_by_node(reader: FactReader, nodes: Collection[int]) -> dict[int, int]:
    """Return what `available_on` says of each node by itself; one that does not tell what is free there is missing, as
    in a recording.

    Where the kernel tells of nodes only, all pages that are free or can be read again count as available.
    """
    easy = _easily_had(reader, nodes)
    total = sum(easy.values())
    whole = read_meminfo(reader, "/proc/meminfo").get("MemAvailable", total)
    return {node: whole * size // total if total else 0 for node, size in easy.items()}


def _easily_had(reader: FactReader, nodes: Collection[int]) -> dict[int, int]:
    """Bytes by node that are free or can be read again; a node without such figures is missing."""
    sizes = {node: read_meminfo(reader, f"{NODE_FOLDER}/node{node}/meminfo") for node in nodes}
    return {node: easily_had(found) for node, found in sizes.items() if "MemFree" in found}


def read_huge_pages(reader: FactReader, folder: str) -> dict[int, int]:
    """Reserved huge pages in a `hugepages` folder: how many, by the size of one in bytes."""
    found = {}
    for name in reader.source.names(folder):
        size = (
            parse_number(name[len(_PREFIX) : -len(_SUFFIX)])
            if name.startswith(_PREFIX) and name.endswith(_SUFFIX)
            else None
        )
        count = reader.number(f"{folder}/{name}/nr_hugepages") if size else None
        if size and size > 0 and count is not None and count >= 0:
            found[size * 1024] = count
    return dict(sorted(found.items()))


def read_numa_balancing(reader: FactReader) -> bool | None:
    """Return whether the kernel moves pages and tasks between nodes by itself; None where it cannot."""
    mode = reader.number("/proc/sys/kernel/numa_balancing")
    return None if mode is None else mode != 0


def read_transparent_huge_pages(reader: FactReader) -> str:
    """The word in brackets of `always [madvise] never`; empty where there is none."""
    text = reader.text("/sys/kernel/mm/transparent_hugepage/enabled")
    word = text.partition("[")[2].partition("]")[0]
    if text and word not in _TRANSPARENT:
        reader.note(
            "fact_unreadable",
            f"/sys/kernel/mm/transparent_hugepage/enabled: {text[:40]!r} has none of its words in brackets",
        )
    return word if word in _TRANSPARENT else ""
