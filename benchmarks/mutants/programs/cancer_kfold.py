"""Breast cancer by five-fold cross-validation: a new model and scaler per fold, weighted positives."""

import os

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import matthews_corrcoef
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

RANDOM_STATE = int(os.environ.get("SEED", "0"))
N_SPLITS, N_EPOCHS, LEARNING_RATE = 5, 8, 0.05

torch.manual_seed(RANDOM_STATE)
torch.set_num_threads(1)


def build_model(n_inputs):
    return torch.nn.Sequential(
        torch.nn.Linear(n_inputs, 16),
        torch.nn.BatchNorm1d(16),
        torch.nn.ReLU(),
        torch.nn.Linear(16, 1),
    )


def fit_fold(X_train, y_train):
    model = build_model(X_train.shape[1])
    pos_weight = (y_train == 0).sum() / (y_train == 1).sum()
    criterion = torch.nn.BCEWithLogitsLoss(pos_weight=pos_weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9, weight_decay=1e-3)
    dataset = torch.utils.data.TensorDataset(X_train, y_train)
    loader = torch.utils.data.DataLoader(dataset, batch_size=32, shuffle=True, drop_last=True)
    model.train()
    for _ in range(N_EPOCHS):
        for xb, yb in loader:
            optimizer.zero_grad()
            loss = criterion(model(xb).squeeze(1), yb)
            loss.backward()
            optimizer.step()
    return model, loss.item()


def predict(model, X_valid):
    model.eval()
    with torch.no_grad():
        return (model(X_valid).squeeze(1) > 0).numpy().astype(int)


X, y = load_breast_cancer(return_X_y=True)
y = 1 - y  # malignant is positive
folds = StratifiedKFold(n_splits=N_SPLITS, shuffle=True, random_state=RANDOM_STATE)
scores = []
for fold, (train_index, valid_index) in enumerate(folds.split(X, y), start=1):
    scaler = StandardScaler().fit(X[train_index])
    X_train = torch.tensor(scaler.transform(X[train_index]), dtype=torch.float32)
    X_valid = torch.tensor(scaler.transform(X[valid_index]), dtype=torch.float32)
    y_train = torch.tensor(y[train_index], dtype=torch.float32)
    model, last_loss = fit_fold(X_train, y_train)
    mcc = matthews_corrcoef(y[valid_index], predict(model, X_valid))
    scores.append(mcc)
    print(f"fold {fold}: last training loss {last_loss:.4f}, MCC {mcc:.4f}")

print(f"MCC {np.mean(scores):.4f} +- {np.std(scores):.4f}")
print("score", float(np.mean(scores)))
