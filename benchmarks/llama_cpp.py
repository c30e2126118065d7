"""llama.cpp: `llama-bench` for the prompt, `llama-batched-bench` for decoding, in a few variants of where it keeps its
weights.

On x86-64 it repacks some formats while loading (`--no-repack` keeps them as in the file, which other kernels of it
multiply, faster in some cases). Weights come from the mapped file or from malloc; the latter is on huge pages only if
the C library is told to ask for them, and the file has to be read into memory for that, not mapped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contender import Command, Measured, Side, existing, gguf_of
from benchmarks.workload import Rates, Workload, batch_case

_HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
# Formats that some x86-64 level repacks; for the others `--no-repack` changes nothing.
_REPACKED = {"Q4_0", "Q4_K_M"}
_DEPTH_OF_PROMPT = 512  # tokens computed in one micro-batch


@dataclass(frozen=True)
class LlamaCpp:
    """`folder`: with llama-bench and llama-batched-bench in it."""

    folder: Path

    def sides(self, shape: str, format: str, models: Path, workload: Workload) -> list[Side]:
        """As it comes, on huge pages, and both without repacking where that makes a difference. Raises Unavailable."""
        model = gguf_of(shape, format, models)
        for program in ("llama-bench", "llama-batched-bench"):
            existing(self.folder / program)
        variants = [(False, False), (True, False)]
        if format in _REPACKED:
            variants += [(False, True), (True, True)]
        return [self._side(model, workload, huge, plain) for huge, plain in variants]

    def _side(self, model: Path, workload: Workload, huge: bool, plain: bool) -> Side:
        name = ", ".join(word for word, on in (("huge pages", huge), ("--no-repack", plain)) if on) or "default"
        variables = _HUGE_PAGES if huge else {}
        common = ("-m", str(model), "-t", str(workload.threads), "-ub", str(_DEPTH_OF_PROMPT))
        mode = ("--load-mode", "none") if huge else ()
        prompt = (
            *common,
            "-p",
            str(workload.prompt),
            "-n",
            "0",
            "-r",
            "1",
            "-o",
            "json",
            *mode,
            *(("--repack", "0") if plain else ()),
        )
        decode = (*common, *self._decoding(workload), *mode, *(("--no-repack",) if plain else ()))
        programs = (("llama-bench", prompt, workload.prompt), ("llama-batched-bench", decode, workload.batches))
        commands = tuple(
            Command((str(self.folder / program), *options), variables)
            for program, options, wanted in programs
            if wanted
        )
        return Side("llama.cpp", name, commands, read)

    def _decoding(self, workload: Workload) -> tuple[str, ...]:
        """Options of llama-batched-bench: as many sequences of their own as the batch has, and room for the largest
        batch."""
        room = max(workload.batches, default=0) * (workload.context + workload.steps)
        sequences = ",".join(map(str, workload.batches))
        return (
            "-c",
            str(room),
            "-npp",
            str(workload.context),
            "-ntg",
            str(workload.steps),
            "-npl",
            sequences,
            "--output-format",
            "jsonl",
        )


def read(outputs: Sequence[str]) -> Measured:
    """From the JSON list of llama-bench and the lines of llama-batched-bench that are JSON objects; either may be
    missing."""
    rates: Rates = {}
    version = ""
    for output in outputs:
        if output.lstrip().startswith("["):
            prompt = json.loads(output)[0]
            rates["prefill"] = float(prompt["avg_ts"])
            version = f"{prompt['build_commit']} ({prompt['build_number']})"
            continue
        for line in output.splitlines():
            if line.startswith("{"):
                found = json.loads(line)
                rates[batch_case(found["pl"])] = float(found["speed_tg"])
    if not rates:
        raise ValueError("neither a JSON list nor lines of JSON objects came")
    return Measured(rates, version)
