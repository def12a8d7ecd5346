"""Speed and memory of the environments.

    python -m benchmarks.envs [--env NAME ...] [--parallel 1 64 256] [--json OUT]
    python -m benchmarks.envs --data-dir DIR [--games 6] [--json OUT]

The first command measures generated tasks of every built-in environment and engine, see
`benchmarks.parallel`. The second compares the native household engine with the original over the same real
games and commands. It needs the games in the official layout and, for the original,
`requirements-textworld.txt`. All times are CPU times of one process (`time.process_time`), so that a busy
machine does not change them much. A step of the second is one command with its text, the new list of
admissible commands, and the win check.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gc
import itertools
import json
import multiprocessing
import pathlib
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import parallel
from envs.alfworld.engine import Engine, NativeEngine
from envs.alfworld.game import Game
from envs.alfworld.pddl import list_games, load_game, parse_game, read_game_file
from envs.lookup import BUILT_IN

ENGINES = ("native", "textworld", "textworld, memoised")
_NATIVE_REPEATS = 30


@dataclasses.dataclass(frozen=True)
class Speed:
    """Measurements of one engine over all games.

    Attributes:
      engine: one of `ENGINES`.
      games, steps: how much was measured.
      steps_per_second: steps by CPU seconds spent in steps.
      load_ms: from the file to the first text, median over games.
      reset_ms: to the first text of a game that was started before, median over games.
      memory_mb: resident memory of the process after all games, above that of the imports alone.
    """

    engine: str
    games: int
    steps: int
    steps_per_second: float
    load_ms: float
    reset_ms: float
    memory_mb: float


def choose_games(data_dir: str, count: int, seed: int) -> list[pathlib.Path]:
    """A random choice of validation games (their kitchens are the largest rooms)."""
    sources = [source for split in ("valid_seen", "valid_unseen") for source in list_games(data_dir, split)]
    chosen = random.Random(seed).sample(sources, min(count, len(sources)))
    return [pathlib.Path(source.source) for source in chosen]


def choose_commands(game: Game, steps: int, seed: int) -> list[str]:
    """The walkthrough, then random admissible commands: `steps` in all."""
    engine, rng = NativeEngine(), random.Random(f"{seed} {game.id}")
    engine.start(game)
    commands: list[str] = []
    for planned in itertools.chain(game.walkthrough, itertools.repeat(None)):
        if len(commands) == steps:
            return commands
        commands.append(planned or rng.choice(engine.admissible()))
        engine.step(commands[-1])
    raise AssertionError("unreachable: the chain does not end")


def measure(engine_name: str, paths: Sequence[pathlib.Path], steps: int, seed: int) -> Speed:
    """Measure one engine; call it in a process of its own, because it reports the process's memory."""
    load, reset, engine = _starters(engine_name)
    baseline = parallel.memory_mb()
    loads, resets, played, seconds = [], [], 0, 0.0
    for path in paths:
        commands = choose_commands(load_game(path), steps, seed)
        gc.collect()
        loads.append(_timed(functools.partial(load, path)))
        resets.append(_timed(reset))
        repeats = _NATIVE_REPEATS if engine_name == "native" else 1
        for _ in range(repeats):
            reset()
            seconds += _timed(functools.partial(_play, engine, commands))
            played += len(commands)
    return Speed(
        engine=engine_name,
        games=len(paths),
        steps=played,
        steps_per_second=played / seconds,
        load_ms=1e3 * statistics.median(loads),
        reset_ms=1e3 * statistics.median(resets),
        memory_mb=parallel.memory_mb() - baseline,
    )


def _starters(engine_name: str) -> tuple[Callable[[pathlib.Path], Any], Callable[[], Any], Any]:
    """How to load a game from its file, how to start it again, and the engine."""
    state: dict[str, Any] = {}
    if engine_name == "native":
        native = NativeEngine()

        def load_native(path: pathlib.Path) -> str:
            state["game"] = load_game(path)
            return native.start(state["game"])

        return load_native, lambda: native.start(state["game"]), native

    # Imported here: the native engine is measured without it.
    from envs.alfworld.textworld import TextWorldEngine

    original = TextWorldEngine(memoise=engine_name == "textworld, memoised")

    def load_original(path: pathlib.Path) -> str:
        data = read_game_file(path)
        return original.start_data(data, parse_game(data, str(path)))

    return load_original, original.restart, original


def _play(engine: Engine, commands: Sequence[str]) -> None:
    for command in commands:
        engine.step(command)
        engine.admissible()
        engine.won()


def _timed(work: Callable[[], Any]) -> float:
    """CPU seconds of `work`."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def table(speeds: Sequence[Speed]) -> str:
    """The measurements as text, with the ratio to the original."""
    peer = next((speed for speed in speeds if speed.engine == "textworld"), None)
    lines = [
        f"{'engine':22}{'steps/s':>10}{'load ms':>10}{'reset ms':>10}{'memory MB':>11}{'times faster':>14}"
    ]
    for speed in speeds:
        ratio = f"{speed.steps_per_second / peer.steps_per_second:.0f}" if peer else "-"
        lines.append(
            f"{speed.engine:22}{speed.steps_per_second:10.0f}{speed.load_ms:10.2f}{speed.reset_ms:10.3f}"
            f"{speed.memory_mb:11.1f}{ratio:>14}"
        )
    return "\n".join(lines)


def compare_household(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print the household engines on real games; the result as JSON values."""
    paths = choose_games(options.data_dir, options.games, options.seed)
    speeds = []
    for engine in options.engines:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            speeds.append(pool.apply(measure, (engine, paths, options.steps, options.seed)))
    print(table(speeds))
    return {"games": [str(path) for path in paths], "engines": [dataclasses.asdict(s) for s in speeds]}


def measure_parallel(options: argparse.Namespace) -> dict[str, Any]:
    """Measure every environment that was asked for, a line each; the result as JSON values."""
    speeds = []
    print(parallel.HEAD)
    for name in options.env:
        for engine, count in itertools.product(parallel.engines_of(name), options.parallel):
            speeds.append(parallel.measure_apart(name, engine, count, seconds=options.seconds))
            print(parallel.line(speeds[-1]), flush=True)
        if name in parallel.ORIGINALS:
            print(f"{'':12}{parallel.ORIGINALS[name]}", flush=True)
    return {"parallel": [dataclasses.asdict(speed) for speed in speeds]}


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Speed and memory of the environments.")
    parser.add_argument("--env", nargs="+", choices=BUILT_IN, default=list(BUILT_IN))
    parser.add_argument("--parallel", nargs="+", type=int, default=parallel.PARALLEL)
    parser.add_argument("--seconds", type=float, default=2.0, help="CPU seconds of steps of a measurement")
    parser.add_argument("--data-dir", help="folder with json_2.1.1/: the household engines on real games")
    parser.add_argument("--games", type=int, default=6)
    parser.add_argument("--steps", type=int, default=30, help="steps a game")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--json", type=pathlib.Path, help="where to write the result")
    options = parser.parse_args(arguments)
    if min(options.parallel) < 1 or options.seconds <= 0:
        parser.error(f"--parallel {options.parallel} must be from 1, and --seconds {options.seconds} above 0")
    result = compare_household(options) if options.data_dir else measure_parallel(options)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
