"""The child process in which calls fail (`calls.cpp` is preloaded there): does the same thing again and again, one
further call failing each time.

Started as `python -m tests.failing.child TASK KIND MODEL MOST`, with FAILING_CALLS naming the compiled `calls.cpp`. At
most MOST of the calls fail, at even distances, and in the end none. Every attempt is printed as a line of JSON, an
`Attempt`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import json
import logging
import os
import sys
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
from tests.waiting import PATIENCE_S, wait_until

Task = Callable[[], Any]
GREEDY = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True, logprobs=2)
PROMPTS = ([1, 5, 9], [1, 7, 7, 8])
CODES = (errno.EIO, errno.EMFILE, errno.ENOMEM, errno.ENOSPC, errno.EACCES)
# Pieces of memory from so many bytes on. The library of the native core's bindings ends the process when it gets no
# memory for the few words of an object, of which loading makes some and a request none. What is smaller than 513 bytes
# Python takes out of pieces that it has.
SMALLEST = {("load", "core"): 256, ("request", "core"): 1, ("load", "large"): 32 << 10, ("request", "large"): 513}


class FailingCalls:
    """The functions at the end of `calls.cpp`."""

    def __init__(self, kind: str, folder: Path, smallest: int) -> None:
        """`kind`: of the calls that count. `folder`: of files. `smallest`: of pieces of memory, in bytes."""
        self._kind, self._smallest = kind, smallest
        self._library = ctypes.CDLL(os.environ["FAILING_CALLS"])
        self._library.end_failing.restype = ctypes.c_long
        self._library.failed_call.restype = ctypes.c_char_p
        self._folder = str(folder).encode()

    def begin(self, number: int, all_after: bool) -> None:
        """From now on count the calls; the one of this number fails (0: none), and with `all_after` all
        that follow it.
        """
        code = CODES[number % len(CODES)] if self._kind == "files" else errno.ENOMEM
        self._library.fail_call(
            KINDS.index(self._kind),
            ctypes.c_long(number),
            code,
            int(all_after),
            ctypes.c_size_t(self._smallest),
            self._folder,
        )

    def end(self) -> tuple[int, str]:
        """How many calls there were, and the name of the one that failed."""
        calls = int(self._library.end_failing())
        return calls, self._library.failed_call().decode()


def load(model: str, packed_cache: str = "off") -> Any:
    """Load the model and generate a few tokens. What it comes to: the tokens, and what the tokenizer is like."""
    with LLM(model, threads=2, kv_cache_memory="1MiB", packed_cache=packed_cache, speculative="off") as llm:
        (completion,) = llm.generate([PROMPTS[0]], GREEDY)
        return completion.token_ids, llm.tokenizer.info(), llm.tokenizer.encode("t7 t9")


def remove_packed(folder: Path) -> None:
    """So that the packed matrices are written to a file again."""
    for packed in folder.glob("*.packed"):
        packed.unlink()


def request(llm: LLM, wanted: list[list[int]]) -> Any:
    """Two requests of which one waits until the other is done. Raises HomenodeError when one has failed, AssertionError
    when both have.
    """
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
    """The same once it is what there was before, for which threads have a few seconds: one that ends is in the kernel's
    list for a while, and one that goes on, as an engine's does, may be reading a file right now.
    """
    with contextlib.suppress(AssertionError):  # whoever asked says what differs
        wait_until(lambda: held(folder) == before, patience_s=5.0, every_s=0.1)
    return held(folder)


def attempt(failing: FailingCalls, task: Task, wanted: Any, number: int, all_after: bool) -> Attempt:
    """One of them. Nothing fails any more when its end is put into words."""
    failing.begin(number, all_after)
    outcome, words = "same", ""
    try:
        found = task()
    except HomenodeError as error:
        calls, name = failing.end()
        outcome, words = "named", f"{type(error).__name__}: {error}"
    except Exception:
        calls, name = failing.end()
        outcome, words = "unnamed", traceback.format_exc()
    else:
        calls, name = failing.end()
        if found != wanted:
            outcome, words = "other", f"{found!r}; wanted {wanted!r}"
    return Attempt(number, all_after, calls, name, outcome, words, {})


def attempts(
    failing: FailingCalls,
    task: Task,
    folder: Path,
    most: int,
    some_for_good: bool = True,
    prepare: Callable[[], None] = lambda: None,
) -> None:
    """Print them all. With `some_for_good` every other failure is one of all calls from then on. `prepare` is done
    before each and never fails.
    """
    wanted = task()
    prepare()
    calls = attempt(failing, task, wanted, 0, all_after=False).calls
    before = held(folder)
    numbers = sorted({1 + i * calls // most for i in range(most)} & set(range(1, calls + 1)))
    for i, number in enumerate([*numbers, 0]):
        prepare()
        found = attempt(failing, task, wanted, number, some_for_good and bool(number) and bool(i % 2))
        now = held_at_rest(folder, before)
        left = {key: [before[key], value] for key, value in now.items() if value != before[key]}
        print(json.dumps(found._replace(left=left)._asdict()), flush=True)


def main() -> None:
    name, kind, model, most = sys.argv[1:]
    logging.disable(logging.CRITICAL)
    path = Path(model)
    folder = path if path.is_dir() else path.parent
    failing = FailingCalls(kind, folder, SMALLEST.get((name, kind), 0))
    if name == "request":
        with LLM(model, threads=2, kv_cache_memory="1MiB", max_num_seqs=1, speculative="off") as llm:
            wanted = request(llm, [])
            attempts(failing, lambda: request(llm, wanted), folder, int(most), some_for_good=False)
    elif name == "load":
        attempts(failing, lambda: load(model), folder, int(most))
    elif name == "pack":
        attempts(failing, lambda: load(model, "beside"), folder, int(most), prepare=lambda: remove_packed(folder))
    else:
        attempts(failing, lambda: load(model, "beside"), folder, int(most))


if __name__ == "__main__":
    main()
