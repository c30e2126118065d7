"""The settings of an engine that spans several NUMA nodes, declared once for every command that takes them."""

from __future__ import annotations

from dataclasses import dataclass

from homenode.errors import UserError
from homenode.host.plan.numa.demand import NumaDemand
from homenode.numa_policy import NumaPolicy
from homenode.options import option


@dataclass(frozen=True)
class NumaSettings:
    """`numa` None: where the other settings say nothing either and several nodes could compute, auto; else threads go
    where those settings say, and each page of weights lies where the thread that uses it first touched it."""

    numa: str | None = option(
        None,
        "Where weights lie on a host with several NUMA nodes: shard (each row with its thread, one copy), mirror (a "
        "copy on each node), replicate "
        "(an engine for each node), interleave (page by page), local (one node), or auto (what is predicted to be "
        "fastest). Default: auto, unless "
        "other flags or programs have placed threads or memory.",
        choices=tuple(policy.value for policy in NumaPolicy),
    )
    numa_nodes: str | None = option(
        None,
        "NUMA nodes to compute on, the first being that of --numa local; needs --numa. Default: all with CPUs allowed.",
        metavar="LIST",
    )
    threads_per_core: int = option(1, "CPUs of each physical core that compute.", minimum=1, maximum=2)
    numa_mirror_tensors: tuple[str, ...] = option(
        (),
        "Matrices to mirror under --numa shard, by a pattern of their names such as lm_head*; may be given several "
        "times.",
        metavar="PATTERN",
    )
    numa_strict: bool = option(
        False,
        "Refuse to start, instead of telling, when --numa needs several nodes and one is there, or pages are not "
        "where they belong.",
    )
    numa_measured: str | None = option(
        None,
        "Speeds of this machine's nodes for --numa auto, as `homenode bench nodes --out FILE` keeps them.",
        metavar="FILE",
    )

    def check(self) -> None:
        """UserError for settings that mean nothing without --numa."""
        if self.numa is not None:
            return
        for flag, value in (
            ("--numa-nodes", self.numa_nodes),
            ("--numa-mirror-tensors", self.numa_mirror_tensors),
            ("--numa-strict", self.numa_strict),
            ("--numa-measured", self.numa_measured),
        ):
            if value:
                raise UserError(
                    f"{flag} says how --numa is meant; give --numa as well", param=flag[2:].replace("-", "_")
                )

    def demand(self, threads: int | None, reserve: int | None) -> NumaDemand:
        """Return what is asked for, `auto` where no policy is named. reserve: physical cores that nothing computes on,
        None for the usual one.
        """
        policy, mirrored = NumaPolicy(self.numa or "auto"), self.numa_mirror_tensors
        return NumaDemand(policy, self.numa_nodes, threads, self.threads_per_core, mirrored, self.numa_strict, reserve)
