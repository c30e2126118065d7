"""Which settings of an engine were given and have no effect as the others are: each is told, none is silently dropped.

What contradicts another setting is refused elsewhere (`placement`, `numa_policy`, `transfer.check`); this is about
what nobody looks at. One table says for each such setting when it is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from homenode.engine.config import EngineConfig
from homenode.engine.devices import is_torch
from homenode.engine.memory.growth import taken_whole_because
from homenode.engine.plan.worker_layout import executor_kind
from homenode.host.placement.threads_bind import AUTO, NOBIND
from homenode.host.placement.variables import threads_bind
from homenode.host.topology.finding import Finding
from homenode.model.hub.locate import BUILTIN_NAME
from homenode.transfer.settings import TransferConfig


@dataclass(frozen=True)
class Situation:
    """What the table is asked about: `devices` of all workers of the engine, `variables` of the environment,
    `of_service`: how many engines there are; None where that comes out later. `keeps_states`: whether layers of the
    model keep a state beside keys and values; None where the model was not opened.
    """

    config: EngineConfig
    devices: Sequence[str]
    variables: Mapping[str, str]
    of_service: int | None = None
    keeps_states: bool | None = None

    @property
    def has_torch(self) -> bool:
        """Whether PyTorch computes anything."""
        return self.config.compute.backend == "torch" or any(map(is_torch, self.devices))

    @property
    def has_native(self) -> bool:
        """Whether our own kernels compute anything."""
        return self.config.compute.backend == "native" and not all(map(is_torch, self.devices))

    @property
    def has_processes(self) -> bool:
        """Whether workers live apart from the engine's own process."""
        return executor_kind(self.config, self.devices) != "inline"

    @property
    def kv_grows(self) -> bool:
        """Whether KV memory is taken when it is used."""
        return taken_whole_because(self.config, self.devices) is None

    @property
    def engines(self) -> int:
        """Engines of the service; 2 stands for several where their number comes out later."""
        if self.of_service is not None:
            return self.of_service
        several = self.config.placement.numa in ("auto", "replicate")
        return max(self.config.parallel.data_parallel_size, 2 if several else 1)

    @property
    def lists(self) -> str:
        """What --cpu-threads-bind or its variables say."""
        if self.config.placement.numa_bind:
            return AUTO
        return (threads_bind(self.config.placement.cpu_threads_bind, self.variables) or AUTO).strip()

    @property
    def names_hub_model(self) -> bool:
        """Whether the model is one of the Hub, which has branches and commits."""
        model = self.config.model.model
        return model not in (None, BUILTIN_NAME) and not Path(str(model)).expanduser().exists()


@dataclass(frozen=True)
class _Rule:
    """`part`.`setting` is looked at where `needs` holds; `why` says what stands against it where it does not.
    `severity`: of the finding."""

    part: str
    setting: str
    needs: Callable[[Situation], bool]
    why: str
    severity: str = "warning"


_TORCH = "it is of devices of PyTorch, and none computes here"
_NATIVE = "it is of the native core, which computes nothing here"
_RAY = "it is of --executor ray"
_RULES = (
    _Rule("model", "revision", lambda at: at.names_hub_model, "the model is no repository of the Hub"),
    _Rule(
        "model", "pooling", lambda at: at.config.model.runner != "generate", "it is of vectors, and text is generated"
    ),
    _Rule("compute", "isa", lambda at: at.has_native, _NATIVE),
    _Rule("compute", "spin_us", lambda at: at.has_native, _NATIVE),
    _Rule("compute", "attention_backend", lambda at: at.has_torch, _TORCH),
    _Rule("compute", "enforce_eager", lambda at: at.has_torch, _TORCH),
    _Rule("compute", "gpu_memory_utilization", lambda at: at.has_torch, _TORCH),
    _Rule(
        "kv",
        "kv_cache_fraction",
        lambda at: at.config.kv.kv_cache_memory is None,
        "the size of KV memory is given (--kv-cache-memory)",
    ),
    _Rule("kv", "kv_cache_release", lambda at: at.kv_grows, "all KV memory is taken at the start and kept"),
    _Rule(
        "kv",
        "state_snapshot_interval",
        lambda at: at.keeps_states is not False,
        "no layer of the model keeps a state beside keys and values",
    ),
    _Rule(
        "kv",
        "state_snapshot_interval",
        lambda at: at.config.kv.enable_prefix_caching,
        "snapshots are kept for the prefix cache, which is off",
    ),
    _Rule(
        "placement",
        "memory_nodes",
        lambda at: not at.config.placement.numa_bind and at.lists != NOBIND,
        "it chooses nodes for --cpu-threads-bind auto, and threads are placed otherwise",
    ),
    _Rule(
        "placement",
        "reserve_cpus",
        lambda at: at.lists == AUTO,
        "--cpu-threads-bind says which CPUs compute; leave those to be kept out of its lists",
    ),
    _Rule(
        "placement",
        "numa_measured",
        lambda at: at.config.placement.numa == "auto",
        "it is what --numa auto chooses by, and a policy is named",
    ),
    _Rule(
        "parallel",
        "layer_split",
        lambda at: at.has_processes,
        "there is one stage, which has all layers (--pipeline-parallel-size)",
    ),
    _Rule(
        "parallel",
        "enable_expert_parallel",
        lambda at: at.config.parallel.tensor_parallel_size > 1 or at.engines > 1,
        "one worker has all experts (--tensor-parallel-size, --data-parallel-size)",
    ),
    _Rule(
        "parallel",
        "expert_placement",
        lambda at: at.config.parallel.enable_expert_parallel,
        "it is of --enable-expert-parallel",
    ),
    _Rule("parallel", "ray_address", lambda at: at.config.parallel.executor == "ray", _RAY),
    _Rule("parallel", "ray_placement", lambda at: at.config.parallel.executor == "ray", _RAY),
    _Rule("parallel", "worker_timeout", lambda at: at.has_processes, "the one worker is in the engine's own process"),
)
# Of a hand-over: what only one side looks at. One file often serves both, so it is only mentioned.
_OF_SENDERS = ("pd_pull_backpressure_reserve_pct",)
_OF_RECEIVERS = ("pd_peer_init_port",)
# All settings that have an effect only beside others, by name.
SETTINGS_OF_OTHERS = frozenset({*(rule.setting for rule in _RULES), *_OF_SENDERS, *_OF_RECEIVERS})


def settings_without_effect(
    config: EngineConfig,
    devices: Sequence[str],
    variables: Mapping[str, str],
    engines: int | None = None,
    keeps_states: bool | None = None,
) -> tuple[Finding, ...]:
    """A finding for each setting that differs from its default and that nothing looks at. `devices`: of the engine's
    workers. `engines`: of the service; `keeps_states`: see `Situation`; both where that is known.

    Raises UserError where --executor does not go with these devices.
    """
    situation = Situation(config, devices, variables, engines, keeps_states)
    found = []
    for rule in (*_RULES, *_rules_of_transfer(config.transfer)):
        part = getattr(config, rule.part)
        value, usual = getattr(part, rule.setting), type(part).__dataclass_fields__[rule.setting].default
        if value != usual and not rule.needs(situation):
            flag = f"--{rule.setting.replace('_', '-')}"
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            shown = flag if value is True else f"{flag} {text}"
            remedy = f"Leave {flag} out"
            found.append(Finding(rule.severity, "setting_ignored", f"{shown} is ignored: {rule.why}", remedy))
    return tuple(found)


def _rules_of_transfer(transfer: TransferConfig) -> tuple[_Rule, ...]:
    if not transfer.on:
        return ()  # what is given then is refused (transfer.check)
    other = _OF_RECEIVERS if transfer.pd_role == "sender" else _OF_SENDERS
    why = f"the other side looks at it, and this is the {transfer.pd_role} (--pd-role)"
    return tuple(_Rule("transfer", setting, lambda at: False, why, "info") for setting in other)
