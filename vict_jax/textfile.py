"""The newest metrics for Prometheus: a file for the text-file collector of its node exporter."""

from __future__ import annotations

import importlib
import pathlib
import re
from collections.abc import Mapping
from typing import Any


class TextFile:
    """Keeps the newest value of every metric as a gauge, `vict_<kind>_<name>`, and rewrites the file.

    Raises:
      ValueError: prometheus_client is not installed; says how it is.
    """

    def __init__(self, path: pathlib.Path) -> None:
        try:
            self._client = importlib.import_module("prometheus_client")
        except ModuleNotFoundError as error:
            raise ValueError(
                "--prometheus needs prometheus_client, which is not installed: pip install vict_jax[watch]"
            ) from error
        self._path = path
        self._registry = self._client.CollectorRegistry()
        self._gauges: dict[str, Any] = {}

    def write(self, row: Mapping[str, Any]) -> None:
        """Take over the numbers of a row of the metrics. OSError if the file cannot be written."""
        for name, value in row.items():
            if isinstance(value, (int, float)):
                self._gauge(re.sub(r"[^a-zA-Z0-9_]", "_", f"vict_{row['kind']}_{name}")).set(value)
        self._client.write_to_textfile(str(self._path), self._registry)

    def _gauge(self, name: str) -> Any:
        if name not in self._gauges:
            self._gauges[name] = self._client.Gauge(name, name, registry=self._registry)
        return self._gauges[name]
