"""Clusters and word vectors of observations, and their way into a batch."""

from __future__ import annotations

import dataclasses
import difflib
import math
import random

import numpy as np
import pytest

from envs.base import stable_hash
from tests.audit.logged import inputs_of, make_config, play_groups
from vict_jax import observations
from vict_jax.credit.options import VictOptions
from vict_jax.credit.step_options import GigpoOptions, ProxmoOptions

FIELDS = frozenset({"cluster_id", "state_terms"})


def greedy(texts: list[str], similarity: float) -> dict[str, str]:
    """The clusters by asking about every pair."""
    firsts: list[str] = []
    found = {}
    for text in texts:
        near = [f for f in firsts if difflib.SequenceMatcher(None, text, f).ratio() >= similarity]
        found[text] = near[0] if near else text
        if not near:
            firsts.append(text)
    return found


@pytest.mark.parametrize("similarity", [0.0, 0.7, 0.95, 1.0])
def test_clusters_are_those_of_every_pair(similarity):
    rng = random.Random(1)
    places = ["drawer", "shelf", "fridge", ""]
    texts = [
        f"You arrive at {rng.choice(places)} {rng.randrange(30)}. "
        f"{'On it, you see ' * rng.randrange(9)}a mug {rng.randrange(3)}."
        for _ in range(60)
    ]
    texts += ["", "a", texts[0]]
    assert observations.clusters(texts, similarity=similarity) == greedy(texts, similarity)


def test_the_first_member_stands_for_its_cluster():
    first, near, far = "You open the drawer 1.", "You open the drawer 2.", "You open the drawer 2!?"
    assert difflib.SequenceMatcher(None, far, near).ratio() > 0.9
    found = observations.clusters([first, near, far], similarity=0.95)
    assert found == {first: first, near: first, far: far}


def test_term_vectors():
    """Of three documents "mug" is in two, "on" once in each, "bed" twice in one; a and 1 are no words."""
    texts = ["a mug on 1", "A mug on 1", "on bed bed"]
    vectors, row = observations.term_vectors([texts[0], texts[1], texts[2]], terms=4)
    idf = {"on": 1.0, "mug": math.log(4 / 3) + 1, "bed": math.log(4 / 2) + 1}
    assert row == {texts[0]: 0, texts[1]: 1, texts[2]: 2}
    # Columns by frequency, then alphabet: on (3), bed (2), mug (2).
    raw = np.array(
        [[idf["on"], 0, idf["mug"], 0], [idf["on"], 0, idf["mug"], 0], [idf["on"], 2 * idf["bed"], 0, 0]]
    )
    np.testing.assert_allclose(vectors, raw / np.linalg.norm(raw, axis=1, keepdims=True), rtol=1e-6)
    fewer, _ = observations.term_vectors(texts, terms=1)
    np.testing.assert_allclose(fewer, [[1.0], [1.0], [1.0]])


def test_repeated_observations_are_documents_of_their_own():
    once, _ = observations.term_vectors(["red mug", "red pan"], terms=3)
    often, row = observations.term_vectors(["red mug", "red mug", "red mug", "red pan"], terms=3)
    assert len(often) == len(once) == 2
    pan = np.linalg.norm(often[row["red pan"]] - once[row["red pan"]])
    assert pan > 0.05  # the rarer word weighs more
    empty, _ = observations.term_vectors(["1 2", "a"], terms=3)
    np.testing.assert_array_equal(empty, 0.0)


def test_fields_of_a_batch():
    groups = play_groups(make_config(), first=4)
    inputs = inputs_of(groups)
    options = VictOptions(gigpo=GigpoOptions(similarity=0.8), proxmo=ProxmoOptions(terms=64))
    texts = observations.texts_of(groups)
    found = observations.add_needed(inputs, texts, needs=FIELDS, options=options)
    g, n, t = inputs.commits.shape
    assert (found.cluster_id.shape, found.cluster_id.dtype) == ((g, n, t), np.int32)
    assert (found.state_terms.shape, found.state_terms.dtype) == ((g, n, t, 64), np.float32)
    real = inputs.step_mask & inputs.rollout_mask[..., None]
    np.testing.assert_array_equal(found.cluster_id[~real], 0)
    np.testing.assert_array_equal(found.state_terms[~real], 0.0)
    np.testing.assert_allclose(np.linalg.norm(found.state_terms[real], axis=-1), 1.0, rtol=1e-5)
    # Equal observations are in one cluster; some clusters hold several observations.
    for i in range(g):
        state, cluster = inputs.state_id[i, :, :-1][real[i]], found.cluster_id[i][real[i]]
        pairs = set(zip(state.tolist(), cluster.tolist(), strict=True))
        assert len(pairs) == len(set(state.tolist())) > len(set(cluster.tolist()))
        assert set(cluster.tolist()) <= {stable_hash(text) for rollout in texts[i] for text in rollout}
    # A group's fields are its own, whatever the other groups are.
    last = observations.add_needed(
        dataclasses.replace(inputs, commits=inputs.commits[1:]), texts[1:], needs=FIELDS, options=options
    )
    np.testing.assert_array_equal(last.state_terms[0], found.state_terms[1])
    np.testing.assert_array_equal(last.cluster_id[0], found.cluster_id[1])


def test_nothing_is_made_that_nobody_needs():
    groups = play_groups(make_config(), first=4)
    inputs = inputs_of(groups)
    texts = observations.texts_of(groups)
    options = VictOptions()
    assert observations.add_needed(inputs, texts, needs=(), options=options) == inputs
    with pytest.raises(
        ValueError, match=r"texts of 1 groups of \[6\] rollouts do not belong to a batch of 2"
    ):
        observations.add_needed(inputs, texts[:1], needs=FIELDS, options=options)
