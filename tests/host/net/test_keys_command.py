"""`homenode keys`: what it writes and shows, and what it refuses; and that a start and `--check-config` say the same of
keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from homenode.cli.main import cli
from homenode.net.keys import KEY, PEERS
from tests.peer_keys import shared_keys

FAR = ("--pd-role", "sender", "--transfer-channel", "tcp", "--pd-peer-host", "127.0.0.1")


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


def test_keys_are_made_and_shown(tmp_path: Path) -> None:
    made = run("keys", "make", tmp_path / "k", "a", "b", "--json")
    assert made.exit_code == 0, made.output
    digests = {one["name"]: one["digest"] for one in json.loads(made.stdout)}
    shown = json.loads(run("keys", "show", tmp_path / "k" / "a", "--json").stdout)
    assert shown["digest"] == digests["a"] and {one["name"]: one["digest"] for one in shown["peers"]} == digests
    text = run("keys", "show", tmp_path / "k" / "b").stdout
    assert all(digest in text for digest in digests.values()) and "counts until" in text
    (tmp_path / "k" / "b" / PEERS).unlink()
    assert "whatever the authority has signed" in run("keys", "show", tmp_path / "k" / "b").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("keys", "make", "{keys}"), "has keys already"),
        (("keys", "make", "{tmp}/x", "no/name"), "no name of a host"),
        (("keys", "show", "{tmp}"), "homenode keys make"),
        (("serve", "--check-config", *FAR, "--peer-keys", "{tmp}"), "homenode keys make"),
        (("serve", "--check-config", *FAR, "--peer-keys", "{open}"), "chmod 600"),
        (("serve", "--check-config", *FAR, "--peer-keys", "{keys}", "--peer-plain-text"), "together"),
        (("serve", "--check-config", "--executor", "ray", "--ray-address", "10.9.9.9:6379"), "in clear"),
        (("proxy", "--decode", "https://127.0.0.1:1", "--peer-keys", "{tmp}"), "homenode keys make"),
        (("proxy", "--decode", "http://10.9.9.9:1"), "in clear"),
    ],
)
def test_what_cannot_be_is_one_sentence(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    made = run("keys", "make", tmp_path / "open")
    assert made.exit_code == 0
    (tmp_path / "open" / KEY).chmod(0o640)
    places = {"tmp": tmp_path, "open": tmp_path / "open", "keys": shared_keys()}
    result = run(*(word.format(**places) for word in words))
    assert result.exit_code == 2 and said in " ".join(result.stderr.split()), result.output
