"""What the tools of edits find in a script."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from mutants.source import Source


def test_steps_of_an_environment_are_no_updates() -> None:
    source = Source(
        "import torch\nopt = torch.optim.SGD(net.parameters(), 0.1)\n"
        "for i in range(9):\n    env.step(0)\n    opt.step()\n"
    )
    assert [ast.unparse(call) for call in source.steps("SGD")] == ["opt.step()"]
    assert source.update() is not None
