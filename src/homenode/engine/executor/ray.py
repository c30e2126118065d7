"""Workers on the hosts of a Ray cluster. Ray decides where, starts, watches and replaces them; our own connections
carry the steps.

A placement group has one bundle for each stage, which is on one host, or one for each worker where no host has room for
a stage, or workers are to be apart: the CPUs of each worker, a GPU where its device is one, and one `numa_node` where
the cluster's hosts announce them (`ray start --resources '{"numa_node": 2}'`). An actor in the bundle starts the worker
as a child of its process, which ends with it. The only file that knows Ray.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from homenode.engine.binding import Replica
from homenode.engine.config import ParallelConfig
from homenode.engine.devices import is_accelerator
from homenode.engine.executor.bundles import GroupName, Neighbours, bundle_of, neighbours
from homenode.engine.executor.rendezvous import Rendezvous
from homenode.engine.plan.worker_layout import WorkerPlan
from homenode.errors import CapacityError, HostError, UnsupportedError
from homenode.installation import extra_command
from homenode.logs.setup import LEVEL_VARIABLE
from homenode.net.queued_frames import QueuedFrameSocket
from homenode.net.settings import NetConfig
from homenode.units import format_count

_log = logging.getLogger(__name__)
_ROOM_S = 60.0  # for Ray to find a host for every worker
_TOGETHER_S = (
    5.0  # and for each stage as a whole, where there is one; it takes a fraction of that unless the cluster is in use
)
_OTHER_ENGINES_S = 20.0  # for those of the same service to have found theirs
# How often Ray may start a worker elsewhere before it has called; one that had called is replaced by the engine, and
# turned away if it calls again.
_MOVES = 5
_TAKEN = ("CREATED", "RESCHEDULING")  # states of groups that have hosts
_NODE = "numa_node"
# Of a cluster made here. Ray takes an address of the network in place of 127.0.0.1, and steps would go over it.
_LOOPBACK = "127.0.0.2"


def run_worker(arguments: list[str], credentials: str, level: str | None = None) -> str:
    """Start, in an actor, a worker that logs from `level` on, and wait for its end, which is told in words.
    `credentials`: what it reads on its standard input."""
    import signal
    import subprocess
    import sys

    command = [sys.executable, "-P", "-m", "homenode.engine.worker.remote", *arguments]
    environment = {**os.environ, **({LEVEL_VARIABLE: level} if level else {})}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, env=environment)
    process.communicate(credentials + "\n")
    code = process.returncode
    if code == -signal.SIGKILL:
        return "was killed (signal 9); the kernel does that when memory runs out"
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


class RayLauncher:
    """Starts workers on a Ray cluster: the one at `--ray-address`, the one this machine belongs to, or one of this host
    alone, made for the engine.
    """

    def __init__(
        self,
        workers: Sequence[WorkerPlan],
        parallel: ParallelConfig,
        net: NetConfig,
        replica: Replica | None = None,
    ) -> None:
        """`replica`: which of several engines of a service it is for. UnsupportedError without the package,
        CapacityError when the cluster has no room, HostError when it cannot be reached, UserError where steps would
        leave this host in clear.
        """
        self._ray = ray = _ray_package()
        self._lives: Counter[int] = Counter()
        self._connect(workers, parallel)
        try:
            self._rendezvous = Rendezvous(ray.util.get_node_ip_address(), parallel.worker_timeout, net)
        except BaseException:
            self.close()
            raise
        self._here = ray.get_runtime_context().get_node_id()
        number, self._engines = (replica.number, replica.count) if replica else (0, 1)
        self._name = GroupName(self._here, os.getppid() if replica else os.getpid(), number)
        self._workers = len(workers)
        try:
            self._group, self._bundles = self._make_group(workers, parallel)
            table = ray.util.placement_group_table(self._group)["bundles_to_node_id"]
        except BaseException:
            self.close()
            raise
        # The host of each worker when all were started, by Ray's name of it.
        self.nodes: list[str] = [table[bundle_of(plan.number, self._workers, self._bundles)] for plan in workers]

    @property
    def rendezvous(self) -> Rendezvous:
        """Return where workers find each other."""
        return self._rendezvous

    def __call__(self, plan: WorkerPlan) -> RayWorker:
        """Have a worker started; it is heard of once it has called."""
        ray = self._ray
        life = self._lives[plan.number]
        self._lives[plan.number] += 1
        sock = self._rendezvous.expect(plan.number, life)
        bundle = bundle_of(plan.number, self._workers, self._bundles)
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            self._group, placement_group_bundle_index=bundle
        )
        resources = _resources(plan)
        actor = (
            ray.remote(_Starter)
            .options(
                scheduling_strategy=strategy,
                num_cpus=resources["CPU"],
                num_gpus=resources.get("GPU", 0),
                max_restarts=_MOVES,
                max_task_retries=_MOVES,
            )
            .remote()
        )
        arguments = [self._rendezvous.address, str(plan.number), str(life)]
        given = Neighbours(self._name, self._engines, self._workers, plan.number)
        level = os.environ.get(LEVEL_VARIABLE)
        ended = actor.run.remote(arguments, given, plan.name, self._rendezvous.credentials.line(), level)
        ended.future().add_done_callback(lambda _: self._rendezvous.give_up(plan.number, life))
        return RayWorker(ray, plan.name, actor, ended, sock)

    def close(self) -> None:
        """Leave the cluster, and give back what was taken of it."""
        if hasattr(self, "_rendezvous"):
            self._rendezvous.close()
        with contextlib.suppress(Exception):  # the cluster may be gone
            if hasattr(self, "_group"):
                self._ray.util.remove_placement_group(self._group)
        with contextlib.suppress(Exception):
            self._ray.shutdown()

    def _connect(self, workers: Sequence[WorkerPlan], parallel: ParallelConfig) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options: dict[str, Any] = {
            "include_dashboard": False,
            "logging_level": logging.ERROR,
            "log_to_driver": False,
            "namespace": "homenode",
        }
        address = parallel.ray_address or os.environ.get("RAY_ADDRESS")
        try:
            if address:
                self._ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, namespace="homenode")
            else:
                needed = int(sum(_resources(plan)["CPU"] for plan in workers))
                self._ray.init(address="local", num_cpus=needed, _node_ip_address=_LOOPBACK, **options)
        except Exception as error:  # whatever Ray raises for a cluster it cannot reach or start
            raise HostError(f"--executor ray: no cluster at {address or 'this host'}: {error}") from error

    def _make_group(self, workers: Sequence[WorkerPlan], parallel: ParallelConfig) -> tuple[Any, int]:
        """The group, and how many bundles it has."""
        ray, placement = self._ray, parallel.ray_placement
        announced = ray.cluster_resources()
        each = [Counter({**_resources(plan), **({_NODE: 1.0} if announced.get(_NODE) else {})}) for plan in workers]
        stages = [
            sum((need for need, plan in zip(each, workers, strict=True) if plan.stage == s), Counter())
            for s in range(workers[-1].stage + 1)
        ]
        if len(stages) < len(workers) and placement != "STRICT_SPREAD":  # that is asked for even of ranks
            group = self._grouped(stages, placement, _TOGETHER_S)
            if group is not None:
                return group, len(stages)
            _log.warning(
                "no host of the Ray cluster has room for all ranks of a stage now: their sums go over the network "
                "(see docs/ray.md)"
            )
        group = self._grouped(each, placement, _ROOM_S)
        if group is None:
            raise CapacityError(
                f"the Ray cluster has no room for {format_count(len(workers), 'worker')} ({placement}): they need "
                f"{[dict(need) for need in each]}, there are "
                f"{ {name: amount for name, amount in announced.items() if name in ('CPU', 'GPU', _NODE)} }; add "
                "hosts, or have fewer workers",
                param="executor",
            )
        return group, len(each)

    def _grouped(self, bundles: Sequence[Counter[str]], placement: str, patience_s: float) -> Any:
        """A placement group that has its hosts; None when they are not found in time."""
        ray = self._ray
        group = ray.util.placement_group(
            [dict(bundle) for bundle in bundles], strategy=placement, name=self._name.text(secrets.token_hex(4))
        )
        if group.wait(patience_s):
            return group
        ray.util.remove_placement_group(group)
        return None


class RayWorker:
    """A worker in an actor's care; what `WorkerProcess` offers of a child."""

    def __init__(self, ray: Any, name: str, actor: Any, ended: Any, sock: Any) -> None:
        self.name = name
        self._ray, self._actor, self._ended = ray, actor, ended
        self.socket = QueuedFrameSocket(sock)

    def end(self, patience_s: float) -> None:
        """See `WorkerProcess.end`."""
        self.socket.close()
        with contextlib.suppress(Exception):  # Ray's own errors: an actor that is gone has ended
            if patience_s > 0:
                self._ray.wait([self._ended], timeout=patience_s)
            self._ray.kill(self._actor, no_restart=True)

    def how_it_ended(self, patience_s: float) -> str:
        """See `WorkerProcess.how_it_ended`."""
        try:
            return str(self._ray.get(self._ended, timeout=patience_s))
        except self._ray.exceptions.GetTimeoutError:
            return "closed its connection"
        except Exception as error:  # Ray tells in many ways that a host or a process is gone
            return f"is gone, or its host is ({type(error).__name__})"


class _Starter:
    """The actor."""

    def run(
        self, arguments: list[str], given: Neighbours, name: str, credentials: str, level: str | None = None
    ) -> str:
        """See `run_worker`."""
        host = _ray_package().get_runtime_context().get_node_id()
        return run_worker([*arguments, host, _binding_of(given, host), name], credentials, level)


def _binding_of(given: Neighbours, host: str) -> str:
    """Return how a worker is told about its place: `given`, or INDEX/COUNT among those of its host; asked of Ray where
    it runs, as Ray may have moved it.
    """
    if host == given.own.node:
        return "given"
    ray, deadline = _ray_package(), time.monotonic() + _OTHER_ENGINES_S
    while True:
        groups = [
            (group["name"], [group["bundles_to_node_id"][index] for index in sorted(group["bundles_to_node_id"])])
            for group in ray.util.placement_group_table().values()
            if group["state"] in _TAKEN
        ]
        found = neighbours(given, host, groups)
        if found.engines >= given.engines or time.monotonic() > deadline:
            return f"{found.index}/{found.count}"
        time.sleep(0.2)


def _resources(plan: WorkerPlan) -> dict[str, float]:
    needed = {"CPU": float(max(1, len(plan.binding.team)))}
    if is_accelerator(plan.device):
        needed["GPU"] = 1.0
    return needed


def _ray_package() -> Any:
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise UnsupportedError(
            f"--executor ray needs the package ray: {extra_command('ray', 'ray')}", param="executor"
        ) from error
    return ray
