"""The values that the scheduler hands to a worker, and what comes back: plain values, fit for a pipe.

The worker keeps, for every started sequence, its tokens, its sampling parameters and its block table; a step carries
only what changed. It appends the tokens that it draws to the sequence by itself, so a following step can be sent before
the result of this one is known, unless that says how many drafted tokens count.

Both sides cut a sequence back by themselves as well: behind its last accepted token nothing that a step computed is
kept, neither KV blocks nor a state (`Advance`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, get_type_hints

import msgspec

from homenode.engine.inputs import StepRows
from homenode.engine.request import TokenLogprob
from homenode.sampling import NO_TOKEN as NO_TOKEN
from homenode.sampling import SamplingParams


class StartSequence(msgspec.Struct, frozen=True, array_like=True):
    """Make worker state for sequence `seq` (a handle never reused; a preempted request comes back under a new one)."""

    seq: int
    token_ids: list[int]  # prompt and, after a preemption, the output so far
    num_prompt: int
    params: SamplingParams  # with seed set
    state_slot: int = -1  # of a model whose layers keep a state: where that of this sequence lies
    state_source: int = -1  # the slot that is copied there before anything is computed; -1: none is
    surprise_limit: float | None = None  # under Mirostat after a preemption: what `Advance` said last
    state_pages: list[int] = []  # KV blocks in which the state came from another engine; none: it did not
    second_from: int = 0  # see `Request.second_from`
    grids: list[tuple[int, int, int]] = []  # the places of pictures: see `inputs.PictureGrid`
    spans: list[tuple[int, int]] = []  # positions first .. past - 1 that see each other
    adapter: int = -1  # the number of its adapter; -1: none


class StepItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Compute positions start .. start + count - 1 of a sequence, after appending `new_blocks` to its block table.

    The first item of a sequence may start above 0: what lies before was found in the prefix cache, or came from another
    engine. The row after the last prompt token is sampled, not scored: with `score_from` f, min(start + count,
    num_prompt - 1) - f log-probabilities are wanted.
    """

    seq: int
    start: int
    count: int
    new_blocks: list[int]
    # So many of its last positions lead to a token each, or the last one to the vector of the text that ends there; 0:
    # it brings no `Advance`. With drafted tokens it is one more than these.
    draws: int
    # >= 0: also return log-probabilities of the prompt tokens at positions score_from + 1 .. start + count.
    score_from: int = -1
    # slots that get a copy of the state, and the position of the item after which each does, ascending
    state_copies: tuple[tuple[int, int], ...] = ()
    state_pages: tuple[int, ...] = ()  # KV blocks that get the state as it is after the item, for another engine
    # Guesses of the tokens behind the last known one, which stand at its last positions. A state is copied after each
    # position from the last known token on but the last one, so that it can be cut back.
    drafted: tuple[int, ...] = ()
    rows: tuple[StepRows, ...] = ()  # that stand in places of embeddings among these positions
    # So many tokens at most are to be drafted behind those that it draws, and told with its `Advance`. Of a part of a
    # prompt that draws nothing: not 0 where whoever drafts is to read it.
    expected: int = 0


class Step(msgspec.Struct, frozen=True, array_like=True):
    """One unit of work. Order within: ends, starts, items.

    Ends travel with the next step that computes something. After a lost step (`StepFailed`) its ends are sent again,
    together with those of the sequences lost with it, so a worker ignores the end of a sequence it does not have.
    """

    number: int
    ends: list[int]  # sequences whose worker state goes away (finished, aborted or preempted)
    starts: list[StartSequence]
    items: list[StepItem]

    @property
    def num_tokens(self) -> int:
        """Positions computed by this step."""
        return sum(item.count for item in self.items)


class Advance(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The tokens that one step brought a sequence: those that it would have drawn one by one.

    Each of the last `StepItem.draws` positions draws a token as it would have without the others. Drafted tokens are
    accepted as long as they equal what was drawn in their place; the first one drawn that does not, or that follows all
    of them, is the last that counts. Behind it nothing is kept: the sequence has the KV blocks that hold all of its
    tokens but the last, and the state after these.
    """

    seq: int
    tokens: list[int]  # accepted, in order; none where its logits held a NaN, or nothing that could be drawn
    logprobs: tuple[TokenLogprob, ...] = ()  # of each, if they are wanted
    forced: tuple[int, ...] = ()  # indices of the tokens that its grammar left no choice about
    surprise_limit: float | None = None  # under Mirostat: the bound on the surprise of the next token
    drafted: tuple[int, ...] = ()  # tokens that the worker expects to follow, `StepItem.expected` at most
    forced_drafts: int = 0  # so many of the first of these its grammar leaves no choice about


def num_accepted(drafted: Sequence[int], drawn: Sequence[int]) -> int:
    """Count the tokens that are accepted of `drawn`: one drawn behind the last known token, and one behind each of
    `drafted`. `NO_TOKEN` and what is behind it are not.
    """
    for count, token in enumerate(drawn):
        if token == NO_TOKEN:
            return count
        if count == len(drafted) or drafted[count] != token:
            return count + 1
    return len(drawn)


class Pooled(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The vector, or the scores, of a sequence's text: float32, little-endian; nothing where the model computed what
    is no number.
    """

    seq: int
    values: bytes


class PromptScores(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of the prompt tokens at positions first, first + 1, ... of a sequence; NaN where the model
    computed one.
    """

    seq: int
    first: int
    scores: list[TokenLogprob]


class StepResult(msgspec.Struct, frozen=True, array_like=True):
    """Results of a step, which come back in step order; the advances are in the order of the items that draw."""

    number: int
    advances: list[Advance]
    scored: list[PromptScores] = []
    seconds: float = 0.0  # time in the worker
    failed: list[tuple[int, str]] = []  # sequences whose grammar cannot go on, and why; they got no token
    pooled: list[Pooled] = []  # of an engine that makes vectors, in place of `advances`
    draft_seconds: float = 0.0  # of `seconds`, what drafting took
    experts: float = 0.0  # of a mixture's experts, the share that was read; 0: it is not known


def _least_there(told: Sequence[int]) -> int:
    """The least but for zeros, which workers tell that have none."""
    return min(filter(None, told), default=0)


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """The figures that a worker tells once it has loaded its part of the model. Each field says what those of all
    workers of an engine, of every stage and rank, come to: see `merge_reports`.
    """

    num_blocks: Annotated[int, min]  # KV blocks: that fit, and of all workers those that there are
    state_slots: Annotated[int, _least_there] = 0  # of the state memory; 0: no layer of the model keeps a state
    # Tokens of a step that products compute together, so that it costs by multiples of them.
    tile_tokens: Annotated[int, max] = 1
    weight_bytes: Annotated[int, sum] = 0
    shared_weight_bytes: Annotated[int, sum] = 0  # of experts that other engines keep, beside `weight_bytes` of its own


def merge_reports(told: Sequence[WorkerReport]) -> dict[str, Any]:
    """What the figures of all workers come to, by the names of fields, which `WorkerLimits` has too."""
    merges = {name: hint.__metadata__[0] for name, hint in get_type_hints(WorkerReport, include_extras=True).items()}
    return {name: merge([getattr(each, name) for each in told]) for name, merge in merges.items()}


class WorkerLimits(WorkerReport, frozen=True, kw_only=True):
    """The limits of what an engine's workers can take, known once their memory is laid out: their figures, and what
    follows from the model and the settings.
    """

    block_size: int
    max_model_len: int
    vocab_size: int
    max_sampled_rows: int  # sampled and scored rows together in one step
    # KV blocks whose memory is taken and given back together; 0: all memory is there from the start.
    chunk_blocks: int = 0
    chunk_bytes: int = 0  # of such a chunk, all workers together
    state_interval: int = 0  # positions between two snapshots of a state, a multiple of the block size
    state_pages: int = 0  # KV blocks in which a state is handed over to another engine; 0: none is
    whole_pages: bool = False  # what is handed over is whole blocks, whatever is behind a prompt's last position
    pools: bool = False  # texts become vectors or scores, and nothing is generated
    max_drafted: int = 0  # tokens that it expects to follow, at most, which it tells with an `Advance`
    row_columns: int = 0  # of rows that prompts may have in places of embeddings; 0: they have token ids alone
    adapters: int = 0  # that requests may have
    group_blocks: int = 1  # KV blocks that a sequence had best have next to each other, see `kv.groups`
