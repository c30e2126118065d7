"""The NUMA policies: where the bytes of a weight lie, by one name from the command line to the native core.

| policy | weights lie |
|---|---|
| shard | each row with the thread that multiplies it: one copy in all |
| mirror | whole on every node's memory |
| replicate | whole on every node, each copy for an engine of its own |
| interleave | page by page round robin over the nodes' memory |
| local | on one node, whose threads alone compute |

`auto` is a question, which `host.plan.numa.policy` answers. The native core is given one of MATRIX_POLICIES for
each matrix: a replica and the engine of `local` have all their threads on one node, where these are the same.
"""

from __future__ import annotations

from enum import StrEnum


class NumaPolicy(StrEnum):
    """The places where weights lie on a host with several NUMA nodes. The names are those of --numa, of recorded plans,
    and of `NumaPolicy` in csrc/weights/weight.h.
    """

    AUTO = "auto"
    SHARD = "shard"
    MIRROR = "mirror"
    REPLICATE = "replicate"
    INTERLEAVE = "interleave"
    LOCAL = "local"


PLANNED_POLICIES = tuple(policy for policy in NumaPolicy if policy is not NumaPolicy.AUTO)
MATRIX_POLICIES = (NumaPolicy.SHARD, NumaPolicy.MIRROR, NumaPolicy.INTERLEAVE)
WHOLE_POLICIES = (NumaPolicy.MIRROR, NumaPolicy.REPLICATE)  # every node that holds weights has all of them
