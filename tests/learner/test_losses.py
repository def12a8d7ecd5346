"""Loss formulas against NumPy loops, worked cases, exact enumeration, and what users ran into."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vict_jax.learner import losses
from vict_jax.learner.importance import importance_weights, weigh
from vict_jax.learner.losses import LossWeights, PpoOptions
from vict_jax.types import TokenBatch


def make_batch(mask, *, segment=None, rollout=None, step=None, behaviour_logp=None):
    """A TokenBatch of the given [S, L] arrays; the rest is plain."""
    mask = np.asarray(mask, bool)
    zeros = np.zeros(mask.shape, np.int32)
    return TokenBatch(
        ids=jnp.asarray(zeros),
        segment=jnp.asarray(np.ones_like(zeros) if segment is None else segment),
        position=jnp.asarray(np.tile(np.arange(mask.shape[1], dtype=np.int32), (len(mask), 1))),
        loss_mask=jnp.asarray(mask),
        behaviour_logp=jnp.asarray(
            np.zeros(mask.shape) if behaviour_logp is None else behaviour_logp, jnp.float32
        ),
        rollout=jnp.asarray(zeros if rollout is None else rollout, jnp.int32),
        step=jnp.asarray(zeros if step is None else step, jnp.int32),
    )


def weights_of(batch, num_rollouts, options, live=None, selected=None):
    everyone = jnp.ones(num_rollouts, bool)
    return losses.loss_weights(
        batch,
        everyone if live is None else jnp.asarray(live),
        everyone if selected is None else jnp.asarray(selected),
        options=options,
    )


def loss_of(logp, advantage, batch, options, *, ref_logp=None, num_rollouts=2, **kwargs):
    logp = jnp.asarray(logp, jnp.float32)
    return losses.ppo_loss(
        logp,
        jnp.zeros_like(logp),
        jnp.zeros_like(logp) if ref_logp is None else jnp.asarray(ref_logp, jnp.float32),
        jnp.asarray(advantage, jnp.float32),
        batch,
        weights_of(batch, num_rollouts, options, **kwargs),
        options=options,
    )


# --- worked cases of the literature ---------------------------------------------------------------


@pytest.mark.parametrize(("estimator", "value"), [("k1", 0.5), ("k2", 0.125), ("k3", 0.106531)])
def test_kl_estimates_of_the_worked_case(estimator, value):
    got = losses.kl_estimate(jnp.float32(-1.0), jnp.float32(-1.5), estimator=estimator)
    assert got == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize(("advantage", "value"), [(1.0, -1.02), (-1.0, 1.766667)])
def test_clipped_loss_of_the_worked_case(advantage, value):
    loss, _ = losses.clipped_policy_loss(
        jnp.array([1.5, 0.5, 4.0]), jnp.float32(advantage), clip_low=0.2, clip_high=0.28, dual_clip=3.0
    )
    assert loss.mean() == pytest.approx(value, abs=1e-6)


def test_sequence_ratio_of_the_worked_case():
    options = PpoOptions(ratio_level="sequence", kl_coefficient=0.0, aggregation="token_mean")
    loss, _ = loss_of(np.log([[1.2, 0.9]]), [[1.0, 1.0]], make_batch([[1, 1]]), options)
    assert loss == pytest.approx(-1.03923, abs=1e-5)


def test_sequence_ratio_stays_inside_a_segment():
    batch = make_batch([[1, 1, 1, 0]], segment=[[1, 1, 2, 2]])
    mean = losses.mean_log_ratio(jnp.array([[1.0, 3.0, -5.0, 99.0]]), batch.loss_mask, batch.segment)
    np.testing.assert_allclose(mean, [[2.0, 2.0, -5.0, -5.0]])


@pytest.mark.parametrize(
    ("aggregation", "divisor", "value"),
    [
        ("token_mean", 0.0, 2.0),
        ("sequence_mean_of_sums", 0.0, 6.0),
        ("sequence_mean_of_means", 0.0, 2.0),
        ("rollout_mean", 0.0, 2.0),
        ("constant", 4.0, 3.0),
    ],
)
def test_aggregations_of_the_worked_case(aggregation, divisor, value):
    token_losses = np.array([[1, 3, 0, 0], [2, 2, 2, 2]], np.float32)
    batch = make_batch(token_losses > 0, rollout=[[0] * 4, [1] * 4])
    weight, denominator = losses.token_weights(
        batch.loss_mask,
        batch.segment,
        batch.rollout,
        num_rollouts=2,
        aggregation=aggregation,
        constant_divisor=divisor,
    )
    assert (weight * token_losses).sum() / denominator == pytest.approx(value)


# --- NumPy oracles --------------------------------------------------------------------------------


def random_rows(rng, rows=5, length=12, rollouts=4):
    """Random segments, rollouts and masks; a sequence belongs to one rollout."""
    segment, rollout = np.zeros((rows, length), np.int32), np.zeros((rows, length), np.int32)
    for s in range(rows):
        cuts = np.sort(rng.integers(1, length, 2))
        for index, (a, b) in enumerate([(0, cuts[0]), (cuts[0], cuts[1])]):
            segment[s, a:b] = index + 1
            rollout[s, a:b] = rng.integers(rollouts)
    mask = (rng.random((rows, length)) < 0.6) & (segment > 0)
    return make_batch(
        mask,
        segment=segment,
        rollout=rollout,
        step=rng.integers(0, 3, mask.shape),
        behaviour_logp=rng.normal(size=mask.shape) - 2,
    )


def oracle_weights(mask, segment, rollout, aggregation, divisor):
    groups = {}
    for s, l in np.argwhere(mask):
        unit = int(rollout[s, l]) if aggregation == "rollout_mean" else (s, int(segment[s, l]))
        groups.setdefault(unit, []).append((s, l))
    weight = np.zeros(mask.shape)
    for members in groups.values():
        for at in members:
            means = aggregation in ("rollout_mean", "sequence_mean_of_means")
            weight[at] = 1 / len(members) if means else 1.0
    if aggregation == "constant":
        return weight, divisor
    return weight, mask.sum() if aggregation == "token_mean" else len(groups)


@pytest.mark.parametrize("aggregation", losses.AGGREGATIONS)
@pytest.mark.parametrize("jit", [False, True])
def test_token_weights_equal_a_loop(aggregation, jit):
    for seed in range(5):
        batch = random_rows(np.random.default_rng(seed))
        divisor = 7.0 if aggregation == "constant" else 0.0
        call = lambda m, s, r: losses.token_weights(  # noqa: E731
            m,
            s,
            r,
            num_rollouts=4,
            aggregation=aggregation,
            constant_divisor=divisor,  # noqa: B023
        )
        weight, denominator = (jax.jit(call) if jit else call)(batch.loss_mask, batch.segment, batch.rollout)
        expected = oracle_weights(
            np.array(batch.loss_mask), np.array(batch.segment), np.array(batch.rollout), aggregation, divisor
        )
        np.testing.assert_allclose(weight, expected[0], rtol=1e-6)
        assert denominator == pytest.approx(expected[1], rel=1e-6)


def oracle_loss(logp, ref, adv, batch, options, num_rollouts):
    mask, old = np.array(batch.loss_mask), np.array(batch.behaviour_logp, np.float64)
    segment, rollout = np.array(batch.segment), np.array(batch.rollout)
    weight, denominator = oracle_weights(
        mask, segment, rollout, options.aggregation, options.constant_divisor
    )
    policy = kl = 0.0
    for s, l in np.argwhere(mask):
        token_ratio = math.exp(logp[s, l] - old[s, l])
        same = mask[s] & (segment[s] == segment[s, l])
        sequence_ratio = math.exp((logp[s] - old[s])[same].mean())
        ratio = sequence_ratio if options.ratio_level == "sequence" else token_ratio
        a = float(adv[s, l])
        loss = max(-a * ratio, -a * min(max(ratio, 1 - options.clip_low), 1 + options.clip_high))
        if options.dual_clip and a < 0:
            loss = min(loss, -a * options.dual_clip)
        if options.max_sequence_ratio and sequence_ratio > options.max_sequence_ratio:
            loss = 0.0
        d = logp[s, l] - ref[s, l]
        estimate = {"k1": d, "k2": d * d / 2, "k3": min(math.exp(-d) - 1 + d, 10)}[options.kl_estimator]
        policy += weight[s, l] * loss
        kl += weight[s, l] * estimate * (token_ratio if options.kl_importance_weight else 1)
    return policy / denominator + options.kl_coefficient * kl / denominator


@pytest.mark.parametrize(
    "options",
    [
        PpoOptions(),
        PpoOptions(aggregation="token_mean", kl_estimator="k2", dual_clip=1.5, clip_high=0.28),
        PpoOptions(aggregation="sequence_mean_of_sums", kl_estimator="k1", kl_coefficient=0.3),
        PpoOptions(aggregation="sequence_mean_of_means", ratio_level="sequence", max_sequence_ratio=1.2),
        PpoOptions(aggregation="constant", constant_divisor=9.0, kl_importance_weight=False),
    ],
    ids=lambda o: f"{o.aggregation}-{o.kl_estimator}",
)
def test_ppo_loss_equals_a_loop(options):
    for seed in range(4):
        rng = np.random.default_rng(seed)
        batch = random_rows(rng)
        logp = np.array(batch.behaviour_logp) + 0.5 * rng.normal(size=batch.ids.shape)
        ref, adv = logp + 0.7 * rng.normal(size=logp.shape), rng.normal(size=logp.shape)
        got, _ = loss_of(logp, adv, batch, options, ref_logp=ref, num_rollouts=4)
        assert got == pytest.approx(oracle_loss(logp, ref, adv, batch, options, 4), rel=2e-5, abs=1e-6)


def test_metrics_equal_their_definitions():
    batch = make_batch([[1, 1, 0, 1]], behaviour_logp=[[-1.0, -2.0, 9.0, -3.0]])
    logp = np.array([[-0.5, -2.0, 9.0, -3.2]], np.float32)
    ref = np.array([[-1.0, -1.0, 9.0, -1.0]], np.float32)
    _, m = loss_of(logp, [[1.0, 1.0, 5.0, -1.0]], batch, PpoOptions(), ref_logp=ref)
    ratio = np.exp([0.5, 0.0, -0.2])
    d = np.array([0.5, -1.0, -2.2])
    assert m.tokens == 3
    assert m.ratio == pytest.approx(ratio.sum(), rel=1e-6)
    assert m.max_ratio == pytest.approx(ratio.max(), rel=1e-6)
    assert m.max_abs_log_ratio == pytest.approx(0.5, rel=1e-6)
    # Clipped: A > 0 above 1.2. The last token has A < 0 and ratio 0.8187, which is above 0.8.
    assert m.clipped == 1
    assert m.kl == pytest.approx((np.exp(-d) - 1 + d).sum(), rel=1e-5)


def test_dual_clip_bounds_the_loss_and_stops_the_gradient():
    call = lambda r: losses.clipped_policy_loss(  # noqa: E731
        r, jnp.float32(-2.0), clip_low=0.2, clip_high=0.2, dual_clip=3.0
    )
    (loss, clipped), gradient = call(jnp.float32(50.0)), jax.grad(lambda r: call(r)[0])(jnp.float32(50.0))
    assert (loss, bool(clipped), gradient) == (6.0, True, 0.0)


# --- exact enumeration of the KL gradient ---------------------------------------------------------

THETA = np.array([0.3, -0.8, 0.5])
REFERENCE = np.array([-0.4, 0.2, 0.9])
BEHAVIOUR = np.array([0.9, 0.1, -0.6])


def expected_kl_gradient(estimator, importance_weight, behaviour):
    """Gradient of E_behaviour[kl_loss], summed over the three tokens of a softmax."""
    old = jax.nn.log_softmax(jnp.asarray(behaviour, jnp.float32))
    reference = jax.nn.log_softmax(jnp.asarray(REFERENCE, jnp.float32))

    def expectation(theta):
        logp = jax.nn.log_softmax(theta)
        loss = losses.kl_loss(
            logp, reference, jnp.exp(logp - old), estimator=estimator, importance_weight=importance_weight
        )
        return (jnp.exp(old) * loss).sum()

    return jax.grad(expectation)(jnp.asarray(THETA, jnp.float32))


def exact_gradient(divergence):
    reference = jax.nn.log_softmax(jnp.asarray(REFERENCE, jnp.float32))
    return jax.grad(lambda t: divergence(jax.nn.log_softmax(t), reference))(jnp.asarray(THETA, jnp.float32))


REVERSE = lambda p, q: (jnp.exp(p) * (p - q)).sum()  # noqa: E731
FORWARD = lambda p, q: (jnp.exp(q) * (q - p)).sum()  # noqa: E731


@pytest.mark.parametrize("estimator", losses.KL_ESTIMATORS)
@pytest.mark.parametrize("behaviour", [THETA, BEHAVIOUR], ids=["on_policy", "off_policy"])
def test_field_report_12_weighted_kl_has_the_exact_gradient(estimator, behaviour):
    np.testing.assert_allclose(
        expected_kl_gradient(estimator, True, behaviour), exact_gradient(REVERSE), atol=1e-6
    )


def test_field_report_12_what_unweighted_estimators_do_on_policy():
    np.testing.assert_allclose(expected_kl_gradient("k1", False, THETA), 0.0, atol=1e-6)
    np.testing.assert_allclose(expected_kl_gradient("k2", False, THETA), exact_gradient(REVERSE), atol=1e-6)
    np.testing.assert_allclose(expected_kl_gradient("k3", False, THETA), exact_gradient(FORWARD), atol=1e-6)
    assert np.abs(exact_gradient(FORWARD) - exact_gradient(REVERSE)).max() > 0.05
    with pytest.raises(ValueError, match="kl_importance_weight=False"):
        PpoOptions(kl_estimator="k1", kl_importance_weight=False)


@pytest.mark.parametrize("behaviour", [THETA, BEHAVIOUR], ids=["on_policy", "off_policy"])
@pytest.mark.parametrize("advantage", [[1.0, -0.5, 0.25], [-2.0, 1.0, 1.0]])
def test_policy_loss_has_the_exact_gradient_where_no_bound_is_active(behaviour, advantage):
    """E_behaviour[loss] over all three tokens: minus the gradient of sum_a pi(a) A(a)."""
    old = jax.nn.log_softmax(jnp.asarray(behaviour, jnp.float32))
    a = jnp.asarray(advantage, jnp.float32)
    theta = jnp.asarray(THETA, jnp.float32)

    def expected_loss(theta):
        ratio = jnp.exp(jax.nn.log_softmax(theta) - old)
        loss, clipped = losses.clipped_policy_loss(ratio, a, clip_low=0.9, clip_high=9.0, dual_clip=0.0)
        return (jnp.exp(old) * loss).sum(), clipped

    gradient, clipped = jax.grad(expected_loss, has_aux=True)(theta)
    exact = jax.grad(lambda theta: -(jax.nn.softmax(theta) * a).sum())(theta)
    assert not clipped.any()
    np.testing.assert_allclose(gradient, exact, atol=1e-6)


def test_clipped_tokens_leave_the_exact_gradient_of_the_others():
    """With bounds, the gradient is that of the sum over the tokens that no bound stops."""
    old = jax.nn.log_softmax(jnp.asarray(BEHAVIOUR, jnp.float32))
    a, theta = jnp.array([-1.0, 1.0, -1.0]), jnp.asarray(THETA, jnp.float32)

    def expected_loss(theta):
        ratio = jnp.exp(jax.nn.log_softmax(theta) - old)
        loss, clipped = losses.clipped_policy_loss(ratio, a, clip_low=0.2, clip_high=0.28, dual_clip=2.0)
        return (jnp.exp(old) * loss).sum(), clipped

    gradient, clipped = jax.grad(expected_loss, has_aux=True)(theta)
    ratio = np.exp(np.asarray(jax.nn.log_softmax(theta) - old))
    np.testing.assert_allclose(ratio, [0.655, 0.485, 3.584], atol=1e-3)
    assert clipped.tolist() == [True, False, True]  # below .8 with A < 0; free with A > 0; above the dual 2
    exact = jax.grad(lambda theta: -(jax.nn.softmax(theta) * a)[1])(theta)
    np.testing.assert_allclose(gradient, exact, atol=1e-6)


@pytest.mark.parametrize("level", losses.RATIO_LEVELS)
def test_importance_weights_equal_a_loop_and_do_not_see_padding(level):
    rng = np.random.default_rng(3)
    mask = rng.random((6, 10)) < 0.6
    segment = np.sort(rng.integers(1, 4, (6, 10)), axis=1)
    old, new = rng.normal(-1, 0.7, (2, 6, 10))
    options = PpoOptions(importance_cap=1.5, ratio_level=level)
    expected, ratios = np.ones((6, 10)), []
    for row, at in np.argwhere(mask):
        same = mask[row] & (segment[row] == segment[row, at])
        difference = (new - old)[row]
        ratio = math.exp(difference[same].mean() if level == "sequence" else difference[at])
        expected[row, at] = min(ratio, 1.5)
        ratios.append(ratio)
    for padding in (0.0, np.nan):
        batch = make_batch(mask, segment=segment, behaviour_logp=np.where(mask, old, padding))
        logp = jnp.asarray(np.where(mask, new, padding), jnp.float32)
        factor, figures = importance_weights(logp, batch, options=options)
        np.testing.assert_allclose(factor, expected, rtol=1e-5)
        assert figures["importance_mean"] == pytest.approx(np.mean(ratios), rel=1e-5)
        assert figures["importance_max"] == pytest.approx(max(ratios), rel=1e-5)
        assert figures["importance_capped"] == pytest.approx(np.mean(np.array(ratios) > 1.5))


@pytest.mark.parametrize("weighted", [True, False])
def test_samples_of_an_older_policy_have_the_exact_gradient_on_average(weighted):
    """Exact enumeration: what `BEHAVIOUR` sampled moves `THETA` as its own samples would."""
    theta, old, reference = (
        jax.nn.log_softmax(jnp.asarray(x, jnp.float32))[:, None] for x in (THETA, BEHAVIOUR, REFERENCE)
    )
    a = jnp.array([[1.0], [-0.5], [0.25]])
    options = PpoOptions(
        importance_cap=100.0,
        kl_coefficient=0.3,
        aggregation="token_mean",
        kl_estimator="k3" if weighted else "k2",
        kl_importance_weight=weighted,
    )
    batch = make_batch(np.ones((3, 1)), rollout=np.arange(3)[:, None], behaviour_logp=old)
    factor, figures = importance_weights(theta, batch, options=options)
    assert figures["importance_max"] > 2  # they are far apart
    weights = weigh(weights_of(batch, 3, options), factor, options=options)
    weights = dataclasses.replace(
        weights, policy=weights.policy * jnp.exp(old) * 3, kl=weights.kl * jnp.exp(old) * 3
    )
    begun = dataclasses.replace(batch, behaviour_logp=theta)

    def loss(parameters):
        logp = jax.nn.log_softmax(parameters)[:, None]
        return losses.ppo_loss(logp, jnp.zeros_like(logp), reference, a, begun, weights, options=options)[0]

    def exact(parameters):
        p = jax.nn.log_softmax(parameters)[:, None]
        # Unweighted, the KL of the tokens as they were sampled: each counts as often as BEHAVIOUR takes it.
        kl = (jnp.exp(p) * (p - reference)) if weighted else jnp.exp(old) * 0.5 * (p - reference) ** 2
        return (-jnp.exp(p) * a + 0.3 * kl).sum()

    at = jnp.asarray(THETA, jnp.float32)
    np.testing.assert_allclose(jax.grad(loss)(at), jax.grad(exact)(at), atol=1e-6)


# A policy over three tokens whose second token depends on the first: its nine sequences of two.
PAIRS = np.array([(i, j) for i in range(3) for j in range(3)])
SECOND = np.array([[0.2, -0.3, 0.4], [-0.9, 0.5, 0.1], [0.6, 0.0, -0.7]])


def pair_logp(theta):
    """Log-probability of each token of each of the nine sequences, [9, 2]; `theta` [4, 3]."""
    table = jax.nn.log_softmax(theta)
    return jnp.stack([table[0, PAIRS[:, 0]], table[1 + PAIRS[:, 0], PAIRS[:, 1]]], axis=-1)


def pair_theta(first, second=SECOND):
    return jnp.asarray(np.concatenate([first[None], second]), jnp.float32)


def expected_ppo_gradient(options, behaviour, advantage, theta, reference):
    """Gradient of the mean of `ppo_loss` over sequences that `behaviour` samples, all of them enumerated."""
    old, ref = pair_logp(behaviour), pair_logp(reference)
    batch = make_batch(np.ones((9, 2)), rollout=np.repeat(np.arange(9)[:, None], 2, 1), behaviour_logp=old)
    plain = weights_of(batch, 9, options)
    often = jnp.exp(old.sum(-1, keepdims=True)) * 9.0  # a sequence counts as often as it is sampled
    weights = dataclasses.replace(plain, policy=plain.policy * often, kl=plain.kl * often)
    a = jnp.broadcast_to(jnp.asarray(advantage, jnp.float32)[:, None], (9, 2))

    def loss(theta):
        logp = pair_logp(theta)
        return losses.ppo_loss(logp, jnp.zeros_like(logp), ref, a, batch, weights, options=options)[0]

    return jax.grad(loss)(theta)


RETURNS = np.array([1.0, -0.5, 0.25, -2.0, 0.5, 1.5, 0.0, -1.0, 2.0])


@pytest.mark.parametrize("aggregation", ["sequence_mean_of_sums", "token_mean"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_on_policy_ppo_and_gspo_have_the_exact_policy_gradient(level, aggregation):
    """That of minus the expected return; half of it where the two tokens of a sequence are averaged."""
    theta = pair_theta(THETA)
    options = PpoOptions(ratio_level=level, aggregation=aggregation, kl_coefficient=0.0)
    found = expected_ppo_gradient(options, theta, RETURNS, theta, theta)
    exact = jax.grad(lambda t: -(jnp.exp(pair_logp(t).sum(-1)) * RETURNS).sum())(theta)
    np.testing.assert_allclose(found, exact / (2 if aggregation == "token_mean" else 1), atol=1e-6)


@pytest.mark.parametrize("estimator", losses.KL_ESTIMATORS)
def test_field_report_12_of_sequences_the_kl_is_that_of_each_token_after_what_was_sampled(estimator):
    """Off-policy: KL(pi || ref) of the next token, summed over prefixes that the behaviour policy makes."""
    theta, behaviour, reference = pair_theta(THETA), pair_theta(BEHAVIOUR), pair_theta(REFERENCE, -SECOND)
    options = PpoOptions(aggregation="sequence_mean_of_sums", kl_coefficient=1.0, kl_estimator=estimator)
    found = expected_ppo_gradient(options, behaviour, np.zeros(9), theta, reference)
    often = jnp.concatenate([jnp.ones(1), jax.nn.softmax(behaviour[0])])  # of the four prefixes

    def exact(theta):
        p, q = jax.nn.log_softmax(theta), jax.nn.log_softmax(reference)
        return (often * (jnp.exp(p) * (p - q)).sum(-1)).sum()

    np.testing.assert_allclose(found, jax.grad(exact)(theta), atol=1e-6)


@pytest.mark.parametrize(("estimator", "value"), [("k1", 0.5), ("k2", 0.125), ("k3", 0.106531)])
def test_kl_in_the_reward_is_an_estimate_of_the_sampled_tokens(estimator, value):
    """Log-probability -1 against -1.5, times the coefficient; nothing where nothing was sampled."""
    options = PpoOptions(kl_in="reward", kl_estimator=estimator, kl_coefficient=0.2)
    batch = make_batch([[0, 1]], behaviour_logp=[[np.nan, -1.0]])
    penalty = losses.kl_penalty(batch, jnp.array([[np.nan, -1.5]]), options=options)
    np.testing.assert_allclose(penalty, [[0.0, 0.2 * value]], atol=1e-6)


def test_kl_in_the_reward_is_the_kl_on_average_and_leaves_the_loss_alone():
    """Exact enumeration: k1 and k3 estimate KL(behaviour || ref); the loss has no KL term."""
    old, ref = (jax.nn.log_softmax(jnp.asarray(x, jnp.float32)) for x in (BEHAVIOUR, REFERENCE))
    batch = make_batch(np.ones((1, 3)), behaviour_logp=np.asarray(old)[None])
    for estimator in ("k1", "k3"):
        options = PpoOptions(kl_in="reward", kl_estimator=estimator, kl_coefficient=1.0)
        penalty = losses.kl_penalty(batch, ref[None], options=options)[0]
        assert (jnp.exp(old) * penalty).sum() == pytest.approx(float(REVERSE(old, ref)), rel=1e-5)
    assert options.kl_loss_coefficient == 0.0
    logp = np.asarray(jax.nn.log_softmax(jnp.asarray(THETA, jnp.float32)))[None]
    without = loss_of(logp, [[1.0, 0.5, -1.0]], batch, PpoOptions(kl_coefficient=0.0), ref_logp=ref[None])[0]
    assert loss_of(logp, [[1.0, 0.5, -1.0]], batch, options, ref_logp=ref[None])[0] == without
    PpoOptions(kl_in="reward", kl_estimator="k1", kl_importance_weight=False)  # no gradient, so no bias


def test_k3_is_clamped():
    far = losses.kl_estimate(jnp.float32(-90.0), jnp.float32(0.0), estimator="k3")
    assert far == 10.0
    assert np.isfinite(jax.grad(lambda x: losses.kl_estimate(x, jnp.float32(0.0), estimator="k3"))(-90.0))


# --- field reports --------------------------------------------------------------------------------


@pytest.mark.parametrize(("count_dead", "denominator"), [(False, 2.0), (True, 4.0)])
def test_field_report_01_dead_groups_in_the_denominator(count_dead, denominator):
    advantages = jnp.array([[[1.0], [-1.0]], [[0.0], [0.0]]])
    batch = make_batch(np.ones((4, 1)), rollout=[[0], [1], [2], [3]])
    live = losses.live_rollouts(advantages).reshape(-1)
    assert live.tolist() == [True, True, False, False]
    for aggregation in ("token_mean", "rollout_mean", "sequence_mean_of_sums", "sequence_mean_of_means"):
        options = PpoOptions(count_dead_groups=count_dead, aggregation=aggregation)
        weights = weights_of(batch, 4, options, live=live)
        assert weights.policy_denominator == denominator
        assert weights.kl_denominator == 4.0


@pytest.mark.parametrize("kl_on_dead", [False, True])
@pytest.mark.parametrize("count_dead", [False, True])
def test_field_report_02_dead_group_has_no_policy_gradient_and_a_chosen_kl(kl_on_dead, count_dead):
    options = PpoOptions(kl_on_dead_groups=kl_on_dead, count_dead_groups=count_dead, kl_coefficient=0.5)
    batch = make_batch(np.ones((2, 2)), rollout=[[0, 0], [1, 1]], behaviour_logp=-np.ones((2, 2)))
    advantage = np.array([[1.0, 1.0], [0.0, 0.0]], np.float32)
    logp, ref = -1.3 * np.ones((2, 2), np.float32), -0.4 * np.ones((2, 2), np.float32)
    live = [True, False]

    def policy_only(x):
        return loss_of(x, advantage, batch, dataclasses.replace(options, kl_coefficient=0.0), live=live)[0]

    def both(x):
        return loss_of(x, advantage, batch, options, ref_logp=ref, live=live)[0]

    assert (jax.grad(policy_only)(logp)[1] == 0).all()
    assert (jax.grad(policy_only)(logp)[0] != 0).all()
    assert bool((jax.grad(both)(logp)[1] != 0).all()) == kl_on_dead


def test_field_report_04_first_on_policy_loss_is_zero_and_its_gradient_is_not():
    advantages = jnp.array([[[1.0], [-1.0]]])
    batch = make_batch(np.ones((2, 3)), rollout=[[0] * 3, [1] * 3], behaviour_logp=-np.ones((2, 3)))
    advantage = losses.gather_advantages(advantages, batch)
    logp = -jnp.ones((2, 3))
    options = PpoOptions(kl_coefficient=0.0)
    assert loss_of(logp, advantage, batch, options)[0] == 0
    assert jnp.abs(jax.grad(lambda x: loss_of(x, advantage, batch, options)[0])(logp)).min() > 0.1


def test_field_report_06_a_reward_reaches_the_last_real_token():
    batch = make_batch([[1, 1, 1, 0, 0]], step=[[0, 1, 2, 0, 0]])
    gathered = losses.gather_advantages(jnp.array([[[0.0, 0.0, 7.0, 9.0]]]), batch)
    assert gathered.tolist() == [[0.0, 0.0, 7.0, 0.0, 0.0]]


def lengths_batch(lengths, width, *, fill=0.0):
    """One row a rollout; everything behind the given lengths is `fill`."""
    real = np.arange(width) < np.array(lengths)[:, None]
    rng = np.random.default_rng(3)
    wide = rng.normal(size=(len(lengths), 16))[:, :width]
    rollout = np.where(real, np.arange(len(lengths))[:, None], 0)
    batch = make_batch(
        real,
        segment=real.astype(np.int32),
        rollout=rollout,
        behaviour_logp=np.where(real, -1 + 0.1 * wide, fill),
    )
    return batch, np.where(real, -1 + 0.3 * wide, fill), np.where(real, wide, fill)


@pytest.mark.parametrize("aggregation", losses.AGGREGATIONS)
def test_field_report_07_micro_batches_equal_the_whole(aggregation):
    options = PpoOptions(aggregation=aggregation, constant_divisor=5.0 * (aggregation == "constant"))
    batch, logp, advantage = lengths_batch((1, 9), 9)
    weights = weights_of(batch, 2, options)

    def share(x, rows):
        cut = lambda tree: jax.tree.map(lambda y: y if y.ndim == 0 else y[rows], tree)  # noqa: E731
        zero = jnp.zeros_like(x[rows])
        return losses.ppo_loss(
            x[rows],
            zero,
            zero - 1.0,
            jnp.asarray(advantage, jnp.float32)[rows],
            cut(batch),
            cut(weights),
            options=options,
        )[0]

    x = jnp.asarray(logp, jnp.float32)
    whole, gradient = jax.value_and_grad(share)(x, slice(0, 2))
    parts = [jax.value_and_grad(share)(x, slice(i, i + 1)) for i in range(2)]
    assert parts[0][0] + parts[1][0] == pytest.approx(float(whole), rel=1e-6)
    np.testing.assert_allclose(parts[0][1] + parts[1][1], gradient, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("aggregation", losses.AGGREGATIONS)
def test_field_report_08_padding_with_nan_changes_neither_loss_nor_gradient(aggregation):
    options = PpoOptions(aggregation=aggregation, constant_divisor=5.0 * (aggregation == "constant"))

    def value_and_gradient(width, fill):
        batch, logp, advantage = lengths_batch((2, 4), width, fill=fill)
        ref = np.where(batch.loss_mask, -1.2, fill)
        return jax.value_and_grad(lambda x: loss_of(x, advantage, batch, options, ref_logp=ref)[0])(
            jnp.asarray(logp, jnp.float32)
        )

    narrow, wide = value_and_gradient(4, 0.0), value_and_gradient(8, np.nan)
    assert narrow[0] == wide[0]
    np.testing.assert_array_equal(wide[1][:, :4], narrow[1])
    np.testing.assert_array_equal(wide[1][:, 4:], 0.0)


def test_field_report_09_selected_tokens_do_not_depend_on_the_split():
    batch = random_rows(np.random.default_rng(1), rows=6)
    selected, live = jnp.array([True, False, True, True]), jnp.array([True, True, False, True])
    whole = weights_of(batch, 4, PpoOptions(aggregation="token_mean"), live=live, selected=selected)
    expected = np.array(batch.loss_mask) & np.array(selected)[np.array(batch.rollout)]
    np.testing.assert_array_equal(np.array(whole.kl) > 0, expected)
    for rows in (slice(0, 3), slice(3, 6)):
        part = jax.tree.map(lambda x, rows=rows: x[rows], batch)
        again = weights_of(part, 4, PpoOptions(aggregation="token_mean"), live=live, selected=selected)
        np.testing.assert_array_equal(again.policy, whole.policy[rows])


def test_field_report_10_default_gives_a_short_and_a_long_rollout_equal_weight():
    rollout = np.array([[0] * 2, *([[1] * 2] * 9)])
    batch = make_batch(np.ones((10, 2)), rollout=rollout)
    totals = lambda w: [float(w.policy[rollout == i].sum()) for i in (0, 1)]  # noqa: E731
    assert totals(weights_of(batch, 2, PpoOptions())) == pytest.approx([1.0, 1.0])
    assert totals(weights_of(batch, 2, PpoOptions(aggregation="token_mean"))) == [2.0, 18.0]
    assert totals(weights_of(batch, 2, PpoOptions(aggregation="sequence_mean_of_means"))) == [1.0, 9.0]


def test_field_report_11_padding_rows_leave_loss_and_metrics_bit_equal():
    rng = np.random.default_rng(5)
    batch = random_rows(rng, rows=5)
    logp = jnp.asarray(np.array(batch.behaviour_logp) + 0.4 * rng.normal(size=batch.ids.shape), jnp.float32)
    adv = jnp.asarray(rng.normal(size=logp.shape), jnp.float32)
    pad = lambda x: jnp.pad(x, ((0, 3), (0, 0)))  # noqa: E731
    plain = loss_of(logp, adv, batch, PpoOptions(), num_rollouts=4)
    padded = loss_of(pad(logp), pad(adv), jax.tree.map(pad, batch), PpoOptions(), num_rollouts=4)
    jax.tree.map(np.testing.assert_array_equal, plain, padded)


def test_field_report_14_a_sequence_ratio_above_its_cap_is_counted():
    batch = make_batch(np.ones((2, 2)), rollout=[[0, 0], [1, 1]])
    options = PpoOptions(max_sequence_ratio=1.5, kl_coefficient=0.0)
    logp = np.log([[2.0, 2.0], [1.1, 1.1]]).astype(np.float32)
    loss, m = loss_of(logp, np.ones((2, 2)), batch, options)
    assert (m.masked, m.tokens) == (2, 4)
    assert loss == pytest.approx(-1.1 / 2, rel=1e-6)
    gradient = jax.grad(lambda x: loss_of(x, np.ones((2, 2)), batch, options)[0])(logp)
    assert (gradient[0] == 0).all()


def test_field_report_21_the_stop_token_is_trained_and_equal_padding_is_not():
    # The mask decides, never the id: all ids of this batch are the same.
    batch = make_batch([[0, 1, 1, 0]])
    gradient = jax.grad(lambda x: losses.supervised_loss(x, batch, jnp.float32(2.0))[0])(-jnp.ones((1, 4)))
    assert gradient.tolist() == [[0.0, -0.5, -0.5, 0.0]]


# --- options and small things ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clip_low", 0.0),
        ("clip_low", 1.0),
        ("clip_high", -0.1),
        ("dual_clip", 0.5),
        ("ratio_level", "tokens"),
        ("max_sequence_ratio", 0.9),
        ("kl_coefficient", -1.0),
        ("kl_estimator", "k4"),
        ("kl_in", "score"),
        ("value_coefficient", 0.0),
        ("value_clip", -0.2),
        ("importance_cap", 0.5),
        ("aggregation", "mean"),
        ("constant_divisor", 3.0),
        ("epochs", 0),
        ("minibatches", 0),
        ("micro_rows", 0),
    ],
)
def test_options_name_what_is_wrong(name, value):
    with pytest.raises(ValueError, match=f"{name}={value!r}"):
        PpoOptions(**{name: value})


def test_constant_aggregation_needs_its_divisor():
    with pytest.raises(ValueError, match=r"constant_divisor=0\.0"):
        PpoOptions(aggregation="constant")


def test_nothing_selected_gives_loss_zero_and_finite_gradient():
    batch = make_batch(np.ones((1, 2)))
    call = lambda x: loss_of(x, np.ones((1, 2)), batch, PpoOptions(), selected=[False, False])[0]  # noqa: E731
    loss, gradient = jax.value_and_grad(call)(-jnp.ones((1, 2)))
    assert loss == 0
    assert (gradient == 0).all()


def test_losses_are_float32_for_bfloat16_log_probabilities():
    batch = make_batch(np.ones((1, 2)))
    weights = LossWeights(
        policy=jnp.ones((1, 2)),
        kl=jnp.ones((1, 2)),
        policy_denominator=jnp.float32(2),
        kl_denominator=jnp.float32(2),
    )
    low = jnp.full((1, 2), -1.0, jnp.bfloat16)
    loss, m = losses.ppo_loss(low, low, low, low, batch, weights, options=PpoOptions())
    assert loss.dtype == m.ratio.dtype == jnp.float32


def test_supervised_loss_is_the_mean_over_trained_tokens():
    batch = make_batch([[0, 1, 0], [1, 1, 0]])
    logp = jnp.array([[jnp.nan, -1.0, jnp.nan], [-2.0, -6.0, jnp.nan]])
    loss, tokens = losses.supervised_loss(logp, batch, jnp.float32(3.0))
    assert (loss, tokens) == (3.0, 3.0)


def test_merged_metrics_add_sums_and_take_maxima():
    one = jax.tree.map(lambda x: x + 1.0, losses.zero_metrics())
    two = losses.merge_metrics(one, jax.tree.map(lambda x: x + 2.0, losses.zero_metrics()))
    assert (two.tokens, two.max_ratio, two.max_abs_log_ratio) == (3.0, 2.0, 2.0)
