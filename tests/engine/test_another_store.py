"""KV blocks that are kept in no folder: whole engines over a store of another kind, which has its row in the table of
kinds and is named by --kv-disk as a folder is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from homenode.engine.api.local import LocalEngine
from homenode.engine.kv_disk.folder_contents import FolderContents
from homenode.engine.request import Request
from homenode.errors import UserError
from tests.checkpoints import make_folder
from tests.dict_store import DictServer, add_kinds
from tests.engine.engines import greedy, outputs_of, run_all
from tests.engine.state_engines import Bits, bits_of, engine_of, prompts_of
from tests.waiting import wait_until

PROMPTS = prompts_of((150, 97, 33))
PARAMS = greedy(6, logprobs=0)
IN_MEMORY = {"kv_disk": "memory:///blocks"}

Servers = dict[str, DictServer]
Answers = tuple[list[Bits], list[int]]  # and what was cached of each


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("toy"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests of these models are of no use to anybody later."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    return add_kinds(monkeypatch)


def ask(engine: LocalEngine, first_id: int = 1) -> Answers:
    outputs = [run_all(engine, [prompt], [PARAMS], first_id=n)[0] for n, prompt in enumerate(PROMPTS, first_id)]
    return [bits_of(each) for each in outputs], [each[0].cached_tokens for each in outputs]


def life(model: Path, **settings: Any) -> tuple[Answers, Any]:
    """The answers of an engine to all prompts, and the last figures of its store before it ends."""
    engine = engine_of(model, **settings)
    try:
        answers = ask(engine)
        wait_until(lambda: engine.statistics.generation_tokens == 18)
        return answers, engine.statistics.disk
    finally:
        engine.close()


@pytest.fixture(scope="module")
def alone(model: Path) -> list[Bits]:
    """What an engine answers that keeps nothing."""
    engine = engine_of(model)
    try:
        return ask(engine)[0]
    finally:
        engine.close()


@pytest.mark.parametrize("with_key", [False, True])
def test_the_next_engine_finds_what_the_last_one_left(
    model: Path, tmp_path: Path, alone: list[Bits], servers: Servers, with_key: bool
) -> None:
    settings = dict(IN_MEMORY)
    if with_key:
        (tmp_path / "key").write_text("a" * 64)
        settings["kv_disk_key"] = str(tmp_path / "key")
    assert life(model, **settings)[0] == (alone, [0, 0, 0])
    server = servers["blocks"]
    assert len(server.blocks) == 8 and server.closed == 1  # what was not written yet is at the end
    again, figures = life(model, **settings)
    assert again == (alone, [128, 96, 32])
    assert (figures.hit_tokens, figures.stored_tokens, figures.rejected_blocks) == (256, 0, 0)
    assert figures.nbytes == server.total and figures.read_s > 0
    assert life(model, kv_disk="memory:///another")[0] == (alone, [0, 0, 0])


def test_engines_that_run_at_once_find_what_the_others_write(model: Path, alone: list[Bits], servers: Servers) -> None:
    one, two = engine_of(model, **IN_MEMORY), engine_of(model, **IN_MEMORY)
    try:
        assert ask(one) == (alone, [0, 0, 0])
        wait_until(lambda: len(servers["blocks"].blocks) == 8)
        wait_until(lambda: two.statistics.disk is not None and two.statistics.disk.nbytes == servers["blocks"].total)
        assert ask(two) == (alone, [128, 96, 32])
    finally:
        one.close()
        two.close()


def test_what_is_lost_damaged_or_given_up_is_computed(model: Path, alone: list[Bits], servers: Servers) -> None:
    life(model, **IN_MEMORY)
    server = servers["blocks"]
    key = next(iter(server.blocks))
    server.blocks = {each: data[:-1] + bytes([data[-1] ^ 1]) for each, data in server.blocks.items()}
    answers, figures = life(model, **IN_MEMORY)
    assert answers == (alone, [0, 0, 0]) and figures.rejected_blocks == 3  # the first one of each
    server.most = 3 * len(server.blocks[key])
    assert life(model, **IN_MEMORY)[0][0] == alone and len(server.blocks) == 3
    server.lost = True
    assert life(model, **IN_MEMORY)[0] == (alone, [0, 0, 0])
    assert server.closed == 4


def test_the_blocks_of_a_session_stay(model: Path, servers: Servers) -> None:
    engine = engine_of(model, **IN_MEMORY, kv_session_ttl=77.0)
    try:
        outputs_of(engine, [Request(id=1, prompt_ids=PROMPTS[0], params=PARAMS, session="session/a")])
        wait_until(lambda: list(servers["blocks"].pinned.values()) == [77.0] * 4)
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"kv_disk": "memory://"}, "--kv-disk memory://: wanted is memory://HOST/NAME"),
        ({"kv_disk": "memory://10.0.0.1/blocks"}, "10.0.0.1: KV would leave this host in clear.*--peer-plain-text"),
        ({**IN_MEMORY, "kv_disk_key": "/nowhere"}, "/nowhere: it cannot be read"),
        ({**IN_MEMORY, "backend": "reference"}, "--kv-disk: --backend reference keeps KV"),
        ({"kv_disk": "unknown://10.0.0.1/blocks"}, "no such kind of store; give a folder"),
    ],
)
def test_what_cannot_be_is_refused_by_name(model: Path, servers: Servers, settings: dict[str, str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        engine_of(model, **settings)
    assert not servers


@pytest.mark.parametrize(
    "settings",
    [
        {"kv_disk": "memory://127.0.0.1/blocks"},
        {"kv_disk": "memory+tls://10.0.0.1/blocks"},
        {"kv_disk": "memory://10.0.0.1/blocks", "peer_plain_text": True},
    ],
)
def test_what_stays_here_or_is_encrypted_or_allowed_is_sent(
    model: Path, servers: Servers, settings: dict[str, Any]
) -> None:
    engine_of(model, **settings).close()
    assert servers["blocks"].closed == 1


def test_homenode_cache_refuses_what_is_no_folder() -> None:
    with pytest.raises(UserError, match="memory:///blocks is no folder"):
        FolderContents("memory:///blocks")
