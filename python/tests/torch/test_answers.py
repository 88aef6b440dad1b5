"""Labels of evaluations that only count right answers: what the model's answers are compared with."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fake_session import DEFAULT_ROLES
from luff._codes import Role
from luff._turn import IDLE
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ROLES = DEFAULT_ROLES | {Role.SAMPLE}


class Conv(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layer = nn.Conv2d(1, classes, 3, padding=1)

    def forward(self, x):
        return self.layer(x)


def rows(count=24, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 6, generator=generator), torch.randint(4, (count,), generator=generator)


def train(model, loss_fn, x, y, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()


def evaluate(model, x, compare):
    model.eval()
    with torch.no_grad():
        compare(model(x))


def finish(model, x):
    """Ends the last step of an evaluation."""
    with torch.no_grad():
        model(x)


COUNTS = {
    "argmax": lambda z, y: (z.argmax(1) == y).sum(),
    "labels first": lambda z, y: y == z.argmax(dim=-1),
    "eq": lambda z, y: z.max(1)[1].eq(y).float().mean(),
    "wrong": lambda z, y: (torch.max(z, 1).indices != y).sum(),
    "ne": lambda z, y: z.argmax(1).ne(y).sum(),
    "probabilities": lambda z, y: (z.softmax(1).argmax(1) == y).tolist(),
    "kept axis": lambda z, y: z.argmax(1, keepdim=True).eq(y.view(-1, 1)).sum(),
    "another type": lambda z, y: z.argmax(1).int() == y.short(),
}


@pytest.mark.parametrize("count", COUNTS.values(), ids=COUNTS)
def test_labels_are_what_the_answers_are_compared_with(watched, count):
    model = nn.Linear(6, 4)
    _, session = watched(ROLES)
    x, y = rows()
    train(model, nn.CrossEntropyLoss(), x, y)
    test_x, test_y = rows(32, seed=1)
    seen = []
    evaluate(model, test_x, lambda z: (seen.append(z.numpy().copy()), count(z, test_y)))
    finish(model, test_x)
    step = session.eval()[0]
    np.testing.assert_array_equal(step.values["sample/CrossEntropyLoss_input_0"], seen[0])
    np.testing.assert_array_equal(step.values["sample/CrossEntropyLoss_input_1"], test_y.numpy())
    assert "CrossEntropyLoss_output_0" not in step.scalars


def test_answers_of_two_classes_are_scores_above_a_limit(watched):
    model = nn.Linear(6, 1)
    _, session = watched(ROLES)
    x, y = rows()
    target = (y > 1).float()[:, None]
    train(model, nn.BCEWithLogitsLoss(), x, target)
    evaluate(model, x, lambda z: ((z > 0).float().squeeze(1) == target[:, 0]).sum())
    finish(model, x)
    step = session.eval()[0]
    assert step.values["sample/BCEWithLogitsLoss_input_1"].shape == (24, 1)  # as in training
    np.testing.assert_array_equal(step.values["sample/BCEWithLogitsLoss_input_1"], target.numpy())


def test_each_place_of_an_image_has_an_answer(watched):
    model = Conv(3)
    _, session = watched(ROLES)
    x, y = torch.randn(4, 1, 5, 5), torch.randint(3, (4, 5, 5))
    train(model, nn.CrossEntropyLoss(), x, y)
    evaluate(model, x, lambda z: (z.argmax(1) == y).float().mean())
    finish(model, x)
    np.testing.assert_array_equal(session.eval()[0].values["sample/CrossEntropyLoss_input_1"], y.numpy())


def test_only_the_first_rows_of_many_are_kept(watched):
    model = nn.Linear(6, 4)
    _, session = watched(ROLES)
    x, y = rows(8192)
    train(model, nn.CrossEntropyLoss(), x[:24], y[:24])
    evaluate(model, x, lambda z: (z.argmax(1) == y).sum())
    finish(model, x)
    values = session.eval()[0].values
    assert values["sample/CrossEntropyLoss_input_0"].shape == (4096, 4)
    np.testing.assert_array_equal(values["sample/CrossEntropyLoss_input_1"], y[:4096].numpy())


def test_a_loss_of_the_same_step_is_sampled_once(watched):
    model, loss_fn = nn.Linear(6, 4), nn.CrossEntropyLoss()
    _, session = watched(ROLES)
    x, y = rows()
    train(model, loss_fn, x, y)
    evaluate(model, x, lambda z: ((z.argmax(1) == y).sum(), loss_fn(z, y)))
    finish(model, x)
    step = session.eval()[0]
    assert "CrossEntropyLoss_output_0" in step.scalars
    assert not any(name.startswith("sample/CrossEntropyLoss_input_2") for name in step.values)


NO_LABELS = {
    "a number": lambda model, z, y: z.argmax(1) == 2,
    "one class": lambda model, z, y: z.argmax(1) == torch.tensor(2),
    "no answers": lambda model, z, y: z.argmin(1) == y,
    "numbers of rows": lambda model, z, y: torch.arange(24) == torch.arange(24),
    "other rows": lambda model, z, y: z.argmax(1)[:12] == y[:12],
}


@pytest.mark.parametrize("compare", NO_LABELS.values(), ids=NO_LABELS)
def test_other_comparisons_show_no_labels(watched, compare):
    model = nn.Linear(6, 4)
    _, session = watched(ROLES)
    x, y = rows()
    train(model, nn.CrossEntropyLoss(), x, y)
    evaluate(model, x, lambda z: compare(model, z, y))
    finish(model, x)
    assert not any("CrossEntropyLoss" in name for name in session.eval()[0].values)


@pytest.mark.parametrize("trained", [False, True])
def test_agreement_of_two_models_shows_no_labels(watched, trained):
    teacher, student = nn.Linear(6, 4), nn.Linear(6, 4)
    _, session = watched(ROLES)
    x, y = rows()
    if trained:
        train(teacher, nn.CrossEntropyLoss(), x, y)
    train(student, nn.CrossEntropyLoss(), x, y)
    for first, second in ((teacher, student), (student, teacher)):
        with torch.no_grad():
            assert (first(x).argmax(1) == second(x).argmax(1)).numel() == 24
    finish(student, x)
    assert not any("CrossEntropyLoss" in name for step in session.eval() for name in step.values)


def test_a_pass_compared_with_the_one_before_shows_no_labels(watched):
    model = nn.Linear(6, 4)
    _, session = watched(ROLES)
    x, y = rows()
    train(model, nn.CrossEntropyLoss(), x, y)
    with torch.no_grad():
        before = model(x).argmax(1)
        assert torch.equal(before, y) or (model(x + 0.01).argmax(1) == before).sum() > 0
    finish(model, x)
    assert not any("CrossEntropyLoss" in name for step in session.eval() for name in step.values)


def test_answers_in_training_are_no_evaluation(watched):
    model = nn.Linear(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _, session = watched(ROLES)
    x, y = rows()
    for _ in range(3):
        optimizer.zero_grad()
        z = model(x)
        F.cross_entropy(z, y).backward()
        (z.argmax(1) == y).sum()
        optimizer.step()
    assert len(session.train()) == 3
    assert session.eval() == []


def test_tensors_inside_a_transform_show_nothing(watched):
    model = nn.Linear(6, 4)
    hook, session = watched(ROLES)
    x, y = rows()
    train(model, nn.CrossEntropyLoss(), x, y)
    model.eval()
    with torch.no_grad():
        z = model(x)
        right = torch.func.vmap(lambda a, b: (model(a).argmax(1) == b).sum())(x.view(4, 6, 6), y.view(4, 6))
        inside = torch.func.vmap(lambda a, b: a == b)(z.argmax(1), y)
    finish(model, x)
    assert int(right.sum()) == int(inside.sum())
    assert hook.guard.count == 0


def test_another_thread_that_compares_takes_no_turn(watched):
    model = nn.Linear(6, 4)
    hook, session = watched(ROLES)
    x, y = rows()
    train(model, nn.CrossEntropyLoss(), x, y)
    evaluate(model, x, lambda z: None)
    turn = hook.machine.turn
    other = threading.Thread(target=lambda: [y == y for _ in range(IDLE + 2)])
    other.start()
    other.join()
    assert turn.here()
    assert turn.missed == 0


def test_labels_are_shown_also_where_all_answers_were_right_before(watched):
    x = torch.eye(4).repeat(3, 1)
    y = torch.arange(4).repeat(3)
    model = nn.Linear(4, 4)
    _, session = watched(ROLES)
    for _ in range(2):
        train(model, nn.CrossEntropyLoss(), x, y, steps=200)
        evaluate(model, x, lambda z: (z.argmax(1) == y).sum())
    finish(model, x)
    for step in (session.eval()[0], session.eval()[1]):
        np.testing.assert_array_equal(step.values["sample/CrossEntropyLoss_input_1"], y.numpy())


def test_results_of_comparisons_are_untouched(watched):
    model = nn.Linear(6, 4)
    watched(ROLES)
    x, y = rows()
    train(model, nn.CrossEntropyLoss(), x, y)
    model.eval()
    with torch.no_grad():
        z = model(x)
        assert torch.equal(z.argmax(1) == y, torch.eq(z.argmax(1), y))
        assert (z == None) is False  # noqa: E711
        assert (z != "text") is True
        with pytest.raises(RuntimeError, match="must match"):
            z.argmax(1).eq(y[:5])
        assert {y: 1}[y] == 1


# Labels that the loader gave ---------------------------------------------------------------------------------------


def loader(x, y, size=8, **options):
    return DataLoader(TensorDataset(x, y), size, **options)


def as_they_come(batches):
    return batches


def ahead(batches):
    """Hands on each batch when the next one was fetched, as the loaders of Accelerate do."""
    kept = []
    for batch in batches:
        yield from kept
        kept = [batch]
    yield from kept


def loop(model, loss_of, train_rows, test_rows, evaluation, given=as_they_come):
    """Two passes of training, each with an evaluation; `evaluation` gets the output and the loader's labels."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model.train()
        for x, y in given(loader(*train_rows, shuffle=True)):
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for x, y in given(loader(*test_rows)):
                evaluation(model(x), y)
    model.train()
    loss_of(model(train_rows[0][:8]), train_rows[1][:8]).backward()


CLASSES = {
    "a loss of its own": (
        "CrossEntropyLoss",
        nn.CrossEntropyLoss(),
        lambda z, y: -F.log_softmax(z, 1)[torch.arange(len(y)), y].mean(),
    ),
    "lists": (
        "CrossEntropyLoss",
        nn.CrossEntropyLoss(),
        lambda z, y: (z.argmax(1).tolist(), y.tolist()),
    ),
    "written": (
        "NLLLoss",
        lambda z, y: -F.log_softmax(z, 1).gather(1, y[:, None]).mean(),
        lambda z, y: (z.numpy().argmax(1) == y.numpy()).sum(),
    ),
}


@pytest.mark.parametrize(("kind", "loss_of", "evaluation"), CLASSES.values(), ids=CLASSES)
def test_labels_lie_where_the_targets_lay_in_batches(watched, kind, loss_of, evaluation):
    model = nn.Linear(6, 4)
    _, session = watched(ROLES)
    test_x, test_y = rows(16, seed=1)
    loop(model, loss_of, rows(64), (test_x, test_y), evaluation)
    steps = session.eval()
    found = [step.values[f"sample/{kind}_input_1"] for step in steps[:4]]
    np.testing.assert_array_equal(np.concatenate(found), np.tile(test_y.numpy(), 2))
    scores = steps[3].values[f"sample/{kind}_input_0"]
    with torch.no_grad():
        expected = model(test_x[8:])
    if kind == "NLLLoss":
        assert (scores < 0).all()
        expected = F.log_softmax(expected, 1)
    np.testing.assert_array_equal(scores.argmax(1), expected.argmax(1).numpy())


@pytest.mark.parametrize("given", [as_they_come, ahead])
def test_numbers_of_an_evaluation_that_writes_its_error(watched, given):
    model = nn.Sequential(nn.Linear(6, 1), nn.Flatten(0))
    _, session = watched(ROLES)
    x, test_x = rows(64)[0], rows(16, seed=1)[0]
    y, test_y = x.sum(1), test_x.sum(1).double()
    loop(
        model,
        lambda z, t: ((z - t) ** 2).mean(),
        (x, y),
        (test_x, test_y),
        lambda z, t: (z - t).abs(),
        given,
    )
    found = [step.values["sample/MSELoss_input_1"] for step in session.eval()[:2]]
    np.testing.assert_array_equal(np.concatenate(found), test_y.numpy())


def test_labels_of_a_loader_that_fetches_a_batch_ahead(watched):
    model = nn.Linear(6, 4)
    _, session = watched(ROLES)
    test_x, test_y = rows(24, seed=1)
    loop(model, nn.CrossEntropyLoss(), rows(64), (test_x, test_y), lambda z, y: z.argmax(1).tolist(), ahead)
    found = [step.values["sample/CrossEntropyLoss_input_1"] for step in session.eval()[:3]]
    np.testing.assert_array_equal(np.concatenate(found), test_y.numpy())


def test_a_copy_of_a_batch_that_is_ahead_has_no_labels(watched):
    model = nn.Linear(6, 4)
    _, session = watched(ROLES)

    def copies(batches):
        return ((x.clone(), y.clone()) for x, y in ahead(batches))

    test = rows(24, seed=1)
    loop(model, nn.CrossEntropyLoss(), rows(64), test, lambda z, y: z.argmax(1).tolist(), copies)
    assert [step for step in session.eval() if "sample/CrossEntropyLoss_input_1" in step.values] == []


@pytest.mark.parametrize("labels", ["zeros", "numbers of rows"])
def test_made_up_labels_are_none(watched, labels):
    model = nn.Linear(6, 4)
    _, session = watched(ROLES)
    made_up = torch.zeros(16, dtype=torch.long) if labels == "zeros" else torch.arange(16)
    loop(model, nn.CrossEntropyLoss(), rows(64), (rows(16)[0], made_up), lambda z, y: z.argmax(1).tolist())
    assert [step for step in session.eval() if "sample/CrossEntropyLoss_input_1" in step.values] == []


def test_targets_that_lie_elsewhere_show_no_place(watched):
    model = nn.Linear(6, 4)
    _, session = watched(ROLES)
    x, y = rows(64)
    loop(
        model, lambda z, t: F.cross_entropy(z, t.flip(0)), (x, y), rows(16), lambda z, t: z.argmax(1).tolist()
    )
    assert [step for step in session.eval() if "sample/CrossEntropyLoss_input_1" in step.values] == []


def test_the_mean_of_an_unreduced_loss_of_an_evaluation(watched):
    model = nn.Linear(6, 4)
    _, session = watched(ROLES)
    means = []
    loop(
        model,
        nn.CrossEntropyLoss(),
        rows(64),
        rows(16, seed=1),
        lambda z, y: means.append(nn.CrossEntropyLoss(reduction="none")(z, y).mean().item()),
    )
    found = [step.scalars["CrossEntropyLoss_part_0"] for step in session.eval()[:4]]
    np.testing.assert_allclose(found, means, rtol=1e-6)
