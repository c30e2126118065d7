"""The whole of it: `homenode serve` with the native engine, asked by the official client, by lm-eval and by
schemathesis.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from homenode.host.topology.allowance import Allowance
from tests.engine.live import LiveServer

pytest.importorskip("homenode._native", reason="needs the compiled core")

pytestmark = pytest.mark.alone

OPENINGS = ("Once upon a time", "The little dog", "One day, Tom", "She was happy because")
NOISE = " qx zzv 93 jk#"


@pytest.fixture(scope="module")
def live_server() -> Iterator[LiveServer]:
    if not LiveServer.possible():
        pytest.skip("needs the built-in model or the data folder ../shared/data, and this clone has neither")
    server = LiveServer("--max-num-queued-requests", "0")
    yield server
    assert server.close() == 0, server.log_end()
    assert b"Traceback" not in b"".join(server.log), b"".join(server.log).decode()[-6000:]


@pytest.fixture
def own_server() -> Iterator[LiveServer]:
    """A server that the test may end."""
    if not LiveServer.possible():
        pytest.skip("needs the built-in model or the data folder ../shared/data, and this clone has neither")
    server = LiveServer()
    yield server
    server.close()


@pytest.mark.skipif(len(Allowance.of_process().physical_cpus) < 2, reason="needs a core for everything but computing")
def test_the_front_and_the_loop_keep_off_the_computing_cpu() -> None:
    """Which CPU that is depends on who else computes at the time."""
    if not LiveServer.possible():
        pytest.skip("needs the built-in model or the data folder ../shared/data, and this clone has neither")
    allowance = Allowance.of_process()
    server = LiveServer("--threads", "1")
    try:
        front = server.process.pid
        (engine,) = server.engines()
        masks = [
            {frozenset(os.sched_getaffinity(int(task.name))) for task in Path(f"/proc/{pid}/task").iterdir()}
            for pid in (front, engine)
        ]
    finally:
        server.close()
    (free,) = masks[0]
    assert free and free < set(allowance.cpus)
    assert free in masks[1], "the loop is beside the front"
    (computing,) = masks[1] - {free}
    assert len(computing) == 1 and computing.isdisjoint(free), "the thread of the steps is where it computes"


@pytest.fixture
def client(live_server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live_server.url}/v1", api_key="none", max_retries=0, timeout=60) as official:
        yield official


def continuation(client: openai.OpenAI, prompt: str, **fields: Any) -> Any:
    settings = {"model": "live", "prompt": prompt, "temperature": 0, "max_tokens": 12, **fields}
    return client.completions.create(**settings).choices[0]


def test_a_stream_adds_up_to_the_whole(client: openai.OpenAI) -> None:
    whole = continuation(client, OPENINGS[0], max_tokens=40)
    stream = client.completions.create(model="live", prompt=OPENINGS[0], temperature=0, max_tokens=40, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.text != ""


def test_choices_share_a_prompt_and_differ_by_seed(client: openai.OpenAI) -> None:
    def texts() -> list[str]:
        answer = client.completions.create(
            model="live", prompt=OPENINGS[0], temperature=1.5, max_tokens=24, n=4, seed=7
        )
        return [choice.text for choice in answer.choices]

    first = texts()
    assert len(set(first)) > 1 and texts() == first


def test_scores_of_a_prompt_are_those_it_was_generated_with(client: openai.OpenAI) -> None:
    made = continuation(client, OPENINGS[0], logprobs=1, extra_body={"return_token_ids": True})
    ids = [*made.prompt_token_ids, *made.token_ids]
    scored = continuation(client, ids, echo=True, max_tokens=0, logprobs=1)  # type: ignore[arg-type]
    assert scored.logprobs.token_logprobs[len(made.prompt_token_ids) :] == pytest.approx(
        made.logprobs.token_logprobs, abs=1e-3
    )
    assert scored.text.endswith(made.text)


def test_stop_string(client: openai.OpenAI) -> None:
    whole = continuation(client, OPENINGS[0], max_tokens=40).text
    stop = whole[len(whole) // 2 :][:3]
    cut = continuation(client, OPENINGS[0], max_tokens=40, stop=[stop])
    assert cut.text == whole[: whole.index(stop)] and cut.finish_reason == "stop"


def test_chat(client: openai.OpenAI, live_server: LiveServer) -> None:
    if not live_server.chat:
        with pytest.raises(openai.BadRequestError, match="template"):
            client.chat.completions.create(model="live", messages=[{"role": "user", "content": "hello"}])
        return
    answer = client.chat.completions.create(
        model="live", messages=[{"role": "user", "content": "hello"}], temperature=0
    )
    assert answer.choices[0].message.content and answer.choices[0].finish_reason == "stop"


def test_abandoned_streams_leave_nothing(client: openai.OpenAI, live_server: LiveServer) -> None:
    for _ in range(4):
        with client.completions.create(
            model="live", prompt=OPENINGS[0], max_tokens=400, stream=True, extra_body={"ignore_eos": True}
        ) as stream:
            next(iter(stream))
    with httpx.Client(base_url=live_server.url, timeout=20) as http:
        for _ in range(2000):
            lines = [
                line for line in http.get("/metrics").text.splitlines() if line.startswith("homenode:num_requests_")
            ]
            if all(line.endswith(" 0.0") for line in lines):
                return
    raise AssertionError(lines)


@contextlib.contextmanager
def long_stream(server: LiveServer) -> Iterator[Iterator[str]]:
    """The lines of a stream that has begun and has a while to go."""
    body = {"prompt": OPENINGS[0], "max_tokens": 400, "ignore_eos": True, "stream": True, "n": 8}
    with (
        httpx.Client(base_url=server.url, timeout=60) as http,
        http.stream("POST", "/v1/completions", json=body) as response,
    ):
        lines = (line for line in response.iter_lines() if line.startswith("data: "))
        assert response.status_code == 200 and '"finish_reason":null' in next(lines)
        yield lines


def test_sigterm_lets_a_stream_finish(own_server: LiveServer) -> None:
    with long_stream(own_server) as lines:
        own_server.process.send_signal(signal.SIGTERM)
        rest = list(lines)
    assert rest[-1] == "data: [DONE]" and '"finish_reason":"length"' in rest[-2]
    assert own_server.process.wait(60) == 0


def test_a_killed_engine_is_told_to_clients_and_ends_the_server(own_server: LiveServer) -> None:
    (engine,) = own_server.engines()
    with long_stream(own_server) as lines:
        os.kill(engine, signal.SIGKILL)
        rest = list(lines)
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "engine_lost"
    assert own_server.process.wait(60) == 1


# As the command does, but without indexing the thousands of tasks that come with it, which takes a minute.
EVALUATE = """
import json, sys
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
tasks = TaskManager(include_path=sys.argv[2], include_defaults=False)
done = simple_evaluate("local-completions", model_args=sys.argv[1], tasks=["says", "prefers"], task_manager=tasks)
print(json.dumps(done["results"]))
"""


def write_task(folder: Path, name: str, docs: list[dict[str, Any]], **settings: Any) -> None:
    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    task = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        **settings,
    }
    (folder / f"{name}.yaml").write_text(json.dumps(task))  # JSON is YAML


def test_lm_eval_generates_and_scores(client: openai.OpenAI, live_server: LiveServer, tmp_path: Path) -> None:
    """What the model says by itself must be what lm-eval makes it say, and likelier than noise."""
    pytest.importorskip("lm_eval")
    plain = {"add_special_tokens": False}  # lm-eval tokenises by itself and leaves special tokens out
    docs = [
        {"prompt": opening, "said": continuation(client, opening, extra_body=plain).text, "noise": NOISE}
        for opening in OPENINGS
    ]
    write_task(
        tmp_path, "says", docs, output_type="generate_until", doc_to_text="{{prompt}}", doc_to_target="{{said}}",
        target_delimiter="",
        generation_kwargs={"until": ["<never>"], "max_gen_toks": 12, "temperature": 0},
        metric_list=[{"metric": "exact_match"}],
    )  # fmt: skip
    write_task(
        tmp_path, "prefers", docs, output_type="multiple_choice", doc_to_text="{{prompt}}",
        doc_to_choice="{{[said, noise]}}",
        doc_to_target=0, target_delimiter="", metric_list=[{"metric": "acc"}],
    )  # fmt: skip
    arguments = (
        f"model=live,base_url={live_server.url}/v1/completions,tokenizer_backend=remote,max_length=512,"
        f"num_concurrent=2,max_retries=1"
    )
    command = [sys.executable, "-c", EVALUATE, arguments, str(tmp_path)]
    environment = {**os.environ, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-6000:]
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["prefers"]["acc,none"] == 1.0
    assert found["says"]["exact_match,none"] == 1.0


def test_schemathesis_breaks_nothing(live_server: LiveServer) -> None:
    """Of what reaches an engine; all of it is asked in `tests/server/test_openapi.py`. Texts longer than the context
    are refused, which a schema cannot say: whether valid data is accepted is checked there.
    """
    pytest.importorskip("schemathesis")
    program = "from schemathesis.cli import schemathesis; schemathesis()"
    options = [
        "--max-examples",
        "5",
        "--phases",
        "fuzzing",
        "--seed",
        "1",
        "--no-color",
        "--exclude-checks",
        "positive_data_acceptance",
        "--include-path-regex",
        "completions$|/responses$|/messages$|/api/(chat|generate)$|/plan$|/health$|/metrics$",
    ]
    command = [sys.executable, "-c", program, "run", f"{live_server.url}/openapi.json", *options]
    result = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    tested = re.search(r"Tested: (\d+)", result.stdout)
    assert tested is not None and int(tested[1]) >= 6, result.stdout[-2000:]
    assert httpx.get(f"{live_server.url}/health", timeout=20).status_code == 200
