"""Sums up what test programs report."""

import dataclasses
import xml.etree.ElementTree as ET

from devlib.term import say


@dataclasses.dataclass
class Tally:
    """Counts of cases, with the failures and the reasons for skips."""

    passed: int = 0
    failures: list = dataclasses.field(default_factory=list)  # "name: what"
    skips: list = dataclasses.field(default_factory=list)  # ("name", "reason")
    cases: list = dataclasses.field(default_factory=list)  # (seconds, "name")
    wavering: list = dataclasses.field(default_factory=list)  # "name: what", failed once and passed alone

    def add(self, other):
        self.passed += other.passed
        self.failures += other.failures
        self.skips += other.skips
        self.cases += other.cases
        self.wavering += other.wavering

    def try_again(self, second):
        """Takes failures that passed when they ran alone for passed ones, and keeps their names."""
        failed = {what.split(": ", 1)[0] for what in second.failures}
        ran = {name for _, name in second.cases}
        for failure in list(self.failures):
            name = failure.split(": ", 1)[0]
            if name in ran and name not in failed:
                self.failures.remove(failure)
                self.wavering.append(failure)
                self.passed += 1

    def line(self):
        return f"{self.passed} passed, {len(self.failures)} failed, {len(self.skips)} skipped"


def skipped(name, reason):
    return Tally(skips=[(name, reason)])


def failed(name, what):
    return Tally(failures=[f"{name}: {what}"])


def read_xml(path, prefix=""):
    """Returns the tally of a JUnit file of GoogleTest or pytest; None if it is absent or incomplete."""
    try:
        root = ET.parse(path).getroot()
    except (OSError, ET.ParseError):
        return None
    tally = Tally()
    for case in root.iter("testcase"):
        name = f"{prefix}{case.get('classname') or ''}.{case.get('name')}"
        tally.cases.append((float(case.get("time") or 0), name))
        bad = [e for tag in ("failure", "error") for e in case.findall(tag)]
        skip = case.find("skipped")
        if bad:
            first = (bad[0].get("message") or bad[0].text or "").strip().splitlines()
            tally.failures.append(f"{name}: {first[0] if first else 'failed'}")
        elif skip is not None or case.get("status") in ("notrun", "disabled"):
            reason = (skip.get("message") if skip is not None else "") or "switched off"
            tally.skips.append((name, reason.strip().splitlines()[-1].strip()))
        else:
            tally.passed += 1
    return tally


def read_ctest(junit, xml_folder, stage):
    """Returns the cases of all C++ test programs; a program that wrote none counts as one case."""
    try:
        root = ET.parse(junit).getroot()
    except (OSError, ET.ParseError) as error:
        return failed(stage, f"ctest left no results ({error})")
    tally = Tally()
    for program in root.iter("testcase"):
        name = program.get("name")
        cases = read_xml(xml_folder / f"{name}.xml", f"{stage}/{name}/")
        died = program.find("failure") is not None or program.get("status") == "fail"
        if cases is not None and cases.passed + len(cases.failures) + len(cases.skips) > 0:
            tally.add(cases)
            if died and not cases.failures:
                tally.add(failed(f"{stage}/{name}", "the program failed though its cases passed"))
        elif died:
            tally.add(failed(f"{stage}/{name}", "the program died or exceeded its time; see the log"))
        elif program.find("skipped") is not None:
            tally.add(skipped(f"{stage}/{name}", program.find("skipped").get("message") or "skipped"))
        elif cases is None:
            tally.passed += 1
    return tally


def show(tally, limit=40):
    """Shows failures first, then what passed on its second try, then skips by reason."""
    for failure in tally.failures[:limit]:
        say(f"  FAILED {failure}")
    if len(tally.failures) > limit:
        say(f"  ... and {len(tally.failures) - limit} more failures")
    for failure in tally.wavering:
        say(f"  PASSED ON ITS SECOND TRY, mend it: {failure}")
    reasons = {}
    for name, reason in tally.skips:
        reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        say(f"  skipped {names[0]}{more}: {reason}")
