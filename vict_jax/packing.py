"""Token sequences packed into rows of one length, several a row, for scoring and training."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from vict_jax.batching import Rollout, TokenSequence, check_groups
from vict_jax.types import TokenBatch


class Overlong(enum.Enum):
    """What to do with a sequence longer than a row."""

    RAISE = "raise"
    # Keep the head. What is kept was sampled after the very same prefix, so its log-probabilities stay
    # right; cutting the front would condition them on something else.
    CUT_TAIL = "cut_tail"


@dataclasses.dataclass(frozen=True)
class RowReport:
    """What packing did.

    Attributes:
      rows: rows with at least one token. tokens: real tokens in them. trained_tokens: those trained.
      cut_sequences, cut_trained_tokens: sequences that lost their tail, and trained tokens in those tails.
    """

    rows: int
    tokens: int
    trained_tokens: int
    cut_sequences: int
    cut_trained_tokens: int


def _first_fit(lengths: Sequence[int], row_length: int) -> list[list[int]]:
    """Rows of indices, each within `row_length`: first-fit in order of decreasing length.

    A tree of the most room below each node finds the first row with room in log(n) steps. Windowed rollouts
    have a sequence a step, too many to look through all rows for each.
    """
    leaves = 1 << (len(lengths) - 1).bit_length()
    room = [row_length] * (2 * leaves)  # a row that is not begun has all its room, so it is taken last
    rows: list[list[int]] = []
    for index in np.argsort(-np.asarray(lengths), kind="stable").tolist():
        length, node = lengths[index], 1
        while node < leaves:
            node *= 2
            if room[node] < length:
                node += 1
        row = node - leaves
        if row == len(rows):
            rows.append([])
        rows[row].append(index)
        room[node] -= length
        while node > 1:
            node //= 2
            most = max(room[2 * node], room[2 * node + 1])
            if room[node] == most:
                break
            room[node] = most
    return rows


def _cut(sequence: TokenSequence, row_length: int, overlong: Overlong) -> TokenSequence:
    length = len(sequence.ids)
    if length <= row_length:
        return sequence
    if overlong is Overlong.RAISE:
        raise ValueError(f"a sequence has {length} tokens, above row_length={row_length}")
    return TokenSequence(
        **{f.name: getattr(sequence, f.name)[:row_length] for f in dataclasses.fields(TokenSequence)}
    )


def pack_sequences(
    sequences: Sequence[tuple[int, TokenSequence]],
    *,
    row_length: int,
    row_multiple: int = 1,
    isolate_rollouts: bool = False,
    overlong: Overlong = Overlong.RAISE,
) -> tuple[TokenBatch, RowReport]:
    """Pack sequences into rows of `row_length` tokens, several a row, kept apart by `segment`.

    Args:
      sequences: (rollout index, sequence) pairs.
      row_multiple: rows are padded up to a multiple of it with empty ones (segment 0, nothing trained).
      isolate_rollouts: no row holds two rollouts. Worth it with several minibatches of rollouts, where a
        shared row would be computed once per minibatch.
      overlong: what to do with a sequence longer than `row_length`.

    Returns:
      A `TokenBatch` of NumPy arrays and the report.

    Raises:
      ValueError: a sequence is too long and `overlong` is RAISE, or there are no sequences.
    """
    if not sequences:
        raise ValueError("there are no token sequences to pack")
    kept = [(owner, _cut(sequence, row_length, overlong)) for owner, sequence in sequences]
    owners = np.array([owner for owner, _ in kept])
    together = np.argsort(owners, kind="stable")
    bounds = np.flatnonzero(np.diff(owners[together])) + 1
    sets = np.split(together, bounds) if isolate_rollouts else [np.arange(len(kept))]
    rows = [
        [int(members[i]) for i in row]
        for members in sets
        for row in _first_fit([len(kept[int(i)][1].ids) for i in members], row_length)
    ]
    batch = _fill_rows(kept, rows, (-(-len(rows) // row_multiple) * row_multiple, row_length))
    before = sum(int(sequence.trained.sum()) for _, sequence in sequences)
    trained = sum(int(sequence.trained.sum()) for _, sequence in kept)
    report = RowReport(
        rows=len(rows),
        tokens=sum(len(sequence.ids) for _, sequence in kept),
        trained_tokens=trained,
        cut_sequences=sum(len(sequence.ids) > row_length for _, sequence in sequences),
        cut_trained_tokens=before - trained,
    )
    return batch, report


def _fill_rows(
    sequences: Sequence[tuple[int, TokenSequence]], rows: Iterable[Sequence[int]], shape: tuple[int, int]
) -> TokenBatch:
    names = ("ids", "segment", "position", "rollout", "step")
    fields: dict[str, Any] = {name: np.zeros(shape, np.int32) for name in names}
    fields["loss_mask"] = np.zeros(shape, bool)
    fields["behaviour_logp"] = np.zeros(shape, np.float32)
    for s, row in enumerate(rows):
        start = 0
        for segment, index in enumerate(row, 1):
            owner, sequence = sequences[index]
            at = (s, slice(start, start + len(sequence.ids)))
            fields["ids"][at] = sequence.ids
            fields["segment"][at] = segment
            fields["position"][at] = np.arange(len(sequence.ids))
            fields["loss_mask"][at] = sequence.trained
            fields["behaviour_logp"][at] = np.where(sequence.trained, sequence.logp, 0.0)
            fields["rollout"][at] = np.where(sequence.trained, owner, 0)
            fields["step"][at] = np.where(sequence.trained, sequence.step, 0)
            start += len(sequence.ids)
    return TokenBatch(**fields)


def with_rows(batch: TokenBatch, rows: int) -> TokenBatch:
    """A batch of NumPy arrays, filled up to `rows` rows with empty ones."""
    return jax.tree.map(lambda x: np.pad(x, ((0, rows - len(x)), (0, 0))), batch)


def token_rows(
    groups: Sequence[Sequence[Rollout]],
    *,
    group_size: int,
    row_length: int,
    row_multiple: int = 1,
    isolate_rollouts: bool = False,
    overlong: Overlong = Overlong.RAISE,
    numbers: Sequence[int] | None = None,
) -> tuple[TokenBatch, RowReport]:
    """Token rows of an update; `rollout` is `g * group_size + n`, as in `credit_inputs`.

    Lost rollouts and sequences without a trained token are left out; if nothing is left there are no rows.
    See `pack_sequences` for the rest.

    Args:
      numbers: g of each group, where these are not all groups of the update; None: 0, 1, ...
    """
    check_groups(groups, group_size)
    sequences = [
        (g * group_size + n, sequence)
        for g, group in zip(range(len(groups)) if numbers is None else numbers, groups, strict=True)
        for n, rollout in enumerate(group)
        if not rollout.lost
        for sequence in rollout.sequences
        if sequence.trained.any()
    ]
    if not sequences:
        return _fill_rows([], [], (0, row_length)), RowReport(0, 0, 0, 0, 0)
    return pack_sequences(
        sequences,
        row_length=row_length,
        row_multiple=row_multiple,
        isolate_rollouts=isolate_rollouts,
        overlong=overlong,
    )
