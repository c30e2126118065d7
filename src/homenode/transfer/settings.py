"""Settings of prefill/decode disaggregation, named as in the field. What of them cannot go together, `transfer.check`
says."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, replace
from typing import Literal

from homenode.errors import UserError
from homenode.options import option
from homenode.units import parse_bytes, parse_seconds

_HIGHEST_PORT = 65535
_DONE_AFTER_ALLOC = 100  # the field's distance of the two ports

Mode = Literal["push", "pull-eager", "pull-delay"]


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
    """As `parse_seconds`, with a sign: what is wrong with a negative time is said with everything else that is
    wrong."""
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
        """Whether KV is handed over."""
        return self.pd_role is not None if self.enable_pd is None else self.enable_pd

    @property
    def one_sided(self) -> bool:
        """Whether one side reads or writes the other's memory; else both send and receive."""
        return self.transfer_channel in ("shm", "nixl")

    @property
    def mode(self) -> Mode:
        """How."""
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
        """Of the sender: as set, else 100 above the alloc ports; empty where free ones are taken."""
        return self.pd_pull_done_port or tuple(
            port + _DONE_AFTER_ALLOC if port else 0 for port in self.pd_peer_alloc_port
        )

    @property
    def cpu_buffer_size(self) -> int:
        """Bytes of the sender's CPU pool; 0 without offload."""
        if not self.pd_use_cpu_offload:
            return 0
        return self.pd_buffer_size if self.pd_cpu_buffer_size is None else self.pd_cpu_buffer_size
