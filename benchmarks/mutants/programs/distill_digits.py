"""Distillation of a wide teacher into a small student on few labels: KL of softened outputs plus cross-entropy."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)

T = 4.0
ALPHA = 0.8

raw = load_digits()
inputs = torch.tensor(raw.data, dtype=torch.float32) / 8.0 - 1.0
classes = torch.tensor(raw.target)
order = torch.randperm(len(inputs))
train_x, train_y = inputs[order[:1300]], classes[order[:1300]]
test_x, test_y = inputs[order[1300:]], classes[order[1300:]]


def make_mlp(*widths):
    layers = []
    for n_in, n_out in zip(widths[:-1], widths[1:], strict=True):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def batches(size=50):
    for idx in torch.randperm(len(train_x)).split(size):
        yield train_x[idx], train_y[idx]


@torch.no_grad()
def accuracy(net):
    net.eval()
    return (net(test_x).argmax(-1) == test_y).float().mean().item()


def train_teacher(teacher, epochs=6):
    opt = torch.optim.Adam(teacher.parameters(), lr=1.5e-3, weight_decay=1e-4)
    for epoch in range(epochs):
        teacher.train()
        for x, y in batches():
            opt.zero_grad()
            loss = F.cross_entropy(teacher(x), y)
            loss.backward()
            opt.step()
        print(f"teacher {epoch}: {loss.item():.4f} accuracy {accuracy(teacher):.4f}")


def distil(student, teacher, epochs=10):
    teacher.eval()
    opt = torch.optim.Adam(student.parameters(), lr=4e-3)
    for epoch in range(epochs):
        student.train()
        for x, y in batches():
            with torch.no_grad():
                soft_targets = F.softmax(teacher(x) / T, dim=-1)
            logits = student(x)
            soft = F.kl_div(F.log_softmax(logits / T, dim=-1), soft_targets, reduction="batchmean") * T * T
            loss = ALPHA * soft + (1 - ALPHA) * F.cross_entropy(logits, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if epoch % 2 == 1:
            print(f"student {epoch}: {loss.item():.4f} accuracy {accuracy(student):.4f}")


teacher = make_mlp(64, 128, 128, 10)
student = make_mlp(64, 12, 10)
train_teacher(teacher)
distil(student, teacher)
print("score", accuracy(student))
