"""`homenode serve --models`: several models over HTTP. The API server runs in this process, each model in children."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from homenode.cli.output.report import exit_code, print_error, print_labelled, print_note, with_origins
from homenode.errors import HomenodeError, UserError
from homenode.server.check_files import check_doors
from homenode.server.models.several_config import SeveralModelsConfig
from homenode.units import format_bytes, format_count

if TYPE_CHECKING:
    from homenode.cli.server.engine_host import EngineHost
    from homenode.cli.several_models.models_plan import ModelsPlan
    from homenode.server.core.state import ServerState
    from homenode.server.http.config import ServerConfig
    from homenode.server.http.listener import Ending
    from homenode.server.http.service_manager import ServiceManager
    from homenode.server.http.stop_signals import StopSignals
    from homenode.server.keys.keyring import Keyring
    from homenode.server.models.kept_models import KeptModels

_LOG = logging.getLogger("homenode.models")


def check_beside_models(server: ServerConfig, several: SeveralModelsConfig, model: str | None) -> None:
    """Raises UserError for what does not go with --models, or only with it."""
    if not several.models:
        for name, usual in asdict(SeveralModelsConfig()).items():
            if getattr(several, name) != usual:
                flag = f"--{name.replace('_', '-')}"
                raise UserError(f"{flag} is about several models; name them with --models", param=name)
        return
    if model is not None:
        raise UserError(
            f"MODEL ({model}) and --models are given; name one model, or several with --models", param="models"
        )
    if server.served_model_name:
        raise UserError(
            "--served-model-name names one model; of several each has a name and `aliases` in the file of --models",
            param="served_model_name",
        )
    if server.api_server_count is not None and server.api_server_count > 1:
        raise UserError(
            "--api-server-count is for one model; several models have one API server, which starts their engines",
            param="api_server_count",
        )


def engine_host(several: SeveralModelsConfig, values: Mapping[str, Any]) -> EngineHost:
    """Return what starts the engines. `values`: of the flags, which models have whose tables do not say otherwise."""
    from homenode.cli.server.engine_host import EngineHost
    from homenode.cli.several_models.models_file import usual_values

    usual = {name: values[name] for name in usual_values() if name in values}
    reserve = usual.pop("reserve_cpus", None)  # is of the host, of which models have parts
    return EngineHost(several.models, usual | {"reserve_cpus": None}, several.models_memory, reserve)


def check_models(server: ServerConfig, several: SeveralModelsConfig, values: Mapping[str, Any]) -> int:
    """Tell everything that is wrong with the settings of all models. The result is the exit code."""
    from homenode.engine.plan.make import check_configs

    problems: list[HomenodeError] = []
    try:
        check_doors(server)
    except HomenodeError as error:
        problems.append(error)
    try:
        made = engine_host(several, values).plan()
    except UserError as error:
        problems.append(error)
        return _told(problems)
    for each in made.measured:
        name = each.entry.name
        if (problem := made.problems.get(name)) is not None:
            problems.append(_of_model(name, problem))
            continue
        checked = check_configs(each.config)
        problems += [_of_model(name, problem) for problem in checked.problems]
        try:
            each.entry.text.load(Path(str(each.config.model.path)))
        except HomenodeError as error:
            problems.append(_of_model(name, error))
        for finding in checked.findings:
            print_labelled(f"{finding.severity}: ", f"models.{name}: {with_origins(finding.text)}", fg="yellow")
    _tell_plan(made, print_note)
    return _told(problems)


def _of_model(name: str, error: HomenodeError) -> HomenodeError:
    return (
        type(error)(f"models.{name}: {error.message}")
        if type(error) is UserError
        else UserError(f"models.{name}: {error.message}")
    )


def _told(problems: Sequence[HomenodeError]) -> int:
    for problem in problems:
        print_error(problem)
    if not problems:
        print_labelled("all settings are fine", "", fg="green")
    return max((exit_code(problem) for problem in problems), default=0)


def _tell_plan(made: ModelsPlan, write: Any) -> None:
    from homenode.cli.several_models.models_plan import crowding

    for each in made.measured:
        if (place := made.places.get(each.entry.name)) is not None:
            write(f"{each.entry.name}: {place.reason}")
    for line in crowding(made):
        write(line)


async def serve_models(
    server: ServerConfig, several: SeveralModelsConfig, values: Mapping[str, Any], stop: StopSignals
) -> int:
    """Plan, then answer until told to stop."""
    from homenode.engine.connection.early_start import end_early_engine
    from homenode.server.core.state import ServerState
    from homenode.server.http.listener import bind
    from homenode.server.http.service_manager import ServiceManager
    from homenode.server.models.kept_models import KeptModels
    from homenode.server.run import serve_state

    end_early_engine()  # a variable or a file said --models, and no argument did
    listener = bind(server)
    host = engine_host(several, values)
    made = await asyncio.to_thread(host.plan)
    _tell_plan(made, _LOG.info)
    for name, problem in sorted(made.problems.items()):
        _LOG.warning("%s cannot be loaded as it is: %s", name, problem.message)
    from homenode.cli.server.engine_host import planned_models

    kept = KeptModels(planned_models(made, host.host), host, several.model_wait_timeout, several.models_lend_after)

    def table(text_work: Any, metrics: Any) -> KeptModels:
        kept.begin(text_work, metrics)
        return kept

    def make(keys: Keyring) -> ServerState:
        return ServerState((), server, keys=keys, table=table)

    async def begin(state: ServerState, ending: Ending) -> None:
        _keep_off_compute(made, host)
        kept.start()

    def announce(url: str) -> None:
        names = ", ".join(kept.names)
        _LOG.info(
            "ready %s  %s (%s), up to %s of memory",
            url,
            format_count(len(kept), "model"),
            names,
            format_bytes(made.budget),
        )

    gc.freeze()
    manager = ServiceManager.of_process()
    with _ReloadSignal(kept, manager):
        try:
            return await serve_state(
                make, server, begin, listener=listener, on_listening=announce, stop=stop, manager=manager
            )
        finally:
            await kept.close()


def _keep_off_compute(made: ModelsPlan, host: EngineHost) -> None:
    """Move this process to CPUs on which no model computes, if there are any."""
    from homenode.engine.pinning import move_process_threads

    taken = {cpu for place in made.places.values() for cpu in place.cpus}
    free = tuple(cpu for cpu in host.host.allowance.cpus if cpu not in taken)
    if free:
        move_process_threads(free)


class _ReloadSignal:
    """Within it SIGHUP has the settings of the models read again."""

    def __init__(self, kept: KeptModels, manager: ServiceManager) -> None:
        """`manager`: hears when that begins, and when it is over."""
        self._kept, self._manager = kept, manager
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> None:
        with suppress(ValueError, RuntimeError):  # another thread than the main one
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._heard)

    def __exit__(self, *_: object) -> None:
        with suppress(ValueError, RuntimeError):
            asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)

    def _heard(self) -> None:
        task = asyncio.ensure_future(self._reload())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reload(self) -> None:
        self._manager.reloading()
        try:
            await self._kept.reload()
        except HomenodeError as error:
            _LOG.error("the models stay as they are: %s", error.message)
        finally:
            self._manager.ready()
