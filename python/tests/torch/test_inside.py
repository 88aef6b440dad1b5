"""Evidence from inside a step: attention, codes, rounding, accumulation, and models that see the next token."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import cases
import pytest
import torch
import torch.nn.functional as F
from luff.torch.evidence import _evidence
from luff.torch.evidence._rounding import Rounding
from test_evidence import told
from torch import nn

SAMPLE = 14


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A loaded machine may keep a child waiting for long."""
    monkeypatch.setattr(_evidence, "_WAIT_S", 60.0)


def tokens(count, length=12, vocabulary=11):
    """Yields batches of ids, each with the ids that follow."""
    for seed in range(count):
        ids = torch.randint(0, vocabulary, (4, length + 1), generator=torch.Generator().manual_seed(seed))
        yield ids[:, :-1], ids[:, 1:]


class Speaker(nn.Module):
    """One layer of attention over tokens, with its heads in a dimension of their own."""

    def __init__(self, masked=True, sharp=1.0, fused=False, vocabulary=11, width=16):
        super().__init__()
        self.masked, self.sharp, self.fused = masked, sharp, fused
        self.embedding, self.qkv = nn.Embedding(vocabulary, width), nn.Linear(width, 3 * width)
        self.place, self.head = nn.Parameter(torch.randn(64, width)), nn.Linear(width, vocabulary)

    def forward(self, ids):
        x = self.embedding(ids) + self.place[: ids.shape[1]]
        rows, length, width = x.shape
        q, k, v = (
            part.view(rows, length, 2, width // 2).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)
        )
        if self.fused:
            mixed = F.scaled_dot_product_attention(q * self.sharp, k, v, is_causal=self.masked)
        else:
            scores = self.sharp * q @ k.transpose(2, 3) / (width // 2) ** 0.5
            if self.masked:
                scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -torch.inf)
            mixed = scores.softmax(-1) @ v
        return self.head(x + mixed.transpose(1, 2).reshape(rows, length, width))


def speak(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for ids, following in tokens(steps):
        optimizer.zero_grad()
        nn.CrossEntropyLoss()(model(ids).flatten(0, 1), following.reshape(-1)).backward()
        optimizer.step()


@pytest.mark.parametrize("masked", [True, False])
def test_a_model_is_asked_whether_it_sees_the_next_tokens(watched, masked):
    hook, session = watched({SAMPLE})
    model = Speaker(masked)
    before = torch.get_rng_state()
    speak(model, 6)
    hook.close()
    assert torch.equal(before, torch.get_rng_state())
    assert model.training
    events = told(session, "causal")
    assert len(events) == 1
    assert events[0]["sees"] is not masked
    assert events[0]["length"] == 12
    assert (events[0]["change"] > 1e-4) is not masked
    assert events[0]["itself"] > 1e-4  # the test is meaningful


@pytest.mark.parametrize("masked", [True, False])
def test_a_model_that_computes_its_loss_by_a_function_is_asked_too(watched, masked):
    class Whole(Speaker):
        def forward(self, ids, following):
            scores = super().forward(ids)
            return scores, F.cross_entropy(scores.flatten(0, 1), following.reshape(-1))

    hook, session = watched({SAMPLE})
    model = Whole(masked)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for ids, following in tokens(6):
        optimizer.zero_grad()
        model(ids, following)[1].backward()
        optimizer.step()
    hook.close()
    (event,) = told(session, "causal")
    assert event["sees"] is not masked


@pytest.mark.parametrize(
    ("part", "cut"),
    [
        (slice(1, None), (1, 11, 12)),
        (slice(None, -1), (0, 11, 12)),
        (slice(1, -1), (1, 10, 12)),
        (slice(5, None), None),
        (slice(None), None),
    ],
)
@pytest.mark.parametrize("functional", [False, True])
def test_which_outputs_meet_the_targets_is_told_once_for_a_step(watched, part, cut, functional):
    hook, session = watched({SAMPLE})
    model = Speaker()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = F.cross_entropy if functional else nn.CrossEntropyLoss()
    for ids, following in tokens(6):
        optimizer.zero_grad()
        loss(model(ids)[:, part].transpose(1, 2), following[:, part]).backward()
        optimizer.step()
    hook.close()
    events = told(session, "places_cut")
    assert [(e["start"], e["places"], e["of"]) for e in events] == ([cut] if cut else [])


@pytest.mark.parametrize("masked", [True, False])
def test_a_model_whose_targets_are_its_input_is_asked_too(watched, masked):
    hook, session = watched({SAMPLE})
    model = Speaker(masked)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for ids, _ in tokens(6):
        optimizer.zero_grad()
        nn.CrossEntropyLoss()(model(ids).flatten(0, 1), ids.reshape(-1)).backward()
        optimizer.step()
    hook.close()
    (event,) = told(session, "causal")
    assert (event["copied"], event["sees"]) == (True, not masked)


def test_a_model_that_mixes_the_rows_of_a_batch_is_found(watched):
    class Mixing(Speaker):
        def forward(self, ids):
            return super().forward(ids.T).transpose(0, 1)

    for model, mixes in ((Speaker(True), False), (Mixing(True), True)):
        hook, session = watched({SAMPLE})
        speak(model, 6)
        hook.close()
        (event,) = told(session, "causal")
        assert event["copied"] is False
        assert (event["across"] > 1e-3) is mixes


class Translator(nn.Module):
    """Reads a source, and predicts its translation from the part that is known."""

    def __init__(self, directions=1):
        super().__init__()
        self.source, self.known = nn.Embedding(11, 16), nn.Embedding(11, 16)
        self.reads = nn.GRU(16, 16, batch_first=True)
        self.writes = nn.GRU(16, 16, batch_first=True, bidirectional=directions == 2)
        self.head = nn.Linear(16 * directions, 11)

    def forward(self, source, known):
        state = self.reads(self.source(source))[1]
        state = state.expand(2 if self.writes.bidirectional else 1, -1, -1).contiguous()
        return self.head(self.writes(self.known(known), state)[0])


def translate(model, given):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sources = list(tokens(6, length=8))
    for (ids, following), (source, _) in zip(tokens(6), sources, strict=True):
        optimizer.zero_grad()
        known = following if given == "answer" else ids
        nn.CrossEntropyLoss()(model(source.flip(1), known).flatten(0, 1), following.reshape(-1)).backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("given", "directions", "copied", "sees"),
    [("answer", 1, True, False), ("past", 1, False, False), ("past", 2, False, True)],
)
def test_a_decoder_is_asked_about_the_tokens_that_it_gets(watched, given, directions, copied, sees):
    hook, session = watched({SAMPLE})
    translate(Translator(directions), given)
    hook.close()
    (event,) = told(session, "causal")
    assert (event["copied"], event["sees"]) == (copied, sees)
    assert event["itself"] > 1e-4


@pytest.mark.parametrize("kind", ["autoencoder", "labels"])
def test_a_source_that_is_the_target_and_labels_that_are_passed_along_are_no_leak(watched, kind):
    class Whole(Speaker):
        def forward(self, ids, labels):
            scores = super().forward(ids)
            return scores, F.cross_entropy(scores[:, :-1].flatten(0, 1), labels[:, 1:].reshape(-1))

    hook, session = watched({SAMPLE})
    if kind == "labels":
        model = Whole()
        for ids, _ in tokens(6):
            model(ids, ids.clone())[1].backward()
            torch.optim.SGD(model.parameters(), lr=0.01).step()
    else:
        model = Translator()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for ids, following in tokens(6):
            whole = torch.cat([ids[:, :1], following], 1)
            optimizer.zero_grad()
            nn.CrossEntropyLoss()(model(whole, ids).flatten(0, 1), following.reshape(-1)).backward()
            optimizer.step()
    hook.close()
    (event,) = told(session, "causal")
    assert (event["copied"], event["sees"]) == (False, False)


def test_an_encoder_that_the_script_calls_itself_may_see_the_whole_source(watched):
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(11, 16)
            self.reads = nn.GRU(16, 8, batch_first=True, bidirectional=True)

        def forward(self, ids):
            return self.reads(self.words(ids))[0]

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.writes = nn.Embedding(11, 16), nn.GRU(16, 16, batch_first=True)
            self.head = nn.Linear(16, 11)

        def forward(self, ids, memory):
            return self.head(self.writes(self.words(ids), memory.mean(1)[None].contiguous())[0])

    hook, session = watched({SAMPLE})
    encoder, decoder = Encoder(), Decoder()
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.01)
    for ids, following in tokens(6):
        whole = torch.cat([ids[:, :1], following], 1)
        optimizer.zero_grad()
        out = decoder(whole[:, :-1], encoder(whole))
        nn.CrossEntropyLoss()(out.flatten(0, 1), whole[:, 1:].reshape(-1)).backward()
        optimizer.step()
    hook.close()
    (event,) = told(session, "causal")
    assert (event["copied"], event["sees"]) == (False, False)
    assert event["itself"] > 1e-4


def test_labels_whose_score_gets_a_margin_are_no_input(watched):
    class Frames(nn.Module):
        def __init__(self):
            super().__init__()
            self.reads, self.head = nn.GRU(5, 16, batch_first=True), nn.Linear(16, 11)

        def forward(self, x, labels):
            scores = self.head(self.reads(x)[0])
            return scores - 0.35 * F.one_hot(labels, 11)

    hook, session = watched({SAMPLE})
    model = Frames()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for labels, _ in tokens(6):
        optimizer.zero_grad()
        out = model(torch.randn(*labels.shape, 5), labels)
        nn.CrossEntropyLoss()(out.flatten(0, 1), labels.flatten()).backward()
        optimizer.step()
    hook.close()
    assert told(session, "causal") == []


def test_calls_before_the_training_are_not_kept(watched):
    hook, _ = watched({SAMPLE})
    model = Speaker()
    before = []
    for ids, _ in tokens(4):
        own = ids.clone()
        before.append(weakref.ref(own))
        with torch.no_grad():
            model(own)
    del own
    gc.collect()
    assert [reference() for reference in before] == [None] * 4
    speak(model, 2)
    hook.close()


def test_targets_that_are_no_next_tokens_raise_no_question(watched):
    hook, session = watched({SAMPLE})
    model = Speaker(masked=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for ids, _ in tokens(6):
        optimizer.zero_grad()
        nn.CrossEntropyLoss()(model(ids).flatten(0, 1), ids.flip(1).reshape(-1)).backward()
        optimizer.step()
    hook.close()
    assert told(session, "causal") == []


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("sharp", "low", "high"), [(1.0, 0.0, 0.5), (1e4, 0.99, 1.0)])
def test_how_sharp_attention_is(watched, fused, sharp, low, high):
    _, session = watched({SAMPLE})
    speak(Speaker(sharp=sharp, fused=fused), 4)
    events = told(session, "inside")
    assert events
    for event in events:
        assert event["codes"] == []
        (attention,) = event["attention"]
        assert (attention["heads"], attention["queries"], attention["keys"]) == (2, 12, 12)
        assert low <= attention["least"] <= attention["top"] <= high
        assert 0 <= attention["entropy"] <= 1


def test_a_softmax_that_weighs_nothing_is_no_attention(watched):
    _, session = watched({SAMPLE})
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in cases.batches(4):
        optimizer.zero_grad()
        (model(x).softmax(1).log() * -F.one_hot(y, 3)).sum(1).mean().backward()
        optimizer.step()
    assert told(session, "inside") == []


def test_codes_that_are_drawn(watched):
    class Drawn(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean, self.log = nn.Linear(6, 4), nn.Linear(6, 4)
            self.out = nn.Linear(4, 6)

        def forward(self, x):
            mean, log = self.mean(x), self.log(x)
            self.nats = (0.5 * (mean**2 + log.exp() - 1 - log)).sum(1).mean()
            return self.out(mean + torch.randn_like(mean) * (0.5 * log).exp())

    _, session = watched({SAMPLE})
    model = Drawn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    nats = []
    for x in (torch.randn(64, 6, generator=torch.Generator().manual_seed(n)) for n in range(3)):
        optimizer.zero_grad()
        (F.mse_loss(model(x), x) + model.nats).backward()
        nats.append(float(model.nats.detach()))
        optimizer.step()
    events = told(session, "inside")
    assert [event["codes"][0]["nats"] for event in events] == pytest.approx(nats, rel=1e-4)
    assert all(event["codes"][0]["width"] == 4 for event in events)


@pytest.mark.parametrize(("rate", "changed"), [(1e-9, 0.0), (10.0, 0.9)])
def test_what_rounding_leaves_of_an_update(watched, rate, changed):
    _, session = watched({SAMPLE})
    model = nn.Linear(6, 3).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for x, y in cases.batches(8):
        optimizer.zero_grad()
        F.cross_entropy(model(x.bfloat16()).float(), y).backward()
        optimizer.step()
    events = told(session, "rounding")
    assert events
    (parameter,) = events[0]["parameters"]  # a bias is not a matrix
    assert (parameter["name"], parameter["dtype"], parameter["looked"]) == ("Linear_weight", "bfloat16", 18)
    assert parameter["moving"] == 18
    share = parameter["changed"] / parameter["moving"]
    assert share == 0 if changed == 0 else share > changed
    assert events[0]["lr"] == rate


def rounding_of(optimizer):
    names = SimpleNamespace(parameter=lambda parameter: "weight")
    context, rounding = SimpleNamespace(session=None, names=names), Rounding()
    for update in (1, 2):
        rounding.update_begins(0, update, optimizer, context)
    return rounding.waiting


def optimizer_of(rate, slope=1.0):
    weight = nn.Parameter(torch.ones(3, 6))
    weight.grad = torch.full((3, 6), slope)
    return SimpleNamespace(param_groups=[{"lr": rate, "params": [weight]}])


@pytest.mark.parametrize(
    ("rate", "told"),
    [
        (0.5, 0.5),
        (torch.tensor(0.5), 0.5),
        (torch.tensor(0.5, device="meta"), -1.0),  # to ask an accelerator is to wait for it
        (None, -1.0),
    ],
)
def test_a_learning_rate_is_told_where_it_can_be_read(rate, told):
    (event,) = rounding_of(optimizer_of(rate))
    assert event["lr"] == told
    assert event["parameters"][0]["moving"] == 18


def test_weights_that_an_update_does_not_move_are_not_rounded():
    (event,) = rounding_of(optimizer_of(0.5, float("inf")))
    assert event["parameters"][0]["moving"] == 0
    fused = optimizer_of(0.5)
    fused.found_inf = torch.tensor(1.0, device="meta")  # a fused optimizer skips by it, on the device
    assert rounding_of(fused) == []


@pytest.mark.parametrize("factor", [1.0, 0.25])
def test_the_factor_of_accumulated_losses(watched, factor):
    _, session = watched({SAMPLE})
    model = nn.Linear(6, 3)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, (x, y) in enumerate(cases.batches(8), 1):
        loss = criterion(model(x), y)
        (loss if factor == 1 else loss * factor).backward()
        if number % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
    events = told(session, "accumulation")
    assert len(events) == 2
    for event in events:
        assert (event["passes"], event["added"], event["untouched"]) == (4, True, True)
        assert event["factors"] == pytest.approx([factor] * 4)


def test_gradients_that_are_divided_afterwards_are_not_untouched(watched):
    _, session = watched({SAMPLE})
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, (x, y) in enumerate(cases.batches(4), 1):
        nn.CrossEntropyLoss()(model(x), y).backward()
        if number % 4 == 0:
            for parameter in model.parameters():
                parameter.grad /= 4
            optimizer.step()
    (event,) = told(session, "accumulation")
    assert event["untouched"] is False


def test_one_pass_for_an_update_tells_nothing(watched):
    _, session = watched({SAMPLE})
    speak(Speaker(), 8)
    assert told(session, "accumulation") == []


@pytest.mark.parametrize(
    ("dim", "crossed"),
    [(-1, None), (3, None), (2, 1), (1, 1), (0, 1)],
    ids=["last", "keys", "queries", "heads", "rows"],
)
def test_attention_over_another_axis_is_told(watched, dim, crossed):
    class Crossed(Speaker):
        def forward(self, ids):
            x = self.embedding(ids)
            rows, length, width = x.shape
            q, k, v = (p.view(rows, length, 2, -1).transpose(1, 2) for p in self.qkv(x).chunk(3, dim=-1))
            mixed = F.dropout(F.softmax(q @ k.transpose(2, 3), dim=dim), 0.1) @ v
            return self.head(x + mixed.transpose(1, 2).reshape(rows, length, width))

    _, session = watched({SAMPLE})
    speak(Crossed(), 3)
    assert [event.get("crossed") for event in told(session, "inside")] == [crossed] * 3


@pytest.mark.parametrize(
    "mix",
    [
        lambda s, v: (s.softmax(1) / s.softmax(1).sum(2, keepdim=True)) @ v,  # slots
        lambda s, v: s.softmax(1).transpose(1, 2) @ v,
        lambda s, v: torch.einsum("bqk,bqd->bkd", s.softmax(1), v),
        lambda s, v: (v.transpose(1, 2) @ s.softmax(1)).transpose(1, 2),
    ],
)
def test_weights_of_other_axes_that_fit_their_product_are_nothing(mix):
    from luff.torch.capture._graphs import nodes_behind
    from luff.torch.evidence._graph_values import is_crossed, users_of

    x = torch.randn(2, 6, 6, requires_grad=True)
    nodes = list(nodes_behind([mix(x @ x, x).sum().grad_fn], 100))
    users = users_of(nodes)
    assert not any(is_crossed(node.name(), node, users) for node in nodes)


class Inside(Speaker):
    """Computes its loss itself and returns nothing else."""

    def __init__(self, shift, masked=True):
        super().__init__(masked)
        self.shift = shift

    def forward(self, ids, labels):
        scores = super().forward(ids)
        if self.shift:
            scores, labels = scores[:, :-1], labels[:, 1:]
        return nn.CrossEntropyLoss()(scores.reshape(-1, 11), labels.reshape(-1))


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("own", [False, True])
def test_a_model_that_returns_its_loss_only_is_asked_for_what_the_loss_gets(watched, shift, masked, own):
    hook, session = watched({SAMPLE})
    model = Inside(shift, masked)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for ids, _ in tokens(6):
        optimizer.zero_grad()
        model(ids, labels=ids.clone() if own else ids).backward()
        optimizer.step()
    hook.close()
    (event,) = told(session, "causal")
    assert (event["copied"], event["sees"]) == (not shift, not masked)
    assert (event["elsewhere"], event["alone"]) == (False, False)


def test_ids_that_an_encoder_gets_are_no_input_of_what_another_model_says(watched):
    """An autoencoder of text in two models: the encoder sees no later tokens, the decoder gets its last state only."""

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.reads = nn.Embedding(11, 11), nn.GRU(11, 11, batch_first=True)

        def forward(self, ids):
            return self.reads(self.words(ids))

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.writes, self.head = nn.GRU(11, 16, batch_first=True), nn.Linear(16, 11)

        def forward(self, state, length):
            return self.head(self.writes(state[0][:, None].expand(-1, length, -1))[0])

    hook, session = watched({SAMPLE})
    encoder, decoder = Encoder(), Decoder()
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.01)
    for ids, _ in tokens(6):
        optimizer.zero_grad()
        out = decoder(encoder(ids)[1], 12)
        nn.CrossEntropyLoss()(out.flatten(0, 1), ids.flatten()).backward()
        optimizer.step()
    hook.close()
    (event,) = told(session, "causal")
    assert (event["copied"], event["sees"], event["elsewhere"]) == (True, False, True)


def test_a_table_of_words_outside_of_the_model_says_nothing(watched):
    hook, session = watched({SAMPLE})
    words, model = nn.Embedding(11, 16), nn.GRU(16, 11, batch_first=True)
    optimizer = torch.optim.SGD([*words.parameters(), *model.parameters()], lr=0.01)
    for ids, _ in tokens(6):
        optimizer.zero_grad()
        nn.CrossEntropyLoss()(model(words(ids))[0].flatten(0, 1), ids.flatten()).backward()
        optimizer.step()
    hook.close()
    (event,) = told(session, "causal")
    assert event["elsewhere"] and event["alone"]


def test_what_codes_each_token_alone_may_be_an_autoencoder(watched):
    hook, session = watched({SAMPLE})
    model = nn.Sequential(nn.Embedding(11, 4), nn.Tanh(), nn.Linear(4, 11))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for ids, _ in tokens(6):
        optimizer.zero_grad()
        nn.CrossEntropyLoss()(model(ids).flatten(0, 1), ids.flatten()).backward()
        optimizer.step()
    hook.close()
    (event,) = told(session, "causal")
    assert (event["copied"], event["alone"], event["elsewhere"]) == (True, True, False)


def test_scores_in_another_form_are_those_of_the_model(watched):
    hook, session = watched({SAMPLE})
    model = Speaker()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for ids, _ in tokens(6):
        optimizer.zero_grad()
        scores = (model(ids) / 0.7).transpose(1, 2).float().log_softmax(1)
        F.nll_loss(scores, ids).backward()
        optimizer.step()
    hook.close()
    (event,) = told(session, "causal")
    assert (event["copied"], event["sees"], event["elsewhere"]) == (True, False, False)


@pytest.mark.parametrize("kind", ["cleared", "attack", "single"])
def test_targets_of_passes_that_were_cleared(watched, kind):
    _, session = watched({SAMPLE})
    model = nn.Linear(6, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for number, (x, y) in enumerate(cases.batches(16)):
        if kind == "attack":
            y = torch.tensor([0, 1, 2] * 100)[: len(y)]
        if kind == "single" and number % 4 < 3:
            x, y = x[:1], y[:1]
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        if number % 4 == 3:
            optimizer.step()
    events = told(session, "accumulation")
    assert [event["passes"] for event in events] == [4] * 4
    assert events[0]["targets"][0] is None and events[1]["targets"][0] is not None
    for event in events:
        known = [one for one in event["targets"] if one is not None]
        assert len(event["targets"]) == 4 and len(known) >= 3
        assert (len(set(known)) == 1) is (kind == "attack")
        assert (len({one for one in event["sizes"] if one is not None}) == 1) is (kind != "single")


@pytest.mark.parametrize("inner", ["all", "head", "none"])
def test_weights_that_inner_steps_move_between_passes(watched, inner):
    _, session = watched({SAMPLE})
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    adapted = {"all": model, "head": model[2], "none": nn.Identity()}[inner]
    kept = []
    for number, (x, y) in enumerate(cases.batches(12)):
        if number % 4 == 0:
            kept = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            if number % 4 < 3:
                for parameter in adapted.parameters():
                    parameter -= 0.1 * parameter.grad
                continue
            for parameter, before in zip(model.parameters(), kept, strict=True):
                parameter.copy_(before)
        optimizer.step()
    events = told(session, "accumulation")
    assert [(event["passes"], event["added"]) for event in events] == [(4, False)] * 3
    assert {event["moved"] for event in events} == {inner != "none"}
