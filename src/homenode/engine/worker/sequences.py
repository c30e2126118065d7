"""The memory that a worker has of the sequences it was started on.

Each sequence has a row ("slot") in a set of plain arrays, so that a step over many sequences is built by indexing, not
by loops. Slot 0 stands for no sequence: greedy, without penalties. Of the tokens drawn here only the last is kept,
since no other is ever computed again under the same handle. Drafted tokens are no tokens of a sequence before they are
accepted; what was computed of the others is cut back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from homenode.compute.ops import NO_TOKEN, FloatArray, IntArray, SamplingArrays
from homenode.engine.step import StartSequence, StepItem
from homenode.engine.worker.forbidden import ForbiddenTexts
from homenode.engine.worker.picture_places import PicturePlaces
from homenode.engine.worker.repetitions import RepetitionPenalty
from homenode.sampling import SamplingParams
from homenode.units import format_count

Scalar = TypeVar("Scalar", bound=np.generic)
SlotArray = npt.NDArray[np.intp]
Bias = tuple[IntArray, FloatArray]  # token ids and what is added to their logits
_NOTHING = np.zeros(0, np.int32)
_NO_VALUES = np.zeros(0, np.float32)
_FIRST_SLOTS = 16
_FIRST_BLOCKS = 8
_FIRST_LIMIT = 2.0  # times the surprise that Mirostat aims at: its first bound
_LARGEST_LIMIT = 1000.0
_LEAST_LIMIT = 1e-3  # a bound of 0 would be none
_MASK64 = (1 << 64) - 1


class TokenCounts:
    """The distinct tokens of a sequence, and how often each was drawn; kept for sequences with a penalty."""

    def __init__(self, tokens: IntArray, num_prompt: int) -> None:
        drawn = tokens[num_prompt:]
        distinct = np.unique(tokens[tokens != NO_TOKEN])  # none stands where a row takes the place of an embedding
        self._tokens: IntArray = distinct.astype(np.int32)
        self._counts: IntArray = np.zeros(len(distinct), np.int32)
        self._size = len(distinct)
        np.add.at(self._counts, np.searchsorted(distinct, drawn), 1)
        self._index = {token: i for i, token in enumerate(distinct.tolist())}

    def add(self, token: int) -> None:
        """Count a drawn token. O(1)."""
        at = self._index.get(token)
        if at is None:
            at = self._index[token] = self._size
            if at == len(self._tokens):
                self._tokens = _grown(self._tokens, 2 * at + 8)
                self._counts = _grown(self._counts, 2 * at + 8)
            self._tokens[at] = token
            self._size += 1
        self._counts[at] += 1

    @property
    def tokens(self) -> IntArray:
        """[distinct] token ids, each once, in no order."""
        return self._tokens[: self._size]

    @property
    def counts(self) -> IntArray:
        """[distinct] how often each was drawn; 0: only in the prompt."""
        return self._counts[: self._size]


class SequenceTable:
    """The sequences of one worker. Arrays are indexed by slot."""

    def __init__(self, block_size: int, eos_token_ids: Sequence[int] = (), *, has_state: bool = False) -> None:
        """`has_state`: layers here keep a state of each sequence, in the slot of the state memory that it was given."""
        self.block_size = block_size
        self.has_state = has_state
        self._eos = tuple(eos_token_ids)
        self._slots: dict[int, int] = {}
        self._free = list(range(_FIRST_SLOTS - 1, 0, -1))
        self._drafting: dict[int, StepItem] = {}  # by slot, drafted tokens of which it is not known yet which count
        self.known: list[IntArray] = [_NOTHING] * _FIRST_SLOTS  # tokens given at the start
        self.bias: list[Bias | None] = [None] * _FIRST_SLOTS
        self.stops: list[Bias | None] = [None] * _FIRST_SLOTS  # what may not be drawn yet (min_tokens)
        self.seen: list[TokenCounts | None] = [None] * _FIRST_SLOTS
        self.length = np.zeros(_FIRST_SLOTS, np.int32)  # tokens, drawn ones included
        self.last_token = np.zeros(_FIRST_SLOTS, np.int32)
        self.num_prompt = np.zeros(_FIRST_SLOTS, np.int32)
        self.num_blocks = np.zeros(_FIRST_SLOTS, np.int32)
        self.state_slot = np.zeros(_FIRST_SLOTS, np.int32)
        self.second_from = np.zeros(_FIRST_SLOTS, np.int32)  # of two texts, where the second begins; 0: there is one
        self.adapter = np.zeros(_FIRST_SLOTS, np.int32)  # counted from 1; 0: none
        self.blocks = np.zeros((_FIRST_SLOTS, _FIRST_BLOCKS), np.int32)
        self.settings = SamplingArrays.of(_FIRST_SLOTS, temperature=0.0).settings  # of unused slots: greedy draws
        self.seed = np.zeros(_FIRST_SLOTS, np.uint64)
        self.logprobs = np.full(_FIRST_SLOTS, -1, np.int32)
        self.prompt_logprobs = np.full(_FIRST_SLOTS, -1, np.int32)
        self.wanted_tokens: dict[int, IntArray] = {}  # by slot, tokens whose log-probabilities are asked for
        self.mirostat = np.zeros(_FIRST_SLOTS, np.bool_)
        self.mirostat_tau = np.zeros(_FIRST_SLOTS, np.float32)
        self.mirostat_eta = np.zeros(_FIRST_SLOTS, np.float32)
        self.min_length = np.zeros(_FIRST_SLOTS, np.int32)  # below it `stops` are forbidden
        # What depends on the tokens so far: DRY, and texts that are forbidden.
        self.following: list[tuple[RepetitionPenalty | ForbiddenTexts, ...]] = [()] * _FIRST_SLOTS
        self.num_biased = 0  # sequences with a logit bias, with min_tokens, or with something of these
        self.num_counted = 0  # sequences with a penalty
        self.ending: frozenset[int] = frozenset()  # slots whose grammar leaves nothing but the end
        self.num_steered = 0  # sequences under Mirostat
        self.neutral_token: int | None = None  # see `PictureSpec`
        self.pictures: dict[int, PicturePlaces] = {}  # by slot, of sequences with pictures that have places or spans

    def __len__(self) -> int:
        return len(self._slots)

    def slot(self, seq: int) -> int:
        """The slot of a started sequence. ValueError for any other."""
        try:
            return self._slots[seq]
        except KeyError:
            raise ValueError(f"sequence {seq} was not started here or has ended") from None

    def find(self, seq: int) -> int | None:
        """The slot of a sequence; None if it was not started here or has ended."""
        return self._slots.get(seq)

    def start(self, start: StartSequence) -> None:
        """Take a sequence in. ValueError if the handle is in use or the tokens make no sense."""
        if start.seq in self._slots:
            raise ValueError(f"sequence {start.seq} was started twice")
        if not 1 <= start.num_prompt <= len(start.token_ids):
            raise ValueError(
                f"sequence {start.seq} has {format_count(start.num_prompt, 'prompt token')} among "
                f"{format_count(len(start.token_ids), 'token')}"
            )
        known = np.array(start.token_ids, np.int32)
        if not self._free:
            self._grow_slots()
        slot = self._free.pop()
        self._slots[start.seq] = slot
        self.known[slot] = known
        self.length[slot] = len(known)
        self.last_token[slot] = known[-1]
        self.num_prompt[slot] = start.num_prompt
        self.num_blocks[slot] = 0
        self.state_slot[slot] = start.state_slot
        self.second_from[slot] = start.second_from
        self.adapter[slot] = start.adapter + 1
        if start.grids or start.spans:
            self.pictures[slot] = PicturePlaces.of(start)
        self._set_sampling(slot, start.params, start.surprise_limit)

    def end(self, seq: int) -> None:
        """Forget a sequence. One that is not known is ignored: the step that was to start it may have been lost."""
        slot = self._slots.pop(seq, None)
        if slot is None:
            return
        self.num_biased -= self._is_biased(slot)
        self.num_counted -= self.seen[slot] is not None
        self.num_steered -= bool(self.mirostat[slot])
        self.known[slot], self.bias[slot], self.stops[slot], self.seen[slot] = _NOTHING, None, None, None
        self.following[slot], self.mirostat[slot] = (), False
        self.wanted_tokens.pop(slot, None)
        self._drafting.pop(slot, None)
        self.pictures.pop(slot, None)
        self._free.append(slot)

    def add_blocks(self, slot: int, new: list[int]) -> None:
        """Append to the block table of a slot."""
        first = int(self.num_blocks[slot])
        last = first + len(new)
        if last > self.blocks.shape[1]:
            wider = np.zeros((self.blocks.shape[0], max(last, 2 * self.blocks.shape[1])), np.int32)
            wider[:, : self.blocks.shape[1]] = self.blocks
            self.blocks = wider
        self.blocks[slot, first:last] = new
        self.num_blocks[slot] = last

    def begin_drafts(self, items: Sequence[StepItem]) -> None:
        """Remember which of these items hold drafted tokens, until it is known which count."""
        self._drafting |= {self.slot(item.seq): item for item in items if item.drafted}

    def cut_back(self, slots: Iterable[int] | None = None) -> None:
        """Forget what was computed behind the last token of sequences whose accepted tokens were appended; None: of all
        that had drafted ones.
        """
        if not self._drafting:
            return
        for slot in tuple(self._drafting) if slots is None else slots:
            if (item := self._drafting.pop(slot, None)) is None:
                continue
            computed = int(self.length[slot]) - 1
            self.num_blocks[slot] = min(self.num_blocks[slot], -(-computed // self.block_size))
            if self.has_state and computed < item.start + item.count:
                self.state_slot[slot] = next(to for to, at in item.state_copies if at == computed - 1)

    def append(self, slots: SlotArray, tokens: IntArray) -> None:
        """Add the token drawn for each of `slots`. For who got none any token will do: the engine is about
        to end it.
        """
        tokens = np.maximum(tokens, 0)
        self.last_token[slots] = tokens
        self.length[slots] += 1
        if self.num_biased:
            for slot, token in zip(slots.tolist(), tokens.tolist(), strict=True):
                for following in self.following[slot]:
                    following.add(token)
        if self.num_counted:
            for slot, token in zip(slots.tolist(), tokens.tolist(), strict=True):
                counts = self.seen[slot]
                if counts is not None:
                    counts.add(token)

    def extend(self, accepted: Mapping[int, Sequence[int]]) -> None:
        """Add tokens to several slots, each as many as it got."""
        for index in range(max(map(len, accepted.values()), default=0)):
            known = [(slot, tokens[index]) for slot, tokens in accepted.items() if len(tokens) > index]
            slots, tokens = zip(*known, strict=True)
            self.append(np.array(slots, np.intp), np.array(tokens, np.int32))

    def steer(self, slots: SlotArray, surprises: FloatArray) -> None:
        """Move the bounds of slots under Mirostat by the surprise of what they drew, in bits."""
        limits = self.settings["max_surprise"]
        moved = limits[slots] - self.mirostat_eta[slots] * (surprises - self.mirostat_tau[slots])
        limits[slots] = np.clip(moved, _LEAST_LIMIT, _LARGEST_LIMIT)

    def bias_of(self, slot: int) -> Bias:
        """Return what is added to a slot's logits for its next draw; -inf forbids a token."""
        parts = [bias] if (bias := self.bias[slot]) is not None else []
        if (
            (stops := self.stops[slot]) is not None
            and self.length[slot] < self.min_length[slot]
            and slot not in self.ending
        ):
            parts.append(stops)
        parts += [following.penalties() for following in self.following[slot]]
        if not parts:
            return _NOTHING, _NO_VALUES
        if len(parts) == 1:
            return parts[0]
        return np.concatenate([tokens for tokens, _ in parts]), np.concatenate([values for _, values in parts])

    def _is_biased(self, slot: int) -> bool:
        return self.bias[slot] is not None or self.stops[slot] is not None or bool(self.following[slot])

    def _set_sampling(self, slot: int, params: SamplingParams, limit: float | None) -> None:
        """`limit`: what the bound on surprises has come to under Mirostat; None: the sequence begins."""
        params = params.with_defaults({})  # who knows the model's own has put them in
        for name, values in self.settings.items():
            values[slot] = getattr(params, name)
        self.seed[slot] = (params.seed or 0) & _MASK64
        self.logprobs[slot] = -1 if params.logprobs is None else params.logprobs
        self.prompt_logprobs[slot] = -1 if params.prompt_logprobs is None else params.prompt_logprobs
        if params.logprobs is not None and params.logprob_token_ids:
            self.wanted_tokens[slot] = np.array(params.logprob_token_ids, np.int32)
        if params.logit_bias:
            tokens = np.array(list(params.logit_bias), np.int32)
            self.bias[slot] = (tokens, np.array(list(params.logit_bias.values()), np.float32))
        if (
            stops := set(params.stop_token_ids)
            | (set() if params.ignore_eos and params.grammar is None else set(self._eos))
            if params.min_tokens
            else None
        ):
            self.stops[slot] = (np.array(sorted(stops), np.int32), np.full(len(stops), -np.inf, np.float32))
            self.min_length[slot] = min(int(self.num_prompt[slot]) + params.min_tokens, 2**31 - 1)
        self.following[slot] = self._following(slot, params)
        self.num_biased += self._is_biased(slot)
        if params.mirostat:
            self.mirostat[slot] = True
            self.num_steered += 1
            self.mirostat_tau[slot], self.mirostat_eta[slot] = params.mirostat_tau, params.mirostat_eta
            self.settings["max_surprise"][slot] = _FIRST_LIMIT * params.mirostat_tau if limit is None else limit
        if params.repetition_penalty != 1 or params.frequency_penalty or params.presence_penalty:
            self.seen[slot] = TokenCounts(self.known[slot], int(self.num_prompt[slot]))
            self.num_counted += 1

    def _following(self, slot: int, params: SamplingParams) -> tuple[RepetitionPenalty | ForbiddenTexts, ...]:
        found: list[RepetitionPenalty | ForbiddenTexts] = []
        if params.dry_multiplier:
            found.append(RepetitionPenalty(params, self.known[slot]))
        if params.forbidden:
            found.append(ForbiddenTexts(params.forbidden, self.known[slot][self.num_prompt[slot] :].tolist()))
        return tuple(found)

    def _grow_slots(self) -> None:
        old = len(self.length)
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray):
                setattr(self, name, _grown(value, 2 * old))
        self.settings = {name: _grown(values, 2 * old) for name, values in self.settings.items()}
        self.known += [_NOTHING] * old
        self.bias += [None] * old
        self.stops += [None] * old
        self.seen += [None] * old
        self.following += [()] * old
        self._free = list(range(2 * old - 1, old - 1, -1))


def _grown(array: npt.NDArray[Scalar], size: int) -> npt.NDArray[Scalar]:
    """`array` with `size` entries along the first axis, the new ones zero."""
    larger = np.zeros((size, *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger
