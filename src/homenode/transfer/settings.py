"""Settings of prefill/decode disaggregation, named as in the field, and what of them cannot go together."""

from __future__ import annotations

from dataclasses import dataclass

from homenode.options import option
from homenode.units import parse_bytes, parse_seconds


@dataclass(frozen=True)
class TransferConfig:
    """One engine's part in handing KV over. Without `pd_role` (and `enable_pd`) nothing is handed over."""

    enable_pd: bool = option(False, "Hand KV over between engines; given by --pd-role too.")
    transfer_channel: str = option("shm", "What carries KV: shm (one host), tcp, nixl, or another that is installed, such as hccl.")
    pd_role: str | None = option(None, "Which side this engine is: sender (prefill) or receiver (decode).", choices=("sender", "receiver"))
    pd_peer_host: str = option("127.0.0.1", "Address this engine's transfer ports are bound to and published with.")
    pd_peer_init_port: tuple[int, ...] = option(
        (),
        "Receiver: port of the first contact, one for each rank. Default: a free one, published.",
        minimum=0,
        maximum=65535,
        metavar="PORT...",
    )
    pd_peer_alloc_port: tuple[int, ...] = option(
        (),
        "Receiver: port where senders ask for room, one for each rank. Default: a free one, published.",
        minimum=0,
        maximum=65535,
        metavar="PORT...",
    )
    pd_proxy_host: str | None = option(None, "The proxy's host; only checked, as the proxy asks the servers.")
    pd_proxy_port: int | None = option(None, "The proxy's port; only checked.", minimum=1, maximum=65535)
    pd_buffer_size: int = option(
        1 << 30,
        "Bytes of KV that may be on their way at once: pinned at the sender, reserved at the receiver.",
        parse=parse_bytes,
        minimum=1,
    )
    pd_buffer_device: str = option("cpu", "Where that KV lies: cpu, cuda[:N] or npu[:N].", metavar="cpu|cuda[:N]|npu[:N]")
    local_cpu: bool = option(False, "Accepted for the field's files; the prefix cache is the local one here.")
    pd_pull_mode: bool = option(False, "The receiver reads, instead of the sender writing. Both sides must agree.")
    pd_delay_pull: bool = option(
        False, "The receiver reads when a request runs, and takes no blocks before. Needs pd_pull_mode; both sides must agree."
    )
    pd_pull_done_port: tuple[int, ...] = option(
        (),
        "Sender: port of done signals, one for each rank. Default: alloc port + 100, else a free one; the published one counts.",
        minimum=0,
        maximum=65535,
        metavar="PORT...",
    )
    pd_use_cpu_offload: bool = option(
        False, "Sender: copy KV to a CPU buffer at once, so that the engine's blocks are free again. Needs pd_pull_mode."
    )
    pd_cpu_buffer_size: int | None = option(None, "Sender: bytes of that buffer. Default: pd_buffer_size.", parse=parse_bytes, minimum=1)
    pd_alloc_fail_backoff_ttl: float = option(
        2.0, "Sender: after a receiver had no room, nothing is offered to it for so long; then one offer probes.", parse=parse_seconds
    )
    pd_pull_pending_ttl: float = option(
        360.0, "Sender: KV that a receiver neither reads nor renews for so long is given up.", parse=parse_seconds
    )
    pd_pull_backpressure_reserve_pct: float = option(2.0, "Sender: percent of the buffer that stays free; new hand-overs wait meanwhile.")
    pd_secret: str | None = option(None, "Shared secret of the engines; frames off this host carry a MAC made with it.", secret=True)
    kv_transfer_config: str | None = option(None, "YAML file with these settings, by the names above.", metavar="FILE")
