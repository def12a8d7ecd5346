"""A stand-in for a model: it knows the expert's solutions by the texts that tasks begin with."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from envs.lookup import environment


def solutions(name: str, options: Mapping[str, Any], split: str, count: int) -> dict[str, list[str]]:
    """First observation -> the expert's actions, of the first `count` tasks."""
    domain, make_options = environment(name)
    env = domain.make(make_options(**options))
    found = {}
    for task in domain.tasks(make_options(**options), split)[:count]:
        first, actions, done = env.reset(task).text, list[str](), False
        while not done:
            actions.append(env.expert_action())
            done = env.step(actions[-1]).done
        found[first.strip()] = actions
    return found


@dataclasses.dataclass
class StandIn:
    """Replies in an agent's format with the next action of the solution.

    Attributes:
      known: see `solutions`.
      form: a reply, with `{}` where the action is.
      needs: texts that must be in the conversation; without them it gives up at once.
      gives_up: the action that it gives up with.
    """

    known: Mapping[str, Sequence[str]]
    form: str = "<think>I follow the plan.</think><action>{}</action>"
    needs: str = ""
    gives_up: str = "close ticket"
    reflection: str = "I should follow the plan."

    def __call__(self, messages: Sequence[Mapping[str, str]]) -> str:
        told = [message["content"] for message in messages if message["role"] == "user"]
        if "Do not act now" in told[-1]:
            return self.reflection
        actions = next(actions for first, actions in self.known.items() if first in told[0])
        if self.needs not in told[0]:
            return self.form.format(self.gives_up)
        return self.form.format(actions[len(told) - 1])
