"""Parts of modules that the code around them names."""

from __future__ import annotations

import torch
from luff.torch.capture._mentions import is_mentioned
from torch import nn


class Domains(nn.Module):
    """Chooses one of its norms; one layer is left out by a copied line."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.source, self.target = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
        self.by_property, self.in_lambda, self.in_list = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.init_weights()

    def init_weights(self):
        nn.init.zeros_(self.third.weight)

    @property
    def one(self):
        return self.by_property

    def forward(self, x, target=False):
        norm = self.target if target else self.source
        return (
            norm(self.second(self.second(self.first(x)))),
            lambda: self.in_lambda,
            [self.in_list for _ in range(2)],
        )


class Outer(nn.Module):
    """Uses a part of its part."""

    def __init__(self):
        super().__init__()
        self.inner = Domains()

    def forward(self, x):
        return self.inner.third(self.inner(x)[0])


class ByName(nn.Module):
    """Chooses its parts by their names."""

    def __init__(self):
        super().__init__()
        self.norm_a, self.norm_b = nn.BatchNorm1d(3), nn.BatchNorm1d(3)

    @torch.no_grad()
    def forward(self, x, which):
        return getattr(self, f"norm_{which}")(x)


def mentioned(model):
    modules = dict(model.named_modules())
    return {path: is_mentioned(modules, path) for path in modules if path}


def test_parts_that_a_condition_chooses_are_mentioned_and_those_that_are_left_out_are_not():
    found = mentioned(Domains())
    assert not found.pop("third")
    assert all(found.values())


def test_parts_that_a_parents_parent_uses_are_mentioned():
    assert mentioned(Outer())["inner.third"]


def test_parts_that_are_reached_by_a_name_that_is_made_are_mentioned():
    assert mentioned(ByName()) == {"norm_a": True, "norm_b": True}
    assert mentioned(nn.Sequential(nn.Linear(3, 3))) == {"0": False}
