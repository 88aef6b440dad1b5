"""`luff compare --sweep` over real trials: what was bad, what they share, what was saved."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from sweep_scripts import luff_command, run_script

TRIALS = """
    import time
    import torch
    import luff, luff.torch

    for number in range(14):
        rate = 0.01 * (number + 1)
        broken = number >= 8
        settings = {"lr": rate, "dropout": number % 2 / 10}
        with luff.trial_run(f"trial-{number}", settings, "digits", on_stop="return", rules="NonFinite"):
            torch.manual_seed(0)
            model = torch.nn.Linear(4, 3)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1 if number < 4 else rate)
            x = torch.randn(32, 4)
            y = x[:, :3].argmax(1)
            for _ in range(40):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(x), y)
                if broken:
                    loss = loss * float("nan")
                    time.sleep(0.25)
                loss.backward()
                optimizer.step()
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    done = run_script(folder, "trials.py", TRIALS, LUFF_HOME=folder)
    assert done.returncode == 0, done.stderr
    return folder


def luff(home, *words):
    return subprocess.run(
        [luff_command(), *map(str, words)],
        env=os.environ | {"LUFF_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_bad_trials_are_named_with_what_they_share(home):
    done = luff(home, "compare", "--sweep", "digits", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [trial["trial"] for trial in told["trials"]] == [f"trial-{i}" for i in range(14)]
    assert [trial["bad"] for trial in told["trials"]] == [False] * 8 + [True] * 6
    assert all(trial["stopped"] and trial["finding"]["rule"] == "NonFinite" for trial in told["trials"][8:])
    assert told["shared"]["findings"][0]["rule"] == "NonFinite"
    assert told["shared"]["findings"][0]["trials"] == list(range(8, 14))
    (only,) = told["shared"]["parameters"]
    assert (only["parameter"], only["op"], only["bad_inside"], only["bad_outside"]) == ("lr", ">=", 6, 0)
    assert only["value"] == pytest.approx(0.09)
    same = told["same"][0]  # whose rate never reached the optimizer
    assert same["trials"] == [0, 1, 2, 3]
    assert {"lr", "dropout"} <= set(same["differ"])
    assert told["trials"][5]["nearest"]["parts_at"] is not None
    saved = told["saved"]
    assert (saved["stopped"], saved["completed"], saved["wrong_stops"]) == (6, 8, 0)
    assert saved["median_steps"] == 40
    assert saved["steps_share"] > 0


def test_the_terminal_says_it_in_sentences(home):
    done = luff(home, "compare", "--sweep", "digits", "--by", "lr")
    text = " ".join(done.stdout.split())
    assert done.returncode == 0, done.stderr
    assert "digits: 14 trials: 6 bad, 8 not" in text
    assert "lr >= 0.09: 6 of 6 are bad, against 0 of 8 others" in text
    assert "trial-0, trial-1, trial-2 and trial-3 are bit for bit the same" in text
    assert "dropout" not in text.split("What the bad ones share")[0]
    found = luff(home, "runs", "--text", "digits trial-3")
    assert found.stdout.count("trial-3") == 1
    assert "none of 14" in luff(home, "runs", "--text", "elsewhere").stdout


def test_it_is_a_page_too(home, tmp_path):
    done = luff(home, "compare", "--sweep", "digits", "--by", "lr", "--html", tmp_path / "page.html")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    text = (tmp_path / "page.html").read_text()
    assert "lr &gt;= 0.09: 6 of 6 are bad, against 0 of 8 others" in text
    assert text.count('class="cross"') == 6
    assert ">dropout</th>" not in text
    done = luff(home, "compare", "--sweep", "digit", "--html", tmp_path / "none.html")
    assert done.returncode == 2
    assert "digits" in done.stderr
    assert not (tmp_path / "none.html").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a", "b", "--html", "page.html"], "--sweep NAME"),
        (["--sweep", "digits", "--json", "--html", "page.html"], "two outputs"),
        (["--sweep", "digit"], "digits"),
        (["--sweep", ""], "empty"),
        (["--sweep", "digits", "--by", "rate"], "no trial has a parameter 'rate'"),
        (["--sweep", "digits", "a", "b"], "at most one directory"),
        (["a", "b", "--by", "lr"], "--sweep NAME"),
    ],
)
def test_mistakes_have_sentences(home, words, said):
    done = luff(home, "compare", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_the_command_marks_the_trials_of_any_launcher(tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch\nm = torch.nn.Linear(2, 1)\no = torch.optim.SGD(m.parameters(), lr=0.1)\n"
        "for _ in range(5):\n    o.zero_grad()\n    loss = m(torch.ones(3, 2)).pow(2).mean()\n"
        "    loss.backward()\n    o.step()\n"
    )
    run = str(tmp_path / "run")
    train = ["--", sys.executable, str(tmp_path / "train.py")]
    marks = [
        "--sweep",
        "nets",
        "--trial",
        "one",
        "--param",
        "width=64",
        "--param",
        "bias=false",
        "--param",
        "kind=mlp",
    ]
    first = luff(tmp_path, "run", "--run", run, "--resume-or-new", *marks, *train)
    assert first.returncode == 0, first.stderr
    again = luff(tmp_path, "run", "--run", run, "--resume-or-new", *marks, *train)
    assert again.returncode == 0, again.stderr
    told = json.loads(luff(tmp_path, "compare", "--sweep", "nets", str(tmp_path), "--json").stdout)
    (trial,) = told["trials"]
    assert trial["trial"] == "one"
    assert (trial["parameters"]["width"], trial["parameters"]["bias"], trial["parameters"]["kind"]) == (
        64,
        False,
        "mlp",
    )
    assert trial["steps"] == 10
    for wrong, said in (["--param", "width"], "NAME=VALUE"), (["--param", "a=1", "--param", "a=2"], "twice"):
        done = luff(tmp_path, "run", *wrong, *train)
        assert done.returncode == 2
        assert said in done.stderr
    assert "needs --run DIR" in luff(tmp_path, "run", "--resume-or-new", *train).stderr
