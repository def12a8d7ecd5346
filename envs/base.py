"""The contract between an environment, its verifier interface and the rest of the project.

An environment is ordinary Python with text in and text out. Beside its own terminal score it
offers a *verifier interface*: atoms (the facts the score program checks), evidence variables (the
observable values those facts depend on), requirements between atoms, and commit steps. After an
episode the interface yields one `VerifierRecord` of plain NumPy arrays; nothing else about the
verifier leaves the environment and the policy never sees any of it.

Axes: T steps, M atoms, V evidence variables. Index t of a [T+1, ...] array is the state *before*
action t; index T is the terminal state. Source: VICT (arXiv 2608.28128), section 3.2 and Eq. 3.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np


class Status(enum.IntEnum):
    """Value of an atom at one moment. UNKNOWN is not UNSATISFIED: its evidence is not there yet."""

    UNKNOWN = 0
    SATISFIED = 1
    UNSATISFIED = 2
    VIOLATED = 3


@dataclasses.dataclass(frozen=True)
class Task:
    """One task of a split.

    Attributes:
      id: unique in the environment, stable between runs.
      type: task type, the unit of the success table (`pick_and_place_simple`, ...).
      split: `train`, `valid_seen`, `valid_unseen`, ...
      seed: seed of everything random in the task; 0 where nothing is.
      source: what the environment needs to build it (a file path or a generator's specification).
    """

    id: str
    type: str
    split: str
    seed: int
    source: str


@dataclasses.dataclass(frozen=True)
class Observation:
    """What the policy may see: a text and the admissible commands (may be empty if unknown)."""

    text: str
    admissible: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class StepResult:
    """Answer to one action. `info["valid"]` says whether the environment accepted the action."""

    observation: Observation
    done: bool
    info: Mapping[str, Any]


class ScoreRole(enum.Enum):
    """How the score reads an atom: directly, or only through another atom's requirements."""

    SCORED = "scored"
    SUPPORT = "support"


@dataclasses.dataclass(frozen=True)
class Atom:
    """One fact that the terminal verifier checks.

    Attributes:
      id: name, unique in the task (`placed`, `heated`, `placed_2`).
      family: atoms of one family are masked together when conformance fails.
      variables: ids of the evidence variables the predicate reads.
      requires: ids of atoms that must all hold for this one to hold (not necessarily closed).
      alternatives: further premises in several ways, one of which must hold as well; each is a tuple of
        atom ids. With none there is nothing to choose. Read as Horn rules: `id <- requires and way`.
      irreversible: a VIOLATED status can never be undone.
      terminal_only: evaluated only at the end; keeps its last writer or final commit.
      role: read by the score, or only required by atoms that are.
      source: audit source, the place in the original verifier where the check is made.
      level: instrumentation level: 0 state difference, 1 verifier branch, 2 evidence adapter.
      description: text for people; never parsed.
    """

    id: str
    family: str
    variables: tuple[str, ...]
    requires: tuple[str, ...] = ()
    alternatives: tuple[tuple[str, ...], ...] = ()
    irreversible: bool = False
    terminal_only: bool = False
    role: ScoreRole = ScoreRole.SCORED
    source: str = ""
    level: int = 0
    description: str = ""


@dataclasses.dataclass(frozen=True)
class Variable:
    """An evidence variable. A state variable is written; an observation variable is revealed."""

    id: str
    observation: bool = False


@dataclasses.dataclass(frozen=True)
class VerifierRecord:
    """Everything credit needs to know about one finished rollout of T steps.

    Attributes:
      atoms: M atoms.
      variables: V evidence variables.
      status: int8[T+1, M], values of `Status`.
      evidence: T+1 rows of V value texts; "" means not available yet. Hashed by `hash_evidence`.
      commits: bool[T], the action finalises something.
      scope: bool[T, M], the atoms it finalises; all False where `commits` is.
      params: aggregator parameters, a flat dict of arrays whose axes of length M are named in
        `Domain.atom_params`.
      eta: tolerance of |F - V|, finite and not below 0; 0 for a Boolean verifier.
      score: V, the environment's own terminal score, finite.
    """

    atoms: tuple[Atom, ...]
    variables: tuple[Variable, ...]
    status: np.ndarray
    evidence: tuple[tuple[str, ...], ...]
    commits: np.ndarray
    scope: np.ndarray
    params: Mapping[str, np.ndarray]
    eta: float
    score: float

    def __post_init__(self) -> None:
        steps, atoms, variables = len(self.commits), len(self.atoms), len(self.variables)
        expected = {"status": (steps + 1, atoms), "scope": (steps, atoms)}
        for name, shape in expected.items():
            actual = getattr(self, name).shape
            if actual != shape:
                raise ValueError(f"VerifierRecord.{name} has shape {actual}, expected {shape}")
        if len(self.evidence) != steps + 1 or any(len(row) != variables for row in self.evidence):
            raise ValueError(f"VerifierRecord.evidence must be {steps + 1} rows of {variables} texts")
        if not (math.isfinite(self.score) and math.isfinite(self.eta) and self.eta >= 0):
            raise ValueError(
                f"VerifierRecord.score={self.score} and eta={self.eta} are not allowed: both must be finite, "
                "and eta not below 0"
            )
        known = {variable.id for variable in self.variables}
        for atom in self.atoms:
            missing = set(atom.variables) - known
            if missing:
                raise ValueError(
                    f"atom {atom.id!r} reads unknown variables {sorted(missing)}; known: {sorted(known)}"
                )


def stable_hash(text: str) -> int:
    """A positive int32 for `text`, the same in every process and run; 0 only for the empty text."""
    # A lone surrogate is a character, too: what a policy says may hold anything.
    return 0 if not text else (zlib.crc32(text.encode("utf-8", "surrogatepass")) & 0x7FFFFFFF) or 1


# The values of a variable repeat from state to state and from rollout to rollout.
_remembered_hash = functools.lru_cache(maxsize=65536)(stable_hash)


def hash_evidence(evidence: Sequence[Sequence[str]]) -> np.ndarray:
    """Hash a [T+1][V] table of value texts into int32[T+1, V]; 0 means not available yet."""
    values = map(_remembered_hash, itertools.chain.from_iterable(evidence))
    return np.fromiter(values, np.int32).reshape(len(evidence), -1)


class Env(Protocol):
    """One environment instance. Used by one worker process, never shared between threads."""

    def reset(self, task: Task) -> Observation:
        """Start `task` and return the first observation (it contains the instruction)."""
        ...

    def step(self, action: str) -> StepResult:
        """Apply one action text. Never raises on any text; a bad action is answered, not refused."""
        ...

    def record(self) -> VerifierRecord:
        """The verifier's record of the episode so far, with the original score of the current state."""
        ...

    def expert_action(self) -> str:
        """The next action of the built-in expert, which acts on what the policy could have seen."""
        ...

    def close(self) -> None:
        """Release everything held."""
        ...


# F_x of Eq. 3: (satisfied bool[M], params) -> score. Written with operators that NumPy and JAX
# arrays share, so that it is traceable without importing JAX here.
Aggregate = Callable[[Any, Mapping[str, Any]], Any]


def no_mutations(options: Any, task: Task) -> Mapping[str, Sequence[str]]:
    """`Domain.mutations` of a domain that has none of its own."""
    return {}


def nothing_to_add(options: Any) -> str:
    """`Domain.about` of a domain whose name says enough, `Domain.guide` of one that explains itself."""
    return ""


@dataclasses.dataclass(frozen=True)
class StepNote:
    """What an environment knows of one step of a rollout beyond the record, for credit by rubric.

    Attributes:
      context: where the agent stands before the action (page, place, tool, stage), in words; steps of a task
        with the same context, evidence and statuses are compared with each other.
      refused: the answer says that the action could not be done although `info["valid"]` was True.
    """

    context: str = ""
    refused: bool = False


def no_notes(
    observations: Sequence[str], actions: Sequence[str], valid: Sequence[bool]
) -> Sequence[StepNote]:
    """`Domain.notes` of a domain whose evidence says where an agent stands."""
    return [StepNote()] * len(actions)


def no_data(options: Any, splits: Sequence[str]) -> Mapping[str, str]:
    """`Domain.manifest` of a domain that reads no files."""
    return {}


@dataclasses.dataclass(frozen=True)
class Domain:
    """An environment family as the rest of the project sees it.

    Attributes:
      name: `alfworld`, ...
      make: builds one `Env` from the options; a picklable top-level function, called in workers.
      tasks: (options, split) -> the tasks of a split, in a fixed order.
      splits: the splits there are.
      aggregate: F_x; must not share code with the environment's own score.
      atom_params: names of the aggregator parameters and their kind: True if the array has the atom
        axis M first (padded with 0), False if it is a scalar.
      max_atoms, max_variables: upper bounds, the padded sizes.
      max_steps: options -> the step cap.
      corpus: options -> texts that a tokenizer for this environment should be trained on.
      mutations: (options, task) -> name -> actions of a rollout that departs from a solution in one thing
        that the verifier has to notice; `envs.conformance` plays them.
      manifest: (options, splits) -> name of a data file (or set of files) -> its SHA-256. A run refuses to
        continue when it has changed.
      no_op: an action text that changes nothing but the step count, for interventions: it takes the place
        of an action in a replay.
      about: options -> what a score is only comparable with the same of, in words (the size of a catalogue,
        the version of the rules); shown and stored wherever a score is, "" for nothing.
      guide: options -> what a model that was not trained here is told before the first observation: what it
        is about, and the form of an action; "" if the observations say that.
      notes: (T observations, each before its action, T actions, T flags `info["valid"]`) -> T notes. It sees
        what the policy sees and no more; the answer to the last action is not there.
    """

    name: str
    make: Callable[[Any], Env]
    tasks: Callable[[Any, str], Sequence[Task]]
    splits: tuple[str, ...]
    aggregate: Aggregate
    atom_params: Mapping[str, bool]
    max_atoms: int
    max_variables: int
    max_steps: Callable[[Any], int]
    corpus: Callable[[Any], Sequence[str]]
    mutations: Callable[[Any, Task], Mapping[str, Sequence[str]]] = no_mutations
    manifest: Callable[[Any, Sequence[str]], Mapping[str, str]] = no_data
    no_op: str = "do nothing"
    about: Callable[[Any], str] = nothing_to_add
    guide: Callable[[Any], str] = nothing_to_add
    notes: Callable[[Sequence[str], Sequence[str], Sequence[bool]], Sequence[StepNote]] = no_notes
