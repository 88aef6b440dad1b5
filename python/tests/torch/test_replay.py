"""Replays captured values: weights and gradients passed to the optimizer give the weights of the next step.

This holds bit by bit, for every way of training. So gradients are those that the optimizer used (accumulated,
unscaled, clipped), weights those of the step's forward pass, settings those of the update, and no step is missing.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from typing import Any

import cases
import numpy as np
import pytest
import torch
from luff._codes import Role
from torch.optim import SGD, Adam, AdamW, RMSprop

STEP, SKIPPED = 4, 8
Factory = Callable[[list[Any]], torch.optim.Optimizer]


def sgd(lr=0.1, **settings):
    return lambda parameters: SGD(parameters, lr=lr, **settings)


# case: (prefix of the tensors' names, their optimizer) for each model, in the order in which the case returns them
REPLAYS: dict[str, list[tuple[str, Factory]]] = {
    "plain": [("Sequential_", sgd(momentum=0.9))],
    "functional_loss_adam": [("Sequential_", lambda p: Adam(p, lr=0.01))],
    "evaluation_and_scheduler": [("Sequential_", lambda p: AdamW(p, lr=0.01))],
    "frozen_layers": [("Sequential_", sgd())],
    "shared_parameters": [("Tied_", sgd(0.5))],
    "module_called_twice": [("Twice_", sgd())],
    "two_optimizers_gan": [("Sequential_", Adam), ("Sequential_2_", Adam)],
    "two_optimizers_one_backward": [(r"Sequential_0\.", sgd()), (r"Sequential_[46]\.", Adam)],
    "two_losses": [("Sequential_", sgd())],
    "closure_keyword": [("Sequential_", sgd(momentum=0.9, nesterov=True))],
    "accumulation": [("Sequential_", sgd())],
    "autocast_bfloat16": [("Sequential_", sgd())],
    "grad_scaler_with_skip": [("Sequential_", sgd())],
    "grad_scaler_fused": [("Sequential_", lambda p: AdamW(p, lr=0.01, fused=True))],
    "grad_scaler_clipped": [("Sequential_", sgd())],
    "clipping": [("Sequential_", sgd())],
    "data_parallel": [("Sequential_", sgd())],
    "compiled": [("Sequential_", sgd())],
    "checkpointing": [("Checkpointed_", sgd())],
    "checkpointing_reentrant": [("Checkpointed_", sgd())],
    "exceptions_in_the_loop": [("Fragile_", sgd())],
    "optimizer_in_backward": [("Sequential_", sgd())],
    "recurrent_cell": [
        ("GRUCell_", lambda p: RMSprop(p, lr=0.01)),
        ("Linear_", lambda p: RMSprop(p, lr=0.01)),
    ],
    "target_network": [("Linear_", sgd())],
    "loader_workers": [("Sequential_", sgd())],
    "eval_mode_training": [("Sequential_", sgd())],
    "double_and_dicts": [("Nested_", sgd())],
    "gradient_penalty": [("Sequential_", Adam)],
}


class Replay:
    """Parameters of one model, trained again only from what was captured."""

    def __init__(self, names, first, factory):
        self.parameters = {
            name: torch.nn.Parameter(torch.from_numpy(first.values[name].copy())) for name in names
        }
        self.optimizer = factory(list(self.parameters.values()))
        self.updates = 0

    def follow(self, step):
        for name, parameter in self.parameters.items():
            assert np.array_equal(step.values[name], parameter.detach().numpy()), (step.mode_step, name)
        gradients = {name: step.values.get(f"gradient/{name}") for name in self.parameters}
        if STEP not in step.kinds or all(gradient is None for gradient in gradients.values()):
            return
        for name, parameter in self.parameters.items():
            gradient = gradients[name]
            parameter.grad = None if gradient is None else torch.from_numpy(gradient.copy())
        kind = type(self.optimizer).__name__
        self.optimizer.param_groups[0]["lr"] = step.scalars[f"optimizer/{kind}.group0.lr"]
        self.optimizer.step()
        self.updates += 1


def names_of(session, prefix):
    """Returns parameters whose names begin with the expression; of the first model of a
    class unless it has a number.
    """
    first = "" if re.search(r"_\d+_$", prefix) else r"(?!\d+_)"
    held = [name for name in session.train()[0].values if not name.startswith(("gradient/", "optimizer/"))]
    return [name for name in held if re.match(prefix + first, name)]


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("name", REPLAYS)
def test_captured_gradients_make_the_next_weights(watched, name):
    hook, session = watched()
    torch.manual_seed(3)
    _, models = cases.CASES[name]()
    hook.close()
    train = session.train()
    final = {}
    for index, (prefix, factory) in enumerate(REPLAYS[name]):
        replay = Replay(names_of(session, prefix), train[0], factory)
        assert replay.parameters, session.names
        for step in train:
            replay.follow(step)
        assert replay.updates >= 2
        final[index] = replay
    got = [p.detach() for replay in final.values() for p in replay.parameters.values()]
    wanted = [p.detach() for model in models[: max(1, len(final))] for p in model.parameters()]
    for parameter in got:
        assert any(parameter.shape == w.shape and torch.equal(parameter, w) for w in wanted)
    if name != "two_optimizers_one_backward":
        assert len(got) == len(wanted)


def test_settings_are_those_of_the_update_although_schedulers_follow(watched):
    hook, session = watched()
    model = cases.net()
    first, second = torch.optim.SGD(model[0].parameters(), lr=1.0), Adam(model[4:].parameters(), lr=1.0)
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) for optimizer in (first, second)]
    used = []
    for x, y in cases.batches():
        torch.nn.functional.cross_entropy(model(x), y).backward()
        used.append((first.param_groups[0]["lr"], second.param_groups[0]["lr"]))
        first.step()
        second.step()
        for scheduler in schedulers:
            scheduler.step()
    hook.close()
    names = ("optimizer/SGD.group0.lr", "optimizer/Adam.group0.lr")
    assert [tuple(step.scalars[name] for name in names) for step in session.train()] == used


def test_the_last_step_has_the_settings_of_the_optimizers_that_live_when_the_hook_is_closed(watched):
    """Those of the optimizer that made its update are there in any case."""
    hook, session = watched()
    torch.manual_seed(0)
    cases.CASES["two_optimizers_gan"]()  # the critic's, Adam_2, makes the last update but one
    gc.collect()
    hook.close()
    *others, last = [
        {name for name in step.scalars if name.startswith("optimizer/")} for step in session.train()
    ]
    for names in others:
        assert {"optimizer/Adam.group0.lr", "optimizer/Adam_2.group0.lr"} <= names
    assert "optimizer/Adam.group0.lr" in last
    assert not any(name.startswith("optimizer/Adam_2.") for name in last)
    assert session.steps[-1].gaps == []


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "evaluation_and_scheduler",
        "module_called_twice",
        "shared_parameters",
        "data_parallel",
        "checkpointing",
        "checkpointing_reentrant",
        "recurrent_cell",
        "autocast_bfloat16",
        "grad_scaler_with_skip",
        "accumulation",
        "lbfgs",
        "copied_and_pickled",
    ],
)
def test_captured_outputs_are_what_forward_hooks_see(watched, name):
    """Torch's own hooks record what every module returned, in the order of calls, without recomputations."""
    returned: dict[int, list[torch.Tensor]] = {}
    modules = []

    def look(module, _arguments, output):
        if torch._C._current_graph_task_id() == -1 and not isinstance(module, torch.nn.CrossEntropyLoss):
            modules.append(module)
            returned.setdefault(id(module), []).append(output.detach().clone())

    hook, session = watched(frozenset(Role))
    torch.manual_seed(3)
    handle = torch.nn.modules.module.register_module_forward_hook(look)
    try:
        cases.CASES[name]()
    finally:
        handle.remove()
    hook.close()
    names = {id(module): hook.machine.names.module(module) for module in modules}
    compared = 0
    for number, (path, _) in {key: found for key, found in names.items() if found is not None}.items():
        got = [
            step.values[key]
            for step in session.steps
            for key in sorted(k for k in step.values if re.fullmatch(re.escape(path) + r"_output_\d+", k))
        ]
        wanted = returned[number]
        missed = len(wanted) - len(got)  # in the first step, since its backward pass opens the run
        assert 0 <= missed <= 5, path
        for one, other in zip(got, wanted[missed:], strict=True):
            assert np.array_equal(np.asarray(one, np.float64), other.double().numpy()), path
            compared += 1
    assert compared >= 15
