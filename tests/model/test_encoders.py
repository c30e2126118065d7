"""Encoders beside transformers: rows after the last layer, and what pooling makes of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from homenode.compute.ops import Backend, FloatArray
from homenode.errors import CheckpointError, UnsupportedError, UserError
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.weights.pooling_head import load_pooling_head
from tests.model.config_fields import PROMPT, check_changes
from tests.model.conftest import make_backend
from tests.model.encoder_rows import BOUND, near, rows_of
from tests.model.parity import Case, write_stacked_gguf
from tests.model.transformers_models import SIZES, prompts, quiet_and_on_one_thread

pytestmark = pytest.mark.torch


ALIKE = {"num_key_value_heads": 4, "pad_token_id": 0}
CASES = {
    "bert": Case("bert", ALIKE, {"attention.causal": False, "attention.layer_norm_epsilon": 1e-12}),
    "xlm_roberta": Case("xlm-roberta", ALIKE | {"pad_token_id": 1, "type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    "modernbert": Case(
        "modernbert",
        ALIKE | {"local_attention": 8, "num_hidden_layers": 4, "cls_token_id": 1, "sep_token_id": 2},
        {
            "attention.causal": False, "attention.layer_norm_epsilon": 1e-5, "attention.sliding_window": 8,
            "attention.sliding_window_pattern": 3, "rope.freq_base": 160000.0, "attention.head_count_kv": 4,
        },
        gguf_name="modern-bert",
        gguf_joined={"gate": "up"},
    ),
    "nomic_bert": Case(
        "nomic_bert",
        ALIKE,
        {"attention.causal": False, "attention.layer_norm_epsilon": 1e-12, "rope.freq_base": 1000.0},
        gguf_name="nomic-bert",
    ),
}  # fmt: skip
DISTILBERT = {"dim": 64, "n_heads": 4, "n_layers": 3, "hidden_dim": 96, "pad_token_id": 0}
CASES |= {
    "distilbert": Case("distilbert", DISTILBERT),
    "eurobert": Case("eurobert", {"pad_token_id": 0}, {"attention.causal": False}),
}
CASES |= {
    "gte": Case("gte", ALIKE | {"type_vocab_size": 0}),
    "gte-types": Case("gte", ALIKE),
    "jina_embeddings_v3": Case(
        "jina_embeddings_v3",
        ALIKE,
        {"attention.causal": False, "attention.layer_norm_epsilon": 1e-5, "rope.freq_base": 20000.0},
        gguf_name="jina-bert-v3",
    ),
}
CASES["mpnet"] = Case("mpnet", ALIKE | {"pad_token_id": 1})
TEXTS = prompts((1, 5, 40, 130))


def make_encoder(case: Case, folder: Path, kind: str = "AutoModel", **more: Any) -> Any:
    """A toy of transformers with random weights, saved; `kind`: the class that makes it."""
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(case.kind, **{**SIZES, **case.changes, **more})
    torch.manual_seed(3)
    with quiet_and_on_one_thread(), torch.no_grad():
        model = getattr(transformers, kind).from_config(config, attn_implementation="eager").eval()
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            if "norm" in name.lower():
                parameter.copy_(1 + 0.2 * noise if name.endswith("weight") else 0.3 * noise)
            else:
                parameter.copy_(noise * (0.3 if parameter.dim() == 1 else 1.5 / parameter.shape[-1] ** 0.5))
        model.save_pretrained(folder)
    return model


def hidden_of(theirs: Any, text: list[int]) -> FloatArray:
    import torch

    with torch.no_grad():
        return np.asarray(theirs(input_ids=torch.tensor([text])).last_hidden_state[0].numpy(), np.float32)


@pytest.mark.parametrize("name", CASES)
def test_a_folder_has_the_rows_of_transformers(name: str, tmp_path: Path, backend: Backend) -> None:
    theirs = make_encoder(CASES[name], tmp_path)
    for found, text in zip(rows_of(tmp_path, backend, TEXTS), TEXTS, strict=True):
        near(found, hidden_of(theirs, text))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.gguf_keys])
def test_a_gguf_file_has_the_rows_of_transformers(name: str, tmp_path: Path, reference: Backend) -> None:
    theirs = make_encoder(CASES[name], tmp_path)
    file = write_stacked_gguf(CASES[name], tmp_path, tmp_path / "model.gguf")
    for found, text in zip(rows_of(file, reference, TEXTS), TEXTS, strict=True):
        near(found, hidden_of(theirs, text))


@pytest.mark.parametrize("name", CASES)
def test_a_text_by_itself_has_the_same_bits(name: str, tmp_path: Path, backend: Backend) -> None:
    make_encoder(CASES[name], tmp_path)
    together = rows_of(tmp_path, backend, TEXTS)
    for found, text in zip(together, TEXTS, strict=True):
        assert np.array_equal(rows_of(tmp_path, backend, [text])[0], found)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("xlm_roberta", {"num_labels": 1}),
        ("modernbert", {"num_labels": 1, "classifier_pooling": "cls"}),
        ("bert", {"num_labels": 3}),
        ("distilbert", {"num_labels": 1}),
        ("gte", {"num_labels": 1}),
        ("mpnet", {"num_labels": 1}),
    ],
)
def test_the_head_of_a_model_that_scores(name: str, more: dict[str, Any], tmp_path: Path, reference: Backend) -> None:
    import torch

    theirs = make_encoder(CASES[name], tmp_path, "AutoModelForSequenceClassification", **more)
    checkpoint = open_checkpoint(tmp_path)
    pooling = checkpoint.spec.pooling
    assert pooling is not None and len(pooling.labels) == more["num_labels"] and pooling.rows == "cls"
    row = rows_of(tmp_path, reference, [TEXTS[2]])[0][0]
    for layer in load_pooling_head(checkpoint, pooling):
        row = layer.apply(row)
    with torch.no_grad():
        wanted = theirs(input_ids=torch.tensor([TEXTS[2]])).logits[0].numpy()
    np.testing.assert_allclose(row, wanted, rtol=1e-4, atol=1e-4)


def test_a_reranker_with_q_k_and_v_in_one_matrix(tmp_path: Path, reference: Backend) -> None:
    """XLM-RoBERTa as Jina publishes its reranker 2."""
    import torch
    from safetensors.numpy import load_file, save_file

    theirs = make_encoder(CASES["xlm_roberta"], tmp_path, "AutoModelForSequenceClassification", num_labels=1)
    found: dict[str, FloatArray] = {}
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {
        "encoder.layer.": "encoder.layers.", "attention.output.dense": "mixer.out_proj",
        "attention.output.LayerNorm": "norm1",
        "intermediate.dense": "mlp.fc1", "output.dense": "mlp.fc2", "output.LayerNorm": "norm2",
        "embeddings.LayerNorm": "emb_ln",
    }  # fmt: skip
    for name, values in tensors.items():
        if ".self.query." in name:
            values = np.concatenate([tensors[name.replace("query", part)] for part in ("query", "key", "value")])
            name = name.replace("attention.self.query", "mixer.Wqkv")
        elif ".self.key." in name or ".self.value." in name:
            continue
        for theirs_name, flash in renamed.items():
            name = name.replace(theirs_name, flash)
        found[name] = np.ascontiguousarray(values)
    save_file(found, tmp_path / "model.safetensors")
    row = rows_of(tmp_path, reference, [TEXTS[2]])[0][0]
    with torch.no_grad():
        wanted = theirs(input_ids=torch.tensor([TEXTS[2]])).logits[0].numpy()
    np.testing.assert_allclose(head_of(tmp_path, row), wanted, rtol=1e-4, atol=1e-4)


def head_of(path: Path, row: FloatArray) -> FloatArray:
    """What the head of a model makes of one row."""
    checkpoint = open_checkpoint(path)
    assert checkpoint.spec.pooling is not None
    for layer in load_pooling_head(checkpoint, checkpoint.spec.pooling):
        row = layer.apply(row)
    return row


def test_a_bert_scores_pairs_by_the_types_of_tokens(tmp_path: Path, backend: Backend) -> None:
    import torch

    theirs = make_encoder(CASES["bert"], tmp_path, "AutoModelForSequenceClassification", num_labels=1)
    types = [[int(at >= min(3, len(text) - 1)) for at in range(len(text))] for text in TEXTS]
    for found, text, kinds in zip(rows_of(tmp_path, backend, TEXTS, types), TEXTS, types, strict=True):
        with torch.no_grad():
            wanted = theirs(input_ids=torch.tensor([text]), token_type_ids=torch.tensor([kinds])).logits[0].numpy()
        np.testing.assert_allclose(head_of(tmp_path, found[0]), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("activation", ["tanh", "gelu_erf"])
def test_a_reranker_as_a_gguf_file(activation: str, tmp_path: Path, reference: Backend) -> None:
    import torch

    name = "modernbert" if activation == "gelu_erf" else "xlm_roberta"
    more: dict[str, Any] = {"classifier_pooling": "mean"} if name == "modernbert" else {}
    theirs = make_encoder(CASES[name], tmp_path, "AutoModelForSequenceClassification", num_labels=1, **more)
    state = {key: value.numpy() for key, value in theirs.state_dict().items()}
    keys = CASES["modernbert" if more else "bert"].gguf_keys | {"pooling_type": 4}
    keys |= {"classifier.pooling_type": 1} if more else {"attention.layer_norm_epsilon": 1e-5}
    case = replace(CASES[name], gguf_name="modern-bert" if more else "bert", gguf_keys=keys)
    heads = {"head.dense.weight": "cls.weight", "head.norm.weight": "cls.norm.weight",
        "classifier.weight": "cls.output.weight",
             "classifier.bias": "cls.output.bias", "classifier.dense.weight": "cls.weight",
             "classifier.dense.bias": "cls.bias",
             "classifier.out_proj.weight": "cls.output.weight",
             "classifier.out_proj.bias": "cls.output.bias"}  # fmt: skip
    case = replace(case, gguf_tensors={ours: state[key] for key, ours in heads.items() if key in state})

    def store(tensor: str, values: FloatArray) -> tuple[FloatArray, str]:
        return np.ascontiguousarray(values[2:] if tensor == "position_embd.weight" else values), "F32"

    file = write_stacked_gguf(case, tmp_path, tmp_path / "model.gguf", store)
    pooling = open_checkpoint(file).spec.pooling
    assert pooling is not None and pooling.rows == ("mean" if more else "cls") and pooling.labels == ("LABEL_0",)
    rows = rows_of(file, reference, [TEXTS[2]])[0]
    with torch.no_grad():
        wanted = theirs(input_ids=torch.tensor([TEXTS[2]])).logits[0].numpy()
    found = head_of(file, rows.mean(axis=0) if more else rows[0])
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


QWEN3 = Case("qwen3", {"head_dim": 16})
WORDS = {"no": 9, "yes": 7}


def write_words(folder: Path) -> None:
    """The tokenizer of a reranker, as far as its scores go."""
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": WORDS, "merges": []}}))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("told", ["card", "field", "module"])
def test_a_qwen3_reranker_scores_yes_against_no(told: str, tied: bool, tmp_path: Path, reference: Backend) -> None:
    import torch

    theirs = make_encoder(QWEN3, tmp_path, "AutoModelForCausalLM", tie_word_embeddings=tied)
    assert open_checkpoint(tmp_path).spec.pooling is None
    write_words(tmp_path)
    if told == "card":
        (tmp_path / "README.md").write_text("---\ntags: x\n---\n# Qwen3-Reranker-0.6B\n")
    elif told == "field":
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(config | {"classifier_from_token": ["no", "yes"]}))
    else:
        write_logit_score(tmp_path, WORDS)
    pooling = open_checkpoint(tmp_path).spec.pooling
    assert pooling is not None and (pooling.rows, pooling.width) == ("last", 1) and "{document}" in pooling.template
    for found, text in zip(rows_of(tmp_path, reference, TEXTS), TEXTS, strict=True):
        with torch.no_grad():
            logits = theirs(input_ids=torch.tensor([text])).logits[0, -1, [WORDS["no"], WORDS["yes"]]]
        score = 1 / (1 + np.exp(-head_of(tmp_path, found[-1])[0]))
        assert score == pytest.approx(float(logits.softmax(0)[1]), abs=1e-5)


def write_logit_score(folder: Path, words: dict[str, int]) -> None:
    """modules.json as sentence-transformers writes it for such a model."""
    kinds = ("base.modules.Transformer", "cross_encoder.modules.LogitScore")
    modules = [
        {"idx": n, "path": f"{n}_X" if n else "", "type": f"sentence_transformers.{kind}"}
        for n, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_X").mkdir()
    told = {"true_token_id": words["yes"], "false_token_id": words["no"]}
    (folder / "1_X" / "config.json").write_text(json.dumps(told))


@pytest.mark.parametrize("labels", [1, 3])
def test_a_qwen3_with_a_head_for_scores(labels: int, tmp_path: Path, reference: Backend) -> None:
    import torch

    theirs = make_encoder(QWEN3, tmp_path, "AutoModelForSequenceClassification", num_labels=labels, pad_token_id=0)
    pooling = open_checkpoint(tmp_path).spec.pooling
    assert pooling is not None and len(pooling.labels) == labels and bool(pooling.template) == (labels == 1)
    for found, text in zip(rows_of(tmp_path, reference, TEXTS), TEXTS, strict=True):
        with torch.no_grad():
            wanted = theirs(input_ids=torch.tensor([text])).logits[0].numpy()
        np.testing.assert_allclose(head_of(tmp_path, found[-1]), wanted, rtol=1e-4, atol=1e-4)


def test_a_qwen3_reranker_as_a_gguf_file(tmp_path: Path, reference: Backend) -> None:
    import torch

    theirs = make_encoder(QWEN3, tmp_path, "AutoModelForCausalLM", tie_word_embeddings=True)
    words = theirs.lm_head.weight[[WORDS["yes"], WORDS["no"]]].detach().numpy()
    labels = {"pooling_type": 4, "classifier.output_labels": ["yes", "no"]}
    case = replace(QWEN3, gguf_keys=labels, gguf_tensors={"cls.output.weight": words})
    file = write_stacked_gguf(case, tmp_path, tmp_path / "model.gguf")
    (row,) = rows_of(file, reference, [TEXTS[2]])
    with torch.no_grad():
        logits = theirs(input_ids=torch.tensor([TEXTS[2]])).logits[0, -1, [WORDS["yes"], WORDS["no"]]]
    np.testing.assert_allclose(head_of(file, row[-1]), [float(logits[0] - logits[1])], rtol=1e-4, atol=1e-4)


def test_rerankers_that_lack_what_makes_the_score_are_refused(tmp_path: Path) -> None:
    make_encoder(CASES["bert"], tmp_path)
    rank = replace(CASES["bert"], gguf_keys=CASES["bert"].gguf_keys | {"pooling_type": 4})
    with pytest.raises(UnsupportedError, match=r"a reranker without cls\.output\.weight"):
        open_checkpoint(write_stacked_gguf(rank, tmp_path, tmp_path / "a.gguf"))
    rank = replace(rank, gguf_tensors={"cls.output.weight": np.ones((1, 64), np.float32)})
    with pytest.raises(UnsupportedError, match=r"a reranker without cls\.weight"):
        open_checkpoint(write_stacked_gguf(rank, tmp_path, tmp_path / "b.gguf"))
    decoder = tmp_path / "decoder"
    make_encoder(QWEN3, decoder, "AutoModelForCausalLM")
    (decoder / "README.md").write_text("# Qwen3-Reranker-4B")
    (decoder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"yes": 7}}}))
    with pytest.raises(CheckpointError, match="no token 'no'"):
        open_checkpoint(decoder)


@pytest.mark.parametrize("name", ["bert", "eurobert", "nomic_bert"])
def test_an_encoder_may_say_that_it_is_not_causal(name: str, tmp_path: Path) -> None:
    make_encoder(CASES[name], tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"is_causal": False}))
    assert open_checkpoint(tmp_path).spec.encodes


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("bert", "position_embedding_type", "relative_key"),
        ("bert", "is_decoder", True),
        ("bert", "hidden_act", "mish"),
        ("modernbert", "norm_bias", True),
        ("modernbert", "hidden_activation", "silu"),
        ("nomic_bert", "prenorm", True),
        ("nomic_bert", "qkv_proj_bias", True),
        ("gte", "logn_attention_scale", True),
        ("gte", "hidden_act", "silu"),
        ("eurobert", "is_causal", True),
        ("mpnet", "relative_attention_num_buckets", 16),
    ],
)
def test_what_changes_the_result_is_refused_by_name(name: str, field: str, value: object, tmp_path: Path) -> None:
    make_encoder(CASES[name], tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {field: value}))
    with pytest.raises(UnsupportedError, match=field):
        open_checkpoint(tmp_path)


# What transformers has as Gemma 3's text that sees what comes behind as well.
EMBEDDING_GEMMA = Case(
    "embedding_gemma",
    {
        "head_dim": 16, "num_hidden_layers": 3, "sliding_window": 8, "use_bidirectional_attention": True,
        "tie_word_embeddings": True,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "pad_token_id": 0,
    },
)  # fmt: skip


def test_a_folder_of_embedding_gemma_has_the_rows_of_transformers(tmp_path: Path, backend: Backend) -> None:
    theirs = make_encoder(replace(EMBEDDING_GEMMA, kind="gemma3_text"), tmp_path)
    for found, text in zip(rows_of(tmp_path, backend, TEXTS), TEXTS, strict=True):
        near(found, hidden_of(theirs, text))


def test_a_gguf_file_of_embedding_gemma_has_the_rows_of_transformers(tmp_path: Path, reference: Backend) -> None:
    more = {"num_hidden_layers": 7, "layer_types": None, "rope_parameters": None, "query_pre_attn_scalar": 16}
    case = replace(EMBEDDING_GEMMA, kind="gemma3_text", changes=EMBEDDING_GEMMA.changes | more)
    theirs = make_encoder(case, tmp_path)
    dense = {
        name: np.random.default_rng(n).standard_normal((64, 64)).astype(np.float32) for n, name in enumerate(DENSE)
    }
    keys = {
        "attention.causal": False, "attention.sliding_window": 8, "rope.freq_base": 1e6, "rope.freq_base_swa": 1e4,
        "pooling_type": 1, "attention.key_length": 16, "attention.value_length": 16,
    }  # fmt: skip
    case = replace(case, gguf_name="gemma-embedding", gguf_keys=keys, gguf_tensors=dense)
    file = write_stacked_gguf(case, tmp_path, tmp_path / "model.gguf")
    rows = rows_of(file, reference, TEXTS)
    for found, text in zip(rows, TEXTS, strict=True):
        near(found, hidden_of(theirs, text))
    wanted = dense["dense_3.weight"] @ dense["dense_2.weight"] @ rows[2].mean(axis=0)
    np.testing.assert_allclose(head_of(file, rows[2].mean(axis=0)), wanted, rtol=1e-3, atol=1e-3)


DENSE = ("dense_2.weight", "dense_3.weight")


def theirs_of(folder: Path) -> FloatArray | None:
    """Rows as transformers has them; None where it fails, or makes up tensors that rows are made of."""
    import transformers

    try:
        model, told = transformers.AutoModel.from_pretrained(
            folder, attn_implementation="eager", dtype="float32", output_loading_info=True
        )
        missing = [key for key in told["missing_keys"] if "pooler" not in key]
        return None if missing else hidden_of(model.eval(), PROMPT)
    except Exception:  # whatever a configuration that does not hold together runs into
        return None


def ours_of(folder: Path) -> FloatArray | UserError:
    try:
        return rows_of(folder, make_backend("native", rounding=False), [PROMPT])[0]
    except UserError as error:
        return error


# What no model has, and two ropes of which one has to go.
REFUSED = {"distilbert": ("is_decoder",), "modernbert": ("rope_scaling",)}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", CASES)
def test_every_field_is_read_as_transformers_reads_it_or_refused(name: str, tmp_path: Path) -> None:
    make_encoder(CASES[name], tmp_path)
    check_changes(tmp_path, theirs_of, ours_of, refused=frozenset(REFUSED.get(name, ())), bound=BOUND)
