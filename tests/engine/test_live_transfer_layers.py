"""Prefill and decode apart give the tokens of one engine for models with layers of several kinds: with a state, with
keys and values of unlike shapes, with keys of indexers, or with rows that are pooled from runs of tokens.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.model.test_deepseek_v4 import made as make_deepseek_v4
from tests.waiting import wait_until

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from tests.engine.live import LiveServer
from tests.engine.transfer_pair import Pair, one_engine_says
from tests.model.test_delta_net import CASES as DELTA_NETS
from tests.model.test_gemma4 import SMALL as GEMMA_4
from tests.model.test_latent_attention import V32
from tests.model.test_mamba_hybrids import CASES as HYBRIDS
from tests.model.test_minimax_m3 import CASE as M3
from tests.model.transformers_models import make_model, quiet_and_on_one_thread
from tests.tokenizer_files import tokenizer_json

pytestmark = [
    pytest.mark.torch,
    pytest.mark.alone,
    pytest.mark.skipif(not LiveServer.possible(), reason="needs a model"),
]

MODELS = {"states": DELTA_NETS["qwen3_next"], "unlike heads": GEMMA_4, "indexers": V32}
ONE_WAY = {
    "Mamba 2": HYBRIDS["granite"],
    "Mamba 2 beside attention": HYBRIDS["falcon"],
    "convolutions": HYBRIDS["lfm2"],
    "indexers of blocks": M3,
}
SETTINGS = {"kv_cache_memory": "8MiB", "block_size": 32, "max_model_len": 160, "dtype": "float32"}
BOTH = tuple(word for key, value in SETTINGS.items() for word in (f"--{key.replace('_', '-')}", str(value)))
LENGTHS = (2, 3, 32, 33, 34, 65, 100, 128)
PROMPTS = [[3 + (7 * n + 11 * k) % 60 for k in range(length)] for n, length in enumerate(LENGTHS)]
RANKS, CHUNKS = ("--tensor-parallel-size", "2"), ("--max-num-batched-tokens", "23")
WAYS = (
    ("shm", "push", (), ()),
    ("tcp", "pull-eager", CHUNKS, RANKS),
    ("shm", "pull-delay", RANKS, ("--max-num-seqs", "3")),
)
# Rows of runs, and of runs that are not over what they are pooled from.
POOLED_WAYS = (WAYS[1], ("shm", "push", RANKS, CHUNKS))
# Every kind of layer once, one of them in every way; each pair is two servers.
IN_EVERY_RUN = [("states", WAYS[0]), ("states", WAYS[2])]
IN_EVERY_RUN += [("pooled rows", POOLED_WAYS[1])]
IN_EVERY_RUN += [(model, WAYS[1]) for model in ("states", "unlike heads", "indexers", "Mamba 2 beside attention")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    with quiet_and_on_one_thread():
        for name, case in (MODELS | ONE_WAY).items():
            made[name] = tmp_path_factory.mktemp("layers") / "model"
            make_model(case.kind, case.changes, made[name], seed=case.seed)
        made["pooled rows"] = tmp_path_factory.mktemp("layers") / "model"
        make_deepseek_v4(made["pooled rows"])
        for folder in made.values():
            (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    return made


@pytest.mark.parametrize(
    ("model", "channel", "mode", "sender", "receiver"),
    [
        pytest.param(model, *way, marks=() if (model, way) in IN_EVERY_RUN else pytest.mark.slow)
        for model, ways in (
            dict.fromkeys(MODELS, WAYS) | dict.fromkeys(ONE_WAY, WAYS[1:2]) | {"pooled rows": POOLED_WAYS}
        ).items()
        for way in ways
    ],
)
def test_a_pair_says_what_one_engine_says(
    folders: dict[str, Path], model: str, channel: str, mode: str, sender: tuple[str, ...], receiver: tuple[str, ...]
) -> None:
    folder = folders[model]
    wanted = one_engine_says(PROMPTS, model=folder, **SETTINGS)
    with Pair(mode, channel, both=BOTH, sender=sender, receiver=receiver, model=folder) as pair:
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(pair.answer, PROMPTS)) == wanted
        assert pair.receiver.metric("bytes_total") > 0
        assert pair.receiver.metric("recomputed_tokens_total") == 0
        assert pair.receiver.metric("digest_mismatches_total") == 0
        wait_until(pair.nothing_pinned)
    assert pair.codes == [0, 0]
