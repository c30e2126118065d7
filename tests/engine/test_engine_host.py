"""The engines of a server of several models: a process in the place that was planned, whose CPUs are claimed as long as
it is loaded.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from homenode.cli.server.engine_host import EngineHost
from homenode.cli.several_models.models_file import usual_values
from homenode.engine.connection.engine_client import AsyncEngineClient
from homenode.engine.cpu_claims import claims_of_others
from homenode.model.hub.locate import builtin_model

TABLE = """
[models.{name}]
path = "{path}"
kv-cache-memory = "2MiB"
"""


def test_a_model_runs_where_it_was_planned_and_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    tables = [TABLE.format(name=name, path=builtin_model()) for name in ("one", "two")]
    file.write_text("".join(tables) + '[models.lost]\npath = "/nowhere"\n', encoding="utf-8")
    host = EngineHost([str(file)], usual_values(), 1 << 30, None)
    planned = {model.name: model for model in host.read().models}
    assert planned["one"].cpus and planned["one"].total == planned["two"].total > 2 << 20
    assert "no such file" in str(planned["lost"].problem) and not planned["lost"].cpus
    told: list[tuple[int, int]] = []

    async def run() -> None:
        parts = await host.start(planned["one"], lambda done, total: told.append((done, total)))
        client = parts.client
        assert isinstance(client, AsyncEngineClient) and client.pid is not None
        try:
            assert (await client.heartbeat(10)) >= 0
            own = set(planned["one"].cpus)
            assert set(client.ready.details["cpus"]) <= own  # type: ignore[arg-type]
            assert os.sched_getaffinity(client.pid) <= own
            assert [set(claim.cpus) for claim in claims_of_others() if claim.name == "model one"] == [own]
            assert client.ready.details["kv_bytes"] <= 2 << 20  # type: ignore[operator]
        finally:
            await host.end(planned["one"], parts, 5.0)
        assert client.exit_code == 0
        assert not any(claim.name == "model one" for claim in claims_of_others())

    asyncio.run(run())
    assert told and told[-1][0] == told[-1][1]
