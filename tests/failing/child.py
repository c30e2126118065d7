"""The child process in which calls fail (`calls.cpp` is preloaded there): does the same thing again and again, one further call failing each time.

Started as `python -m tests.failing.child TASK KIND MODEL FIRST STEP MOST`, with FAILING_CALLS naming the compiled `calls.cpp`: the calls numbered FIRST,
FIRST + STEP, ... fail, until there is no call of such a number or MOST have failed. Every attempt is printed as a line of JSON, an `Attempt`.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from homenode import LLM, SamplingParams
from homenode.engine.messages import Output
from homenode.engine.request import Request
from homenode.errors import HomenodeError
from tests.failing.attempt import KINDS, Attempt

Task = Callable[[], Any]
PATIENCE_S = 60.0
GREEDY = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True, logprobs=2)
PROMPTS = ([1, 5, 9], [1, 7, 7, 8])
CODES = (errno.EIO, errno.EMFILE, errno.ENOMEM, errno.ENOSPC, errno.EACCES)
# Pieces of memory from so many bytes on. The library of the native core's bindings ends the process when it gets no memory for the few words of an
# object, which no kernel refuses.
SMALLEST = {"core": 256, "large": 32 << 10}


class FailingCalls:
    """The functions at the end of `calls.cpp`."""

    def __init__(self, folder: Path) -> None:
        self._library = ctypes.CDLL(os.environ["FAILING_CALLS"])
        self._library.end_failing.restype = ctypes.c_long
        self._library.failed_call.restype = ctypes.c_char_p
        self._folder = str(folder).encode()

    def begin(self, kind: str, number: int, all_after: bool) -> None:
        """From now on count the calls of `kind`; the one of this number fails, and with `all_after` all that follow it."""
        code = CODES[number % len(CODES)] if kind == "files" else errno.ENOMEM
        smallest = ctypes.c_size_t(SMALLEST.get(kind, 0))
        self._library.fail_call(KINDS.index(kind), ctypes.c_long(number), code, int(all_after), smallest, self._folder)

    def end(self) -> tuple[int, str]:
        """How many calls there were, and the name of the one that failed."""
        calls = int(self._library.end_failing())
        return calls, self._library.failed_call().decode()


def load(model: str, packed_cache: str) -> Any:
    """Load the model and generate a few tokens. What it comes to: the tokens, and what the tokenizer is like."""
    with LLM(model, threads=2, kv_cache_memory="1MiB", packed_cache=packed_cache) as llm:
        (completion,) = llm.generate([PROMPTS[0]], GREEDY)
        return completion.token_ids, llm.tokenizer.info(), llm.tokenizer.encode("t7 t9")


def load_and_pack(model: str) -> Any:
    """The same, the packed matrices being written to a file beside the model."""
    for packed in Path(model).glob("*.packed"):
        packed.unlink()
    return load(model, "beside")


def request(llm: LLM, wanted: list[list[int]]) -> Any:
    """Two requests of which one waits until the other is done. Raises HomenodeError when one has failed, AssertionError when both have."""
    sink: SimpleQueue[Output] = SimpleQueue()
    first = next(llm._ids)
    next(llm._ids)
    ids = range(first, first + 2)
    llm._engine.submit([Request(id=i, prompt_ids=p, params=GREEDY) for i, p in zip(ids, PROMPTS, strict=True)], sink)
    tokens: dict[int, list[int]] = {i: [] for i in ids}
    failed: list[Output] = []
    left = len(ids)
    while left:
        output = sink.get(timeout=PATIENCE_S)
        tokens[output.id] += output.tokens
        left -= output.finish_reason is not None
        failed += [output] if output.error is not None else []
    assert len(failed) <= 1, [output.error for output in failed]
    if failed:
        other = tokens[next(i for i in ids if i != failed[0].id)]
        assert other in wanted, other
        raise HomenodeError(f"{failed[0].error_kind}: {failed[0].error}")
    return list(tokens.values())


def held(folder: Path) -> dict[str, Any]:
    """What this process has of what it should give back."""
    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    maps = [line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    files = (file.relative_to(folder).as_posix() for file in folder.rglob("*"))
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208
        "threads": int(status["Threads"]),
        "mappings": sorted(m for m in maps if m.startswith(("/memfd:", str(folder)))),
        "files": sorted(file for file in files if not file.endswith(".packed")),
    }


def held_at_rest(folder: Path, before: dict[str, Any]) -> dict[str, Any]:
    """The same once threads that have ended are gone from the kernel's list, too."""
    deadline = time.monotonic() + 5
    while (now := held(folder))["threads"] > before["threads"] and time.monotonic() < deadline:
        os.sched_yield()
    return now


def outcome_of(task: Task, wanted: Any) -> tuple[str, str]:
    """How it ended: `same` result as without a failure, `other` result, a `named` error or an `unnamed` one; and its words."""
    try:
        found = task()
    except HomenodeError as error:
        return "named", f"{type(error).__name__}: {error}"
    except Exception:
        return "unnamed", traceback.format_exc()
    return ("same", "") if found == wanted else ("other", f"{found!r}; wanted {wanted!r}")


def attempts(task: Task, kind: str, folder: Path, first: int, step: int, most: int) -> None:
    """Print them all."""
    wanted = task()
    task()  # what is imported or kept the second time only
    before = held(folder)
    failing = FailingCalls(folder)
    for number in range(first, first + step * most, step):
        all_after = bool(number % 2)
        failing.begin(kind, number, all_after)
        try:
            outcome, words = outcome_of(task, wanted)
        finally:
            calls, name = failing.end()
        now = held_at_rest(folder, before)
        left = {key: [before[key], value] for key, value in now.items() if value != before[key]}
        print(json.dumps(Attempt(number, all_after, calls, name, outcome, words, left)._asdict()), flush=True)
        if calls < number:
            return


def main() -> None:
    name, kind, model, *numbers = sys.argv[1:]
    logging.disable(logging.CRITICAL)
    path = Path(model)
    folder = path if path.is_dir() else path.parent
    first, step, most = map(int, numbers)
    if name == "request":
        with LLM(model, threads=2, kv_cache_memory="1MiB", max_num_seqs=1) as llm:
            wanted = request(llm, [])
            attempts(lambda: request(llm, wanted), kind, folder, first, step, most)
    elif name == "pack":
        attempts(lambda: load_and_pack(model), kind, folder, first, step, most)
    else:
        attempts(lambda: load(model, "off"), kind, folder, first, step, most)


if __name__ == "__main__":
    main()
