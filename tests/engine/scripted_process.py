"""The engine's process with the scripted executor in place of a model: `python -m tests.engine.scripted_process FD
PARENT [NAME]`.

The path of its model is a folder. While there is a file `broken` in it no engine starts. Engine N is killed while it
loads as often as the number in the file `dies-N` says. Each puts its number, from 1, into the memory for experts, where
there is one: engine N's at N. What is in the file `weights` is the identity of what an engine loads, in `weights-N`
that of engine N; and `tokenizer.json` is read, where it is there.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from homenode.engine.assignment import EngineAssignment
from homenode.engine.messages import EngineReady
from homenode.engine.runtime.engine import Engine
from homenode.engine.runtime.process import main
from homenode.engine.scheduler.scheduler import Scheduler
from homenode.engine.step import Step, WorkerLimits
from homenode.errors import HostError
from homenode.model.checkpoint.vocabulary_file import read_vocabulary_text
from homenode.model.files_read import FilesRead
from homenode.model.identity import ModelIdentity
from homenode.testing.scripted_executor import ScriptedExecutor

STEP_S = 0.001  # so that what a test does while requests run is done while they run, however fast the machine is
LIMITS = WorkerLimits(num_blocks=512, block_size=32, max_model_len=8192, vocab_size=1000, max_sampled_rows=16)


class TimedExecutor(ScriptedExecutor):
    """A step takes as long as one of a small model."""

    def submit(self, step: Step) -> None:
        time.sleep(STEP_S)
        super().submit(step)


def identity(folder: Path, number: int) -> ModelIdentity | None:
    read = FilesRead()
    read_vocabulary_text(folder, read)
    for file in (folder / f"weights-{number}", folder / "weights"):
        if file.exists():
            return ModelIdentity(file.read_text(), {"model.safetensors": file.read_text()}, "", read.texts)
    return None


def build(assignment: EngineAssignment, progress: Callable[[int, int], None], experts: Sequence[int]) -> Engine:
    config = assignment.config
    folder, number = Path(str(config.model.path)), assignment.number
    if (folder / "broken").exists():
        raise HostError("this machine is broken")
    progress(50, 100)
    with suppress(FileNotFoundError):
        times = int((folder / f"dies-{number}").read_text())
        if times:
            (folder / f"dies-{number}").write_text(str(times - 1))
            os.kill(os.getpid(), signal.SIGKILL)
    for descriptor in experts:
        os.pwrite(descriptor, bytes([number + 1]), number)
    progress(100, 100)
    executor = TimedExecutor(LIMITS)
    ready = EngineReady(
        "scripted", LIMITS.max_model_len, LIMITS.vocab_size, LIMITS.num_blocks, LIMITS.block_size,
        config.scheduler.max_num_batched_tokens,
        config.scheduler.max_num_seqs, True, identity=identity(folder, number),
    )  # fmt: skip
    return Engine(
        scheduler=Scheduler(config.scheduler, config.kv, LIMITS, [0], lookahead=1),
        executor=executor,
        ready=ready,
        kv_transfer=None,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], build))
