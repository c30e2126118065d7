"""Settings of events about KV blocks: --kv-events-config, with the keys that vLLM has."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from homenode.errors import UnsupportedError, UserError
from homenode.options import option
from homenode.spelling import with_suggestion
from homenode.units import format_count

_HIGHEST_PORT = 65_535
_TCP = re.compile(r"tcp://(?P<host>\*|\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):(?P<port>\d{1,5})")
_FORMS = "write tcp://127.0.0.1:5557, tcp://*:5557 or ipc:///run/homenode/kv-events"
_EVERYWHERE = ("*", "0.0.0.0", "::")


class KvEventsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of --kv-events-config. `buffer_steps`: batches that can be asked for again; `hwm`: messages that are
    kept for a reader that is slow; what is beyond is lost to it, and to be asked for again. `max_queue_size`: changes
    that wait to be sent, beyond which those are left out that cancel each other out.
    """

    enable_kv_cache_events: bool = False
    publisher: Literal["zmq", "null"] = "zmq"
    endpoint: str = "tcp://127.0.0.1:5557"
    replay_endpoint: str | None = None
    buffer_steps: Annotated[int, Meta(ge=0, le=10_000_000)] = 10_000
    hwm: Annotated[int, Meta(ge=1, le=10_000_000)] = 100_000
    max_queue_size: Annotated[int, Meta(ge=1)] = 100_000
    topic: Annotated[str, Meta(max_length=255)] = ""

    @property
    def on(self) -> bool:
        """Return whether anything is published."""
        return self.enable_kv_cache_events and self.publisher == "zmq"

    def of_rank(self, rank: int) -> KvEventsSettings:
        """The same for one of several engines: ports are counted on from those that are given, paths get its number."""
        replay = None if self.replay_endpoint is None else endpoint_of_rank(self.replay_endpoint, rank)
        return msgspec.structs.replace(self, endpoint=endpoint_of_rank(self.endpoint, rank), replay_endpoint=replay)


def endpoint_of_rank(endpoint: str, rank: int) -> str:
    """The endpoint of engine `rank`, which has passed `endpoint_problem`."""
    if not rank:
        return endpoint
    if (found := _TCP.fullmatch(endpoint)) is None:
        return f"{endpoint}_dp{rank}"
    return f"tcp://{found['host']}:{int(found['port']) + rank}"


def endpoint_problem(endpoint: str, engines: int = 1) -> str:
    """Return why nothing can be published at an endpoint, or at those of so many engines; empty if it can."""
    if endpoint.startswith("ipc://"):
        return "" if len(endpoint) > len("ipc://") else "it names no path"
    if (found := _TCP.fullmatch(endpoint)) is None:
        return "it is no endpoint of ZeroMQ that other processes reach"
    if not 0 < int(found["port"]) <= _HIGHEST_PORT - engines + 1:
        return f"ports are 1 to {_HIGHEST_PORT}, one for each engine"
    return ""


def is_bound(endpoint: str) -> bool:
    """Return whether readers come to an endpoint, and not it to a reader on another host, as vLLM has it. Loopback
    addresses are bound.
    """
    found = _TCP.fullmatch(endpoint)
    if found is None:
        return True
    host = found["host"].strip("[]")
    return host in _EVERYWHERE or host == "localhost" or _is_loopback(host)


def is_open_to_others(endpoint: str) -> bool:
    """Return whether processes of other hosts reach it."""
    found = _TCP.fullmatch(endpoint)
    return found is not None and found["host"].strip("[]") in _EVERYWHERE


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def read_events_config(text: str) -> KvEventsSettings:
    """The settings in this JSON. UserError names the key that is wrong."""
    try:
        settings = msgspec.json.decode(text.encode("utf-8", "surrogatepass"), type=KvEventsSettings)
    except (ValueError, RecursionError) as error:  # msgspec.DecodeError is the first
        keys = [field.name for field in msgspec.structs.fields(KvEventsSettings)]
        unknown = re.search(r"unknown field `(.*)`", str(error))
        message = f"--kv-events-config: {error}; its keys are {', '.join(keys)}"
        raise UserError(
            with_suggestion(message, unknown[1], keys) if unknown else message, param="kv_events_config"
        ) from None
    for key, endpoint in (("endpoint", settings.endpoint), ("replay_endpoint", settings.replay_endpoint)):
        if endpoint is not None and (problem := endpoint_problem(endpoint)):
            raise UserError(f"--kv-events-config: {key} is {endpoint!r}: {problem}; {_FORMS}", param="kv_events_config")
    if settings.replay_endpoint is not None and not is_bound(settings.replay_endpoint):
        raise UserError(
            f"--kv-events-config: replay_endpoint is {settings.replay_endpoint!r}, and readers come to that one; give "
            "an address of this host: tcp://127.0.0.1:5558 or tcp://*:5558",
            param="kv_events_config",
        )
    return settings


def checked_events_config(text: str) -> str:
    """The same text, once it has been read."""
    read_events_config(text)
    return text


@dataclass(frozen=True)
class KvEventsConfig:
    """Events about KV blocks. Without a config nothing is told, and nothing is read for it."""

    kv_events_config: str | None = option(
        None,
        "Tell routers over ZeroMQ which prompt beginnings are held, as JSON with vLLM's keys: enable_kv_cache_events, "
        "publisher, endpoint, replay_endpoint, buffer_steps, hwm, topic. Needs the package pyzmq.",
        parse=checked_events_config,
        metavar="JSON",
    )

    @property
    def settings(self) -> KvEventsSettings:
        """Return what the config says, with the defaults of what it leaves out."""
        return KvEventsSettings() if self.kv_events_config is None else read_events_config(self.kv_events_config)

    @property
    def on(self) -> bool:
        """Return whether anything is published."""
        return self.kv_events_config is not None and self.settings.on


def events_problem(config: KvEventsConfig, engines: int, has: Callable[[str], bool] | None = None) -> UserError | None:
    """Return what keeps the engines of a service from publishing, if anything does. `has`: whether a module can be
    imported.
    """
    if not config.on:
        return None
    has = has or (lambda module: importlib.util.find_spec(module) is not None)
    if not has("zmq"):
        return UnsupportedError(
            f"--kv-events-config needs the package pyzmq, which is not installed here ({_how_to_install()}); or leave "
            "the setting out",
            param="kv_events_config",
        )
    settings = config.settings
    for key, endpoint in (("endpoint", settings.endpoint), ("replay_endpoint", settings.replay_endpoint)):
        if endpoint is not None and (problem := endpoint_problem(endpoint, engines)):
            return UserError(
                f"--kv-events-config: {key} is {endpoint!r} for {format_count(engines, 'engine')}: {problem}",
                param="kv_events_config",
            )
    return None


def _how_to_install() -> str:
    from homenode.installation import extra_command

    return extra_command("events", "pyzmq")
