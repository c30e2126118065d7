"""What the scheduler hands to a worker, and what comes back: plain values, fit for a pipe.

The worker keeps, for every started sequence, its tokens, its sampling parameters and its block table; a step carries
only what changed. It appends each token it samples to the sequence by itself, so a following step can be sent before
the result of this one is known.
"""

from __future__ import annotations

import msgspec

from homenode.engine.request import TokenLogprob
from homenode.sampling import SamplingParams


class StartSequence(msgspec.Struct, frozen=True, array_like=True):
    """Make worker state for sequence `seq` (a handle never reused; a preempted request comes back under a new one)."""

    seq: int
    token_ids: list[int]  # prompt and, after a preemption, the output so far
    num_prompt: int
    params: SamplingParams  # with seed set
    state_slot: int = -1  # of a model whose layers keep a state: where that of this sequence lies
    state_source: int = -1  # the slot that is copied there before anything is computed; -1: none is
    surprise_limit: float | None = None  # under Mirostat after a preemption: what `Sampled` said last
    state_pages: list[int] = []  # KV blocks in which the state came from another engine; none: it did not
    second_from: int = 0  # see `Request.second_from`


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
    sample: bool  # draw the token that follows the last position, or give the vector of the text that ends there
    # >= 0: also return log-probabilities of the prompt tokens at positions score_from + 1 .. start + count.
    score_from: int = -1
    # slots that get a copy of the state, and the position of the item after which each does, ascending
    state_copies: tuple[tuple[int, int], ...] = ()
    state_pages: tuple[int, ...] = ()  # KV blocks that get the state as it is after the item, for another engine


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


NO_TOKEN = -1


class Sampled(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The token drawn for a sequence; `NO_TOKEN` where its logits held a NaN, or nothing that could be drawn."""

    seq: int
    token: int
    logprob: TokenLogprob | None = None
    forced: bool = False  # its grammar left no other token
    surprise_limit: float | None = None  # under Mirostat: the bound on the surprise of the next token


class Pooled(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The vector, or the scores, of a sequence's text: float32, little-endian; nothing where the model computed what
    is no number.
    """

    seq: int
    values: bytes


class PromptScores(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of the prompt tokens at positions first, first + 1, ... of a sequence; NaN as for `Sampled`."""

    seq: int
    first: int
    scores: list[TokenLogprob]


class StepResult(msgspec.Struct, frozen=True, array_like=True):
    """What a step produced; results come back in step order, and what is sampled in the order of the items that asked
    for it.
    """

    number: int
    sampled: list[Sampled]
    scored: list[PromptScores] = []
    seconds: float = 0.0  # time in the worker
    failed: list[tuple[int, str]] = []  # sequences whose grammar cannot go on, and why; their token is `NO_TOKEN`
    pooled: list[Pooled] = []  # of an engine that makes vectors, in place of `sampled`


class WorkerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker can take, known once its memory is laid out."""

    num_blocks: int
    block_size: int
    max_model_len: int
    vocab_size: int
    max_sampled_rows: int  # sampled and scored rows together in one step
    chunk_blocks: int = (
        0  # KV blocks whose memory is taken and given back together; 0: all memory is there from the start
    )
    chunk_bytes: int = 0  # of such a chunk, all workers together
    state_slots: int = 0  # of the state memory; 0: no layer of the model keeps a state
    state_interval: int = 0  # positions between two snapshots of a state, a multiple of the block size
    state_pages: int = 0  # KV blocks in which a state is handed over to another engine; 0: none is
    whole_pages: bool = False  # what is handed over is whole blocks, whatever is behind a prompt's last position
    pools: bool = False  # texts become vectors or scores, and nothing is generated
    group_blocks: int = 1  # KV blocks that a sequence had best have next to each other, see `kv.groups`
