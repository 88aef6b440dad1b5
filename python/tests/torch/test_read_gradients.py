"""Whether the functions of a script speak of gradients, which passes that were cleared may have been made for."""

from __future__ import annotations

import cases
import pytest
import torch
from test_evidence import told
from torch import nn

SAMPLE = 14
LOOP = """
from torch.nn.functional import cross_entropy

def update_of_four(model, optimizer, rows):
    for x, y in rows:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        CALLED
    optimizer.step()

def another(model):
    return norms(model)
"""
NORMS = """
def norms(model):
    return [p.grad.norm() for p in model.parameters()]
"""


@pytest.mark.parametrize(
    ("called", "reads"), [("norms(model)", True), ("another(model)", True), ("pass", False)]
)
def test_whether_the_script_reads_gradients_is_told(watched, called, reads):
    _, session = watched({SAMPLE})
    scope = {"__name__": "script"}
    exec(compile(LOOP.replace("CALLED", called) + NORMS, "script.py", "exec"), scope)
    model = nn.Linear(6, 3)
    scope["update_of_four"](model, torch.optim.Adam(model.parameters(), lr=0.01), cases.batches(4))
    (event,) = told(session, "accumulation")
    assert event["reads"] is reads
