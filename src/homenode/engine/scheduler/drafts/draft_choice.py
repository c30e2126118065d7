"""How many tokens are drafted for each sequence of a step, and by whom. Pure.

A drafted token costs a row and brings a token where all of them up to it are accepted. With n sequences that decode, q
the chance of each drafted token, and T(r) the seconds of a step of r rows, the tokens drafted are those of largest q
for which (n + sum of q) / T(n + their number) is largest; T is measured (`row_costs`), q as well (`acceptance`). As a
step grows rows cost as much as sequences, and drafts end by themselves. Planning a step when the tokens of the one
before it are known takes time in which nothing is computed: it is measured and counts, too.

A method that was named always drafts something where it has something; `auto` does where it pays.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as List
from typing import Final

from homenode.engine.kv.sequence import Sequence
from homenode.engine.scheduler.drafts.drafter import Drafter
from homenode.engine.scheduler.steps.row_costs import RowCosts
from homenode.engine.scheduler.steps.step_costs import StepCosts
from homenode.engine.scheduler.steps.step_load import MeasuredStep, StepLoad
from homenode.engine.speculation.acceptance import Acceptance, Source
from homenode.engine.speculation.config import Speculation
from homenode.engine.speculation.past_answers import PastAnswers
from homenode.engine.speculation.sequence_drafts import SequenceDrafts

_MARGIN: Final = 1.03  # times as fast, below which nothing is drafted
_LEAST_CHANCE: Final = 0.02
_GAP_SHARE: Final = 0.1  # of a measured gap, what counts of a new one
_MAY_PAY_STEPS: Final = 8  # for which it holds that drafts may pay, or may not
_MOST_INDEXED: Final = 1 << 20  # tokens of all sequences together that are indexed


class DraftChoice(Drafter):
    """Drafts from prompts, answers and workers; see `Drafter` for what is asked."""

    def __init__(self, speculation: Speculation, costs: StepCosts, by_workers: int = 0) -> None:
        """`by_workers`: tokens that models in the workers draft at most; 0: there are none."""
        self._speculation, self._by_workers = speculation, by_workers
        self._bound = 0  # sequences with a grammar
        self._named = speculation.method != "auto"
        self.acceptance, self.rows = Acceptance(), RowCosts(costs)
        self._answers = PastAnswers()
        self._indexed = 0
        # Seconds between a result and the step after it: by whether that was planned ahead or waited.
        self._gaps = {False: 0.0, True: 0.0}
        self._came: float | None = None  # when the last result did
        self._pays: dict[int, bool] = {}  # by number of sequences whether drafts could pay, as it was looked at...
        self._looked_at = 0  # ...in so many steps
        self._depth_s = 0.0  # what a model takes to draft one token more for everybody

    @property
    def max_drafted(self) -> int:
        """Return how many tokens are drafted for one sequence in one step, at most."""
        return self._speculation.max_drafted

    @property
    def asks_workers(self) -> bool:
        """Return whether workers may be asked for drafts: of models that draft, and of grammars."""
        return self._by_workers > 0 or self._bound > 0

    @property
    def asks_models(self) -> bool:
        """Return whether a model that drafts, or heads of the model, are in the workers."""
        return self._by_workers > 0

    # Asked while a step is planned

    def awaits(self, running: List[Sequence]) -> bool:
        """Tell whether drafts behind the tokens that steps in flight draw are worth waiting for these."""
        if not running or not self._may_pay(len(running)):
            return False
        found, first, asked = [], [], []
        for sequence in running:
            if (drafts := self._drafts_of(sequence)) is not None and not self._rests(sequence, drafts):
                if sequence.expected and (chances := drafts.expected_chances(self._speculation.max_drafted)):
                    found.append(chances)
                    asked.append(drafts)
                    continue
                drafted = drafts.drafted(1 + self._speculation.max_drafted)
                if len(drafted.tokens) > 1:
                    found.append(drafts.chances(drafted)[1:])
                    asked.append(drafts)
                    first.append(drafted.places[0])
        if not found:
            return False
        if self._named:
            return True
        counts = self._best(len(running), found, len(found) * self._speculation.max_drafted, self._waits_s)
        for drafts, count in zip(asked, counts, strict=False):
            if count:
                drafts.found_worth()
        if counts:
            return True
        for place in first:
            self.acceptance.fade(place)
        return False

    def drafts(self, decoding: List[Sequence], load: StepLoad, room: int) -> Mapping[int, tuple[int, ...]]:
        """Drafted tokens of those that decode, by index, as many as there is `room` for."""
        if room <= 0 or not self._may_pay(len(decoding)):
            return {}
        indices, found, chances = [], [], []
        for index, sequence in enumerate(decoding):
            if (drafts := self._drafts_of(sequence)) is None or self._rests(sequence, drafts):
                continue
            longest = min(self._speculation.max_drafted, sequence.last - len(sequence.tokens) - 1)
            if sequence.expected:
                drafts.told(len(sequence.drafted))
            drafted = drafts.drafted(longest, sequence.drafted, sequence.forced_drafts)
            sequence.drafted = ()
            if drafted.tokens:
                indices.append(index)
                found.append(drafted)
                chances.append(drafts.chances(drafted))
        if not found:
            return {}
        counts = self._best(len(decoding), chances, room)
        if self._named:
            counts = _at_least_some(counts, chances, room)
        chosen = {}
        for index, drafted, count in zip(indices, found, counts or [0] * len(found), strict=True):
            if count:
                drafts = decoding[index].drafts
                assert drafts is not None
                drafts.places = drafted.places[:count]
                drafts.found_worth()
                chosen[index] = tuple(drafted.tokens[:count])
            else:
                self.acceptance.fade(drafted.places[0])
        return chosen

    def expected(self, sequence: Sequence, sequences: int) -> int:
        """Return how many tokens a worker is to draft behind the one that this sequence draws, one of so many that
        decode.
        """
        if not (self._by_workers or sequence.params.grammar) or (drafts := self._drafts_of(sequence)) is None:
            return 0
        if not self._by_workers:
            return self._speculation.max_drafted if drafts.is_worth_asking() else 0
        return max(self._depth(drafts, sequences), int(self._named))

    def prepare(self, sequence: Sequence, count: int) -> None:
        """So much of a prompt is computed: it is looked at meanwhile."""
        if (drafts := self._drafts_of(sequence)) is not None:
            drafts.read(count)

    # Told

    def learn(self, sequence: Sequence, drafted: tuple[int, ...], accepted: int) -> None:
        """Take in that the first `accepted` of these tokens were right."""
        if (drafts := sequence.drafts) is not None:
            drafts.learn(len(drafted), accepted)

    def measured(self, step: MeasuredStep) -> None:
        """Take in what a step took, and how long it was waited for."""
        self._looked_at += 1
        if self._looked_at >= _MAY_PAY_STEPS:
            self._looked_at = 0
            self._pays.clear()
        alone = step.seconds > 0.0 and not step.prompts.tokens
        if self._came is not None and alone:
            gap = min(max(0.0, step.came - self._came - step.seconds - step.draft_seconds), 0.5 * step.seconds)
            self._gaps[step.awaited] += _GAP_SHARE * (gap - self._gaps[step.awaited])
        self._came = step.came
        if step.depth and step.draft_seconds > 0.0 and not step.prompts.tokens:
            of_one = step.draft_seconds / step.depth
            known = self._depth_s or of_one
            self._depth_s = known + _GAP_SHARE * (min(of_one, 2.0 * known) - known)
        if step.answers.tokens and alone:
            self.rows.learn(step.answers, step.seconds)

    def ended(self, sequence: Sequence) -> None:
        """A request has ended."""
        drafts, sequence.drafts = sequence.drafts, None
        if drafts is not None:
            self._indexed -= drafts.counted
            self._bound -= sequence.params.grammar is not None
        if sequence.request.speculative and self._speculation.looks_up and sequence.num_outputs > 2:
            self._answers.add(sequence.request.kv_scope, sequence.tokens, sequence.num_prompt)

    # Inside

    @property
    def _waits_s(self) -> float:
        """Seconds that are lost where a step waits for the tokens of the one before it."""
        return max(0.0, self._gaps[True] - self._gaps[False])

    def _drafts_of(self, sequence: Sequence) -> SequenceDrafts | None:
        if sequence.drafts is None:
            if not sequence.request.speculative or not sequence.samples:
                return None
            lookup_min = self._speculation.lookup_min if self._speculation.looks_up else 0
            answers = self._answers.of(sequence.request.kv_scope) if lookup_min else None
            small = self._indexed > _MOST_INDEXED
            source: Source = "model" if self._by_workers else "grammar"
            sequence.drafts = SequenceDrafts(sequence.tokens, self.acceptance, lookup_min, answers, source, small=small)
            sequence.drafts.counted = sequence.drafts.capacity
            self._indexed += sequence.drafts.counted
            self._bound += sequence.params.grammar is not None
        return sequence.drafts

    def _rests(self, sequence: Sequence, drafts: SequenceDrafts) -> bool:
        """Return whether this one is not looked at now. Those for which workers draft are, and all where a method was
        named.
        """
        return not self._named and not sequence.expected and drafts.rests()

    def _may_pay(self, sequences: int) -> bool:
        """Return whether drafts could pay if all of them were right: looked at every few steps."""
        if self._named or not self.rows.known:
            return True
        if (pays := self._pays.get(sequences)) is None:
            pays = self._pays[sequences] = self._could_pay(sequences)
        return pays

    def _could_pay(self, sequences: int) -> bool:
        alone = self.rows.seconds(sequences)
        most = sequences * (1 + self._speculation.max_drafted)
        tried = {sequences + 1, sequences + self._speculation.max_drafted, 2 * sequences, most}
        return any(rows * alone >= _MARGIN * sequences * self.rows.seconds(rows) for rows in tried if rows > sequences)

    def _depth(self, drafts: SequenceDrafts, sequences: int) -> int:
        """Return how many tokens a model is to draft for one of so many sequences, if all have as many: what drafting
        and verifying them takes counts for all of them.
        """
        alone = self.rows.seconds(sequences)
        if alone <= 0.0:
            return self._speculation.max_drafted
        best, depth, tokens = _MARGIN / alone, 0, 1.0
        for count, q in enumerate(drafts.model_chances(self._speculation.max_drafted), 1):
            tokens += q
            seconds = self.rows.seconds(sequences * (1 + count)) + count * self._depth_s
            if (rate := tokens / max(seconds, alone)) > best:
                best, depth = rate, count
        if not depth:
            self.acceptance.fade(("model", 0))
            self.rows.fade(2 * sequences)
        return depth

    def _best(self, sequences: int, chances: List[List[float]], room: int, gap: float = 0.0) -> list[int]:
        """Return how many to draft for each of those with these chances; an empty list where nothing pays."""
        flat = sorted(((q, i) for i, own in enumerate(chances) for q in own if q > _LEAST_CHANCE), reverse=True)
        seconds = self.rows.seconds
        alone = seconds(sequences)
        if alone <= 0.0:
            taken = flat[:room]
        else:
            best, number, tokens = _MARGIN * sequences / alone, 0, float(sequences)
            left = min(room, len(flat))
            for count, (q, _) in enumerate(flat[:room], 1):
                tokens += q
                left -= 1
                took = max(seconds(sequences + count) + gap, alone)
                if (rate := tokens / took) > best:
                    best, number = rate, count
                elif tokens + left * q <= best * took:
                    break  # the others are no likelier, and take no less
            taken = flat[:number]
            if not number and flat:
                self.rows.fade(sequences + 1)
        counts = [0] * len(chances)
        for _, index in taken:
            counts[index] += 1
        return counts if taken else []


def _at_least_some(counts: list[int], chances: List[List[float]], room: int) -> list[int]:
    """Return the same with something for everybody, as far as there is room."""
    counts = counts or [0] * len(chances)
    left = room - sum(counts)
    for index, own in enumerate(chances):
        least = min(len(own), 2 if own[0] > 0.3 else 1)
        if (lacking := min(left, least - counts[index])) > 0:
            counts[index] += lacking
            left -= lacking
    return counts
