"""A refund desk: read the orders of what a customer returns and pay each back in the right way.

    > list orders              There are orders of: lamp, rug, mug, vase.
    > open rug                 The rug is used and was paid by card.
    > refund to credit         You refund the rug to credit.
    > close ticket             The ticket is closed.

What has been paid out stays paid out: a refund to the wrong place, or of another order, cannot be made
good. The score is the share of the returned things that were refunded rightly; it is 0 until the ticket is
closed, and 0 for good once another order was refunded. docs/your_environment.md walks through this file.
"""

from __future__ import annotations

import dataclasses
import operator
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from envs.base import Atom, Domain, Observation, ScoreRole, Status, StepResult, Task, Variable, VerifierRecord

THINGS = ("lamp", "mug", "rug", "clock", "vase", "chair", "kettle", "mirror")
STATES = ("used", "sealed")
METHODS = ("card", "cash", "transfer")
TYPES = ("one_thing", "two_things", "three_things")
REFUSED = "That is not possible."


@dataclasses.dataclass(frozen=True)
class Options:
    """Number of tasks of each split, the step cap, and how many orders a customer has."""

    num_train: int = 2000
    num_valid: int = 96
    max_steps: int = 12
    orders: int = 5

    def __post_init__(self) -> None:
        if not len(TYPES) < self.orders <= len(THINGS):
            raise ValueError(f"orders={self.orders} must be from {len(TYPES) + 1} to {len(THINGS)}")
        if self.max_steps < (longest := 2 + 2 * len(TYPES)):
            raise ValueError(f"max_steps={self.max_steps} must be {longest} or more, the longest solution")


class RefundDesk:
    """One ticket at a time, see `envs.base.Env`: first the desk itself, then its verifier interface."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def reset(self, task: Task) -> Observation:
        """Draw the orders and the things that the customer returns."""
        rng = random.Random(task.seed)
        things = rng.sample(THINGS, self.options.orders)
        self.orders = {thing: (rng.choice(STATES), rng.choice(METHODS)) for thing in things}
        self.wanted = rng.sample(things, 1 + TYPES.index(task.type))
        self.listed, self.closed, self.current = False, False, ""
        self.read: set[str] = set()
        self.refunds: dict[str, str] = {}
        self.history = [self.evidence()]
        rule = "Refund used things to credit, sealed ones the way they were paid."
        text = f"The customer returns the {' and the '.join(self.wanted)}. {rule}"
        return Observation(text, self.admissible())

    def step(self, action: str) -> StepResult:
        """Any text may come; what the desk does not take is answered with `REFUSED`."""
        valid = action in self.admissible()
        text = self.apply(action.split()) if valid else REFUSED
        self.history.append(self.evidence())
        done = self.closed or len(self.history) > self.options.max_steps
        return StepResult(Observation(text, self.admissible()), done, {"valid": valid})

    def apply(self, words: Sequence[str]) -> str:
        """Carry out an admissible action and say what happened."""
        if words[0] == "list":
            self.listed = True
            return f"There are orders of: {', '.join(self.orders)}."
        if words[0] == "open":
            self.current = words[1]
            self.read.add(self.current)
            return "The {} is {} and was paid by {}.".format(self.current, *self.orders[self.current])
        if words[0] == "refund":
            self.refunds[self.current] = words[2]
            return f"You refund the {self.current} to {words[2]}."
        self.closed = True
        return "The ticket is closed."

    def admissible(self) -> tuple[str, ...]:
        """What the desk takes now; an order must be open to be refunded, and is refunded once."""
        actions = ["list orders", *(f"open {thing}" for thing in self.orders if self.listed)]
        if self.current and self.current not in self.refunds:
            actions += [f"refund to {place}" for place in (*METHODS, "credit")]
        return (*actions, "close ticket")

    def score(self) -> float:
        """The desk's own verdict, from its books."""
        if not self.closed or not self.refunds.keys() <= set(self.wanted):
            return 0.0
        books = [(self.refunds.get(thing), *self.orders[thing]) for thing in self.wanted]
        right = [place == ("credit" if state == "used" else method) for place, state, method in books]
        return sum(right) / len(right)

    def expert_action(self) -> str:
        """Open and refund one returned thing after the other."""
        due = [thing for thing in self.wanted if thing not in self.refunds]
        if not due or not self.listed:
            return "list orders" if due else "close ticket"
        if self.current in due:
            state, method = self.orders[self.current]
            return f"refund to {'credit' if state == 'used' else method}"
        return f"open {due[0]}"

    def close(self) -> None:
        """Nothing is held."""

    def evidence(self) -> dict[str, str]:
        """The evidence variables now; "" is the value of one that is not available yet."""
        now = {"orders": "listed" if self.listed else ""}
        for i, thing in enumerate(self.wanted, start=1):
            now[f"details_{i}"] = " ".join(self.orders[thing]) if thing in self.read else ""
            now[f"refund_{i}"] = self.refunds.get(thing, "none")
        others = [thing for thing in self.refunds if thing not in self.wanted]
        return now | {"others": " ".join(others) or "none", "ticket": "closed" if self.closed else "open"}

    def statuses(self, now: Mapping[str, str]) -> list[Status]:
        """What the evidence of one moment says of each atom, in the order of `atoms_of`."""
        found = [Status.SATISFIED if now["orders"] else Status.UNKNOWN]
        for i, thing in enumerate(self.wanted, start=1):
            state, method = self.orders[thing]
            verdicts = {
                "none": Status.UNSATISFIED,
                method if state == "sealed" else "credit": Status.SATISFIED,
            }
            verdict = verdicts.get(now[f"refund_{i}"], Status.VIOLATED)
            found += [Status.SATISFIED, verdict] if now[f"details_{i}"] else [Status.UNKNOWN] * 2
        found.append(Status.SATISFIED if now["others"] == "none" else Status.VIOLATED)
        return [*found, Status.SATISFIED if now["ticket"] == "closed" else Status.UNSATISFIED]

    def record(self) -> VerifierRecord:
        """The verifier's record so far; `score` is the one line taken over from the desk."""
        atoms = atoms_of(len(self.wanted))
        families = np.array([atom.family for atom in atoms])
        commits = np.array([now["ticket"] == "closed" for now in self.history[1:]], bool)
        return VerifierRecord(
            atoms=atoms,
            variables=tuple(Variable(v, v.startswith(("orders", "details"))) for v in self.history[0]),
            status=np.array([self.statuses(now) for now in self.history], np.int8),
            evidence=tuple(tuple(now.values()) for now in self.history),
            commits=commits,
            scope=commits[:, None] & np.isin(families, ("refunded", "ticket_closed")),
            params={
                "gate": np.isin(families, ("nothing_else", "ticket_closed")),
                "share": (families == "refunded").astype(np.float32) / len(self.wanted),
            },
            eta=1e-6,  # thirds in float32
            score=self.score(),
        )


def atoms_of(count: int) -> tuple[Atom, ...]:
    """The atoms of a ticket about `count` things."""
    atoms = [Atom("orders_listed", "orders_listed", ("orders",), role=ScoreRole.SUPPORT, level=2)]
    for i in range(1, count + 1):
        read, refunded, listed = f"order_read_{i}", f"refunded_{i}", ("orders_listed",)
        atoms += [Atom(read, "order_read", (f"details_{i}",), listed, role=ScoreRole.SUPPORT, level=2)]
        atoms += [Atom(refunded, "refunded", (f"refund_{i}",), (read,), irreversible=True)]
    atoms += [Atom("nothing_else", "nothing_else", ("others",), irreversible=True)]
    return (*atoms, Atom("ticket_closed", "ticket_closed", ("ticket",)))


def aggregate(satisfied: Any, params: Mapping[str, Any]) -> Any:
    """F: the share of right refunds if every gate holds, else 0. Runs on NumPy and on JAX arrays."""
    return (satisfied | ~params["gate"]).all() * (satisfied * params["share"]).sum()


def tasks(options: Options, split: str) -> Sequence[Task]:
    """The tasks of a split; the types take turns, and no seed is in both splits."""
    first, count = {"train": (0, options.num_train), "valid": (10**6, options.num_valid)}[split]
    return [Task(f"{split}_{i}", TYPES[i % len(TYPES)], split, first + i, "") for i in range(count)]


def walk(options: Options, task: Task) -> tuple[RefundDesk, list[str], list[str]]:
    """An episode of the expert: the desk at its end, the actions, and all texts."""
    desk, actions, done = RefundDesk(options), list[str](), False
    texts = [desk.reset(task).text]
    while not done:
        actions.append(desk.expert_action())
        result = desk.step(actions[-1])
        texts += [actions[-1], result.observation.text]
        done = result.done
    return desk, actions, texts


def corpus(options: Options) -> Sequence[str]:
    """Texts for the tokenizer."""
    return [REFUSED, *(text for task in tasks(options, "train")[:300] for text in walk(options, task)[2])]


def mutations(options: Options, task: Task) -> Mapping[str, Sequence[str]]:
    """Episodes that differ from the expert's in one thing that the score has to notice."""
    desk, actions, _ = walk(options, task)
    at = next(t for t, action in enumerate(actions) if action.startswith("refund"))
    wrong = "refund to cash" if actions[at] != "refund to cash" else "refund to credit"
    other = next(thing for thing in desk.orders if thing not in desk.wanted)
    return {
        "ticket left open": actions[:-1],
        "closed at once": ["close ticket"],
        "a refund left out": actions[:at] + actions[at + 1 :],
        "a refund to the wrong place": [*actions[:at], wrong, *actions[at + 1 :]],
        "another order refunded": [*actions[:-1], f"open {other}", "refund to credit", "close ticket"],
    }


DOMAIN = Domain(
    name="refunds",
    make=RefundDesk,
    tasks=tasks,
    splits=("train", "valid"),
    aggregate=aggregate,
    atom_params={"gate": True, "share": True},
    max_atoms=9,
    max_variables=9,
    max_steps=operator.attrgetter("max_steps"),
    corpus=corpus,
    mutations=mutations,
    no_op="wait",
)
