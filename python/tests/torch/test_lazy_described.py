"""The document `model` of lazy modules whose parameters and buffers have no values yet."""

from __future__ import annotations

import json

import torch
from luff.torch.capture._describe import describe
from luff.torch.capture._names import Names
from torch import nn


def test_lazy_parameters_and_buffers_have_no_shape():
    names = Names()
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.Linear(4, 2))
    names.name_all([model], list(model.parameters()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (told,) = json.loads(describe(names, [(0, "SGD", optimizer)], [], [], set()))["models"]
    shapes = {one["path"]: one["shape"] for one in told["parameters"] + told["buffers"]}
    assert shapes["0.weight"] is None
    assert shapes["1.running_mean"] is None
    assert shapes["2.weight"] == [2, 4]
