"""Results that nobody uses, in texts of functions: what is found, and what looks alike and is right."""

import ast
import time

import pytest
import torch
from luff.torch.source._flow import losing
from luff.torch.source._imports import Names
from luff.torch.source._pure import is_pure_function, is_written_in_place, only_tensors_have
from luff.torch.source._statements import useless
from luff.torch.source._text import function_of, is_of_user, text_of

HEAD = """
import torch
import numpy as np
import torch.nn as nn
import torch.nn.functional as F

criterion = nn.MSELoss()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(4)
        self.body = nn.Sequential(nn.Linear(4, 4))
        self.act = nn.ReLU(inplace=True)
        self.lstm = nn.LSTM(4, 4)
        self.tap = nn.Identity()

    def forward(self, x, mask=None):
"""


def found(lines, *, tensors=()):
    """Returns causes and names of what is found in a forward pass of these lines."""
    body = "".join(f"        {line}\n" for line in lines.strip("\n").split("\n"))
    text = text_of(HEAD + body)
    node = next(
        one for one in ast.walk(text.tree) if isinstance(one, ast.FunctionDef) and one.name == "forward"
    )
    names = Names(text.nodes)
    hits = [
        *useless(
            node,
            names,
            lambda one: (
                {**dict.fromkeys(tensors, True), "critic": False}.get(one.id)
                if isinstance(one, ast.Name)
                else None
            ),
        ),
        *losing(node, names, text.tree),
    ]
    return [(one.cause, one.name) for one in hits]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("optimizer.zero_grad\nloss.backward()", ("not_called", "optimizer.zero_grad")),
        ("self.scheduler.step", ("not_called", "self.scheduler.step")),
        ("loss.backward", ("not_called", "loss.backward")),
        ("weight.data.clamp_", ("not_called", "weight.data.clamp_")),
        ("model.eval", ("mode_not_called", "model.eval")),
        ("x.clamp(0, 1)\nreturn x", ("dropped", "x")),
        ("x.view(-1, 4)\nreturn x", None),  # the word of others, too: only where x is known
        ("x.unsqueeze(1)\nreturn x", ("dropped", "x")),
        ("torch.clamp(x, 0, 1)\nreturn x", ("dropped", "x")),
        ("F.normalize(x, dim=1)\nreturn x", ("dropped", "x")),
        ("F.dropout(x, 0.5, self.training)\nreturn x", ("dropped", "x")),
        ("self.drop(x)\nreturn x", ("dropped", "x")),
        ("nn.ReLU()\nreturn x", ("dropped", "")),
        ("x.masked_fill(mask, -1e9)\nreturn x.softmax(-1)", ("dropped", "x")),
        ("np.clip(x, 0, 1)\nreturn x", ("dropped", "x")),
        ("for p in self.parameters():\n    p.data.clamp(-1, 1)", ("dropped", "p.data")),
        ("for p in self.parameters():\n    p.grad.data.mul(0.5)", ("dropped", "p.grad.data")),
        ("lr == 0.1\nreturn x", ("compared", "lr")),
        ("loss + penalty\nreturn loss", ("compared", "loss")),
        ("for p in self.parameters():\n    p.requires_grad == False", ("compared", "p.requires_grad")),
        ("group['lr'] == lr / 10", ("compared", "group['lr']")),
        ("loss = F.mse_loss(x, y)\n+ self.aux(x)\nreturn loss", ("cut_off", "self.aux(x)")),
        ("loss =+ F.mse_loss(x, y)\nreturn loss", ("sign_for_sum", "loss")),
        ("h = self.first(x)\nh = self.second(x)\nreturn h", ("overwritten", "h")),
        ("loss = F.l1_loss(a, b)\nloss = F.mse_loss(a, b)\nloss.backward()", ("overwritten", "loss")),
        ("loss = criterion(a, b)\nloss = criterion(c, b)\nloss.backward()", ("overwritten", "loss")),
        ("for t in terms:\n    loss = criterion(t, y)\nloss.backward()", ("last_alone", "loss")),
        (
            "for x, y in it:\n    out = net(x)\n    loss = own(out, y)\n    total += loss.item()\nloss.backward()",
            ("last_alone", "loss"),
        ),
        (
            "for x, y in it:\n    with torch.autocast('cpu'):\n        loss = own(net(x), y)\n(loss + p).backward()",
            ("last_alone", "loss"),
        ),
        ("soft = F.kl_div(a, b) * 4\nhard = F.cross_entropy(x, y)\nhard.backward()", ("never_read", "soft")),
        ("q = torch.min(self.q(s, a), self.q(s, a))\nreturn q", ("same_operands", "self.q(s, a)")),
        ("return criterion(x, x)", ("same_operands", "x")),
        ("return min(q1, q1)", ("same_operands", "q1")),
        (
            "for b in it:\n    loss = net(b)\n    loss.backward()\n    continue\n    opt.step()",
            ("unreachable", "opt.step"),
        ),
        (
            "for b in it:\n    net(b).backward()\n    opt.step()\n    continue\n    old(b).backward()\n    opt.step()",
            None,
        ),
        (
            "for x, y in train:\n    pass\nfor xb, yb in train:\n    loss = criterion(net(x), y)\n"
            "    loss.backward()\n    opt.step()",
            ("other_variable", "xb, yb"),
        ),
    ],
)
def test_mistakes(lines, expected):
    assert found(lines) == ([expected] if expected else [])


def test_a_method_of_the_file_is_not_that_of_tensors():
    lines = "critic.clamp(0.01)\nreturn critic"
    assert found(lines.replace("critic", "x")) == [("dropped", "x")]
    source = HEAD + "        x.clamp(0.01)\n        return x\n\n    def clamp(self, bound):\n        pass\n"
    text = text_of(source)
    node = next(one for one in text.nodes if isinstance(one, ast.FunctionDef) and one.name == "forward")
    assert list(useless(node, Names(text.nodes), lambda _: None)) == []


def test_long_loops_take_no_long_time():
    lines = [f"    a{i} = net(x{i}, [y{i} + {i} for _ in z])" for i in range(400)]
    began = time.thread_time()
    assert found("\n".join(["for x, y in it:", *lines, "loss.backward()"])) == []
    assert time.thread_time() - began < 2


def test_words_that_others_have_need_a_tensor():
    assert found("x.view(-1, 4)\nx.float()\nreturn x", tensors=("x",)) == [("dropped", "x"), ("dropped", "x")]
    assert found("model.to(device)\nbatch.to(device)\nmodel.float()\nreturn model(batch)") == []


@pytest.mark.parametrize(
    "lines",
    [
        # calls that do something, or may
        "optimizer.zero_grad()\nloss.backward()\nmodel.train()\nmodel.to(device)\nwriter.add(x)\nlog.log(x)",
        "seen.add(x)\nnames.sort()\nax.scatter(x, x)\ncomm.gather(x)\npool.map(x)\nhandler.detach()\nplt.hist(x)",
        "x.clamp_(0, 1)\nx.requires_grad_()\nx.retain_grad()\nx.register_hook(print)\nF.relu_(x)\nreturn x",
        "F.relu(x, inplace=True)\nF.dropout(x, 0.5, True, True)\ntorch.clamp(x, 0, 1, out=x)\nreturn x",
        "np.clip(x, 0, 1, out=x)\nreturn x",
        "self.body(x)\nself.norm(x)\nself.lstm(x)\nself.act(x)\nself.hooked(x)\nself.tap(x)\nreturn x",
        "loss.item()\nx.cpu()\ntorch.cuda.synchronize()\ntorch.zeros(1).cuda()\ntorch.rand(2)\nx.mean()\nreturn x",
        "try:\n    x.view(-1, 4)\n    torch.clamp(x, 0, 1)\nexcept RuntimeError:\n    raise\nreturn x",
        "with torch.profiler.profile():\n    torch.clamp(x, 0, 1)\nreturn x",
        "'a text'\n...\nx\nself.shape\ndf.head",
        "a >> b\na | b\na < b",
        "model.steps == other.steps\na == load(b)\nx * 1.5\nreturn x",  # assertions, and work that is timed
        "out = F.max_pool2d(x, 2)\nout = self.first(x)\nreturn out",  # left from an edit, and nothing depends on it
        "data.contiguous()\nself.ctc[0].softmax(x)\nself.transform.inverse(x)\nreturn data, x",
        # values that are read
        "h = self.first(x)\nh = self.second(h)\nreturn h",
        "h = self.first(x)\nif mask is not None:\n    h = self.second(x)\nreturn h",
        "h = self.first(x)\nyield h\nh = self.second(x)\nreturn h",
        "h = step(x)\nh = step(y)\nreturn h",  # who knows what a call does
        "h = torch.rand(3)\nh = torch.rand(3, 2)\nreturn h",
        "loss = 0\nfor t in terms:\n    loss += criterion(t, y)\nloss.backward()",
        "for t in terms:\n    loss = criterion(t, y)\n    loss.backward()",
        "for t in terms:\n    loss = criterion(t, y)\n    losses.append(loss)\nloss.backward()",
        "for t in terms:\n    loss = criterion(t, y)\nprint(loss)",
        "for t in steps:\n    out, h = cell(x[t], h)\n    loss = own(out, y)\nloss.backward()",  # a recurrence
        "for t in steps:\n    guess = refine(guess, t)\n    loss = own(guess, y)\nloss.backward()",
        "for t in steps:\n    x = x + t\n    loss = own(x)\nloss.backward()",
        "for t in steps:\n    total = total + own(t)\n    loss = total / 2\nloss.backward()",
        "for _ in range(3):\n    loss = own(x)\nloss.backward()",
        "for x, y in it:\n    loss = own(x)\n    break\nloss.backward()",
        "for x, y in it:\n    loss = own(x)\n    if loss > best:\n        best = loss\nloss.backward()",
        "for x, y in it:\n    loss = own(x)\n    grads.append(torch.autograd.grad(loss, p))\nloss.backward()",
        "for x, y in it:\n    for x, y in more:\n        loss = own(x)\n        loss.backward()\n    opt.step()",
        "for x, y in train:\n    loss = net(x)\n    loss.backward()\n    opt.step()",  # labels of an autoencoder
        "for x, _ in train:\n    loss = net(z)\n    loss.backward()\n    opt.step()",
        "for x, y in a:\n    pass\nfor i in range(9):\n    loss = net(x)\n    loss.backward()\n    opt.step()",
        "soft = F.kl_div(a, b)\nlog(soft)\nhard = F.cross_entropy(x, y)\nhard.backward()",
        "soft = F.kl_div(a, b)\nreturn x",  # no backward pass here: a method that others extend
        "probs = x.softmax(-1)\nhard = F.cross_entropy(x, y)\nhard.backward()",
        "_ = F.kl_div(a, b)\nF.cross_entropy(x, y).backward()",
        "def inner():\n    return soft\nsoft = F.kl_div(a, b)\nF.cross_entropy(x, y).backward()\nreturn inner",
        "x = x * x + x\nreturn torch.cat([x, x]), x == x, self.attention(x, x, x)",
        "return torch.min(next(it), next(it)), min(random.random(), random.random())",
        "for b in it:\n    if b is None:\n        continue\n    loss = net(b)\n    loss.backward()\n    opt.step()",
        "def inner():\n    return 1\n    return 2\nreturn inner",
        "loss = -F.mse_loss(x, y)\nloss = +loss\nreturn loss",
        "dq = + x\ndp = - y\nreturn dq, dp",  # one below the other
        "critic.clamp(0.01)\nself.x(critic)\nx.forward(1)\nreturn x",  # no tensor, though it has the word
        "return F.mse_loss(net(x), net(x)), criterion(self.q(x), self.q(x))",  # two passes with other dropout
        "return max(m.rsample(), m.rsample()), min(level(), level())",
        "for t in steps:\n    out = net(x[t])\nF.cross_entropy(out, y).backward()",  # a model with a memory
        "with torch.no_grad():\n    left = F.l1_loss(x, y)\nF.mse_loss(x, y).backward()",
        "F.mse_loss(x, y).backward()\nval_loss = F.mse_loss(a, b)",
        "loss = x.new_zeros(())\nloss = F.mse_loss(x, y)\nloss.backward()",
    ],
)
def test_what_looks_alike_is_right(lines):
    assert found(lines) == []


def test_purity_is_that_of_the_schemas():
    assert only_tensors_have("clamp") and only_tensors_have("masked_fill")
    for name in ("clamp_", "add", "to", "view", "item", "backward", "retain_grad", "bernoulli", "data_ptr"):
        assert not only_tensors_have(name), name
    assert is_written_in_place("clamp_")
    assert not is_written_in_place("clamp") and not is_written_in_place("__init__")
    assert is_pure_function("torch.clamp", 1, ())
    assert not is_pure_function("torch.clamp_", 1, ()) and not is_pure_function("torch.manual_seed", 1, ())
    assert not is_pure_function("torch.nn.functional.batch_norm", 3, ())
    assert not is_pure_function("numpy.random.shuffle", 1, ()) and not is_pure_function("numpy.put", 3, ())


def test_a_text_must_agree_with_its_code(tmp_path):
    source = "import torch\n\n\ndef f(a, b):\n    c = a.clamp(0)\n    return b\n"
    code = next(one for one in compile(source, "f.py", "exec").co_consts if hasattr(one, "co_code"))
    assert function_of(text_of(source), code) is not None
    assert function_of(text_of(source.replace("clamp", "cut")), code) is None
    assert function_of(text_of("\n" + source), code) is None
    assert function_of(text_of(source.replace("a, b", "b, a")), code) is None
    assert text_of("def (") is None
    assert text_of("#" * (1 << 19)) is None


def test_files_of_packages_are_not_read():
    assert not is_of_user(torch.__file__)
    assert not is_of_user(ast.__file__)
    assert not is_of_user("<stdin>") and not is_of_user("/tmp/ipykernel_7/1.py")
    assert is_of_user("/srv/jobs/train.py")
