"""The settings of a server that were given and have no effect as its others, or its log, are. Pure.

Settings of engines are in `engine.plan.rules.settings_without_effect`; what contradicts another setting is refused
(`HttpConfig`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields

from homenode.host.topology.finding import Finding
from homenode.logs.setup import LEVELS
from homenode.server.http.config import HttpConfig, ServedModelConfig, ServerConfig


@dataclass(frozen=True)
class _Rule:
    """`setting` is looked at where `needs` holds; `why` says what stands against it where it does not."""

    setting: str
    needs: Callable[[ServerConfig], bool]
    why: str


_SOCKET = "a server listens at one place, and --uds names it"
_HTTP_SETTINGS = ("host", "port")  # of every HTTP server; where there is --uds nobody looks at them
_LOGGED = "no text is logged without --log-requests or --log-outputs"
_KEPT = "no response is kept (--max-stored-responses 0)"
_RULES = (
    _Rule("stored_responses_size", lambda config: config.max_stored_responses > 0, _KEPT),
    _Rule("stored_response_age", lambda config: config.max_stored_responses > 0, _KEPT),
    _Rule("max_log_len", lambda config: config.log_requests or config.log_outputs, _LOGGED),
    _Rule("batch_file_size", lambda config: config.batch_dir is not None, "no files are kept without --batch-dir"),
    _Rule(
        "max_stored_responses",
        lambda config: not config.max_stored_responses or config.stored_responses_size > 0,
        "no response fits --stored-responses-size 0",
    ),
)
SERVER_SETTINGS_OF_OTHERS = frozenset({*_HTTP_SETTINGS, *(rule.setting for rule in _RULES)})
LOGGED_SETTINGS = ("access_log", "log_requests", "log_outputs")  # what they have logged is of level info
_OF_TABLES = frozenset(field.name for field in fields(ServedModelConfig))


def server_settings_without_effect(
    config: HttpConfig, given: Collection[str], level: str = "info", *, beside_tables: bool = False
) -> tuple[Finding, ...]:
    """A finding for each setting that was given and that has no effect. `given`: names of settings that somebody gave,
    be it with their default value. `level`: of the log. `beside_tables`: models have tables, which may say that a
    setting is looked at.
    """
    usual = {field.name: field.default for field in fields(config)}
    unread = [(name, _SOCKET) for name in _HTTP_SETTINGS if config.uds is not None]
    if isinstance(config, ServerConfig):
        rules = [rule for rule in _RULES if not (beside_tables and rule.setting in _OF_TABLES)]
        unread += [(rule.setting, rule.why) for rule in rules if not rule.needs(config)]
    ignored = [
        _ignored(name, getattr(config, name), why)
        for name, why in unread
        if name in given or getattr(config, name) != usual[name]
    ]
    if LEVELS.index(level) > LEVELS.index("info"):
        ignored += [_not_written(name, level) for name in LOGGED_SETTINGS if getattr(config, name, False)]
    return tuple(ignored)


def _ignored(name: str, value: object, why: str) -> Finding:
    flag = f"--{name.replace('_', '-')}"
    return Finding("warning", "setting_ignored", f"{flag} {value} is ignored: {why}", f"Leave {flag} out")


def _not_written(name: str, level: str) -> Finding:
    flag = f"--{name.replace('_', '-')}"
    text = f"{flag} is ignored: its lines are of level info, and the log has those from {level} on"
    return Finding("warning", "setting_ignored", text, f"Give --log-level info, or leave {flag} out")
