"""Trains a small GPT-2 on counting with the Trainer; does not use Luff, and downloads nothing.

luff run -- python examples/transformers/train.py                  no findings
luff run -- python examples/transformers/train.py --rate 1.0       updates that are far too large
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed


class Counting(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Rows of numbers that increase by one, two or three, modulo 32."""

    def __init__(self, rows: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        start = torch.randint(0, 32, (rows, 1), generator=generator)
        stride = torch.randint(1, 4, (rows, 1), generator=generator)
        self.rows = (start + stride * torch.arange(16)) % 32

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=3e-3, help="learning rate")
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args()
    set_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=32, n_positions=16, n_embd=48, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=options.epochs,
            per_device_train_batch_size=16,
            gradient_accumulation_steps=2,
            learning_rate=options.rate,
            eval_strategy="epoch",
            save_strategy="no",
            logging_steps=10,
            report_to=[],
            use_cpu=True,
        )
        trainer = Trainer(model, arguments, train_dataset=Counting(512, 0), eval_dataset=Counting(128, 1))
        trainer.train()
        print({name: round(value, 3) for name, value in trainer.evaluate().items() if name == "eval_loss"})


if __name__ == "__main__":
    main()
