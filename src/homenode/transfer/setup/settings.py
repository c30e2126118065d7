"""Settings of prefill/decode disaggregation, named as in the field, and the files that others write them in: those of
LMCache, and the text of vLLM's --kv-transfer-config. What of them cannot go together, `setup.checks` says."""

from __future__ import annotations

import ipaddress
import json
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from homenode.equivalents.equivalent import Meaning, NoEffect, NotOffered, Taken
from homenode.equivalents.kv_transfer import CONNECTOR_KEYS, meaning_of_key, role_of_connector
from homenode.errors import UserError
from homenode.options import EMPTY_SECRET, Option, is_empty_secret, option, options_of
from homenode.spelling import closest
from homenode.units import parse_bytes, parse_seconds

_HIGHEST_PORT = 65535
_DONE_AFTER_ALLOC = 100  # the field's distance of the two ports

Mode = Literal["push", "pull-eager", "pull-delay"]
CHANNELS = ("shm", "tcp", "nixl", "hccl")


def parse_ports(text: str | int) -> tuple[int, ...]:
    """Ports in `text`, separated by commas or blanks; 0 takes a free one. UserError for anything else."""
    words = str(text).replace(",", " ").split()
    if (
        isinstance(text, bool)
        or not words
        or not all(
            word.isascii() and word.isdecimal() and len(word) <= 5 and int(word) <= _HIGHEST_PORT for word in words
        )
    ):
        raise UserError(
            f"not a port: {text!r}; write whole numbers up to {_HIGHEST_PORT}, separated by commas (0 takes a free one)"
        )
    return tuple(int(word) for word in words)


def parse_networks(text: str) -> tuple[str, ...]:
    """Addresses and networks by number in `text`, separated by commas or blanks. UserError for anything else."""
    words = str(text).replace(",", " ").split()
    if not words:
        raise UserError("no address is given, which would allow every host; give some, or leave this setting out")
    try:
        return tuple(str(ipaddress.ip_network(word)) for word in words)
    except ValueError as error:
        raise UserError(
            f"not addresses or networks: {text!r}: {error}. Write for example 10.1.0.0/16, 10.2.0.7"
        ) from error


def parse_signed_seconds(text: str | float) -> float:
    """Read as `parse_seconds` does, with a sign: what is wrong with a negative time is said with everything else that
    is wrong."""
    if isinstance(text, str) and text.lstrip().startswith("-"):
        return -parse_seconds(text.lstrip()[1:])
    return parse_seconds(text)


@dataclass(frozen=True)
class TransferConfig:
    """One engine's part in handing KV over. Without `pd_role` nothing is handed over."""

    enable_pd: bool | None = option(None, "Hand KV over between engines. Default: when --pd-role is given.")
    transfer_channel: str = option("shm", "What carries KV: shm (one host), tcp, nixl, or hccl (by way of two NPUs).")
    pd_role: str | None = option(
        None, "Which side this engine is: sender (prefill) or receiver (decode).", choices=("sender", "receiver")
    )
    pd_peer_host: str = option("127.0.0.1", "Address this engine's transfer ports are bound to and published with.")
    pd_peer_init_port: tuple[int, ...] = option(
        (),
        "Receiver: port of the first contact, one for each rank of each engine. Default: a free one, published.",
        parse=parse_ports,
        metavar="PORT...",
    )
    pd_peer_alloc_port: tuple[int, ...] = option(
        (),
        "Receiver: port where senders ask for room, one for each rank of each engine. Default: a free one, published.",
        parse=parse_ports,
        metavar="PORT...",
    )
    pd_proxy_host: str | None = option(None, "The proxy's host; only checked, as the proxy asks the servers.")
    pd_proxy_port: int | None = option(None, "The proxy's port; only checked.", minimum=1, maximum=_HIGHEST_PORT)
    pd_buffer_size: int = option(
        1 << 30,
        "Bytes of KV that may be on their way at once: pinned at the sender, reserved at the receiver.",
        parse=parse_bytes,
        minimum=1,
    )
    pd_buffer_device: str = option(
        "cpu", "Where that KV lies: cpu, cuda[:N] or npu[:N].", metavar="cpu|cuda[:N]|npu[:N]"
    )
    local_cpu: bool = option(False, "Accepted for the field's files; the prefix cache is the local one here.")
    pd_pull_mode: bool = option(False, "The receiver reads, instead of the sender writing. Both sides must agree.")
    pd_delay_pull: bool = option(
        False,
        "The receiver reads when a request runs, and takes no blocks before. Needs --pd-pull-mode; both sides must "
        "agree.",
    )
    pd_pull_done_port: tuple[int, ...] = option(
        (),
        "Sender: port of done signals, one for each rank of each engine. Default: alloc port + 100, else a free "
        "one; the published one counts.",
        parse=parse_ports,
        metavar="PORT...",
    )
    pd_in_place: bool = option(
        False,
        "Receiver on the sender's host and NUMA node: read full KV pages where the sender has them instead of "
        "copying them; they stay pinned there "
        "while the request runs. Needs --pd-pull-mode and the channel shm.",
    )
    pd_use_cpu_offload: bool = option(
        False,
        "Sender: copy KV to a CPU buffer at once, so that the engine's blocks are free again. Needs --pd-pull-mode.",
    )
    pd_cpu_buffer_size: int | None = option(
        None, "Sender: bytes of that buffer. Default: --pd-buffer-size.", parse=parse_bytes, minimum=1
    )
    pd_alloc_fail_backoff_ttl: float = option(
        2.0,
        "Sender: after a receiver had no room, nothing is offered to it for so long; then one offer probes. 0: "
        "offers go on. "
        "Receiver: so long a sender for whose KV it has no room is told to wait.",
        parse=parse_signed_seconds,
    )
    pd_room_wait: float | None = option(
        None,
        "Sender: how long a hand-over may wait before it begins, for a connection and for room here and at the "
        "receiver; then the receiver computes the prompt. Default: half as long as computing it takes, at most 10s.",
        parse=parse_signed_seconds,
    )
    pd_pull_pending_ttl: float = option(
        360.0,
        "Sender: KV that a receiver neither reads nor renews for so long is given up. Receiver: so is KV that no "
        "request "
        "asks for.",
        parse=parse_signed_seconds,
    )
    pd_pull_backpressure_reserve_pct: float = option(
        2.0, "Sender: percent of the buffer that stays free; new hand-overs wait meanwhile."
    )
    pd_secret: str | None = option(
        None,
        "Shared secret of the engines; frames off this host carry a MAC made with it. Better given as a variable "
        "than as a flag.",
        secret=True,
    )
    pd_allowed_peers: tuple[str, ...] = option(
        (),
        "Other hosts that KV is handed over with: addresses or networks such as 10.1.0.0/16; this host always is. "
        "Default: any that knows the secret.",
        parse=parse_networks,
        metavar="NET...",
    )
    kv_transfer_config: str | None = option(
        None,
        "YAML file with these settings, by their names with underscores or LMCache's; or vLLM's JSON. Flags and "
        "variables win over it.",
        metavar="FILE|JSON",
    )

    @property
    def on(self) -> bool:
        """Tell whether KV is handed over."""
        return self.pd_role is not None if self.enable_pd is None else self.enable_pd

    @property
    def one_sided(self) -> bool:
        """Tell whether one side reads or writes the other's memory; else both send and receive."""
        return self.transfer_channel in ("shm", "nixl")

    @property
    def mode(self) -> Mode:
        """The mode."""
        if not self.pd_pull_mode:
            return "push"
        return "pull-delay" if self.pd_delay_pull else "pull-eager"

    def of_engine(self, number: int, ranks: int) -> TransferConfig:
        """The settings of one of several engines: of each list of ports `ranks` are its own, engine after engine."""
        own = slice(number * ranks, (number + 1) * ranks)
        return replace(
            self,
            pd_peer_init_port=self.pd_peer_init_port[own],
            pd_peer_alloc_port=self.pd_peer_alloc_port[own],
            pd_pull_done_port=self.pd_pull_done_port[own],
        )

    @property
    def done_ports(self) -> tuple[int, ...]:
        """Ports of the sender: as set, else 100 above the alloc ports; empty where free ones are taken."""
        return self.pd_pull_done_port or tuple(
            port + _DONE_AFTER_ALLOC if port else 0 for port in self.pd_peer_alloc_port
        )

    @property
    def cpu_buffer_size(self) -> int:
        """Bytes of the sender's CPU pool; 0 without offload."""
        if not self.pd_use_cpu_offload:
            return 0
        return self.pd_buffer_size if self.pd_cpu_buffer_size is None else self.pd_cpu_buffer_size


_LARGEST_FILE = 1 << 20
_AS_JSON = "as JSON"
_FILE = "kv_transfer_config"  # this setting names the file and cannot stand in it


@dataclass(frozen=True)
class TransferFile:
    """The contents of a file: settings by name, as values of `TransferConfig`, and lines about what has no effect here.
    `source`: the file's path, or the text that stood in its place."""

    settings: Mapping[str, Any]
    told: Sequence[str]
    source: str


def read_settings_file(given: str | Path | Mapping[str, Any]) -> TransferFile:
    """The settings in a YAML file, in a text of JSON as vLLM takes it, or in such a mapping.

    UserError for a file that cannot be read, is no YAML mapping, or has unknown keys or values of the wrong kind, all
    of them named at once.
    """
    if isinstance(given, Mapping):
        return _settings_of(dict(given), _AS_JSON, json.dumps(dict(given), default=str))
    text = str(given)
    if text.lstrip().startswith(("{", "[")):
        return _settings_of(_parse_json(text), _AS_JSON, text)
    return _settings_of(_read_yaml(Path(text)), text, text)


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"--kv-transfer-config is neither a file nor JSON: {error}; seen: {text[:60]!r}", param=_FILE
        ) from error


def _read_yaml(path: Path) -> Any:
    import yaml  # for those who have such a file

    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise UserError(f"--kv-transfer-config {path} cannot be read: {error.strerror}", param=_FILE) from error
    if len(content) > _LARGEST_FILE:
        raise UserError(
            f"--kv-transfer-config {path} is larger than {_LARGEST_FILE} bytes; such files hold a few lines",
            param=_FILE,
        )
    try:
        return yaml.safe_load(content)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise UserError(
            f"--kv-transfer-config {path} is not YAML: {' '.join(str(error).split())}", param=_FILE
        ) from error


def _settings_of(values: Any, source: str, text: str) -> TransferFile:
    if values is None:
        return TransferFile({}, (), text)
    if not isinstance(values, dict):
        raise UserError(
            f"--kv-transfer-config {source} holds a {type(values).__name__}; wanted lines of `name: value`", param=_FILE
        )
    return TransferFile(*typed_settings(values, source), text)


def typed_settings(values: Mapping[Any, Any], source: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Values as YAML has them as those of the settings, and lines about what has no effect; null is left out.

    UserError naming every key that is unknown, has a bad value, or says something else than another key.
    """
    reader = _SettingsReader(values)
    for key, value in values.items():
        if value is not None:
            reader.add(str(key), value)
    if reader.wrong:
        raise UserError(
            f"--kv-transfer-config {source}: {'; '.join(reader.wrong)}. There are {', '.join(reader.declared)}",
            param=_FILE,
        )
    return reader.typed, tuple(reader.told)


class _SettingsReader:
    """Adds keys of a file to typed settings, one after the other."""

    def __init__(self, values: Mapping[Any, Any]) -> None:
        self.declared = {name: entry for name, (_, entry) in options_of(TransferConfig).items() if name != _FILE}
        self.typed: dict[str, Any] = {}
        self.told: list[str] = []
        self.wrong: list[str] = []
        self._hints = typing.get_type_hints(TransferConfig)
        self._said_by: dict[str, str] = {}
        self._connector = values.get("kv_connector")
        self._of_vllm = "kv_connector" in values or "kv_role" in values

    def add(self, key: str, value: Any) -> None:
        """Add one key."""
        match self._meaning(key, value):
            case None:
                near = closest(key, self.declared)
                self.wrong.append(f"{key:.60} is no setting of it" + (f" (did you mean {near[0]}?)" if near else ""))
            case NotOffered(instead):
                shown = f" {value:.60}" if isinstance(value, str) else ""
                self.wrong.append(f"{key}{shown} is not taken: {instead}")
            case NoEffect(why):
                self.told.append(f"{key} of --kv-transfer-config is ignored: {why}")
            case Taken(name, said):
                self._set(key, name, value if said is None else said)

    def _meaning(self, key: str, value: Any) -> Meaning | None:
        if key in self.declared:
            return Taken(key)
        if key == "kv_role":
            return role_of_connector(self._connector, value)
        return (CONNECTOR_KEYS.get(key) if self._of_vllm else None) or meaning_of_key(key)

    def _set(self, key: str, name: str, value: Any) -> None:
        try:
            setting = _typed(value, self._hints[name], self.declared[name])
        except UserError as error:
            self.wrong.append(f"{key}: {error.message}")
            return
        if name in self.typed and self.typed[name] != setting:
            self.wrong.append(f"{self._said_by[name]} and {key} contradict each other: both are {name}; leave one out")
        self.typed[name], self._said_by[name] = setting, key


def _typed(value: Any, hint: Any, declared: Option) -> Any:
    kinds = [kind for kind in (typing.get_args(hint) or (hint,)) if kind not in (type(None), Ellipsis)]
    if typing.get_origin(hint) is tuple:
        entries = value if isinstance(value, list) else [value]
        return tuple(port for entry in entries for port in _number(entry, int, declared))
    if not isinstance(value, str | int | float | bool):
        raise UserError(f"a {type(value).__name__} where one value is wanted")
    if kinds == [bool]:
        if not isinstance(value, bool):
            raise UserError(f"{value!r} is neither true nor false")
        return value
    if kinds == [str]:
        if declared.choices and value not in declared.choices:
            raise UserError(f"{value!r} is none of {', '.join(declared.choices)}")
        if is_empty_secret(declared, value):
            raise UserError(EMPTY_SECRET)
        return str(value)
    return _in_range(_number(value, kinds[0], declared), declared)


def _number(value: Any, kind: type, declared: Option) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UserError(f"a {type(value).__name__} where a number is wanted")
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 2e9 is a float in YAML
    if declared.parse is not None:
        if isinstance(value, float) and kind is int:
            raise UserError(f"{value!r} is no whole number")
        return declared.parse(value)
    try:
        return kind(value)
    except ValueError:
        raise UserError(f"{value!r} is no number") from None


def _in_range(number: Any, declared: Option) -> Any:
    low, high = declared.minimum, declared.maximum
    if (low is not None and number < low) or (high is not None and number > high):
        bounds = [f"{word} {bound:g}" for word, bound in (("at least", low), ("at most", high)) if bound is not None]
        raise UserError(f"{number} is out of range; it must be {' and '.join(bounds)}")
    return number
