"""What a run says of itself at its start: every choice that makes two runs of "the same method" differ."""

from __future__ import annotations

import dataclasses

import jax

from envs.verdict import Verdict
from vict_jax import gate
from vict_jax.config import RunConfig
from vict_jax.credit.base import STATISTICS
from vict_jax.credit.methods import CreditMethod, credit_method
from vict_jax.credit.options import VictOptions
from vict_jax.job import Job, needs_values, parameter_counts


def header(job: Job, verdict: Verdict) -> str:
    """What runs, in a few lines: tasks, model, estimator, reward, loss, conformance."""
    config = job.config
    train = config.train
    about = job.domain.about(config.env.options)
    name = f"{job.domain.name} ({about})" if about else job.domain.name
    lines = {
        "environment": f"{name}: {len(job.train_tasks)} training tasks, {len(job.eval_tasks)} of "
        f"{config.eval.split}, {config.env.workers} workers",
        "model": f"{parameter_counts(job)}, {job.model.num_layers} layers, vocabulary "
        f"{job.model.vocab_size}, on {jax.devices()[0].platform} x {job.mesh.size}",
        "update": f"{train.groups} tasks x {train.rollouts} rollouts, {config.rollout.context} context of "
        f"{config.rollout.max_context} tokens{resampling(config)}{fission(config)}{staleness(config)}",
        "credit": credit(config),
        "reward": reward(config),
        "loss": loss(config),
        "": "(a policy loss near 0 at the first on-policy step is expected; its gradient is not 0)",
        "verifier": f"{gate.describe(verdict)}; checked again "
        + (f"every {config.conformance.every} updates" if config.conformance.every else "never"),
    }
    return "\n".join(f"{name:12} {text}" for name, text in lines.items())


def resampling(config: RunConfig) -> str:
    """What happens to groups of equal return."""
    most = config.train.resample_groups
    return f"; groups of equal return are replaced, up to {most} an update" if most else ""


def fission(config: RunConfig) -> str:
    """What becomes of the policy's own errors."""
    options = config.fission
    if not options.branches:
        return ""
    return (
        f"; {options.branches} recoveries from each of {options.recoveries} errors, {options.order}, up to "
        f"{options.max_age} updates old"
    )


def staleness(config: RunConfig) -> str:
    """Which policy plays, where it is not the one before the update."""
    if not config.train.staleness:
        return ""
    return f"; played by the policy one update before, weighted up to {config.ppo.importance_cap}"


def credit(config: RunConfig) -> str:
    """The credit method, its normalisation, and what corrects it."""
    chosen, options = config.credit, config.credit.options
    method = credit_method(chosen.method, options)
    parts = [f"{chosen.method}: {_advantage(method, config)}"]
    if method.rule is not None:
        parts.append(f"core {options.core}, scale {options.scale}, center {options.center}")
    if needs_values(config):
        ppo = config.ppo
        clip = f"clipped at {ppo.value_clip}" if ppo.value_clip else "not clipped"
        parts.append(f"value head, loss x {ppo.value_coefficient} {clip}")
    return "; ".join(parts)


def _advantage(method: CreditMethod, config: RunConfig) -> str:
    options = config.credit.options
    if method.estimator is not None:
        whitened = "whitened over the batch, each rollout counted once" if options.whiten else "as it is"
        return f"discount {options.discount}, lambda {options.gae_lambda}, {whitened}"
    if method.steps is not None and method.steps.section:
        return _step_level(method.steps.section, options)
    base = method.base or options.base
    discount = f", discount {options.discount}" if STATISTICS[base].startswith("return-to-go") else ""
    level = "" if method.steps is None else "step-level on "
    return f"{level}base {base} ({STATISTICS[base]}{discount})"


def _step_level(section: str, options: VictOptions) -> str:
    plain = dataclasses.asdict(options)
    own = ", ".join(f"{name} {value}" for name, value in plain[section].items())
    paid = "for a full score only" if options.steps.success_only else "in proportion to the score"
    counted = "STEP" if options.steps.rows else "rollout"
    return (
        f"step-level ({own}), {options.steps.pay} paid {paid}; outcome statistics of the group with each "
        f"{counted} counted once"
    )


def reward(config: RunConfig) -> str:
    """What is taken off the score."""
    ppo, overlong = config.ppo, config.reward
    parts = ["score"]
    if ppo.kl_coefficient and ppo.kl_in == "reward":
        parts.append(f"less KL {ppo.kl_estimator} x {ppo.kl_coefficient} of each token")
    if overlong.overlong_buffer:
        limit = overlong.limit(config.rollout)
        parts.append(
            f"less up to {overlong.overlong_weight} for a {overlong.overlong_of} of more than "
            f"{limit - overlong.overlong_buffer} of {limit} tokens"
        )
    if config.rollout.format_penalty:
        parts.append(f"less {config.rollout.format_penalty} for a reply without an action")
    return ", ".join(parts)


def loss(config: RunConfig) -> str:
    """The policy's loss and its KL term."""
    ppo = config.ppo
    dual = f", dual clip {ppo.dual_clip}" if ppo.dual_clip else ""
    text = f"PPO clip {ppo.clip_low}/{ppo.clip_high}{dual} of the {ppo.ratio_level} ratio, {ppo.aggregation}"
    if not ppo.kl_coefficient:
        return f"{text}, no KL"
    if ppo.kl_in == "reward":
        return f"{text}, KL in the reward"
    dead = "applied" if ppo.kl_on_dead_groups else "not applied"
    weighted = "importance-weighted" if ppo.kl_importance_weight else "not importance-weighted"
    return (
        f"{text}, KL {ppo.kl_estimator} x {ppo.kl_coefficient} as a loss, {weighted}, {dead} to dead groups"
    )
