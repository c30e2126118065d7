"""`homenode run-batch`: a file of requests answered into a file of results, without a server."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from homenode.cli.flags.equivalents import EquivalentsCommand
from homenode.cli.flags.logs import taken_level, with_command_log
from homenode.cli.flags.settings import build, given_settings, with_settings
from homenode.cli.output.loading_progress import loading_progress
from homenode.cli.output.report import plain_errors, print_note, with_origins
from homenode.engine.config import EngineConfig
from homenode.errors import UserError
from homenode.logs.setup import command_level
from homenode.model.tokenizer.config import TextConfig
from homenode.server.http.config import ServedModelConfig, ServerConfig
from homenode.server.settings_without_effect import server_settings_without_effect
from homenode.units import format_count

if TYPE_CHECKING:
    from homenode.server.batches.batch_lines import LineOffset
    from homenode.server.core.state import ServerState

_TOLD_EVERY_S = 10.0


@click.command(cls=EquivalentsCommand)
@click.argument("model", required=False)
@click.option("--input-file", "-i", required=True, metavar="FILE", help="Requests, each a line of JSON.")
@click.option("--output-file", "-o", required=True, metavar="FILE", help="Where the results go, in the same order.")
@with_settings(ServedModelConfig, EngineConfig, TextConfig)
@with_command_log
@click.pass_context
def run_batch(ctx: click.Context, /, model: str | None, input_file: str, output_file: str, **values: Any) -> None:
    """Answer the requests of a file with MODEL.

    A line is an object with custom_id, url (such as /v1/chat/completions) and body; a result has the custom_id and the
    response. Results that the output file has already are kept, so that a run that was interrupted goes on.
    """
    with plain_errors():
        engine: EngineConfig = build(EngineConfig, values)
        served, text = build(ServedModelConfig, values), build(TextConfig, values)
        named = dataclasses.replace(engine.model, model=model, vocabulary=text.tokenizer)
        engine = dataclasses.replace(engine, model=named)
        if "step_time" not in given_settings(ctx):  # nobody waits for single answers: steps are as long as is best
            engine = dataclasses.replace(engine, scheduler=dataclasses.replace(engine.scheduler, step_time=0))
        server = ServerConfig(**{f.name: getattr(served, f.name) for f in dataclasses.fields(ServedModelConfig)})
        level = command_level(taken_level(dict(ctx.params)))
        for finding in server_settings_without_effect(server, given_settings(ctx), level):
            print_note(with_origins(finding.text))
        files = _BatchFiles(Path(input_file), Path(output_file))
        sys.exit(asyncio.run(_run(files, server, engine, text)))


class _BatchFiles:
    """The two files of a run. Results are appended as they come, and put into order at the end."""

    def __init__(self, source: Path, target: Path) -> None:
        """Raises UserError for files that cannot be used."""
        from homenode.server.app import APIS, batch_paths
        from homenode.server.batches.batch_lines import check_lines

        self._target = target
        try:
            self.source = source.open("rb")
            self.places, errors = check_lines(self.source, None, batch_paths(APIS))
            if errors:
                raise UserError(f"{source}: {errors[0].message}", param="input_file")
            self.done = _kept_results(target, self.places)
            self._appended = target.with_name(f"{target.name}.part").open("ab")
        except OSError as error:
            raise UserError(f"{error.filename}: {error.strerror}", param="input_file") from None
        self.kept = len(self.done)

    def keep(self, line: int, result: dict[str, Any]) -> None:
        """Keep what came of a line."""
        raw = msgspec.json.encode(result) + b"\n"
        self.done[line] = raw
        self._appended.write(raw)
        self._appended.flush()

    def write_in_order(self) -> None:
        """Write all results in the order of the requests, in place of what the output file was."""
        self._appended.close()
        ordered = self._target.with_name(f"{self._target.name}.new")
        with ordered.open("wb") as file:
            for line in range(len(self.places)):
                file.write(self.done[line])
        ordered.replace(self._target)
        self._target.with_name(f"{self._target.name}.part").unlink(missing_ok=True)


def _kept_results(target: Path, places: Sequence[LineOffset]) -> dict[int, bytes]:
    """The results that an earlier run has left, by their lines; those that are no answers are computed again."""
    lines = {place.custom_id: number for number, place in enumerate(places)}
    found: dict[int, bytes] = {}
    for path in (target, target.with_name(f"{target.name}.part")):
        for raw in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
            try:
                result = msgspec.json.decode(raw)
                line, status = lines.get(result["custom_id"]), result["response"]["status_code"]
            except (msgspec.DecodeError, KeyError, TypeError):
                continue
            if line is not None and status == 200 and raw.endswith(b"\n"):
                found.setdefault(line, raw)
    return found


async def _run(files: _BatchFiles, server: ServerConfig, engine: EngineConfig, text: TextConfig) -> int:
    """Start the engine, answer what is left, and write the output; the exit code, 1 where a request has an error."""
    from homenode.cli.models.announcement import announce_fetch
    from homenode.engine.assignment import EngineAssignment
    from homenode.engine.connection.engine_client import AsyncEngineClient
    from homenode.engine.model_path.locate import locate_model
    from homenode.engine.plan.replica_assignments import claimed_engines
    from homenode.engine.router.client import ReplicasClient
    from homenode.server.core.state import ServerState
    from homenode.server.models.served_model import ModelParts

    if len(files.done) < len(files.places):
        engine = locate_model(engine, announce_fetch(engine))
        several = claimed_engines(engine).assignments if engine.may_be_several else (EngineAssignment(engine),)
        client = ReplicasClient(several) if len(several) > 1 else AsyncEngineClient(several[0])
        try:
            with loading_progress(print_note) as update:
                loading = asyncio.ensure_future(client.start(update))
                tokenizer = await asyncio.to_thread(text.load, Path(str(engine.model.path)))
                ready: Any = await loading
            for note in ready.details.get("notes", ()):
                print_note(note)
            await _compute(ServerState([ModelParts(client, tokenizer, server)], server), files)
        finally:
            await client.close()
    files.write_in_order()
    bad = sum(msgspec.json.decode(raw)["response"]["status_code"] != 200 for raw in files.done.values())
    kept = f", {files.kept} of them by an earlier run" if files.kept else ""
    print_note(f"{format_count(len(files.places), 'request')}{kept}: {bad} with an error")
    return 1 if bad else 0


async def _compute(state: ServerState, files: _BatchFiles) -> None:
    """Ask the application for all lines that have no result yet. Raises HomenodeError where the engine is lost."""
    from homenode.errors import PeerError
    from homenode.server.app import create_app
    from homenode.server.batches.batch_run import BatchRun
    from homenode.server.batches.batch_store import LineResult
    from homenode.server.keys.caller import KeyHolder

    def lost(reason: str) -> None:
        state.lost = reason

    state.watch_engines(lost)
    told_at = time.monotonic()

    def keep(result: LineResult) -> None:
        nonlocal told_at
        files.keep(result.line, result.result)
        if time.monotonic() - told_at > _TOLD_EVERY_S:
            told_at = time.monotonic()
            print_note(f"{len(files.done)} of {format_count(len(files.places), 'request')} are done")

    most = state.models.first.ready.max_num_seqs
    run = BatchRun(create_app(state), KeyHolder(), keep, at_once=lambda: most, ends=lambda: state.lost is not None)
    if not await run.compute(files.source.fileno(), files.places, files.done):
        raise PeerError(f"the engine is gone: {state.lost}; run this again to go on")
