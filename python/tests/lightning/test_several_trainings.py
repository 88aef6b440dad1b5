"""Trainings of Lightning and of the Trainer that follow each other in one process, under `luff run`: each has a run."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)
LIGHTNING = f"""
import sys, warnings; warnings.simplefilter("ignore"); sys.path.insert(0, {HERE!r})
import lit, torch
import lightning.pytorch as pl
def fit(model, epochs):
    trainer = pl.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(model, lit.loader(400, batch=10), lit.loader(100, 1))
    trainer.validate(model, lit.loader(100, 1), verbose=False)
    print(sum(p.double().sum() for p in model.parameters()).item())
torch.manual_seed(0)
"""
HUGGING_FACE = f"""
import sys, warnings; warnings.simplefilter("ignore"); sys.path.insert(0, {HERE!r})
import hf
def fit(model, epochs):
    hf.trainer("out", model=model, train=hf.Rows(320), num_train_epochs=epochs, logging_steps=20).train()
    print(sum(p.double().sum() for p in model.parameters()).item())
"""


def test_each_training_of_lightning_has_a_run(luff_trainings):
    _, steps = luff_trainings(
        LIGHTNING + "first = lit.Net(); fit(first, 3); fit(lit.Net(), 4)\n"
        "last = lit.Net(); fit(last, 3); fit(last, 1)\n"
    )
    assert steps == [120, 160, 120 + 40]


@pytest.mark.thorough
def test_each_training_of_the_trainer_has_a_run(luff_trainings):
    pytest.importorskip("transformers")
    _, steps = luff_trainings(
        HUGGING_FACE + "for epochs in (3, 4): model = hf.gpt2(); fit(model, epochs)\nfit(model, 1)\n",
        same=True,
    )
    assert steps == [120, 160 + 40]
