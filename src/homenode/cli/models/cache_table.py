"""`homenode models`: the table of what the cache holds."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from homenode.cli.output.report import json_errors, print_json, show_controls
from homenode.units import format_bytes

if TYPE_CHECKING:
    from homenode.cli.models.judge import Judgement
    from homenode.model.hub.cache import CachedModel


def list_models(as_json: bool) -> None:
    """Print every cached model. Headers are read, no weight is."""
    with json_errors(as_json):
        from homenode.cli.models.judge import Judgement, judge_path
        from homenode.engine.config import EngineConfig
        from homenode.host.discovery.read import read_host
        from homenode.host.topology.source import LiveSource
        from homenode.model.hub.cache import cached_models
        from homenode.model.hub.repository import cache_folder

        cached = cached_models()
        host = read_host(LiveSource(), accelerators=False) if cached else None
        judged = [
            Judgement(None, reason="incomplete: a fetch ended early; serve it to fetch the rest, or remove it")
            if model.format == "incomplete" or host is None
            else judge_path(model.path, EngineConfig(), host)
            for model in cached
        ]
        if as_json:
            print_json([_entry(model, verdict) for model, verdict in zip(cached, judged, strict=True)])
        else:
            _print(cached, judged, str(cache_folder(None)))


def yes_or_no(value: bool | None) -> str:
    """Return the word for a table; a dash where it is not known."""
    return "-" if value is None else "yes" if value else "no"


def _entry(model: CachedModel, verdict: Judgement) -> dict[str, Any]:
    used = None if model.last_used is None else _time(model.last_used).isoformat(timespec="seconds")
    return {
        "name": model.name, "repository": model.repository, "size_bytes": model.size, "format": model.format,
        **asdict(verdict), "last_used": used,
    }  # fmt: skip


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, tz=UTC)


def _print(cached: list[CachedModel], judged: list[Judgement], cache: str) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    from homenode.cli.output.report import OUT

    if not cached:
        OUT.print(f"no models in the Hub cache {cache}", markup=False, highlight=False)
        return
    table = Table("model", "size", "format", "supported", "fits here", "last used", box=SIMPLE, padding=(0, 1, 0, 0))
    for model, verdict in zip(cached, judged, strict=True):
        used = "-" if model.last_used is None else _time(model.last_used).strftime("%Y-%m-%d")
        cells = (show_controls(model.name), format_bytes(model.size), model.format)
        table.add_row(*cells, yes_or_no(verdict.supported), yes_or_no(verdict.fits), used)
    OUT.print(table)
    for model, verdict in zip(cached, judged, strict=True):
        if verdict.reason:
            OUT.print(show_controls(f"{model.name}: {verdict.reason}"), markup=False, highlight=False)
