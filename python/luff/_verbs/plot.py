"""Pictures of a run: what ``luff plot --out FILE`` starts."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np

import luff

_DEFAULT_SERIES = 12


def _default_names(trial: luff.Trial) -> list[str]:
    roles: dict[str, list[str]] = {"loss": [], "gradient": []}
    for name in trial.tensors():
        roles.setdefault(trial.tensor(name).role, []).append(name)
    return roles["loss"] + roles["gradient"][: _DEFAULT_SERIES - len(roles["loss"])]


def _histograms(tensor: luff.Tensor, mode: str, worker: int | None) -> list[tuple[int, Any]]:
    """Quantiles over time, of the steps that have a histogram."""
    found = []
    for step in tensor.steps(mode)[:: max(1, len(tensor.steps(mode)) // 200)]:
        try:
            tensor.histogram(step, mode, worker)
        except luff.LuffError:
            continue
        found.append((step, [tensor.quantile(step, q, mode, worker) for q in (0.01, 0.25, 0.5, 0.75, 0.99)]))
    return found


def draw(run: str, names: list[str], out: str, mode: str = "GLOBAL", worker: int | None = None) -> None:
    """Draw scalars, norms and, where there are histograms, quantiles over the steps into the file `out`."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    with luff.open_trial(run) as trial:
        names = names or _default_names(trial)
        if not names:
            raise luff.errors.NotFoundError("the run has neither losses nor gradients; name a tensor")
        figure, axes = plt.subplots(len(names), 1, figsize=(9, 2.2 * len(names)), squeeze=False, sharex=True)
        for axis, name in zip(axes[:, 0], names, strict=True):
            tensor = trial.tensor(name)
            scalars = trial.scalars(name, mode, worker)
            if scalars["step"].size:
                axis.plot(scalars["step"], scalars["value"], linewidth=1)
                axis.set_ylabel("value")
            elif quantiles := _histograms(tensor, mode, worker):
                steps = [s for s, _ in quantiles]
                q = np.array([v for _, v in quantiles])
                axis.fill_between(steps, q[:, 0], q[:, 4], color="tab:blue", alpha=0.2, label="1 % to 99 %")
                axis.fill_between(steps, q[:, 1], q[:, 3], color="tab:blue", alpha=0.4, label="25 % to 75 %")
                axis.plot(steps, q[:, 2], color="tab:blue", linewidth=1, label="median")
                axis.legend(fontsize="small")
            else:
                columns = tensor.summaries(mode, worker)
                loss = tensor.role == "loss"
                axis.plot(columns["step"], columns["mean" if loss else "l2"], linewidth=1)
                axis.set_ylabel("value" if loss else "l2 norm")
            axis.set_title(name.replace("$", r"\$"), fontsize="small")
        axes[-1, 0].set_xlabel("step")
        figure.tight_layout()
        figure.savefig(out)
        plt.close(figure)


def main(arguments: list[str] | None = None) -> int:
    """Command line; the exit code."""
    parser = argparse.ArgumentParser(prog="luff plot")
    parser.add_argument("run")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", required=True)
    parser.add_argument("--mode", default="GLOBAL")
    parser.add_argument("--worker", type=int)
    args = parser.parse_args(arguments)
    try:
        draw(args.run, args.names, args.out, args.mode, args.worker)
    except ImportError as error:
        print(f"luff: {error}; a picture needs matplotlib: pip install matplotlib", file=sys.stderr)
        return 2
    except (luff.LuffError, OSError, ValueError) as error:
        print(f"luff: {error}", file=sys.stderr)
        return 2
    print(args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
