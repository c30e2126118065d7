"""Settings of a server that nothing looks at are told, also where they were given with their default."""

from __future__ import annotations

from typing import Any

import pytest

from homenode.server.http.config import ServerConfig
from homenode.server.settings_without_effect import SERVER_SETTINGS_OF_OTHERS, server_settings_without_effect

# Setting: settings beside which nothing looks at it, what it was given as, and settings beside which it counts.
CASES: dict[str, tuple[dict[str, Any], Any, dict[str, Any]]] = {
    "host": ({"uds": "/s"}, "127.0.0.1", {}),
    "port": ({"uds": "/s"}, 8000, {}),
    "stored_responses_size": ({"max_stored_responses": 0}, 1 << 20, {}),
    "batch_file_size": ({}, 4096, {"batch_dir": "/batches"}),
    "stored_response_age": ({"max_stored_responses": 0}, 5.0, {}),
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
