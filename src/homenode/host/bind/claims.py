"""Claims on the CPUs of this host: a file of claims, so that programs started one by one do not overlap.

    {"format": "homenode-claims/1", "boot": "...", "claims": [{"pid", "start", "cpus": "0-15", "devices": [0], "name",
     "computes": false}]}

A claim holds as long as its process lives: number and start time together name a process, so a number used again does
not revive a claim, and nobody need release anything. A program that is executed keeps the number of its launcher, hence
`run` claims before it executes. Numbers mean something within one pid namespace only, so each namespace has a file of
its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from homenode.cpuset import format_cpu_list, parse_cpu_list
from homenode.errors import HostError, UserError
from homenode.host.bind.base.state import LOCK_DEADLINE_S, State, boot_id, open_state
from homenode.host.bind.base.threads import ProcessId, alive, identify
from homenode.host.plan.demand import Claim
from homenode.host.topology.finding import Finding

_FORMAT = "homenode-claims/1"
_MOST_NAME = 200  # characters of a name that are kept
_PID_NAMESPACE = Path("/proc/self/ns/pid")


@dataclass
class ClaimTable:
    """The living claims, while this process alone may change them. `findings`: a damaged file that had to be put
    aside."""

    findings: tuple[Finding, ...] = ()
    _by_process: dict[ProcessId, Claim] = field(default_factory=dict)
    _changed: bool = False

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Claims of living processes, ascending by process number."""
        return tuple(sorted(self._by_process.values(), key=lambda claim: claim.pid))

    def add(self, claim: Claim) -> None:
        """Claim for a living process; an earlier claim of it is replaced. Raises UserError when there is no such
        process."""
        self.release(claim.pid)
        self._by_process[identify(claim.pid)] = claim
        self._changed = True

    def release(self, pid: int) -> bool:
        """Give up what process `pid` claims. False when it claims nothing."""
        before = len(self._by_process)
        self._by_process = {process: claim for process, claim in self._by_process.items() if process.pid != pid}
        self._changed = self._changed or len(self._by_process) != before
        return len(self._by_process) != before


def read_claims(state: State) -> tuple[Claim, ...]:
    """Claims of living processes as they are now, ascending by process number. Decisions that end in a claim belong
    inside `exclusive`."""
    return _load(state)[0].claims


def living_claims() -> tuple[Claim, ...]:
    """The same of this user's state folder, for who only tells of them; none where they cannot be read."""
    try:
        return read_claims(open_state())
    except (HostError, UserError):
        return ()


@contextmanager
def exclusive(state: State, deadline_s: float = LOCK_DEADLINE_S) -> Iterator[ClaimTable]:
    """Read the claims, plan, and claim, with nobody else doing the same: what was added is written when the block ends
    without an exception.

    Raises HostError when the lock is not free within `deadline_s` seconds, or the file cannot be written.
    """
    with state.locked("claims", deadline_s):
        table, damaged = _load(state)
        if damaged:
            state.put_aside(_file_name())
        yield table
        if table._changed:
            state.save(_file_name(), _to_dict(table._by_process))


@contextmanager
def exclusive_if_possible(
    write_line: Callable[[str], None], deadline_s: float = LOCK_DEADLINE_S, *, untrusted_too: bool = False
) -> Iterator[ClaimTable]:
    """Open the claims as `exclusive` in this user's state folder, for who goes on where claims cannot be kept: a folder
    that is not to be had, full, read-only, or locked for `deadline_s` seconds. `write_line` gets one line for each
    thing that fails; the table then holds what can be read.

    Raises UserError for a folder that must not be trusted; with `untrusted_too` that is no more than a line, either.
    """
    with ExitStack() as held:
        state, table = None, ClaimTable()
        try:
            state = open_state()
            table = held.enter_context(exclusive(state, deadline_s))
        except (HostError, UserError) as error:
            if isinstance(error, UserError) and not untrusted_too:
                raise
            table = ClaimTable() if state is None else _load(state)[0]
            seen = "not seen" if state is None else "seen, and not kept for others to see"
            write_line(f"warning: claims of CPUs are {seen}: {error.message}")
        yield table
        try:
            held.close()
        except HostError as error:
            write_line(
                f"warning: this claim of CPUs is not kept, and who starts next may take the same: {error.message}"
            )


def claim(state: State, new: Claim, deadline_s: float = LOCK_DEADLINE_S) -> None:
    """Claim without looking at what others have. Raises as `exclusive` and `ClaimTable.add` do."""
    with exclusive(state, deadline_s) as table:
        table.add(new)


def release(state: State, pid: int, deadline_s: float = LOCK_DEADLINE_S) -> bool:
    """Give up what process `pid` claims. False when it claims nothing."""
    with exclusive(state, deadline_s) as table:
        return table.release(pid)


def _load(state: State) -> tuple[ClaimTable, bool]:
    """The table, and whether its file is damaged."""
    loaded = state.read(_file_name())
    if loaded.findings:
        return ClaimTable(loaded.findings), True
    if loaded.value is None:
        return ClaimTable(), False
    try:
        held = _from_dict(loaded.value)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, UserError) as error:
        message = f"{state.folder / _file_name()} is not used: it is no table of claims ({error!r})"
        finding = Finding(
            "warning",
            "state_unreadable",
            message,
            "Processes that claimed CPUs in it are not known any more; restart them to claim again.",
        )
        return ClaimTable((finding,)), True
    return ClaimTable((), {process: claim for process, claim in held.items() if alive(process)}), False


def _from_dict(raw: dict[str, Any]) -> dict[ProcessId, Claim]:
    if raw["format"] != _FORMAT:
        raise ValueError(f"format {raw['format']!r}")
    if raw["boot"] != boot_id():
        return {}
    held = {}
    for entry in raw["claims"]:
        devices = tuple(int(device) for device in entry["devices"])
        name, computes = str(entry["name"])[:_MOST_NAME], bool(entry.get("computes", False))
        claim = Claim(int(entry["pid"]), parse_cpu_list(entry["cpus"]), devices, name, computes)
        held[ProcessId(claim.pid, int(entry["start"]))] = claim
    return held


def _to_dict(by_process: dict[ProcessId, Claim]) -> dict[str, Any]:
    claims = [
        {
            "pid": claim.pid,
            "start": process.start,
            "cpus": format_cpu_list(claim.cpus),
            "devices": list(claim.devices),
            "name": claim.name[:_MOST_NAME],
            "computes": claim.computes,
        }
        for process, claim in by_process.items()
    ]
    return {"format": _FORMAT, "boot": boot_id(), "claims": claims}


def _file_name() -> str:
    try:
        return f"claims-{Path('/proc/self/ns/pid').stat().st_ino}.json"
    except OSError:
        return "claims.json"
