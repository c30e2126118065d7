"""An executor whose steps choose experts: its figures say how often, and a file can be kept of it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from homenode.engine.config import EngineConfig
from homenode.engine.executor.base import Executor
from homenode.engine.experts.usage import EXPERT_USES, Table, empty, usage_stats
from homenode.engine.experts.usage_file import add_counts
from homenode.engine.kv.chunks import PageChange
from homenode.engine.step import Step, StepResult, WorkerLimits
from homenode.errors import HomenodeError
from homenode.model.spec import ModelSpec

_log = logging.getLogger(__name__)
_EVERY_S = 60.0
_AT_REST_S = 1.0  # whoever ends a server does not wait for its engine, so what there is has to be in the file soon
_AT_THE_END_S = 3.0  # for others that add to the same file


class CountingExecutor:
    """`Executor` over another one whose statistics have a table under `EXPERT_USES`; has `experts` in its place, see
    `experts.usage.usage_stats`.
    """

    def __init__(
        self, inner: Executor, spec: ModelSpec, file: str | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`file`: where to add counts, now and then and at the end."""
        self.inner, self._spec, self._clock = inner, spec, clock
        self._file = None if file is None else Path(file).expanduser()
        self._seen = self._kept = empty(spec.num_layers, spec)
        self._kept_at = clock()
        self._keeping = threading.Lock()
        self._soon: threading.Timer | None = None
        self._closed = False

    @property
    def serving(self) -> bool:
        """See `Executor.serving`."""
        return self.inner.serving

    @property
    def pending(self) -> int:
        """See `Executor.pending`."""
        return self.inner.pending

    def limits(self) -> WorkerLimits:
        """See `Executor.limits`."""
        return self.inner.limits()

    def on_result(self, callback: Callable[[], None]) -> None:
        """See `Executor.on_result`."""
        self.inner.on_result(callback)

    def change_pages(self, changes: Sequence[PageChange]) -> None:
        """See `Executor.change_pages`."""
        self.inner.change_pages(changes)

    def prepare_grammar(self, grammar: str, ready: Callable[[], None]) -> bool:
        """See `Executor.prepare_grammar`."""
        return self.inner.prepare_grammar(grammar, ready)

    def submit(self, step: Step) -> None:
        """See `Executor.submit`."""
        self.inner.submit(step)

    def result(self, timeout: float | None = None) -> StepResult | None:
        """See `Executor.result`."""
        return self.inner.result(timeout)

    def statistics(self) -> dict[str, Any]:
        """See `Executor.statistics`."""
        found = self.inner.statistics()
        table: Table | None = found.pop(EXPERT_USES, None)
        if table is not None:
            self._seen = table
            found["experts"] = usage_stats(table, self._file is not None)
            if self._clock() - self._kept_at >= _EVERY_S:
                self._keep(0.0)
            elif not self.inner.pending:
                self._keep_soon()
        return found

    def close(self) -> None:
        """See `Executor.close`."""
        self.inner.close()
        if not self._closed:
            self._closed = True
            self.statistics()
            self._keep(_AT_THE_END_S)

    def _keep_soon(self) -> None:
        """Unless that is about to be done: figures of a server at rest come once, and many short requests are not worth
        a file each.
        """
        if self._file is not None and (self._soon is None or not self._soon.is_alive()):
            self._soon = threading.Timer(_AT_REST_S, self._keep, (_AT_THE_END_S,))
            self._soon.daemon = True
            self._soon.start()

    def _keep(self, patience_s: float) -> None:
        """Keep for later: what cannot be added now is added the next time."""
        with self._keeping:
            self._kept_at, seen = self._clock(), self._seen
            more = seen - self._kept
            if self._file is None or not more.any():
                return
            try:
                if add_counts(self._file, more, self._spec, patience_s):
                    self._kept = seen
            except HomenodeError as error:
                _log.warning("%s", error.message)


def count_expert_usage(executor: Executor, config: EngineConfig, spec: ModelSpec) -> Executor:
    """The executor, and with experts what counts how they are used."""
    return CountingExecutor(executor, spec, config.parallel.expert_counts) if spec.moe else executor
