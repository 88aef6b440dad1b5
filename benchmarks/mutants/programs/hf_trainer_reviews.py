"""Sentiment of made-up reviews with a small DistilBERT from scratch and the Trainer of Transformers."""
# environment: lightning

import os
import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

SEED = int(os.environ.get("SEED", "0"))
set_seed(SEED)
torch.set_num_threads(1)
rng = np.random.default_rng(SEED)

PAD, CLS, NOT, FIRST_WORD, VOCAB_SIZE, MAX_LEN = 0, 1, 2, 3, 80, 16
mood = rng.permutation(np.resize([-1, 0, 1, 0], VOCAB_SIZE))  # of each word


def write_review():
    """Returns 7 to 15 words, and the sum of their moods; "not" turns the next word around."""
    words = rng.integers(FIRST_WORD, VOCAB_SIZE, size=rng.integers(7, MAX_LEN))
    words[rng.random(len(words)) < 0.08] = NOT
    negated = np.concatenate([[False], words[:-1] == NOT])
    return words, (np.where(negated, -1, 1) * mood[words] * (words != NOT)).sum()


def write_reviews(n):
    tokens, labels = np.full((n, MAX_LEN), PAD), np.zeros(n, dtype=np.int64)
    tokens[:, 0] = CLS
    for i in range(n):
        words, total = write_review()
        while total == 0:  # neither good nor bad
            words, total = write_review()
        tokens[i, 1 : len(words) + 1] = words
        labels[i] = total > 0
    return torch.from_numpy(tokens), torch.from_numpy(labels)


train_x, train_y = write_reviews(2400)
test_x, test_y = write_reviews(400)


class ReviewDataset(Dataset):
    def __init__(self, input_ids, labels):
        self.input_ids, self.labels = input_ids, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        ids = self.input_ids[i]
        return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": self.labels[i]}


def compute_metrics(prediction):
    logits, labels = prediction
    return {"accuracy": float((logits.argmax(axis=-1) == labels).mean())}


config = DistilBertConfig(
    vocab_size=VOCAB_SIZE,
    max_position_embeddings=MAX_LEN,
    dim=32,
    hidden_dim=64,
    n_layers=2,
    n_heads=4,
    dropout=0.1,
    attention_dropout=0.0,
    seq_classif_dropout=0.1,
    initializer_range=0.1,
    pad_token_id=PAD,
)
model = DistilBertForSequenceClassification(config)

with tempfile.TemporaryDirectory() as output_dir:
    args = TrainingArguments(
        output_dir=output_dir,
        num_train_epochs=4,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=200,
        learning_rate=2e-3,
        warmup_steps=20,
        weight_decay=0.01,
        lr_scheduler_type="linear",
        eval_strategy="epoch",
        save_strategy="no",
        logging_steps=25,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=SEED,
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=ReviewDataset(train_x, train_y),
        eval_dataset=ReviewDataset(test_x, test_y),
        compute_metrics=compute_metrics,
    )
    trainer.train()
    metrics = trainer.evaluate()
print("score", metrics["eval_accuracy"])
