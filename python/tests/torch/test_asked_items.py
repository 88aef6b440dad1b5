"""What asking a dataset for the same items again shows: `luff.torch.replay._asked_items`, and when it is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from luff._hook import StepClock
from luff.torch.evidence import _datasets, _evidence
from luff.torch.replay import _asked_items, _isolation
from luff.torch.replay._asked_items import evaluate
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset


class Items(Dataset[Any]):
    """Pictures and masks of 12 by 12, boxes and classes, handed out by a function."""

    def __init__(self, item: Callable[[Any, int], Any]) -> None:
        draws = np.random.default_rng(0)
        self.x = draws.normal(size=(24, 1, 12, 12)).astype("float32")
        self.y = (self.x[:, 0] > 0.5).astype("int64")
        left = draws.integers(0, 5, (24, 2))
        self.boxes = np.concatenate([left, left + draws.integers(2, 4, (24, 2))], axis=1)
        self.own = np.random.default_rng(1)
        self.counts = np.zeros((24, 8))
        self.pool = np.arange(24)
        self.state = draws.normal(size=(12, 3))
        self.item = item

    def __len__(self) -> int:
        return 24

    def __getitem__(self, i: int) -> Any:
        return self.item(self, i)


class Noisy(Items):
    pass


class NoLength(Items):
    def __len__(self) -> int:
        raise RuntimeError("a sampler of its own says how many there are")


def noise_in_place(data: Items, i: int) -> Any:
    x = data.x[i]
    x += np.random.normal(size=x.shape).astype("float32")
    return x, data.y[i]


def scaled_in_place(data: Items, i: int) -> Any:
    data.x[i] /= 255
    return torch.from_numpy(data.x[i].copy()), 1


def boxes_in_place(data: Items, i: int) -> Any:
    boxes = data.boxes[i]
    boxes += 1
    return torch.tensor(data.x[i]), torch.tensor(boxes)


def noise_on_a_copy(data: Items, i: int) -> Any:
    return data.x[i] + np.random.normal(size=(1, 12, 12)), data.y[i]


def noise_of_its_own(data: Items, i: int) -> Any:
    data.counts[i] += 1
    return data.x[i] + data.own.normal(size=(1, 12, 12)), data.y[i]


def counted(data: Items, i: int) -> Any:
    data.counts[i] += 1
    return data.x[i], data.y[i]


def centred_in_place(data: Items, i: int) -> Any:
    data.x[i] -= data.x[i].mean()
    return data.x[i], data.y[i]


@pytest.mark.parametrize("item", [noise_in_place, scaled_in_place, boxes_in_place])
def test_dataset_that_writes_into_what_it_holds_is_told(item: Any) -> None:
    told = evaluate(Items(item), [], True)
    assert told is not None and told["changed"] == 4 and told["dataset"] == "Items"
    assert evaluate(Items(item), [], False) is None  # workers take their changes along


def shuffled_pool(data: Items, i: int) -> Any:
    np.random.shuffle(data.pool)
    return data.x[i], data.x[data.pool[:4]]


def simulated(data: Items, i: int) -> Any:
    before = data.state.copy()
    data.state += 0.1 * np.flip(data.state, 1)
    return before, data.state.copy()


@pytest.mark.parametrize(
    "item",
    [noise_on_a_copy, noise_of_its_own, counted, centred_in_place, shuffled_pool, simulated],
)
def test_draws_counters_and_what_is_done_once_are_silent(item: Any) -> None:
    assert evaluate(Items(item), [], True) is None


def flips(data: Items, i: int, *, mask: bool = False, together: bool = False, turns: bool = False) -> Any:
    def draw(array: Any, count: int) -> Any:
        if turns:
            return np.rot90(array, count, (-2, -1)).copy()
        return np.flip(array, -1).copy() if count % 2 else array.copy()

    first, second = np.random.randint(4), np.random.randint(4)
    x = draw(data.x[i], first)
    return x, draw(data.y[i], first if together else second) if mask else data.y[i].copy()


def test_picture_and_mask_that_are_transformed_apart_are_told() -> None:
    for options in ({"mask": True}, {}, {"mask": True, "turns": True}):
        told = evaluate(Items(lambda data, i, options=options: flips(data, i, **options)), [], True)
        assert told is not None and told["apart"] >= 4, options


def test_pictures_that_move_with_their_masks_and_views_are_silent() -> None:
    assert evaluate(Items(lambda data, i: flips(data, i, mask=True, together=True)), [], True) is None
    # Only the picture's brightness changes; a mask that is drawn has no position.
    assert evaluate(Items(lambda d, i: (d.x[i] * np.random.uniform(0.5, 2), d.y[i])), [], True) is None
    assert evaluate(Items(lambda d, i: (d.x[i], np.random.randint(2, size=(12, 12)))), [], True) is None

    def views(data: Items, i: int) -> Any:
        return flips(data, i)[0], flips(data, i)[0]

    def of_all(data: Items, i: int) -> Any:  # which pixels count, the same for all
        return flips(data, i)[0], data.y[0]

    assert evaluate(Items(views), [], True) is None
    assert evaluate(Items(of_all), [], True) is None
    assert evaluate(Items(lambda data, i: (flips(data, i)[0], 3)), [], True) is None


def test_boxes_that_stay_where_they_were_are_told() -> None:
    told = evaluate(Items(lambda data, i: (flips(data, i)[0], data.boxes[i])), [], True)
    assert told is not None and told["boxes"] >= 4

    def moved(data: Items, i: int) -> Any:
        x, boxes = data.x[i], data.boxes[i].copy()
        if np.random.randint(2):
            x, boxes[[0, 2]] = np.flip(x, -1).copy(), 12 - boxes[[2, 0]]
        return x, boxes

    assert evaluate(Items(moved), [], True) is None
    assert evaluate(Items(lambda data, i: (flips(data, i)[0], data.boxes[i] / 12)), [], True) is None


def test_evaluations_that_draw_while_the_training_does_not_are_told() -> None:
    plain, drawn = Items(counted), Items(noise_on_a_copy)
    told = evaluate(plain, [drawn], True)
    assert told is not None and told["evaluations_drawn"] == 8
    assert evaluate(drawn, [drawn], True) is None
    assert evaluate(drawn, [plain], True) is None
    assert evaluate(plain, [plain, drawn], True) is None  # one evaluation is of the rows as they are
    assert evaluate(plain, [Items(noise_of_its_own)], True) is None
    assert evaluate(plain, [Noisy(noise_on_a_copy)], True) is None  # a class of its own: a test with noise
    assert evaluate(plain, [drawn, Noisy(counted)], True) is None


def test_items_of_other_kinds_and_errors_tell_nothing() -> None:
    def fails(data: Items, i: int) -> Any:
        raise OSError("no file")

    for item in (fails, lambda d, i: "text", lambda d, i: {}, lambda d, i: None, lambda d, i: (i, [1, "a"])):
        assert evaluate(Items(item), [Items(item)], True) is None


class Iterator:
    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset


def test_a_training_is_asked_once_after_its_first_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    clock = StepClock()
    clock.first_train_step = 0
    datasets = _datasets.Datasets(clock)
    monkeypatch.setattr(datasets, "_ask", lambda dataset, iterator: asked.append(dataset))
    training, other = Items(counted), Items(counted)

    def epoch(dataset: Any, mode: int, steps: int) -> None:
        datasets.loader_started(Iterator(dataset))
        clock.mode_steps[mode] += steps

    train, evaluation = _datasets._TRAIN, _datasets._EVAL
    for dataset in (
        TensorDataset(torch.zeros(20)),
        [1] * 20,
        Subset(TensorDataset(torch.zeros(20)), [0] * 9),
        None,
    ):
        epoch(dataset, train, 4)
        epoch(dataset, train, 4)
    epoch(training, train, 0)
    epoch(training, train, 4)  # no step came: it was only looked at
    assert asked == []
    epoch(other, evaluation, 4)
    epoch(training, train, 4)
    assert asked == [training]
    assert datasets._known[id(other)][1:] == (0, 4)


def test_a_length_that_raises_is_no_dataset_to_ask() -> None:
    assert not _datasets._may_be_asked(NoLength(counted))
    _datasets.Datasets(StepClock()).loader_started(Iterator(NoLength(counted)))


def test_an_unknown_loader_of_torch_gives_what_is_needed() -> None:
    iterator = iter(DataLoader(Items(counted), 4))
    assert isinstance(iterator._dataset, Items) and iterator._num_workers == 0
    assert iterator._persistent_workers is False


# With a real hook --------------------------------------------------------------------------------------------------


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(144, 2)

    def forward(self, x: Any) -> Any:
        return self.layer(x.float().flatten(1))


def told_of(
    watched: Any, training: Any, evaluation: Any = None, epochs: int = 3, **options: Any
) -> list[Any]:
    hook, session = watched()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(training, 4, shuffle=True, **options)
    other = None if evaluation is None else DataLoader(evaluation, 8)
    for _ in range(epochs):
        for x, _ in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), torch.ones(len(x), dtype=torch.long)).backward()
            optimizer.step()
        if other is not None:
            with torch.no_grad():
                for x, _ in other:
                    model(x)
    hook.close()
    return [event for event in session.json_events if event["kind"] == "dataset"]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loaded machine may keep a child waiting for long."""
    monkeypatch.setattr(_evidence, "_WAIT_S", 60.0)
    monkeypatch.setattr(_asked_items, "_SECONDS", 50.0)
    monkeypatch.setattr(_isolation, "SECONDS", 60.0)


def test_hook_tells_of_a_dataset_that_is_changed_in_place(watched: Any, patient: None) -> None:
    training = Items(noise_in_place)
    (event,) = told_of(watched, training)
    assert event["changed"] == 4 and event["samples"] == 24 and event["step"] == 6
    assert told_of(watched, Items(noise_in_place), epochs=1) == []  # the first epoch is the only one


def test_hook_tells_of_masks_and_of_evaluations(watched: Any, patient: None) -> None:
    (event,) = told_of(watched, Items(flips))
    assert event["apart"] >= 4
    (event,) = told_of(watched, Items(counted), Items(noise_on_a_copy))
    assert event["evaluations_drawn"] == 8
    assert told_of(watched, Items(noise_on_a_copy), Items(counted)) == []


def test_training_is_the_same_with_the_question(watched: Any, patient: None) -> None:
    """The child's draws, and what it changes, are its own."""
    results = []
    for watches in (False, True):
        torch.manual_seed(0)
        np.random.seed(0)
        training = Items(noise_in_place)
        if watches:
            assert told_of(watched, training)
        else:
            model = Net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for _ in range(3):
                for x, _ in DataLoader(training, 4, shuffle=True):
                    optimizer.zero_grad()
                    target = torch.ones(len(x), dtype=torch.long)
                    torch.nn.functional.cross_entropy(model(x), target).backward()
                    optimizer.step()
        results.append((training.x.copy(), np.random.random(), float(torch.rand(()))))
    assert np.array_equal(results[0][0], results[1][0])
    assert results[0][1:] == results[1][1:]
