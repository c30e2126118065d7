"""The purposes of a pool's CPUs under `fair`, by kind of accelerator. Pure.

    own driver threads | irq, 2 CPUs | main: the process and its threads | acl | release |
    other devices      | irq, 1 CPU | main: the process with the driver's threads        |
    no device          | main                                                            |

Interrupts go to the slowest of the cores on the device's own nodes and threads that submit to the fastest; where all
are alike the order is as drawn. Where the own nodes have too few CPUs for all roles, interrupts go elsewhere first: the
process and its threads touch the device and its memory all the time.
"""

from __future__ import annotations

from collections.abc import Sequence

from homenode.host.plan.resources.cores import AllowedCore, cpus_of
from homenode.host.topology.accelerator_kinds import KINDS

Roles = dict[str, tuple[int, ...]]

# CPUs from which on roles have CPUs of their own: two for interrupts, one each for acl and release, one for the process
ROLES_APART = 5
# cores from which on the driver's threads have theirs with all SMT siblings: these five, and one more for the process
_CORES_APART = 6
_SPECIAL_CORES = 4  # cores that the roles beside main can take


def assign_roles(kind: str | None, pool: Sequence[AllowedCore], local: int) -> Roles:
    """CPUs by role; all of the pool is `main` where it is too small for more. The first `local` cores of the pool are
    on the device's own nodes."""
    cpus = cpus_of(pool)
    if kind is None:
        return {"main": cpus}
    ranked = _ranked(pool, local)
    if len(cpus) < ROLES_APART:
        return _shared(kind, cpus, cpus_of(ranked))
    if not KINDS[kind].has_driver_threads:
        irq = ranked[0].cpus[:1]
        return {"irq": irq, "main": _rest(cpus, irq)}
    acl, release = _driver_cpus(ranked, whole=len(pool) >= _CORES_APART)
    irq = _rest(cpus_of(ranked), acl, release)[:2]
    return {"irq": irq, "main": _rest(cpus, irq, acl, release), "acl": acl, "release": release}


def _ranked(pool: Sequence[AllowedCore], local: int) -> list[AllowedCore]:
    """The cores that the roles beside main choose among, those for interrupts first."""
    own = pool[:local]
    if local and len(cpus_of(own)) < ROLES_APART:
        return sorted(pool[local:], key=lambda core: core.standing) + sorted(own, key=lambda core: core.standing)
    return sorted(pool[: max(local, _SPECIAL_CORES)], key=lambda core: core.standing)


def _shared(kind: str, cpus: tuple[int, ...], ranked: tuple[int, ...]) -> Roles:
    if not KINDS[kind].has_driver_threads:
        return {"irq": ranked[:1], "main": cpus}
    return {"irq": ranked[:2], "main": cpus, "acl": ranked[-2:-1] or ranked[-1:], "release": ranked[-1:]}


def _driver_cpus(ranked: Sequence[AllowedCore], *, whole: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """CPUs for acl and release: the two last cores, or one CPU of each where cores are few; two CPUs of a core where
    there is only one."""
    last = ranked[-1].cpus
    if len(ranked) == 1:
        return last[-2:-1], last[-1:]
    before = ranked[-2].cpus
    return (before, last) if whole else (before[-1:], last[-1:])


def _rest(cpus: Sequence[int], *taken: Sequence[int]) -> tuple[int, ...]:
    gone = {cpu for part in taken for cpu in part}
    return tuple(cpu for cpu in cpus if cpu not in gone)
