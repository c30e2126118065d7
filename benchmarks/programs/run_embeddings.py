"""A model that makes vectors, loaded once: `run_embeddings.py ENGINE TASK`, by the Python of an environment that has
the engine. TASK is a JSON object with `model`, a folder, `threads`, `precision`, and `ids`, the token ids of each text.
Each line of standard input is answered by one of standard output with the seconds that the vectors of all texts took,
and where that line is "vectors" with the first of them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

Task = dict[str, Any]
Embed = Callable[[], Any]  # the vectors of all texts, of length 1: [texts, columns]


def homenode(task: Task) -> tuple[str, Embed]:
    """Its engine, in this process. `int8` quantises while loading."""
    from homenode import LLM, __version__

    settings: dict[str, Any] = {"threads": task["threads"], "max_num_batched_tokens": sum(map(len, task["ids"]))}
    if task["precision"] == "int8":
        settings["quantize"] = "q8_0"
    else:
        settings["dtype"] = {"bf16": "bfloat16", "f32": "float32"}[task["precision"]]
    llm = LLM(task["model"], **settings)
    return __version__, lambda: llm.embed(task["ids"])


def _torch_model(task: Task, dtype: Any) -> Any:
    import torch
    import transformers

    torch.set_num_threads(task["threads"])
    return transformers.AutoModel.from_pretrained(task["model"], dtype=dtype, attn_implementation="sdpa").eval()


def transformers(task: Task) -> tuple[str, Embed]:
    """transformers with torch; all texts have one length, so nothing is padded."""
    import torch
    import transformers as library

    model = _torch_model(task, torch.bfloat16 if task["precision"] == "bf16" else torch.float32)
    ids = torch.tensor(task["ids"])
    mask = torch.ones_like(ids)

    def embed() -> Any:
        with torch.inference_mode():
            rows = model(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0].float()
            return torch.nn.functional.normalize(rows).numpy()

    return f"{library.__version__}, torch {torch.__version__}", embed


def openvino(task: Task) -> tuple[str, Embed]:
    """OpenVINO's own conversion of the model of transformers."""
    import numpy as np
    import openvino as ov
    import torch

    ids = np.array(task["ids"], np.int64)
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    model = _torch_model(task, torch.float32)
    converted = ov.convert_model(model, example_input={name: torch.from_numpy(x[:2]) for name, x in inputs.items()})
    options = {"INFERENCE_NUM_THREADS": task["threads"], "INFERENCE_PRECISION_HINT": task["precision"]}
    compiled = ov.compile_model(converted, "CPU", options)

    def embed() -> Any:
        rows = compiled(inputs)[0][:, 0]
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    return str(ov.__version__), embed


ENGINES = {"homenode": homenode, "transformers": transformers, "openvino": openvino}


def main() -> None:
    """Load, and answer."""
    version, embed = ENGINES[sys.argv[1]](json.loads(sys.argv[2]))
    print(json.dumps({"version": version}), flush=True)
    for line in sys.stdin:
        begin = time.perf_counter()
        vectors = embed()
        answer: dict[str, Any] = {"version": version, "seconds": time.perf_counter() - begin}
        if json.loads(line) == "vectors":
            answer["vectors"] = vectors[:4].astype(float).tolist()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
