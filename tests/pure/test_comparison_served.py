"""Loads on servers: what streams tell, what figures are made of them, how servers are started and ended, and the table."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.contender import Command, Unavailable
from benchmarks.load import Answer, Load, LoadFailed, Served, answer_of, run_load, served
from benchmarks.served import ServedCombination, ServedComparison, ServedPair, served_text
from benchmarks.served_pair import run_served_pair, under_load
from benchmarks.servers import Server, free_port, homenode_server, llama_server, running
from tests.pure.test_comparison import HERE, reading

# As llama-server 0c1e570 streams: the last piece has no text, the usage comes with it or after it.
PIECE = b'data: {"choices":[{"text":"x","index":0,"finish_reason":null}],"object":"text_completion"}\r\n'
LAST = b'data: {"choices":[{"text":"","index":0,"finish_reason":"length"}],"object":"text_completion"}\r\n'
USAGE = b'data: {"choices":[],"usage":{"completion_tokens":2,"prompt_tokens":4,"total_tokens":6}}\r\n'
DONE = b"data: [DONE]\r\n"


def test_a_stream_tells_when_each_token_came() -> None:
    lines = [(1.0, PIECE), (1.5, PIECE), (1.6, LAST), (1.7, USAGE), (1.7, DONE)]
    assert answer_of(0.5, lines) == Answer(0.5, (1.0, 1.5), 2)
    with pytest.raises(LoadFailed, match="no usage"):
        answer_of(0.5, [line for line in lines if line[1] != USAGE])
    with pytest.raises(LoadFailed, match="DONE"):
        answer_of(0.5, lines[:-1])


def test_figures_of_a_load() -> None:
    answers = [Answer(0.0, (1.0, 1.1, 1.4), 3), Answer(1.0, (4.0, 4.2, 5.0), 3)]
    found = served(answers)
    assert found.tok_s == pytest.approx(6 / 5.0)
    assert found.ttft_ms == pytest.approx(2000)
    assert found.itl_ms == pytest.approx(250)  # of 100, 200, 300 and 800
    assert found.tpot_ms == pytest.approx(350)  # of 200 and 500
    with pytest.raises(ValueError, match="less than two pieces"):
        served([replace(answers[0], came=(1.0,))])


class Scripted:
    """Answers every request with as many tokens as it wants; remembers bodies and how many were open at once."""

    def __init__(self, status: str = "200 OK", short: int = 0) -> None:
        self.status, self.short = status, short
        self.bodies: list[dict[str, Any]] = []
        self.open = self.most = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.most = max(self.most, self.open)
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split()[1]) for line in head.splitlines() if line.lower().startswith(b"content-length"))
        body = json.loads(await reader.readexactly(length))
        self.bodies.append(body)
        tokens = body["max_tokens"] - self.short
        usage = b'data: {"choices":[],"usage":{"completion_tokens":%d}}\n\n' % tokens
        writer.write(f"HTTP/1.1 {self.status}\r\ncontent-type: text/event-stream\r\n\r\n".encode() + PIECE * tokens + usage + DONE)
        await writer.drain()
        self.open -= 1
        writer.close()


def loaded(script: Scripted, load: Load) -> list[Answer]:
    async def run() -> list[Answer]:
        server = await asyncio.start_server(script, "127.0.0.1", 0)
        async with server:
            return await run_load(server.sockets[0].getsockname()[1], load, {"stream": True})

    return asyncio.run(run())


def test_so_many_clients_make_so_many_requests_of_different_prompts() -> None:
    script = Scripted()
    answers = loaded(script, Load(clients=3, requests=7, prompt=5, answer=4))
    assert [answer.tokens for answer in answers] == [4] * 7
    assert all(len(answer.came) == 4 for answer in answers)
    assert script.most <= 3
    assert len({tuple(body["prompt"]) for body in script.bodies}) == 7
    assert all(len(body["prompt"]) == 5 and body["stream"] for body in script.bodies)


def test_answers_that_are_no_success_are_told() -> None:
    load = Load(clients=1, requests=1, prompt=5, answer=4)
    with pytest.raises(LoadFailed, match="503 Service Unavailable"):
        loaded(Scripted("503 Service Unavailable"), load)
    with pytest.raises(LoadFailed, match=r"answers of \[3\] tokens came where 4"):
        loaded(Scripted(short=1), load)


SERVER = """
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def do_POST(self):
        tokens = json.loads(self.rfile.read(int(self.headers["content-length"])))["max_tokens"]
        self.send_response(200); self.end_headers()
        for _ in range(tokens):
            self.wfile.write(b'data: {"choices":[{"text":"x"}]}\\n\\n')
        self.wfile.write(b'data: {"choices":[],"usage":{"completion_tokens":%d}}\\n\\ndata: [DONE]\\n\\n' % tokens)
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def server(code: str = SERVER) -> Server:
    port = free_port()
    return Server("scripted", "", Command((sys.executable, "-c", code, str(port))), port)


def test_a_server_is_started_loaded_and_ended() -> None:
    one = server()
    assert Server.from_json(json.loads(json.dumps(one.to_json()))) == one
    found = under_load(one, Load(clients=2, requests=4, prompt=3, answer=5))
    assert found.tok_s > 0 and found.ttft_ms > 0
    with pytest.raises(LoadFailed, match="Connect call failed"):
        asyncio.run(run_load(one.port, Load(1, 1), {}))


def test_a_server_that_ends_is_unavailable_and_says_its_last_words() -> None:
    with (
        pytest.raises(Unavailable, match=r"ended with 3 while starting: no model here"),
        running(server("import sys; print('no model here'); sys.exit(3)")),
    ):
        pass
    load = {"clients": 1, "requests": 1, "prompt": 3, "answer": 3}
    good, broken = server().to_json(), server("import sys; sys.exit(3)").to_json()
    assert "ended with 3" in run_served_pair({"load": load, "servers": [good, broken]}, reading)["failed"]
    done = run_served_pair({"load": load, "servers": [good, server().to_json()]}, reading)
    assert len(done["readings"]) == 3 and len(done["served"]) == 2


def test_both_servers_get_the_same_threads_and_theirs_room_for_every_client(tmp_path: Path) -> None:
    (tmp_path / "llama-server").touch()
    theirs = llama_server(tmp_path, tmp_path / "m.gguf", 2, Load(clients=8, requests=16), huge=True)
    options = theirs.command.argv
    assert options[options.index("-np") + 1] == "8" and int(options[options.index("-c") + 1]) >= 8 * (256 + 128)
    assert options[options.index("-t") + 1] == "2" == homenode_server(tmp_path / "m.gguf", 2).command.argv[-3]
    assert theirs.command.variables == {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"} and theirs.fields["cache_prompt"] is False
    with pytest.raises(Unavailable, match="does not exist"):
        llama_server(tmp_path / "elsewhere", tmp_path / "m.gguf", 2, Load(8, 8), huge=False)


def test_the_table_of_served_loads(tmp_path: Path) -> None:
    combination = ServedCombination("qwen2.5-0.5b", "Q8_0", 8, "llama-server", "default")
    ours, theirs = Served(300, 900, 20.0, 21), Served(100, 600, 60.0, 61)
    record = ServedComparison({}, {"homenode": "0.1"}, {"prompt": 256, "answer": 128, "rounds": 2, "threads": 2})
    record.pairs = [ServedPair(combination, ours, theirs, moved, [HERE] * 3) for moved in (None, "they moved")]
    record.save(tmp_path / "r.json")
    again = ServedComparison.load_file(tmp_path / "r.json")
    assert again == record and len(again.counted(combination)) == 1
    text = served_text(again)
    assert text.startswith("Behind:\n\n- qwen2.5-0.5b Q8_0, 8 clients, against llama-server, default: time to first token\n")
    assert "llama-server, default | 3.00x (100) | 600 ms | 60.0 ms |" in text
