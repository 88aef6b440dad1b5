"""Finds codes that are drawn with another deviation than that of their divergence: ``mean + noise * log_var.exp()``
beside ``1 + log_var - mean**2 - log_var.exp()``; or with uniform noise beside such a divergence. And divergences of
categories with the wrong sign, where the code is drawn by Gumbel's noise.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from luff.torch.capture._graphs import nodes_behind, operation_of
from luff.torch.capture._memory import Array
from luff.torch.evidence._graph_values import is_noise
from luff.torch.evidence._loss_edges import (
    Edge,
    Part,
    Power,
    inner_of,
    parts_of,
    past_edge,
    power_of,
    scaled,
)
from luff.torch.evidence._loss_terms import constant_of

__all__ = ["category_divergence_grows", "fault_of_samples", "is_uniform"]

_WALK = 4096  # nodes behind a root among which samples are
_CLOSE = 1e-3  # of exponents
_FEWEST = 128  # of uniform noise
_INTERVALS = ((0.0, 1.0), (-1.0, 1.0), (-0.5, 0.5))
_BINS = 8
_UNEVEN = 30  # of chi squared: one even sample in 1e4 lies above
_SHARES = ("Softmax", "SafeSoftmax")


def fault_of_samples(parts: list[Part]) -> str:
    """Returns what is wrong with samples of a loss that holds the divergence of a normal distribution: all of those in
    its graph that have the same mean have another power of the deviation, or uniform noise.
    """
    variances = _variances(parts)
    if not variances:
        return ""
    found = ""
    for node in nodes_behind([part.edge[0] for part in parts], _WALK):
        if operation_of(node) != "Add" or len(inner_of(node)) != 2:
            continue
        one, other = node.next_functions
        for drawn, mean in ((one, other), (other, one)):
            drawn, mean = past_edge(drawn), past_edge(mean)
            if operation_of(drawn[0]) != "Mul" or len(inner_of(drawn[0])) != 1:
                continue
            known = [
                variance
                for variance, means in variances
                if mean in means and _is_of(inner_of(drawn[0])[0], variance)
            ]
            if not known:
                continue
            deviation = power_of(inner_of(drawn[0])[0])
            noise, _ = constant_of(drawn[0])
            if noise is not None and is_uniform(noise):
                found = found or "uniform_noise"
                continue
            if any(_fits(deviation, variance) for variance in known):
                return ""
            if noise is not None and is_noise(noise):
                found = "deviation_unlike"
    return found


def is_uniform(noise: Array) -> bool:
    """Whether the values are spread evenly from 0 to 1, or from -1 or -0.5 to as far above 0."""
    values = noise.reshape(-1)[:4096].astype(np.float64)
    if values.size < _FEWEST or not bool(np.isfinite(values).all()):
        return False
    if len(np.unique(values)) < 0.99 * values.size:  # masks, and what was clipped
        return False
    least, most = float(values.min()), float(values.max())
    for low, high in _INTERVALS:
        reach = (high - low) * 12 / values.size  # one in 1e5 leaves more room at an end
        if not (low <= least < low + reach and high - reach < most <= high):
            continue
        even = values.size / _BINS
        counts = np.histogram(values, _BINS, (low, high))[0]
        return bool(((counts - even) ** 2).sum() / even < _UNEVEN)
    return False


def _is_of(edge: Edge, variance: Power) -> bool:
    return power_of(edge).base == variance.base


def _fits(deviation: Power, variance: Power) -> bool:
    same = deviation.exponential == variance.exponential
    return same and abs(deviation.exponent - variance.exponent / 2) < _CLOSE


def _variances(parts: list[Part]) -> list[tuple[Power, list[Edge]]]:
    """Returns the variances of normal divergences in a loss, v + m**2 - log v, with the means m."""
    parts = parts + [one for part in parts for one in _over_another(part)]
    logarithms = [_logarithm(part.edge) for part in parts if part.sign < 0]
    powers = [power for part in parts if part.sign > 0 and (power := power_of(part.edge)).exponent > 0]
    squares = [power for power in powers if power.exponent == 2 and not power.exponential]
    found = []
    for power in powers:
        if not any(
            power.base == logarithm.base and power.exponential == logarithm.exponential
            for logarithm in logarithms
        ):
            continue
        means = [edge for square in squares if square.base != power.base for edge in _means(square.base)]
        if means:
            found.append((power, means))
    return found


def _means(edge: Edge) -> list[Edge]:
    """Returns a mean, and both means of a difference."""
    if operation_of(edge[0]) in ("Sub", "Add"):
        return [edge, *(past_edge(one) for one in inner_of(edge[0]))]
    return [edge]


def _over_another(part: Part) -> list[Part]:
    """Returns what is divided by the variance of another distribution."""
    inner = inner_of(part.edge[0])
    if operation_of(part.edge[0]) not in ("Mul", "Div") or len(inner) != 2 or inner[0] == inner[1]:
        return []
    return [
        Part(one.edge, one.sign * part.sign)
        for edge in inner
        if len(terms := parts_of(edge)) > 1
        for one in terms
    ]


def _logarithm(edge: Edge) -> Power:
    """Returns the quantity whose logarithm an edge is, of what is no `log` the exponential of it."""
    edge, factor = scaled(edge)
    if operation_of(edge[0]) == "Log":
        return power_of(edge[0].next_functions[0])
    return Power(edge, factor, True)


# Categories --------------------------------------------------------------------------------------------------------


def category_divergence_grows(parts: list[Part]) -> bool:
    """Returns whether a loss holds -q * (log q - log p), with p a number, for shares q of scores from which a code is
    drawn: a softmax of the same scores and Gumbel's noise. An entropy is no divergence: it may have either sign.
    """
    scores = [edge for part in parts if part.sign < 0 and (edge := _divergence(part.edge)) is not None]
    if not scores:
        return False
    behind = nodes_behind([part.edge[0] for part in parts], _WALK)
    return any(operation_of(node) in _SHARES and _drawn_from(node) in scores for node in behind)


def _divergence(edge: Edge) -> Edge | None:
    """Returns the scores of q in a product q * (log q - number)."""
    inner = inner_of(edge[0])
    if operation_of(edge[0]) != "Mul" or len(inner) != 2:
        return None
    for share, ratio in (inner, inner[::-1]):
        share, ratio = past_edge(share), past_edge(ratio)
        if operation_of(share[0]) not in _SHARES:
            continue
        if operation_of(ratio[0]) not in ("Sub", "Add") or len(inner_of(ratio[0])) != 1:
            continue
        scores, logarithm = past_edge(share[0].next_functions[0]), past_edge(ratio[0].next_functions[0])
        if operation_of(logarithm[0]) == "LogSoftmax":
            same = past_edge(logarithm[0].next_functions[0]) == scores
        else:
            same = (
                operation_of(logarithm[0]) == "Log" and power_of(logarithm[0].next_functions[0]).base == share
            )
        if same:
            return scores
    return None


def _drawn_from(node: Any) -> Edge | None:
    """Returns the scores of a softmax of scores plus noise, over a temperature."""
    edge, _ = scaled(node.next_functions[0])
    inner = inner_of(edge[0])
    if operation_of(edge[0]) not in ("Add", "Sub") or len(inner) != 1:
        return None
    return past_edge(inner[0])
