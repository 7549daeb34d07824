"""Spans of requests by OpenTelemetry, off by default.

A span is written when its request is answered, with its times as they were: the request, and in it the wait in the
queue and the batch that it ran in. Its parent is the caller's, by the W3C header ``traceparent``; a caller that says
"not sampled" is not traced, as OpenTelemetry's default sampler (parent based) has it. Where the spans go is said by
OpenTelemetry's own variables (``OTEL_EXPORTER_OTLP_ENDPOINT`` …).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from trtops.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtops.executor.port import Outcome
    from trtops.serve.faults import Fault
    from trtops.serve.inference import Caller

_HEADERS = ("traceparent", "tracestate")


class Tracer:
    """Writes spans."""

    def __init__(self, provider: Any, wall_ns: Callable[[], int] = time.time_ns) -> None:  # noqa: ANN401 - an optional library's
        """Write to a provider of OpenTelemetry.

        Args:
            provider: an ``opentelemetry.trace.TracerProvider``.
            wall_ns: epoch nanoseconds.
        """
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("trtops")
        self._server = SpanKind.SERVER
        self._extract = TraceContextTextMapPropagator().extract
        self._wall_ns = wall_ns

    def answered(
        self, caller: Caller, engine: str, seconds: float, outcome: Outcome | None = None, fault: Fault | None = None
    ) -> None:
        """Write the spans of a request that was answered just now, ``seconds`` after it came."""
        from opentelemetry import trace

        carrier = {name: value.decode("latin-1") for name in _HEADERS if (value := caller.header(name.encode()))}
        end = self._wall_ns()
        start = end - round(seconds * 1e9)
        span = self._tracer.start_span(
            f"infer {engine}",
            context=self._extract(carrier) if carrier else None,
            kind=self._server,
            start_time=start,
            attributes={"trtops.engine": engine, "http.response.status_code": fault.status if fault else 200},
        )
        if span.is_recording():
            if fault is not None:
                span.set_status(trace.StatusCode.ERROR, fault.message)
            if outcome is not None and outcome.error is None:
                span.set_attributes({"trtops.generation": outcome.generation, "trtops.batch.rows": outcome.batch})
                inside = trace.set_span_in_context(span)
                queued = start + round(outcome.queue_us * 1e3)
                for name, begin, stop in (
                    ("queue", start, queued),
                    ("compute", queued, queued + round(outcome.compute_us * 1e3)),
                ):
                    self._tracer.start_span(name, context=inside, start_time=begin).end(min(stop, end))
        span.end(end)

    def close(self) -> None:
        """Send what was not sent yet."""
        self._provider.shutdown()


def from_environment() -> Tracer:
    """A tracer that sends by OTLP, as OpenTelemetry's variables say.

    Raises:
        InputError: the extra ``otel`` is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise InputError(
            f"spans need OpenTelemetry, which is not installed ({error.name} is missing)",
            where="--otel",
            fix="pip install 'trtops[otel]'",
        ) from None
    provider = TracerProvider(resource=Resource.create({"service.name": "trtops"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracer(provider)
