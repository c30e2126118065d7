"""The part of the work that goes into one step, so that all stages of a pipeline have something to do.

With several stages the running sequences are spread over micro-batches, one a stage unless told otherwise: while the
last stage draws the tokens of one, the stages before it compute the others. More micro-batches than stages hide the way
of a result back to the first stage, but read the weights more often for the same tokens. Only prompts, whose parts wait
for no token, have one step more under way at no price.
"""

from __future__ import annotations

from homenode.errors import InternalError
from homenode.units import format_count

_LEAST_PREFILL = 64  # tokens; a step of fewer takes nearly as long, since the weights are read all the same


class MicroBatching:
    """The amount that one step may hold and how many may be in flight. With one stage: all there is, in steps as far
    ahead as `lookahead`.
    """

    def __init__(self, stages: int, lookahead: int, micro_batches: int = 0) -> None:
        """`micro_batches`: 0: as many as stages; 1: lock step, one step at a time with everybody in it, which is there
        to be compared with. InternalError for numbers that cannot be.
        """
        if not 0 <= lookahead <= 1:
            raise InternalError(f"lookahead is {lookahead}; it must be 0 or 1")
        if stages < 1 or (micro_batches != 1 and 0 != micro_batches < stages):
            raise InternalError(
                f"{format_count(stages, 'stage')} and {micro_batches} micro-batches; at least one stage and a batch "
                "for each are needed"
            )
        self.stages = stages
        self._micro_batches = (micro_batches or stages) if stages > 1 else 1
        self._lookahead = lookahead

    @property
    def waits_for_tokens(self) -> bool:
        """A sequence is in no other step while its next token is being drawn: the first stage has to be told
        it first.
        """
        return self.stages > 1

    def may_send(self, in_flight: int, draws: bool) -> bool:
        """Return whether one more step may go. `draws`: a step in flight brings back tokens, with which its
        sequences go on.
        """
        if self.stages == 1:
            return in_flight <= self._lookahead
        return in_flight < self._micro_batches + (not draws and self._micro_batches > 1)

    def share(self, decoding: int) -> int:
        """Return how many of the decoding sequences, those in flight included, go into one step: then those in flight
        and this step are equally large.
        """
        return -(-decoding // self._micro_batches)

    def prefill(self, waiting: int, in_flight: int, limit: int) -> int:
        """Prompt tokens of one step, when `waiting` are to be computed and `in_flight` are on their way: a stage's
        share, `limit` at most.
        """
        if self.stages == 1:
            return limit
        return min(limit, max(_LEAST_PREFILL, -(-(waiting + in_flight) // self._micro_batches)))
