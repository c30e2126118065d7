"""`homenode models served`, `load`, `unload` and `reload`: the models of a server that runs."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from homenode.cli.output.report import json_errors, print_json, print_note, show_controls
from homenode.errors import HostError, UserError
from homenode.net.api_keys import header_with
from homenode.units import format_bytes

_LARGEST_ANSWER = 64 << 20
_TIMEOUT_S = 30.0
_LOOK_S = 0.3
_LOAD_TIMEOUT_S = 3600.0


@dataclass(frozen=True)
class RunningServer:
    """A server of several models, and the key to it."""

    url: str
    key: str | None

    def ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The answer to a GET, or to a POST of `body`. UserError with what the server says where it refuses, HostError
        where none answers.
        """
        headers = {"Content-Type": "application/json", **(header_with(self.key) if self.key else {})}
        data = None if body is None else json.dumps(body).encode()
        try:
            request = urllib.request.Request(self.url.rstrip("/") + path, data, headers)
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                found = json.loads(answer.read(_LARGEST_ANSWER))
        except urllib.error.HTTPError as error:
            raise UserError(f"{self.url}: {_message(error)}", param="--server") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise HostError(f"no server answers at {self.url} ({reason}); name it with --server URL") from None
        if not isinstance(found, dict):
            raise HostError(f"what answers at {self.url} is no server of models")
        return found

    def status(self, name: str) -> dict[str, Any]:
        """The state of a model by its name or an alias. UserError where it has none."""
        for model in self.ask("/v1/models").get("data", ()):
            if name in (model.get("id"), *model.get("aliases", ())) and isinstance(model.get("status"), dict):
                status: dict[str, Any] = model["status"]
                return status
        raise UserError(f"{self.url}: there is no model {name!r}", param="NAME")


def _message(error: urllib.error.HTTPError) -> str:
    try:
        told = json.loads(error.read(1 << 20))["error"]
        return str(told["message"] if isinstance(told, dict) else told)
    except (ValueError, KeyError, TypeError, OSError):
        return f"HTTP {error.code}"


def with_server(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: the flags that say which server, and whether to print JSON."""
    for add in reversed(
        [
            click.option(
                "--server",
                "url",
                envvar="HOMENODE_SERVER",
                default="http://127.0.0.1:8000",
                metavar="URL",
                help="The server. [default: http://127.0.0.1:8000]",
            ),
            click.option(
                "--api-key", "key", envvar="HOMENODE_API_KEY", metavar="KEY", help="A key to it, of an admin."
            ),
            click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        ]
    ):
        command = add(command)
    return command


@click.command()
@with_server
def served(url: str, key: str | None, as_json: bool) -> None:
    """List the models of a running server: state, memory, nodes, CPUs."""
    with json_errors(as_json):
        found = RunningServer(url, key).ask("/v1/models").get("data", [])
        if as_json:
            print_json(found)
            return
        from homenode.cli.output.fitted_text import FittedTable
        from homenode.cli.output.report import print_fitted

        table = FittedTable("model", "aliases", "state", "memory", "nodes", "CPUs")
        for model in found:
            table.add_row(*map(show_controls, _cells(model)))
        print_fitted(table)


def _cells(model: dict[str, Any]) -> tuple[str, ...]:
    status = model.get("status")
    aliases = ", ".join(model.get("aliases") or ())
    if not isinstance(status, dict):  # a server of one model
        return str(model.get("id")), aliases, "loaded", "", "", ""
    nodes = ",".join(map(str, status.get("nodes", ())))
    size = format_bytes(int(status.get("memory_bytes", 0)))
    return str(model.get("id")), aliases, str(status.get("value")), size, nodes, str(status.get("cpus", ""))


@click.command()
@click.argument("name")
@with_server
def load(name: str, url: str, key: str | None, as_json: bool) -> None:
    """Load a model of a running server, and wait until it is."""
    with json_errors(as_json):
        server = RunningServer(url, key)
        server.ask("/models/load", {"model": name})
        status = _settled(server, name, ("loaded",))
        _tell(name, status, as_json)


@click.command()
@click.argument("name")
@with_server
def unload(name: str, url: str, key: str | None, as_json: bool) -> None:
    """Unload a model of a running server as soon as it has no requests, and wait until it is."""
    with json_errors(as_json):
        server = RunningServer(url, key)
        server.ask("/models/unload", {"model": name})
        status = _settled(server, name, ("unloaded", "failed"))
        _tell(name, status, as_json)


@click.command()
@with_server
def reload(url: str, key: str | None, as_json: bool) -> None:
    """Have a running server read the settings of its models again."""
    with json_errors(as_json):
        told = RunningServer(url, key).ask("/models/reload", {})
        if as_json:
            print_json(told)
            return
        parts = [f"{word}: {', '.join(told[word])}" for word in ("added", "changed", "removed") if told.get(word)]
        print_note("; ".join(parts) or "no model differs")


def _settled(server: RunningServer, name: str, wanted: tuple[str, ...]) -> dict[str, Any]:
    """The state of a model once it is one of `wanted`. UserError where it fails instead."""
    ends = time.monotonic() + _LOAD_TIMEOUT_S
    while True:
        status = server.status(name)
        if (word := status.get("value")) in wanted:
            return status
        if word == "failed" or (word == "unloaded" and status.get("reason")):
            raise UserError(f"{name} is {word}: {status.get('reason')}", param="NAME")
        if time.monotonic() >= ends:
            raise HostError(f"{name} is still {word} after {_LOAD_TIMEOUT_S:g} s")
        time.sleep(_LOOK_S)


def _tell(name: str, status: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json({"model": name, "status": status})
    else:
        print_note(f"{name} is {status.get('value')}")
