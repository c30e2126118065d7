"""Rules for when each setting of a hand-over is looked at: by the side, the mode and the channel of an engine that
hands KV over. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from homenode.engine.plan.rules.setting_rules import Rule
from homenode.transfer.setup.settings import TransferConfig


@dataclass(frozen=True)
class _TransferRule:
    """`setting` is looked at where `needs` holds; `why` says what stands against it where it does not."""

    setting: str
    needs: Callable[[TransferConfig], bool]
    why: str


def _sends(config: TransferConfig) -> bool:
    return config.pd_role == "sender"


def _receives(config: TransferConfig) -> bool:
    return config.pd_role == "receiver"


def _over_network(config: TransferConfig) -> bool:
    return config.transfer_channel != "shm"


def _pulls(config: TransferConfig) -> bool:
    return config.pd_pull_mode


_SENDER = "senders look at it, and this is the receiver (--pd-role)"
_RECEIVER = "receivers look at it, and this is the sender (--pd-role)"
_NETWORK = "over shm engines meet by names of their own, without addresses and ports (--transfer-channel)"
_PULLED = "it is of KV that receivers read, and this one is pushed (--pd-pull-mode)"
_PROXY = "the proxy asks the servers, and no engine asks it"
_ALLOC = "of a sender only the done port follows from it, and --pd-pull-done-port says that"

_RULES = (
    _TransferRule("pd_peer_host", _over_network, _NETWORK),
    _TransferRule("pd_allowed_peers", _over_network, _NETWORK),
    _TransferRule("pd_peer_init_port", _receives, _RECEIVER),
    _TransferRule("pd_peer_init_port", _over_network, _NETWORK),
    _TransferRule("pd_peer_alloc_port", _over_network, _NETWORK),
    _TransferRule("pd_peer_alloc_port", lambda at: _receives(at) or not at.pd_pull_done_port, _ALLOC),
    _TransferRule("pd_peer_alloc_port", lambda at: _receives(at) or _pulls(at), _RECEIVER),
    _TransferRule("pd_pull_done_port", _sends, _SENDER),
    _TransferRule("pd_pull_done_port", _over_network, _NETWORK),
    _TransferRule("pd_pull_done_port", _pulls, _PULLED),
    _TransferRule("pd_proxy_host", lambda _: False, _PROXY),
    _TransferRule("pd_proxy_port", lambda _: False, _PROXY),
    _TransferRule(
        "pd_buffer_size",
        lambda at: _sends(at) or not at.pd_delay_pull,
        "a receiver that delays its reads takes no blocks before them (--pd-delay-pull)",
    ),
    _TransferRule(
        "pd_buffer_size",
        lambda at: _receives(at) or at.pd_cpu_buffer_size is None,
        "KV waits in the CPU buffer, whose size --pd-cpu-buffer-size says",
    ),
    _TransferRule("pd_pull_pending_ttl", lambda at: _receives(at) or _pulls(at), _PULLED),
    _TransferRule("pd_pull_backpressure_reserve_pct", _sends, _SENDER),
    _TransferRule("pd_room_wait", _sends, _SENDER),
    _TransferRule(
        "pd_alloc_fail_backoff_ttl",
        lambda at: _sends(at) or not at.pd_delay_pull,
        "a receiver that delays its reads refuses no offer for want of room (--pd-delay-pull)",
    ),
    _TransferRule("local_cpu", lambda _: False, "the prefix cache is the local one here (--enable-prefix-caching)"),
)
_SWITCH = ("enable_pd", "kv_transfer_config", "pd_role")
_SILENT = frozenset(field.name for field in fields(TransferConfig)) - {*_SWITCH}
# All settings that have an effect only beside others, by name.
TRANSFER_SETTINGS_OF_OTHERS = frozenset(rule.setting for rule in _RULES)


def rules_of_transfer(config: TransferConfig) -> tuple[Rule, ...]:
    """The rules that hold for this side: each says that a setting is not looked at, and why; one for a setting."""
    if not config.on:
        # Without --enable-pd such settings are refused (transfer.check); with it off, a file may have them all.
        return tuple(_unread(setting, "nothing is handed over (--no-enable-pd)") for setting in sorted(_SILENT))
    found: dict[str, Rule] = {}
    for rule in _RULES:
        if not rule.needs(config):
            found.setdefault(rule.setting, _unread(rule.setting, rule.why))
    return tuple(found.values())


def _unread(setting: str, why: str) -> Rule:
    """One file often serves both sides, so nothing is amiss: it is mentioned."""
    return Rule("transfer", setting, lambda _: False, why, "info")
