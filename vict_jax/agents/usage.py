"""What calls of a model used: counts, cost, and the limit on both."""

from __future__ import annotations

import dataclasses

_MILLION = 1e6


@dataclasses.dataclass(frozen=True)
class Usage:
    """Sums over calls.

    Attributes:
      calls: answers. retries: attempts that failed before them. cached: of the answers, those that were kept
        from before, which cost nothing.
      prompt_tokens, completion_tokens: of the calls that stated them. unstated: those that did not.
    """

    calls: int = 0
    retries: int = 0
    cached: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    unstated: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(a + b for a, b in zip(*map(dataclasses.astuple, (self, other)), strict=True)))


@dataclasses.dataclass(frozen=True)
class Prices:
    """Per million tokens, in any currency."""

    prompt: float
    completion: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value < float("inf"):
                raise ValueError(f"price_{name}={value} must be 0 or more, per million tokens")

    def cost(self, usage: Usage) -> float:
        """Of the calls that stated their tokens."""
        tokens = usage.prompt_tokens * self.prompt + usage.completion_tokens * self.completion
        return tokens / _MILLION


@dataclasses.dataclass(frozen=True)
class Budget:
    """What an evaluation may use in all, the starts before this one included; None is no limit.

    Calls on their way when it is reached are over it: at most one for each task in play.
    """

    max_cost: float | None = None
    max_calls: int | None = None
    prices: Prices | None = None

    def __post_init__(self) -> None:
        if self.max_cost is not None and self.prices is None:
            raise ValueError(
                f"max_cost={self.max_cost} needs price_prompt and price_completion, per million tokens; "
                "without prices: max_calls"
            )
        for name in ("max_cost", "max_calls"):
            if vars(self)[name] is not None and not vars(self)[name] > 0:  # NaN is no limit
                raise ValueError(f"{name}={vars(self)[name]} must be above 0")

    def reached(self, usage: Usage) -> str:
        """Why no further call may be made, "" if one may."""
        if self.max_calls is not None and usage.calls - usage.cached >= self.max_calls:
            return f"max_calls={self.max_calls} is reached"
        if self.max_cost is None or self.prices is None:
            return ""
        if usage.unstated:
            return (
                "the server does not say how many tokens a call took, so max_cost cannot be kept; "
                "limit max_calls instead"
            )
        cost = self.prices.cost(usage)
        return f"max_cost={self.max_cost:g} is reached ({cost:.4f})" if cost >= self.max_cost else ""


def describe_usage(usage: Usage, prices: Prices | None) -> str:
    """One line for people; what is not known is said to be."""
    calls = f"{usage.calls:,} calls ({usage.retries:,} retries, {usage.cached:,} from the cache)"
    if usage.unstated:
        least = f"at least {usage.prompt_tokens:,} prompt and {usage.completion_tokens:,} completion"
        return f"{calls}, {least} tokens ({usage.unstated:,} calls state none), cost not known"
    tokens = f"{usage.prompt_tokens:,} prompt and {usage.completion_tokens:,} completion tokens"
    if prices is None:
        return f"{calls}, {tokens}, no prices given"
    rates = f"{prices.prompt:g} and {prices.completion:g} per million"
    return f"{calls}, {tokens}, cost {prices.cost(usage):.4f} at {rates}"
