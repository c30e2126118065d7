"""Several models behind one application that are loaded when they are asked for: every API loads and picks its own,
memory goes to whoever was asked for last, one that fails or dies leaves the others alone, and settings change without a
failed request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import msgspec
import pytest

from homenode.engine.messages import PoolingReady
from homenode.errors import CheckpointError, UserError
from homenode.logs.request_mark import RequestMark, current_request_mark
from homenode.server.app import create_app
from homenode.server.core.state import ServerState
from homenode.server.http.config import ServedModelConfig, ServerConfig
from homenode.server.keys.keyring import Keyring
from homenode.server.keys.named_key import NamedKey, digest_of
from homenode.server.models import kept_model, model_exchange
from homenode.server.models.kept_model import KeptModel
from homenode.server.models.kept_models import KeptModels
from homenode.server.models.lifecycle import ModelsMemory, ModelState
from homenode.server.models.model_entry import ModelEntry, PlannedModel
from homenode.server.models.model_host import PlannedModels
from homenode.server.models.served_model import ModelParts
from tests.server.fakes import ByteTokenizer, ScriptedClient, scripted
from tests.server.test_several_models import APIS, SAID, pooled
from tests.waiting import PATIENCE_S, wait_in_loop

SIZE = 10
ROOM_FOR_TWO = 25


def planned(name: str, *aliases: str, size: int = SIZE, **rest: Any) -> PlannedModel:
    entry = ModelEntry(name, aliases, served=ServedModelConfig(served_model_name=(name, *aliases)), **rest)
    return PlannedModel(entry, entry.engine, {0: size}, (0,), (0, 1), "here")


class ScriptedHost:
    """Starts scripted engines. `broken`: what is wrong with the files of a model, by name; `slow`: seconds of a
    start.
    """

    def __init__(self, *models: PlannedModel, total: int = ROOM_FOR_TWO) -> None:
        self.models, self.total = list(models), total
        self.broken: dict[str, str] = {}
        self.clients: dict[str, ScriptedClient] = {}
        self.running: set[str] = set()
        self.most = 0
        self.slow = 0.0
        self.wrong: str | None = None

    def read(self) -> PlannedModels:
        if self.wrong is not None:
            raise UserError(self.wrong)
        return PlannedModels(list(self.models), ModelsMemory(self.total))

    def measure(self, model: PlannedModel) -> PlannedModels:
        time.sleep(self.slow)  # on a thread
        found = [replace(each, problem=self.broken.get(each.name)) for each in self.models]
        return PlannedModels(found, ModelsMemory(self.total))

    async def start(self, model: PlannedModel, progress: Callable[[int, int], None]) -> ModelParts:
        await asyncio.sleep(self.slow)
        progress(1, 2)
        if (why := self.broken.get(model.name)) is not None:
            raise CheckpointError(why)
        client = self.clients[model.name] = ScriptedClient(pooled if model.name == "vectors" else scripted)
        if model.name == "vectors":
            client.ready = msgspec.structs.replace(client.ready, pooling=PoolingReady("mean", 4))
        self.running.add(model.name)
        self.most = max(self.most, sum(each.total for each in self.models if each.name in self.running))
        return ModelParts(client, ByteTokenizer(), model.entry.served)

    async def end(self, model: PlannedModel, parts: ModelParts, drain_s: float) -> None:
        if self.clients.get(model.name) is parts.client:
            self.running.discard(model.name)


class Service:
    """An application over a scripted host."""

    def __init__(
        self, host: ScriptedHost, *keys: NamedKey, lend_after_s: float = float("inf"), **settings: Any
    ) -> None:
        self.host = host
        self.kept = KeptModels(host.read(), host, 10.0, lend_after_s)
        self.state = ServerState((), ServerConfig(port=0, **settings), keys=Keyring(keys), table=self._table)
        self.app = create_app(self.state)

    def _table(self, text_work: Any, metrics: Any) -> KeptModels:
        self.kept.begin(text_work, metrics)
        return self.kept

    async def ask(self, path: str, body: Any = None, key: str = "") -> httpx.Response:
        transport = httpx.ASGITransport(self.app)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with httpx.AsyncClient(transport=transport, base_url="http://server", headers=headers) as asking:
            return await asking.request("GET" if body is None else "POST", path, json=body, timeout=20)

    async def text(self, name: str, **rest: Any) -> httpx.Response:
        return await self.ask("/v1/completions", {"model": name, "prompt": "hi", "max_tokens": 3, **rest})

    async def states(self) -> dict[str, str]:
        return {each["id"]: each["status"]["value"] for each in (await self.ask("/v1/models")).json()["data"]}

    async def becomes(self, name: str, word: str) -> None:
        async def is_so() -> bool:
            return (await self.states()).get(name) == word

        await wait_in_loop(is_so, f"`{name}` to be {word}")

    async def metric(self, name: str, model: str) -> float:
        lines = (await self.ask("/metrics")).text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f'{name}{{model_name="{model}"'))


def run(work: Callable[[Service], Awaitable[None]], host: ScriptedHost, *keys: NamedKey, **settings: Any) -> None:
    """`work` on a service, which is closed behind it."""

    @asynccontextmanager
    async def serving() -> AsyncIterator[Service]:
        service = Service(host, *keys, **settings)
        service.kept.start()
        try:
            yield service
        finally:
            await service.kept.close()

    async def all_of_it() -> None:
        async with asyncio.timeout(2 * PATIENCE_S), serving() as service:
            await work(service)
        assert not host.running
        assert host.most <= host.total

    asyncio.run(all_of_it())


def three(**rest: Any) -> ScriptedHost:
    return ScriptedHost(planned("one", "uno"), planned("two"), planned("three"), **rest)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_model, "_FIRST_RETRY_S", 0.05)
    monkeypatch.setattr(model_exchange, "STREAM_GRACE_S", 0.02)


def test_every_api_loads_the_model_that_it_asks_for() -> None:
    async def work(service: Service) -> None:
        assert set((await service.states()).values()) == {"unloaded"}
        for path, body, text_at, _ in APIS.values():
            answer = await service.ask(path, {**body, "model": "uno"})
            assert answer.status_code == 200 and text_at(answer.json()), answer.text
        for path, body in (
            ("/tokenize", {"prompt": "hi"}),
            ("/detokenize", {"tokens": [104]}),
            ("/v1/messages/count_tokens", {"messages": SAID}),
            ("/api/show", {}),
        ):
            assert (await service.ask(path, {**body, "model": "two"})).status_code == 200
        for path, body in (("/v1/embeddings", {"input": "hi"}), ("/api/embed", {"input": "hi"})):
            assert (await service.ask(path, {**body, "model": "vectors"})).status_code == 200
        assert (await service.ask("/v1/completions", {"prompt": "hi"})).json()["model"] == "one"
        assert await service.metric("homenode:model_loads_total", "one") == 1

    run(work, ScriptedHost(planned("one", "uno"), planned("two"), planned("vectors"), total=100))


def test_unknown_names_are_404_with_the_known_ones() -> None:
    async def work(service: Service) -> None:
        bodies = {path: body for path, body, _, _ in APIS.values()}
        more = {"/models/load": {}, "/models/unload": {}, "/v1/embeddings": {"input": "x"}, "/api/show": {}}
        for path, body in (bodies | more).items():
            answer = await service.ask(path, {**body, "model": "seven"})
            assert answer.status_code == 404
            assert all(name in answer.text for name in ("seven", "one", "uno", "two", "three"))
        assert (await service.ask("/v1/models/seven")).status_code == 404
        assert (await service.ask("/v1/models/uno")).json()["status"]["value"] == "unloaded"

    run(work, three())


def test_first_requests_at_once_load_once_and_memory_goes_to_whoever_is_asked() -> None:
    async def work(service: Service) -> None:
        service.host.slow = 0.02
        answers = await asyncio.gather(*(service.text(name) for name in ("one", "uno", "two") * 3))
        assert {answer.status_code for answer in answers} == {200}
        assert [await service.metric("homenode:model_loads_total", name) for name in ("one", "two")] == [1, 1]
        await service.text("one")
        await service.text("three")
        assert await service.states() == {"one": "loaded", "two": "unloaded", "three": "loaded"}
        names = ("one", "two", "three") * 8
        answers = await asyncio.gather(*(service.text(name) for name in names))
        assert {answer.status_code for answer in answers} == {200}

    run(work, three())


def test_counters_go_on_when_a_model_is_loaded_again() -> None:
    async def work(service: Service) -> None:
        await service.text("one")
        service.host.clients["one"].statistics = msgspec.structs.replace(
            service.host.clients["one"].statistics, generation_tokens=5
        )
        await service.ask("/models/unload", {"model": "one"})
        await service.becomes("one", "unloaded")
        assert await service.metric("homenode:generation_tokens_total", "one") == 5
        assert await service.metric("homenode:num_requests_running", "one") == 0
        await service.text("one")
        service.host.clients["one"].statistics = msgspec.structs.replace(
            service.host.clients["one"].statistics, generation_tokens=2
        )
        assert await service.metric("homenode:generation_tokens_total", "one") == 7

    run(work, three())


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    async def work(service: Service) -> None:
        await service.text("one")
        answer = await service.text("vast")
        assert answer.status_code == 503
        for part in ("`vast` takes 30B", "may take 25B", "`one` has 10B, pinned", "15B are lacking"):
            assert part in answer.text, answer.text
        assert (await service.states())["one"] == "loaded"

    run(work, ScriptedHost(planned("one", pin=True), planned("vast", size=30)))


def test_a_stream_that_waits_hears_of_it_and_is_answered_or_told_why_not() -> None:
    async def work(service: Service) -> None:
        service.host.slow = 0.1
        answer = await service.text("one", stream=True)
        assert answer.status_code == 200 and answer.text.startswith(": "), answer.text
        assert "data: [DONE]" in answer.text
        lines = await service.ask("/api/generate", {"model": "two", "prompt": "hi"})
        assert lines.headers["content-type"] == "application/x-ndjson" and lines.text.startswith("{")
        service.host.broken["three"] = "the file is cut"
        for path, (body, event) in {
            "/v1/completions": ({"prompt": "hi"}, 'data: {"error"'),
            "/v1/chat/completions": ({"messages": SAID}, 'data: {"error"'),
            "/v1/messages": ({"messages": SAID, "max_tokens": 3}, "event: error"),
            "/v1/responses": ({"input": "hi"}, "event: error"),
            "/api/chat": ({"messages": SAID}, '{"error"'),
        }.items():
            service.kept.unload("three")
            answer = await service.ask(path, {**body, "model": "three", "stream": True})
            told = answer.text.split("\n\n")[-2] if path != "/api/chat" else answer.text
            assert answer.status_code == 200 and told.startswith(event), (path, answer.text)
            assert "the file is cut" in told

    run(work, three())


def test_one_that_is_broken_says_why_and_is_loaded_once_it_is_mended() -> None:
    async def work(service: Service) -> None:
        service.host.broken["one"] = "the file is cut"
        answer = await service.text("one")
        assert answer.status_code == 503 and "the file is cut" in answer.text
        assert (await service.states())["one"] == "failed"
        assert (await service.text("two")).status_code == 200
        assert (await service.ask("/health")).status_code == 200
        again = await service.text("one")
        assert again.status_code == 503 and int(again.headers["retry-after"]) >= 1
        service.host.broken.clear()

        async def answers() -> bool:
            return (await service.text("one")).status_code == 200

        await wait_in_loop(answers)

    run(work, three())


def test_one_whose_engine_dies_is_started_again_and_leaves_the_others_alone() -> None:
    async def work(service: Service) -> None:
        await service.text("one")
        await service.text("two")
        lost = service.host.clients["one"]
        lost.die()
        assert (await service.text("two")).status_code == 200
        assert (await service.text("one")).status_code in (200, 503)  # as soon as it is there again
        await service.becomes("one", "loaded")
        assert (await service.text("one")).status_code == 200 and service.host.clients["one"] is not lost
        assert await service.metric("homenode:model_load_failures_total", "one") == 1

    run(work, three())


def test_pinned_and_busy_ones_stay() -> None:
    async def work(service: Service) -> None:
        await service.text("one")
        held = asyncio.ensure_future(service.text("two"))
        await service.becomes("two", "loaded")
        await held
        service.host.clients["two"].hold_after = 0
        held = asyncio.ensure_future(service.text("two"))
        await wait_in_loop(service.host.clients["two"].held.is_set)
        waits = asyncio.ensure_future(service.text("three"))
        await asyncio.sleep(0.05)
        assert await service.states() == {"one": "loaded", "two": "loaded", "three": "unloaded"}
        service.host.clients["two"].release()
        assert (await held).status_code == (await waits).status_code == 200
        assert await service.states() == {"one": "loaded", "two": "unloaded", "three": "loaded"}

    run(work, ScriptedHost(planned("one", pin=True), planned("two"), planned("three")))


def test_idle_ones_are_unloaded_in_time_and_clients_of_ollama_say_how_long_they_stay() -> None:
    async def work(service: Service) -> None:
        async def say(name: str, **rest: Any) -> Any:
            body = {"model": name, "prompt": "hi", "stream": False, "options": {"num_predict": 2}, **rest}
            return (await service.ask("/api/generate", body)).json()

        async def running() -> set[str]:
            return {each["name"] for each in (await service.ask("/api/ps")).json()["models"]}

        assert (await say("two"))["load_duration"] > 0 == (await say("two"))["load_duration"]
        assert (await say("one"))["load_duration"] > 0
        assert {each["name"] for each in (await service.ask("/api/tags")).json()["models"]} == {
            "one:latest",
            "two:latest",
        }
        await service.becomes("one", "unloaded")
        await say("one", keep_alive="5m")
        await say("two", keep_alive=0)
        await service.becomes("two", "unloaded")
        assert await running() == {"one:latest"}
        assert (await say("two", prompt=""))["done_reason"] == "load"
        assert (await say("two", prompt="", keep_alive=0))["done_reason"] == "unload"
        await service.becomes("two", "unloaded")
        assert (await service.states())["one"] == "loaded"
        wrong = await service.ask("/api/generate", {"model": "two", "prompt": "hi", "keep_alive": "5 parsecs"})
        assert wrong.status_code == 400 and "keep_alive" in wrong.text

    run(work, ScriptedHost(planned("one", idle_timeout_s=0.05), planned("two")))


def test_those_that_are_not_left_to_be_asked_for_are_loaded_at_the_start() -> None:
    async def work(service: Service) -> None:
        await service.becomes("one", "loaded")
        assert (await service.states())["two"] == "unloaded"

    run(work, ScriptedHost(planned("one", on_demand=False), planned("two")))


@pytest.mark.parametrize("total", (ROOM_FOR_TWO, 15))
def test_settings_change_without_a_failed_request(total: int) -> None:
    """The new version comes beside the old one, or in its place where memory holds only one."""

    async def work(service: Service) -> None:
        await service.text("one")
        before, answers, over = service.host.clients["one"], list[httpx.Response](), asyncio.Event()

        async def ask() -> None:
            while not over.is_set():
                answers.append(await service.text("one"))

        asking = [asyncio.ensure_future(ask()) for _ in range(3)]
        await asyncio.sleep(0.03)
        service.host.slow = 0.05
        changed = planned("one", "uno", idle_timeout_s=1000.0)
        service.host.models = [changed, planned("four")]
        told = (await service.ask("/models/reload", {})).json()
        assert (told["added"], told["changed"], told["removed"]) == (["four"], ["one"], ["two", "three"])
        await wait_in_loop(lambda: service.host.clients["one"] is not before)
        await service.becomes("one", "loaded")
        count = len(answers)
        while len(answers) < count + 6:
            await asyncio.sleep(0.01)
        over.set()
        await asyncio.gather(*asking)
        assert {answer.status_code for answer in answers} == {200}
        assert (await service.text("two")).status_code == 404
        assert set(await service.states()) == {"one", "four"}
        assert (await service.text("four")).status_code == 200
        assert await service.metric("homenode:model_loads_total", "one") == 2

    host = three(total=total)
    run(work, host)


def test_those_who_wait_are_served_although_others_wait_longer_than_they_should(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Loads that take longer than anybody's patience: each load serves all who waited for it."""
    monkeypatch.setattr("homenode.server.models.kept_models.PATIENCE_S", 0.01)

    async def work(service: Service) -> None:
        service.host.slow = 0.05
        answers = await asyncio.gather(*(service.text(name) for name in ("one", "two", "three") * 4))
        assert {answer.status_code for answer in answers} == {200}
        assert sum([await service.metric("homenode:model_loads_total", name) for name in ("one", "two", "three")]) <= 6

    run(work, three(total=15))


def test_a_new_version_that_is_broken_leaves_the_old_one_until_it_is_mended() -> None:
    async def work(service: Service) -> None:
        await service.text("one")
        old = service.host.clients["one"]
        service.host.models = [planned("one", "uno", idle_timeout_s=1000.0)]
        service.host.broken["one"] = "the file is cut"
        await service.ask("/models/reload", {})
        await asyncio.sleep(0.05)
        assert (await service.text("one")).status_code == 200 and service.host.clients["one"] is old
        service.host.broken.clear()
        await service.ask("/models/reload", {})
        async with asyncio.timeout(PATIENCE_S):
            while service.host.clients["one"] is old:
                assert (await service.text("one")).status_code == 200
        assert (await service.text("one")).status_code == 200

    run(work, three())


def test_a_model_that_goes_while_its_new_version_is_broken_goes_whole_and_comes_back() -> None:
    async def work(service: Service) -> None:
        await service.text("one")
        service.host.models[0] = planned("one", "uno", idle_timeout_s=1000.0)
        service.host.broken["one"] = "the file is cut"
        await service.ask("/models/reload", {})
        await asyncio.sleep(0.05)
        kept = service.host.models.pop(0)
        await service.ask("/models/reload", {})
        await wait_in_loop(lambda: "one" not in service.host.running)
        service.host.models.insert(0, kept)
        service.host.broken.clear()
        await service.ask("/models/reload", {})
        assert (await service.text("one")).status_code == 200

    run(work, three())


def test_a_model_moves_while_it_is_idle_where_another_is_to_have_its_cores() -> None:
    async def work(service: Service) -> None:
        await service.text("one")
        await service.text("two")
        first = service.host.clients["one"], service.host.clients["two"]
        large = replace(planned("large"), cpus=(1,))
        service.host.models = [replace(planned("one", "uno"), cpus=(0,)), replace(planned("two"), cpus=(5,)), large]
        first[0].hold_after = 0
        held = asyncio.ensure_future(service.text("one"))
        await wait_in_loop(first[0].held.is_set)
        assert (await service.ask("/models/reload", {})).json()["changed"] == []
        waits = [asyncio.ensure_future(service.text(name)) for name in ("one", "large")]
        await asyncio.sleep(0.02)
        assert service.host.clients["one"] is first[0] and not any(each.done() for each in waits)
        assert "large" not in service.host.clients  # nobody else computes on those cores
        first[0].release()
        assert {(await each).status_code for each in (held, *waits)} == {200}
        assert service.host.clients["one"] is not first[0] and service.host.clients["two"] is first[1]
        seen = {each["id"]: each["status"]["cpus"] for each in (await service.ask("/v1/models")).json()["data"]}
        assert seen == {"one": "0", "two": "2-3", "large": "1"}

    host = ScriptedHost(planned("one", "uno"), replace(planned("two"), cpus=(2, 3)), total=100)
    run(work, host)


def test_a_model_that_is_to_move_is_in_use_while_another_has_its_new_cores() -> None:
    async def work(service: Service) -> None:
        await service.text("one")
        await service.text("two")
        first = service.host.clients["one"], service.host.clients["two"]
        first[1].hold_after = 0
        held = asyncio.ensure_future(service.text("two"))
        await wait_in_loop(first[1].held.is_set)
        places = {"large": (0,), "one": (1,), "two": (2,)}
        service.host.models = [replace(planned(name), cpus=cpus) for name, cpus in places.items()]
        await service.ask("/models/reload", {})
        assert (await service.text("one")).status_code == 200 and service.host.clients["one"] is first[0]
        waits = asyncio.ensure_future(service.text("two"))
        await asyncio.sleep(0.02)
        assert not waits.done()
        first[1].release()
        answers = [await held, await waits, await service.text("large"), await service.text("one")]
        assert [answer.status_code for answer in answers] == [200] * 4
        seen = {each["id"]: each["status"]["cpus"] for each in (await service.ask("/v1/models")).json()["data"]}
        assert seen == {"large": "0", "one": "1", "two": "2"}
        assert await service.metric("homenode:model_loads_total", "one") == 1

    run(work, ScriptedHost(*(replace(planned(name), cpus=(at,)) for at, name in enumerate(("one", "two"))), total=100))


@pytest.mark.parametrize("why", ("removed", "unloaded"))
def test_cores_of_a_busy_model_that_goes_are_another_ones_when_it_has_gone(why: str) -> None:
    async def work(service: Service) -> None:
        await service.text("one")
        client = service.host.clients["one"]
        client.hold_after = 0
        held = asyncio.ensure_future(service.text("one"))
        await wait_in_loop(client.held.is_set)
        left = [] if why == "removed" else [replace(planned("one"), cpus=(0,))]
        service.host.models = [replace(planned("large"), cpus=(1,)), *left]
        await service.ask("/models/reload", {})
        if why == "unloaded":
            await service.ask("/models/unload", {"model": "one"})
        waits = asyncio.ensure_future(service.text("large"))
        await asyncio.sleep(0.02)
        assert service.host.clients == {"one": client}
        client.release()
        assert [(await each).status_code for each in (held, waits)] == [200, 200]
        assert await service.states() == {"large": "loaded"} | ({} if why == "removed" else {"one": "unloaded"})

    run(work, ScriptedHost(planned("one"), total=100))


def test_one_that_was_loading_when_another_was_given_its_cores_moves_once_it_is_loaded() -> None:
    async def work(service: Service) -> None:
        service.host.slow = 0.05
        asked = asyncio.ensure_future(service.text("one"))
        await wait_in_loop(lambda: service.kept.find_kept("one").state is ModelState.LOADING)
        service.host.models = [replace(planned("one", "uno"), cpus=(0,)), replace(planned("large"), cpus=(1,))]
        await service.ask("/models/reload", {})
        assert (await asked).status_code == (await service.text("large")).status_code == 200
        await service.text("one")
        seen = {each["id"]: each["status"]["cpus"] for each in (await service.ask("/v1/models")).json()["data"]}
        assert seen == {"one": "0", "large": "1"}

    run(work, ScriptedHost(planned("one", "uno"), total=100))


def lending(**settings: float) -> tuple[ScriptedHost, dict[str, float]]:
    host = ScriptedHost(*(replace(planned(name), cpus=(at,)) for at, name in enumerate(("one", "two"))), total=100)
    return host, {"lend_after_s": 0.0, **settings}


def test_cores_are_lent_and_given_back_while_nobody_computes_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homenode.server.models.kept_models.PATIENCE_S", 0.01)

    async def cpus(service: Service) -> dict[str, str]:
        return {each["id"]: each["status"]["cpus"] for each in (await service.ask("/v1/models")).json()["data"]}

    async def work(service: Service) -> None:
        await service.text("one")
        assert await cpus(service) == {"one": "0-1", "two": "1"}
        client = service.host.clients["one"]
        client.hold_after = 0
        held = asyncio.ensure_future(service.text("one"))
        await asyncio.sleep(0.02)
        waits = [asyncio.ensure_future(service.text(name)) for name in ("two", "one")]
        await asyncio.sleep(0.05)
        assert service.host.clients == {"one": client} and not any(each.done() for each in waits)
        client.release()
        assert [(await each).status_code for each in (held, *waits)] == [200, 200, 200]
        assert await cpus(service) == {"one": "0", "two": "1"} and service.host.clients["one"] is not client
        for name in ("one", "two"):
            assert await service.metric("homenode:model_loads_total", name) == 1
            assert await service.metric("homenode:model_unloads_total", name) == 0

    host, settings = lending()
    run(work, host, **settings)


def test_settings_that_change_nothing_leave_one_alone_that_was_lent_cores() -> None:
    async def work(service: Service) -> None:
        await service.text("one")
        client = service.host.clients["one"]
        await service.ask("/models/reload", {})
        for _ in range(2):
            assert (await service.text("one")).status_code == 200
            assert service.host.clients["one"] is client
        assert (await service.ask("/v1/models/one")).json()["status"]["cpus"] == "0-1"
        await service.text("two")
        assert (await service.ask("/v1/models/one")).json()["status"]["cpus"] == "0"

    host, settings = lending()
    run(work, host, **settings)


def test_one_that_failed_has_no_cores_of_others() -> None:
    kept = KeptModel(planned("one"), "one")
    kept.lent = frozenset({7})
    kept.to(ModelState.LOADING)
    kept.failed("its engine is gone")
    assert not kept.owner(0.0).lent and kept.place is kept.planned


def test_what_outlives_a_request_logs_nothing_in_its_name() -> None:
    marks: dict[str, RequestMark | None] = {}

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            marks[record.getMessage().split()[0]] = current_request_mark()

    async def work(service: Service) -> None:
        service.host.broken = {"two": "no config.json"}
        for name in ("one", "two"):
            await service.text(name)
        service.kept.keep(service.kept.find("one").model, 0.05)
        await service.becomes("one", "unloaded")

    logger, listening = logging.getLogger("homenode.models"), Listening()
    level = logger.level
    logger.addHandler(listening)
    logger.setLevel(logging.INFO)
    try:
        run(work, three())
    finally:
        logger.removeHandler(listening)
        logger.setLevel(level)
    assert {"loading", "loaded", "unloading", "two"} <= marks.keys() and set(marks.values()) == {None}


def test_one_that_is_idle_is_loaded_again_on_cores_that_were_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homenode.server.models.kept_model._SETTLE_AFTER_S", 0.05)
    monkeypatch.setattr("homenode.server.models.kept_models._SETTLE_S", 0.02)

    async def work(service: Service) -> None:
        for name in ("two", "one"):
            await service.text(name)
        await service.ask("/models/unload", {"model": "two"})
        async with asyncio.timeout(5):
            while (await service.ask("/v1/models/one")).json()["status"]["cpus"] != "0-1":
                await asyncio.sleep(0.01)
        await service.becomes("one", "loaded")
        assert (await service.text("one")).status_code == 200
        assert await service.metric("homenode:model_loads_total", "one") == 1
        await service.ask("/models/unload", {"model": "one"})
        await service.becomes("one", "unloaded")

    host, settings = lending()
    run(work, host, **settings)


def test_wrong_settings_change_nothing() -> None:
    async def work(service: Service) -> None:
        await service.text("one")
        service.host.wrong = "models.toml: models.one: path is missing"
        answer = await service.ask("/models/reload", {})
        assert answer.status_code == 400 and "path is missing" in answer.text
        assert (await service.text("one")).status_code == 200
        assert await service.metric("homenode:model_loads_total", "one") == 1

    run(work, three())


def test_keys_may_be_bound_to_models_and_only_admins_load() -> None:
    def key(name: str, row: int, **rest: Any) -> NamedKey:
        return NamedKey(digest=digest_of(f"secret-{name}"), name=name, row=row, **rest)

    async def work(service: Service) -> None:
        async def ask(path: str, body: Any, who: str) -> int:
            return (await service.ask(path, body, f"secret-{who}")).status_code

        text = {"prompt": "hi", "max_tokens": 2}
        assert await ask("/v1/completions", {**text, "model": "uno"}, "bound") == 200
        assert await ask("/v1/completions", {**text, "model": "two"}, "bound") == 403
        assert await ask("/v1/completions", {**text, "model": "two"}, "boss") == 200
        listed = (await service.ask("/v1/models", key="secret-bound")).json()["data"]
        assert [each["id"] for each in listed] == ["one"]
        for path in ("/models/load", "/models/unload", "/models/reload"):
            codes = [await ask(path, {"model": "two"}, who) for who in ("nobody", "bound", "boss")]
            assert codes == [401, 403, 200]
        empty = {"model": "two", "prompt": "", "keep_alive": 0}
        assert [await ask("/api/generate", empty, who) for who in ("nobody", "other", "boss")] == [401, 403, 200]
        answer = await service.ask("/api/generate", {**empty, "prompt": "hi", "stream": False}, "secret-other")
        assert answer.headers["x-homenode-ignored"] == "keep_alive"
        listed = (await service.ask("/v1/models", key="secret-boss")).json()["data"]
        assert {each["id"]: each["status"]["value"] for each in listed}["two"] == "loaded"

    run(work, three(), key("bound", 1, models=("one",)), key("boss", 2, admin=True), key("other", 3))


def test_a_drain_refuses_those_who_wait() -> None:
    async def work(service: Service) -> None:
        service.host.slow = 5.0
        waits = asyncio.ensure_future(service.text("one"))
        await service.becomes("one", "loading")
        service.state.drain(1.0)
        answer = await waits
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "draining"

    run(work, three())


def test_the_document_of_several_models_names_what_any_of_them_may_do() -> None:
    async def work(service: Service) -> None:
        document = (await service.ask("/openapi.json")).json()
        assert {"/models/load", "/models/unload", "/models/reload", "/v1/embeddings", "/infill"} <= set(
            document["paths"]
        )
        model = document["components"]["schemas"]["ChatRequest"]["properties"]["model"]
        assert {"one", "uno", "two", "three", None} >= set(model["anyOf"][0]["enum"]) >= {"one", "uno", "two"}
        health = (await service.ask("/health")).json()
        assert (health["status"], health["models"]) == ("ok", [])
        assert (await service.ask("/kv_transfer")).status_code == 404

    run(work, three())
