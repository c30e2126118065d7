"""Traces of requests: what a request was doing when, as spans that a collector of OpenTelemetry is sent."""
