"""Figures that /metrics shows: the engine's counters as it last sent them, and what only the front can time.

Names are the field's, under `homenode:`, labelled with the model's name, and the engine's number where there are
several. One registry belongs to one application.
"""

from __future__ import annotations

import time
from collections import Counter as Counts
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from homenode.engine.messages import EngineState, EngineStats, ReplicaStats
from homenode.server.interfaces.client import EngineClient
from homenode.server.keys.keyring import Keyring
from homenode.server.monitoring.experts import expert_metrics
from homenode.server.monitoring.keys import KeyMetrics
from homenode.server.monitoring.states import state_metrics
from homenode.server.monitoring.steps import step_metrics
from homenode.server.monitoring.transfer import transfer_metrics
from homenode.server.monitoring.waiting import waiting_metrics
from homenode.server.monitoring.workers import worker_metrics
from homenode.start_phases import marked_phases, phases_since, process_began

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_FIRST_TOKEN = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
    640.0,
)
_BETWEEN_TOKENS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    10.0,
    20.0,
    40.0,
    80.0,
)
_WHOLE_REQUEST = (
    0.1,
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
    240.0,
    480.0,
    960.0,
    1920.0,
)

_GAUGES = (
    ("num_requests_running", "Requests the engine is computing.", "num_running"),
    ("num_requests_waiting", "Requests waiting for the engine.", "num_waiting"),
    ("kv_cache_usage_perc", "Share of the KV blocks in use; 1 means 100 percent.", "kv_usage"),
)
_COUNTERS = (
    ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", "prefix_queries"),
    ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", "prefix_hits"),
    ("num_preemptions", "Preemptions for lack of KV blocks.", "preemptions"),
    ("prompt_tokens", "Prompt tokens processed.", "prompt_tokens"),
    ("generation_tokens", "Tokens generated.", "generation_tokens"),
    ("kv_cache_released_bytes", "KV memory given back to the machine after a time of disuse.", "kv_released_bytes"),
    ("kv_cache_growths_refused", "Times KV memory could not grow, as the machine had no memory.", "kv_growths_refused"),
)


_STATES = get_args(EngineState)


class _EngineCollector(Collector):
    """Reads the engine's latest statistics whenever somebody asks. Of several engines each has its own series, which
    add up to the whole.
    """

    def __init__(self, model: str, client: EngineClient, refused: Callable[[], Mapping[str, int]]) -> None:
        """`refused`: requests that fronts turned away, by reason."""
        self._model, self._client, self._refused = model, client, refused

    def collect(self) -> Iterator[Metric]:
        names, parts = self._parts()
        for name, help, field in _GAUGES:
            gauge = GaugeMetricFamily(f"homenode:{name}", help, labels=names)
            for values, now in parts:
                gauge.add_metric(values, getattr(now, field))
            yield gauge
        for name, help, field in _COUNTERS:
            counter = CounterMetricFamily(f"homenode:{name}", help, labels=names)
            for values, now in parts:
                counter.add_metric(values, getattr(now, field))
            yield counter
        yield self._memory(names, parts)
        yield from _in_common(names, parts)
        yield self._node_memory(names, parts)
        yield self._rejections([now for _, now in parts])
        if self._client.ready.details.get("kv_transfer"):
            yield from transfer_metrics(names, parts)
        yield from worker_metrics(names, parts)
        yield from expert_metrics(names, parts)
        yield from state_metrics(names, parts)
        yield from step_metrics(names, parts)
        yield from waiting_metrics(names, parts)
        yield from self._lives(names)
        yield from _start_phases(self._model, self._client.ready.details.get("start_phases"))

    def _parts(self) -> tuple[tuple[str, ...], list[tuple[tuple[str, ...], EngineStats]]]:
        """Names of labels, and their values with the figures they are of: of the engine, or of each of several."""
        engines = self._client.engines
        if not engines:
            return ("model_name",), [((self._model,), self._client.statistics)]
        names, values = _labels(engines)
        parts = [((self._model, *of), engine.statistics) for of, engine in zip(values, engines, strict=True)]
        return ("model_name", *names), parts

    def _memory(self, names: tuple[str, ...], parts: list[tuple[tuple[str, ...], EngineStats]]) -> Metric:
        """Bytes of weights (`shared`: its own experts that other engines read, too) and KV memory by kind of page, as
        the kernel told after they were loaded, and of KV memory that grows now; none where it is not known.
        """
        pages = GaugeMetricFamily(
            "homenode:memory_bytes", "Weights and KV memory, by kind of page.", labels=(*names, "use", "pages")
        )
        for values, now in parts:
            for use in ("weight", "shared", "kv"):
                seen = now.compute.get(f"{use}_pages")
                if isinstance(seen, dict) and (use != "shared" or seen["present"]):
                    pages.add_metric((*values, use, "huge"), seen["huge"])
                    pages.add_metric((*values, use, "small"), seen["present"] - seen["huge"])
        return pages

    def _node_memory(self, names: tuple[str, ...], parts: list[tuple[tuple[str, ...], EngineStats]]) -> Metric:
        """Return how much of what is planned for each node is there; none where nothing is planned, or the kernel does
        not tell.
        """
        help = "Share of the pages planned for a node (all: for several in turn) that are on it."
        kept = [at for at, name in enumerate(names) if name != "node"]  # here a label of the pages, not of the engine
        ratios = GaugeMetricFamily(
            "homenode:numa_pages_local_ratio", help, labels=(*(names[at] for at in kept), "use", "node")
        )
        for values, now in parts:
            seen = now.compute.get("residency")
            for use, lines in seen.items() if isinstance(seen, dict) else ():
                for line in lines or ():
                    node = "all" if line["node"] < 0 else str(line["node"])
                    ratio = line["local"] / line["present"] if line["present"] else 1.0
                    ratios.add_metric((*(values[at] for at in kept), use, node), ratio)
        return ratios

    def _rejections(self, parts: list[EngineStats]) -> Metric:
        """Return the rejections by reason, those of the front itself included: which engine would have had a request
        says nothing.
        """
        counts = Counts(self._refused())
        for now in parts:
            counts.update(now.rejected)
        return _rejections(self._model, counts)

    def _lives(self, names: tuple[str, ...]) -> Iterator[Metric]:
        """Yield which of several engines are there, and what became of the others; nothing where there is one."""
        engines = self._client.engines
        if not engines:
            return
        states = GaugeMetricFamily(
            "homenode:engine_state", "1 for the state an engine is in.", labels=(*names, "state")
        )
        restarts = CounterMetricFamily("homenode:engine_restarts", "Times an engine was started again.", labels=names)
        moved = CounterMetricFamily(
            "homenode:requests_moved", "Requests another engine went on with when this one was lost.", labels=names
        )
        for values, engine in zip(_labels(engines)[1], engines, strict=True):
            for state in _STATES:
                states.add_metric((self._model, *values, state), engine.state == state)
            restarts.add_metric((self._model, *values), engine.restarts)
            moved.add_metric((self._model, *values), engine.moved)
        yield from (states, restarts, moved)


def _rejections(model: str, counts: Mapping[str, int]) -> Metric:
    refused = CounterMetricFamily(
        "homenode:admission_rejections", "Requests turned away.", labels=("model_name", "reason")
    )
    for reason in sorted(counts):
        refused.add_metric((model, reason), counts[reason])
    return refused


def _start_phases(model: str, of_engine: object) -> Iterator[Metric]:
    """Yield when the phases of the start of this front and of its engine ended; nothing where there are several fronts
    or engines, whose starts overlap.
    """
    began, of_front = process_began(), marked_phases()
    if began is None or not of_front or not isinstance(of_engine, list):
        return
    help = "Seconds from the beginning of the process `homenode serve` to the end of a phase of its start."
    gauge = GaugeMetricFamily("homenode:start_phase_seconds", help, labels=("model_name", "process", "phase"))
    for process, marks in (("front", of_front), ("engine", of_engine)):
        for phase, end in phases_since(began, marks):
            gauge.add_metric((model, process, phase), end)
    yield gauge


def _in_common(names: tuple[str, ...], parts: list[tuple[tuple[str, ...], EngineStats]]) -> Iterator[Metric]:
    """Yield, of engines that keep experts in common, what each has of the weights; nothing of others."""
    if not any(now.compute.get("shared_weight_bytes") for _, now in parts):
        return
    own = GaugeMetricFamily("homenode:weight_bytes", "Weights that an engine keeps itself.", labels=names)
    others = GaugeMetricFamily(
        "homenode:shared_weight_bytes", "Experts that an engine reads where others keep them.", labels=names
    )
    for values, now in parts:
        own.add_metric(values, float(str(now.compute.get("weight_bytes") or 0)))
        others.add_metric(values, float(str(now.compute.get("shared_weight_bytes") or 0)))
    yield from (own, others)


def _labels(engines: Sequence[ReplicaStats]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return what tells engines apart: the number, and the NUMA node where each has one to itself. Names, and values
    for each engine.
    """
    nodes = [engine.node for engine in engines]
    if None in nodes or len(set(nodes)) < len(nodes):
        return ("engine",), [(str(engine.number),) for engine in engines]
    return ("engine", "node"), [(str(engine.number), str(engine.node)) for engine in engines]


class _Alone:
    """Values of one front: where there is one its values are its own."""

    def __init__(self) -> None:
        self.refused: Counts[str] = Counts()
        self.registry = CollectorRegistry()  # of what a scrape shows
        self.own = self.registry  # of what this process counts

    def refuse(self, reason: str) -> None:
        self.refused[reason] += 1

    def all_refused(self) -> Mapping[str, int]:
        return self.refused


class _Shared:
    """Values of several fronts: where there are several a scrape shows what all of them counted."""

    def __init__(self, folder: str) -> None:
        from homenode.server.monitoring.fronts import AllFronts, Refusals  # needs prometheus_client told of the folder

        self.registry, self.own = CollectorRegistry(), CollectorRegistry()
        self._fronts, self._refusals = AllFronts(folder), Refusals()
        self.registry.register(self._fronts)

    def refuse(self, reason: str) -> None:
        self._refusals.count(reason)

    def all_refused(self) -> Mapping[str, int]:
        return self._fronts.refused()


class _AllModels(Collector):
    """The collectors of all models as one: a family of figures has the series of every model."""

    def __init__(self) -> None:
        self.collectors: list[Collector] = []

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for family in chain.from_iterable(collector.collect() for collector in self.collectors):
            if (known := families.setdefault(family.name, family)) is not family:
                known.samples += family.samples
        yield from families.values()


class _ServerRefusals(Collector):
    """Requests that the fronts of several models turned away before they knew which model was asked for."""

    def __init__(self, refused: Callable[[], Mapping[str, int]]) -> None:
        self._refused = refused

    def collect(self) -> Iterator[Metric]:
        yield _rejections("", self._refused())


class Metrics:
    """The metrics of one application: those of each of its models, and of what is no model's."""

    def __init__(self, model: str, folder: str | None = None, keys: Keyring | None = None) -> None:
        """`model`: the name of the only model, which is the label of what is no model's as well; empty where there are
        several. `folder`: where prometheus_client keeps what several fronts count; None where there is one. `keys`:
        whose use is shown.
        """
        self._model = model
        self._counted = _Alone() if folder is None else _Shared(folder)
        self._registry, self._own = self._counted.registry, self._counted.own
        self._models = _AllModels()
        if not model:
            self._models.collectors.append(_ServerRefusals(self._counted.all_refused))
        self._registry.register(self._models)
        if keys is not None:
            self._registry.register(KeyMetrics(keys, "homenode:", ("model_name",), (model,)))
        self._times = (
            self._histogram("request_queue_time_seconds", "From arrival to the engine.", _FIRST_TOKEN),
            self._histogram("time_to_first_token_seconds", "From arrival to the first token.", _FIRST_TOKEN),
            self._histogram("inter_token_latency_seconds", "From one token to the next.", _BETWEEN_TOKENS),
            self._histogram("e2e_request_latency_seconds", "From arrival to the last token.", _WHOLE_REQUEST),
        )
        self._finished = Counter(
            "homenode:request_success",
            "Sequences finished, by reason.",
            ("model_name", "finished_reason"),
            registry=self._own,
        )

    def add_model(self, name: str, client: EngineClient) -> ModelMetrics:
        """The metrics of one more model, which a scrape shows from now on under this name."""
        of_fronts = self._counted.all_refused if name == self._model else dict[str, int]
        self._models.collectors.append(_EngineCollector(name, client, of_fronts))
        return ModelMetrics(name, [times.labels(name) for times in self._times], self._finished)

    def front_begins(self, replaces: bool) -> None:
        """Where there are several fronts: this is one of them, and `replaces` one that was lost."""
        begun = Counter(
            "homenode:front_restarts", "Times a front was started again.", ("model_name",), registry=self._own
        )
        begun.labels(self._model).inc(replaces)

    def refuse(self, reason: str) -> None:
        """Count a request the front itself turned away."""
        self._counted.refuse(reason)

    def render(self) -> bytes:
        """The text for a Prometheus scrape."""
        return generate_latest(self._registry)

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"homenode:{name}", help, ("model_name",), buckets=buckets, registry=self._own)


class ModelMetrics:
    """Figures that the front counts and times of one model."""

    def __init__(self, model: str, times: Sequence[Histogram], finished: Counter) -> None:
        """`times`: of this model, in the order in which `Recorder` takes them. `finished`: of all models."""
        self._times = times
        self._finished = {reason: finished.labels(model, reason) for reason in ("stop", "length", "abort", "error")}

    def recorder(self) -> Recorder:
        """A stopwatch for one sequence, started now."""
        queue, first_token, between, whole = self._times
        return Recorder(queue, first_token, between, whole, lambda reason: self._finished[reason].inc())


class Recorder:
    """Times one sequence. `arrival`, `first_token_at`: by `time.monotonic`; the latter None before the first token."""

    def __init__(
        self,
        queue: Histogram,
        first_token: Histogram,
        between: Histogram,
        whole: Histogram,
        finished: Callable[[str], None],
    ) -> None:
        self._queue = queue
        self._first_token, self._between, self._whole, self._finished = first_token, between, whole, finished
        self.arrival = time.monotonic()
        self.first_token_at: float | None = None
        self._last: float | None = None
        self._ended = False

    def tokens(self, count: int, queued_s: float = 0.0) -> None:
        """`count` tokens arrived together. `queued_s`: with the first of them, seconds until the engine began it."""
        if not count:
            return
        now = time.monotonic()
        if self._last is None:
            self.first_token_at = now
            self._first_token.observe(now - self.arrival)
            self._queue.observe(queued_s)
        else:
            for _ in range(count):
                self._between.observe((now - self._last) / count)
        self._last = now

    @property
    def prefill_s(self) -> float:
        """Seconds from arrival to the first token, or until now."""
        return (time.monotonic() if self.first_token_at is None else self.first_token_at) - self.arrival

    @property
    def decode_s(self) -> float:
        """Seconds from the first token to the last one so far."""
        return 0.0 if self.first_token_at is None or self._last is None else self._last - self.first_token_at

    def end(self, reason: str) -> None:
        """The sequence ended for `reason`; only the first call counts."""
        if self._ended:
            return
        self._ended = True
        self._whole.observe(time.monotonic() - self.arrival)
        self._finished(reason)
