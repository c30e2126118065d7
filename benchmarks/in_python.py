"""Engines with a Python interface, ours among them: each is loaded once by a program of ours that answers questions
(see `standing`), in a virtual environment of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.contender import Command, Measured, Side, Unavailable, existing
from benchmarks.workload import Workload, batch_case

_PROGRAMS = Path(__file__).resolve().parent / "programs"


@dataclass(frozen=True)
class InPython:
    """`folder`: a virtual environment. `program`: in `programs/`. `precisions`: by GGUF type, what it runs instead; its
    model's folder is `<shape>-<engine>-<precision>`.
    """

    engine: str
    folder: Path
    program: str
    precisions: Mapping[str, str]

    def sides(self, shape: str, format: str, models: Path, workload: Workload) -> list[Side]:
        """One, named after its precision. Raises Unavailable when there is no precision like `format`, or no model."""
        precision = self.precisions.get(format)
        if precision is None:
            raise Unavailable(f"{self.engine} has nothing like {format}")
        model = existing(models / f"{shape}-{self.engine}-{precision}")
        task = {"model": str(model), "precision": precision, "threads": workload.threads}
        return [
            _side(
                self.engine,
                precision,
                (str(existing(self.folder / "bin" / "python")), str(_PROGRAMS / self.program)),
                task,
                workload,
            )
        ]


def own_side(model: Path, workload: Workload) -> Side:
    """homenode on the GGUF file `model`."""
    task = {"model": str(model), "threads": workload.threads}
    return _side("homenode", "", (sys.executable, str(_PROGRAMS / "run_homenode.py")), task, workload)


def _side(engine: str, variant: str, program: tuple[str, ...], task: dict[str, Any], workload: Workload) -> Side:
    question = {
        "prompt": workload.prompt,
        "context": workload.context,
        "steps": workload.steps,
        "batches": list(workload.batches),
    }
    return Side(
        engine, variant, (Command((*program, json.dumps(task))),), lambda outputs: read(outputs, workload), question
    )


def openvino(folder: Path) -> InPython:
    """OpenVINO GenAI."""
    return InPython(
        "openvino", folder, "run_openvino.py", {"Q8_0": "int8", "Q4_0": "int4", "Q4_K_M": "int4", "BF16": "bf16"}
    )


def onnxruntime(folder: Path) -> InPython:
    """onnxruntime-genai."""
    return InPython("onnxruntime", folder, "run_onnxruntime.py", {"Q4_0": "int4", "Q4_K_M": "int4"})


def ctranslate2(folder: Path) -> InPython:
    """CTranslate2."""
    return InPython("ctranslate2", folder, "run_ctranslate2.py", {"Q8_0": "int8", "BF16": "bfloat16"})


def vllm(folder: Path) -> InPython:
    """vLLM built for processors; its model is a Hugging Face folder."""
    return InPython("vllm", folder, "run_vllm.py", {"BF16": "bfloat16"})


def read(outputs: Sequence[str], workload: Workload) -> Measured:
    """From an answer: `version`, `prefill`, and for decoding `batches`, tokens a second by batch size."""
    found = json.loads(outputs[0])
    rates = {"prefill": float(found["prefill"])} if workload.prompt else {}
    rates |= {batch_case(int(batch)): float(rate) for batch, rate in found["batches"].items()}
    if missing := [case for case in workload.cases if case not in rates]:
        raise ValueError(f"the output has nothing about {', '.join(missing)}")
    return Measured(rates, str(found["version"]))
