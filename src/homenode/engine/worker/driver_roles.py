"""Make the roles of a worker on an NPU true: its driver's threads are bound as they come, its device's interrupts go to
their CPUs and are given back when the worker ends, however it ends.

A process that `homenode run` follows is bound by that, by the plan that its user asked for; two who bind the same
threads to different places would take turns.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace

import msgspec

from homenode.engine.binding import DriverRoles, EngineBinding
from homenode.engine.channels.messages import Join
from homenode.errors import HomenodeError, HostError
from homenode.host.bind.base.state import State, open_state
from homenode.host.bind.base.target import Target, target_of
from homenode.host.bind.base.threads import ancestors
from homenode.host.bind.claims import read_claims
from homenode.host.bind.kernel_threads import bind_kernel_threads
from homenode.host.bind.watchdog import Watchdog
from homenode.host.discovery.read import read_host
from homenode.host.plan.demand import Claim
from homenode.host.plan.plan import WorkerBinding
from homenode.host.topology.accelerators.ascend import board_address
from homenode.host.topology.host import Accelerator
from homenode.host.topology.source import LiveSource

_log = logging.getLogger(__name__)


def begin_roles(join: Join) -> Join:
    """Look after the roles that the worker was given, from a process of one thread, before it is bound. The message
    without a place where somebody else binds this process. Never raises: what cannot be had is logged.
    """
    roles = join.binding.roles
    if roles is None:
        return join
    state, above = _state(), tuple[Claim, ...]()
    with suppress(HomenodeError):
        above = () if state is None else claims_above(read_claims(state), ancestors(os.getpid()))
    if given_by_launcher(above, roles.device):
        _log.info("NPU %d: `homenode run` binds this worker, by its own plan", roles.device)
        return msgspec.structs.replace(join, binding=EngineBinding(join.binding.team))
    for line in roles.lines:
        _log.info("%s", line)
    try:
        _look_after(roles, state)
    except HomenodeError as error:
        _log.warning("driver threads and interrupts of NPU %d are left alone: %s", roles.device, error.message)
    return join


def claims_above(claims: Collection[Claim], above: Collection[int]) -> tuple[Claim, ...]:
    """Return what processes that this one comes from were given by `homenode run`; an engine's own claims are no such
    thing. Pure.
    """
    return tuple(claim for claim in claims if claim.pid in above and not claim.computes)


def given_by_launcher(claims: Collection[Claim], device: int) -> bool:
    """Return whether one of them has this device. Pure."""
    return any(device in claim.devices for claim in claims)


def _look_after(roles: DriverRoles, state: State | None) -> None:
    target = target_for(roles, lambda chip: board_address(LiveSource(), chip))
    if roles.kernel_threads:
        for finding in bind_kernel_threads(os.getpid(), roles.kernel_threads).findings:
            _log.info("%s", finding.text)
    host = read_host(LiveSource(), accelerators=False)
    Watchdog(host, state, _tell).watch_worker(target)


def target_for(roles: DriverRoles, address_of: Callable[[Accelerator], str | None]) -> Target:
    """Return what the process is to look like. `address_of`: asks for the PCI function where the plan does not know it.
    Pure but for that.
    """
    chip = Accelerator("npu", roles.device, "", roles.address, card=roles.card, chip=roles.chip)
    if chip.address is None:
        chip = replace(chip, address=address_of(chip))
    return target_of(WorkerBinding(0, roles.device, roles.cpus, roles.roles, (), ""), chip)


def _tell(line: str) -> None:
    """Log it in this process; in the one that stays behind it goes to standard error, which they share."""
    severity, colon, rest = line.partition(": ")
    level = {"warning": logging.WARNING, "error": logging.ERROR}.get(severity if colon else "", logging.INFO)
    _log.log(level, "%s", rest if level > logging.INFO else line)


def _state() -> State | None:
    try:
        return open_state()
    except HostError as error:
        _log.warning("interrupts are left alone, as nothing can be remembered: %s", error.message)
    except HomenodeError as error:
        _log.warning("interrupts are left alone: %s", error.message)
    return None
