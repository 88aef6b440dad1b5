"""Weights of classes, and targets that are no signs where signs are due."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
import torch
from fake_session import DEFAULT_ROLES
from luff.torch.evidence._ctc import ctc_breaks
from luff.torch.evidence._loss_arguments import LossArguments
from luff.torch.patches import _functional
from torch import nn
from torch.nn import functional as F

ONES = torch.tensor([1.0, 0, 0, 1])
SIGNS = 2 * ONES - 1


def told(watched: Any, loss: Any, steps: int = 3) -> list[dict[str, Any]]:
    _, session = watched(DEFAULT_ROLES)
    _functional.install()
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        loss(model(torch.randn(4, 6)), step).backward()
        optimizer.step()
    kinds = ("loss_target", "loss_weights", "loss_ctc", "loss_exchanged")
    events = [e for e in session.json_events if e["kind"] in kinds]
    return [{key: e[key] for key in e if key != "kind"} for e in events]


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        (lambda z, _: nn.CosineEmbeddingLoss()(z, torch.ones(4, 3), ONES), "CosineEmbeddingLoss"),
        (
            lambda z, _: F.cosine_embedding_loss(z, torch.ones(4, 3), target=ONES.long()),
            "CosineEmbeddingLoss",
        ),
        (lambda z, _: F.margin_ranking_loss(z[:, 0], z[:, 1], ONES), "MarginRankingLoss"),
        (lambda z, _: nn.HingeEmbeddingLoss()(z[:, 0], ONES), "HingeEmbeddingLoss"),
        (lambda z, _: nn.SoftMarginLoss()(z[:, 0], ONES), "SoftMarginLoss"),
    ],
)
def test_targets_of_zero_and_one_are_told_once(watched, loss: Any, kind: str) -> None:
    assert told(watched, loss) == [{"loss": kind, "call": 0, "values": "zeros_and_ones"}]


@pytest.mark.parametrize(
    ("targets", "values"),
    [
        ([SIGNS], ["others"]),
        ([torch.ones(4)], []),
        ([torch.tensor([1.0, 0, -1, 1])], ["others"]),
        ([torch.ones(4), ONES, SIGNS, ONES], ["zeros_and_ones", "others"]),
        ([SIGNS, ONES], ["others"]),
    ],
)
def test_a_target_of_other_numbers_shows_that_zeros_are_meant(watched, targets: Any, values: Any) -> None:
    events = told(watched, lambda z, k: nn.SoftMarginLoss()(z[:, 0], targets[k]), len(targets))
    assert [event["values"] for event in events] == values


def test_weights_of_classes_are_told_whenever_they_change(watched) -> None:
    labels = torch.tensor([0, 1, 2, 0])
    module = nn.CrossEntropyLoss(weight=torch.tensor([0.5, 0.3, 0.2]))
    (event,) = told(watched, lambda z, _: module(z, labels))
    assert event == {"loss": "CrossEntropyLoss", "call": 0, "weight": [0.5, 0.3, 0.2]}


@pytest.mark.parametrize(
    ("loss", "given"),
    [
        (
            lambda z, k: F.cross_entropy(z, torch.tensor([0, 1, 2, 0]), torch.tensor([1.0, 2, 3 + k])),
            "weight",
        ),
        (
            lambda z, k: F.binary_cross_entropy_with_logits(z[:, 0], ONES, pos_weight=torch.tensor(2.0 + k)),
            "pos_weight",
        ),
    ],
)
def test_weights_of_functions_are_told_whenever_they_change(watched, loss: Any, given: str) -> None:
    assert [event[given][-1] for event in told(watched, loss)] in ([3, 4, 5], [2, 3, 4])


def test_losses_without_weights_tell_nothing(watched) -> None:
    assert told(watched, lambda z, _: F.cross_entropy(z, torch.tensor([0, 1, 2, 0]))) == []
    assert told(watched, lambda z, _: nn.BCEWithLogitsLoss()(z[:, 0], ONES)) == []


WORDS, LENGTHS = torch.tensor([[1, 2], [2, 0]]), torch.tensor([2, 1])


def ctc(
    z: Any, targets: Any = WORDS, lengths: Any = LENGTHS, steps: int = 2, of: Any = None, **given: Any
) -> Any:
    """CTC loss of two words over so many steps; `z` is (4, 3)."""
    scores = z.reshape(2, 2, 3).repeat(2, 1, 1)[:steps]
    log_probs = (of or (lambda s: s.log_softmax(-1)))(scores)
    return nn.CTCLoss(zero_infinity=True, **given)(log_probs, targets, torch.full((2,), steps), lengths)


def masked(rows: int) -> torch.Tensor:
    """To be added to (steps, 2, classes): -inf in all of the first step of so many rows."""
    mask = torch.zeros(2, 2, 1)
    mask[0, :rows] = -torch.inf
    return mask


@pytest.mark.parametrize(
    ("loss", "breaks"),
    [
        (lambda z, _: ctc(z, of=lambda s: s + 1), ["scores"]),
        (lambda z, _: ctc(z, of=lambda s: s.softmax(-1)), ["probabilities"]),
        (lambda z, _: ctc(z, WORDS - 1 + (WORDS == 0)), ["blank"]),
        (lambda z, _: ctc(z, lengths=torch.tensor([2, 2])), ["blank"]),  # of which one is padding
        (lambda z, _: ctc(z, blank=2), ["blank"]),
        (lambda z, _: ctc(z, torch.tensor([[1, 1], [2, 2]]), torch.tensor([2, 2])), ["short"]),
        (
            lambda z, _: F.ctc_loss(
                z.reshape(2, 2, 3), torch.tensor([1, 0, 2]), (2, 2), (2, 1), zero_infinity=True
            ),
            ["scores", "blank"],
        ),
    ],
)
def test_what_ctc_cannot_learn_from_is_told(watched, loss: Any, breaks: list[str]) -> None:
    each = {"loss": "CTCLoss", "call": 0, "breaks": breaks}
    assert told(watched, loss) == [each] * 3  # steps: a look says nothing of the next


@pytest.mark.parametrize(
    "loss",
    [
        lambda z, _: ctc(z),
        lambda z, _: ctc(z, torch.tensor([1, 2, 2])),  # one after the other
        lambda z, _: ctc(z, WORDS % 2, blank=2),  # the last class
        lambda z, _: ctc(z, torch.tensor([[1, 1], [2, 1]]), torch.tensor([2, 2])),  # one of two is too long
        lambda z, _: F.ctc_loss(z.reshape(4, 3).log_softmax(-1), torch.tensor([1, 2]), (4,), (2,)),
        lambda z, _: ctc(z, of=lambda s: torch.cat([s, s - 50], -1).log_softmax(-1)),
        lambda z, _: ctc(z, of=lambda s: s.log_softmax(-1) + masked(1)),
        lambda z, _: ctc(z, of=lambda s: s.log_softmax(-1) + masked(2)),
    ],
)
def test_a_ctc_loss_as_it_should_be_tells_nothing(watched, loss: Any) -> None:
    assert told(watched, loss) == []


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_logarithms_of_16_bits_are_no_scores(kind: torch.dtype) -> None:
    """Of a head of zeros under autocast: in bfloat16 the logarithm of 100 is off by 0.011."""
    scores = torch.zeros(8, 2, 100, dtype=kind)
    assert ctc_breaks(scores.log_softmax(-1), WORDS, (8, 8), (2, 1), 0) == []
    assert ctc_breaks(scores, WORDS, (8, 8), (2, 1), 0) == ["scores"]


def test_only_the_first_step_of_ctc_is_read() -> None:
    log_probs = torch.zeros(400, 16, 500, dtype=torch.bfloat16).log_softmax(-1)
    lengths = torch.full((16,), 4)
    tracemalloc.start()
    try:
        found = ctc_breaks(log_probs, torch.ones(16, 4, dtype=torch.int64), lengths * 100, lengths, 0)
        assert tracemalloc.get_traced_memory()[1] < log_probs.numel()
    finally:
        tracemalloc.stop()
    assert found == []


def test_what_ctc_no_longer_breaks_is_told_however_much_was_told_before() -> None:
    arguments, right = LossArguments(), torch.randn(4, 2, 3).log_softmax(-1)
    for call in range(80):
        arguments.called("CTCLoss", call, (right, WORDS * 0, (4, 4), (2, 1)), {}, None)
    for call in range(80):
        arguments.called("CTCLoss", call, (right, WORDS, (4, 4), (2, 1)), {}, None)
    breaks = [event["breaks"] for event in arguments.waiting]
    assert breaks == [["blank"]] * 64 + [[]] * 64


def test_ctc_that_is_given_the_right_thing_later_is_told(watched) -> None:
    events = told(watched, lambda z, k: ctc(z, lengths=torch.tensor([2, 2 if k < 1 else 1])))
    assert [event["breaks"] for event in events] == [["blank"], []]


HOT = F.one_hot(torch.tensor([0, 2, 1, 1]), 3).float()


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        (lambda z, _: F.binary_cross_entropy(HOT, z.sigmoid()), "BCELoss"),
        (lambda z, _: nn.BCELoss()(HOT, torch.sigmoid(z)), "BCELoss"),
        (lambda z, _: F.binary_cross_entropy_with_logits(HOT, z), "BCEWithLogitsLoss"),
        (lambda z, _: F.binary_cross_entropy_with_logits(0.5 * HOT + 0.2, z), "BCEWithLogitsLoss"),
        (lambda z, _: nn.CrossEntropyLoss()(HOT, z.softmax(1)), "CrossEntropyLoss"),
    ],
)
def test_labels_in_the_place_of_outputs_are_told(watched, loss: Any, kind: str) -> None:
    # One step: the weights may be NaN afterwards.
    assert told(watched, loss, 1) == [{"loss": kind, "call": 0, "exchanged": True}]


@pytest.mark.parametrize(
    "loss",
    [
        lambda z, _: F.binary_cross_entropy(z.sigmoid(), HOT),
        lambda z, _: F.cross_entropy(z, z.softmax(1)),  # of a model with itself
        lambda z, _: F.binary_cross_entropy(
            HOT * 0.9 + 0.05, z.sigmoid()
        ),  # shares: a divergence, turned round
        lambda z, _: F.mse_loss(HOT, z),  # the same in either order
        lambda z, _: F.smooth_l1_loss(HOT, z),
    ],
)
def test_other_arguments_are_not_told(watched, loss: Any) -> None:
    assert told(watched, loss) == []


def test_an_order_that_is_mended_is_told(watched) -> None:
    def loss(z: Any, step: int) -> Any:
        pair = (HOT, 0.01 * z) if step < 2 else (z, HOT)
        return F.binary_cross_entropy_with_logits(*pair)

    assert [event["exchanged"] for event in told(watched, loss, 5)] == [True, False]
