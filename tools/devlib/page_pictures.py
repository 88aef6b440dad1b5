"""Pictures of the page of `luff serve` for docs/studio.md, over real runs and in a real browser."""

import json
import os
import signal
import subprocess
import time
import urllib.parse
import urllib.request

from devlib.term import ROOT, VENV, Failed, say

FOLDER = ROOT / "docs" / "images"
#: Name of the picture: its run ("" for the list), and what the address says of the view. TENSOR:name is its number;
#: @ID: the picture begins with the section of this id.
PAGES = {
    "verdict": ("diverged", ""),
    "findings": ("diverged", "view=findings"),
    "curves": (
        "healthy",
        "view=curves&smooth=0.8&t=TENSOR:CrossEntropyLoss_output_0,TENSOR:gradient/DigitNet_conv1.weight",
    ),
    "heat": ("diverged", "view=heat"),
    "tensors": ("healthy", "view=tensors&t=TENSOR:DigitNet_fc1.weight&step=200"),
    "histograms": ("ranks", "view=histograms&t=TENSOR:net.1.weight"),
    "model": ("diverged", "view=model"),
    "samples": ("healthy", "view=samples"),
    "log": ("healthy", "view=log&step=200"),
    "ranks": ("ranks", "view=ranks"),
    "time": ("slow", "view=profile&step=60"),
    "operators": ("traced", "view=profile@long-lines"),
    "stands": ("stands", "view=profile"),
    "actions": ("ranks", "view=actions"),
    "runs": ("", ""),
    "compare": ("", "view=compare&runs=healthy,fault"),
}  # fmt: skip
#: A network whose learning rate leaps at step 60.
DIVERGED = """
import torch

torch.manual_seed(0)
x = torch.rand(64, 64)
y = (x.mean(1) * 1000).long() % 4
model = torch.nn.Sequential(
    torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(160):
    if step == 60:
        optimizer.param_groups[0]["lr"] = 50.0
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
#: One of three processes: rank 2 is slow, and the weights of rank 1 part from the others'.
RANK = """
import os, sys, time
import numpy as np, luff.numpy
from luff.config import Collection, SaveConfig

rank = int(os.environ["RANK"])
random = np.random.default_rng(0)
weights = {f"net.{i}.weight": random.normal(size=(16, 16)).astype(np.float32) for i in range(3)}
kept = Collection(
    "kept", include="weight$", forms=["summary", "histogram"], save_config=SaveConfig(save_interval=5)
)
with luff.numpy.attach(weights, run=sys.argv[1], collections=[kept]) as hook:
    for number in range(240):
        with hook.step() as step:
            for array in weights.values():
                array *= 0.99
            if rank == 1 and number >= 150:
                weights["net.1.weight"] *= 1.01
            step.loss(2.0 / (number + 1))
            time.sleep(0.06 if rank == 2 else 0.04)
"""
#: A network whose samples are dear to make, in a loader without workers; it keeps a checkpoint now and then.
SLOW = """
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Decoded(Dataset):
    def __len__(self):
        return 1600

    def __getitem__(self, i):
        time.sleep(0.002)
        return torch.randn(256), torch.randn(1)

torch.manual_seed(0)
layers = [torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64), torch.nn.ReLU()]
model = torch.nn.Sequential(*layers, torch.nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):
    for step, (x, y) in enumerate(DataLoader(Decoded(), batch_size=16)):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        if step % 50 == 49:
            torch.save(model.state_dict(), "model.pt")
"""
#: Traces three of its steps, and draws pictures in each one.
TRACED = """
import time
import luff, torch

def log_images():
    time.sleep(0.03)

torch.manual_seed(0)
layers = [torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 32, 3), torch.nn.BatchNorm2d(32)]
model = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(25088, 10))
optimizer = torch.optim.Adam(model.parameters())
for step in range(200):
    if step == 60:
        luff.trace(3)
    optimizer.zero_grad()
    labels = torch.arange(16) % 10
    torch.nn.functional.cross_entropy(model(torch.randn(16, 3, 32, 32)), labels).backward()
    optimizer.step()
    log_images()
"""
#: Its loader's worker waits for a file that nobody writes.
STANDS = """
import os, sys
import torch, luff.torch
from torch.utils.data import DataLoader, Dataset

class Clips(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, i):
        if i == 640:
            os.mkfifo("clip-640.bin")
            open("clip-640.bin", "rb").read()
        return torch.randn(16), torch.randn(1)

model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
luff.torch.attach(model, run=sys.argv[1], stalled_after_s=4)
for x, y in DataLoader(Clips(), batch_size=16, num_workers=2):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
"""


def draw(home, environment):
    """Draws all pictures, of runs that are made here; `home` holds train.py."""
    luff = VENV / "bin" / "luff"
    runs = home / "runs"
    python = VENV / "bin" / "python"

    def ask(*words):
        subprocess.run(
            [luff, *words], env=environment, cwd=home, check=False, capture_output=True, timeout=600
        )

    ask("run", "--log", "--run", runs / "healthy", "--", python, "train.py")
    ask(
        "run",
        "--on-finding",
        "stop",
        "--run",
        runs / "fault",
        "--",
        python,
        "train.py",
        "--learning-rate",
        "3.0",
    )
    (home / "diverged.py").write_text(DIVERGED)
    ask("run", "--run", runs / "diverged", "--", python, "diverged.py")
    (home / "slow.py").write_text(SLOW)
    ask("run", "--run", runs / "slow", "--", python, "slow.py")
    (home / "traced.py").write_text(TRACED)
    ask("run", "--run", runs / "traced", "--", python, "traced.py")
    _stand(luff, home, runs / "stands", environment)
    (home / "rank.py").write_text(RANK)
    ranks = [
        subprocess.Popen(
            [python, home / "rank.py", runs / "ranks"],
            env=environment | {"RANK": str(rank), "WORLD_SIZE": "3"},
        )
        for rank in range(3)
    ]
    while not list(runs.glob("ranks/w*/live")) and ranks[0].poll() is None:
        os.sched_yield()
    ask(
        "capture",
        runs / "ranks",
        "--include",
        "^net\\.1",
        "--every",
        "2",
        "--for-steps",
        "60",
        "--reason",
        "does it grow?",
    )
    for rank in ranks:
        rank.wait(timeout=600)
    ask("label", runs / "healthy", "--tag", "baseline")
    _shoot(luff, runs, environment)


def _stand(luff, home, run, environment):
    """Leaves a run whose training has stood still."""
    (home / "clips.py").write_text(STANDS)
    job = subprocess.Popen(
        [VENV / "bin" / "python", "clips.py", run], cwd=home, env=environment, start_new_session=True
    )
    try:
        for _ in range(300):
            time.sleep(0.2)
            told = subprocess.run(
                [luff, "profile", run, "--json"], env=environment, check=False, capture_output=True, text=True
            )
            stalls = json.loads(told.stdout)["stalls"] if told.returncode == 0 else []
            if any("DataLoader" in stall["waits"] and stall["looks"] > 1 for stall in stalls):
                return
        raise Failed("the training for page-stands.webp does not stand still")
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def _shoot(luff, runs, environment):
    server = subprocess.Popen(
        [luff, "serve", runs], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    try:
        base, token = server.stdout.readline().strip().split("/#token=")

        def get(path):
            request = urllib.request.Request(
                f"{base}/api/v1/{path}", headers={"Authorization": f"Bearer {token}"}
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)

        ids = {run["place"]: run["id"] for run in get("runs")["runs"]}
        files = []
        for name, (run, view) in PAGES.items():
            if run:
                tensors = {one["name"]: one["id"] for one in get(f"runs/{ids[run]}/tensors")["tensors"]}
                for tensor in sorted(tensors, key=len, reverse=True):
                    view = view.replace(f"TENSOR:{tensor}", str(tensors[tensor]))
                where = f"/run/{ids[run]}?{urllib.parse.quote(view, safe='=&,@')}"
            else:
                where = "/?" + view.replace("healthy", ids["healthy"]).replace("fault", ids["fault"])
            files.append(f"{FOLDER / f'page-{name}'}.webp={where}")
        program = [VENV / "bin" / "python", "-m", "tests.browser", f"{base}/#token={token}"]
        subprocess.run([*program, *files], check=True, cwd=ROOT, timeout=600)
        for name in PAGES:
            say(f"  docs/images/page-{name}.webp: luff serve")
    finally:
        server.terminate()
        server.wait()
