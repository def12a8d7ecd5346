"""The verifier interface of tau-bench: atoms, evidence and commits beside the engine's own score.

The ground truth is replayed once per task on its own view of the database. What it changes, field by field,
becomes atoms; everything else must stay as it was:

    <group>:<record>   the fields of a group (`status`, `items`, ...) of a record are as by the ground truth
    unchanged:<table>  every other field of the table, and every other record, is as at the start
    said:<n>           a required output was said to the customer
    ended              the conversation was ended
    known:<n>          support: what the n-th ground-truth write rests on was shown (the record, the ids of
                       new items or flights, the payment method), or was used rightly without it
    identified, confirmed, allowed    support: no change of the database before the customer was identified,
                       without an explicit yes, or against a rule of the agent's policy (`conduct`)

The original score does not read the last three; with `score="procedure"` the first two of them are read.
A field that can never become right again is VIOLATED: payment histories only grow, an order's status and
what is returned or exchanged are set once, a booking stays. Other wrong values can be repaired: UNSATISFIED.

Source: tau-bench (arXiv 2406.12045), section 3, and VICT (arXiv 2608.28128), section 3.2.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from envs.base import Atom, ScoreRole, Status, Variable, VerifierRecord
from envs.tau_bench import conduct, evidence
from envs.tau_bench.data import Bench, TaskSpec
from envs.tau_bench.evidence import MISSING, Need, Records, value_text
from envs.tau_bench.fields import Field, differing, fields_of, group
from envs.tau_bench.session import RESPOND, Step

ORIGINAL, PROCEDURE = SCORES = ("original", "procedure")
NOTHING, UNCHANGED, NOT_YET, SAID = "none", "unchanged", "not yet", "said"
_POLICY = ("identified", "confirmed", "allowed")
_OPEN, _ENDED = "open", "ended"


@dataclasses.dataclass(frozen=True)
class Spec:
    """What the verifier knows of a task before the first step.

    Attributes:
      bench, task: what is verified.
      atoms, variables: as in `VerifierRecord`.
      fields: atom id -> the fields that it checks: a group of which the ground truth changes some.
      needs: what the ground-truth writes rest on.
      relies: `known` atom -> the field atoms that require it; alone: those that require no other.
      required: bool[M], the atoms that the score reads.
      frames: tables whose other fields must stay as they were.
    """

    bench: Bench
    task: TaskSpec
    atoms: tuple[Atom, ...]
    variables: tuple[Variable, ...]
    fields: Mapping[str, tuple[Field, ...]]
    needs: tuple[Need, ...]
    relies: Mapping[str, frozenset[str]]
    alone: Mapping[str, frozenset[str]]
    required: np.ndarray
    frames: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Moment:
    """The state after some actions.

    Attributes:
      values: variable id -> text. status: atom id -> status.
      commits: atoms that the last action finalised. settled: those that any action has.
      facts: what the conversation has shown so far.
      records: records that differ from the base.
    """

    values: Mapping[str, str]
    status: Mapping[str, Status]
    commits: frozenset[str]
    settled: frozenset[str]
    facts: evidence.Facts
    records: Records


def aggregate(satisfied: Any, params: Mapping[str, Any]) -> Any:
    """F of VICT Eq. 3: all atoms that the score reads hold.

    Args:
      satisfied: bool[M].
      params: `required` bool[M].

    Returns:
      bool[], of the array library that came in.
    """
    return (satisfied | ~params["required"]).all()


@functools.lru_cache(maxsize=512)
def specify(bench: Bench, task: TaskSpec, score: str = ORIGINAL) -> Spec:
    """Atoms and variables of a task.

    Args:
      score: `original`, or `procedure`, which reads `identified` and `confirmed` as well.

    Raises:
      ValueError: another score.
    """
    if score not in SCORES:
        raise ValueError(f"score={score!r} is not one of {SCORES}")
    truth = evidence.replay(bench, task)
    needs = evidence.needs(bench, task, truth)
    fields = _changed_fields(bench, truth)
    fields_atoms = tuple(_field_atoms(fields, truth, needs))
    frames = ("orders", "users") if bench.domain == "retail" else ("reservations", "users")
    # A core that does not hold all takes the first, so what an agent did comes before what it left alone.
    atoms = (
        *fields_atoms,
        *map(_output_atom, range(1, len(task.outputs) + 1)),
        *map(_frame_atom, frames),
        Atom("ended", "ended", ("conversation",), source="Env.step: done"),
        *_support_atoms(bench.domain, needs, score),
    )
    names = dict.fromkeys(name for atom in atoms for name in atom.variables)
    return Spec(
        bench=bench,
        task=task,
        atoms=atoms,
        variables=tuple(Variable(name, name.startswith(evidence.OBSERVED)) for name in names),
        fields=fields,
        needs=needs,
        relies={n.atom: frozenset(a.id for a in fields_atoms if n.atom in a.requires) for n in needs},
        alone={n.atom: frozenset(a.id for a in fields_atoms if a.requires == (n.atom,)) for n in needs},
        required=np.array([atom.role is ScoreRole.SCORED for atom in atoms]),
        frames=frames,
    )


def _changed_fields(bench: Bench, truth: evidence.Truth) -> dict[str, tuple[Field, ...]]:
    """Atom id -> its fields. A list that several calls add to is as many atoms."""
    groups: dict[str, list[Field]] = {}
    for (table, key), record in truth.records.items():
        changed = {group(field) for field in differing(bench, table, key, record)}
        for field in fields_of(bench, table, key, record):
            if group(field) not in changed:
                continue
            place = (table, key, field.name)
            stops = sorted({lengths[place] for lengths in truth.writes if place in lengths})
            parts = field.stretches(stops) if field.grows and stops else (field,)
            for n, part in enumerate(parts, start=1):
                id_ = f"{group(field)}:{key}" if n == 1 else f"{group(field)} {n}:{key}"
                groups.setdefault(id_, []).append(part)
    return {id_: tuple(fields) for id_, fields in groups.items()}


def _field_atoms(
    fields: Mapping[str, tuple[Field, ...]], truth: evidence.Truth, needs: Sequence[Need]
) -> Iterator[Atom]:
    for id_, parts in fields.items():
        table, names = parts[0].table, [part.name for part in parts]
        yield Atom(
            id=id_,
            family=f"{table}.{group(parts[0])}",
            variables=(id_,),
            requires=tuple(need.atom for need in needs if _writes(truth.writes[need.call], parts)),
            irreversible=not all(part.rewritable for part in parts),
            source=f"calculate_reward: {', '.join(names)} in {table} after the actions",
        )


def _writes(lengths: Mapping[evidence.Place, int], parts: Sequence[Field]) -> bool:
    """Whether a call of the ground truth wrote one of the fields, or its stretch of a list."""
    written = ((part, lengths.get((part.table, part.key, part.name))) for part in parts)
    return any(length is not None and part.ends_at(length) for part, length in written)


def _support_atoms(domain: str, needs: Sequence[Need], score: str) -> Iterator[Atom]:
    consents = tuple(need.consent for need in needs)
    variables = {"identified": (evidence.IDENTITY,), "confirmed": consents, "allowed": ()}
    for name in _POLICY if domain == "airline" else _POLICY[:2]:
        read = score == PROCEDURE and name != "allowed"
        yield Atom(
            id=name,
            family=name,
            variables=(f"not {name}", *variables[name]),
            irreversible=True,
            role=ScoreRole.SCORED if read else ScoreRole.SUPPORT,
            source="policy of the agent",
            level=2,
        )
    for need in needs:
        yield Atom(need.atom, "known", need.variables, role=ScoreRole.SUPPORT, source="read tools", level=2)


def _frame_atom(table: str) -> Atom:
    return Atom(
        id=f"unchanged:{table}",
        family=f"{table}.unchanged",
        variables=(f"changes of {table}",),
        irreversible=True,
        source="calculate_reward: hash of the whole database",
    )


def _output_atom(n: int) -> Atom:
    return Atom(f"said:{n}", "said", (f"output {n}",), irreversible=True, source="r_outputs", level=1)


def start(spec: Spec, opening: str) -> Moment:
    """The moment before the first action; `opening` is the customer's first message."""
    facts = evidence.heard(evidence.Facts(), opening, spec.task.user_id, spec.bench.domain)
    state, status = _judge_database(spec, {})
    state |= {f"output {n}": NOT_YET for n in range(1, len(spec.task.outputs) + 1)}
    state["conversation"] = _OPEN
    nowhere = Moment({}, {}, frozenset(), frozenset(), facts, {})
    return _complete(spec, nowhere, state, status, _learnt(spec, facts, state, status, ""), {})


def observe(spec: Spec, before: Moment, step: Step | None, records: Records) -> Moment:
    """The moment after an action.

    Args:
      step: what the session did; None for a text that was no action, which changes nothing.
      records: records of the session's database that differ from the base.
    """
    if step is None:
        return dataclasses.replace(before, commits=frozenset())
    state = {v.id: before.values[v.id] for v in spec.variables if not v.observation}
    status = dict(before.status)
    if step.diff:
        changed, judged = _judge_database(spec, records)
        state, status = state | changed, status | judged
    for n, output in enumerate(spec.task.outputs, start=1):
        state[f"output {n}"] = _said(output, state[f"output {n}"], step)
    state["conversation"] = _ENDED if step.outcome.done else _OPEN
    write = _write(spec, before, records, step)
    facts = evidence.update(before.facts, step, write, spec.task.user_id, spec.bench.domain)
    agreed = step.outcome.source == "user" and facts.agreed
    proposal = str(step.call.kwargs["content"]) if agreed else ""
    facts = _learnt(spec, facts, state, status, proposal)
    moment = _complete(spec, before, state, status, facts, records)
    commits = _finalised(spec, before, moment, step)
    return dataclasses.replace(moment, commits=commits, settled=before.settled | commits)


def _write(spec: Spec, before: Moment, after: Records, step: Step) -> evidence.Write | None:
    """What the step changed: whose data, and what the policy says of it; None if it changed nothing."""
    if not step.diff:
        return None
    owners = set()
    for table, key in {(str(path[0]), str(path[1])) for path, _, _ in step.diff}:
        owners.add(key if table == "users" else str(after[table, key].get("user_id")))

    def lookup(table: str, key: str) -> Any:
        record = before.records.get((table, key), spec.bench.database[table].get(key))
        moved = table == "reservations" and key in before.facts.cabins
        return {**record, "cabin": before.facts.cabins[key]} if moved else record

    return evidence.Write(frozenset(owners), conduct.forbidden(step.call, lookup))


def _learnt(
    spec: Spec,
    facts: evidence.Facts,
    state: Mapping[str, str],
    status: Mapping[str, Status],
    proposal: str,
) -> evidence.Facts:
    right = {id_ for id_ in spec.fields if status[id_] is Status.SATISFIED}
    written = {id_ for id_, parts in spec.fields.items() if state[id_] != _text(p.before for p in parts)}
    return evidence.learn(
        facts,
        spec.needs,
        user_id=spec.task.user_id,
        proposal=proposal,
        frozen={atom for atom, fields in spec.alone.items() if fields & written},
        used={atom for atom, fields in spec.relies.items() if fields & right},
    )


def _judge_database(spec: Spec, records: Records) -> tuple[dict[str, str], dict[str, Status]]:
    """Texts of the state variables and statuses of the atoms that are read off the database."""
    state: dict[str, str] = {}
    status: dict[str, Status] = {}
    for id_, parts in spec.fields.items():
        now = [_value(spec, records, part) for part in parts]
        state[id_] = _text(now)
        status[id_] = max(part.verdict(value) for part, value in zip(parts, now, strict=True))
    wanted = {(part.table, part.key, part.name) for parts in spec.fields.values() for part in parts}
    for table in spec.frames:
        strays = [
            field
            for (where, key), record in records.items()
            if where == table
            for field in differing(spec.bench, table, key, record)
            if (table, key, field.name) not in wanted
        ]
        state[f"changes of {table}"] = "; ".join(map(_stray_text, strays)) or UNCHANGED
        # Back to the start is what these fields should be.
        verdicts = [dataclasses.replace(f, wanted=f.before).verdict(f.wanted) for f in strays]
        status[f"unchanged:{table}"] = max(verdicts, default=Status.SATISFIED)
    return state, status


def _value(spec: Spec, records: Records, field: Field) -> Any:
    record = records.get((field.table, field.key), spec.bench.database[field.table].get(field.key, {}))
    return field.cut(record.get(field.name, MISSING))


def _text(values: Iterable[Any]) -> str:
    return " ".join(map(value_text, values))


def _stray_text(field: Field) -> str:
    return f"{field.key}.{field.name}={value_text(field.wanted)}"


def _said(output: str, past: str, step: Step) -> str:
    """Whether an output was said, up to the first reply without text, which the original cannot grade."""
    if past != NOT_YET or step.call.name != RESPOND:
        return past
    content = step.call.kwargs.get("content")
    if not isinstance(content, str):
        return "a reply without text"
    spoken = "".join(char for char in content.lower() if char != ",")
    return SAID if output.lower() in spoken else NOT_YET


def _complete(
    spec: Spec,
    before: Moment,
    state: dict[str, str],
    status: dict[str, Status],
    facts: evidence.Facts,
    records: Records,
) -> Moment:
    """The moment, with the statuses that are not read off the database."""
    offences = (facts.unidentified, facts.unconfirmed, facts.forbidden)
    for name, calls in zip(_POLICY, offences, strict=True):
        state[f"not {name}"] = ", ".join(calls) or NOTHING
        status[name] = Status.VIOLATED if calls else Status.SATISFIED
    for need in spec.needs:
        known = all(variable in facts.seen for variable in need.variables)
        status[need.atom] = Status.SATISFIED if known else Status.UNKNOWN
    for n in range(1, len(spec.task.outputs) + 1):
        verdicts = {SAID: Status.SATISFIED, NOT_YET: Status.UNSATISFIED}
        status[f"said:{n}"] = verdicts.get(state[f"output {n}"], Status.VIOLATED)
    status["ended"] = Status.SATISFIED if state["conversation"] == _ENDED else Status.UNSATISFIED
    values = {v.id: facts.seen.get(v.id, "") if v.observation else state[v.id] for v in spec.variables}
    return Moment(values, status, frozenset(), before.settled, facts, records)


def _finalised(spec: Spec, before: Moment, after: Moment, step: Step) -> frozenset[str]:
    """Atoms that a step finalises.

    A call that writes finalises the fields that it wrote, all fields of an order whose status it set, and
    what the policy asks of it. Of what the score reads, the end finalises what no call before has written and
    what could still have been put right.
    """
    found: set[str] = set()
    if step.diff:
        closed = {path[1] for path, _, _ in step.diff if path[0] == "orders" and path[2:3] == ("status",)}
        found = {id_ for id_, parts in spec.fields.items() if parts[0].key in closed}
        found |= {
            atom.id
            for atom in spec.atoms
            if atom.id in _POLICY or before.values[atom.variables[0]] != after.values[atom.variables[0]]
            if atom.family != "known"
        }
    if step.outcome.done:
        scored = {atom.id for atom, read in zip(spec.atoms, spec.required, strict=True) if read}
        said = {id_ for id_ in scored if id_.startswith("said:") and after.status[id_] is Status.SATISFIED}
        mendable = {id_ for id_ in scored if after.status[id_] is Status.UNSATISFIED}
        found |= (scored - before.settled - said) | mendable
    return frozenset(found)


def record(spec: Spec, history: Sequence[Moment], score: float) -> VerifierRecord:
    """The verifier's record of T actions.

    Args:
      history: T + 1 moments.
      score: V, the engine's own score.
    """
    ids = [atom.id for atom in spec.atoms]
    scope = [[id_ in moment.commits for id_ in ids] for moment in history[1:]]
    return VerifierRecord(
        atoms=spec.atoms,
        variables=spec.variables,
        status=np.array([[moment.status[id_] for id_ in ids] for moment in history], np.int8),
        evidence=tuple(tuple(moment.values[v.id] for v in spec.variables) for moment in history),
        commits=np.array([bool(moment.commits) for moment in history[1:]], bool),
        scope=np.array(scope, bool).reshape(len(history) - 1, len(ids)),
        params={"required": spec.required},
        eta=0.0,
        score=score,
    )
