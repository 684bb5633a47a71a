"""A query's figures for Prometheus, as text and over HTTP on the loopback interface."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

log = logging.getLogger(__name__)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_HOST = "127.0.0.1"


@dataclass(frozen=True)
class _Family:
    name: str
    type: str
    help: str


_FAMILIES = (
    _Family("holdfast_version", "gauge", "Newest committed version."),
    _Family("holdfast_watermark_seconds", "gauge", "Watermark, as seconds since 1970."),
    _Family("holdfast_versions_total", "counter", "Versions committed by this run."),
    _Family("holdfast_ticks_total", "counter", "Versions without a batch among them."),
    _Family("holdfast_input_rows_total", "counter", "Rows read by this run."),
    _Family("holdfast_input_rows_per_second", "gauge", "Rows per second in the last version."),
    _Family("holdfast_batch_duration_seconds", "gauge", "Time the last version took."),
    _Family("holdfast_commit_duration_seconds", "gauge", "Time its commit took."),
    _Family("holdfast_state_rows", "gauge", "Rows in state."),
    _Family("holdfast_state_bytes", "gauge", "Bytes of state in the newest version."),
    _Family("holdfast_memory_bytes", "gauge", "Memory the operator's tasks used."),
    _Family("holdfast_updated_rows_total", "counter", "Rows written to state."),
    _Family("holdfast_removed_rows_total", "counter", "Committed rows removed from state."),
    _Family("holdfast_late_rows_total", "counter", "Rows dropped as too late."),
    _Family("holdfast_duplicate_rows_total", "counter", "Rows dropped as duplicates."),
)
_Labels = tuple[tuple[str, str], ...]


class QueryMetrics:
    """The figures of one query. Safe to read while another thread adds a progress."""

    def __init__(self) -> None:
        self.query = ""
        """The value of the label `query`."""
        self._lock = threading.Lock()
        self._samples: dict[str, dict[_Labels, float]] = defaultdict(dict)

    def add(self, progress: Mapping[str, Any]) -> None:
        """Add the progress of one version."""
        duration = progress["durationMs"]
        with self._lock:
            self._set("version", progress["version"])
            if "eventTime" in progress:
                self._set("watermark_seconds", _seconds(progress["eventTime"]["watermark"]))
            self._count("versions_total", 1)
            self._count("ticks_total", int(progress["isTick"]))
            self._count("input_rows_total", progress["numInputRows"])
            self._set("input_rows_per_second", progress["inputRowsPerSecond"])
            self._set("batch_duration_seconds", duration["triggerExecution"] / 1000)
            self._set("commit_duration_seconds", duration["commit"] / 1000)
            for operator in progress["stateOperators"]:
                self._add_operator(operator["operatorId"], operator)

    def _add_operator(self, number: int, operator: Mapping[str, Any]) -> None:
        labels = (("operator", operator["operatorName"]), ("operator_id", str(number)))
        custom = operator["customMetrics"]
        self._set("state_rows", operator["numRowsTotal"], labels)
        self._set("state_bytes", custom.get("stateOnCurrentVersionSizeBytes", 0), labels)
        self._set("memory_bytes", operator["memoryUsedBytes"], labels)
        self._count("updated_rows_total", operator["numRowsUpdated"], labels)
        self._count("removed_rows_total", custom["numCommittedRowsRemoved"], labels)
        self._count("late_rows_total", operator["numRowsDroppedByWatermark"], labels)
        self._count("duplicate_rows_total", custom.get("numDroppedDuplicateRows", 0), labels)

    def _set(self, name: str, value: float, labels: _Labels = ()) -> None:
        self._samples[f"holdfast_{name}"][(("query", self.query), *labels)] = value

    def _count(self, name: str, value: float, labels: _Labels = ()) -> None:
        samples = self._samples[f"holdfast_{name}"]
        key = (("query", self.query), *labels)
        samples[key] = samples.get(key, 0) + value

    def samples(self, name: str) -> dict[_Labels, float]:
        """The samples of a family, by their labels."""
        with self._lock:
            return dict(self._samples[name])


def metrics_text(queries: Iterable[QueryMetrics]) -> str:
    """The figures of queries in the text format of Prometheus, version 0.0.4."""
    listed = list(queries)
    lines = []
    for family in _FAMILIES:
        lines.append(f"# HELP {family.name} {family.help}")
        lines.append(f"# TYPE {family.name} {family.type}")
        for query in listed:
            for labels, value in query.samples(family.name).items():
                pairs = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels)
                lines.append(f"{family.name}{{{pairs}}} {_number(value)}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _seconds(stamp: str) -> float:
    moment = np.datetime64(stamp.lstrip("+").removesuffix("Z"), "ms")
    return int(moment.astype(np.int64)) / 1000


class MetricsServer:
    """Serves /metrics for all queries with the same port, as long as one of them runs."""

    _lock = threading.Lock()
    _by_port: dict[int, MetricsServer] = {}  # noqa: RUF012 - the process has one of each port

    def __init__(self, port: int) -> None:
        self._port = port
        self._queries: list[QueryMetrics] = []
        self._http = ThreadingHTTPServer((_HOST, port), _handler(self._queries))
        self._http.daemon_threads = True
        self._thread = threading.Thread(
            target=self._http.serve_forever, name="holdfast-metrics", daemon=True
        )
        self._thread.start()

    @classmethod
    def join(cls, port: int, metrics: QueryMetrics) -> MetricsServer | None:
        """Return the server of a port, started if necessary; it now also serves these figures.

        Where the port cannot be had, this is None, and the log warns: a query that works is worth
        more than its metrics.
        """
        with cls._lock:
            try:
                server = cls._by_port.get(port) or cls(port)
            except (OSError, OverflowError) as error:
                log.warning(
                    "Metrics are not served: port %d of %s cannot be used (%s). Choose another "
                    "spark.holdfast.metrics.port, or 0 for one that is free.",
                    port,
                    _HOST,
                    error,
                )
                return None
            cls._by_port[port] = server
            server._queries.append(metrics)
            return server

    def leave(self, metrics: QueryMetrics) -> None:
        """Stop serving these figures. The last query to leave stops the server."""
        with self._lock:
            self._queries[:] = [each for each in self._queries if each is not metrics]
            if self._queries or self._by_port.get(self._port) is not self:
                return
            del self._by_port[self._port]
            self._http.shutdown()
            self._http.server_close()
            self._thread.join()

    @property
    def url(self) -> str:
        """The URL of the figures."""
        return f"http://{_HOST}:{self._http.server_address[1]}/metrics"


def _handler(queries: list[QueryMetrics]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404, "Only /metrics is here")
                return
            body = metrics_text(list(queries)).encode()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Log nothing: there is a scrape every few seconds."""

    return Handler
