"""Cultivars of wine in a LightningModule: logged metrics, rate cut by milestones, validation on each epoch."""
# environment: lightning

import os
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore", message=".*does not have many workers.*")
L.seed_everything(int(os.environ.get("SEED", "0")), verbose=False)
torch.set_num_threads(1)

features, cultivars = load_wine(return_X_y=True)
features = features[:, :6]  # alcohol to phenols: what every laboratory measures
train_x, test_x, train_y, test_y = train_test_split(
    features, cultivars, test_size=0.3, stratify=cultivars, random_state=int(os.environ.get("SEED", "0"))
)
scaler = StandardScaler().fit(train_x)
train_x = torch.tensor(scaler.transform(train_x), dtype=torch.float32)
test_x = torch.tensor(scaler.transform(test_x), dtype=torch.float32)
train_y, test_y = torch.tensor(train_y), torch.tensor(test_y)


class WineClassifier(L.LightningModule):
    def __init__(self, n_features=6, hidden=24, n_classes=3, lr=2.5e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Linear(n_features, hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, n_classes)
        )

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.log("val_loss", F.cross_entropy(logits, y))
        self.log("val_acc", (logits.argmax(dim=1) == y).float().mean())

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking and self.current_epoch % 10 == 9:
            metrics = {name: round(value.item(), 4) for name, value in self.trainer.callback_metrics.items()}
            print(f"epoch {self.current_epoch}: {metrics}")

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[25, 34], gamma=0.3)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


train_loader = DataLoader(TensorDataset(train_x, train_y), batch_size=16, shuffle=True)
val_loader = DataLoader(TensorDataset(test_x, test_y), batch_size=len(test_x))

model = WineClassifier()
trainer = L.Trainer(
    max_epochs=40,
    accelerator="cpu",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    gradient_clip_val=1.0,
)
trainer.fit(model, train_loader, val_loader)

# Share of the entropy of the held-out classes that the predicted probabilities explain.
model.eval()
with torch.no_grad():
    cross_entropy = F.cross_entropy(model(test_x), test_y)
shares = torch.bincount(train_y) / len(train_y)
print("score", 1 - (cross_entropy / F.nll_loss(shares.log().expand(len(test_y), -1), test_y)).item())
