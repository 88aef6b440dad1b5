"""Communities of a random graph by message passing, full graph: a few labelled nodes, log-softmax and nll."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)

NODES, COMMUNITIES, FEATURES = 600, 4, 16

# A stochastic block model: edges mostly inside a community, features that hint at it.
community = torch.arange(NODES) % COMMUNITIES
same = community[:, None] == community[None, :]
edges = torch.rand(NODES, NODES) < torch.where(same, 0.03, 0.004)
adjacency = (edges.triu(1) | edges.triu(1).T).float()
centres = torch.randn(COMMUNITIES, FEATURES)
features = 0.5 * centres[community] + torch.randn(NODES, FEATURES)

order = torch.randperm(NODES)
train_mask, val_mask, test_mask = (torch.zeros(NODES, dtype=torch.bool) for _ in range(3))
train_mask[order[:120]] = True
val_mask[order[120:240]] = True
test_mask[order[240:]] = True

with_loops = adjacency + torch.eye(NODES)
degree = with_loops.sum(1).rsqrt()
a_hat = (degree[:, None] * with_loops * degree[None, :]).to_sparse()


class GraphConv(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(in_features, out_features))
        self.bias = nn.Parameter(torch.zeros(out_features))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x, adj):
        return torch.sparse.mm(adj, x @ self.weight) + self.bias


class GCN(nn.Module):
    def __init__(self, hidden=32, dropout=0.5):
        super().__init__()
        self.gc1 = GraphConv(FEATURES, hidden)
        self.gc2 = GraphConv(hidden, COMMUNITIES)
        self.dropout = dropout

    def forward(self, x, adj):
        x = F.relu(self.gc1(x, adj))
        x = F.dropout(x, self.dropout, training=self.training)
        return F.log_softmax(self.gc2(x, adj), dim=1)


def accuracy(output, mask):
    return (output[mask].argmax(1) == community[mask]).float().mean().item()


model = GCN()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
for epoch in range(100):
    model.train()
    optimizer.zero_grad()
    output = model(features, a_hat)
    loss_train = F.nll_loss(output[train_mask], community[train_mask])
    loss_train.backward()
    optimizer.step()
    if epoch % 25 == 0:
        model.eval()
        with torch.no_grad():
            output = model(features, a_hat)
        print(
            f"epoch {epoch:3d} loss {loss_train.item():.3f} validation accuracy {accuracy(output, val_mask):.3f}"
        )

model.eval()
with torch.no_grad():
    output = model(features, a_hat)
print("score", accuracy(output, test_mask))
