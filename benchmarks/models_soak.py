"""Several models behind one port under a budget for some of them: requests at random over all APIs, none of which may
fail, each answered as its model answers alone, within the memory that is promised.

    python -m benchmarks.models_soak FILE [--requests 1000] [--clients 6] [--hold 2] [--seed 0] [--alone FILE]
        [--json FILE]

FILE is one of `homenode serve --models`. Each model is first served alone and asked everything; what it cannot do (a
chat without a template, vectors of a model that writes) is left out. --alone keeps what they said, for later runs to
be compared with. Then all are served together, with memory for the `--hold` largest of them, and every request is a
random one of a random model. The exit code is 1 when a request fails, an answer is another one than that of the model
alone, a pinned model is loaded twice, or the processes take more than the budget, 200 MiB, and 150 MiB for each model
that is loaded.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.servers import free_port
from homenode.bench.serving.server_process import end_process
from homenode.host.bind.base.threads import descendants

MIB = 1 << 20
_READY_S, _ANSWER_S, _STOPPING_S = 600.0, 600.0, 60.0
_SERVER_BYTES, _MODEL_BYTES = 200 * MIB, 150 * MIB  # that docs/several-models.md names beyond the budget
_LOOK_S = 0.2
_HOLD_SHARE = 1.05
_OF_SEVERAL = frozenset("path aliases pin on_demand idle_timeout_s nodes cpus".split())  # keys that are no flags
QUESTIONS = (
    "Name a colour.",
    "Why does it rain?",
    "Count to five.",
    "What is a bridge for?",
    "Who paints houses?",
    "What do bees do in winter?",
)
# Of an answer, what differs between two equal ones.
_PASSING = frozenset(
    "id created created_at completed_at timings model usage system_fingerprint call_id item_id total_duration "
    "load_duration prompt_eval_duration eval_duration metadata".split()
)
_MARKED = re.compile(r"\b(?:resp|msg|cmpl|chatcmpl|rs|fc)[-_][0-9a-f]{8,}\b")


def questions_of(question: str, tokens: int, seed: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """Path and body of a question by each API."""
    said = [{"role": "user", "content": question}]
    heat = {"temperature": 0.8 if seed % 3 == 0 else 0, "seed": seed}
    options = {"options": {"num_predict": tokens, **heat}, "stream": False}
    texts = {"prompt": question, "max_tokens": tokens, "return_token_ids": True, **heat}
    chat = {"messages": said, "max_tokens": tokens, **heat}
    return {
        "completions": ("/v1/completions", {**texts, "logprobs": 1}),
        "completions stream": ("/v1/completions", {**texts, "stream": True}),
        "chat": ("/v1/chat/completions", {**chat, "logprobs": True}),
        "chat stream": ("/v1/chat/completions", {**chat, "stream": True}),
        "responses": ("/v1/responses", {"input": question, "max_output_tokens": tokens, "temperature": 0}),
        "messages": ("/v1/messages", {"messages": said, "max_tokens": tokens, "temperature": 0}),
        "generate": ("/api/generate", {"prompt": question, "raw": True, **options}),
        "ollama chat": ("/api/chat", {"messages": said, **options}),
        "infill": ("/infill", {"input_prefix": question, "input_suffix": "\n", "n_predict": tokens, "temperature": 0}),
        "embeddings": ("/v1/embeddings", {"input": [question, f"{question} Why?"]}),
        "ollama vectors": ("/api/embed", {"input": question}),
        "scores": ("/v1/score", {"text_1": question, "text_2": [QUESTIONS[0], QUESTIONS[1]]}),
        "tokenize": ("/tokenize", {"prompt": question}),
    }


def bare(value: Any) -> Any:
    """An answer without what differs between two equal ones."""
    if isinstance(value, dict):
        return {name: bare(each) for name, each in value.items() if name not in _PASSING}
    if isinstance(value, list):
        return [bare(each) for each in value]
    return _MARKED.sub("", value) if isinstance(value, str) else value


@dataclass(frozen=True)
class AskedAlone:
    """A request of a model by an API, and its bare answer by the model alone."""

    model: str
    api: str
    path: str
    body: Mapping[str, Any]
    said: Any = None


class ModelsServer:
    """A server of one model or several."""

    def __init__(self, *words: str) -> None:
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        command = [sys.executable, "-m", "homenode", "serve", "--port", str(port), *words]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self.client = httpx.Client(base_url=self.url, timeout=_ANSWER_S, trust_env=False)
        ends = time.monotonic() + _READY_S
        while time.monotonic() < ends and self.process.poll() is None:
            with suppress(httpx.TransportError):
                if self.client.get("/health").status_code == 200:
                    return
            time.sleep(0.05)
        self.end()
        raise SystemExit("a server was not ready")

    def answer(self, asked: AskedAlone) -> Any:
        """A bare answer. httpx.HTTPError where there is none."""
        answer = self.client.post(asked.path, json={"model": asked.model, **asked.body})
        answer.raise_for_status()
        if not asked.body.get("stream"):
            return bare(answer.json())
        lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ") and "[DONE]" not in line]
        events = [json.loads(line) for line in lines]
        if any("error" in event for event in events):
            raise httpx.DecodingError(lines[-1])
        choices = [each for event in events for each in event.get("choices", ())]
        texts = ((each.get("delta") or {}).get("content") or each.get("text") or "" for each in choices)
        ids = [token for each in choices for token in each.get("token_ids") or ()]
        return ["".join(texts), ids, [each["finish_reason"] for each in choices if each.get("finish_reason")]]

    def states(self) -> dict[str, dict[str, Any]]:
        """What each model is, by name."""
        return {each["id"]: each["status"] for each in self.client.get("/v1/models").json()["data"]}

    def own_bytes(self) -> int:
        """Bytes that are only there because of its processes: each page counted once, none that a file is behind."""
        found = 0
        for pid in (self.process.pid, *descendants(self.process.pid)):
            with suppress(OSError):
                text = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii")
                found += sum(int(kib) << 10 for kib in re.findall(r"^Pss_(?:Anon|Shmem):\s+(\d+) kB", text, re.M))
        return found

    def end(self) -> int:
        """End it; its exit code."""
        self.client.close()
        end_process(self.process, _STOPPING_S)
        return self.process.returncode


class ModelsSoak:
    """The models, what each says alone, and what was seen of them together."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._models: dict[str, dict[str, Any]] = tomllib.loads(given.file.read_text("utf-8"))["models"]
        self.problems: list[str] = []
        self.figures: dict[str, Any] = {}
        self._seen: list[tuple[int, int, int]] = []  # bytes, models that are loaded, bytes that are told

    def run(self) -> None:
        """Ask each alone, then all together."""
        alone = self._said_alone()
        budget = self._budget()
        server = ModelsServer("--models", str(self._given.file), "--models-memory", str(budget))
        try:
            self._ask_together(server, budget, alone)
        finally:
            if code := server.end():
                self.problems.append(f"exit code {code}")

    def _said_alone(self) -> list[AskedAlone]:
        kept: Path | None = self._given.alone
        if kept is not None and kept.exists():
            return [AskedAlone(**each) for each in json.loads(kept.read_text("utf-8"))]
        found = [each for name, table in self._models.items() for each in self._ask_alone(name, table)]
        if kept is not None:
            kept.write_text(json.dumps([asdict(each) for each in found]), encoding="utf-8")
        return found

    def _ask_alone(self, name: str, table: Mapping[str, Any]) -> list[AskedAlone]:
        rng = random.Random(name)
        path = str(self._given.file.parent / table["path"])
        flags = [word for key, value in table.items() if key not in _OF_SEVERAL for word in (f"--{key}", str(value))]
        server = ModelsServer(path, "--served-model-name", name, *flags)
        asked = [
            AskedAlone(name, api, *each)
            for question in QUESTIONS
            for api, each in questions_of(question, rng.randint(2, 24), rng.randrange(1000)).items()
        ]
        try:
            with ThreadPoolExecutor(self._given.clients) as pool:
                said = list(pool.map(lambda each: _answer_if_it_can(server, each), asked))
        finally:
            server.end()
        found = [each for each in said if each is not None]
        print(f"{name} alone: {', '.join(sorted({each.api for each in found}))}", flush=True)
        return found

    def _budget(self) -> int:
        command = [sys.executable, "-m", "homenode", "plan", "--models", str(self._given.file), "--json"]
        told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["models"]
        takes = {each["name"]: each["memory_bytes"] for each in told}
        self.figures["takes"] = takes
        return int(_HOLD_SHARE * sum(sorted(takes.values())[-self._given.hold :]))

    def _ask_together(self, server: ModelsServer, budget: int, alone: Sequence[AskedAlone]) -> None:
        rng = random.Random(self._given.seed)
        by_api: dict[str, dict[str, list[AskedAlone]]] = {name: {} for name in self._models}
        for each in alone:
            by_api[each.model].setdefault(each.api, []).append(each)
        drawn = []
        for _ in range(self._given.requests):
            apis = by_api[rng.choice(sorted(by_api))]
            drawn.append(rng.choice(apis[rng.choice(sorted(apis))]))
        over = threading.Event()
        watching = threading.Thread(target=self._watch, args=(server, over), daemon=True)
        watching.start()
        begin = time.monotonic()
        with ThreadPoolExecutor(self._given.clients) as pool:
            for number, problem in enumerate(pool.map(lambda each: _compare(server, each), drawn), 1):
                if problem:
                    self.problems.append(problem)
                    print(problem, flush=True)
                if number % 50 == 0:
                    most = max((taken for taken, _, _ in self._seen), default=0) / MIB
                    print(f"{number} answered, {time.monotonic() - begin:.0f} s, at most {most:.0f} MiB", flush=True)
        seconds = time.monotonic() - begin
        over.set()
        watching.join()
        self._judge(server, budget)
        self.figures |= {"requests": len(drawn), "seconds": seconds, "apis": len({each.api for each in drawn})}

    def _judge(self, server: ModelsServer, budget: int) -> None:
        loads = {name: status["loads"] for name, status in server.states().items()}
        beyond = max(taken - (budget + _SERVER_BYTES + loaded * _MODEL_BYTES) for taken, loaded, _ in self._seen)
        most_told = max(told for _, _, told in self._seen)
        self.figures |= {
            "budget": budget,
            "most_bytes": max(taken for taken, _, _ in self._seen),
            "most_told": most_told,
            "beyond": beyond,
            "loads": loads,
        }
        if beyond > 0:
            self.problems.append(f"the processes took {beyond / MIB:.0f} MiB more than they may")
        if most_told > budget:
            self.problems.append(f"{most_told} bytes are told, of {budget}")
        again = [name for name, table in self._models.items() if table.get("pin") and loads[name] > 1]
        self.problems += [f"{name} is pinned, and was loaded {loads[name]} times" for name in again]

    def _watch(self, server: ModelsServer, over: threading.Event) -> None:
        while not over.wait(_LOOK_S):
            with suppress(httpx.HTTPError):
                before, taken, after = server.states(), server.own_bytes(), server.states()
                there = [[s for s in seen.values() if s["value"] in ("loaded", "loading")] for seen in (before, after)]
                told = max(sum(status["memory_bytes"] for status in seen) for seen in there)
                self._seen.append((taken, max(map(len, there)), told))


def _answer_if_it_can(server: ModelsServer, asked: AskedAlone) -> AskedAlone | None:
    """The request with its answer; None where the model cannot do that."""
    try:
        return AskedAlone(asked.model, asked.api, asked.path, asked.body, server.answer(asked))
    except httpx.HTTPStatusError as error:
        if error.response.status_code >= 500 and error.response.status_code != 501:
            raise
        return None


def _compare(server: ModelsServer, asked: AskedAlone) -> str:
    """What is wrong with an answer."""
    try:
        said = server.answer(asked)
    except httpx.HTTPError as error:
        body = error.response.text[:300] if isinstance(error, httpx.HTTPStatusError) else ""
        return f"{asked.model}, {asked.api}: {error!r} {body}"
    return "" if said == asked.said else f"{asked.model}, {asked.api}: {said!r}, alone {asked.said!r}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run it, and say what came of it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models_soak", description=__doc__.split("\n\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--hold", type=int, default=2, help="of the largest models, how many the budget holds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--alone", type=Path, help="a file for what each model says alone, read where it is there")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(argv)
    soak = ModelsSoak(given)
    soak.run()
    for problem in soak.problems[-3:]:  # of all together
        print(problem)
    told = {**soak.figures, "problems": len(soak.problems)}
    print(json.dumps(told))
    if given.json is not None:
        given.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return 1 if soak.problems else 0


if __name__ == "__main__":
    sys.exit(main())
