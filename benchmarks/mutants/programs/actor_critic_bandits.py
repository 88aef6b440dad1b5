"""Advantage actor-critic on slot machines that tire: environments in NumPy side by side, two optimizers."""

import os

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.distributions import Categorical

SEED = int(os.environ.get("SEED", "0"))
torch.manual_seed(SEED)
torch.set_num_threads(1)

GAMMA, ENTROPY_WEIGHT, N_ENVS, ROLLOUT, N_UPDATES = 0.9, 0.01, 32, 8, 200


class TiringBandits:
    """Arms pay according to a context that drifts; an arm that was pulled pays less for a while."""

    arms, features = 4, 5

    def __init__(self, n, seed):
        self.rng = np.random.default_rng(seed)
        self.weights = np.random.default_rng(7).normal(size=(self.features, self.arms))
        self.context = self.rng.normal(size=(n, self.features))
        self.fatigue = np.zeros((n, self.arms))

    def observe(self):
        return torch.as_tensor(np.hstack([self.context, self.fatigue]), dtype=torch.float32)

    def step(self, actions):
        rows = np.arange(len(actions))
        chance = 1 / (1 + np.exp(-2 * self.context @ self.weights))
        pay = chance[rows, actions] * (1 - 0.5 * self.fatigue[rows, actions])
        reward = (self.rng.random(len(actions)) < pay).astype(np.float32)
        self.fatigue *= 0.6
        self.fatigue[rows, actions] = 1.0
        self.context = 0.8 * self.context + 0.6 * self.rng.normal(size=self.context.shape)
        return self.observe(), torch.from_numpy(reward)


def network(outputs, hidden=64):
    inputs = TiringBandits.features + TiringBandits.arms
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs))


def greedy_reward(actor, steps=60):
    env = TiringBandits(200, seed=SEED + 1000)
    observation, total = env.observe(), 0.0
    for _ in range(steps):
        with torch.no_grad():
            actions = actor(observation).argmax(dim=-1)
        observation, reward = env.step(actions.numpy())
        total += reward.mean().item()
    return total / steps


actor, critic = network(TiringBandits.arms), network(1)
actor_optimizer = optim.Adam(actor.parameters(), lr=5e-3)
critic_optimizer = optim.Adam(critic.parameters(), lr=1e-2)
env = TiringBandits(N_ENVS, seed=SEED)
observation = env.observe()

for update in range(1, N_UPDATES + 1):
    observations, actions, rewards = [], [], []
    for _ in range(ROLLOUT):
        with torch.no_grad():
            action = Categorical(logits=actor(observation)).sample()
        observations.append(observation)
        actions.append(action)
        observation, reward = env.step(action.numpy())
        rewards.append(reward)

    with torch.no_grad():
        future = critic(observation).squeeze(-1)
    returns = []
    for reward in reversed(rewards):
        future = reward + GAMMA * future
        returns.insert(0, future)
    returns, states, taken = torch.cat(returns), torch.cat(observations), torch.cat(actions)

    values = critic(states).squeeze(-1)
    critic_loss = F.mse_loss(values, returns)
    critic_optimizer.zero_grad()
    critic_loss.backward()
    critic_optimizer.step()

    policy = Categorical(logits=actor(states))
    advantages = returns - values.detach()
    actor_loss = -(policy.log_prob(taken) * advantages).mean() - ENTROPY_WEIGHT * policy.entropy().mean()
    actor_optimizer.zero_grad()
    actor_loss.backward()
    actor_optimizer.step()
    if update % 40 == 0:
        print(
            f"{update:4d} reward {torch.cat(rewards).mean():.3f} critic {critic_loss.item():.3f} "
            f"entropy {policy.entropy().mean().item():.3f} greedy {greedy_reward(actor):.3f}"
        )
print("score", greedy_reward(actor))
