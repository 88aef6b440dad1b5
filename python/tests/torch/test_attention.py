"""Weights of attention: what a softmax has saved, what a fused kernel would have had, or a gap that says so."""

from __future__ import annotations

import math

import luff.config
import luff.torch
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from luff._codes import GapReason, Role
from luff.torch.evidence import _attention
from torch import nn
from torch.utils.checkpoint import checkpoint

ASKED = frozenset({Role.ATTENTION})
FUSED, NOT_SEEN = int(GapReason.FUSED_ATTENTION), int(GapReason.NOT_SEEN)


class Block(nn.Module):
    """Attention as a script writes it: its own projections, and the fused function."""

    def __init__(self, width=16, heads=4, dropout=0.0, groups=1):
        super().__init__()
        self.heads, self.dropout, self.groups = heads, dropout, groups
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width // groups)
        self.value, self.out = nn.Linear(width, width // groups), nn.Linear(width, width)

    def forward(self, x, mask=None, causal=False):
        q, k, v = (self.split(module(x)) for module in (self.query, self.key, self.value))
        k, v = (torch.repeat_interleave(one, self.groups, dim=1) for one in (k, v))
        with torch.no_grad():
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            if causal:
                scores = scores.masked_fill(torch.ones_like(scores).tril() == 0, -torch.inf)
            if mask is not None:
                scores = scores + mask
            self.wanted = scores.softmax(dim=-1).numpy().copy()
        mixed = F.scaled_dot_product_attention(q, k, v, mask, self.dropout if self.training else 0.0, causal)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def split(self, x):
        return x.unflatten(-1, (-1, 4)).transpose(1, 2)


class Model(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block, self.head = block, nn.Linear(16, 1)

    def forward(self, x, **options):
        return self.head(self.block(x, **options))


def train(model, x, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x, **options).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("kind", ["plain", "causal", "mask", "dropout", "groups"])
def test_fused_attention_is_worked_out(watched, kind, by_hand):
    model = Model(Block(dropout=0.3 if kind == "dropout" else 0.0, groups=2 if kind == "groups" else 1))
    _, session = watched(ASKED, model if by_hand else None)
    options = {"causal": True} if kind == "causal" else {}
    if kind == "mask":
        mask = torch.zeros(6, 6)
        mask[:, 4:] = -torch.inf
        options = {"mask": mask}
    train(model, torch.randn(3, 6, 16), **options)
    (step,) = session.train()
    name = "attention/block_0"
    assert step.values[name].shape == (3, 4, 6, 6) and step.gaps == []
    assert np.allclose(step.values[name], model.block.wanted, atol=1e-6)
    assert {n: (r, p, k) for n, r, p, k in session.tensors}[name] == (Role.ATTENTION, "block", "Block")


@pytest.mark.parametrize("need_weights", [False, True])
def test_multihead_attention(watched, need_weights):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 4, dropout=0.2, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x, need_weights=need_weights, average_attn_weights=False)[0]

    model = Own()
    _, session = watched(ASKED, model)
    x = torch.randn(2, 6, 16)
    state = torch.get_rng_state()
    with torch.no_grad():
        model.attention.eval()
        wanted = model.attention(x, x, x, average_attn_weights=False)[1].numpy().copy()
        model.attention.train()
    torch.set_rng_state(state)
    train(model, x)
    step = session.train()[-1]
    assert np.allclose(step.values["attention/attention_0"].reshape(wanted.shape), wanted, atol=1e-6)


def test_an_encoder_has_weights_in_training_and_a_gap_in_evaluation(watched):
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Linear(16, 1))
    hook, session = watched(ASKED, model)
    x = torch.randn(2, 6, 16)
    train(model, x)
    model.eval()
    with torch.no_grad():
        model(x)  # the fast path
    hook.close()
    assert set(session.train()[0].values) == {f"attention/0.layers.{n}.self_attn_0" for n in (0, 1)}
    (evaluation,) = session.eval()
    assert not evaluation.values and evaluation.gaps == [("attention", NOT_SEEN)]


def test_results_and_random_state_are_those_of_the_bare_training(watched):
    def trained():
        torch.manual_seed(3)
        model = Model(Block(dropout=0.3))
        for _ in range(3):
            train(model, torch.randn(3, 6, 16))
        return [parameter.detach().clone() for parameter in model.parameters()], torch.get_rng_state()

    bare, state = trained()
    _, session = watched(ASKED)
    seen, after = trained()
    assert all(torch.equal(a, b) for a, b in zip(bare, seen, strict=True)) and torch.equal(state, after)
    assert all("attention/block_0" in step.values for step in session.train())


def test_only_as_many_samples_as_the_bounds_allow(watched, monkeypatch):
    one = 4 * 6 * 6 * 4
    monkeypatch.setattr(_attention, "_PRODUCTS", one * 2 + 1)
    model = Model(Block())
    _, session = watched(ASKED, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(5, 6, 16)
    for _ in range(2):
        (model(x) + model(x)).mean().backward()
        optimizer.step()
    step = session.train()[1]
    assert step.values["attention/block_0"].shape[0] == 2
    assert step.wholes["attention/block_0"] == [5, 4, 6, 6]
    assert step.gaps == [("attention/block_1", FUSED)]  # nothing was left for the second call


def test_what_cannot_be_seen_is_a_gap(watched):
    class Recomputed(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block()

        def forward(self, x):
            return checkpoint(self.block, x, use_reentrant=False)

    _, session = watched(ASKED)
    train(Recomputed(), torch.randn(2, 6, 16))
    train(nn.Linear(16, 1), torch.randn(2, 16))
    assert [step.gaps for step in session.train()] == [[("attention", NOT_SEEN)]] * 2
    assert not any(step.values for step in session.train())


def test_read_back(tmp_path):
    model = Model(Block())
    every = luff.config.SaveConfig(save_interval=1)
    hook = luff.torch.attach(
        model, run=tmp_path / "run", collections=[luff.config.Collection("attention", save_config=every)]
    )
    train(model, torch.randn(3, 6, 16))
    hook.close()
    with luff.open_trial(tmp_path / "run") as trial:
        (name,) = trial.tensors(collection="attention")
        weights = trial.tensor(name).value(0, mode="TRAIN")
        assert trial.tensor(name).role == "attention"
        assert np.allclose(weights, model.block.wanted, atol=1e-6)
