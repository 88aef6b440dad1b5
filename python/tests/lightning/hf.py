"""Small trainings with the Trainer, used by several tests; models come from a
configuration, nothing is downloaded.
"""

from __future__ import annotations

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

transformers.logging.set_verbosity_error()


class Rows(torch.utils.data.Dataset):
    """Rows of counting numbers modulo 32; each number follows from the two before it."""

    def __init__(self, count=32, seed=0, length=12):
        generator = torch.Generator().manual_seed(seed)
        start = torch.randint(0, 32, (count, 1), generator=generator)
        stride = torch.randint(1, 4, (count, 1), generator=generator)
        self.rows = (start + stride * torch.arange(length)) % 32

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def gpt2(**settings):
    transformers.set_seed(1)
    small = {"vocab_size": 32, "n_positions": 16, "n_embd": 32, "n_layer": 1, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**{**small, "bos_token_id": 0, "eos_token_id": 0, **settings}))


def trainer(folder, *callbacks, model=None, train=None, evaluate=None, cls=Trainer, **settings):
    usual = {"num_train_epochs": 2, "per_device_train_batch_size": 8, "per_device_eval_batch_size": 8}
    usual |= {
        "learning_rate": 3e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
    }
    arguments = TrainingArguments(output_dir=str(folder), disable_tqdm=True, **{**usual, **settings})
    train = Rows() if train is None else train
    made = cls(
        gpt2() if model is None else model,
        arguments,
        train_dataset=train,
        eval_dataset=evaluate,
        callbacks=list(callbacks),
    )
    made.remove_callback(transformers.PrinterCallback)
    return made
