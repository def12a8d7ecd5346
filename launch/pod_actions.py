"""What `launch.tpu_pod` can do with a slice, whichever way it is had."""

from __future__ import annotations

from launch import tpu_vm, xpk
from launch.commands import Runner, Training, require_programs
from launch.place import Place
from vict_jax.metrics import RunError

ACTIONS = ("up", "create", "copy", "install", "run", "follow", "status", "stop")
TRAINING = ("up", "run")  # those that start one


def act(action: str, place: Place, runner: Runner, training: Training | None) -> int:
    """Do one of ACTIONS; `training` is there for those that start one. The exit status."""
    if action in TRAINING:
        assert training is not None
        return _train(action, place, runner, training)
    if action == "follow":
        return _follow(place, runner)
    backend = xpk if place.backend == "xpk" else tpu_vm
    if action in ("status", "stop"):
        return backend.status(place, runner) if action == "status" else backend.stop(place, runner)
    {"create": backend.create, "copy": backend.copy, "install": backend.install}[action](place, runner)
    return 0


def _train(action: str, place: Place, runner: Runner, training: Training) -> int:
    backend = xpk if place.backend == "xpk" else tpu_vm
    if action == "up":
        return backend.up(place, runner, training)
    backend.run(place, runner, training)
    return 0


def _follow(place: Place, runner: Runner) -> int:
    if place.backend == "xpk":
        return xpk.follow(place, runner)
    found = tpu_vm.look(place, runner)
    if found.condition is not tpu_vm.Condition.READY and not runner.dry_run:
        raise RunError(f"{place.name} is {found.state or found.condition.value}; there is nothing to follow")
    return tpu_vm.follow(place, runner, found.workers)


def check(place: Place, runner: Runner) -> None:
    """Programs and login, before anything is created.

    Raises:
      RunError: a program is missing, or nobody is logged in.
    """
    if not runner.dry_run:
        require_programs(["gcloud"], why="install the Google Cloud CLI (https://cloud.google.com/sdk)")
        if place.backend == "xpk":
            why = "--backend=xpk needs XPK (pip install xpk) and what it needs: kubectl and docker"
            require_programs(["xpk", "kubectl", "docker"], why=why)
    who = ("gcloud", "auth", "list", "--filter=status:ACTIVE", "--format=value(account)")
    if not runner.read_checked(who).strip() and not runner.dry_run:
        raise RunError("nobody is logged in to gcloud; run: gcloud auth login")
