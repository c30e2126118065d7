"""The settings of a server that were given and have no effect as its others are. Pure.

Settings of engines are in `engine.plan.rules.settings_without_effect`; what contradicts another setting is refused
(`HttpConfig`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields

from homenode.host.topology.finding import Finding
from homenode.server.http.config import HttpConfig, ServerConfig


@dataclass(frozen=True)
class _Rule:
    """`setting` is looked at where `needs` holds; `why` says what stands against it where it does not."""

    setting: str
    needs: Callable[[ServerConfig], bool]
    why: str


_SOCKET = "a server listens at one place, and --uds names it"
_HTTP_SETTINGS = ("host", "port")  # of every HTTP server; where there is --uds nobody looks at them
_KEPT = "no response is kept (--max-stored-responses 0)"
_RULES = (
    _Rule("stored_responses_size", lambda config: config.max_stored_responses > 0, _KEPT),
    _Rule("stored_response_age", lambda config: config.max_stored_responses > 0, _KEPT),
    _Rule("batch_file_size", lambda config: config.batch_dir is not None, "no files are kept without --batch-dir"),
    _Rule(
        "max_stored_responses",
        lambda config: not config.max_stored_responses or config.stored_responses_size > 0,
        "no response fits --stored-responses-size 0",
    ),
)
SERVER_SETTINGS_OF_OTHERS = frozenset({*_HTTP_SETTINGS, *(rule.setting for rule in _RULES)})


def server_settings_without_effect(config: HttpConfig, given: Collection[str]) -> tuple[Finding, ...]:
    """A finding for each setting that was given and that nothing looks at. `given`: names of settings that somebody
    gave, be it with their default value."""
    usual = {field.name: field.default for field in fields(config)}
    unread = [(name, _SOCKET) for name in _HTTP_SETTINGS if config.uds is not None]
    if isinstance(config, ServerConfig):
        unread += [(rule.setting, rule.why) for rule in _RULES if not rule.needs(config)]
    return tuple(
        _ignored(name, getattr(config, name), why)
        for name, why in unread
        if name in given or getattr(config, name) != usual[name]
    )


def _ignored(name: str, value: object, why: str) -> Finding:
    flag = f"--{name.replace('_', '-')}"
    return Finding("warning", "setting_ignored", f"{flag} {value} is ignored: {why}", f"Leave {flag} out")
