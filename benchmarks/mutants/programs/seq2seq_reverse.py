"""Strings of digits read backwards by an encoder-decoder of GRUs: teacher forcing, greedy decoding."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SEED = int(os.environ.get("SEED", "0"))
torch.manual_seed(SEED)
torch.set_num_threads(1)

PAD, START, END, FIRST_DIGIT, VOCAB = 0, 1, 2, 3, 13
MAX_LEN, EPOCHS = 6, 5


def make_pairs(n):
    """Returns padded strings of 3 to 6 digits, and the same reversed between START and END."""
    source = torch.full((n, MAX_LEN), PAD)
    target = torch.full((n, MAX_LEN + 2), PAD)
    target[:, 0] = START
    for i, length in enumerate(torch.randint(3, MAX_LEN + 1, (n,)).tolist()):
        digits = torch.randint(FIRST_DIGIT, VOCAB, (length,))
        source[i, :length] = digits
        target[i, 1 : length + 1] = digits.flip(0)
        target[i, length + 1] = END
    return source, target


train_x, train_y = make_pairs(3200)
test_x, test_y = make_pairs(400)
loader = DataLoader(TensorDataset(train_x, train_y), batch_size=64, shuffle=True)


class Encoder(nn.Module):
    def __init__(self, emb_dim, hid_dim):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, emb_dim, padding_idx=PAD)
        self.rnn = nn.GRU(emb_dim, hid_dim, batch_first=True)

    def forward(self, source):
        lengths = (source != PAD).sum(1)
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embedding(source), lengths, batch_first=True, enforce_sorted=False
        )
        return self.rnn(packed)[1]


class Decoder(nn.Module):
    def __init__(self, emb_dim, hid_dim):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, emb_dim, padding_idx=PAD)
        self.rnn = nn.GRU(emb_dim, hid_dim, batch_first=True)
        self.fc_out = nn.Linear(hid_dim, VOCAB)

    def forward(self, tokens, hidden):
        output, hidden = self.rnn(self.embedding(tokens), hidden)
        return self.fc_out(output), hidden


class Seq2Seq(nn.Module):
    def __init__(self, emb_dim=24, hid_dim=96):
        super().__init__()
        self.encoder = Encoder(emb_dim, hid_dim)
        self.decoder = Decoder(emb_dim, hid_dim)

    def forward(self, source, target):
        logits, _ = self.decoder(target, self.encoder(source))
        return logits

    @torch.no_grad()
    def greedy(self, source):
        hidden = self.encoder(source)
        token = torch.full((len(source), 1), START)
        decoded = []
        for _ in range(MAX_LEN + 1):
            logits, hidden = self.decoder(token, hidden)
            token = logits.argmax(-1)
            decoded.append(token)
        return torch.cat(decoded, dim=1)


def token_accuracy(model):
    model.eval()
    wanted = test_y[:, 1:]
    real = wanted != PAD
    return (model.greedy(test_x) == wanted)[real].float().mean().item()


model = Seq2Seq()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
criterion = nn.CrossEntropyLoss(ignore_index=PAD)
for epoch in range(EPOCHS):
    model.train()
    epoch_loss = 0.0
    for source, target in loader:
        optimizer.zero_grad()
        logits = model(source, target[:, :-1])
        loss = criterion(logits.reshape(-1, VOCAB), target[:, 1:].reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        epoch_loss += loss.item()
    print(f"Epoch {epoch + 1:02}: loss {epoch_loss / len(loader):.3f}, accuracy {token_accuracy(model):.3f}")
print("score", token_accuracy(model))
