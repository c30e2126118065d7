"""The model that drafts tokens beside the one that is served: which it is, whether it can, and what it takes of each
worker's memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from homenode.compute.ops import Backend, KvGeometry
from homenode.engine.config import EngineConfig
from homenode.engine.memory.sizing import step_bytes
from homenode.errors import CheckpointError, UnsupportedError, UserError
from homenode.host.topology.finding import Finding
from homenode.model.architectures.registry import architecture_for
from homenode.model.checkpoint.index import OpenedCheckpoint, drafting_of, open_checkpoint
from homenode.model.checkpoint.prediction_model import with_tables
from homenode.model.checkpoint.vocabulary_file import vocabulary_file
from homenode.model.formats.bounded_files import refuse_links
from homenode.model.hub.locate import locate
from homenode.model.part import ModelPart
from homenode.model.parts import PartitionSpec, plan_parts
from homenode.model.spec import Checkpoint, ModelSpec
from homenode.model.weights.alignment import alignments_of
from homenode.model.weights.layout import WeightLayout
from homenode.model.weights.load import kv_geometry_of, plan_model
from homenode.model.weights.names import match_tensors
from homenode.units import format_count

if TYPE_CHECKING:
    from homenode.model.tokenizer.tokenizer import Tokenizer

_SPARE_SEQUENCES = 16  # whose drafts may end behind their last KV block in one step


@dataclass(frozen=True)
class DraftingPlan:
    """The share of a worker in what drafts. `spare_blocks`: beside those of the engine, for positions that have no
    block yet.
    """

    part: ModelPart
    layout: WeightLayout
    geometry: KvGeometry
    spare_blocks: int
    buffers: int  # bytes of a step

    @property
    def beside_weights(self) -> int:
        """Bytes that it takes beside weights and KV memory."""
        return self.buffers + self.spare_blocks * self.geometry.block_bytes

    @property
    def nbytes(self) -> int:
        """Bytes that it takes beside KV memory."""
        return self.layout.target_bytes + self.beside_weights


def with_drafter(checkpoint: OpenedCheckpoint, config: EngineConfig) -> OpenedCheckpoint:
    """The model with what drafts for it by these settings, if there is anything. UserError, naming the setting, where
    what was asked for is not there or cannot; raises what `open_checkpoint` does.
    """
    asked = config.speculation.resolved()
    if checkpoint.spec.pooling is not None or not asked.asks_model:
        return replace(checkpoint, drafting=None)
    if asked.model is not None:
        return replace(checkpoint, drafting=_draft_model(asked.model, checkpoint.spec, config))
    found = checkpoint.prediction
    why = "has no block that predicts further tokens (multi-token prediction)"
    if found is None and checkpoint.left_heads:
        why = (
            f"has a block that predicts further tokens ({checkpoint.left_heads}) of a kind that homenode cannot run in "
            f"a {checkpoint.spec.architecture} model"
        )
    if found is not None and (problem := _block_problem(found)) is not None:
        found, why = None, f"has a block that predicts further tokens which cannot be used: {problem}"
    if found is None and asked.method == "mtp":
        raise UserError(
            f"--speculative mtp: {checkpoint.path} {why}; take ngram, draft with --speculative-model, or auto",
            param="speculative",
        )
    if found is not None and config.parallel.pipeline_parallel_size > 1:
        spec, tensors = with_tables(found.spec, found.tensors, checkpoint.tensors)  # the last stage has none
        found = replace(found, tensors=tensors, spec=spec)
    return replace(checkpoint, drafting=found)


def without_spare_drafter(checkpoint: OpenedCheckpoint, config: EngineConfig) -> OpenedCheckpoint | None:
    """The model without what drafts for it, where nobody asked for that by name; None where there is no such thing."""
    asked = config.speculation.resolved()
    spare = asked.method == "auto" and asked.model is None and checkpoint.drafting is not None
    return replace(checkpoint, drafting=None) if spare else None


def heads_left_out(checkpoint: OpenedCheckpoint, reason: str) -> Finding:
    """Say that a block that predicts is left in its file."""
    text = f"the block of {checkpoint.path} that predicts further tokens is left out, as with it {reason}"
    return Finding(
        "warning", "heads_left_out", text, "--speculative mtp insists on it, ngram says that it is not wanted"
    )


def _block_problem(checkpoint: Checkpoint) -> str | None:
    """Return why a block that predicts cannot be used; None where it can."""
    try:
        match_tensors(architecture_for(checkpoint.spec), checkpoint)
    except (CheckpointError, UnsupportedError) as error:
        return error.message
    return None


def _draft_model(name: str, spec: ModelSpec, config: EngineConfig) -> OpenedCheckpoint:
    try:
        path = locate(name)
        if not config.model.links:
            refuse_links(path)
        drafting = open_checkpoint(path)
    except UserError as error:
        raise UserError(f"--speculative-model: {error.message}", param="speculative_model") from error
    if drafting.spec.layer_states or drafting.spec.encodes or drafting.spec.pooling is not None:
        what = "keeps states of recurrent layers" if drafting.spec.layer_states else "does not generate text"
        raise UserError(
            f"--speculative-model {name} {what} ({drafting.spec.architecture}), and cannot draft; give a model of "
            "attention layers alone",
            param="speculative_model",
        )
    return drafting


def vocabulary_problem(checkpoint: OpenedCheckpoint, config: EngineConfig) -> UserError | None:
    """Return an error that names the first token in which the vocabulary of the model that drafts differs, None where
    there is none. One may have more tokens than the other behind those of both. Of models without files of a vocabulary
    it is known alone how many tokens they have.
    """
    asked, drafting = config.speculation.resolved(), checkpoint.drafting
    if asked.model is None or drafting is None or drafting.path == checkpoint.path:
        return None
    sizes = checkpoint.spec.vocab_size, drafting.spec.vocab_size
    mine, theirs = _tokenizer_of(Path(str(config.model.vocabulary or checkpoint.path))), _tokenizer_of(drafting.path)
    if mine is None or theirs is None:
        counted = f"{format_count(sizes[1], 'token')}, and {checkpoint.path} has {sizes[0]}"
        return None if sizes[0] == sizes[1] else _other_vocabulary(asked.model, counted)
    for token in range(min(sizes)):
        ours, others = mine.token_bytes(token), theirs.token_bytes(token)
        if ours != others and mine.has_token(token) and theirs.has_token(token):
            seen = f"token {token} is {_shown(others)} there and {_shown(ours)} in {checkpoint.path}"
            return _other_vocabulary(asked.model, seen)
    return None


def _other_vocabulary(model: str, seen: str) -> UserError:
    return UserError(
        f"--speculative-model {model} has another vocabulary: {seen}; give a smaller model of the same family",
        param="speculative_model",
    )


def _tokenizer_of(path: Path) -> Tokenizer | None:
    """The tokenizer of a model; None where it has no file of one."""
    if not vocabulary_file(path).is_file():
        return None
    from homenode.model.tokenizer.loader import begin_trial, load_untried  # engines without a draft model read no text

    if (trial := begin_trial(path)) is not None:
        trial.wait()
    return load_untried(path)


def _shown(token: bytes) -> str:
    return repr(token.decode("utf-8", "replace"))


def plan_drafting(
    checkpoint: Checkpoint, config: EngineConfig, backend: Backend, part: ModelPart
) -> DraftingPlan | None:
    """Return what a worker with this part of the model has of what drafts: those of the last stage draw tokens, and
    draft. UserError where that cannot be cut into as many ranks.
    """
    drafting, kept = drafting_of(checkpoint), config.model
    if drafting is None or not part.last_stage:
        return None
    own = ModelPart.whole(drafting.spec)
    if part.ranks > 1:
        parts = plan_parts(drafting.spec, alignments_of(drafting, kept.quantize), PartitionSpec(ranks=part.ranks))
        own = parts[part.rank]
    layout = plan_model(drafting, backend, quantize=kept.quantize, dtype=kept.dtype, part=own)
    geometry = kv_geometry_of(drafting.spec, layout, config.kv.block_size, config.kv.kv_cache_dtype, own)
    blocks = -(-config.speculation.resolved().max_drafted // config.kv.block_size)
    spare = blocks * min(config.scheduler.max_num_seqs, _SPARE_SEQUENCES)
    return DraftingPlan(own, layout, geometry, spare, step_bytes(config, drafting.spec))


def with_drafting(geometry: KvGeometry, plan: DraftingPlan | None) -> KvGeometry:
    """The geometry of a worker's KV memory, that of what drafts with it."""
    return geometry if plan is None else replace(geometry, drafting=plan.geometry)
