"""Losses that a script writes or reduces itself: their outputs, targets and values, and what counts of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fake_session import DEFAULT_ROLES
from luff._codes import Role
from luff.torch.patches import _functional
from torch import nn

ROLES = DEFAULT_ROLES | {Role.SAMPLE}
ROWS = 6


@pytest.fixture(autouse=True)
def functional(monkeypatch):
    """Wraps the functional losses for one test, as ``luff run`` does."""
    for name in (*_functional._KINDS, *_functional._DROPOUTS):
        monkeypatch.setattr(F, name, getattr(F, name), raising=False)
    _functional.install.__wrapped__()


class Two(nn.Module):
    """Returns two tensors in a dict, as many models do."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(4, 3), nn.Linear(4, 1)

    def forward(self, x):
        return {"scores": self.one(x), "value": self.other(x)}


def trained(watched, model, loss_of, targets, steps=4):
    """Trains, and returns the steps whose model was seen with an open session, with the targets of each."""
    _, session = watched(ROLES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    given = []
    for _ in range(steps):
        x, y = torch.randn(ROWS, 4), targets()
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        optimizer.step()
        given.append(y)
    return list(zip(session.train(), given, strict=True))[1:]


def numbers(*shape):
    return lambda: torch.randn(*shape)


def times_itself(difference):
    return difference * difference


@pytest.mark.parametrize(
    ("loss_of", "targets", "kind"),
    [
        (lambda o, y: ((o - y) ** 2).mean(), numbers(ROWS, 3), "MSELoss"),
        (lambda o, y: (y - o).pow(2).mean(), numbers(ROWS, 3), "MSELoss"),
        (lambda o, y: (o - y).square().sum(1).mean(), numbers(ROWS, 3), "MSELoss"),
        (lambda o, y: 0.5 * times_itself(o - y).sum(), numbers(ROWS, 3), "MSELoss"),
        (lambda o, y: ((o - y) ** 2).mean().sqrt(), numbers(ROWS, 3), "MSELoss"),
        (lambda o, y: torch.mean(torch.square(torch.sub(o, y))), numbers(ROWS, 3), "MSELoss"),
        (lambda o, y: torch.norm(o - y), numbers(ROWS, 3), "MSELoss"),
        (lambda o, y: (o - y).abs().mean(), numbers(ROWS, 3), "L1Loss"),
        (lambda o, y: torch.abs(y - o).sum() / len(o), numbers(ROWS, 3), "L1Loss"),
        (lambda o, y: ((o[:, 0] - y) ** 2).mean(), numbers(ROWS), "MSELoss"),
        (lambda o, y: ((o.reshape(-1) - y) ** 2).mean(), numbers(3 * ROWS), "MSELoss"),
        (lambda o, y: (torch.rand(ROWS, 1) * (o - y) ** 2).mean(), numbers(ROWS, 3), "MSELoss"),
        (lambda o, y: ((o - y) ** 2).mean() + 1e-3 * o.abs().mean(), numbers(ROWS, 3), "MSELoss"),
        (lambda o, y: ((o.double() - y) ** 2).mean(), lambda: torch.randn(ROWS, 3).double(), "MSELoss"),
    ],
)
def test_an_error_that_is_written_out(watched, loss_of, targets, kind):
    for step, y in trained(watched, nn.Linear(4, 3), loss_of, targets):
        output = step.values[f"sample/{kind}_input_0"]
        target = step.values[f"sample/{kind}_input_1"]
        np.testing.assert_allclose(target, y.numpy(), rtol=1e-5, atol=1e-6)
        assert target.dtype == y.numpy().dtype
        distances = np.abs(output.astype(np.float64) - y.numpy()) ** (2 if kind == "MSELoss" else 1)
        assert step.scalars[f"{kind}_part_0"] == pytest.approx(distances.mean(), rel=1e-4)


def test_the_value_of_an_action_that_was_taken_against_its_target(watched):
    actions = torch.randint(0, 3, (ROWS, 1))
    values = trained(
        watched,
        nn.Linear(4, 3),
        lambda o, y: ((o.gather(1, actions).squeeze(1) - y) ** 2).mean(),
        numbers(ROWS),
    )
    for step, y in values:
        np.testing.assert_allclose(step.values["sample/MSELoss_input_1"], y.numpy(), rtol=1e-5, atol=1e-6)


def test_whole_numbers_come_back_as_such(watched):
    scale = torch.tensor([1.0, 30.0, 1000.0])
    targets = lambda: torch.randint(-5, 6, (ROWS, 3)) * scale  # noqa: E731
    for step, y in trained(watched, nn.Linear(4, 3), lambda o, y: ((o - y) ** 2).mean(), targets):
        np.testing.assert_array_equal(step.values["sample/MSELoss_input_1"], y.numpy())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e38, 1e-45])
def test_numbers_at_the_end_of_their_range_are_no_error_and_no_warning(watched, value):
    with np.errstate(all="raise"):
        targets = lambda: torch.tensor([0.0, 1.0, value]).repeat(ROWS, 1)  # noqa: E731
        for step, y in trained(watched, nn.Linear(4, 3), lambda o, y: ((o - y) ** 2).mean(), targets):
            np.testing.assert_array_equal(step.values["sample/MSELoss_input_1"].shape, y.shape)


def test_a_broadcast_shows_the_shapes_that_were_given(watched):
    loss_of = lambda o, y: ((o - y) ** 2).mean()  # noqa: E731
    for step, y in trained(watched, nn.Linear(4, 1), loss_of, numbers(ROWS)):
        assert step.values["sample/MSELoss_input_0"].shape == (ROWS, 1)
        np.testing.assert_allclose(step.values["sample/MSELoss_input_1"], y.numpy(), rtol=1e-5, atol=1e-6)
    model = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    for step, y in trained(watched, model, loss_of, numbers(ROWS, 1)):
        assert step.values["sample/MSELoss_input_0"].shape == (ROWS,)
        np.testing.assert_allclose(step.values["sample/MSELoss_input_1"], y.numpy(), rtol=1e-5, atol=1e-6)


def test_results_in_a_dict_and_two_errors_of_a_step(watched):
    def loss_of(out, y):
        return ((out["scores"] - y[:, :3]) ** 2).mean() + 0.1 * ((out["value"][:, 0] - y[:, 3]) ** 2).mean()

    for step, y in trained(watched, Two(), loss_of, numbers(ROWS, 4)):
        found = {step.values[f"sample/MSELoss_input_{k}"].shape for k in (1, 3)}
        assert found == {(ROWS, 3), (ROWS,)}
        targets = [step.values[f"sample/MSELoss_input_{k}"].reshape(-1) for k in (1, 3)]
        expected = sorted(np.concatenate([y[:, :3].reshape(-1).numpy(), y[:, 3].numpy()]))
        np.testing.assert_allclose(sorted(np.concatenate(targets)), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda o, y: (o**2).mean(),  # a penalty
        lambda o, y: ((o - 1.0) ** 2).mean(),  # a number
        lambda o, y: ((o - torch.ones(ROWS, 3)) ** 2).mean(),
        lambda o, y: ((o - o.roll(1, 0)) ** 2).mean(),  # both have a gradient
        lambda o, y: ((torch.exp(o) - y) ** 2).mean(),  # not what the model returned
        lambda o, y: ((o - y) ** 3).mean(),
        lambda o, y: ((o - y) ** 2 * (y > 0)).sum(),  # a part of the elements only
        lambda o, y: ((o - y) ** 2).amax(1).mean(),
        lambda o, y: (torch.log_softmax(o, 1) * y).mean(),
        lambda o, y: F.mse_loss(o, y) + F.l1_loss(o, y),
    ],
)
def test_what_is_no_written_error(watched, loss_of):
    for step, y in trained(watched, nn.Linear(4, 3), loss_of, numbers(ROWS, 3)):
        for kind in ("MSELoss", "L1Loss"):
            assert f"sample/{kind}_input_2" not in step.values
            if f"sample/{kind}_input_1" in step.values:  # torch's own
                np.testing.assert_array_equal(step.values[f"sample/{kind}_input_1"], y.numpy())


class Distance(nn.Module):
    def forward(self, output, target):
        return ((output - target) ** 2).mean()


def test_an_error_inside_a_loss_of_the_users_is_told_as_that_loss(watched):
    distance = Distance()
    loss_of = lambda o, y: distance(o, y) + 0.1 * o.abs().mean()  # noqa: E731
    for step, _ in trained(watched, nn.Linear(4, 3), loss_of, numbers(ROWS, 3)):
        assert "sample/Distance_input_1" in step.values
        assert "sample/MSELoss_input_1" not in step.values


def classes(*shape):
    return lambda: torch.randint(0, 3, shape)


def hot(y):
    return F.one_hot(y, 3).float()


def by_hand(scores):
    powers = scores.exp()
    return powers / powers.sum(1, keepdim=True)


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda o, y: -F.log_softmax(o, 1).gather(1, y[:, None]).mean(),
        lambda o, y: -torch.log_softmax(o, -1)[torch.arange(ROWS), y].mean(),
        lambda o, y: -(F.log_softmax(o, dim=1)[range(ROWS), y]).sum() / ROWS,
        lambda o, y: -(hot(y) * F.log_softmax(o, 1)).sum(1).mean(),
        lambda o, y: (-hot(y) * F.log_softmax(o, 1)).sum() / ROWS,
        lambda o, y: -torch.sum(F.log_softmax(o, 1) * hot(y), dim=1).mean(),
        lambda o, y: -(hot(y) * torch.log(F.softmax(o, 1) + 1e-9)).sum(1).mean(),
        lambda o, y: -(hot(y) * torch.log(by_hand(o))).sum(1).mean(),
        lambda o, y: -torch.log(F.softmax(o, 1)[range(ROWS), y]).mean(),
        lambda o, y: -torch.log(F.softmax(o, 1).gather(1, y[:, None]).clamp(min=1e-9)).mean(),
        lambda o, y: -by_hand(o)[range(ROWS), y].log().sum(),
        lambda o, y: -by_hand(o).log().gather(1, y[:, None]).mean(),
    ],
)
def test_a_likelihood_that_is_written_out(watched, loss_of):
    for step, y in trained(watched, nn.Linear(4, 3), loss_of, classes(ROWS)):
        np.testing.assert_array_equal(step.values["sample/NLLLoss_input_1"], y.numpy())
        scores = step.values["sample/NLLLoss_input_0"].astype(np.float64)
        np.testing.assert_allclose(np.exp(scores).sum(1), 1, rtol=1e-5)
        assert step.scalars["NLLLoss_part_0"] == pytest.approx(
            -scores[range(ROWS), y.numpy()].mean(), rel=1e-5
        )


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda o, y: (
            -F.log_softmax(o, 1).gather(1, y[:, None]).squeeze(1) * torch.rand(ROWS)
        ).mean(),  # returns
        lambda o, y: F.log_softmax(o, 1).gather(1, y[:, None]).mean(),
        lambda o, y: -F.log_softmax(o, 0).gather(1, y[:, None]).mean(),
        lambda o, y: -F.log_softmax(o, 1)[:, 0].mean(),
        lambda o, y: (hot(y) * F.log_softmax(o, 1)).sum(1).mean(),
        lambda o, y: -(hot(y) * 0.9 * F.log_softmax(o, 1)).sum(1).mean(),
        lambda o, y: -((hot(y) * F.log_softmax(o, 1)).sum(1) * torch.rand(ROWS)).mean(),  # returns
        lambda o, y: -(F.softmax(o, 1) * F.log_softmax(o, 1)).sum(1).mean(),  # an entropy
        lambda o, y: -(hot(y) * o).sum(1).mean(),
        lambda o, y: -torch.log(torch.sigmoid(o)[range(ROWS), y]).mean(),
        lambda o, y: -torch.log(torch.sigmoid(o)).mean(),  # of a GAN
    ],
)
def test_what_is_no_likelihood_of_targets(watched, loss_of):
    for step, _ in trained(watched, nn.Linear(4, 3), loss_of, classes(ROWS)):
        assert "sample/NLLLoss_input_1" not in step.values


ONES = lambda: torch.randint(0, 2, (ROWS, 3)).float()  # noqa: E731


@pytest.mark.parametrize(
    ("loss_of", "kind"),
    [
        (lambda p, y, o: -(y * p.log() + (1 - y) * (1 - p).log()).mean(), "BCELoss"),
        (
            lambda p, y, o: (-y * torch.log(p + 1e-7) - (1 - y) * torch.log(1 - p + 1e-7)).sum(1).mean(),
            "BCELoss",
        ),
        (
            lambda p, y, o: -(y * p.log() + (1 - y) * (1 - p).log()).mean() + 1e-3 * o.square().sum(),
            "BCELoss",
        ),
        (lambda p, y, o: -(y * F.logsigmoid(o) + (1 - y) * F.logsigmoid(-o)).mean(), "BCEWithLogitsLoss"),
    ],
)
def test_a_likelihood_of_two_classes_that_is_written_out(watched, loss_of, kind):
    of_scores = lambda o, y: loss_of(torch.sigmoid(o), y, o)  # noqa: E731
    for step, y in trained(watched, nn.Linear(4, 3), of_scores, ONES):
        np.testing.assert_array_equal(step.values[f"sample/{kind}_input_1"], y.numpy())
        given = torch.tensor(step.values[f"sample/{kind}_input_0"])
        same = F.binary_cross_entropy if kind == "BCELoss" else F.binary_cross_entropy_with_logits
        assert step.scalars[f"{kind}_part_0"] == pytest.approx(same(given, y).item(), rel=1e-4)


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda p, y: -(y * p.log() + y * (1 - p).log()).mean(),
        lambda p, y: -(y * p.log() + (1 - y) * (0.5 * p).log()).mean(),
        lambda p, y: -(y * p.log() - (1 - y) * (1 - p).log()).mean(),
    ],
)
def test_what_is_no_likelihood_of_two_classes(watched, loss_of):
    of_scores = lambda o, y: loss_of(torch.sigmoid(o), y)  # noqa: E731
    for step, _ in trained(watched, nn.Linear(4, 3), of_scores, ONES):
        assert not any("BCE" in name for name in step.values)


def of_two_heads(scores, y):
    one, other = torch.stack((scores, -scores)).unbind()
    return (one.logsumexp(1) - other.gather(1, y[:, None])[:, 0]).mean()


@pytest.mark.parametrize(
    ("loss_of", "told"),
    [
        (of_two_heads, False),
        (lambda o, y: (torch.logsumexp(o, 1) - o.gather(1, y[:, None]).squeeze(1)).mean(), True),
        (lambda o, y: -(o[range(ROWS), y] - o.logsumexp(-1)).sum(), True),
        (lambda o, y: (torch.logsumexp(2 * o, 1) - o.gather(1, y[:, None]).squeeze(1)).mean(), False),
        (lambda o, y: torch.logsumexp(o, 0).mean() - o.gather(1, y[:, None]).mean(), False),
        (lambda o, y: (o.logsumexp(1) - o.gather(1, y[:, None])[:, 0]).mean() + o.square().mean(), False),
    ],
)
def test_a_log_sum_less_a_score(watched, loss_of, told):
    for step, y in trained(watched, nn.Linear(4, 3), loss_of, classes(ROWS)):
        assert ("sample/CrossEntropyLoss_input_1" in step.values) == told
        if told:
            np.testing.assert_array_equal(step.values["sample/CrossEntropyLoss_input_1"], y.numpy())
            scores = torch.tensor(step.values["sample/CrossEntropyLoss_input_0"])
            assert step.scalars["CrossEntropyLoss_part_0"] == pytest.approx(
                F.cross_entropy(scores, y).item(), rel=1e-4
            )


MASK = torch.tensor([1, 1, 0, 1, 0, 0], dtype=torch.bool)


@pytest.mark.parametrize(
    ("reduce", "mask"),
    [
        (lambda v: v.mean(), None),
        (lambda v: v.sum() / ROWS, None),
        (lambda v: v.view(2, 3).sum(1).mean(), None),
        (lambda v: (v * MASK).sum() / MASK.sum(), MASK),
        (lambda v: (v * MASK.float()).sum() / MASK.sum().clamp(min=1), MASK),
        (lambda v: (v.view(2, 3) * MASK.view(2, 3)).sum(), MASK),
        (lambda v: v[MASK].mean(), MASK),
        (lambda v: v.masked_fill(~MASK, 0.0).sum(), MASK),
        (lambda v: torch.where(MASK, v, torch.zeros(())).sum(), MASK),
        (lambda v: (v * torch.ones(ROWS)).mean(), torch.ones(ROWS)),
    ],
)
@pytest.mark.parametrize("form", ["module", "function"])
def test_values_of_a_loss_that_the_script_reduces(watched, reduce, mask, form):
    module = nn.CrossEntropyLoss(reduction="none")
    each = module if form == "module" else lambda o, y: F.cross_entropy(o, y, reduction="none")
    for step, y in trained(watched, nn.Linear(4, 3), lambda o, y: reduce(each(o, y)), classes(ROWS)):
        np.testing.assert_array_equal(step.values["sample/CrossEntropyLoss_input_1"], y.numpy())
        scores = torch.tensor(step.values["sample/CrossEntropyLoss_input_0"])
        values = nn.CrossEntropyLoss(reduction="none")(scores, y).numpy()
        counts = np.ones(ROWS, bool) if mask is None else mask.numpy() != 0
        assert step.scalars["CrossEntropyLoss_part_0"] == pytest.approx(values[counts].mean(), rel=1e-5)
        if mask is None:
            assert "sample/CrossEntropyLoss_weight_0" not in step.values
        else:
            np.testing.assert_array_equal(step.values["sample/CrossEntropyLoss_weight_0"], counts)


@pytest.mark.parametrize(
    "reduce",
    [
        lambda v: (v * torch.rand(ROWS)).mean(),  # what counts how much is not told
        lambda v: v.topk(3).values.mean(),
        lambda v: (v * (1 - torch.exp(-v)) ** 2).mean(),  # focal
        lambda v: v[torch.tensor([0, 2])].mean(),
        lambda v: (v.view(2, 3).t() * MASK.view(3, 2)).sum(),  # in another order
    ],
)
def test_values_that_are_weighed_otherwise_have_no_mean(watched, reduce):
    loss_of = lambda o, y: reduce(F.cross_entropy(o, y, reduction="none"))  # noqa: E731
    for step, _ in trained(watched, nn.Linear(4, 3), loss_of, classes(ROWS)):
        assert "sample/CrossEntropyLoss_input_1" in step.values
        assert "CrossEntropyLoss_part_0" not in step.scalars
        assert "sample/CrossEntropyLoss_weight_0" not in step.values


def test_a_large_result_is_kept_in_its_first_rows(watched):
    _, session = watched(ROLES)
    model = nn.Linear(4, 512)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        x, y = torch.randn(200, 4), torch.randn(200, 512)
        optimizer.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
    step = session.train()[-1]
    kept = step.values["sample/MSELoss_input_1"]
    assert kept.shape == step.values["sample/MSELoss_input_0"].shape == (32, 512)
    assert step.wholes["sample/MSELoss_input_1"] == [200, 512]
    np.testing.assert_allclose(kept, y[:32].numpy(), rtol=1e-5, atol=1e-6)


def test_a_second_phase_is_looked_at_again(watched):
    _, session = watched(ROLES)
    model = nn.Linear(4, 3)
    for written in (False, True):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(40):
            optimizer.zero_grad()
            output, y = model(torch.randn(ROWS, 4)), torch.randn(ROWS, 3)
            (((output - y) ** 2).mean() if written else F.mse_loss(output, y.clone())).backward()
            optimizer.step()
    found = ["MSELoss_part_0" in step.scalars for step in session.train()]
    assert not any(found[:40])
    assert sum(found[42:]) == 38


def test_the_graph_is_let_go_and_the_training_is_as_it_was(watched):
    def weights(of_watched):
        if of_watched:
            watched(ROLES)
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(5):
            x = torch.randn(16, 4)
            optimizer.zero_grad()
            ((model(x)[:, 0] - x[:, 0]) ** 2).mean().sqrt().backward()
            optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    bare = weights(False)
    assert all(torch.equal(a, b) for a, b in zip(bare, weights(True), strict=True))
