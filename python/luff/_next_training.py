"""Decides whether another training of a process has a run of its own (docs/adr/0020-one-training-one-run.md).

A framework's hook says what a training that begins is about. PyTorch's does not know when one begins, and finds out by
itself (`luff.torch.loop._next_training`); the limits are the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from luff._weak import Identities

__all__ = ["MAX_RUNS", "SHORT", "NextTraining"]

#: A training of fewer steps is none of its own: what follows it goes on in its run. Inner loops of meta-learning have 1
#: to 10 steps (MAML, arXiv:1703.03400) or up to 32 (Reptile, arXiv:1803.02999).
SHORT = 100
#: Runs of the trainings of one process. A search of thousands would fill a disk with runs that nobody reads.
MAX_RUNS = 100


class NextTraining:
    """The trainings of one hook, under its lock and guard. Holds what they train weakly.

    Attributes
    ----------
    runs
        How many runs the hook has had, with the one that there is.
    """

    def __init__(self) -> None:
        self.runs = 1
        self._short = SHORT  # the training under way is short up to here
        self._began: int | None = None  # TRAIN steps of the run before it; None: nothing was trained yet
        self._runs_of: Identities[int] = Identities()  # what was trained -> in which run
        self._as_it_goes = False

    def begins(self, steps: int, things: Iterable[Any], anew: bool = False, short: int = SHORT) -> bool:
        """Called when a training begins; returns whether it has a run of its own. Then call `next_run`.

        Parameters
        ----------
        steps
            TRAIN steps of the run so far.
        things
            What it trains: a model, its variables. None of them, or `anew`: it continues no other training.
        anew
            Whether it starts from scratch, also if its model is known.
        short
            A training of fewer steps is none of its own.
        """
        things = list(things)
        before = [run for run in map(self._runs_of.get, things) if run is not None]
        own = False
        if not before or anew:
            own = self._began is not None and steps - self._began >= self._short and not self._as_it_goes
            self._began, self._short = steps, short
        elif min(before) < self.runs:  # trained again after another training has begun: they belong together
            self._as_it_goes = True
        for thing in things:
            self._runs_of[thing] = self.runs + own
        return own

    def next_run(self) -> None:
        """Called when a run has ended because another training begins."""
        self.runs += 1
        self._began = 0

    def knows(self, thing: Any) -> bool:
        """Whether a thing was trained in the run that there is."""
        return self._runs_of.get(thing) == self.runs
