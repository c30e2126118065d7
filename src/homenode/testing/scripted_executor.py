"""An executor without a model: tokens from a fixed rule, and a worker so strict that a scheduler's mistake cannot pass
unseen.

It is for testing whatever sits above a worker, at thousands of sequences a second. Instead of keys and values its KV
memory holds, for every position, a checksum of the sequence up to there. The token it draws is a function of that
checksum, read back through the block table: a wrong block gives a wrong token, besides the error.
"""

from __future__ import annotations

import zlib
from array import array
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from homenode.engine.errors import StepError, StepsLostError
from homenode.engine.kv.chunks import PageChange
from homenode.engine.request import TokenLogprob
from homenode.engine.step import (
    NO_TOKEN,
    Advance,
    PromptScores,
    StartSequence,
    Step,
    StepItem,
    StepResult,
    WorkerLimits,
    num_accepted,
)
from homenode.errors import InternalError
from homenode.sampling import SamplingParams
from homenode.units import format_count


def checksum(tokens: Sequence[int], before: int = 0) -> int:
    """CRC-32 of token ids; `before` is the checksum of the tokens that precede them."""
    return zlib.crc32(array("q", tokens).tobytes(), before)


def scripted_token(tokens: Sequence[int], vocab_size: int) -> int:
    """The token that follows `tokens`: any change anywhere before it changes it, as far as the vocabulary is large
    enough.
    """
    return checksum(tokens) % vocab_size


def scripted_logprob(token: int, position: int) -> TokenLogprob:
    """The log-probability that is reported for `token` at `position`."""
    return TokenLogprob(-1.0 - (31 * token + position) % 97 / 97)


@dataclass(slots=True)
class _State:
    """The state that a worker keeps of a sequence. `sums[p]` identifies the tokens up to position p and p itself."""

    tokens: list[int]
    num_prompt: int
    params: SamplingParams
    sums: list[tuple[int, int]] = field(default_factory=list)
    table: list[int] = field(default_factory=list)
    computed: int = 0
    slot: int = -1  # of the state memory


class ScriptedExecutor:
    """Answers steps like a worker with a model would, at once, results in order.

    Every breach of the step protocol raises InternalError: unknown or ended handles, gaps in positions, wrong block
    tables, writes into a block that another sequence uses, reading a position whose content is not this sequence's, or
    more than the limits allow. With several stages also: computing a sequence whose last token was drawn by a step
    whose result was not taken yet. With `chunk_blocks` in the limits also: writing to a block whose pages were not
    taken, and reading what was in pages given back.

    With a `drafter` it tells with every advance what may follow, and drafted tokens that a step holds are accepted as
    far as they are right. What was computed behind them is forgotten: whoever reads it is found out.

    `lose` makes it as if a worker had died, `restore` as if it had been replaced.
    """

    def __init__(
        self,
        limits: WorkerLimits,
        *,
        max_tokens: int | None = None,
        max_sequences: int | None = None,
        fault: Callable[[Step], Exception | None] | None = None,
        stages: int = 1,
        drafter: Callable[[Sequence[int]], Sequence[int]] | None = None,
    ) -> None:
        """`max_tokens`, `max_sequences`: bounds of a step, if to be checked. A step for which `fault` returns an error
        is lost. `drafter`: guesses what follows the tokens of a sequence.
        """
        self._drafter = drafter
        self._limits = limits
        self._max_tokens = max_tokens
        self._max_sequences = max_sequences
        self._fault = fault
        self._stages = stages
        self._serving = True
        self._loss: StepsLostError | None = None  # not told yet
        self._states: dict[int, _State] = {}
        self.memory: list[list[tuple[int, int] | None]] = [[None] * limits.block_size for _ in range(limits.num_blocks)]
        self._slots: list[tuple[int, int] | None] = [None] * limits.state_slots  # the last position, and all up to it
        self.present: set[int] = set()  # blocks whose pages were taken, where memory grows
        self._attached: dict[int, list[list[tuple[int, int] | None]]] = {}  # other memory, by its first block
        self._next_first = limits.num_blocks
        self._users: Counter[int] = Counter()  # live sequences that have the block in their table
        self._results: deque[StepResult | StepError] = deque()
        self._notify: Callable[[], None] = lambda: None
        self._last_number = -1
        self._last_seq = -1
        self.failed = False  # a step was lost, so ends of unknown sequences are to be expected

    def limits(self) -> WorkerLimits:
        """Return what this worker takes."""
        return self._limits

    @property
    def serving(self) -> bool:
        """Return whether steps may be submitted: not between `lose` and `restore`, nor before the loss was told."""
        return self._serving and self._loss is None

    @property
    def pending(self) -> int:
        """Steps whose result was not taken yet."""
        return len(self._results)

    @property
    def live(self) -> frozenset[int]:
        """Handles that were started and not ended."""
        return frozenset(self._states)

    def on_result(self, callback: Callable[[], None]) -> None:
        """`callback` is called at the end of every `submit`."""
        self._notify = callback

    def submit(self, step: Step) -> None:
        """Do a step at once and keep its result. InternalError for a breach of the protocol."""
        self._demand(self.serving, f"step {step.number} is sent while there are no workers")
        self._check_step(step)
        self._results.append(self._outcome(step))
        self._notify()

    def prepare_grammar(self, grammar: str, ready: Callable[[], None]) -> bool:
        """Grammars are ready always: tokens come from the rule."""
        return False

    def change_pages(self, changes: Sequence[PageChange]) -> None:
        """Blocks whose pages are given back hold nothing any more."""
        for change in changes:
            blocks = range(change.first, change.past)
            if change.presence:
                self.present.update(blocks)
                continue
            self.present.difference_update(blocks)
            for block in blocks:
                self.memory[block] = [None] * self._limits.block_size

    def result(self, timeout: float | None = None) -> StepResult | None:
        """The oldest result not taken yet; None if there is none. Raises StepError for a lost step; those after it are
        lost as well. Raises StepsLostError once for each `lose`.
        """
        if self._loss is not None:
            loss, self._loss = self._loss, None
            raise loss
        if not self._results:
            return None
        result = self._results.popleft()
        if isinstance(result, StepError):
            self._results.clear()
            raise result
        return result

    def lose(self, reason: str = "worker 0 ended", *, fatal: bool = False) -> None:
        """A worker ends: results not taken yet, sequences and KV are gone. `fatal`: it will not be replaced."""
        self._serving = False
        self._results.clear()
        self._lose_everything()
        self.present.clear()
        self.failed = False  # whoever sends steps has been told
        self._loss = StepsLostError(reason, fatal=fatal)
        self._notify()

    def restore(self) -> None:
        """It has been replaced."""
        self._serving = True
        self._notify()

    def statistics(self) -> dict[str, Any]:
        """Nothing computes here."""
        return {"sequences": len(self._states)}

    def close(self) -> None:
        """Drop what was not taken."""
        self._results.clear()

    def table(self, seq: int) -> list[int]:
        """The block table of a live sequence."""
        return self._states[seq].table.copy()

    def _outcome(self, step: Step) -> StepResult | StepError:
        if self._results and isinstance(self._results[-1], StepError):
            return StepError(f"step {step.number} is lost with one before it", kind="InternalError")
        error = self._fault(step) if self._fault else None
        if error:
            self._lose_everything()
            return StepError(f"step {step.number} failed: {error}", kind=type(error).__name__)
        for seq in step.ends:
            self._end(seq)
        for start in step.starts:
            self._start(start)
        result = StepResult(number=step.number, advances=[], scored=[], seconds=1e-6 * step.num_tokens)
        for item in step.items:
            self._compute(item, result)
        rows = sum(item.draws for item in step.items) + sum(len(scored.scores) for scored in result.scored)
        self._demand(
            rows <= self._limits.max_sampled_rows, f"step {step.number} samples and scores {format_count(rows, 'row')}"
        )
        return result

    def _check_step(self, step: Step) -> None:
        self._demand(step.number > self._last_number, f"step {step.number} came after step {self._last_number}")
        self._last_number = step.number
        self._demand(bool(step.items), f"step {step.number} computes nothing")
        self._demand(
            len({item.seq for item in step.items}) == len(step.items), f"step {step.number} holds a sequence twice"
        )
        if self._max_tokens is not None:
            self._demand(
                step.num_tokens <= self._max_tokens, f"step {step.number} has {format_count(step.num_tokens, 'token')}"
            )
        if self._max_sequences is not None:
            self._demand(
                len(step.items) <= self._max_sequences,
                f"step {step.number} has {format_count(len(step.items), 'sequence')}",
            )

    def _end(self, seq: int) -> None:
        state = self._states.pop(seq, None)
        self._demand(state is not None or self.failed, f"sequence {seq} is ended, but it is not there")
        for block in state.table if state else ():
            self._users[block] -= 1

    def _start(self, start: StartSequence) -> None:
        self._demand(start.seq > self._last_seq, f"handle {start.seq} is used again")
        self._demand(0 < start.num_prompt <= len(start.token_ids), f"sequence {start.seq} has no prompt")
        self._demand(start.params.seed is not None, f"sequence {start.seq} has no seed")
        self._last_seq = start.seq
        state = self._states[start.seq] = _State(list(start.token_ids), start.num_prompt, start.params)
        state.slot = start.state_slot
        if self._slots:
            taken = [other.slot for other in self._states.values()]
            self._demand(taken.count(state.slot) == 1, f"sequence {start.seq} is given another one's slot {state.slot}")
            if start.state_source >= 0:
                self._slots[state.slot] = self._slots[start.state_source]
            if start.state_pages:
                held = {entry for block in start.state_pages for entry in self.memory[block]}
                self._demand(len(held) == 1, f"sequence {start.seq} is given a state that is not all there")
                self._slots[state.slot] = held.pop()
        self._extend_sums(state)

    def _compute(self, item: StepItem, result: StepResult) -> None:
        state = self._states.get(item.seq)
        if state is None:
            raise InternalError(f"sequence {item.seq} is computed, but it is not there")
        first_item = not state.table
        end, known = item.start + item.count, len(state.tokens)
        self._demand(
            not item.drafted or (end - len(item.drafted) == known and item.draws == 1 + len(item.drafted)),
            f"sequence {item.seq} has drafted tokens that do not follow its last one",
        )
        state.tokens += item.drafted
        self._extend_sums(state)
        given = first_item and (item.start % self._limits.block_size == 0 or self._handed_over(item, state))
        if self._stages > 1:
            self._demand(not self._draws(item.seq), f"sequence {item.seq} is computed before its last token is known")
        self._demand(
            item.start == state.computed or given, f"sequence {item.seq} is at {state.computed}, not {item.start}"
        )
        self._demand(
            item.count > 0 and end <= len(state.tokens) <= self._limits.max_model_len,
            f"sequence {item.seq} has no position {end - 1}",
        )
        self._append_blocks(item, state)
        self._demand(self._has_pages(item, state), f"sequence {item.seq} is computed in a block without pages")
        self._write(item, state)
        self._read_back(item, state, end)
        if self._slots:
            self._move_state(item, state)
        state.computed = end
        if item.score_from >= 0:
            result.scored.append(self._score(item, state))
        if item.draws:
            self._demand(end == len(state.tokens), f"sequence {item.seq} is sampled before all its tokens are computed")
            drawn = [self._token_after(item.seq, state, position) for position in range(end - item.draws, end)]
            del state.tokens[known:]
            result.advances.append(self._advance(item, state, drawn[: num_accepted(item.drafted, drawn)]))

    def _has_pages(self, item: StepItem, state: _State) -> bool:
        """Return whether all blocks it writes to have pages."""
        size = self._limits.block_size
        written = state.table[item.start // size : -(-(item.start + item.count) // size)]
        return not self._limits.chunk_blocks or self.present.issuperset(written)

    def _draws(self, seq: int) -> bool:
        """Return whether the result of a token drawn for it was not taken yet."""
        return any(
            advance.seq == seq
            for result in self._results
            if isinstance(result, StepResult)
            for advance in result.advances
        )

    def attach(self, memory: list[list[tuple[int, int] | None]]) -> int:
        """Blocks of other memory can be read, beginning with this number, which is not used again."""
        first, self._next_first = self._next_first, self._next_first + len(memory)
        self._attached[first] = memory
        return first

    def detach(self, first: int) -> None:
        """They are no more."""
        del self._attached[first]

    def _content(self, block: int) -> list[tuple[int, int] | None] | None:
        """Return what is in a block; None if there is none."""
        if 0 <= block < self._limits.num_blocks:
            return self.memory[block]
        return next(
            (memory[block - first] for first, memory in self._attached.items() if first <= block < first + len(memory)),
            None,
        )

    def _handed_over(self, item: StepItem, state: _State) -> bool:
        """Return whether a sequence may begin inside a block: it is its own, and holds what it should up to there."""
        index, filled = divmod(item.start, self._limits.block_size)
        block = item.new_blocks[index] if index < len(item.new_blocks) else -1
        own = 0 <= block < self._limits.num_blocks and not self._users[block]
        return own and self.memory[block][:filled] == state.sums[index * self._limits.block_size : item.start]

    def _append_blocks(self, item: StepItem, state: _State) -> None:
        size = self._limits.block_size
        for block in item.new_blocks:
            self._demand(self._content(block) is not None, f"sequence {item.seq} is given block {block}")
            self._demand(block not in state.table, f"sequence {item.seq} is given block {block} twice")
            state.table.append(block)
            self._users[block] += 1
        wanted = -(-(item.start + item.count) // size)
        self._demand(
            len(state.table) == wanted,
            f"sequence {item.seq} has {format_count(len(state.table), 'block')} and needs {wanted}",
        )

    def _write(self, item: StepItem, state: _State) -> None:
        size = self._limits.block_size
        brought = {rows.first + i for rows in item.rows for i in range(len(rows.array()))}
        for position in range(item.start, item.start + item.count):
            self._demand(
                state.tokens[position] != NO_TOKEN or position in brought,
                f"sequence {item.seq} has neither a token nor a row at position {position}",
            )
            block = state.table[position // size]
            self._demand(
                block < self._limits.num_blocks,
                f"sequence {item.seq} writes to block {block}, which is another engine's",
            )
            self._demand(
                self._users[block] == 1, f"sequence {item.seq} writes to block {block}, which another one uses"
            )
            self.memory[block][position % size] = state.sums[position]

    def _move_state(self, item: StepItem, state: _State) -> None:
        """Bring the sequence's state to the end of the item, and copy it on the way."""
        held = self._slots[state.slot]
        self._demand(
            item.start == 0 or held == state.sums[item.start - 1],
            f"sequence {item.seq} goes on at {item.start} from another state in slot {state.slot}: {held}",
        )
        end = item.start + item.count
        self._slots[state.slot] = state.sums[end - 1]
        before = item.start - 1
        for to, at in item.state_copies:
            self._demand(before < at < end, f"sequence {item.seq} is copied at {at}, after {before}")
            self._demand(
                all(other.slot != to for other in self._states.values()),
                f"sequence {item.seq} is copied to slot {to}, which another one uses",
            )
            self._slots[to], before = state.sums[at], at
        for block in item.state_pages:
            self._demand(not self._users[block], f"the state of sequence {item.seq} is put into block {block}")
            self.memory[block] = [state.sums[end - 1]] * self._limits.block_size

    def _read_back(self, item: StepItem, state: _State, end: int) -> None:
        size = self._limits.block_size
        for index, block in enumerate(state.table):
            expected = state.sums[index * size : min(end, (index + 1) * size)]
            content = self._content(block)
            self._demand(
                content is not None and content[: len(expected)] == expected,
                f"sequence {item.seq} finds another one's content in block {block}",
            )

    def _token_after(self, seq: int, state: _State, position: int) -> int:
        """The token that follows the one at `position`."""
        self._demand(
            position + 1 < self._limits.max_model_len, f"sequence {seq} is sampled beyond the longest sequence"
        )
        content = self.memory[state.table[position // self._limits.block_size]][position % self._limits.block_size]
        assert content is not None  # just written
        return content[1] % self._limits.vocab_size

    def _advance(self, item: StepItem, state: _State, accepted: list[int]) -> Advance:
        """Add accepted tokens to the sequence, and cut back what was computed behind them."""
        first = len(state.tokens)
        state.tokens += accepted
        del state.sums[first:]
        self._extend_sums(state)
        state.computed = len(state.tokens) - 1
        kept = -(-state.computed // self._limits.block_size)
        for block in state.table[kept:]:
            self._users[block] -= 1
        del state.table[kept:]
        if self._slots and state.computed < item.start + item.count:
            state.slot = next(slot for slot, at in item.state_copies if at == state.computed - 1)
        wanted = state.params.logprobs is not None
        logprobs = (
            [scripted_logprob(token, position) for position, token in enumerate(accepted, first)] if wanted else ()
        )
        guessed = () if self._drafter is None else tuple(self._drafter(state.tokens))
        return Advance(item.seq, accepted, tuple(logprobs), drafted=guessed)

    def _score(self, item: StepItem, state: _State) -> PromptScores:
        self._demand(
            state.params.prompt_logprobs is not None,
            f"sequence {item.seq} did not ask for log-probabilities of its prompt",
        )
        self._demand(
            item.start <= item.score_from,
            f"sequence {item.seq} is scored from a position that is not computed in this step",
        )
        first = item.score_from + 1
        last = min(item.start + item.count, state.num_prompt - 1)
        return PromptScores(item.seq, first, [scripted_logprob(state.tokens[p], p) for p in range(first, last + 1)])

    def _extend_sums(self, state: _State) -> None:
        for position in range(len(state.sums), len(state.tokens)):
            before = state.sums[-1][1] if state.sums else 0
            state.sums.append((position, checksum(state.tokens[position : position + 1], before)))

    def _lose_everything(self) -> None:
        """What a restarted worker looks like."""
        self._states.clear()
        self._users.clear()
        self.memory = [[None] * self._limits.block_size for _ in range(self._limits.num_blocks)]
        self._slots = [None] * self._limits.state_slots
        self.failed = True

    def _demand(self, condition: bool, complaint: str) -> None:
        if not condition:
            raise InternalError(f"the scheduler broke the step protocol: {complaint}")
