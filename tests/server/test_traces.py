"""A request is a trace: the client's where it names one, with spans of what it waited for, sent to a collector; the
collector here is a server on loopback. Nothing of a prompt is in it.
"""

from __future__ import annotations

import gzip
import http.server
import itertools
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.conftest import Running, Start
from tests.waiting import wait_until

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

PARENT = "b7ad6b7169203331"


def traceparent(trace: str, flags: str = "01") -> dict[str, str]:
    return {"traceparent": f"00-{trace}-{PARENT}-{flags}"}


class Collector:
    """An OTLP collector. `spans`: all that came, each with its attributes as a dict."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.take(body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def take(self, body: bytes) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def of(self, trace: str) -> list[Any]:
        return [span for span in self.spans if span.trace_id.hex() == trace]

    def named(self, trace: str, *names: str) -> list[Any]:
        """The spans of these names, once all are there."""
        wait_until(lambda: {*names} <= {span.name for span in self.of(trace)})
        return [next(span for span in self.of(trace) if span.name == name) for name in names]


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture(scope="module")
def traced(start: Start, collector: Collector) -> Iterator[Running]:
    """A server whose address of a collector has no path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        running = start(otlp_traces_endpoint=collector.url + "/v1/traces", served_model_name=("m", "alias"))
    yield running


def facts(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_a_span_below_its_clients_with_one_for_each_phase(
    traced: Running, collector: Collector, stream: bool
) -> None:
    trace = f"{int(stream) + 1:032x}"
    body = {"model": "alias", "prompt": "a secret", "max_tokens": 6, "stream": stream}
    assert traced.post("/v1/completions", body, headers=traceparent(trace)).status_code == 200
    root, queue, prefill, decode = collector.named(trace, "POST /v1/completions", "queue", "prefill", "decode")
    assert (root.parent_span_id.hex(), root.kind) == (PARENT, 2)
    assert [each.parent_span_id for each in (queue, prefill, decode)] == [root.span_id] * 3
    edges = [root.start_time_unix_nano]
    for each in (queue, prefill, decode):
        edges += [each.start_time_unix_nano, each.end_time_unix_nano]
    edges.append(root.end_time_unix_nano)
    assert all(early <= late + 1_000_000 for early, late in itertools.pairwise(edges)), edges
    told = facts(root)
    assert told["gen_ai.usage.input_tokens"] == len("a secret") + 1 and told["gen_ai.usage.output_tokens"] == 6
    assert (told["gen_ai.request.model"], told["gen_ai.response.model"]) == ("alias", "m")
    assert told["http.response.status_code"] == 200
    assert not any("secret" in str(value) for span in collector.of(trace) for value in facts(span).values())


def test_what_the_client_has_not_sampled_is_not_sent_and_is_no_exemplar(traced: Running, collector: Collector) -> None:
    left_out, taken = f"{0xABC:032x}", f"{0xDEF:032x}"
    for trace, flags in ((left_out, "00"), (taken, "01")):
        body = {"prompt": "x", "max_tokens": 2}
        traced.post("/v1/completions", body, headers=traceparent(trace, flags))
    collector.named(taken, "decode")
    assert not collector.of(left_out)
    answer = traced.http.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert f'# {{trace_id="{taken}"}}' in answer.text and left_out not in answer.text
    assert answer.text.endswith("# EOF\n")
    plain = traced.http.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain") and "trace_id" not in plain.text


def test_a_refused_request_has_its_status_and_probes_are_no_traces(traced: Running, collector: Collector) -> None:
    trace, before = f"{0xBAD:032x}", len(collector.spans)
    traced.http.get("/health", headers=traceparent(trace))
    traced.post("/v1/completions", {"prompt": [1] * 4000}, headers=traceparent(trace))
    (root,) = collector.named(trace, "POST /v1/completions")
    assert facts(root)["http.response.status_code"] == 400 and facts(root)["error.type"] == "400"
    assert len(collector.spans) == before + 1


def test_without_a_collector_requests_go_on_and_it_is_told_once(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")
    with caplog.at_level(logging.WARNING):
        running = start(otlp_traces_endpoint="http://127.0.0.1:9/v1/traces")
        for _ in range(3):
            began = time.monotonic()
            assert running.complete(max_tokens=2).status_code == 200
            assert time.monotonic() - began < 5
            wait_until(lambda: "--otlp-traces-endpoint" in caplog.text)
    told = [record for record in caplog.records if record.name.startswith(("homenode.traces", "opentelemetry"))]
    assert [record.name for record in told] == ["homenode.traces"]
