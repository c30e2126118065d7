"""Findings about the pages that weights and KV memory lie on. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from homenode.host.bind.memory.huge_pages import Residence, small_pages, small_shared_pages
from homenode.host.topology.finding import Finding


def residence_of(stats: Mapping[str, Any]) -> Residence:
    """Weights and KV memory together. `stats`: what `NativeBackend.statistics` says; of others nothing is known, and
    nothing is present.

    Without KV memory that others can map: huge pages for it are a setting of its own (shmem_enabled), `never` on most
    machines, and were not missed where that was measured.
    """
    parts = (
        stats.get(name) for name in (("weight_pages",) if stats.get("kv_shared") else ("weight_pages", "kv_pages"))
    )
    return sum((Residence(part["present"], part["huge"]) for part in parts if part), Residence())


def on_small_pages(stats: Mapping[str, Any], setting: str, disabled: bool) -> tuple[Finding, ...]:
    """See `small_pages`; of weights that several processes map, see `small_shared_pages`."""
    shared = stats.get("shared_pages")
    found = small_shared_pages(Residence(shared["present"], shared["huge"])) if shared else ()
    return small_pages(residence_of(stats), setting, disabled) + found
