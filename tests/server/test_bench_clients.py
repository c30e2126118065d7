"""`bench serve` against our own server and against things that are none."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from homenode.bench.serving.clients import TimedCompletion
from homenode.bench.serving.served import served
from homenode.cli.main import main
from homenode.engine.messages import Output
from homenode.engine.request import Request
from tests.server.conftest import Start
from tests.server.fakes import ScriptedClient


def outputs(request: Request) -> list[Output]:
    """A token at a time, as the engine sends them."""
    tokens = [Output(id=request.id, tokens=[65 + i % 26]) for i in range(request.params.max_tokens)]
    return [*tokens[:-1], Output(id=request.id, tokens=[65], finish_reason="length")]


def test_clients_count_what_our_server_sends(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    client = ScriptedClient(outputs)
    server = start(client)
    lengths = ("--prompt-tokens", "7", "--gen-tokens", "30", "--vocab-size", "250")
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["bench", "serve", server.url, "--clients", "1,5", "--requests", "2", *lengths, "--json"])
    one, five = json.loads(capsys.readouterr().out)["results"]
    assert (one["requests"], one["tokens"], one["prompt_tokens"]) == (2, 60, 14)
    assert (five["requests"], five["tokens"], five["prompt_tokens"]) == (10, 300, 70)
    assert five["output_tok_s"] == pytest.approx(300 / five["seconds"])
    assert 0 < five["ttft_median_s"] <= five["ttft_p95_s"] <= five["seconds"]
    assert 0 <= five["itl_median_s"] <= five["itl_p95_s"] <= five["itl_max_s"]
    prompts = [tuple(request.prompt_ids) for request in client.requests]
    assert len(set(prompts)) == 12 and all(len(p) == 7 and max(p) < 250 for p in prompts)
    assert all(request.params.ignore_eos and request.params.temperature == 0 for request in client.requests)


def test_figures_of_a_load_by_hand() -> None:
    exchanges = [TimedCompletion(1.0, [2.0, 2.5, 3.0], 3, 3.0), TimedCompletion(1.0, [1.5, 2.5], 2, 2.5)]
    found = served(2, 10, exchanges)
    assert (found.seconds, found.tokens, found.output_tok_s, found.total_tok_s) == (2.0, 5, 2.5, 12.5)
    assert (found.ttft_median_s, found.itl_median_s, found.itl_max_s, found.tpot_median_s) == (0.75, 0.5, 1.0, 0.75)
    drafted = [TimedCompletion(1.0, [2.0, 2.5, 4.0], 9, 4.0), TimedCompletion(1.0, [2.0], 1, 2.0)]
    found = served(2, 10, drafted)  # several tokens came in one event
    assert (found.tokens, found.tpot_median_s, found.itl_max_s) == (10, 0.25, 1.5)
    with pytest.raises(ValueError, match="without a token"):
        served(1, 10, [TimedCompletion(0.0)])


def answering(reply: bytes) -> tuple[str, Callable[[], None]]:
    """Something that listens and answers every request with `reply`."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(reply)

    thread = threading.Thread(target=serve)
    thread.start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}", thread.join


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnope", "nope"),
        (b"HTTP/1.1 200 OK\r\n\r\ndata: {}\n\n", "did not stream a completion"),
        (b"", "did not stream a completion"),
    ],
)
def test_what_streams_no_completion_is_an_error(reply: bytes, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    url, join = answering(reply)
    with pytest.raises(SystemExit) as end:
        main(["bench", "serve", url, "--clients", "1"])
    join()
    assert end.value.code == 1
    assert words in " ".join(capsys.readouterr().err.split())


def test_nobody_there_and_no_address(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for url, code in ((f"http://127.0.0.1:{port}", 1), ("ftp://x", 2)):
        with pytest.raises(SystemExit) as end:
            main(["bench", "serve", url, "--clients", "1"])
        assert end.value.code == code
        assert url in " ".join(capsys.readouterr().err.split())


def strict_server(known: set[str], usage: bool) -> tuple[str, list[dict[str, object]], Callable[[], None]]:
    """Another program's server: it refuses fields that it does not know, wants a key, and has its API below a path."""
    listener, asked = socket.create_server(("127.0.0.1", 0)), list[dict[str, object]]()

    def answer(connection: socket.socket) -> None:
        head, _, body = connection.recv(1 << 16).partition(b"\r\n\r\n")
        assert head.startswith(b"POST /openai/v1/completions ") and "authorization: Bearer sk-é鍵".encode() in head
        fields = json.loads(body)
        asked.append(fields)
        unknown = min(fields.keys() - known, default=None)
        if unknown is not None:
            text = json.dumps({"error": {"message": f"Unrecognized request argument: {unknown}"}}).encode()
            head = f"HTTP/1.1 400 Bad Request\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n".encode()
            connection.sendall(head + text)
            return
        pieces = ['{"choices": [{"text": "a"}]}'] * 4 + ['{"choices": [{"text": "", "finish_reason": "stop"}]}']
        pieces += ['{"choices": [], "usage": {"completion_tokens": 4}}'] if usage else []
        events = "".join(f"data: {piece}\n\n" for piece in [*pieces, "[DONE]"])
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + events.encode())

    def serve() -> None:
        with listener:
            for _ in range(3 if usage else 4):  # two completions, and one refusal for each field
                connection, _ = listener.accept()
                with connection:
                    answer(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}/openai/v1", asked, thread.join


@pytest.mark.parametrize("usage", [True, False])
def test_another_programs_server_is_measured(usage: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = {"prompt", "max_tokens", "temperature", "stream", "model", *(["stream_options"] if usage else [])}
    url, asked, join = strict_server(known, usage)
    page = tmp_path / "report.html"
    words = ["--clients", "1", "--prompt-tokens", "3", "--gen-tokens", "9", "--model", "m", "--api-key", "sk-é鍵"]
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["bench", "serve", url, *words, "--html", str(page), "--json"])
    join()
    written = capsys.readouterr()
    (figures,) = json.loads(written.out)["results"]
    assert (figures["requests"], figures["tokens"]) == (2, 8)
    assert asked[-1].keys() == known and "ignore_eos" in written.err
    assert url in page.read_text(encoding="utf-8")
