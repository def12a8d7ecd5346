"""Tools that both domains have."""

from __future__ import annotations

from typing import Any

from envs.tau_bench.calculate import calculate
from envs.tau_bench.database import Database
from envs.tau_bench.tool import Tool


def _calculate(database: Database, expression: Any) -> str:
    return calculate(expression)


def _think(database: Database, thought: Any) -> str:
    return ""


def _transfer(database: Database, summary: Any) -> str:
    return "Transfer successful"


CALCULATE = Tool("calculate", _calculate)
THINK = Tool("think", _think)
TRANSFER = Tool("transfer_to_human_agents", _transfer, terminates=True)
