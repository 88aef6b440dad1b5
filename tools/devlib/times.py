"""Times of a test run: a table by stage, the longest tests, and the budget in benchmarks/test_times.json."""

import dataclasses
import json
import math
import statistics

from devlib.term import ROOT, Failed, say, seconds

BUDGET = ROOT / "benchmarks" / "test_times.json"
MOST = 1.5  # a stage that takes this many times its budget is named
LONGEST = 20


@dataclasses.dataclass
class Times:
    """The times of one run. `whole`: every stage ran with all of its tests, so that the budget applies."""

    whole: bool
    stages: dict = dataclasses.field(default_factory=dict)  # name -> (wall, CPU seconds)
    cases: list = dataclasses.field(default_factory=list)  # (seconds, name)

    def add(self, name, wall_s, cpu_s, tally):
        self.stages[name] = (wall_s, cpu_s)
        self.cases += tally.cases

    def longest_first(self, names):
        """Sorts stages; those without a budget come first, since they may have to compile."""
        budget = _budget()
        return sorted(names, key=lambda name: -budget.get(name, math.inf))

    def show(self):
        say(f"\n  {'stage':<12} {'time':>14} {'CPU time':>14}")
        for name, (wall_s, cpu_s) in self.stages.items():
            say(f"  {name:<12} {seconds(wall_s):>14} {seconds(cpu_s):>14}")
        if self.cases:
            say(f"\n  the {min(LONGEST, len(self.cases))} longest tests")
        for took_s, name in sorted(self.cases, reverse=True)[:LONGEST]:
            say(f"  {seconds(took_s):>14}  {name}")
        for sentence in self.over_budget():
            say(f"\n  slow: {sentence}")

    def write(self, names):
        """Writes the times of these stages as the budget."""
        if not self.whole:
            raise Failed(f"{BUDGET.name} is written by a whole run, without --only, -k and --thorough")
        budget = {name: round(self.stages[name][1]) for name in names if self.stages[name][1] >= 1}
        BUDGET.write_text(json.dumps({"cpu_s": budget}, indent=2) + "\n")
        say(f"  written: {BUDGET.name}")

    def over_budget(self):
        """Returns a sentence for each stage over its budget. No failure: the time of a test run is no fact of the code.

        The budget is CPU time, and a slow machine is slow in all stages: what counts is how much a stage exceeds its
        share. Stages that compile are not in it, since their time depends on the content of the cache.
        """
        budget = _budget()
        ratios = {name: self.stages[name][1] / budget[name] for name in budget if name in self.stages}
        if not self.whole or not ratios:
            return []
        usual = max(statistics.median(ratios.values()), 1e-9)
        return [
            f"{name}: {self.stages[name][1]:.0f} CPU seconds, {ratio / usual:.2f} times its budget in {BUDGET.name}"
            for name, ratio in ratios.items()
            if ratio > MOST * usual
        ]


def _budget():
    """Returns the CPU seconds that a stage's tests may take on the machine where the file was written."""
    try:
        return json.loads(BUDGET.read_text())["cpu_s"]
    except FileNotFoundError:
        return {}
