"""Times of a test run: a table by stage, and the longest tests."""

import dataclasses

from devlib.term import say, seconds

LONGEST = 20


@dataclasses.dataclass
class Times:
    """The times of one run."""

    stages: dict = dataclasses.field(default_factory=dict)  # name -> (wall, CPU seconds)
    cases: list = dataclasses.field(default_factory=list)  # (seconds, name)

    def add(self, name, wall_s, cpu_s, tally):
        self.stages[name] = (wall_s, cpu_s)
        self.cases += tally.cases

    def show(self):
        say(f"\n  {'stage':<12} {'time':>14} {'CPU time':>14}")
        for name, (wall_s, cpu_s) in self.stages.items():
            say(f"  {name:<12} {seconds(wall_s):>14} {seconds(cpu_s):>14}")
        if self.cases:
            say(f"\n  the {min(LONGEST, len(self.cases))} longest tests")
        for took_s, name in sorted(self.cases, reverse=True)[:LONGEST]:
            say(f"  {seconds(took_s):>14}  {name}")
