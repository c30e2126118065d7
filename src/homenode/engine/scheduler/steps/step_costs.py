"""The cost of a step in seconds, learned from the steps that were computed. Pure.

    seconds = base + a * rows that decode + b * tokens of prompts + c * their rows of logits
            + d * positions that decoding rows read + e * positions that tokens of prompts look at
            + f * share of the experts that are read

The share is the one that steps tell, as their tokens chose. Of a step that is to come it is what follows if a token
more chooses as anew as those of late did: not at all where all choose the same, by itself where experts are uniform.
`base` is what reading the weights takes. The coefficients fit, by their relative errors, what steps that only decode,
steps of prompts alone and mixed ones took of late; each kind fades with its own steps only, so that an hour of decoding
does not forget what a prompt costs. A step that took far longer than expected counts for little more than what was
expected, so that single ones on a busy machine change little, and for more where what was expected of its kind was off
as far of late. When most of the last steps are off by the same factor, cores have come or gone, and all coefficients
are multiplied by it at once. What was known before is kept: it counts again as soon as it tells the last steps, or
kinds of which no step comes meanwhile would stay as dear as they were made. `pace` follows sooner, for who plans.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import chain
from operator import mul
from typing import Final, Literal

from homenode.engine.scheduler.steps.step_load import NO_LOAD, StepLoad

StepKind = Literal["decode", "prefill", "mixed"]
STEP_KINDS: Final[tuple[StepKind, ...]] = ("decode", "prefill", "mixed")
# In tokens of a prompt: what is expected of a machine before its steps have told more.
_EXPECTED: Final = (6.0, 1.5, 1.0, 0.4, 1 / 4000, 1 / 4000, 6.0)
_BASE, _DECODED, _PROMPT, _ROWS, _READ, _ATTENDED, _EXPERTS = range(7)
_BELIEF = 0.05  # how many steps the expectation above counts for...
# ...and of a coefficient that is more than so many times as expected, less by the square of that: for an accelerator
# reading its weights is a thousand rows, not four.
_BELIEVED = 2.0
_MEMORY = 48  # steps of a kind, after which one counts for little
_SURPRISE = 1.15  # the factor of an expected time beyond which more is no further news...
_EARLY_SURPRISE = 1.5  # ...and of the first steps
_RECENT = 9  # steps of which the median shows that cores came or went...
_CHANGE = 1.3  # ...where it is off by so much
_SETTLED = 0.15  # ...and such of which what was known is worth keeping
_RETURNED = 0.1  # median error of what was known before a change, of the last steps, below which it counts again
_PACE = 3  # steps of which the median is the pace
_FIRST = 12  # steps
_EVERY = {True: 24, False: 4}  # steps that only decode, as expected or not, of which one is looked at more closely
_AS_EXPECTED = 0.08  # relative error
_TRUSTED = 0.25  # relative error of times that were right so far
_FADE = 1 / 64  # of the error that is shown
_ROUNDS = 10  # over all coefficients, each of which is fitted beside the others as they are...
_MOVED = 0.01  # ...until none of them moves by more than this, in multiples of what was expected of it
_CHOICES = 1 / 8  # of what the tokens of a step chose, as far as not all was read, what counts
_MOST_READ = 0.98  # share of the experts beyond which nothing follows for fewer tokens


def step_kind(decodes: int, prompts: int) -> StepKind:
    """Return the kind of a step with so many rows that decode, and so many tokens of prompts."""
    return "mixed" if decodes and prompts else "decode" if decodes else "prefill"


class StepCosts:
    """The seconds of steps of one engine. Where a pipeline computes them, of its slowest stage. `revision`: grows with
    whatever changes what it says.
    """

    def __init__(self, expert_share: float = 0.0) -> None:
        """`expert_share`: of a layer's experts those that one token takes; 0: there are none."""
        self._others = 1.0 - expert_share
        self._anew = 1.0  # of a token beside others, the part of its experts that it chooses as if it were alone
        self.experts = 0.0  # share that the last step read
        self._used = range(7 if expert_share else 6)
        self._costs = [0.0] * 7
        self._sums = {kind: _Sums() for kind in STEP_KINDS}
        self._ratios: deque[float] = deque(maxlen=_RECENT)
        self._before: _Earlier | None = None  # what was known before the last change
        self._relative = [1.0] * 7  # coefficients, as multiples of what was expected of this machine
        self._seen = self._skipped = self.revision = 0
        self.errors: dict[StepKind, float] = {}  # of late, relative, by kind

    @property
    def known(self) -> bool:
        """Return whether any step has come back."""
        return self._seen > 0

    @property
    def of_row(self) -> float:
        """Return the seconds of one row more that decodes, without what it reads."""
        return self._costs[_DECODED]

    @property
    def of_position(self) -> float:
        """Return the seconds of one position more that is read."""
        return self._costs[_READ]

    @property
    def pace(self) -> float:
        """Return the factor by which the last steps took longer than expected, 1 where they did not."""
        last = sorted(list(self._ratios)[-_PACE:])
        return max(1.0, last[len(last) // 2]) if len(last) == _PACE else 1.0

    def seconds(self, decodes: StepLoad, prompts: StepLoad = NO_LOAD) -> float:
        """Return the seconds of a step in which these rows decode and these parts of prompts are computed; 0 while
        nothing is known. What is to be verified of drafts counts as rows that decode.
        """
        costs = self._costs
        found = costs[_BASE] + costs[_DECODED] * decodes.tokens + costs[_READ] * decodes.read
        if prompts.tokens:
            found += costs[_PROMPT] * prompts.tokens + costs[_ROWS] * prompts.rows
            found += costs[_ATTENDED] * prompts.attended
        if self._others < 1.0:
            found += costs[_EXPERTS] * self.expert_share(decodes.tokens + prompts.tokens)
        return found

    def expert_share(self, tokens: int) -> float:
        """Return the share of the experts that so many tokens should read."""
        return 1.0 - self._others ** (1.0 + self._anew * (tokens - 1)) if tokens else 0.0

    @property
    def of_experts(self) -> float:
        """Return the seconds of reading all experts."""
        return self._costs[_EXPERTS]

    def fitting(
        self, decodes: StepLoad, prompts: StepLoad, start: int, most: int, limit: float, *, scored: bool
    ) -> int:
        """Return how many positions of a prompt from `start` on, at most `most`, a step has room for beside these, if
        it is to take `limit` seconds. `scored`: the logits of each are wanted.
        """
        costs = self._costs
        left = limit - self.seconds(decodes, prompts) - costs[_ROWS]  # its last one may be the prompt's
        if left <= 0.0:
            return 0
        each = costs[_PROMPT] + costs[_ATTENDED] * (start + 0.5) + (costs[_ROWS] if scored else 0.0)
        tokens = decodes.tokens + prompts.tokens
        if self._others < 1.0 and costs[_EXPERTS]:
            # Every further expert is dearer at first than later; what all of them take at most is in any case enough.
            left -= costs[_EXPERTS] * (self.expert_share(tokens + most) - self.expert_share(tokens))
            if left <= 0.0:
                return 0
        half = costs[_ATTENDED] / 2
        wanted = each * most + half * most * most
        if wanted <= left:
            return most
        root = math.sqrt(each * each + 4.0 * half * left)
        return min(most, int(2.0 * left / (each + root)))

    def rows_fitting(self, decodes: StepLoad, prompts: int, most: int, seconds: float) -> int:
        """Return how many guesses, at most `most`, can be verified in so many seconds more beside what decodes and so
        many tokens of prompts.
        """
        costs, tokens = self._costs, decodes.tokens + prompts
        # As above: what all of them read of the experts is more than a few do, for each.
        left = seconds - costs[_EXPERTS] * (self.expert_share(tokens + most) - self.expert_share(tokens))
        each = costs[_DECODED] + costs[_READ]
        return most if each * most <= left else max(0, int(left / each))

    def learn(self, decodes: StepLoad, prompts: StepLoad, seconds: float, experts: float = 0.0) -> None:
        """Take in that a step of this load took so long. `experts`: the share of them that it read; 0: what is expected
        of its tokens.
        """
        if seconds <= 0.0:
            return
        tokens = decodes.tokens + prompts.tokens
        self.experts = 0.0
        if self._others < 1.0:
            self.experts = experts or self.expert_share(tokens)
            self._learn_choices(tokens, self.experts)
        expected = self.seconds(decodes, prompts)
        kind = step_kind(decodes.tokens, prompts.tokens)
        if self._seen:
            error = abs(expected - seconds) / seconds
            self.errors[kind] = self.errors.get(kind, error) + _FADE * (error - self.errors.get(kind, error))
            if self._before is not None:
                self._take_back_change(self._before, self._features(decodes, prompts, self.experts), seconds)
                expected = self.seconds(decodes, prompts)
            seconds = self._without_surprise(seconds, expected, self.errors[kind])
            if kind == "decode" and self._seen >= _FIRST and self._skipped < _EVERY[error < _AS_EXPECTED]:
                self._skipped += 1
                return
        self._skipped = 0
        self._seen += 1
        self._sums[kind].add(self._features(decodes, prompts, self.experts), seconds)
        self._fit()

    def _without_surprise(self, seconds: float, expected: float, error: float) -> float:
        """Return what counts of a step's time. All coefficients change at once where most steps of late say so, of a
        kind whose `error` was small: what was never right has to be learned.
        """
        ratios = self._ratios
        ratios.append(seconds / expected)
        middle = sorted(ratios)[len(ratios) // 2]
        if len(ratios) == _RECENT and error < _TRUSTED and not 1 / _CHANGE < middle < _CHANGE:
            self._before = None
            if error < _SETTLED:
                self._before = _Earlier(self._costs, self._sums, self._relative.copy())
                self._sums = {kind: sums.copy() for kind, sums in self._sums.items()}
            self._costs = [middle * cost for cost in self._costs]
            self.revision += 1
            for sums in self._sums.values():
                sums.scale(middle)
            ratios.clear()
            expected *= middle
        most = max(1.0 + min(error, 1.0), _SURPRISE if self._seen >= _FIRST else _EARLY_SURPRISE)
        return min(max(seconds, expected / most), expected * most)

    def _take_back_change(self, before: _Earlier, features: list[float], seconds: float) -> None:
        """Take back the last change where what was known before tells what the last steps took."""
        errors = before.errors
        errors.append(abs(seconds / sum(map(mul, before.costs, features)) - 1.0))
        if len(errors) == _RECENT and sorted(errors)[len(errors) // 2] < _RETURNED:
            self._costs, self._sums, self._relative = before.costs, before.sums, before.relative
            self._before = None
            self._ratios.clear()
            self.revision += 1

    def _learn_choices(self, tokens: int, share: float) -> None:
        """Take in how many experts these tokens chose. Where nearly all are, that says little."""
        if tokens < 2 or share >= _MOST_READ or self._others <= 0.0:
            return
        alone = math.log(1.0 - share) / math.log(self._others)  # so many tokens that each choose by themselves
        anew = min(max((alone - 1.0) / (tokens - 1), 0.0), 1.5)
        self._anew += _CHOICES * (1.0 - share) * (anew - self._anew)
        self.revision += 1

    @staticmethod
    def _features(decodes: StepLoad, prompts: StepLoad, experts: float) -> list[float]:
        return [1.0, decodes.tokens, prompts.tokens, prompts.rows, decodes.read, prompts.attended, experts]

    def _fit(self) -> None:
        """The coefficients, none below 0, that come nearest to the relative times of all kinds, and to what is expected
        of a machine as fast as this one.
        """
        kinds = [sums for sums in self._sums.values() if sums.targets[_BASE]]
        used = len(self._used)
        expected, found = _EXPECTED[:used], self._relative
        rows = zip(*(sums.products for sums in kinds), strict=True)
        products = [list(map(sum, zip(*row, strict=True)))[:used] for row in rows][:used]
        targets = list(map(sum, zip(*(sums.targets for sums in kinds), strict=True)))
        weights = [one * other for one in expected for other in expected]
        spread = sum(map(mul, weights, chain.from_iterable(products)))
        token = sum(map(mul, expected, targets)) / spread
        units = [token * each for each in expected]
        own = [products[i][i] * units[i] * units[i] for i in self._used]
        others = [list(map(mul, row, units)) for row in products]
        for i, row in enumerate(others):
            row[i] = 0.0
        for _ in range(_ROUNDS):
            moved = 0.0
            for i, row in enumerate(others):
                before, rest = found[i], targets[i] - sum(map(mul, row, found))
                belief = _BELIEF / max(1.0, before / _BELIEVED) ** 2
                found[i] = max(0.0, (units[i] * rest + belief) / (own[i] + belief))
                moved = max(moved, abs(found[i] - before))
            if moved < _MOVED:
                break
        self._costs = [units[i] * found[i] for i in self._used] + [0.0] * (7 - len(self._used))
        self.revision += 1


class _Earlier:
    """The sums from before a change, and their relative errors for steps since."""

    __slots__ = ("costs", "errors", "relative", "sums")

    def __init__(self, costs: list[float], sums: dict[StepKind, _Sums], relative: list[float]) -> None:
        self.costs, self.sums, self.relative = costs, sums, relative
        self.errors: deque[float] = deque(maxlen=_RECENT)


class _Sums:
    """Sums of the steps of one kind, older ones fading: products of features, divided by the square of the seconds, and
    features, divided by the seconds.
    """

    __slots__ = ("products", "targets")

    def __init__(self) -> None:
        self.products = [[0.0] * 7 for _ in range(7)]
        self.targets = [0.0] * 7

    def add(self, features: list[float], seconds: float) -> None:
        kept = 1.0 - 1.0 / _MEMORY
        for i, feature in enumerate(features):
            of_second = feature / seconds
            self.targets[i] = kept * self.targets[i] + of_second
            row = self.products[i]
            for j, other in enumerate(features):
                row[j] = kept * row[j] + of_second * other / seconds

    def copy(self) -> _Sums:
        """Return sums of their own that have the same values."""
        found = _Sums()
        found.products, found.targets = [row.copy() for row in self.products], self.targets.copy()
        return found

    def scale(self, factor: float) -> None:
        """All steps so far count as if they had taken `factor` times as long."""
        self.targets = [target / factor for target in self.targets]
        self.products = [[product / factor**2 for product in row] for row in self.products]
