"""Loads on servers: what streams tell, what figures are made of them, how servers are started and ended,
and the table.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from benchmarks.contender import Command, Unavailable
from benchmarks.served import ServedCombination, ServedComparison, ServedPair, served_text
from benchmarks.served_pair import run_served_pair, under_load
from benchmarks.servers import Server, free_port, homenode_server, llama_server, running
from homenode.bench.serving.clients import ClientLoad, run_load
from homenode.bench.serving.served import Served
from homenode.errors import HostError
from tests.pure.test_comparison import HERE, reading

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
    found = under_load(one, ClientLoad(clients=2, requests=2, prompt_tokens=3, gen_tokens=5))
    assert (found.requests, found.tokens) == (4, 20) and found.output_tok_s > 0
    with pytest.raises(HostError):
        asyncio.run(run_load(f"http://127.0.0.1:{one.port}", ClientLoad(1)))


def test_a_server_that_does_not_say_as_much_as_it_should_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="4 tokens came where 5"):
        under_load(
            server(SERVER.replace('["max_tokens"]', '["max_tokens"] - 1')),
            ClientLoad(clients=1, prompt_tokens=3, gen_tokens=5),
        )


def test_a_server_that_ends_is_unavailable_and_says_its_last_words() -> None:
    with (
        pytest.raises(Unavailable, match=r"ended with 3 while starting: no model here"),
        running(server("import sys; print('no model here'); sys.exit(3)")),
    ):
        pass
    load = {"clients": 1, "requests": 1, "prompt_tokens": 3, "gen_tokens": 3}
    good, broken = server().to_json(), server("import sys; sys.exit(3)").to_json()
    assert "ended with 3" in run_served_pair({"load": load, "servers": [good, broken]}, reading)["failed"]
    done = run_served_pair({"load": load, "servers": [good, server().to_json()]}, reading)
    assert len(done["readings"]) == 3 and len(done["served"]) == 2


def test_both_servers_get_the_same_threads_and_theirs_room_for_every_client(tmp_path: Path) -> None:
    (tmp_path / "llama-server").touch()
    theirs = llama_server(tmp_path, tmp_path / "m.gguf", 2, ClientLoad(clients=8), huge=True)
    options = theirs.command.argv
    assert options[options.index("-np") + 1] == "8" and int(options[options.index("-c") + 1]) >= 8 * (256 + 128)
    assert options[options.index("-t") + 1] == "2" == homenode_server(tmp_path / "m.gguf", 2).command.argv[-1]
    assert theirs.command.variables == {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    with pytest.raises(Unavailable, match="does not exist"):
        llama_server(tmp_path / "elsewhere", tmp_path / "m.gguf", 2, ClientLoad(8), huge=False)


def figures(tok_s: float, ttft_s: float, itl_s: float) -> Served:
    return Served(8, 16, 1.0, 1, 1, tok_s, tok_s, ttft_s, ttft_s, itl_s, itl_s, itl_s, itl_s)


def test_the_table_of_served_loads(tmp_path: Path) -> None:
    combination = ServedCombination("qwen2.5-0.5b", "Q8_0", 8, "llama-server", "default")
    ours, theirs = figures(300, 0.9, 0.02), figures(100, 0.6, 0.06)
    record = ServedComparison({}, {"homenode": "0.1"}, {"requests": 2, "prompt_tokens": 256, "gen_tokens": 128})
    record.pairs = [ServedPair(combination, ours, theirs, moved, [HERE] * 3) for moved in (None, "they moved")]
    record.save(tmp_path / "r.json")
    again = ServedComparison.load_file(tmp_path / "r.json")
    assert again == record and len(again.counted(combination)) == 1
    text = served_text(again)
    assert text.startswith("Behind:\n\n- qwen2.5-0.5b Q8_0, 8 clients, llama-server, default: time to first token\n")
    assert "1 pairs count; during 0 of them" in text
    assert "llama-server, default | 3.00x (100) | 600 ms | 60.0 ms |" in text


def test_what_is_measured_again_replaces_what_was_known_of_it_alone() -> None:
    pairs = [
        ServedPair(
            ServedCombination("s", "Q8_0", n, "llama-server", "default"), figures(2, 1, 1), figures(1, 1, 1), None, []
        )
        for n in (8, 32)
    ]
    first, other = (pair.combination for pair in pairs)
    record = ServedComparison({}, {}, {}, skipped=[f"{first.name}: no answer", f"{other.name}: no answer"], pairs=pairs)
    record.forget([first])
    assert record.pairs == pairs[1:] and record.skipped == [f"{other.name}: no answer"]
