"""The 14 airline tools."""

from __future__ import annotations

from collections.abc import Mapping

from envs.tau_bench.tools import Tool

TOOLS: Mapping[str, Tool] = {}
