"""A large network on few noisy rows, evaluated each epoch; prints the step with the best evaluation."""

import argparse

import torch
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=650)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    weights = torch.randn(12, 1)
    rows, held_out = torch.randn(96, 12), torch.randn(200, 12)
    targets = ((rows @ weights).squeeze(1) + 4 * torch.randn(96) > 0).long()
    truth = ((held_out @ weights).squeeze(1) + 4 * torch.randn(200) > 0).long()
    model = nn.Sequential(nn.Linear(12, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_of = nn.CrossEntropyLoss()
    best, best_step, step = float("inf"), -1, -1
    try:
        for _ in range(arguments.epochs):
            model.train()
            for chosen in torch.randperm(96).split(16):
                optimizer.zero_grad()
                loss_of(model(rows[chosen]), targets[chosen]).backward()
                optimizer.step()
                step += 1
            model.eval()
            with torch.no_grad():
                value = loss_of(model(held_out), truth).item()
            if value < best:
                best, best_step = value, step
    finally:
        print(f"best after step {best_step} of {step}", flush=True)


if __name__ == "__main__":
    main()
