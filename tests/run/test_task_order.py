"""Who plays which task when: every task once, whatever the sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vict_jax.task_order import epoch_order, share, update_order

sizes = st.integers(1, 40)
hosts = st.integers(1, 9)


@given(total=sizes, seed=st.integers(0, 5), epoch=st.integers(0, 5))
def test_an_epoch_is_a_permutation_of_its_seed_and_number(total: int, seed: int, epoch: int) -> None:
    order = epoch_order(total, seed=seed, epoch=epoch)
    assert sorted(order.tolist()) == list(range(total))
    np.testing.assert_array_equal(order, epoch_order(total, seed=seed, epoch=epoch))


def test_seeds_and_epochs_give_different_orders() -> None:
    orders = {tuple(epoch_order(50, seed=seed, epoch=epoch)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


@given(total=sizes, groups=st.integers(1, 60), updates=st.integers(1, 8), seed=st.integers(0, 3))
def test_updates_are_consecutive_pieces_of_the_epochs(
    total: int, groups: int, updates: int, seed: int
) -> None:
    drawn = [
        index
        for update in range(1, updates + 1)
        for index in update_order(update, groups=groups, total=total, seed=seed)
    ]
    assert len(drawn) == updates * groups
    epochs = -(-len(drawn) // total)
    expected = np.concatenate([epoch_order(total, seed=seed, epoch=epoch) for epoch in range(epochs)])
    assert drawn == expected[: len(drawn)].tolist()


def test_an_update_draws_each_epoch_it_touches_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    real = np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda seed: drawn.append(seed) or real(seed))
    update_order(2, groups=8, total=10, seed=3)
    assert drawn == [[3, 0], [3, 1]]


@given(total=st.integers(0, 60), hosts=hosts)
def test_shares_are_disjoint_complete_and_even(total: int, hosts: int) -> None:
    pieces = [share(range(total), host=host, hosts=hosts) for host in range(hosts)]
    assert [index for piece in pieces for index in piece] == list(range(total))
    lengths = [len(piece) for piece in pieces]
    assert lengths[0] == max(lengths) <= min(lengths) + 1


@given(total=sizes, groups=st.integers(1, 20), seed=st.integers(0, 3), hosts=hosts)
def test_hosts_train_on_every_task_of_an_epoch_once(total: int, groups: int, seed: int, hosts: int) -> None:
    """Over as many updates as it takes until one of them ends with an epoch."""
    groups = min(groups, total)
    updates = range(1, np.lcm(groups, total) // groups + 1)
    played = [
        index
        for update in updates
        for host in range(hosts)
        for index in share(
            update_order(update, groups=groups, total=total, seed=seed), host=host, hosts=hosts
        )
    ]
    for epoch in range(len(played) // total):
        assert sorted(played[epoch * total : (epoch + 1) * total]) == list(range(total))


@pytest.mark.parametrize(("host", "hosts"), [(2, 2), (-1, 2), (0, 0)])
def test_a_host_that_does_not_exist_is_refused(host: int, hosts: int) -> None:
    with pytest.raises(ValueError, match=f"host={host} is not allowed with hosts={hosts}"):
        share([1, 2, 3], host=host, hosts=hosts)


@pytest.mark.parametrize("wrong", ["update", "groups", "total"])
def test_numbers_out_of_range_are_named(wrong: str) -> None:
    numbers = {"update": 1, "groups": 2, "total": 3, wrong: 0}
    with pytest.raises(ValueError, match=f"{wrong}=0 is not allowed"):
        update_order(**numbers, seed=0)


def test_no_tasks_are_refused() -> None:
    with pytest.raises(ValueError, match="total=0"):
        epoch_order(0, seed=0, epoch=0)
