"""The decision whether an engine generates text or makes vectors (pools), and what follows for the model and the
settings.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.engine.assignment import EngineAssignment
from homenode.engine.config import EngineConfig, ModelConfig
from homenode.engine.messages import PoolingReady
from homenode.errors import UnsupportedError, UserError
from homenode.model.checkpoint.index import OpenedCheckpoint
from homenode.model.pooling import POOLING_KINDS, PoolingSpec
from homenode.model.spec import ModelSpec


def with_runner(checkpoint: OpenedCheckpoint, asked: ModelConfig) -> OpenedCheckpoint:
    """The model as it is run: `spec.pooling` is None where it generates text. UnsupportedError for a model that cannot
    do what is asked.
    """
    spec, own = checkpoint.spec, checkpoint.spec.pooling
    pools = asked.runner == "pooling" or (asked.runner == "auto" and (own is not None or asked.pooling != "auto"))
    if not pools:
        if spec.encodes:
            raise UnsupportedError(
                f"{checkpoint.path}: an encoder ({spec.architecture}), which cannot generate; leave --runner generate "
                "out"
            )
        if own is not None and own.labels:
            raise UnsupportedError(
                f"{checkpoint.path}: a model that scores texts ({', '.join(own.labels)}); leave --runner generate out"
            )
        head = frozenset[str]() if own is None else own.tensors
        tensors = {name: entry for name, entry in checkpoint.tensors.items() if name not in head}
        return replace(checkpoint, spec=replace(spec, pooling=None), tensors=tensors)
    pooling = own or PoolingSpec("last", spec.hidden_size)
    if (rows := next((kind for kind in POOLING_KINDS if kind == asked.pooling), None)) is not None:
        pooling = replace(pooling, rows=rows)
    return replace(checkpoint, spec=replace(spec, pooling=pooling))


def for_runner(assignment: EngineAssignment, spec: ModelSpec) -> EngineAssignment:
    """The assignment of an engine of this model, as it is run. One that pools keeps no prefixes, unless what comes
    behind a token does not change its row, and the row of the last one is all that counts; an encoder computes each
    text whole, so its steps are as long as the longest. UserError where settings contradict that.
    """
    if spec.pooling is None:
        return assignment
    config = assignment.config
    if config.transfer.on:
        raise UserError("--pd-role is for models that generate; this one makes vectors of texts", param="pd_role")
    if spec.encodes or spec.pooling.rows != "last":
        config = replace(config, kv=replace(config.kv, enable_prefix_caching=False))
    if spec.encodes:
        config = _whole_texts(config, spec)
    return replace(assignment, config=config)


def _whole_texts(config: EngineConfig, spec: ModelSpec) -> EngineConfig:
    longest = min(config.model.max_model_len or spec.max_position, spec.max_position)
    most = max(config.scheduler.max_num_batched_tokens, longest)
    return replace(
        config, scheduler=replace(config.scheduler, enable_chunked_prefill=False, max_num_batched_tokens=most)
    )


def pooling_ready(spec: ModelSpec, asked: ModelConfig) -> PoolingReady | None:
    """Return what the front is told of it. `--max-model-len` goes before the tokens that count by the model's files."""
    pooling = spec.pooling
    if pooling is None:
        return None
    text = pooling.text
    if text.tokens is not None and asked.max_model_len is not None:
        text = replace(text, tokens=asked.max_model_len)
    return PoolingReady(pooling.rows, pooling.width, list(pooling.labels), pooling.template, text)
