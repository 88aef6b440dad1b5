"""Rules beside a training that attached itself: `attach(..., rules=True)` starts `luff watch`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from luff._bounded import parse_json
from luff._hook import RunOptions, Session, open_session
from luff.errors import AlreadyExistsError, InvalidArgumentError, LuffError, NotFoundError

__all__ = ["judges_later", "luff_command", "needs_of", "open_when_judged", "take_rules", "watch_beside"]

_TIMEOUT_S = 30
_LET_GO_S = 20.0  # how long rules may hold a run after its training


def luff_command() -> str:
    """Returns the command `luff` of this environment.

    Raises
    ------
    NotFoundError
        If there is none.
    """
    given = os.environ.get("LUFF_EXECUTABLE")
    beside = Path(sys.executable).with_name("luff")
    found = given or (str(beside) if beside.exists() else shutil.which("luff"))
    if not found:
        raise NotFoundError(f"no luff beside {sys.executable} or on PATH; install Luff in this environment")
    return found


def take_rules(config: dict[str, Any]) -> tuple[str, str]:
    """Removes ``rules`` and ``on_finding`` from the options of `attach`; returns the rules as text, and the answer.

    Raises
    ------
    InvalidArgumentError
        If one of them is not what it may be.
    """
    rules, on_finding = config.pop("rules", False), config.pop("on_finding", "warn")
    if on_finding not in ("warn", "stop"):
        raise InvalidArgumentError(f"on_finding is {on_finding!r}; expected 'warn' or 'stop'")
    if isinstance(rules, bool):
        rules = "all" if rules else ""
    if isinstance(rules, (list, tuple)) and all(isinstance(rule, str) for rule in rules):
        rules = ",".join(rules)
    if not isinstance(rules, str):
        raise InvalidArgumentError(
            f"rules is {rules!r}; expected True, a list of rules, or a text as for `luff run --rules`"
        )
    if on_finding == "stop" and not rules:
        raise InvalidArgumentError("on_finding='stop' without rules=: nothing would find anything")
    if on_finding == "stop" and judges_later(rules):
        raise InvalidArgumentError(
            "on_finding='stop' with rules='later': no rule is judged here that could stop the job; "
            "give `luff watch` --on-finding stop"
        )
    return rules, on_finding


def judges_later(rules: str) -> bool:
    """Whether rules as text are to be recorded for, and judged later or elsewhere."""
    return "later" in rules.split(",")


def needs_of(rules: str) -> dict[str, Any]:
    """Returns the capture configuration that rules need.

    Raises
    ------
    InvalidArgumentError
        If there is no such rule or parameter; the message is that of `luff run --rules`.
    """
    command = [luff_command(), "rules", "--capture", "--rules", rules]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise InvalidArgumentError(f"{command[0]} cannot be run: {error}") from error
    try:  # the exit code is unknown where the program ignores SIGCHLD
        return parse_json(done.stdout)  # type: ignore[no-any-return]
    except ValueError:
        raise InvalidArgumentError(done.stderr.strip().removeprefix("luff: ")) from None


def watch_beside(run: str, rules: str, on_finding: str) -> None:
    """Starts `luff watch` in the background, as a process that is not our child. It ends with this process.

    It prints to this process's stderr.

    Raises
    ------
    InvalidArgumentError
        If it does not start.
    """
    words = [luff_command(), "watch", run, "--rules", rules, "--on-finding", on_finding]
    done = subprocess.run(
        [*words, "--while", str(os.getpid()), "--detach"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise InvalidArgumentError(f"luff watch ended with exit code {done.returncode}: {run}")


def open_when_judged(options: RunOptions, rank: tuple[int, int] | None) -> Session:
    """Opens a resumed run; waits, at most 20 s, for the rules beside its earlier part, which still judge its end.

    Raises
    ------
    AlreadyExistsError
        If it is held for longer, or its training has not ended.
    """
    deadline = time.monotonic() + _LET_GO_S
    while True:
        try:
            return open_session(options, rank)
        except AlreadyExistsError:
            if time.monotonic() > deadline or not _has_ended(options.path):
                raise
        time.sleep(0.1)


def _has_ended(run: str) -> bool:
    from luff.trial import open_trial

    try:
        with open_trial(run) as trial:
            return trial.outcome != "running"
    except LuffError:
        return False
