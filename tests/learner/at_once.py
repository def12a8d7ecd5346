"""An update without pauses between its pieces."""

from __future__ import annotations

from typing import Any

from vict_jax.learner.update import ppo_update
from vict_jax.work import finish


def do_update(*args: Any, **kwargs: Any) -> Any:
    """What `ppo_update` returns in the end."""
    return finish(ppo_update(*args, **kwargs))
