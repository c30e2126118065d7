"""Workers on the hosts of a Ray cluster. Ray decides where, starts, watches and replaces them; our own connections carry the steps.

A placement group has one bundle for each worker: its CPUs, a GPU where its device is one, and one `numa_node` where the cluster's hosts announce them
(`ray start --resources '{"numa_node": 2}'`). An actor in the bundle starts the worker as a child of its process, which ends with it.
The only file that knows Ray.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

from homenode.engine.config import ParallelConfig
from homenode.engine.executor.rendezvous import Rendezvous
from homenode.engine.workers.devices import is_accelerator
from homenode.engine.workers.layout import WorkerPlan
from homenode.engine.workers.wire import WorkerSocket
from homenode.errors import CapacityError, HostError, UnsupportedError

_ROOM_S = 60.0  # for Ray to find a host for every worker
_NODE = "numa_node"


def run_worker(arguments: list[str], secret: str) -> str:
    """In an actor: start a worker and wait for its end, which is told in words."""
    import signal
    import subprocess
    import sys

    command = [sys.executable, "-P", "-m", "homenode.engine.workers.remote", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
    process.communicate(secret + "\n")
    code = process.returncode
    if code == -signal.SIGKILL:
        return "was killed (signal 9); the kernel does that when memory runs out"
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


class RayLauncher:
    """Starts workers on a Ray cluster: the one at `--ray-address`, the one this machine belongs to, or one of this host alone, made for the engine."""

    def __init__(self, workers: Sequence[WorkerPlan], parallel: ParallelConfig) -> None:
        """UnsupportedError without the package, CapacityError when the cluster has no room, HostError when it cannot be reached."""
        self._ray = ray = _ray_package()
        self._lives: Counter[int] = Counter()
        self._connect(workers, parallel)
        self._rendezvous = Rendezvous(ray.util.get_node_ip_address(), parallel.worker_timeout)
        try:
            self._group = self._make_group(workers, parallel)
            table = ray.util.placement_group_table(self._group)["bundles_to_node_id"]
        except BaseException:
            self.close()
            raise
        self.nodes: list[str] = [table[number] for number in range(len(workers))]
        # The host of each worker, by Ray's name of it.
        self._here = ray.get_runtime_context().get_node_id()

    @property
    def rendezvous(self) -> Rendezvous:
        """Where workers find each other."""
        return self._rendezvous

    def __call__(self, plan: WorkerPlan) -> RayWorker:
        """Have a worker started; it is heard of once it has called."""
        ray = self._ray
        life = self._lives[plan.number]
        self._lives[plan.number] += 1
        sock = self._rendezvous.expect(plan.number, life)
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=plan.number)
        resources = _resources(plan)
        actor = (
            ray.remote(_Starter)
            .options(scheduling_strategy=strategy, num_cpus=resources["CPU"], num_gpus=resources.get("GPU", 0), max_restarts=0)
            .remote()
        )
        arguments = [self._rendezvous.address, str(plan.number), str(life), self._place(plan.number), plan.name]
        return RayWorker(ray, plan.name, actor, actor.run.remote(arguments, self._rendezvous.secret.hex()), sock)

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
                self._ray.init(num_cpus=needed, _node_ip_address="127.0.0.1", **options)
        except Exception as error:  # whatever Ray raises for a cluster it cannot reach or start
            raise HostError(f"--executor ray: no cluster at {address or 'this host'}: {error}") from error

    def _make_group(self, workers: Sequence[WorkerPlan], parallel: ParallelConfig) -> Any:
        ray = self._ray
        announced = ray.cluster_resources()
        bundles = [{**_resources(plan), **({_NODE: 1.0} if announced.get(_NODE) else {})} for plan in workers]
        group = ray.util.placement_group(bundles, strategy=parallel.ray_placement)
        if not group.wait(_ROOM_S):
            ray.util.remove_placement_group(group)
            raise CapacityError(
                f"the Ray cluster has no room for {len(workers)} workers ({parallel.ray_placement}): they need {bundles}, there are "
                f"{ {name: amount for name, amount in announced.items() if name in ('CPU', 'GPU', _NODE)} }; add hosts, or have fewer workers",
                param="executor",
            )
        return group

    def _place(self, number: int) -> str:
        """How a worker is told about its place: `given`, or INDEX/COUNT among those of its host."""
        node = self.nodes[number]
        if node == self._here:
            return "given"
        return f"{self.nodes[:number].count(node)}/{self.nodes.count(node)}"


class RayWorker:
    """A worker in an actor's care; what `WorkerProcess` offers of a child."""

    def __init__(self, ray: Any, name: str, actor: Any, ended: Any, sock: Any) -> None:
        self.name = name
        self._ray, self._actor, self._ended = ray, actor, ended
        self.socket = WorkerSocket(sock)

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

    def run(self, arguments: list[str], secret: str) -> str:
        """See `run_worker`."""
        return run_worker(arguments, secret)


def _resources(plan: WorkerPlan) -> dict[str, float]:
    needed = {"CPU": float(max(1, len(plan.place.team)))}
    if is_accelerator(plan.device):
        needed["GPU"] = 1.0
    return needed


def _ray_package() -> Any:
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise UnsupportedError("--executor ray needs the package ray: pip install 'homenode[ray]'", param="executor") from error
    return ray
