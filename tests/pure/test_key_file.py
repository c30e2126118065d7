"""The file of --api-key-file: what is taken, and every way in which it can be wrong, without a secret in
any message.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from homenode.errors import UserError
from homenode.server.keys.counts import OF_REQUESTS, OF_TOKENS, RUNNING, WINDOW_TICKS, KeyCounts
from homenode.server.keys.key_file import MOST_KEYS, KeyRows, read_key_file
from homenode.server.keys.named_key import digest_of, unnamed_keys

SECRET = "sk-0123456789"


def read(folder: Path, text: str | bytes, rows: KeyRows | None = None, unnamed: tuple[str, ...] = ()) -> object:
    path = folder / "keys.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_key_file(str(path), rows or KeyRows(), unnamed_keys(unnamed))


def test_names_keys_and_limits(tmp_path: Path) -> None:
    text = f"""
[keys.ada]
key = "{SECRET}"
requests_per_minute = 3
tokens_per_minute = 1000
concurrent_requests = 2

[keys."bob.2"]
key = "other"
"""
    rows = KeyRows()
    ada, bob = read(tmp_path, text, rows)  # type: ignore[misc]
    assert (ada.name, ada.digest, ada.row) == ("ada", digest_of(SECRET), 1)
    assert (ada.requests_per_minute, ada.tokens_per_minute, ada.concurrent_requests) == (3, 1000, 2)
    assert (bob.name, bob.requests_per_minute, bob.row) == ("bob.2", None, 2)
    (bob,) = read(tmp_path, '[keys."bob.2"]\nkey = "new"', rows)  # type: ignore[misc]
    assert bob.row == 2  # what bob has used stays his


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no key"),
        ("[keys]", "no key"),
        ("[other.ada]\nkey = 'x'", "`other`"),
        ("[keys.ada]", "keys.ada.key"),
        ("keys.ada = 'x'", "keys.ada is no table"),
        ("[keys.ada]\nkey = 5", "keys.ada.key"),
        ("[keys.ada]\nkey = ''", "keys.ada.key"),
        ("[keys.ada]\nkey = 'a b'", "keys.ada.key"),
        ("[keys.ada]\nkey = 'ä'", "keys.ada.key"),
        ("[keys.'a b']\nkey = 'x'", "letters"),
        ("[keys.ada]\nkey = 'x'\nrequest_per_minute = 3", "requests_per_minute"),
        ("[keys.ada]\nkey = 'x'\nrequests_per_minute = 0", "keys.ada.requests_per_minute"),
        ("[keys.ada]\nkey = 'x'\ntokens_per_minute = true", "keys.ada.tokens_per_minute"),
        ("[keys.ada]\nkey = 'x'\nconcurrent_requests = 1.5", "keys.ada.concurrent_requests"),
        (f"[keys.ada]\nkey = '{SECRET}'\n[keys.bob]\nkey = '{SECRET}'", "keys.bob has the same key as keys.ada"),
        (f"[keys.ada]\nkey = '{SECRET}", "end of document"),
        (f"[keys.ada]\nkey = {SECRET}", "line 2"),
        (b"[keys.ada]\nkey = '\xff'", "UTF-8"),
        ("x" * (2 << 20), "bytes"),
        ("".join(f"[keys.n{n}]\nkey = 'k{n}'\n" for n in range(MOST_KEYS + 1)), "at most"),
    ],
)
def test_what_is_wrong_is_said_by_name(tmp_path: Path, text: str | bytes, said: str) -> None:
    with pytest.raises(UserError) as raised:
        read(tmp_path, text)
    assert said in raised.value.message and "--api-key-file" in raised.value.message
    assert raised.value.param == "api_key_file" and SECRET not in raised.value.message


def test_a_key_of_the_settings_is_not_in_the_file_as_well(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="same key as --api-key"):
        read(tmp_path, f"[keys.ada]\nkey = '{SECRET}'", unnamed=(SECRET,))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(UserError, match="--api-key-file"):
            read_key_file(str(path), KeyRows())


def test_what_is_used_counts_for_a_minute() -> None:
    counts = KeyCounts()
    for tick in (1000, 1000, 1050):
        counts.add_spent(7, OF_REQUESTS, tick, 1)
    counts.add_spent(7, OF_TOKENS, 1000, 30)
    assert counts.spent(7, OF_REQUESTS, 1050) == 3 and counts.spent(7, OF_TOKENS, 1050) == 30
    assert counts.spent(8, OF_REQUESTS, 1050) == 0
    last = 1000 + WINDOW_TICKS
    assert counts.spent(7, OF_REQUESTS, last - 1) == 3 and counts.spent(7, OF_REQUESTS, last) == 1
    assert counts.free_at(7, OF_REQUESTS, 1050, 2) == last and counts.free_at(7, OF_REQUESTS, 1050, 0) == last + 50
    counts.add_spent(7, OF_REQUESTS, 1050, -1)
    assert counts.spent(7, OF_REQUESTS, 1050) == 2
    counts.add_spent(7, OF_REQUESTS, 1000 + 128, 1)  # the same place in the ring
    assert counts.spent(7, OF_REQUESTS, 1000 + 128) == 1


def test_fronts_see_what_the_others_count_and_not_what_the_dead_had_under_way() -> None:
    memory = KeyCounts.shared_memory(2)
    first, second = KeyCounts(2, 0, memory), KeyCounts(2, 1, memory)
    first.add(3, RUNNING), second.add(3, RUNNING, 2)
    first.add_spent(3, OF_TOKENS, 500, 5), second.add_spent(3, OF_TOKENS, 501, 6)
    assert first.total(3, RUNNING) == second.total(3, RUNNING) == 3
    assert first.spent(3, OF_TOKENS, 501) == 11
    KeyCounts(2, 1, memory)  # in place of the second, which died
    assert first.total(3, RUNNING) == 1 and first.spent(3, OF_TOKENS, 501) == 11
