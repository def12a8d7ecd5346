"""No action crashes or hangs a built-in environment: a sample of what `benchmarks.fuzz` plays."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks import fuzz
from envs.lookup import BUILT_IN, environment
from tests.envs import toy_env

ACTIONS = 1500


@pytest.mark.parametrize("name", BUILT_IN)
def test_hostile_actions(name):
    domain, options = environment(name)
    result = fuzz.fuzz(domain, options(), actions=ACTIONS, seed=1, limit_s=20)
    assert not result.failures, fuzz.report(name, result)
    assert result.actions == ACTIONS
    # Both kinds of actions were among them.
    assert 0.05 < result.valid / result.actions < 0.9


class Fragile(toy_env.ToyEnv):
    """Raises on brackets."""

    def step(self, action):
        if "[" in action:
            raise KeyError(action)
        return super().step(action)


def test_a_crash_is_reported_with_its_actions():
    domain = dataclasses.replace(toy_env.DOMAIN, make=Fragile)
    result = fuzz.fuzz(domain, toy_env.ToyOptions(), actions=300, seed=0, limit_s=20)
    assert result.failures
    assert all("KeyError" in failure.what and "[" in failure.actions[-1] for failure in result.failures)
    assert "FAILED step in task" in fuzz.report("toy", result)


def test_a_slow_call_is_a_failure():
    result = fuzz.fuzz(toy_env.DOMAIN, toy_env.ToyOptions(), actions=50, seed=0, limit_s=1e-9)
    assert result.failures
    assert "above the limit" in result.failures[0].what


def test_the_command_fails_on_a_wrong_name(capsys):
    with pytest.raises(SystemExit, match="2"):
        fuzz.main(["--env", "chess"])
    assert "there is no environment 'chess'" in capsys.readouterr().err
    assert fuzz.main(["--env", "search_qa", "--actions", "40"]) == 0
    assert "search_qa: 40 actions" in capsys.readouterr().out
