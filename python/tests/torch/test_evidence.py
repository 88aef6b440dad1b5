"""Parameters that backward passes reach, checkpoints that match, and clipping of gradients."""

from __future__ import annotations

import collections.abc
import copy
import gc
import weakref

import cases
import pytest
import torch
import torch.nn.functional as F
from luff.torch.evidence import _checkpoints, _reach
from luff.torch.evidence._checkpoints import Loads
from torch import nn


def told(session, kind):
    return [event for event in session.json_events if event["kind"] == kind]


def train(model, steps=5, loss_of=None, parameters=None):
    optimizer = torch.optim.SGD(parameters or [p for p in model.parameters() if p.requires_grad], lr=0.01)
    for x, y in cases.batches(steps):
        optimizer.zero_grad()
        (loss_of or F.cross_entropy)(model(x), y).backward()
        optimizer.step()


# Reach of backward passes ----------------------------------------------------------------------------------------


def test_parameters_without_gradient(watched):
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.cut, self.unused = nn.Linear(6, 3), nn.Linear(6, 6), nn.Linear(2, 2)
            self.frozen = nn.Linear(2, 2).requires_grad_(False)

        def forward(self, x):
            return self.used(self.cut(x).detach())

    _, session = watched()
    train(Half(), steps=10)
    events = told(session, "reach")
    assert len(events) == 5  # at steps 0, 1, 2, 4, 8
    for event in events:
        assert event["without_gradient"] == [
            "Half_cut.weight",
            "Half_cut.bias",
            "Half_unused.weight",
            "Half_unused.bias",
        ]
        assert (event["without_gradient_count"], event["reached_count"], event["foreign"]) == (4, 2, [])


def test_leaves_that_belong_to_no_model(watched):
    class Loose(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(6, 3)
            self.scale = torch.ones(6, requires_grad=True)
            self.listed = [nn.Linear(6, 6)]

        def forward(self, x):
            fresh = torch.zeros(8, 6, requires_grad=True)  # a different tensor in each step
            return self.head(self.listed[0](x * self.scale + fresh))

    _, session = watched()
    model = Loose()
    train(model, parameters=[*model.parameters(), *model.listed[0].parameters()])
    first, *later = told(session, "reach")
    assert first["foreign"] == []
    assert len(later) == 3
    for event in later:
        found = {tuple(leaf["shape"]): leaf["optimizer"] for leaf in event["foreign"]}
        assert found == {(6,): found[(6,)], (6, 6): "SGD"}
        assert sorted(leaf["optimizer"] or "" for leaf in event["foreign"]) == ["", "SGD", "SGD"]
    (optimizer,) = session.documents["model"]["optimizers"]
    assert optimizer["foreign"] == 2


def test_several_backward_passes_are_told_together(watched):
    _, session = watched()
    one, two = nn.Linear(6, 3), nn.Linear(6, 3)
    optimizer = torch.optim.SGD([*one.parameters(), *two.parameters()], lr=0.01)
    for x, y in cases.batches(3):
        optimizer.zero_grad()
        outputs = one(x), two(x)
        for output in outputs:
            F.cross_entropy(output, y).backward()
        optimizer.step()
    assert [(e["without_gradient"], e["reached_count"]) for e in told(session, "reach")] == [([], 4)] * 3


def reach_steps(session):
    """Returns the TRAIN steps at which the reach was recorded."""
    return [step.mode_step for step in session.train() if "reach" in step.json_kinds]


def test_a_new_optimizer_or_more_parameters_are_asked_about_anew(watched):
    _, session = watched()
    model, extra, late = nn.Linear(6, 3), nn.Linear(6, 6), nn.Linear(6, 6)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01)]
    for n, (x, y) in enumerate(cases.batches(24)):
        if n == 10:
            # of parameters that no model holds
            optimizers.append(torch.optim.Adam(extra.parameters(), lr=0.01))
        if n == 17:
            optimizers[0].add_param_group({"params": late.parameters()})  # seen by the update of step 17
        for optimizer in optimizers:
            optimizer.zero_grad()
        hidden = F.linear(x, extra.weight, extra.bias) if n >= 10 else x
        F.cross_entropy(model(hidden), y).backward()
        for optimizer in optimizers:
            optimizer.step()
    assert reach_steps(session) == [0, 1, 2, 4, 8, 10, 11, 12, 14, 18, 19, 20, 22]
    foreign = [len(event["foreign"]) for event in told(session, "reach")]
    assert foreign == [0, 0, 0, 0, 0, 0, *[2] * 7]


def test_optimizers_made_at_every_step_do_not_make_the_question_one_of_every_step(watched):
    _, session = watched()
    model = nn.Linear(6, 3)
    for x, y in cases.batches(300):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert len(reach_steps(session)) < 64


def test_gradients_freed_inside_the_backward_pass_are_not_missed(watched):
    _, session = watched()
    cases.CASES["optimizer_in_backward"]()
    assert told(session, "reach") == []


def test_an_optimizer_of_an_older_copy(watched):
    import copy

    _, session = watched()
    old = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(old.parameters(), lr=0.1)
    model = copy.deepcopy(old)
    del old
    for x, y in cases.batches(3):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    (described,) = session.documents["model"]["optimizers"]
    assert described["foreign"] == 2


@pytest.mark.parametrize("attached", [False, True])
def test_an_optimizer_of_what_is_called_has_nothing_foreign(watched, attached):
    models = [nn.Linear(6, 3), nn.Linear(6, 3)]
    _, session = watched(model=models[0] if attached else None)
    for model in models[: 1 if attached else 2]:
        train(model)
    assert {o["foreign"] for o in session.documents["model"]["optimizers"]} == {0}


def test_parameters_that_two_optimizers_hold_are_counted(watched):
    _, session = watched()
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inner = torch.optim.SGD([model.bias], lr=0.1)
    for x, y in cases.batches(3):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        inner.step()
    assert [one["shared"] for one in session.documents["model"]["optimizers"]] == [1, 1]


def test_the_walk_is_bounded_and_keeps_nothing_alive():
    x = leaf = torch.ones(1, requires_grad=True)
    for _ in range(_reach._MAX_NODES + 1000):
        x = x * 1.0
    assert _reach._leaves([x]) == []
    inner = leaf * 2.0
    reach = _reach.Reach()
    reach.begins([inner.sum()], [])
    marker = inner.grad_fn
    alive = weakref.ref(inner)
    del inner, x, marker
    gc.collect()
    assert alive() is None
    assert reach._now[id(leaf)]() is leaf


def test_factors_of_an_accumulation_that_begins_late(watched):
    """After many updates of a single pass, the first pass of an update is not examined: one event says so."""
    _, session = watched()
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = iter(cases.batches(80))
    for update in range(73):
        optimizer.zero_grad()
        for _ in range(1 if update < 70 else 2):
            x, y = next(batches)
            (F.cross_entropy(model(x), y) / 2).backward()
        optimizer.step()
    factors = [event["factors"] for event in told(session, "accumulation")]
    assert factors == [[None, 0.5], [0.5, 0.5], [0.5, 0.5]]


def accumulate(session, clip=None, by_hand=False):
    """Divides the losses of three batches, and clears gradients before each of them."""
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kept = None
    for number, (x, y) in enumerate(cases.batches(12)):
        optimizer.zero_grad()
        (F.cross_entropy(model(x), y) / 3).backward()
        if by_hand:
            now = model.weight.grad.clone()
            kept = now if kept is None else kept + now.flip(0)
        if number % 3 == 2:
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            if by_hand:
                model.weight.grad, kept = kept, None
            optimizer.step()
    return told(session, "accumulation")


@pytest.mark.parametrize("clip", [None, 0.01])
def test_gradients_that_are_cleared_before_they_add_up(watched, clip):
    events = accumulate(watched()[1], clip)
    assert len(events) == 4
    for event in events:
        assert event["factors"] == pytest.approx([1 / 3] * 3)
        assert not event["added"]
        assert event["multiple"]
        assert event["untouched"] is (clip is None)


def test_gradients_that_are_added_up_by_hand_are_no_multiple_of_the_last(watched):
    events = accumulate(watched()[1], by_hand=True)
    assert events
    assert not any(event["multiple"] for event in events)


# Checkpoints -------------------------------------------------------------------------------------------------------


def test_what_fitted_of_a_checkpoint(watched):
    _, session = watched()
    model = cases.net()
    whole = model.state_dict()
    part = {name: value for name, value in whole.items() if not name.startswith("6.")} | {
        "7.more": torch.ones(1)
    }
    model.load_state_dict(whole)
    result = model.load_state_dict(part, strict=False)
    assert sorted(result.missing_keys) == ["6.bias", "6.weight"]
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict(part)
    train(model)
    full, partly = told(session, "load_state_dict")  # nothing of the one that failed
    count = len(whole)
    assert full == {
        "kind": "load_state_dict",
        "model": "Sequential",
        "strict": True,
        "matched": count,
        "own": 0,  # before the first update
        "missing": [],
        "missing_count": 0,
        "unexpected": [],
        "unexpected_count": 0,
    }
    assert (partly["matched"], partly["strict"]) == (count - 2, False)
    assert sorted(partly["missing"]) == ["6.bias", "6.weight"]
    assert (partly["missing_count"], partly["unexpected"], partly["unexpected_count"]) == (2, ["7.more"], 1)


def edited(state, how):
    """Returns a state of a model's own tensors after something has changed them in place."""
    for number, tensor in enumerate(state.values()):
        if how == "clipped":
            tensor.clamp_(-0.01, 0.01)
        elif how == "filled" and number % 2 == 0:
            tensor.copy_(torch.ones_like(tensor))
        elif how == "averaged" and tensor.is_floating_point():
            tensor += 0.1
    return state


@pytest.mark.parametrize(
    "kept", ["itself", "copy", "assigned", "another", "clipped", "filled", "averaged", "lazily"]
)
def test_a_state_that_is_the_model_itself_is_told_apart(watched, kept):
    class Square(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)

        def forward(self, x):
            return self.second(torch.relu(self.first(x)))[:, :3]

    class Lazy(collections.abc.Mapping):
        """A file whose tensors are read one at a time."""

        def __init__(self, state):
            self.state = state

        def __getitem__(self, name):
            return self.state[name]

        def __iter__(self):
            return iter(self.state)

        def __len__(self):
            return len(self.state)

    _, session = watched()
    model = Square()
    train(model, 2)
    state = Square().state_dict() if kept == "another" else model.state_dict()
    if kept == "copy":
        state = copy.deepcopy(state)
    state = Lazy(state) if kept == "lazily" else edited(state, kept)
    model.load_state_dict(state, assign=kept == "assigned")
    train(model, 2)
    (event,) = told(session, "load_state_dict")
    assert event["matched"] == 2
    assert event["own"] == (2 if kept == "itself" else 0)


@pytest.mark.parametrize("changed", [None, "first", "second"])
def test_each_group_of_an_optimizer_tells_whether_a_state_was_changed(watched, changed):
    _, session = watched()
    model = nn.ModuleDict({"first": nn.Linear(6, 6), "second": nn.Linear(6, 3)})
    optimizer = torch.optim.SGD([{"params": part.parameters()} for part in model.values()], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model["second"](model["first"](torch.ones(2, 6))).sum().backward()
        optimizer.step()
    if changed:
        with torch.no_grad():
            model[changed].weight.clamp_(-0.01, 0.01)
    model.load_state_dict(model.state_dict())
    optimizer.zero_grad()
    model["second"](model["first"](torch.ones(2, 6))).sum().backward()
    optimizer.step()
    (event,) = told(session, "load_state_dict")
    assert event["own"] == (0 if changed else 4)


def test_a_lazy_model_and_a_model_that_no_optimizer_updates_load_as_any(watched):
    _, session = watched()
    lazy, other, model = nn.Sequential(nn.LazyLinear(3)), cases.net(), cases.net()
    train(model, 2)
    lazy.load_state_dict(nn.Sequential(nn.LazyLinear(3)).state_dict())
    other.load_state_dict(other.state_dict())
    train(model, 2)
    events = told(session, "load_state_dict")
    assert told(session, "hook_error") == []
    assert [(event["matched"], event["own"]) for event in events] == [(2, 0), (len(other.state_dict()), 0)]


def test_only_the_outermost_load_counts_and_a_failed_one_leaves_no_trace(watched):
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(6, 3)
            self.register_buffer("lost", torch.ones(1), persistent=False)

        def forward(self, x):
            return self.inner(x)

        def load_state_dict(self, state, strict=True):
            self.inner.load_state_dict({"weight": state["inner.weight"]}, strict=False)
            return super().load_state_dict(state, strict)

    _, session = watched()
    model = Outer()
    with pytest.raises(TypeError):
        nn.Linear(1, 1).load_state_dict(None)
    model.load_state_dict(model.state_dict())
    train(model)
    events = told(session, "load_state_dict")
    assert [(event["model"], event["matched"], event["missing_count"]) for event in events] == [
        ("Linear", 1, 1),  # called by a method of the user's own, not by torch
        ("Outer", 2, 0),
    ]


def test_loads_are_bounded():
    loads = Loads()
    models = [nn.Linear(200, 1) for _ in range(100)]
    for model in models:
        for _ in range(10):
            loads.loaded(model, {f"x{n}": None for n in range(1000)}, False, None)
    assert len(loads.waiting) == _checkpoints._MAX_LOADS
    assert len(loads.waiting[0]["unexpected"]) == 64
    assert loads.waiting[0]["unexpected_count"] == 1000
    assert len(loads._models) <= _checkpoints._MAX_LOADS


def folds(model, set_back, count):
    """Trains a model in folds, each with an optimizer of its own."""
    for _ in range(count):
        set_back(model)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 4)).sum().backward()
            optimizer.step()


def test_each_fold_tells_that_its_weights_were_loaded(watched):
    _, session = watched()
    model = nn.Linear(4, 2)
    first = copy.deepcopy(model.state_dict())
    folds(model, lambda model: model.load_state_dict(first), 12)
    assert len(told(session, "load_state_dict")) == 12
    for _ in range(8):  # of the same optimizer's
        model.load_state_dict(first)
    folds(model, lambda model: None, 1)
    assert len(told(session, "load_state_dict")) == 13


def test_each_fold_tells_that_its_weights_were_set_anew(watched):
    _, session = watched()
    model = nn.Linear(4, 2)
    folds(model, nn.Linear.reset_parameters, 12)
    assert [event["weights"] for event in told(session, "weights_written")] == [2] * 11


def test_optimizers_that_are_made_anew_find_the_weights_as_they_were(watched):
    _, session = watched()
    model = nn.Linear(4, 2)
    folds(model, lambda model: None, 12)
    folds(model, lambda model: model.weight.detach().clamp_(-1, 1), 4)  # of one weight only
    assert not told(session, "weights_written")


# Clipping ----------------------------------------------------------------------------------------------------------


def test_norm_and_limit_of_clipping(watched):
    _, session = watched()
    model = cases.net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    norms = []
    for x, y in cases.batches(4):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        norms.append(float(nn.utils.clip_grad_norm_(model[0].parameters(), 0.25)))
        nn.utils.clip_grad_norm_(model[4].parameters(), max_norm=0.5)
        nn.utils.clip_grad_value_(model[6].parameters(), 1.5)
        optimizer.step()
    for step, norm in zip(session.train(), norms, strict=True):
        assert step.scalars["clip/norm"] == norm
        assert [step.scalars[f"clip/limit{n}"] for n in ("", "_2", "_3")] == [0.25, 0.5, 1.5]
        assert "clip/norm_2" in step.scalars
        assert "clip/norm_3" not in step.scalars


def test_losses_of_a_second_phase_are_looked_at_anew(watched):
    _, session = watched()
    body, head = nn.Linear(4, 8), nn.Linear(8, 3)
    x, y = torch.randn(12, 4), torch.randint(0, 3, (12,))
    first = torch.optim.SGD(body.parameters(), lr=0.01)
    for _ in range(300):  # the next power of two is 512
        first.zero_grad()
        nn.MSELoss()(body(x), torch.zeros(12, 8)).backward()
        first.step()
    second = torch.optim.SGD(head.parameters(), lr=0.01)
    for _ in range(6):
        second.zero_grad()
        nn.CrossEntropyLoss()(head(body(x)).softmax(1), y).backward()
        second.step()
    told_of = [event for event in told(session, "loss_input") if event["loss"] == "CrossEntropyLoss"]
    assert [event["made_by"] for event in told_of] == ["softmax"]


# Layers that are made in forward ---------------------------------------------------------------------------------


class MakesALayer(nn.Module):
    def __init__(self, made):
        super().__init__()
        self.body, self.made = nn.Linear(6, 8), made

    def forward(self, x):
        return self.made(self.body(x))


def test_parameters_that_are_gone_after_the_step_are_told(watched):
    hook, session = watched()
    train(MakesALayer(lambda h: nn.Linear(8, 3)(h)))
    hook.close()
    reaches = told(session, "reach")
    assert reaches
    assert all(sorted(event["made"]) == [[3], [3, 8]] for event in reaches)


def test_layers_that_live_on_and_plain_tensors_are_not_told_as_made(watched):
    kept = nn.Linear(8, 3)
    for made in (kept, lambda h: (h + torch.zeros(8, requires_grad=True))[:, :3]):
        hook, session = watched()
        train(MakesALayer(made))
        hook.close()
        assert all("made" not in event for event in told(session, "reach"))
