"""What the entry points share: flags, config overrides, and errors as one readable message."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
import runpy
import sys
from collections.abc import Callable, Sequence

import jax
from absl import app, flags
from absl import logging as absl_logging

from vict_jax import config as config_lib
from vict_jax import processes
from vict_jax.learner.microbatch import NonFiniteError
from vict_jax.metrics import RunError
from vict_jax.sharding import AXES, MeshOptions
from vict_jax.watch import Stopped

_OVERRIDE = "--config."


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parse flags; a wrong config key or environment ends the program with one message, not a traceback."""
    argv = list(argv)
    _check_config(argv)
    try:
        return flags.FLAGS(argv)
    except (flags.Error, ValueError, TypeError) as error:
        sys.exit(f"error: {error}")


def _check_config(argv: Sequence[str]) -> None:
    files = [arg for arg in argv if arg.startswith("--config=")]
    if not files:
        return
    path, _, argument = files[-1].removeprefix("--config=").partition(":")
    if not pathlib.Path(path).is_file():
        sys.exit(f"error: --config={path} is not a file")
    # config_flags would fail at a wrong value or key with a traceback, so the file is read here first.
    get_config = runpy.run_path(path)["get_config"]
    keys = [arg.removeprefix(_OVERRIDE).split("=", 1)[0] for arg in argv if arg.startswith(_OVERRIDE)]
    try:
        config = get_config(argument) if argument else get_config()
        config_lib.check_overrides(config, keys)
    except ValueError as error:
        sys.exit(f"error: {error}")


def run(main: Callable[..., None], *, actions: Sequence[str] = ()) -> None:
    """Run `main` under absl; expected failures print one message and exit 1, Ctrl-C exits 130, SIGTERM 0.

    Args:
      main: called with nothing, or with the action.
      actions: what the first argument may be, if one is needed.
    """

    def guarded(argv: Sequence[str]) -> None:
        given, rest = argv[1:2] if actions else [], argv[2:] if actions else argv[1:]
        if actions and (not given or given[0] not in actions):
            sys.exit(
                f"error: the first argument must be one of {', '.join(actions)}, not {' '.join(given)!r}"
            )
        if rest:
            sys.exit(f"error: unknown argument {rest[0]!r}; options are written --name=value")
        # Third-party INFO lines would drown the progress bar; warnings still come through.
        absl_logging.set_verbosity(absl_logging.WARNING)
        logging.getLogger("jax").setLevel(logging.WARNING)
        jax.config.update("jax_threefry_partitionable", True)
        try:
            with processes.peers_named():
                main(*given)
        except Stopped as stopped:
            print(f"\n{stopped}", file=sys.stderr)
        except (RunError, ValueError, FileNotFoundError, FileExistsError) as error:
            if flags.FLAGS.traceback:
                raise
            sys.exit(f"error: {error}\n(run again with --traceback to see where it was raised)")
        except NonFiniteError as error:
            if flags.FLAGS.traceback:
                raise
            sys.exit(
                f"error: {error}\nNothing of this is kept, what was saved before is. The same command would "
                "come to the same values: lower a learning rate, with --allow_changed, or start anew."
            )
        except KeyboardInterrupt:
            print(
                "\ninterrupted; start the same command again to continue from the last checkpoint",
                file=sys.stderr,
            )
            sys.exit(130)

    try:
        app.run(guarded, flags_parser=parse_flags)
    finally:
        processes.leave(sys.exception())


def on_mesh(config: config_lib.RunConfig, sizes: Sequence[str] | None) -> config_lib.RunConfig:
    """A run's config for other devices than it was trained on; `sizes` of the axes, None: as it was.

    Raises:
      ValueError: `sizes` are no mesh.
    """
    if sizes is None:
        return config
    if len(sizes) != len(AXES) or not all(size.strip().removeprefix("-").isdecimal() for size in sizes):
        raise ValueError(
            f"--mesh={','.join(sizes)} must be three numbers, the sizes of {AXES}; -1 is the rest"
        )
    return dataclasses.replace(config, mesh=MeshOptions(*map(int, sizes)))


flags.DEFINE_bool("traceback", False, "show the traceback of an error instead of one message")
