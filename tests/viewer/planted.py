"""A logged run for the viewer: rollouts of the noisy expert, failed ones with raised steps among them, and
hostile texts wherever a text can stand."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence

from envs.alfworld.domain import DOMAIN
from envs.base import Atom, VerifierRecord
from tests.audit.logged import SIZE, Update, inputs_of, lose, make_config, make_setting, with_unseen_step
from vict_jax import proofs
from vict_jax.audit.fresh import noisy_groups
from vict_jax.audit.source import credit
from vict_jax.batching import Rollout
from vict_jax.config import RunConfig, to_plain

HTML = '<img src=x onerror="window.hacked=1"></script><script>window.hacked=1</script><!-- &amp; "\'`${1}'
TERMINAL = "\x1b[31mred\x1b[0m\x07\x00 \u202eevil\u2066 \u200bend"
LONG = "spam " * 20_000
# Tasks and seeds of the updates; in both some failed rollout has a raised step.
_PLAYED = {1: (10, 1), 2: (16, 1)}
HOSTILE_UPDATE = 2


def play(config: RunConfig, first: int, seed: int) -> list[list[Rollout]]:
    """Two groups; a rollout of the first has a step that was not seen, another of it is lost."""
    tasks = DOMAIN.tasks(config.env.options, "train")[first : first + 2]
    played = noisy_groups(DOMAIN, config.env.options, tasks, group_size=SIZE, seed=seed)
    short, *_, long = sorted(range(SIZE), key=lambda n: len(played[0][n].actions))
    played[0][short] = with_unseen_step(played[0][short])
    played[0][long] = lose(played[0][long])
    return played


def _hostile_name(name: str) -> str:
    return f"<b onclick=alert(1)>{name}</b>\x1b[0m"


def _hostile_atom(atom: Atom) -> Atom:
    return dataclasses.replace(
        atom,
        id=_hostile_name(atom.id),
        family=_hostile_name(atom.family),
        requires=tuple(map(_hostile_name, atom.requires)),
        alternatives=tuple(tuple(map(_hostile_name, way)) for way in atom.alternatives),
    )


def _hostile_record(record: VerifierRecord | None) -> VerifierRecord | None:
    if record is None:
        return None
    evidence = tuple(tuple(value and HTML + value for value in row) for row in record.evidence)
    return dataclasses.replace(record, atoms=tuple(map(_hostile_atom, record.atoms)), evidence=evidence)


def hostile(group: Sequence[Rollout]) -> list[Rollout]:
    """The same rollouts with texts that try to be more than text."""
    texts = (HTML, TERMINAL, LONG)
    found = []
    for rollout in group:
        task = dataclasses.replace(rollout.task, id=HTML + rollout.task.id, type=HTML)
        found.append(
            dataclasses.replace(
                rollout,
                task=task,
                actions=tuple(f"{texts[t % 3]} {text}" for t, text in enumerate(rollout.actions)),
                observations=tuple(f"{texts[(t + 1) % 3]} {o}" for t, o in enumerate(rollout.observations)),
                record=_hostile_record(rollout.record),
            )
        )
    return found


def log_run(workdir: pathlib.Path) -> dict[int, Update]:
    """Write the run directory. The second group of update 2 is hostile."""
    config = make_config()
    for folder in ("rollouts", "atoms", "proofs"):
        (workdir / folder).mkdir(parents=True)
    (workdir / "config.json").write_text(json.dumps(to_plain(config)))
    logged = {}
    for update, (first, seed) in _PLAYED.items():
        groups = play(config, first, seed)
        if update == HOSTILE_UPDATE:
            groups[1] = hostile(groups[1])
        inputs = inputs_of(groups)
        output, violations = credit(make_setting(config), inputs)
        assert violations == 0
        proofs.write_update(workdir, update, groups, inputs, output, masked_families=())
        logged[update] = Update(groups, inputs, output)
    return logged
