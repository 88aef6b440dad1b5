"""For each framework, a healthy program without findings by the default rules, and two faulty ones that they name."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.skipif(shutil.which("luff") is None, reason="the program luff is not on the path")


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """What ``luff run`` records by default, for all rules."""
    command = ["luff", "run", "--run", str(tmp_path_factory.mktemp("asked") / "run"), "--"]
    done = subprocess.run(
        [*command, sys.executable, "-c", "import os; print(os.environ['LUFF_SESSION'])"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return json.loads(done.stdout)["config"]["collections"]


def rules(run):
    """Returns the names of the rules that find something in a finished run."""
    done = subprocess.run(
        ["luff", "check", str(run), "--json"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode in (0, 1, 3), done.stderr
    return {json.loads(line)["rule"] for line in done.stdout.splitlines()}


# Lightning ---------------------------------------------------------------------------------------------------------


def lightning(run, asked, model=None, **settings):
    import luff.lightning
    from lit import Net, loader, trainer

    callback = luff.lightning.Callback(run, collections=asked)
    model = Net(lr=0.005, optimizer=torch.optim.Adam) if model is None else model
    trainer(callback, **{"max_epochs": 8, **settings}).fit(model, loader(256, shuffle=True), loader(64, 1))
    callback.close()
    assert callback.hook.guard.first == {}


def lightning_never_clears(run, asked):
    from lit import Net

    class Keeps(Net):
        def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
            pass

    lightning(run, asked, Keeps(lr=0.001, optimizer=torch.optim.Adam))


def lightning_forgets_the_body(run, asked):
    from lit import Net

    class Head(Net):
        def configure_optimizers(self):
            return torch.optim.Adam(self.net[3].parameters(), 0.005)

    lightning(run, asked, Head())


# Transformers ------------------------------------------------------------------------------------------------------


def transformers(run, asked, model=None, train=None, evaluate=None, **settings):
    import luff.transformers
    from hf import Rows, trainer

    callback = luff.transformers.Callback(run, collections=asked)
    trainer(
        run.parent / "out",
        callback,
        model=model,
        train=Rows(96, 0, 16) if train is None else train,
        evaluate=Rows(32, 1, 16) if evaluate is None else evaluate,
        **{"num_train_epochs": 4, "eval_strategy": "epoch", "gradient_accumulation_steps": 2, **settings},
    ).train()
    callback.close()
    assert callback.hook.guard.first == {}


def transformers_takes_far_too_large_steps(run, asked):
    transformers(run, asked, learning_rate=1.0, max_grad_norm=0.0)


def transformers_sees_what_comes_next(run, asked):
    from transformers import BertConfig, BertLMHeadModel

    class Shifted(BertLMHeadModel):
        """A language model made of an encoder: its loss is that of next tokens, but its attention is not masked."""

        def __init__(self, config):
            super().__init__(config)
            self.config.is_decoder = False

        def forward(self, input_ids=None, labels=None, **kwargs):
            logits = super().forward(input_ids=input_ids).logits
            loss = nn.functional.cross_entropy(logits[:, :-1].reshape(-1, 32), labels[:, 1:].reshape(-1))
            return {"loss": loss, "logits": logits}

    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    model = Shifted(BertConfig(vocab_size=32, max_position_embeddings=16, **small))
    transformers(run, asked, model=model, gradient_accumulation_steps=1, learning_rate=1e-2)


# Accelerate --------------------------------------------------------------------------------------------------------


def accelerate(run, asked, clears=True, last=None):
    import luff.accelerate
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState, PartialState
    from lit import loader

    accelerator = Accelerator(cpu=True)
    layers = [nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3), *([] if last is None else [last])]
    model = nn.Sequential(*layers)
    parts = (model, torch.optim.Adam(model.parameters(), 0.005), loader(256, shuffle=True), loader(64, 1))
    model, optimizer, data, evaluation = accelerator.prepare(*parts)
    hook = luff.accelerate.attach(accelerator, run=run, collections=asked)
    for _ in range(8):
        for x, y in data:
            loss = nn.functional.cross_entropy(model(x), y)
            if clears:
                optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for x, _ in evaluation:
                model(x)
        model.train()
    hook.close()
    assert hook.guard.first == {}
    for state in (AcceleratorState, PartialState, GradientState):
        state._reset_state()


PROGRAMS = [
    ("lightning", lightning, None),
    ("lightning", lightning_never_clears, "GradientNotCleared"),
    ("lightning", lightning_forgets_the_body, "ParamNotOptimized"),
    ("transformers", transformers, None),
    ("transformers", transformers_takes_far_too_large_steps, "WeightUpdateRatio"),
    ("transformers", transformers_sees_what_comes_next, "CausalLeak"),
    ("accelerate", accelerate, None),
    ("accelerate", lambda run, asked: accelerate(run, asked, clears=False), "GradientNotCleared"),
    ("accelerate", lambda run, asked: accelerate(run, asked, last=nn.Softmax(-1)), "LossInputContract"),
]


@pytest.mark.parametrize(
    ("framework", "program", "named"), PROGRAMS, ids=[f"{f}-{named or 'healthy'}" for f, _, named in PROGRAMS]
)
def test_programs(framework, program, named, tmp_path, asked):
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"no {framework}")
    program(tmp_path / "run", asked)
    found = rules(tmp_path / "run")
    if named is None:
        assert found == set()
    else:
        assert named in found
