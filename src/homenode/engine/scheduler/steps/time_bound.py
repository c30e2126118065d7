"""The bound of the time that a step may take, so that nobody waits for somebody else's long prompt. Pure.

While somebody's answer goes on a step takes at most `--step-time`, or twice what its decodes take alone where that is
more, so that prompts always get on. Prompts alone take twice `--step-time`, or twice what a step takes without any
prompt, steps that were planned ahead included: for so long a newcomer waits at most. Where reading the weights takes
much of that, as on a machine that others use too, one step has all of it instead of two, which read the weights twice.
Prompts that nobody waits for, as those of batch files, have a sixth of `--step-time`, steps that were planned ahead
included, so that whoever comes meanwhile hardly notices them. Prompts of a key that had more than another key, which
asked for something of late, end a step after a sixth of `--step-time`: so the other's next request waits for the step
that is computed and the one that was planned ahead, and both are short.
"""

from __future__ import annotations

import math
from typing import Final

from homenode.engine.request import Urgency
from homenode.engine.scheduler.steps.step_costs import StepCosts
from homenode.engine.scheduler.steps.step_load import StepLoad

FIRST_PIECE: Final = 64  # tokens of a prompt in a step, while nothing is known of what they cost
ALIGNMENT: Final = 16  # positions at a multiple of which a piece ends: a tile of keys, and rows that kernels like
_MOST_TILES: Final = 8  # of a product's rows, for which a step is cut to whole ones...
_WHOLE_SHARE: Final = 3 / 4  # ...that have at least so much of the tokens for which there is time
_SHORT_SHARE: Final = 1 / 6  # of `--step-time`, for prompts that others are hardly to notice...
_BACKGROUND_DECODES: Final = 3.0  # ...and at least so many times what their decodes take, where nobody waits for them
_YIELDING_DECODES: Final = 1.5  # times what their decodes take, at least, for prompts of keys that had more than others
LEAST_PIECE: Final = 4  # tokens of a step's first prompt, however long they take
_LEAST_ROOM = 0.25  # of a bound: steps planned ahead that leave less of it are waited for...
_LEAST_READINGS = 4.0  # ...and those that leave less than so many times what a step takes without any prompt


class TimeBound:
    """The bound of the step that is being planned. `keep` leaves a share of what prompts may have to one of them."""

    def __init__(
        self, costs: StepCosts, limit: float, *, whole: bool, yielding: float = math.inf, tile_tokens: int = 1
    ) -> None:
        """`limit`: seconds of the whole step. `whole`: prompts are not cut. `yielding`: seconds of the step within
        which prompts of keys are that had more than others. `tile_tokens`: see `WorkerReport`.
        """
        self._costs, self._limit, self._whole, self._yielding = costs, limit, whole, yielding
        self._tile_tokens = tile_tokens
        self._kept = 0.0

    def left(self, decodes: StepLoad, prompts: StepLoad) -> float:
        """Return the seconds that are left beside what the step has."""
        return max(0.0, self._limit - self._costs.seconds(decodes, prompts))

    def keep(self, share: float, decodes: StepLoad, prompts: StepLoad) -> None:
        """Leave this share of what is left beside these; 0: nothing is kept any more."""
        self._kept = share * self.left(decodes, prompts) if share else 0.0

    def fitting(
        self, decodes: StepLoad, prompts: StepLoad, start: int, count: int, *, scored: bool, yields: bool = False
    ) -> int:
        """Return how many of `count` positions of a prompt from `start` on fit beside what the step has already; some
        of the first prompt always do. `scored`: the logits of each are wanted. `yields`: the prompt's key had more
        than another.
        """
        limit = self._limit - self._kept
        if yields:
            limit = min(limit, self._yielding)
        first = not prompts.tokens
        if not self._costs.known:
            fits = FIRST_PIECE - prompts.tokens
        else:
            fits = self._costs.fitting(decodes, prompts, start, count, limit, scored=scored)
        if fits >= count:
            return count
        if self._whole:
            return count if first else 0
        if first and (tiled := self._whole_tiles(decodes.tokens, fits)):
            return tiled
        aligned = (start + fits) // ALIGNMENT * ALIGNMENT - start
        if fits >= ALIGNMENT and (2 * aligned >= fits or not first):
            return aligned
        return min(count, max(LEAST_PIECE, self._nearest(decodes, start, fits, limit, scored=scored))) if first else 0

    def _whole_tiles(self, rows: int, fits: int) -> int:
        """Return how many tokens of a step's first prompt, at most `fits`, make whole tiles with so many rows that
        decode: a few tokens more would cost as much as a tile. 0: they would leave too many out, over which the step
        spreads what it takes in any case, or of so many tokens a tile is a small part.
        """
        tile = self._tile_tokens
        tokens = (rows + fits) // tile * tile - rows
        few = tile > 1 and LEAST_PIECE <= fits < _MOST_TILES * tile
        return tokens if few and tokens >= _WHOLE_SHARE * fits else 0

    def _nearest(self, decodes: StepLoad, start: int, fits: int, limit: float, *, scored: bool) -> int:
        """`fits`, or one token more where that comes nearer to the limit: of so few tokens one is a large part."""
        costs = self._costs
        rows = (fits, fits + 1) if scored else (1, 1)
        loads = (StepLoad.of_sequence(start, n, r) for n, r in zip((fits, fits + 1), rows, strict=True))
        less, more = (costs.seconds(decodes, load) for load in loads)
        return fits + 1 if more - limit < limit - less else fits


def yielding_limit(alone_s: float, step_s: float) -> float:
    """Seconds of a step within which prompts are whose keys had more than others. For the arguments see
    `time_limit`.
    """
    return max(_SHORT_SHARE * step_s, _YIELDING_DECODES * alone_s)


def time_limit(
    alone_s: float,
    step_s: float,
    *,
    answering: bool,
    in_flight_s: float,
    stages: int,
    urgency: Urgency = Urgency.USUAL,
) -> float:
    """Seconds that a step with prompts may take; 0: it is to be planned when those in flight are done.

    `alone_s`: what its decodes take by themselves, and where there are none what reading the weights takes. `step_s`:
    `--step-time`. `answering`: somebody's answer goes on. `in_flight_s`: what the steps in flight are expected to take.
    `stages`: of the pipeline, which have a step each. `urgency`: that of the prompts.
    """
    if urgency is Urgency.BACKGROUND:
        return max(0.0, max(_SHORT_SHARE * step_s, _BACKGROUND_DECODES * alone_s) - in_flight_s)
    if answering or stages > 1:
        return max(step_s, 2.0 * alone_s)
    most = 2.0 * max(step_s, alone_s)
    left = most - in_flight_s
    return left if in_flight_s <= 0.0 or left >= max(_LEAST_ROOM * most, _LEAST_READINGS * alone_s) else 0.0
