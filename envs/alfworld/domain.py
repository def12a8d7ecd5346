"""ALFWorld as a `Domain`: options, task lists, the environment, texts for the tokenizer."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import pathlib
import random
from collections.abc import Callable, Mapping, Sequence
from typing import overload

from envs.alfworld import expert, generate, pddl, verifier
from envs.alfworld.engine import Engine, NativeEngine
from envs.alfworld.game import TASK_TYPES, Game, TextVersion
from envs.alfworld.mutations import mutations as game_mutations
from envs.alfworld.notes import notes
from envs.base import Domain, Observation, StepResult, Task, VerifierRecord

_CORPUS_GAMES = 240
_RANDOM_SHARE = 0.4
# Seeds of the generated splits start here, so they are disjoint; options.seed shifts all of them.
_FIRST_SEED = {"train": 0, "valid_seen": 10**8, "valid_unseen": 2 * 10**8}
_SEEDS = 10**9


@dataclasses.dataclass(frozen=True)
class AlfworldOptions:
    """Which games, on which engine.

    Attributes:
      engine: `native`, or `textworld` for the original (extra `alfworld`).
      data_dir: folder of the real games, as `envs.alfworld.pddl.list_games` takes it; empty: generated games.
      task_types: the task types to play.
      max_steps: steps after which an episode ends.
      num_train, num_valid: generated tasks of the train split, and of each validation split.
      seed: of the generated tasks.
      min_receptacles, max_receptacles, min_things, max_things, layouts, unseen_layouts: of generated
        rooms, see `generate.RoomOptions`.
      text_version: command texts of generated games, `move` (new) or `put` (old).
    """

    engine: str = "native"
    data_dir: str = ""
    task_types: tuple[str, ...] = TASK_TYPES
    max_steps: int = 50
    num_train: int = 512
    num_valid: int = 60
    seed: int = 0
    min_receptacles: int = 5
    max_receptacles: int = 7
    min_things: int = 4
    max_things: int = 8
    layouts: int = 24
    unseen_layouts: int = 8
    text_version: str = "move"

    def __post_init__(self) -> None:
        if self.engine not in _ENGINES:
            raise ValueError(f"engine={self.engine!r} is not one of {tuple(_ENGINES)}")
        if self.text_version not in _TEXT_VERSIONS:
            raise ValueError(f"text_version={self.text_version!r} is not one of {tuple(_TEXT_VERSIONS)}")
        unknown = set(self.task_types) - set(TASK_TYPES)
        if unknown or not self.task_types:
            raise ValueError(f"task_types={self.task_types} must be a non-empty selection of {TASK_TYPES}")
        for name, value in {"max_steps": self.max_steps, "num_train": self.num_train}.items():
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        if not 1 <= self.num_valid < _FIRST_SEED["valid_seen"] or self.num_train > _FIRST_SEED["valid_seen"]:
            counts = f"num_train={self.num_train}, num_valid={self.num_valid}"
            raise ValueError(
                f"{counts} must be from 1 to {10**8}, so that the seeds of two splits never meet"
            )
        if not 0 <= self.seed < 10**6:
            raise ValueError(f"seed={self.seed} must be in [0, {10**6})")
        self.room()

    def room(self) -> generate.RoomOptions:
        """Sizes of generated rooms."""
        return generate.RoomOptions(
            min_receptacles=self.min_receptacles,
            max_receptacles=self.max_receptacles,
            min_things=self.min_things,
            max_things=self.max_things,
            layouts=self.layouts,
            unseen_layouts=self.unseen_layouts,
            text_version=_TEXT_VERSIONS[self.text_version],
        )


Options = AlfworldOptions  # the name under which `envs.lookup` finds them


def _textworld() -> Engine:
    from envs.alfworld.textworld import TextWorldEngine  # the optional extra, imported when asked for

    return TextWorldEngine(memoise=True)


_ENGINES: Mapping[str, Callable[[], Engine]] = {"native": NativeEngine, "textworld": _textworld}
_TEXT_VERSIONS = {"move": TextVersion.MOVE, "put": TextVersion.PUT_IN_ON}


class GeneratedTasks(Sequence[Task]):
    """The generated tasks of a split, made when asked for; task types take turns."""

    def __init__(self, options: AlfworldOptions, split: str) -> None:
        if split not in generate.SPLITS:
            raise ValueError(f"split {split!r} is not one of {generate.SPLITS}; real games need data_dir")
        self._options, self._split = options, split

    def __len__(self) -> int:
        return self._options.num_train if self._split == "train" else self._options.num_valid

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | Sequence[Task]:
        if isinstance(index, slice):
            return [self._task(i) for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"task {index} of {len(self)}")
        return self._task(index % len(self))

    def _task(self, index: int) -> Task:
        types = self._options.task_types
        task_type = types[index % len(types)]
        seed = self._options.seed * _SEEDS + _FIRST_SEED[self._split] + index
        return Task(f"{self._split}/{task_type}/{seed}", task_type, self._split, seed, "generated")


def tasks(options: AlfworldOptions, split: str) -> Sequence[Task]:
    """The tasks of a split: real games ordered by id, or generated ones."""
    if not options.data_dir:
        return GeneratedTasks(options, split)
    games = pddl.list_games(options.data_dir, split)
    return [Task(g.id, g.task_type, split, 0, g.source) for g in games if g.task_type in options.task_types]


@functools.lru_cache(maxsize=64)
def _game(task: Task, options: AlfworldOptions) -> Game:
    # Cached, as the rollouts of a group all play the same game.
    if options.data_dir:
        return pddl.load_game(task.source)
    return generate.generate_game(task.seed, task_type=task.type, split=task.split, room=options.room())


class AlfworldEnv:
    """One ALFWorld game at a time; implements `envs.base.Env`.

    `info` holds `valid` (the engine accepted the command) and `won`. An episode is done when it is won
    or after `max_steps` steps.
    """

    def __init__(self, options: AlfworldOptions) -> None:
        self._options = options
        self._engine = _ENGINES[options.engine]()

    def reset(self, task: Task) -> Observation:
        """See `Env.reset`."""
        game = _game(task, self._options)
        text = self._engine.start(game)
        admissible = self._engine.admissible()
        self._spec = verifier.specify(game, self._engine.names.of)
        self._history = [verifier.observe(self._spec, self._engine.world, ())]
        self._memory = expert.begin(text, admissible)
        self._observation = Observation(text, admissible)
        return self._observation

    def step(self, action: str) -> StepResult:
        """See `Env.step`."""
        text, valid = self._engine.step(action)
        self._observation = Observation(text, self._engine.admissible())
        self._history.append(verifier.observe(self._spec, self._engine.world, self._history))
        expert.notice(self._memory, text, self._observation.admissible)
        won = self._engine.won()
        done = won or len(self._history) > self._options.max_steps
        return StepResult(self._observation, done, {"valid": valid, "won": won})

    def record(self) -> VerifierRecord:
        """See `Env.record`."""
        return verifier.record(self._spec, self._history, float(self._engine.won()))

    def expert_action(self) -> str:
        """See `Env.expert_action`."""
        return expert.decide(self._memory, self._observation.admissible)

    def close(self) -> None:
        """See `Env.close`; nothing is held."""


def corpus(options: AlfworldOptions) -> list[str]:
    """Texts of training games, walked by the expert with some random steps: observations and commands."""
    chosen = tasks(options, "train")
    chosen = [chosen[i] for i in range(0, len(chosen), max(1, len(chosen) // _CORPUS_GAMES))]
    rng, env, texts = random.Random(0), AlfworldEnv(options), []
    for task in chosen[:_CORPUS_GAMES]:
        observation, done = env.reset(task), False
        while not done:
            texts += [observation.text, "\n".join(observation.admissible)]
            by_chance = rng.random() < _RANDOM_SHARE
            action = rng.choice(observation.admissible) if by_chance else env.expert_action()
            texts.append(action)
            result = env.step(action)
            observation, done = result.observation, result.done
        texts.append(observation.text)
    return texts


def max_steps(options: AlfworldOptions) -> int:
    """See `Domain.max_steps`."""
    return options.max_steps


def mutations(options: AlfworldOptions, task: Task) -> Mapping[str, Sequence[str]]:
    """See `Domain.mutations`."""
    return game_mutations(_game(task, options))


def manifest(options: AlfworldOptions, splits: Sequence[str]) -> Mapping[str, str]:
    """See `Domain.manifest`: the archive, or the game files of each split together."""
    if not options.data_dir:
        return {}
    found: dict[str, str] = {}
    for split in splits:
        sources = [game.source for game in pddl.list_games(options.data_dir, split)]
        archives = sorted({source.partition("#")[0] for source in sources if "#" in source})
        found |= {pathlib.Path(path).name: _sha256([path]) for path in archives}
        if files := [source for source in sources if "#" not in source]:
            found[f"{split}: {len(files)} game files"] = _sha256(files)
    return found


def _sha256(paths: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(pathlib.Path(path).read_bytes())
    return digest.hexdigest()


def guide(options: AlfworldOptions) -> str:
    """See `Domain.guide`. A real game may take either of the two ways of putting things down."""
    return (
        "You are in a room of a house and have a task to do there. Things lie in or on receptacles, some of "
        "which have to be opened; go to a receptacle before you do anything with it, and carry one thing at "
        "a time.\nAn action is one command: go to R, open R, close R, take X from R, move X to R (older "
        "games say: put X in/on R), clean X with R, heat X with R, cool X with R, use X, examine X, "
        "examine R, look, inventory. Names have numbers, such as drawer 2."
    )


DOMAIN = Domain(
    name="alfworld",
    make=AlfworldEnv,
    tasks=tasks,
    splits=generate.SPLITS,
    aggregate=verifier.aggregate,
    atom_params={"required": True},
    max_atoms=6,
    max_variables=6,
    max_steps=max_steps,
    corpus=corpus,
    mutations=mutations,
    manifest=manifest,
    guide=guide,
    notes=notes,
)
