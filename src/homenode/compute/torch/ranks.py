"""Ranks that exchange rows by torch.distributed: NCCL among CUDA devices, gloo (through host memory) elsewhere.

Process groups are made by hand, from a store of their own: torch's default group, which is the process's, is never set.
The store is a file that all ranks of the group can open and nobody else should (a memfd will do); gloo's connections
stay on the loopback device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from homenode.compute.ops import FloatArray
from homenode.compute.torch.device import TorchDevice
from homenode.errors import HostError, PeerError
from homenode.units import format_count

_LOOK_UP = timedelta(milliseconds=50)  # how often somebody who waits looks whether it is over
_OTHERS_SAY_SO_S = 1.0  # after a failure, for the ranks that are there to tell


def open_group(
    path: str, name: str, rank: int, size: int, device: TorchDevice, timeout_s: float
) -> GlooGroup | NcclGroup:
    """Join the group `name` (new for every generation of it) of `size` ranks, whose store is the file `path`. Waits for
    all of them.

    PeerError when they do not come within `timeout_s`, HostError when the backend cannot start.
    """
    deadline = timedelta(seconds=timeout_s)
    # A FileStore ends the file when as many as it was told of have left; none is told of, as the file is the engine's.
    store = dist.PrefixStore(name, dist.FileStore(path, -1))
    store.set_timeout(deadline)
    meeting = _Meeting(store, rank, size)
    try:
        if device.device.type == "cuda" and dist.is_nccl_available():
            return NcclGroup(_nccl(store, rank, size, deadline), meeting, device)
        return GlooGroup(_gloo(store, rank, size, deadline), meeting)
    except RuntimeError as error:
        absent = meeting.absent()
        if absent:
            raise PeerError(
                f"rank {rank} of {size} waited {timeout_s:g} s for {_named(absent)}", ranks=absent
            ) from error
        raise HostError(f"torch.distributed cannot start: {error}") from error


class GlooGroup:
    """`RankGroup` over gloo. All rows go to all ranks, which add them in the order of the ranks: the same bits
    everywhere.
    """

    def __init__(self, group: Any, meeting: _Meeting) -> None:
        self._group, self._meeting = group, meeting
        self.rank, self.size = meeting.rank, meeting.size

    def sum(self, values: FloatArray) -> None:
        """See `RankGroup.sum`."""
        mine = torch.from_numpy(values)
        parts = self._all(mine)
        mine.copy_(parts[0])
        for part in parts[1:]:
            mine.add_(part)

    def gather(self, values: FloatArray, widths: Sequence[int]) -> FloatArray:
        """See `RankGroup.gather`."""
        parts = self._all(_widened(torch.from_numpy(values), max(widths)))
        rows: FloatArray = _beside(parts, widths).numpy()
        return rows

    def leave(self) -> None:
        """See `RankGroup.leave`."""
        self._meeting.leave()

    def _all(self, mine: torch.Tensor) -> list[torch.Tensor]:
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        self._meeting.call(lambda: self._meeting.wait_for(self._group.allgather([parts], [mine])))
        return parts


class NcclGroup:
    """`RankGroup` and `DeviceGroup` over NCCL. NCCL adds in an order of its own, which is the same for all ranks.

    The host does not wait for a call, so a rank that is gone is noticed where results are read; NCCL's own watchdog
    ends a process that waits longer than the group's time. Written for CUDA devices; never run on one yet
    (docs/torch.md).
    """

    capturable = True

    def __init__(self, group: Any, meeting: _Meeting, device: TorchDevice) -> None:
        self._group, self._meeting, self._device = group, meeting, device
        self.rank, self.size = meeting.rank, meeting.size

    def sum_rows(self, x: torch.Tensor) -> torch.Tensor:
        """See `DeviceGroup.sum_rows`."""
        total = x.contiguous().clone()
        self._meeting.call(lambda: self._group.allreduce([total]).wait())
        return total

    def gather_rows(self, x: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        """See `DeviceGroup.gather_rows`."""
        mine = _widened(x, max(widths))
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        self._meeting.call(lambda: self._group.allgather([parts], [mine]).wait())
        return _beside(parts, widths)

    def sum(self, values: FloatArray) -> None:
        """See `RankGroup.sum`."""
        host = torch.from_numpy(values)
        host.copy_(self.sum_rows(host.to(self._device.device)))

    def gather(self, values: FloatArray, widths: Sequence[int]) -> FloatArray:
        """See `RankGroup.gather`."""
        rows: FloatArray = self.gather_rows(torch.from_numpy(values).to(self._device.device), widths).cpu().numpy()
        return rows

    def leave(self) -> None:
        """See `RankGroup.leave`."""
        self._meeting.leave()
        self._group.abort()


class _Meeting:
    """A record of who is there, and whether it is over: told through the group's store."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store = store
        self.rank, self.size = rank, size
        self._failure: PeerError | None = None
        store.set(f"here/{rank}", "1")

    def wait_for(self, work: Any) -> None:
        """Wait until the exchange is done. RuntimeError when it fails, or when it is over for anybody: gloo, whose
        connections stay open until its group is taken apart, would notice that at the deadline only.
        """
        while True:
            try:
                work.wait(_LOOK_UP)
                return
            except RuntimeError:
                if work.is_completed():
                    raise  # it has failed
                if self._store.check(["over"]):
                    raise RuntimeError("the group is over") from None

    def call(self, exchange: Callable[[], object]) -> None:
        """Do it. PeerError, now and from then on, when it fails or this group was left."""
        if self._failure is not None:
            raise PeerError(self._failure.message, **self._failure.facts)
        try:
            exchange()
        except RuntimeError as error:
            if self._failure is None:
                self._failure = self._explain(error)
            raise PeerError(self._failure.message, **self._failure.facts) from error

    def leave(self) -> None:
        """End it for everybody: those who wait for this rank fail, as their connection closes."""
        if self._failure is None:
            self._failure = PeerError(
                f"rank {self.rank} left the group of {format_count(self.size, 'rank')}", ranks=[self.rank]
            )
        self._store.set(f"left/{self.rank}", "1")
        self._store.set("over", "1")

    def absent(self) -> list[int]:
        """Ranks that never came."""
        return [rank for rank in range(self.size) if not self._store.check([f"here/{rank}"])]

    def _explain(self, error: RuntimeError) -> PeerError:
        self._store.set(f"stuck/{self.rank}", "1")
        self._store.set("over", "1")
        until = time.monotonic() + _OTHERS_SAY_SO_S
        while True:
            # Who neither left nor noticed the failure is the one all others waited for.
            left = [rank for rank in range(self.size) if self._store.check([f"left/{rank}"])]
            gone = left or [rank for rank in range(self.size) if not self._store.check([f"stuck/{rank}"])]
            if left or not gone or time.monotonic() >= until:
                break
            time.sleep(0.02)
        who = _named(gone) if gone else "some rank"
        return PeerError(
            f"rank {self.rank} of {self.size} lost {who} in a step: {str(error).splitlines()[0]}", ranks=gone
        )


def _gloo(store: Any, rank: int, size: int, deadline: timedelta) -> Any:
    options = dist.ProcessGroupGloo._Options()
    options._timeout = deadline
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1", lazy_init=False)]
    return dist.ProcessGroupGloo(store, rank, size, options)


def _nccl(store: Any, rank: int, size: int, deadline: timedelta) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = deadline
    return dist.ProcessGroupNCCL(store, rank, size, options)


def _widened(x: torch.Tensor, width: int) -> torch.Tensor:
    """x [rows, columns] with zeros up to `width` columns: all ranks send as much."""
    return torch.nn.functional.pad(x, (0, width - x.shape[1])).contiguous()


def _beside(parts: Sequence[torch.Tensor], widths: Sequence[int]) -> torch.Tensor:
    return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], dim=1)


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
