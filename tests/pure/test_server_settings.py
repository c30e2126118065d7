"""Settings of a server that nothing looks at are told, also where they were given with their default."""

from __future__ import annotations

from typing import Any

import pytest

from homenode.server.http.config import ServerConfig
from homenode.server.settings_without_effect import (
    LOGGED_SETTINGS,
    SERVER_SETTINGS_OF_OTHERS,
    server_settings_without_effect,
)

# Setting: settings beside which nothing looks at it, what it was given as, and settings beside which it counts.
CASES: dict[str, tuple[dict[str, Any], Any, dict[str, Any]]] = {
    "host": ({"uds": "/s"}, "127.0.0.1", {}),
    "port": ({"uds": "/s"}, 8000, {}),
    "stored_responses_size": ({"max_stored_responses": 0}, 1 << 20, {}),
    "batch_file_size": ({}, 4096, {"batch_dir": "/batches"}),
    "stored_response_age": ({"max_stored_responses": 0}, 5.0, {}),
    "max_log_len": ({}, 100, {"log_outputs": True}),
    "max_stored_responses": ({"stored_responses_size": 0}, 5, {"stored_responses_size": 5}),
}


def told(settings: dict[str, Any], given: set[str]) -> list[str]:
    return [finding.message.split()[0] for finding in server_settings_without_effect(ServerConfig(**settings), given)]


def test_every_rule_has_its_case() -> None:
    assert set(CASES) == SERVER_SETTINGS_OF_OTHERS


@pytest.mark.parametrize("setting", CASES)
def test_a_setting_is_told_where_nothing_looks_at_it(setting: str) -> None:
    beside, value, counts = CASES[setting]
    flag = f"--{setting.replace('_', '-')}"
    assert told({**beside, setting: value}, {setting}) == [flag]
    assert told({**counts, setting: value}, {setting}) == []
    assert flag not in told(beside, set()), "nobody gave it"


@pytest.mark.parametrize("setting", LOGGED_SETTINGS)
@pytest.mark.parametrize(("level", "ignores"), [("debug", False), ("info", False), ("warning", True), ("error", True)])
def test_what_is_logged_is_told_where_the_level_leaves_it_out(setting: str, level: str, ignores: bool) -> None:
    found = server_settings_without_effect(ServerConfig(**{setting: True}), {setting}, level)
    assert [f"--{setting.replace('_', '-')} is ignored" in each.message for each in found] == [True] * ignores
    assert all(level in each.message and "--log-level info" in each.remedy for each in found)
    assert server_settings_without_effect(ServerConfig(**{setting: False}), {setting}, level) == ()


def test_settings_that_tables_of_models_may_need_are_not_told_beside_them() -> None:
    config = ServerConfig(max_log_len=100, batch_file_size=4096)
    found = server_settings_without_effect(config, {"max_log_len"}, beside_tables=True)
    assert [each.message.split()[0] for each in found] == ["--batch-file-size"]
