"""./dev attack: tries to break Luff's promises, one attack per row, against the installed Luff.

`tests/attacks.json` is the list: promise, attack, and the tests that carry it out. `docs/reliability.md` shows the
same rows with their outcomes; `--write` updates it.
"""

import dataclasses
import datetime as dt
import json
import re

from devlib import build, fuzz, results, setup
from devlib.term import LOGS, ROOT, VENV, Failed, passthrough, run, say

LIST = ROOT / "tests" / "attacks.json"
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- attacks: ./dev attack --write -->", "<!-- end -->"
PYTEST_LIMIT_S = 3600
PROGRAM_LIMIT_S = 600
HELD, SUCCEEDED, SKIPPED = "held", "SUCCEEDED", "not tried"


@dataclasses.dataclass
class Attack:
    """One row of the list."""

    section: str
    promise: str
    attack: str
    tests: list
    outcome: str = ""
    why: str = ""


def attack_arguments(parser):
    parser.add_argument(
        "-k", dest="filter", default="", metavar="TEXT", help="only attacks whose row or tests contain TEXT"
    )
    parser.add_argument("--list", action="store_true", help="only list the attacks and their tests")
    parser.add_argument(
        "--fuzz-seconds", type=int, default=60, help="time for each fuzz target (default: 60)"
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help=f"write the outcomes into {PAGE.relative_to(ROOT)}; with -k, only those of these attacks",
    )


def attack_main(args):
    every = load()
    chosen = [a for a in every if args.filter in json.dumps([a.section, a.promise, a.attack, a.tests])]
    if args.list:
        for attack in chosen:
            say(f"{attack.attack}\n    " + "\n    ".join(attack.tests))
        return 0
    setup.ensure_packages()
    build.ensure_all()
    verdicts = {}
    for runner, tests in _by_runner(chosen).items():
        say(f"\n== {runner}: {len(tests)} tests")
        verdicts.update(_RUNNERS[runner.split()[0]](runner, tests, args))
    for attack in chosen:
        judge(attack, verdicts)
    for attack in chosen:
        if attack.outcome != HELD:
            say(f"  {attack.outcome}: {attack.attack}\n      {attack.why}")
    succeeded = sum(a.outcome == SUCCEEDED for a in chosen)
    untried = sum(a.outcome == SKIPPED for a in chosen)
    if args.write:
        write_page(every)
    say(
        f"{len(chosen) - untried} attacks, {succeeded} succeeded"
        + (f", {untried} not tried" if untried else "")
    )
    return 1 if succeeded else 0


def load():
    """Returns the attacks of the list, in order."""
    return [Attack(**row) for row in json.loads(LIST.read_text())]


def judge(attack, verdicts):
    """Sets the outcome: an attack succeeded if one of its tests failed, and was not tried if one could not run."""
    found = [verdicts.get(test, ("skipped", "its test did not run")) for test in attack.tests]
    bad = [why for verdict, why in found if verdict == "failed"]
    untried = [why for verdict, why in found if verdict == "skipped"]
    attack.outcome = SUCCEEDED if bad else SKIPPED if untried else HELD
    attack.why = (bad or untried or [""])[0]


def table(attacks):
    """Returns the rows as Markdown, one table for each section."""
    lines, section = [], None
    for a in attacks:
        if a.section != section:
            section = a.section
            lines += [
                "",
                f"## {section}",
                "",
                "| promise | attack | test | outcome |",
                "| --- | --- | --- | --- |",
            ]
        tests = "<br>".join(f"`{test}`" for test in a.tests)
        lines.append(f"| {a.promise} | {a.attack} | {tests} | {a.outcome} |")
    return "\n".join(lines).strip()


def write_page(attacks):
    """Writes the tables between the page's marks. An attack that was not carried out
    keeps the outcome shown there.
    """
    day = dt.date.today().isoformat()
    text = PAGE.read_text()
    cells = [line[2:-2].split(" | ") for line in text.splitlines() if line.startswith("| ")]
    shown = {tuple(row[:2]): row[-1] for row in cells}
    dated = [
        dataclasses.replace(
            a, outcome=f"{a.outcome}, {day}" if a.outcome else shown.get((a.promise, a.attack), SKIPPED)
        )
        for a in attacks
    ]
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(dated)}\n\n{END}{after}")


# --- carrying them out ---


def runner_of(test):
    """Returns what runs a test: "cpp", "fuzz", "bench", or "pytest ENVIRONMENT" (empty for .venv)."""
    from devlib.test import FRAMEWORKS

    kind = test.split(":", 1)[0]
    if kind in ("cpp", "fuzz", "bench"):
        return kind
    parts = test.split("::")[0].split("/")
    if parts[:2] == ["python", "tests"]:
        where = {**FRAMEWORKS, "xgboost": "xgboost3"}.get(parts[2])
        if where:
            return f"pytest {where}"
    return "pytest formats" if parts[:2] == ["tests", "formats"] else "pytest"


def _by_runner(attacks):
    chosen = {}
    for attack in attacks:
        for test in attack.tests:
            tests = chosen.setdefault(runner_of(test), [])
            if test not in tests:
                tests.append(test)
    return chosen


def _pytest(runner, tests, _args):
    """Runs one pytest for all tests of an environment, including the thorough ones."""
    environment = runner.partition(" ")[2]
    python = VENV / "bin/python"
    if environment:
        try:
            python = setup.environment(environment)
        except Failed as failure:
            return {test: ("skipped", f"{environment}: {str(failure).splitlines()[0]}") for test in tests}
    name = f"attack/pytest-{environment or 'venv'}"
    xml = LOGS / f"{name}.xml"
    xml.parent.mkdir(parents=True, exist_ok=True)
    xml.unlink(missing_ok=True)
    command = [python, "-m", "pytest", "-q", "--junitxml", xml, "-o", "junit_family=xunit1", *tests]
    run(f"pytest {environment}".strip(), command, log=name, check=False, timeout_s=PYTEST_LIMIT_S)
    cases = _cases(xml)
    return {test: _verdict(_matching(cases, test), f"{LOGS.relative_to(ROOT)}/{name}.log") for test in tests}


def _cases(xml):
    """Returns [(file::name, "passed" | "failed" | "skipped", why)] from a JUnit file of pytest."""
    import xml.etree.ElementTree as ET

    try:
        root = ET.parse(xml).getroot()
    except (OSError, ET.ParseError):
        return []
    rows = []
    for case in root.iter("testcase"):
        name = "::".join([*_place(case.get("classname") or ""), case.get("name") or ""])
        bad = [e for tag in ("failure", "error") for e in case.findall(tag)]
        skip = case.find("skipped")
        if bad:
            rows.append((name, "failed", (bad[0].get("message") or "failed").strip().splitlines()[0]))
        elif skip is not None:
            rows.append((name, "skipped", (skip.get("message") or "skipped").strip().splitlines()[-1]))
        else:
            rows.append((name, "passed", ""))
    return rows


def _place(classname):
    """Splits `python.tests.x.test_y.TestZ` into (file, "TestZ"); pytest's `file` is wrong for inherited tests."""
    parts = classname.split(".")
    for count in range(len(parts), 0, -1):
        file = "/".join(parts[:count]) + ".py"
        if (ROOT / file).is_file():
            return (file, *parts[count:])
    return (classname,)


def _matching(cases, test):
    """Returns the cases that a test of the list names: a file, a function with all its parameters, or one case."""
    return [c for c in cases if c[0] == test or c[0].startswith((f"{test}::", f"{test}["))]


def _verdict(cases, log):
    if not cases:
        return ("failed", f"no such test ran; log: {log}")
    for wanted in ("failed", "skipped"):
        for name, what, why in cases:
            if what == wanted and (wanted == "failed" or all(c[1] == "skipped" for c in cases)):
                return (what, f"{name}: {why}")
    return ("passed", "")


def _cpp(_runner, tests, _args):
    """Runs `cpp:PROGRAM:FILTER`: cases of a GoogleTest program of the preset dev."""
    programs = {test: test.split(":", 2)[1:] for test in tests}
    folder = build.build("dev", *sorted({program for program, _ in programs.values()}))
    found = {}
    for test, (program, cases) in programs.items():
        path = next((p for p in folder.rglob(program) if p.is_file() and not p.suffix), None)
        if path is None:
            found[test] = ("failed", f"there is no program {program}")
            continue
        xml = LOGS / "attack" / f"{program}.xml"
        xml.parent.mkdir(parents=True, exist_ok=True)
        xml.unlink(missing_ok=True)
        code, _ = run(
            program, [path, f"--gtest_filter={cases}", f"--gtest_output=xml:{xml}"],
            log=f"attack/{program}", check=False, timeout_s=PROGRAM_LIMIT_S,
        )  # fmt: skip
        tally = results.read_xml(xml) or results.Tally()
        if tally.failures or code != 0:
            found[test] = ("failed", (tally.failures or [f"{program} ended with {code}"])[0])
        elif tally.passed == 0:
            found[test] = ("failed", f"no case of {program} is named {cases}")
        else:
            found[test] = ("passed", "")
    return found


def _fuzz(_runner, tests, args):
    """Runs `fuzz:TARGET`: a fuzz target for a while."""
    ok, why = build.available("asan")
    if not ok:
        return dict.fromkeys(tests, ("skipped", why))
    known = {target.name: target for target in fuzz.targets()}
    found = {}
    for test in tests:
        target = known.get(test.partition(":")[2])
        if target is None:
            found[test] = ("failed", f"there is no fuzz target {test.partition(':')[2]}")
            continue
        ok, what = fuzz.run_target(target, args.fuzz_seconds)
        found[test] = ("passed", "") if ok else ("failed", what)
    return found


def _bench(_runner, tests, _args):
    """Runs `bench:NAME ARGUMENTS`: a program of benchmarks/ that exits with 0 if its limits hold."""
    found = {}
    for test in tests:
        name, *rest = test.partition(":")[2].split()
        code = passthrough([VENV / "bin/python", ROOT / "benchmarks" / f"{name}.py", *rest])
        found[test] = ("passed", "") if code == 0 else ("failed", f"benchmarks/{name}.py ended with {code}")
    return found


_RUNNERS = {"pytest": _pytest, "cpp": _cpp, "fuzz": _fuzz, "bench": _bench}


# --- for the house's own test ---


def missing_tests(attacks):
    """Returns the tests of the list that do not exist in the sources."""
    missing = []
    for test in {test for attack in attacks for test in attack.tests}:
        kind, _, rest = test.partition(":")
        if kind == "cpp":
            program, cases = rest.split(":", 1)
            suite, _, case = (part.strip("*") for part in cases.partition("."))
            wanted = re.compile(rf"{re.escape(suite)}\s*,\s*{re.escape(case)}")
            lists = (p.read_text() for p in ROOT.glob("src/*/CMakeLists.txt"))
            if not any(f"luff_test(NAME {program} " in text for text in lists) or not any(
                wanted.search(p.read_text()) for p in ROOT.glob("src/**/*_test.cc")
            ):
                missing.append(test)
        elif kind == "fuzz":
            if not any(f"NAME {rest} " in p.read_text() for p in ROOT.glob("src/*/CMakeLists.txt")):
                missing.append(test)
        elif kind == "bench":
            if not (ROOT / "benchmarks" / f"{rest.split()[0]}.py").exists():
                missing.append(test)
        else:
            file, *names = test.split("::")
            text = (ROOT / file).read_text() if (ROOT / file).exists() else ""
            if not text or any(f"{n.split('[')[0]}(" not in text and f"class {n}" not in text for n in names):
                missing.append(test)
    return sorted(missing)
