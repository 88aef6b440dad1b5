"""A deep Q-network steers a cart to a moving flag: replay memory, target network, epsilon-greedy."""

import os
import random
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F

SEED = int(os.environ.get("SEED", "0"))
random.seed(SEED)
torch.manual_seed(SEED)
torch.set_num_threads(1)

GAMMA, BATCH_SIZE, EPISODES, HORIZON = 0.9, 64, 48, 25
EPS_START, EPS_END = 1.0, 0.05


class CartToFlag:
    """A cart with momentum; rewards are the negative distance to a flag that stands elsewhere each time."""

    def reset(self):
        self.x, self.v, self.flag, self.t = random.uniform(-1, 1), 0.0, random.uniform(-1, 1), 0
        return self.state()

    def state(self):
        return [self.x, 5 * self.v, self.flag, self.x - self.flag]

    def step(self, action):
        self.v = 0.7 * self.v + 0.06 * (action - 1)
        self.x = max(-1.5, min(1.5, self.x + self.v))
        self.t += 1
        return self.state(), -abs(self.x - self.flag), self.t >= HORIZON


class QNetwork(nn.Module):
    def __init__(self, n_obs=4, n_actions=3):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(n_obs, 48), nn.Linear(48, 48), nn.Linear(48, n_actions)

    def forward(self, x):
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


policy_net, target_net = QNetwork(), QNetwork()
target_net.load_state_dict(policy_net.state_dict())
target_net.eval()
optimizer = torch.optim.AdamW(policy_net.parameters(), lr=1e-3, amsgrad=True)
memory = deque(maxlen=5000)


def select_action(state, epsilon):
    if random.random() < epsilon:
        return random.randrange(3)
    with torch.no_grad():
        return policy_net(torch.tensor([state])).argmax(1).item()


def optimize():
    if len(memory) < 4 * BATCH_SIZE:
        return None
    states, actions, rewards, following = zip(*random.sample(memory, BATCH_SIZE), strict=True)
    q = policy_net(torch.tensor(states)).gather(1, torch.tensor(actions)[:, None]).squeeze(1)
    with torch.no_grad():  # only time ends an episode, so its last state has a value too
        best = target_net(torch.tensor(following)).max(1).values
    loss = F.smooth_l1_loss(q, torch.tensor(rewards) + GAMMA * best)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()
    return loss.item()


def run_episode(env, epsilon, learn):
    state, total, done = env.reset(), 0.0, False
    while not done:
        action = select_action(state, epsilon)
        following, reward, done = env.step(action)
        total += reward
        if learn:
            memory.append((state, action, reward, following))
            optimize()
            for slow, fast in zip(target_net.parameters(), policy_net.parameters(), strict=True):
                slow.data.lerp_(fast.data, 0.02)
        state = following
    return total / HORIZON


env = CartToFlag()
for episode in range(EPISODES):
    epsilon = max(EPS_END, EPS_START - episode / (0.7 * EPISODES))
    reward = run_episode(env, epsilon, learn=True)
    if episode % 10 == 9:
        print(f"episode {episode + 1}: epsilon {epsilon:.2f}, mean reward {reward:.3f}")

policy_net.eval()
learnt = sum(run_episode(env, 0.0, learn=False) for _ in range(60)) / 60
chance = sum(run_episode(env, 1.0, learn=False) for _ in range(60)) / 60
print(f"learnt {learnt:.3f}, by chance {chance:.3f}")
print("score", 1 - learnt / chance)
