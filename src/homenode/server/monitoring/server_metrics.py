"""Figures that /metrics shows: the engine's counters as it last sent them, and what only the front can time.

Series are labelled with the model's name, and the engine's number where there are several; the table of metrics has
their names. One registry belongs to one application.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from homenode.engine.messages import EngineStats, ReplicaStats
from homenode.server.interfaces.client import EngineClient
from homenode.server.keys.keyring import Keyring
from homenode.server.monitoring.keys import KeyMetrics
from homenode.server.monitoring.metric import PREFIX
from homenode.server.monitoring.metric_families import exposition, families, make_counter, make_histogram
from homenode.server.monitoring.metric_table import (
    ANSWER_LENGTH,
    ANSWERS,
    BETWEEN_TOKENS,
    CACHED_SHARES,
    DECODE_TIME,
    ENGINE,
    FINISHED,
    FIRST_TOKEN,
    FIRST_TOKEN_BY_SHARE,
    FRONT_RESTARTS,
    INFERENCE_TIME,
    LIFE,
    MODEL,
    MOST_TOKENS,
    PREFILL_TIME,
    PROMPT_LENGTH,
    QUEUE_TIME,
    REPLICA,
    TIME_PER_TOKEN,
    WHOLE_REQUEST,
)
from homenode.server.monitoring.recorder import Exemplar, Recorder, SequenceHistograms
from homenode.server.monitoring.snapshots import EngineSnapshot, LifeSnapshot, ModelSnapshot, cache_facts
from homenode.server.monitoring.vllm_names import with_vllm_names
from homenode.start_phases import marked_phases, phases_since, process_began

# In the order of `SequenceHistograms`.
_OF_SEQUENCES = (
    QUEUE_TIME, PREFILL_TIME, DECODE_TIME, INFERENCE_TIME, FIRST_TOKEN, BETWEEN_TOKENS, TIME_PER_TOKEN, WHOLE_REQUEST,
    PROMPT_LENGTH, ANSWER_LENGTH, MOST_TOKENS,
)  # fmt: skip


class _EngineCollector(Collector):
    """Reads the engine's latest statistics whenever somebody asks. Of several engines each has its own series, which
    add up to the whole.
    """

    def __init__(self, model: str, client: EngineClient, refused: Callable[[], Mapping[str, int]]) -> None:
        """`refused`: requests that fronts turned away, by reason."""
        self._model, self._client, self._refused = model, client, refused
        self.before: EngineStats | None = None  # of its engines before this one
        self._rests = False

    def rest(self, client: EngineClient) -> None:
        """Show what this engine has counted, and that nothing runs: it is no more."""
        if client is self._client:
            self._rests = True

    @property
    def counted(self) -> EngineStats:
        """Return what this engine and those before it have counted."""
        from homenode.engine.router.stats import at_rest  # a server of one model starts sooner without

        return self._with_earlier(at_rest(self._client.statistics))

    def _with_earlier(self, now: EngineStats) -> EngineStats:
        if self.before is None:
            return now
        from homenode.engine.router.stats import since_start  # as above

        return since_start(self.before, now)

    def collect(self) -> Iterator[Metric]:
        names, values = _labels(self._replicas)
        labels = [(self._model, *of) for of in values]
        yield from families(ENGINE, ("model_name", *names), list(zip(labels, self._engines(), strict=True)))
        yield from families(MODEL, ("model_name",), [((self._model,), self._whole_model())])
        replicas = list(zip(labels, self._replicas, strict=False))
        yield from families(REPLICA, ("model_name", *names), replicas)

    def _engines(self) -> list[EngineSnapshot]:
        """The engine, or each of several."""
        hands_kv_over = bool(self._client.ready.details.get("kv_transfer"))
        replicas = self._replicas
        if self._rests:
            stats = [self.counted]
        elif replicas:
            stats = [engine.statistics for engine in replicas]
        else:
            stats = [self._with_earlier(self._client.statistics)]
        return [EngineSnapshot(each, hands_kv_over) for each in stats]

    @property
    def _replicas(self) -> Sequence[ReplicaStats]:
        """Several engines, while they are there."""
        return () if self._rests else self._client.engines

    def _whole_model(self) -> ModelSnapshot:
        """The model; which engine would have had a request that was turned away says nothing."""
        rejected = Counts(self._refused())
        for engine in self._engines():
            rejected.update(engine.stats.rejected)
        ready = self._client.ready
        return ModelSnapshot(rejected, _start_phases(ready.details.get("start_phases")), cache_facts(ready))


def _start_phases(of_engine: object) -> list[tuple[tuple[str, str], float]]:
    """Return when the phases of the start of this front and of its engine ended; nothing where there are several fronts
    or engines, whose starts overlap.
    """
    began, of_front = process_began(), marked_phases()
    if began is None or not of_front or not isinstance(of_engine, list):
        return []
    return [
        ((process, phase), end)
        for process, marks in (("front", of_front), ("engine", of_engine))
        for phase, end in phases_since(began, marks)
    ]


def _labels(engines: Sequence[ReplicaStats]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return what tells engines apart: the number, and the NUMA node where each has one to itself; nothing where there
    is one. Names, and values for each engine.
    """
    if not engines:
        return (), [()]
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


class _Lives(Collector):
    """Reads what becomes of models whenever somebody asks."""

    def __init__(self, lives: Callable[[], Sequence[tuple[str, LifeSnapshot]]]) -> None:
        self._lives = lives

    def collect(self) -> Iterator[Metric]:
        yield from families(LIFE, ("model_name",), [((name,), life) for name, life in self._lives()])


class _ServerRefusals(Collector):
    """Requests that the fronts of several models turned away before they knew which model was asked for."""

    def __init__(self, refused: Callable[[], Mapping[str, int]]) -> None:
        self._refused = refused

    def collect(self) -> Iterator[Metric]:
        yield from families(MODEL, ("model_name",), [(("",), ModelSnapshot(self._refused()))])


class Metrics:
    """The metrics of one application: those of each of its models, and of what is no model's."""

    def __init__(
        self, model: str, folder: str | None = None, keys: Keyring | None = None, *, vllm_names: bool = False
    ) -> None:
        """`model`: the name of the only model, which is the label of what is no model's as well; empty where there are
        several. `folder`: where prometheus_client keeps what several fronts count; None where there is one. `keys`:
        whose use is shown. `vllm_names`: figures are shown by vLLM's names, too.
        """
        self._model, self._vllm_names = model, vllm_names
        self._counted = _Alone() if folder is None else _Shared(folder)
        self._registry, self._own = self._counted.registry, self._counted.own
        self._models = _AllModels()
        self._engines: dict[str, _EngineCollector] = {}
        if not model:
            self._models.collectors.append(_ServerRefusals(self._counted.all_refused))
        self._registry.register(self._models)
        if keys is not None:
            self._registry.register(KeyMetrics(keys, PREFIX, ("model_name",), (model,)))
        self._histograms = {row.name: make_histogram(row, self._own, "model_name") for row in _OF_SEQUENCES}
        self._by_share = make_histogram(FIRST_TOKEN_BY_SHARE, self._own, "model_name")
        self._answers = make_histogram(ANSWERS, self._own, "model_name")
        self._finished = make_counter(FINISHED, self._own, "model_name")

    def add_model(self, name: str, client: EngineClient) -> ModelMetrics:
        """The metrics of one more model, which a scrape shows from now on under this name."""
        of_fronts = self._counted.all_refused if name == self._model else dict[str, int]
        collector = _EngineCollector(name, client, of_fronts)
        if (earlier := self._engines.pop(name, None)) is not None:  # its model is loaded again
            collector.before = earlier.counted
            self._models.collectors.remove(earlier)
        self._engines[name] = collector
        self._models.collectors.append(collector)
        histograms = SequenceHistograms(*(self._histograms[row.name].labels(name) for row in _OF_SEQUENCES))
        by_share = {share: self._by_share.labels(name, share) for share in CACHED_SHARES}
        return ModelMetrics(name, histograms, by_share, self._answers.labels(name), self._finished)

    def rest_model(self, name: str, client: EngineClient) -> None:
        """The engine of a model is no more: what it has counted stays."""
        if (collector := self._engines.get(name)) is not None:
            collector.rest(client)

    def show_lives(self, lives: Callable[[], Sequence[tuple[str, LifeSnapshot]]]) -> None:
        """Show what becomes of models that are loaded when they are asked for. `lives`: now, by name."""
        self._registry.register(_Lives(lives))

    def front_begins(self, replaces: bool) -> None:
        """Where there are several fronts: this is one of them, and `replaces` one that was lost."""
        make_counter(FRONT_RESTARTS, self._own, "model_name").labels(self._model).inc(replaces)

    def refuse(self, reason: str) -> None:
        """Count a request the front itself turned away."""
        self._counted.refuse(reason)

    def collect(self) -> Iterable[Metric]:
        """The families that a scrape shows, for who reads figures and no text."""
        families = self._registry.collect()
        return with_vllm_names(families) if self._vllm_names else families

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The text for a scrape, and its content type: of OpenMetrics, which alone has exemplars, where the header
        `accept` asks for it.
        """
        return exposition(self, accept)


class ModelMetrics:
    """Figures that the front counts and times of one model."""

    def __init__(
        self,
        model: str,
        histograms: SequenceHistograms,
        first_token_by_share: Mapping[str, Histogram],
        answers: Histogram,
        finished: Counter,
    ) -> None:
        """`histograms`, `first_token_by_share`, `answers`: of this model. `finished`: of all models."""
        self._histograms, self._by_share, self._answers = histograms, first_token_by_share, answers
        self._finished = {reason: finished.labels(model, reason) for reason in ("stop", "length", "abort", "error")}

    def recorder(self, prompt_tokens: int = 0, most_tokens: int = 0, exemplar: Exemplar = None) -> Recorder:
        """A stopwatch for one sequence, started now."""
        return Recorder(
            self._histograms,
            self._by_share,
            lambda reason: self._finished[reason].inc(),
            prompt_tokens,
            most_tokens,
            exemplar,
        )

    def asked(self, answers: int) -> None:
        """Count a prompt to which so many sequences are wanted."""
        self._answers.observe(answers)
