"""The benchmark of all environments measures what it says."""

from __future__ import annotations

import pytest

from benchmarks import envs, parallel
from envs.lookup import BUILT_IN


def test_many_environments_take_their_steps_in_turn():
    speed = parallel.measure("search_qa", "BM25 in process", 3, seconds=1e-9)
    # Two-hop and one-hop tasks take turns; one round is played.
    assert (speed.parallel, speed.steps) == (3, 2 + 3 + 2)
    assert speed.steps_per_second > 100
    assert 0 < speed.reset_ms < 1000
    assert f"{speed.steps_per_second:.0f}" in parallel.line(speed)


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_environment_has_an_engine_that_runs_here(name):
    assert next(iter(parallel.engines_of(name)))


@pytest.mark.parametrize("arguments", [["--parallel", "0"], ["--seconds", "0"], ["--env", "chess"]])
def test_wrong_arguments(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        envs.main(arguments)
    assert capsys.readouterr().err
