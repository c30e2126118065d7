"""`homenode serve`: a model over HTTP. The front runs in this process, the engine in a child."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from homenode.cli.flags.logs import ServiceLogConfig
from homenode.cli.flags.settings import build, given_settings, shown_settings, source_of, with_settings
from homenode.cli.output.loading_progress import loading_progress
from homenode.cli.output.report import (
    exit_code,
    plain_errors,
    print_error,
    print_labelled,
    print_note,
    told_of_equivalents,
    with_origins,
)
from homenode.cli.server.serve_help import ServeCommand
from homenode.cli.server.transfer_file import take_transfer_file
from homenode.engine.config import EngineConfig
from homenode.errors import HomenodeError, UserError
from homenode.logs.setup import begin_service_log, service_level
from homenode.model.files_read import recorded_files
from homenode.model.identity import refuse_other_texts
from homenode.model.tokenizer.config import TextConfig
from homenode.server.check_files import check_doors
from homenode.server.http.config import ServerConfig
from homenode.server.http.descriptors import raise_descriptor_limit
from homenode.server.http.stop_signals import StopSignals, run_service
from homenode.server.models.several_config import SeveralModelsConfig
from homenode.server.settings_without_effect import server_settings_without_effect
from homenode.start_phases import mark_phase
from homenode.units import format_bytes, format_count

if TYPE_CHECKING:
    from homenode.cli.server.replica_watch import ReplicaWatch
    from homenode.engine.assignment import EngineAssignment
    from homenode.engine.connection.engine_client import AsyncEngineClient
    from homenode.engine.plan.replica_assignments import ClaimedEngines
    from homenode.engine.router.client import ReplicasClient
    from homenode.engine.router.supervisor import EngineSupervisor
    from homenode.host.topology.finding import Finding

_LOG = logging.getLogger("homenode.serve")


@click.command(cls=ServeCommand)
@click.argument("model", required=False)
@click.option(
    "--check-config",
    is_flag=True,
    help="Validate all settings against the model and this machine, then exit: 0, or 2 with the reasons.",
)
@click.option(
    "--show-config",
    is_flag=True,
    help="Print each setting, its value and where it came from, and the tokens that end an answer; then exit.",
)
@with_settings(ServerConfig, SeveralModelsConfig, EngineConfig, TextConfig, ServiceLogConfig)
@click.pass_context
def serve(ctx: click.Context, /, model: str | None, check_config: bool, show_config: bool, **values: Any) -> None:
    """Serve MODEL over HTTP with the OpenAI API.

    MODEL is a Hugging Face folder, a GGUF file, a Hub id such as Qwen/Qwen3-0.6B, or nothing for the built-in model.
    Every setting can also come from a variable HOMENODE_<SETTING> or from the file given by --config, which can name
    the model as well (`model = "..."`).
    """
    mark_phase("imports")
    with plain_errors():
        if check_config and show_config:
            raise UserError(
                "--check-config and --show-config are two answers; ask for one of them", param="--show-config"
            )
        told = (*told_of_equivalents(), *take_transfer_file(ctx, values))
        engine: EngineConfig = build(EngineConfig, values)
        server, text = build(ServerConfig, values), build(TextConfig, values)
        several: SeveralModelsConfig = build(SeveralModelsConfig, values)
        if several != SeveralModelsConfig():
            from homenode.cli.server.serve_models import check_beside_models

            check_beside_models(server, several, model)
        named = dataclasses.replace(engine.model, model=model, vocabulary=text.tokenizer)
        engine = dataclasses.replace(engine, model=named)
        text.check_links(engine.model.links)
        if show_config:
            _show(ctx)
            if several.models:
                return
            from homenode.cli.server.text_side import print_text_side

            print_text_side(engine.model, text, server)
            return
        log: ServiceLogConfig = build(ServiceLogConfig, values)
        ignored = server_settings_without_effect(
            server, given_settings(ctx), service_level(log.level), beside_tables=bool(several.models)
        )
        if check_config:
            for line in told:
                print_note(line)
            if several.models:
                from homenode.cli.server.serve_models import check_models

                _tell(ignored)
                sys.exit(check_models(server, several, values))
            sys.exit(_check(server, engine, text, ignored))
        begin_service_log("server", log.level, log.log_format)
        for line in (*told, *(with_origins(finding.text) for finding in ignored)):
            _LOG.warning("%s", line)
        check_doors(server)
        raise_descriptor_limit()
        if several.models:
            from homenode.cli.server.serve_models import serve_models

            sys.exit(run_service(lambda stop: serve_models(server, several, values, stop)))
        if engine.transfer.on:
            from homenode.engine.kv_transfer.checks import transfer_problems

            if problems := transfer_problems(engine, None):
                sys.exit(_print_problems(problems))
        sys.exit(run_service(lambda stop: _serve(server, engine, text, stop)))


async def _serve(server: ServerConfig, engine: EngineConfig, text: TextConfig, stop: StopSignals) -> int:
    """Start the engine and read the vocabulary at the same time, then answer until told to stop."""
    from homenode.cli.models.announcement import announce_fetch
    from homenode.engine.model_path.locate import locate_model
    from homenode.model.weights.read_ahead import begin_read_ahead

    engine = locate_model(engine, announce_fetch(engine, _LOG.info))
    if engine.model.packed_cache == "off":
        begin_read_ahead(Path(str(engine.model.path)))
    assignments, claimed = _assignments(engine)
    count = server.api_server_count or engine.parallel.data_parallel_size
    if count > 1 or len(assignments) > 1:
        from homenode.engine.connection.early_start import end_early_engine

        end_early_engine()  # a file or the machine's nodes said what no argument did
    if count > 1:
        return await _serve_by_fronts(assignments, claimed, server, text, count, stop)
    client = _client(assignments)
    mark_phase("settings")
    try:
        with loading_progress(_LOG.info) as update:
            loading = asyncio.ensure_future(client.start(update))
            # A start may be given up before it is awaited.
            loading.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            await asyncio.sleep(0)  # the child is started first: it has the longer way to go
            from homenode.server.models.served_model import ModelParts
            from homenode.server.run import bind, serve

            mark_phase("imports of the server")
            listener = bind(server)
            with recorded_files() as read:
                tokenizer = await asyncio.to_thread(text.load, Path(str(engine.model.path)))
            mark_phase("vocabulary")
            ready = await loading
            if ready.identity is not None:
                refuse_other_texts("the API server", str(engine.model.path), ready.identity.texts, read.texts)
            mark_phase("wait for the engine")
        _tell_notes(ready)
        _keep_off_compute(ready)
        gc.freeze()  # what is there now stays: collections of cycles need not walk through it while requests wait
        watch = _watch(claimed, getattr(client, "supervisors", ()), _move_to)
        with watch or nullcontext():
            from homenode.server.models.media import media_works, unread_settings

            media = media_works(Path(str(engine.model.path)), ready, server)
            for flag, kind in unread_settings(server, media):
                _LOG.warning("%s is ignored: this model takes no %ss", with_origins(flag), kind)
            models = [ModelParts(client, tokenizer, server, media)]
            return await serve(
                models, server, listener=listener, on_listening=lambda url: _announce(url, ready), stop=stop
            )
    finally:
        await client.close()


def _assignments(engine: EngineConfig) -> tuple[Sequence[EngineAssignment], ClaimedEngines | None]:
    """The assignment of each engine, and how those of several were decided."""
    if not engine.may_be_several:
        from homenode.engine.assignment import EngineAssignment

        return (EngineAssignment(engine),), None
    from homenode.engine.plan.replica_assignments import claimed_engines

    claimed = claimed_engines(engine)
    return claimed.assignments, claimed


async def _serve_by_fronts(
    assignments: Sequence[EngineAssignment],
    claimed: ClaimedEngines | None,
    server: ServerConfig,
    text: TextConfig,
    count: int,
    stop: StopSignals,
) -> int:
    """The same by several processes that answer HTTP; this one starts and watches them and the engines."""
    from homenode.server.fronts.coordinator import Coordinator
    from homenode.server.fronts.cores import too_few_cores
    from homenode.server.http.listener import bind, warn_if_open

    def tell(ready: Any) -> None:
        warn_if_open(server)
        for finding in too_few_cores(assignments, count):
            _LOG.warning("%s", finding.text)
        _tell_notes(ready)

    coordinator = Coordinator(assignments, server, text, count)
    try:
        with loading_progress(_LOG.info) as update:
            ready = await coordinator.start(bind(server), update, tell)
        _keep_off_compute(ready)
        watch = _watch(claimed, coordinator.supervisors, coordinator.move_fronts)
        with watch or nullcontext():
            return await coordinator.serve(lambda url: _announce(url, ready, count), stop)
    finally:
        await coordinator.close()


def _watch(
    claimed: ClaimedEngines | None,
    supervisors: Sequence[EngineSupervisor[Any]],
    move_rest: Callable[[tuple[int, ...]], None],
) -> ReplicaWatch | None:
    """Return what moves several engines when others of this host come and go; an engine that is alone does
    it itself.
    """
    if claimed is None or len(supervisors) < 2:
        return None
    from homenode.cli.server.replica_watch import watch_replicas

    return watch_replicas(claimed, supervisors, move_rest)


def _move_to(cpus: tuple[int, ...]) -> None:
    from homenode.engine.pinning import move_process_threads

    move_process_threads(cpus)


def _client(assignments: Sequence[EngineAssignment]) -> AsyncEngineClient | ReplicasClient:
    """The engine, or several as one."""
    if len(assignments) == 1:
        from homenode.engine.connection.early_start import take_early_engine
        from homenode.engine.connection.engine_client import AsyncEngineClient

        client = AsyncEngineClient(assignments[0], started=take_early_engine())
        client.on_free_cpus = _move_to
        return client
    from homenode.engine.router.client import ReplicasClient

    return ReplicasClient(assignments)


def _keep_off_compute(ready: Any) -> None:
    """Move to the CPUs on which the engine does not compute, if it left any."""
    if cpus := tuple(ready.details.get("free_cpus", ())):
        _move_to(cpus)


def _tell_notes(ready: Any) -> None:
    """Log what the engine says of its start. To be called before anybody is answered, whose requests are logged too."""
    for note in ready.details.get("notes", ()):
        _LOG.warning("%s", with_origins(note))


def _announce(url: str, ready: Any, fronts: int = 1) -> None:
    mark_phase("port open")
    details = ready.details
    if growth := details.get("kv_growth"):
        _LOG.info("%s", with_origins(growth))
    tokens = ready.num_blocks * ready.block_size
    compute = details.get("compute", {})
    _LOG.info(
        "%s",
        f"ready {url}  {_fronts(fronts)}{_engines(details)}{_workers(details)}{details.get('architecture')}, "
        f"weights {format_bytes(int(details.get('weight_bytes', 0)))}{_in_common(details)}, "
        f"KV {'up to ' if details.get('kv_grows') else ''}{format_bytes(int(details.get('kv_bytes', 0)))} "
        f"({details.get('kv_dtype')}, {format_count(tokens, 'token')}), {_states(details)}"
        f"{_huge_pages(compute)}{_threads(details)}{compute.get('level', '')}, "
        f"loaded in {details.get('load_seconds')} s{_beside(details)}",
    )


def _states(details: Mapping[str, Any]) -> str:
    """The state memory beside KV, of models whose layers keep a state."""
    slots = details.get("state_slots", 0)
    return f"states {format_bytes(int(details['state_bytes']))} ({format_count(slots, 'slot')}), " if slots else ""


def _fronts(count: int) -> str:
    """Return how many processes answer HTTP, where there are several."""
    return f"{format_count(count, 'front')}, " if count > 1 else ""


def _engines(details: Mapping[str, Any]) -> str:
    """Return how many engines there are, where there are several: the figures that follow are of all together."""
    return f"{format_count(details['engines'], 'engine')}, " if "engines" in details else ""


def _in_common(details: Mapping[str, Any]) -> str:
    """Return a clause that the experts among the weights are there once for all engines, where they are."""
    return " (experts once)" if details.get("shared_weight_bytes") else ""


def _workers(details: Mapping[str, Any]) -> str:
    """Return how many workers an engine has, and in how many stages, where it has several."""
    workers = details.get("stages", ())
    stages = len({worker["stage"] for worker in workers})
    return f"{format_count(len(workers), 'worker')} in {format_count(stages, 'stage')}, " if workers else ""


def _threads(details: Mapping[str, Any]) -> str:
    """Return how many threads compute on CPUs, where any do, and on which where they are bound to any."""
    from homenode.cpuset import format_cpu_list

    threads = details.get("compute", {}).get("threads", 1)
    where = f" on CPUs {format_cpu_list(details['cpus'])}" if details.get("cpus") else ""
    if details.get("cpu_sets"):
        where = f" on any of CPUs {format_cpu_list(details['cpu_sets'])}"
    return f"{format_count(threads, 'thread')}{where}, " if threads else ""


def _beside(details: Mapping[str, Any]) -> str:
    """Return who else computes on this host, and where."""
    return "".join(f"; {neighbour}" for neighbour in details.get("neighbours", ()))


def _huge_pages(compute: Mapping[str, Any]) -> str:
    """The part of weights and KV memory on huge pages, for the line about the start; empty where it is not known."""
    from homenode.engine.memory.huge_pages import residence_of

    seen = residence_of(compute)
    return f"{seen.share:.0%} on huge pages, " if seen.present else ""


def _check(server: ServerConfig, engine: EngineConfig, text: TextConfig, ignored: Sequence[Finding]) -> int:
    from homenode.cli.models.announcement import announce_fetch
    from homenode.engine.model_path.locate import locate_model
    from homenode.engine.plan.make import check_configs
    from homenode.engine.plan.model_notes import remarks_on_model, remarks_on_settings

    engine = locate_model(engine, announce_fetch(engine))
    checked = check_configs(engine)
    problems: list[HomenodeError] = [*checked.problems]
    for looks in (lambda: check_doors(server), lambda: text.load(Path(str(engine.model.path)))):
        try:
            looks()
        except HomenodeError as error:
            problems.append(error)
    for remark in (*remarks_on_settings(engine), *remarks_on_model(engine)):
        print_note(remark)
    _tell((*ignored, *checked.findings, *([] if problems else _crowded_fronts(server, engine))))
    if not problems:
        print_labelled("all settings are fine", "", fg="green")
    return _print_problems(problems)


def _tell(findings: Sequence[Finding]) -> None:
    for finding in findings:
        print_labelled(f"{finding.severity}: ", with_origins(finding.text), fg="yellow")


def _crowded_fronts(server: ServerConfig, engine: EngineConfig) -> Sequence[Finding]:
    """Return what a start with several API servers says of the cores."""
    count = server.api_server_count or engine.parallel.data_parallel_size
    if count == 1:
        return ()
    from homenode.server.fronts.cores import too_few_cores

    return too_few_cores(_assignments(engine)[0], count)


def _print_problems(problems: Sequence[HomenodeError]) -> int:
    """Every problem on a line of its own; the exit code."""
    for problem in problems:
        print_error(problem)
    return max((exit_code(problem) for problem in problems), default=0)


def _show(ctx: click.Context) -> None:
    from rich.table import Table

    from homenode.cli.output.report import OUT

    table = Table("setting", "value", "from")
    table.add_row("MODEL", ctx.params["model"] or "(the built-in model)", source_of(ctx, "model"))
    for row in shown_settings(ctx, ServerConfig, SeveralModelsConfig, EngineConfig, TextConfig, ServiceLogConfig):
        table.add_row(*row)
    OUT.print(table)
