"""REINFORCE with a learnt baseline on a small grid with pits: many episodes side by side, two optimizers."""

import os

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)

UPDATES, EPISODES, MAX_STEPS, DISCOUNT = 60, 32, 20, 0.97


class Grid:
    """Five by five, start on any free cell, goal in a corner; goal and pits end an episode."""

    size, goal, pits = 5, 4, torch.tensor([6, 13, 16])
    moves = torch.tensor([[-1, 0], [1, 0], [0, -1], [0, 1]])

    def __init__(self, episodes):
        free = torch.tensor([c for c in range(self.size**2) if c != self.goal and c not in self.pits])
        start = free[torch.randint(len(free), (episodes,))]
        self.at = torch.stack([start // self.size, start % self.size], dim=1)
        self.done = torch.zeros(episodes, dtype=torch.bool)

    def observe(self):
        return nn.functional.one_hot(self.at[:, 0] * self.size + self.at[:, 1], self.size**2).float()

    def step(self, actions):
        moved = (self.at + self.moves[actions]).clamp(0, self.size - 1)
        self.at = torch.where(self.done[:, None], self.at, moved)
        cell = self.at[:, 0] * self.size + self.at[:, 1]
        at_goal, in_pit = cell == self.goal, torch.isin(cell, self.pits)
        reward = torch.where(at_goal, 1.0, torch.where(in_pit, -1.0, -0.02)) * ~self.done
        self.done = self.done | at_goal | in_pit
        return reward


policy = nn.Sequential(nn.Linear(25, 32), nn.Tanh(), nn.Linear(32, 4))
value = nn.Sequential(nn.Linear(25, 32), nn.Tanh(), nn.Linear(32, 1))
policy_optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
value_optimizer = torch.optim.Adam(value.parameters(), lr=0.01)


@torch.no_grad()
def rollout(episodes):
    """Returns observations, actions, discounted returns and a mask of the steps played; all (time, episode)."""
    grid = Grid(episodes)
    observations, actions, rewards, alive = [], [], [], []
    for _ in range(MAX_STEPS):
        observations.append(grid.observe())
        alive.append(~grid.done)
        actions.append(Categorical(logits=policy(observations[-1])).sample())
        rewards.append(grid.step(actions[-1]))
    returns, future = [], torch.zeros(episodes)
    for reward in reversed(rewards):
        future = reward + DISCOUNT * future
        returns.append(future)
    returns.reverse()
    return (
        torch.stack(observations),
        torch.stack(actions),
        torch.stack(returns),
        torch.stack(alive),
        sum(rewards),
    )


for update in range(UPDATES):
    observations, actions, returns, alive, totals = rollout(EPISODES)
    observations, actions, returns = observations[alive], actions[alive], returns[alive]

    estimates = value(observations).squeeze(-1)
    value_loss = nn.functional.mse_loss(estimates, returns)
    value_optimizer.zero_grad()
    value_loss.backward()
    value_optimizer.step()

    advantage = returns - estimates.detach()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
    distribution = Categorical(logits=policy(observations))
    policy_loss = -(distribution.log_prob(actions) * advantage).mean() - 0.01 * distribution.entropy().mean()
    policy_optimizer.zero_grad()
    policy_loss.backward()
    policy_optimizer.step()
    if update % 10 == 0:
        entropy = distribution.entropy().mean().item()
        print(
            f"update {update}: reward {totals.mean().item():.2f} entropy {entropy:.2f} value {value_loss.item():.3f}"
        )

print("score", rollout(400)[-1].mean().item())
