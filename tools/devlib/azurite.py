"""Azurite, a server of Azure's storage: installed into .venvs/azurite from requirements/azurite, for tests alone."""

import shutil

from devlib import setup, stamp, web
from devlib.term import ROOT, Failed, run, say

SOURCE = setup.REQUIREMENTS / "azurite"
FOLDER = ROOT / ".venvs" / "azurite"
COMMAND = FOLDER / "azurite-blob"
_FILES = ("package.json", "package-lock.json", ".npmrc")


def pin():
    """Writes the lock file anew: what package.json wants, and everything that it needs."""
    node, npm = web.node()
    env = {"PATH": f"{node.parent}:/usr/bin:/bin", "CI": "1"}
    words = ["install", "--package-lock-only", "--ignore-scripts"]
    run("pin azurite", [npm, *words], log="pin/azurite", cwd=SOURCE, env=env)
    say("  requirements/azurite/package-lock.json")


def ensure():
    """Installs what the lock file names, unless it is there. Without Node it says so; tests then skip."""
    value = stamp.digest([f"requirements/azurite/{name}" for name in _FILES])
    mark = FOLDER / "luff.stamp"
    with stamp.lock("azurite"):
        if stamp.fresh(mark, value):
            return
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)
        for name in _FILES:
            shutil.copy(SOURCE / name, FOLDER / name)
        try:
            node, npm = web.node()
            env = {"PATH": f"{node.parent}:/usr/bin:/bin", "CI": "1"}
            run(
                "Azurite",
                [npm, "ci", "--ignore-scripts", "--fetch-retries=1", "--fetch-timeout=60000"],
                log="setup/azurite",
                cwd=FOLDER,
                env=env,
            )
        except Failed as failure:
            say(f"  without Azurite: {str(failure).splitlines()[0]}")
            return
        COMMAND.write_text(
            f'#!/bin/sh\nexec "{node}" "{FOLDER}/node_modules/azurite/dist/src/blob/main.js" "$@"\n'
        )
        COMMAND.chmod(0o755)
        stamp.write(mark, value)
