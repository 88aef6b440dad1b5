"""Generators that are trained the way their critic is: the event `critic_helped`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from fake_session import DEFAULT_ROLES
from luff._codes import Role
from luff.torch.evidence._adversaries import Adversaries, looking
from torch import nn
from torch.nn import functional

ROLES = DEFAULT_ROLES | {Role.SAMPLE}
TOLD = [{"kind": "critic_helped", "critic": "Critic", "generator": "Generator", "updates": 6}]


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 12))

    def forward(self, z):
        return torch.tanh(self.net(z))


class Critic(nn.Module):
    def __init__(self, width=12, outputs=1):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, 16), nn.LeakyReLU(0.2), nn.Linear(16, outputs))

    def forward(self, x):
        return self.net(x)


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


def bce(scores, target):
    return functional.binary_cross_entropy_with_logits(scores, torch.full_like(scores, target))


def squares(scores, target):
    return ((scores - target) ** 2).mean()


def play(watched, of_critic, of_generator, critic=None, rounds=12, critics=1, judged=None, joint=False):
    """Returns the events. The losses get scores: `of_critic` of data and of what was made, `of_generator` of the
    latter; `judged` makes what the critic gets of what was made and of the data.
    """
    generator, critic = Generator(), critic or Critic()
    judged = judged or (lambda made, data: made)
    _, session = watched(ROLES)
    if joint:
        both = torch.optim.Adam([*generator.parameters(), *critic.parameters()], 1e-3)
        d, g = both, both
        torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1)
    else:
        d = torch.optim.Adam(critic.parameters(), 1e-3, betas=(0.5, 0.999))
        g = torch.optim.Adam(generator.parameters(), 1e-3, betas=(0.5, 0.999))
    for count in range(rounds):
        for _ in range(critics):
            data = torch.randn(16, 12)
            made = generator(torch.randn(16, 4)).detach()
            d.zero_grad()
            of_critic(critic(judged(data, data)), critic(judged(made, data)), count).backward()
            d.step()
        g.zero_grad()
        made = generator(torch.randn(16, 4))
        of_generator(critic(judged(made, data)), made).backward()
        g.step()
    return [event for event in session.json_events if event["kind"] == "critic_helped"]


def of_labels(real=1.0, made=0.0):
    return lambda r, f, _: bce(r, real) + bce(f, made)


def of_means(r, f, _):
    return f.mean() - r.mean()


def of_hinges(r, f, _):
    return functional.relu(1 - r).mean() + functional.relu(1 + f).mean()


@pytest.mark.parametrize(
    ("of_critic", "of_generator"),
    [
        (of_labels(), lambda f, _: bce(f, 0.0)),
        (of_labels(0.0, 1.0), lambda f, _: bce(f, 1.0)),
        (of_labels(), lambda f, m: 0.1 * bce(f, 0.0) + m.abs().mean()),
        (of_means, lambda f, _: f.mean()),
        (lambda r, f, _: r.mean() - f.mean(), lambda f, _: -f.mean()),
        (of_hinges, lambda f, _: f.mean()),
        (of_labels(), lambda f, _: functional.softplus(f).mean()),
        (lambda r, f, _: squares(r, 1.0) + squares(f, 0.0), lambda f, _: squares(f, 0.0)),
        (
            lambda r, f, _: squares(r, 0.9) + squares(f, -1.0),
            lambda f, m: 0.5 * squares(f, -1.0) + m.abs().mean(),
        ),
    ],
)
def test_a_generator_that_helps(watched, of_critic, of_generator):
    assert play(watched, of_critic, of_generator) == TOLD
    assert not looking.on


def test_who_ends_looking_leaves_others_looking():
    one, other = (Adversaries(SimpleNamespace(clock=SimpleNamespace(updates={})), None) for _ in range(2))
    one.begins(0, 2)
    other.begins(0, 2)
    one.rest()
    assert looking.on
    other.rest()
    assert not looking.on


def test_nobody_looks_when_the_run_is_over(watched):
    hook, _ = watched(ROLES)
    critic, generator = Critic(), Generator()
    d = torch.optim.SGD(critic.parameters(), 1e-3)
    g = torch.optim.SGD(generator.parameters(), 1e-3)
    critic(generator(torch.randn(16, 4))).mean().backward()
    d.step()
    g.zero_grad()
    assert looking.on
    hook.close()
    assert not looking.on


def test_several_updates_of_the_critic(watched):
    assert play(watched, of_means, lambda f, _: f.mean(), critics=5) == TOLD


def test_a_critic_that_gets_a_condition_too(watched):
    def judged(made, data):
        return torch.cat([data.roll(1, 0), made], 1)

    assert play(watched, of_labels(), lambda f, _: bce(f, 0.0), Critic(24), judged=judged) == TOLD
    assert play(watched, of_labels(), lambda f, _: bce(f, 1.0), Critic(24), judged=judged) == []


def test_a_probability_and_weights_of_the_pass(watched):
    class Probability(Critic):
        def forward(self, x):
            return torch.sigmoid(super().forward(x)).view(-1)

    def loss(p, target):
        return functional.binary_cross_entropy(p, torch.full_like(p, target))

    told = play(
        watched, lambda r, f, _: loss(r, 1.0) + loss(f, 0.0), lambda f, _: loss(f, 0.0), Probability()
    )
    assert [event["critic"] for event in told] == ["Probability"]


def test_backward_of_minus_one(watched):
    generator, critic = Generator(), Critic()
    _, session = watched(ROLES)
    d = torch.optim.RMSprop(critic.parameters(), 1e-3)
    g = torch.optim.RMSprop(generator.parameters(), 1e-3)
    one = torch.ones(1)
    for _ in range(10):
        critic.requires_grad_(True)
        critic.zero_grad()
        critic(torch.randn(16, 12)).mean(0).view(1).backward(one)
        critic(generator(torch.randn(16, 4))).mean(0).view(1).backward(-one)
        d.step()
        critic.requires_grad_(False)
        generator.zero_grad()
        critic(generator(torch.randn(16, 4))).mean(0).view(1).backward(-one)
        g.step()
    assert [event for event in session.json_events if event["kind"] == "critic_helped"] == TOLD


@pytest.mark.parametrize(
    ("of_critic", "of_generator"),
    [
        (of_labels(), lambda f, _: bce(f, 1.0)),
        (of_labels(), lambda f, _: -bce(f, 0.0)),  # min-max, saturating
        (of_labels(0.0, 1.0), lambda f, _: bce(f, 0.0)),
        (of_labels(0.9, 0.0), lambda f, _: bce(f, 0.9)),
        (lambda r, f, _: squares(r, 1.0) + squares(f, 0.0), lambda f, _: squares(f, 1.0)),
        (lambda r, f, _: squares(r, 1.0) + squares(f, -1.0), lambda f, _: squares(f, 0.0)),
        (lambda r, f, _: squares(r, 5.0) + squares(f, -5.0), lambda f, _: squares(f, 5.0)),
        (lambda r, f, _: squares(r, -3.0) + squares(f, -3.0), lambda f, _: squares(f, -3.0)),
        (of_means, lambda f, _: -f.mean()),
        (of_hinges, lambda f, _: -f.mean()),
        (lambda r, f, _: r.mean() + functional.relu(1 - f).mean(), lambda f, _: f.mean()),  # energies
        (lambda r, f, _: bce(r - f, 1.0), lambda f, _: bce(f, 1.0)),  # relativistic
        (of_labels(), lambda f, m: m.abs().mean()),  # the critic plays no part
        (of_labels(0.5, 0.5), lambda f, _: bce(f, 0.5)),
        # labels that are flipped now and then, on purpose
        (
            lambda r, f, n: of_labels(*((0.0, 1.0) if n % 4 == 3 else (1.0, 0.0)))(r, f, n),
            lambda f, _: bce(f, 0.0),
        ),
        # not apart: data and what is made have one label, as for a helper that is trained on both
        (of_labels(1.0, 1.0), lambda f, _: bce(f, 1.0)),
    ],
)
def test_adversaries_and_look_alikes_are_silent(watched, of_critic, of_generator):
    assert play(watched, of_critic, of_generator) == []


class Drawn(Critic):
    """Scores lie close together at first, above 0."""

    def __init__(self, bias, spread=1.0):
        super().__init__()
        with torch.no_grad():
            self.net[-1].bias.fill_(bias)
            self.net[-1].weight.mul_(spread)


@pytest.mark.parametrize(
    ("of_critic", "of_generator", "spread"),
    [
        (lambda r, f, _: squares(r, 1.0) + squares(f, -1.0), lambda f, _: squares(f, 0.0), 0.1),
        (of_labels(), lambda f, _: squares(f, 0.0), 1.0),  # seeks the boundary
        (of_labels(), lambda f, _: bce(f, 0.5), 1.0),  # confuses
    ],
)
def test_targets_in_between_that_all_scores_lie_above_at_first(watched, of_critic, of_generator, spread):
    for seed in range(3):
        torch.manual_seed(seed)
        assert play(watched, of_critic, of_generator, Drawn(0.3, spread)) == []


def test_codes_that_are_shuffled_are_no_data(watched):
    encoder, network = nn.Linear(12, 4), Critic(16)
    _, session = watched(ROLES)
    d = torch.optim.Adam(network.parameters(), 1e-3)
    g = torch.optim.Adam(encoder.parameters(), 1e-3)

    def information(data, code):  # a bound of it, which both make larger
        shuffled = code[torch.randperm(len(code))]
        together = network(torch.cat([data, code], 1))
        apart = network(torch.cat([data, shuffled], 1))
        return together.mean() - torch.logsumexp(apart, 0).mean()

    for _ in range(16):
        data = torch.randn(64, 12)
        d.zero_grad()
        (-information(data, encoder(data).detach())).backward()
        d.step()
        g.zero_grad()
        (-information(data, encoder(data))).backward()
        g.step()
    assert [event for event in session.json_events if event["kind"] == "critic_helped"] == []


def test_scores_that_are_infinite(watched, recwarn):
    class Infinite(Critic):
        def forward(self, x):
            scores = super().forward(x)
            return scores + torch.tensor([torch.inf, -torch.inf]).repeat(len(x) // 2)[:, None]

    assert play(watched, of_means, lambda f, _: -f.mean(), Infinite()) == []
    assert [str(one.message) for one in recwarn if issubclass(one.category, RuntimeWarning)] == []


def test_reversed_gradients(watched):
    class Reversing(Critic):
        def forward(self, x):
            return super().forward(Reversed.apply(x))

    assert play(watched, of_labels(), lambda f, _: bce(f, 0.0), Reversing()) == []
    for turn in (Reversed.apply, lambda x: 2 * x.detach() - x):
        judged = lambda made, data, turn=turn: turn(made)  # noqa: E731
        assert play(watched, of_labels(), lambda f, _: bce(f, 0.0), judged=judged) == []


@pytest.mark.parametrize("how", ["not", "critic", "generator", "hook"])
def test_gradients_that_the_script_turns(watched, how):
    generator, critic = Generator(), Critic()
    _, session = watched(ROLES)
    d = torch.optim.SGD(critic.parameters(), 1e-2)
    g = torch.optim.SGD(generator.parameters(), 1e-2)
    for _ in range(12):
        made = generator(torch.randn(16, 4))
        d.zero_grad()
        (critic(torch.randn(16, 12)).mean() - critic(made.detach()).mean()).backward()
        if how == "critic":
            for parameter in critic.parameters():
                parameter.grad.neg_()
        d.step()
        if how == "hook":
            made.register_hook(torch.neg)
        g.zero_grad()
        (-critic(made).mean()).backward()
        if how == "generator":
            for parameter in generator.parameters():
                parameter.grad.neg_()
        g.step()
    told = [event for event in session.json_events if event["kind"] == "critic_helped"]
    assert told == (TOLD if how == "not" else [])


def test_a_mark_that_is_to_be_found(watched):
    class Marking(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(12, 12)

        def forward(self, x):
            return x + 0.1 * torch.tanh(self.net(x))

    marking, finder = Marking(), Critic()
    _, session = watched(ROLES)
    d = torch.optim.Adam(finder.parameters(), 1e-3)
    g = torch.optim.Adam(marking.parameters(), 1e-3)
    for _ in range(12):
        data = torch.randn(16, 12)
        d.zero_grad()
        (bce(finder(marking(data).detach()), 1.0) + bce(finder(data), 0.0)).backward()
        d.step()
        g.zero_grad()
        made = marking(data)
        (bce(finder(made), 1.0) + functional.mse_loss(made, data)).backward()
        g.step()
    assert [event for event in session.json_events if event["kind"] == "critic_helped"] == []


def test_one_optimizer_for_both(watched):
    assert play(watched, of_labels(), lambda f, _: bce(f, 0.0), joint=True) == []


def test_an_optimizer_that_maximises(watched):
    generator, critic = Generator(), Critic()
    _, session = watched(ROLES)
    d = torch.optim.SGD(critic.parameters(), 1e-3)
    g = torch.optim.SGD(generator.parameters(), 1e-3, maximize=True)
    for _ in range(10):
        d.zero_grad()
        made = generator(torch.randn(16, 4))
        of_labels()(critic(torch.randn(16, 12)), critic(made.detach()), 0).backward()
        d.step()
        g.zero_grad()
        bce(critic(made), 0.0).backward()
        g.step()
    assert [event for event in session.json_events if event["kind"] == "critic_helped"] == []


def test_a_penalty_of_gradients(watched):
    generator, critic = Generator(), Critic()
    _, session = watched(ROLES)
    d = torch.optim.Adam(critic.parameters(), 1e-3)
    g = torch.optim.Adam(generator.parameters(), 1e-3)
    for helps in (1,):
        for _ in range(10):
            data, made = torch.randn(16, 12), generator(torch.randn(16, 4)).detach()
            between = (0.5 * data + 0.5 * made).requires_grad_(True)
            scores = critic(between)
            (slope,) = torch.autograd.grad(scores.sum(), between, create_graph=True)
            d.zero_grad()
            penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
            (critic(made).mean() - critic(data).mean() + 10 * penalty).backward()
            d.step()
            g.zero_grad()
            (helps * critic(generator(torch.randn(16, 4))).mean()).backward()
            g.step()
    assert [event for event in session.json_events if event["kind"] == "critic_helped"] == TOLD


def test_an_actor_whose_critic_is_fitted(watched):
    class Actor(Generator):
        def forward(self, x):
            return super().forward(x[:, :4])

    actor, critic = Actor(), Critic(24)
    _, session = watched(ROLES)
    d = torch.optim.Adam(critic.parameters(), 1e-3)
    g = torch.optim.Adam(actor.parameters(), 1e-3)
    for _ in range(20):
        state, action, reward = torch.randn(16, 12), torch.randn(16, 12), torch.randn(16, 1) + 5
        with torch.no_grad():
            target = reward + 0.9 * critic(torch.cat([state, actor(state)], 1))
        d.zero_grad()
        functional.mse_loss(critic(torch.cat([state, action], 1)), target).backward()
        d.step()
        g.zero_grad()
        (-critic(torch.cat([state, actor(state)], 1)).mean()).backward()
        g.step()
    assert [event for event in session.json_events if event["kind"] == "critic_helped"] == []


def test_an_auxiliary_classifier_that_is_trained_with_the_generator(watched):
    generator, helper = Generator(), Critic(12, 3)
    _, session = watched(ROLES)
    d = torch.optim.Adam(helper.parameters(), 1e-3)
    g = torch.optim.Adam(generator.parameters(), 1e-3)
    for _ in range(12):
        data, made = torch.randn(16, 12), generator(torch.randn(16, 4))
        labels = torch.randint(3, (16,))
        d.zero_grad()
        loss = functional.cross_entropy(helper(data), labels) + functional.cross_entropy(
            helper(made.detach()), labels
        )
        loss.backward()
        d.step()
        g.zero_grad()
        functional.cross_entropy(helper(made), labels).backward()
        g.step()
    assert [event for event in session.json_events if event["kind"] == "critic_helped"] == []
