"""Checks whether settings of prefill/decode disaggregation can go together, here and on this machine. Pure: facts come
as `Surroundings`.

A setting is called by its name with underscores, as in the field's files, and by its flag.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields

from homenode.errors import CapacityError, UnsupportedError, UserError
from homenode.net.settings import NetConfig, is_loopback, plain_text_problem
from homenode.spelling import with_suggestion
from homenode.transfer.setup.settings import TransferConfig
from homenode.transfer.setup.surroundings import Surroundings
from homenode.units import format_bytes, format_count

_DEVICE = re.compile(r"(cpu|cuda|npu)(?::(\d{1,4}))?")
_SAY_NOTHING = ("kv_transfer_config", "local_cpu", "enable_pd", "pd_role")
_SHORTEST_SECRET = 16
_PORTS = ("pd_peer_init_port", "pd_peer_alloc_port", "pd_pull_done_port")


@dataclass(frozen=True)
class EngineFacts:
    """Other settings of the engine that a KV transfer depends on. `block_bytes`: of a KV block, 0 while the model is
    not known; `kv_shapes`: how many shapes its layers' keys and values have. `workers`: the devices of those that
    compute apart from the engine's own process; none: that one computes."""

    block_bytes: int = 0
    block_size: int = 0
    kv_shapes: int = 1
    memory: int | None = None  # bytes that may be taken beside the KV memory; None: not known
    backend: str = "native"
    tensor_parallel_size: int = 1
    engines: int | None = 1  # that divide the ports given here; None: as many as there are nodes
    workers: tuple[str, ...] = ()
    executor: str = "auto"


def named(setting: str) -> str:
    """`pd_role (--pd-role)`: as files and as the command line call it."""
    return f"{setting} (--{setting.replace('_', '-')})"


def check_transfer(
    config: TransferConfig, here: Surroundings, engine: EngineFacts, net: NetConfig | None = None
) -> list[UserError]:
    """Everything wrong with these settings, each naming the settings and what to do. Empty: KV can be handed over, or
    is not asked to be."""
    if not config.on:
        return list(_off(config))
    checks = (
        _workers(config, engine),
        _role(config),
        _modes(config),
        _numbers(config),
        _channel(config, here),
        _device(config, here),
        _ports(config, engine, here),
        _address(config, here, net or NetConfig()),
        _sizes(config, engine),
        _engine(engine),
    )
    return [problem for check in checks for problem in check]


def _workers(config: TransferConfig, engine: EngineFacts) -> Iterator[UserError]:
    """Return what workers that are processes of their own cannot do."""
    if engine.executor == "ray":
        yield UnsupportedError(
            f"{named('pd_role')} with --executor ray: KV is handed over by workers that share memory with their "
            "engine; give --executor processes",
            param="executor",
        )
    if others := sorted({device for device in engine.workers if device != "cpu"}):
        yield UnsupportedError(
            f"{named('pd_role')} with --stage-devices {', '.join(others)}: KV is handed over by CPU workers, whose "
            "KV memory other processes can read; "
            "give cpu for all",
            param="stage_devices",
        )
    if engine.workers and config.transfer_channel in ("nixl", "hccl"):
        yield UnsupportedError(
            f"{named('transfer_channel')} is {config.transfer_channel}: an engine of several workers hands KV over "
            "through shm or tcp, so far",
            param="transfer_channel",
        )


def _off(config: TransferConfig) -> Iterator[UserError]:
    """Settings that would do nothing are a mistake, unless it was said that KV is not to be handed over."""
    given = [f.name for f in fields(config) if f.name not in _SAY_NOTHING and getattr(config, f.name) != f.default]
    if given and config.enable_pd is None:
        yield UserError(
            f"{', '.join(named(name) for name in given)} {'is' if len(given) == 1 else 'are'} given, but not "
            f"{named('pd_role')}: "
            "say sender (prefill) or receiver (decode)",
            param="pd_role",
        )


def _role(config: TransferConfig) -> Iterator[UserError]:
    if config.pd_role is None:
        yield UserError(
            f"{named('enable_pd')} needs {named('pd_role')}: sender (prefill) or receiver (decode)", param="pd_role"
        )
    if (config.pd_proxy_host is None) != (config.pd_proxy_port is None):
        yield UserError(
            f"{named('pd_proxy_host')} and {named('pd_proxy_port')} are given together or not at all",
            param="pd_proxy_host",
        )


def _modes(config: TransferConfig) -> Iterator[UserError]:
    if config.pd_delay_pull and not config.pd_pull_mode:
        yield _needs(
            "pd_delay_pull", "pd_pull_mode", "a receiver that does not read cannot delay it; give --pd-pull-mode too"
        )
    if config.pd_use_cpu_offload and not config.pd_pull_mode:
        yield _needs("pd_use_cpu_offload", "pd_pull_mode", "what is pushed is written at once; give --pd-pull-mode too")
    if config.pd_use_cpu_offload and config.pd_role == "receiver":
        yield UserError(
            f"{named('pd_use_cpu_offload')} is for a sender, and {named('pd_role')} is receiver; leave it out on "
            "this side",
            param="pd_use_cpu_offload",
        )
    if config.pd_in_place and not config.pd_pull_mode:
        yield _needs(
            "pd_in_place", "pd_pull_mode", "what is pushed lies in blocks of the receiver; give --pd-pull-mode too"
        )
    if config.pd_in_place and config.pd_role == "sender":
        yield UserError(
            f"{named('pd_in_place')} is for a receiver, and {named('pd_role')} is sender; leave it out on this side",
            param="pd_in_place",
        )
    if config.pd_in_place and config.transfer_channel != "shm":
        yield _needs("pd_in_place", "transfer_channel", "only memory of this host can be read in place; take shm")
    if config.pd_cpu_buffer_size is not None and not config.pd_use_cpu_offload:
        yield _needs("pd_cpu_buffer_size", "pd_use_cpu_offload", "without it there is no CPU buffer")


def _needs(setting: str, other: str, why: str) -> UserError:
    return UserError(f"{named(setting)} needs {named(other)}: {why}", param=setting)


def _numbers(config: TransferConfig) -> Iterator[UserError]:
    for name in ("pd_alloc_fail_backoff_ttl", "pd_room_wait", "pd_pull_pending_ttl"):
        value = getattr(config, name)
        if value is not None and not 0 <= value < math.inf:
            yield UserError(f"{named(name)} is {value:g}; wanted seconds, not below zero", param=name)
    if config.pd_pull_pending_ttl == 0:
        yield UserError(
            f"{named('pd_pull_pending_ttl')} is 0: all KV would be given up before it is read",
            param="pd_pull_pending_ttl",
        )
    if not 0 <= config.pd_pull_backpressure_reserve_pct < 100:  # NaN is in no range
        name = "pd_pull_backpressure_reserve_pct"
        yield UserError(f"{named(name)} is {getattr(config, name):g}; wanted percent, from 0 to below 100", param=name)


def _channel(config: TransferConfig, here: Surroundings) -> Iterator[UserError]:
    channel, lacking = config.transfer_channel, dict(here.lacking)
    if channel in here.channels:
        return
    known = tuple(dict.fromkeys((*here.channels, *lacking)))
    if channel not in lacking:
        message = f"{named('transfer_channel')} is {channel!r}; there are {', '.join(known)}"
        yield UserError(with_suggestion(message, channel, known), param="transfer_channel")
        return
    yield UnsupportedError(
        f"{named('transfer_channel')} is {channel}: {lacking[channel]}; the engine keeps its KV in main memory, which "
        f"other channels read from there: take {_instead(here)}",
        param="transfer_channel",
    )


def _instead(here: Surroundings) -> str:
    """The channels that work, for what each is."""
    uses = {"shm": "shm on one host", "tcp": "tcp between hosts"}
    return " or ".join(uses.get(channel, channel) for channel in here.channels)


def _device(config: TransferConfig, here: Surroundings) -> Iterator[UserError]:
    match = _DEVICE.fullmatch(config.pd_buffer_device)
    if match is None:
        yield UserError(
            f"{named('pd_buffer_device')} is {config.pd_buffer_device!r}; wanted cpu, cuda[:N] or npu[:N]",
            param="pd_buffer_device",
        )
        return
    kind, number = match[1], int(match[2] or 0)
    if kind == "cpu":
        if config.transfer_channel == "hccl" and config.pd_delay_pull:
            yield _needs(
                "pd_delay_pull",
                "pd_buffer_device",
                "over hccl the buffer of delayed reads lies in the accelerator; give npu",
            )
        return
    there = here.count(kind)
    if kind == "npu" and config.transfer_channel == "hccl" and number < there:
        return  # the NPU that bytes go through
    seen = f"this machine has {there} of that kind" if there else "this machine has no device of that kind"
    if kind == "npu" and config.transfer_channel == "hccl" and there:
        yield UserError(
            f"{named('pd_buffer_device')} is {config.pd_buffer_device}: {seen}; give npu:0 to npu:{there - 1}",
            param="pd_buffer_device",
        )
        return
    yield UnsupportedError(
        f"{named('pd_buffer_device')} is {config.pd_buffer_device}: {seen}, {'but' if there else 'and'} the engine "
        "computes on CPUs and keeps its KV in main memory; give cpu",
        param="pd_buffer_device",
    )


def wrong_count(config: TransferConfig, ranks: int, engines: int | None) -> Iterator[UserError]:
    """Lists of ports that have not one for each rank of each engine. `engines` None: as many as there are nodes."""
    for name in _PORTS:
        ports = getattr(config, name)
        if ports and (len(ports) % ranks if engines is None else len(ports) != ranks * engines):
            of_engines = (
                ""
                if engines == 1
                else " of each engine"
                if engines is None
                else f" of each of {format_count(engines, 'engine')}, {ranks * engines} in all"
            )
            yield UserError(
                f"{named(name)} has {format_count(len(ports), 'port')}; wanted one for each of the "
                f"{format_count(ranks, 'rank')} of tensor_parallel_size (--tensor-parallel-size){of_engines}",
                param=name,
            )


def _ports(config: TransferConfig, engine: EngineFacts, here: Surroundings) -> Iterator[UserError]:
    yield from wrong_count(config, engine.tensor_parallel_size, engine.engines)
    for name in _PORTS:
        ports = getattr(config, name)
        if len(set(fixed := [port for port in ports if port])) < len(fixed):
            yield UserError(f"{named(name)} has a port twice: {', '.join(map(str, ports))}", param=name)
    done = "pd_pull_done_port"
    derived = "" if config.pd_pull_done_port else f" (100 above {named('pd_peer_alloc_port')})"
    if any(port > 65535 for port in config.done_ports):
        yield UserError(f"{named(done)}{derived} would be {max(config.done_ports)}, beyond 65535; set it", param=done)
    if both := sorted({*config.pd_peer_alloc_port, *config.pd_peer_init_port} & set(config.done_ports) - {0}):
        others = f"{named('pd_peer_init_port')} or {named('pd_peer_alloc_port')}"
        yield UserError(f"{named(done)}{derived} and {others} have {', '.join(map(str, both))} in common", param=done)
    if both := sorted(set(config.pd_peer_alloc_port) & set(config.pd_peer_init_port) - {0}):
        text = (
            f"{named('pd_peer_init_port')} and {named('pd_peer_alloc_port')} have {', '.join(map(str, both))} in common"
        )
        yield UserError(text, param="pd_peer_alloc_port")
    for port in here.busy_ports:
        name = next((name for name in _PORTS if port in getattr(config, name)), done)
        yield UserError(
            f"{named(name)}: port {port} of {config.pd_peer_host} is taken by another program; choose another, or 0",
            param=name,
        )


def _address(config: TransferConfig, here: Surroundings, net: NetConfig) -> Iterator[UserError]:
    host = config.pd_peer_host
    if config.transfer_channel == "shm" and here.address_problem == "":
        return
    if here.address_problem:
        text = (
            f"{named('pd_peer_host')} is {host!r}: {here.address_problem}; give an address of this machine that "
            "the other side can reach"
        )
        yield UserError(text, param="pd_peer_host")
    elif host in ("0.0.0.0", "::", "*", ""):
        yield UserError(
            f"{named('pd_peer_host')} is {host!r}, which cannot be published; give one that the other side can reach",
            param="pd_peer_host",
        )
        return
    if here.loopback or here.address_problem:
        return
    past_tls = config.transfer_channel.upper() if config.transfer_channel in ("nixl", "hccl") else ""
    if (problem := in_clear(net, host, past_tls)) is not None:
        yield problem
    elif net.peer_keys is not None:
        return
    elif not config.pd_secret:
        yield UserError(
            f"{named('pd_peer_host')} is {host}, which others can reach: {named('pd_secret')} is needed, the same "
            "on both sides "
            "(better given as the variable HOMENODE_PD_SECRET)",
            param="pd_secret",
        )
    elif len(config.pd_secret) < _SHORTEST_SECRET:
        text = (
            f"{named('pd_secret')} has {len(config.pd_secret)} characters; off this host wanted are "
            f"{_SHORTEST_SECRET} or more"
        )
        yield UserError(text, param="pd_secret")


def in_clear(net: NetConfig, host: str, past_tls: str = "", setting: str = "") -> UserError | None:
    """Return why nothing may be handed over with `host` as the settings are; None: it may. `past_tls`: the library that
    moves pages by itself, which no TLS protects. `setting`: what the host is called, where it is not this one's own."""
    setting = setting or named("pd_peer_host")
    if past_tls and net.peer_keys is not None and not is_loopback(host):
        return UserError(
            f"{setting} is {host}: {past_tls} moves KV past TLS, so that it would leave this host in clear; take "
            "--transfer-channel tcp, or give --peer-plain-text in place of --peer-keys",
            param="transfer_channel",
        )
    return plain_text_problem(net, host, "KV", setting)


def _sizes(config: TransferConfig, engine: EngineFacts) -> Iterator[UserError]:
    """A buffer has to hold at least one block; at a sender that offloads the CPU buffer is the one that KV lies in."""
    if not engine.block_bytes:
        return
    for name, size in (("pd_buffer_size", config.pd_buffer_size), ("pd_cpu_buffer_size", config.cpu_buffer_size)):
        if 0 < size < engine.block_bytes:
            yield CapacityError(
                f"{named(name)} is {format_bytes(size)}, less than one KV block of "
                f"{format_count(engine.block_size, 'token')} ({format_bytes(engine.block_bytes)}); "
                f"give at least that, or a smaller --block-size",
                param=name,
            )
    if engine.memory is not None and config.cpu_buffer_size > engine.memory:
        name = "pd_cpu_buffer_size" if config.pd_cpu_buffer_size is not None else "pd_buffer_size"
        yield CapacityError(
            f"{named(name)} is {format_bytes(config.cpu_buffer_size)}; this machine has "
            f"{format_bytes(engine.memory)} left beside the weights",
            param=name,
        )


def _engine(engine: EngineFacts) -> Iterator[UserError]:
    if engine.backend != "native":
        yield UnsupportedError(
            f"{named('pd_role')} needs --backend native: the {engine.backend} backend keeps KV where no other "
            "process can read it",
            param="pd_role",
        )
    if engine.kv_shapes > 1:
        yield UnsupportedError(
            f"{named('pd_role')}: this model's layers have keys and values of {engine.kv_shapes} shapes; homenode "
            "hands those over as f32 or bf16, not as int8 (--kv-cache-dtype)",
            param="pd_role",
        )
