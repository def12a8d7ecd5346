"""Cases worked by hand: Eq. 5-17 for four kinds of verifier, literal and complete.

Figures are rounded to six places. All groups run at one padded shape; the padding holds NaN and garbage.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from tests.credit import builders
from tests.credit.builders import S, U, rollout
from tests.credit.worked import (
    ATOMS,
    COMPLETE,
    CONJUNCTION,
    EITHER,
    LITERAL,
    PRODUCT,
    ROLLOUTS,
    STEPS,
    SUM,
    close,
    run,
)
from vict_jax.credit.diagnostics import Cause
from vict_jax.credit.options import VictOptions


def worked(
    kind: int, rollouts: Sequence[dict[str, Any]], options: VictOptions, **task: Any
) -> Callable[[str], np.ndarray]:
    """Run a group at the common shape. Returns a look-up of the group's part of an output by name."""
    inputs = builders.group(rollouts, **task)
    atoms = len(task["weight"])
    kinds = jnp.full((1, atoms), kind, jnp.int32)
    inputs = dataclasses.replace(inputs, params={**inputs.params, "kind": kinds})
    n, steps = len(rollouts), inputs.commits.shape[2]
    padded = builders.pad(
        inputs, rollouts=ROLLOUTS - n, steps=STEPS - steps, atoms=ATOMS - atoms, variables=2 * (ATOMS - atoms)
    )
    output = builders.crop(run(padded, options), inputs)

    def get(name: str) -> np.ndarray:
        owner = output if name in ("advantages", "base", "correction", "lambda_", "clip") else output.proofs
        value = np.asarray(getattr(owner, name))
        return value[0] if value.ndim else value

    return get


# --- Eq. 5-17 -------------------------------------------------------------------------------------


def conjunction(options: VictOptions) -> Callable[[str], np.ndarray]:
    """F = a and b. The first rollout has both, the second only a; both tried both."""
    tried = [(0, 0), (1, 1)]
    rollouts = [rollout(1.0, [S, S], steps=2, writes=tried), rollout(0.0, [S, U], steps=2, writes=tried)]
    return worked(CONJUNCTION, rollouts, options, weight=[1, 1])


def test_conjunction_complete() -> None:
    get = conjunction(COMPLETE)
    # Mean 1/2, std sqrt(1/2) = 0.707107, A = +-0.707107; rho = s |A| = 1/2.
    close(get("base"), [[0.707107] * 2, [-0.707107] * 2])
    # Each loss costs everything: e = (1, 1). z of the second is {a}, so a counts for it and b against it.
    np.testing.assert_array_equal(get("core"), [[True, True], [True, True]])
    close(get("marginal"), [[1, 1], [1, -1]])
    # a: 1 and 1, scale 0. b: 1 and -1, median 0, std sqrt(2): +-0.707107.
    close(get("marginal_norm"), [[0, 0.707107], [0, -0.707107]])
    np.testing.assert_array_equal(get("atom_cause"), [[Cause.ZERO_SCALE, Cause.NONE]] * 2)
    # lambda = 0.5 x 0.707107 / 0.707107 = 0.5; c = 0.707107; correction 0.5 x 0.707107.
    close([get("lambda_"), get("clip")], [0.5, 0.707107])
    close(get("advantages"), [[0.707107, 1.060660], [-0.707107, -1.060660]])


def test_conjunction_literal() -> None:
    get = conjunction(LITERAL)
    # First: Delta(a) = Delta(b) = 1 >= 1/2, the lower index wins. Second: repairing a changes nothing, b
    # gains 1.
    np.testing.assert_array_equal(get("core"), [[True, False], [False, True]])
    close(get("marginal"), [[1, 0], [0, 1]])
    # Each atom is in the core of one rollout only: nothing to compare, no correction.
    few = [[Cause.TOO_FEW_SUPPORTED, Cause.NONE], [Cause.NONE, Cause.TOO_FEW_SUPPORTED]]
    np.testing.assert_array_equal(np.where(get("core"), get("atom_cause"), 0), few)
    np.testing.assert_array_equal(get("correction"), np.zeros((2, 2)))


def weighted(options: VictOptions) -> Callable[[str], np.ndarray]:
    """F = 0.4 a + 0.4 b + 0.2 c, b requires a; every rollout tried all three, one action each."""
    tried = [(0, 0), (1, 1), (2, 2)]
    finals = {1.0: [S, S, S], 0.8: [S, S, U], 0.2: [U, U, S], 0.0: [U, U, U]}
    rollouts = [rollout(score, final, steps=3, writes=tried) for score, final in finals.items()]
    return worked(SUM, rollouts, options, weight=[0.4, 0.4, 0.2], requires={1: [0]})


# Mean 0.5; (0.25 + 0.09 + 0.09 + 0.25) / 3 = 0.226667, std 0.476095: A = +-1.050210, +-0.630126.
# rho = |R - mean| = 0.5, 0.3, 0.3, 0.5. Over the 12 actions: median |A| 0.840168, 0.95-quantile 1.050210.


def test_weighted_sum_complete() -> None:
    get = weighted(COMPLETE)
    close(get("base")[:, 0], [1.050210, 0.630126, -0.630126, -1.050210])
    # Losing a loses b as well: e = (0.8, 0.4, 0.2) with all three; without c in z, e_c = 0, no candidate.
    np.testing.assert_array_equal(get("core"), [[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 1, 1]])
    close(get("marginal"), [[0.8, 0.4, 0.2], [0.8, 0.4, 0], [-0.8, -0.4, 0.2], [-0.8, -0.4, -0.2]])
    # a: +-0.8 twice, std 0.8 sqrt(4/3) = 0.923760: +-0.866025; b the same.
    # c: 0.2, 0.2, -0.2: median 0.2, mean 1/15, std sqrt((2 x 0.017778 + 0.071111) / 2) = 0.230940; the last
    # is -0.4 / 0.230940 = -1.732051.
    side, c = 0.866025, -1.732051
    close(get("marginal_norm"), [[side, side, 0], [side, side, 0], [-side, -side, 0], [-side, -side, c]])
    # Median |A_vict| of eight 0.866025 and one 1.732051; lambda = 0.5 x 0.840168 / 0.866025 = 0.485071.
    close([get("lambda_"), get("clip")], [0.485071, 1.050210])
    # 0.485071 x 0.866025 = 0.420084; the last is clipped: 0.485071 x 1.050210 = 0.509427.
    x = 0.420084
    close(get("correction"), [[x, x, 0], [x, x, 0], [-x, -x, 0], [-x, -x, -0.509427]])


def test_weighted_sum_literal() -> None:
    get = weighted(LITERAL)
    # 1, 2: removing a costs 0.8, more than rho: core {a}, 0.8.
    # 3: repairing {a, b} gains 0.8; without b it still gains 0.4 >= 0.3: core {a}, 0.4.
    # 4: {a, b} gains 0.8; a alone 0.4 < 0.5, so b stays, and a, which b requires. Delta(C) - Delta({b})
    #    is 0, as repairing b brings a along; Delta(C) - Delta({a}) = 0.4.
    np.testing.assert_array_equal(get("core"), [[1, 0, 0], [1, 0, 0], [1, 0, 0], [1, 1, 0]])
    close(get("marginal"), [[0.8, 0, 0], [0.8, 0, 0], [0.4, 0, 0], [0, 0.4, 0]])
    # a: 0.8, 0.8, 0.4, 0: median 0.6, mean 0.5, std sqrt((0.09 + 0.09 + 0.01 + 0.25) / 3) = 0.382971.
    # 0.2 / 0.382971 = 0.522233; the zero marginal is not credited. b has one rollout only.
    close(get("marginal_norm"), [[0.522233, 0, 0], [0.522233, 0, 0], [-0.522233, 0, 0], [0, 0, 0]])
    # lambda = 0.5 x 0.840168 / 0.522233 = 0.804400.
    close([get("lambda_"), get("clip")], [0.804400, 1.050210])
    close(get("correction")[:, 0], [0.420084, 0.420084, -0.420084, 0])
    assert not get("correction")[:, 1:].any()


def shop(options: VictOptions) -> Callable[[str], np.ndarray]:
    """F = type x (attribute + option + price) / 3: right; wrong option; the wrong product.

    Actions: open the product, choose the attribute, choose the option, buy, which also fixes the price and
    commits everything.
    """
    clicks: dict[str, Any] = {"writes": [(0, 0), (1, 1), (2, 2), (3, 3)], "commits": {3: [0, 1, 2, 3]}}
    rollouts = [
        rollout(1.0, [S, S, S, S], steps=4, **clicks),
        rollout(2 / 3, [S, S, U, S], steps=4, **clicks),
        rollout(0.0, [U, S, S, S], steps=4, **clicks),
    ]
    gate = [True, False, False, False]
    return worked(PRODUCT, rollouts, options, weight=[0, 1 / 3, 1 / 3, 1 / 3], gate=gate)


# Mean 5/9; (0.197531 + 0.012346 + 0.308642) / 2 = 0.259259, std 0.509175: A = 0.872872, 0.218218, -1.091089.
# rho = 4/9, 1/9, 5/9. Median |A| 0.872872, 0.95-quantile 1.091089 (four actions each).


def test_product_complete() -> None:
    get = shop(COMPLETE)
    close(get("base")[:, 0], [0.872872, 0.218218, -1.091089])
    # e: all right (1, 1/3, 1/3, 1/3); without the option (2/3, 1/3, 0, 1/3); the wrong product is measured
    # with everything repaired, (1, 1/3, 1/3, 1/3), and only the type counts against it.
    np.testing.assert_array_equal(get("core"), [[1, 1, 1, 1], [1, 1, 0, 1], [1, 1, 1, 1]])
    third = 1 / 3
    close(get("marginal"), [[1, third, third, third], [2 / 3, third, 0, third], [-1, third, third, third]])
    # type: 1, 2/3, -1: median 2/3, mean 2/9, std sqrt((0.604938 + 0.197531 + 1.493827) / 2) = 1.071517.
    close(get("marginal_norm")[:, 0], [0.311086, 0, -1.555428])
    assert not get("marginal_norm")[:, 1:].any(), "the others are the same everywhere: scale 0"
    # Two edges of weight 1, opening and buying: half each. Median |A_vict| (0.155543 + 0.777714) / 2
    # = 0.466629.
    close(get("weight").sum(-1)[2, :, 0], [1, 0, 0, 1])
    # lambda = 0.5 x 0.872872 / 0.466629 = 0.935296.
    close([get("lambda_"), get("clip")], [0.935296, 1.091089])
    good, bad = 0.145479, -0.727393
    close(get("correction"), [[good, 0, 0, good], [0, 0, 0, 0], [bad, 0, 0, bad]])


def test_product_literal() -> None:
    get = shop(LITERAL)
    # The type alone reaches rho everywhere: it costs 1, 2/3, and gains 1. Its state has no say.
    np.testing.assert_array_equal(get("core"), [[True, False, False, False]] * 3)
    close(get("marginal")[:, 0], [1, 2 / 3, 1])
    # Median 1, mean 8/9, std sqrt((2/81 + 4/81) / 2) = 0.192450: the middle one gets -1/3 / 0.192450, which
    # is -1.732051.
    close(get("marginal_norm")[:, 0], [0, -1.732051, 0])
    # Half of it on each of two edges; lambda = 0.5 x 0.872872 / 0.866025 = 0.503953.
    close([get("lambda_"), get("clip")], [0.503953, 1.091089])
    close(get("correction"), [[0] * 4, [-0.436436, 0, 0, -0.436436], [0] * 4])


def either(options: VictOptions) -> Callable[[str], np.ndarray]:
    """F = (a or b) and c: by a; by both; without c; with neither a nor b."""
    tried = [(0, 0), (1, 1), (2, 2)]
    finals = [(1.0, [S, U, S]), (1.0, [S, S, S]), (0.0, [S, U, U]), (0.0, [U, U, S])]
    rollouts = [rollout(score, final, steps=3, writes=tried) for score, final in finals]
    return worked(EITHER, rollouts, options, weight=[0, 0, 0])


# Mean 1/2, std sqrt(1/3) = 0.577350, A = +-0.866025, rho = 1/2.


def test_disjunction_complete() -> None:
    get = either(COMPLETE)
    close(get("base")[:, 0], [0.866025, 0.866025, -0.866025, -0.866025])
    # By a: e = (1, 0, 1). By both: neither's loss costs anything. Failed: repaired both hold, so only c is
    # load-bearing; the last has it, and nobody is to blame for the missing ground.
    np.testing.assert_array_equal(get("core"), [[1, 0, 1], [0, 0, 1], [0, 0, 1], [0, 0, 1]])
    close(get("marginal"), [[1, 0, 1], [0, 0, 1], [0, 0, -1], [0, 0, 1]])
    # c: 1, 1, -1, 1: median 1, mean 1/2, std 1: only the third differs from the median, -2.
    close(get("marginal_norm"), [[0, 0, 0], [0, 0, 0], [0, 0, -2], [0, 0, 0]])
    # lambda = 0.5 x 0.866025 / 2 = 0.216506; -2 is clipped to -0.866025: 0.1875.
    close([get("lambda_"), get("clip")], [0.216506, 0.866025])
    close(get("correction"), [[0, 0, 0], [0, 0, 0], [0, 0, -0.1875], [0, 0, 0]])


def test_disjunction_literal() -> None:
    get = either(LITERAL)
    # By a: a and c cost 1 each, a comes first. By both: only c. Without c: repair c. Neither: repair a.
    np.testing.assert_array_equal(get("core"), [[1, 0, 0], [0, 0, 1], [0, 0, 1], [1, 0, 0]])
    close(get("marginal"), [[1, 0, 0], [0, 0, 1], [0, 0, 1], [1, 0, 0]])
    # Each atom has two rollouts with the same marginal: scale 0 everywhere.
    np.testing.assert_array_equal(get("cause"), [Cause.ZERO_SCALE] * 4)
    assert not get("correction").any()
