"""Runs one of the user's own rules: speaks the protocol of docs/spec/rule-child.md over descriptor 3."""

from __future__ import annotations

import codecs
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from luff.rule import Rule
    from luff.trial import Trial

_SOCKET = 3
_NO_MEMORY = 77  # OwnChild::kNoMemory: of a process for many runs, none of them is to blame
_PROTOCOL = 1
_WAIT_S = 5.0
_OF_STREAMS = ("begin", "step", "save", "end")


def _visible(error: UnicodeError) -> tuple[str, int]:
    """Shows bytes of a name that are not UTF-8 as the luff command does; JSON doubles the backslash."""
    assert isinstance(error, UnicodeEncodeError)
    wrong = map(ord, error.object[error.start : error.end])
    return "".join(f"\\\\x{c - 0xDC00:02x}" if 0xDC80 <= c <= 0xDCFF else "?" for c in wrong), error.end


codecs.register_error("luff.visible", _visible)


class _Over(Exception):
    """The process cannot continue; `again`: a new process may succeed."""

    def __init__(self, message: str, again: bool = False) -> None:
        super().__init__(message)
        self.again = again


class _Stream:
    """The rule on one run."""

    def __init__(self, child: _Child, name: int | None) -> None:
        self.child = child
        self.name = name  # None: it is the only one, and nothing names it
        self.trial: Trial | None = None
        self.rule: Rule | None = None

    def say(self, kind: str, **members: Any) -> None:
        self.child.say(kind, **members, **({} if self.name is None else {"stream": self.name}))

    def begin(self, told: dict[str, Any]) -> None:
        from luff import _core, _rules
        from luff.trial import Trial

        kind = self.child.load(told)
        self.trial = Trial(_core.open_trial(told["run"], 0.0, True, 60.0, int(told["position"])))
        try:
            self.rule = _rules.make(kind, self.trial, told["parameters"])
            if "state" in told:
                self.rule.restore(json.loads(told["state"]))
        except MemoryError:
            raise
        except Exception as error:
            raise _Over(f"it cannot begin: {_rules.place_of(error, kind)}") from None
        self.say("ready")

    def show(self, number: int) -> None:
        """Lets the trial show this step and none beyond."""
        assert self.trial is not None
        core = self.trial._core
        core.show_at_most(number + 1)
        deadline = time.monotonic() + _WAIT_S
        while core.step_count <= number:
            core.refresh()
            if core.step_count > number:
                return
            if time.monotonic() > deadline:
                raise _Over(f"step number {number} cannot be read", again=True)
            time.sleep(0.002)

    def step(self, told: dict[str, Any]) -> None:
        from luff import _rules
        from luff.rule import StepView, is_lack

        assert self.trial is not None and self.rule is not None
        number = told["number"]
        self.show(number)
        extra = {}
        try:
            self.tell(self.rule._step(StepView(self.trial, number)))
        except MemoryError:
            raise
        except Exception as error:
            if is_lack(error):
                extra["lacks"] = str(error)
            else:
                view = self.rule._view
                where = f" at {view.mode} step {view.mode_step}" if view is not None else ""
                extra["raised"] = f"it raised{where}: {_rules.place_of(error, type(self.rule))}"
        self.say("done", number=number, **extra)

    def tell(self, told: list[tuple[str, Any]]) -> None:
        for kind, what in told:
            if kind == "heal":
                self.say("heal", cause=what[0], tensor=what[1], step=what[2])
            else:
                self.say("finding", **what.to_dict())

    def save(self, _: dict[str, Any]) -> None:
        from luff import _rules
        from luff.rule import check_state

        assert self.rule is not None
        try:
            state = check_state(self.rule)
        except MemoryError:
            raise
        except Exception as error:
            self.say("state", why=_rules.place_of(error, type(self.rule)))
            return
        if state is None:
            self.say("state")
        else:
            self.say("state", state=state)

    def end(self, _: dict[str, Any]) -> None:
        from luff import _rules

        assert self.rule is not None
        try:
            self.tell(self.rule._end())
        except MemoryError:
            raise
        except Exception as error:
            print(f"on_end raised: {_rules.place_of(error, type(self.rule))}", file=sys.stderr)
        self.say("ended")


class _Child:
    def __init__(self, lines: BinaryIO, out: BinaryIO) -> None:
        self.lines = lines
        self.out = out
        self.streams: dict[int | None, _Stream] = {}

    def say(self, kind: str, **members: Any) -> None:
        line = json.dumps({"say": kind, **members}, ensure_ascii=False)
        self.out.write(line.encode("utf-8", "luff.visible") + b"\n")
        self.out.flush()

    def serve(self) -> None:
        for line in self.lines:
            told = json.loads(line)
            if told["do"] == "describe":
                return self.describe(told)
            self.answer(told)
            if told["do"] == "end" and told.get("stream") is None:
                return None
        return None

    def answer(self, told: dict[str, Any]) -> None:
        """Carries out what is told of one run. With streams, what ends one leaves the others."""
        from luff.errors import LuffError

        name = told.get("stream")
        if told["do"] == "drop":
            self.streams.pop(name, None)
            return
        if told["do"] == "begin":
            self.streams[name] = _Stream(self, name)
        stream = self.streams.get(name)
        if stream is None and name is not None:
            return  # it has ended by an error, which the other side had not heard of when it sent this
        handler = getattr(stream, told["do"], None) if told["do"] in _OF_STREAMS else None
        if handler is None:
            raise _Over(f"the word {told['do']!r} is not of this protocol")
        try:
            handler(told)
        except (_Over, LuffError) as error:
            if name is None:
                raise
            self.say("error", stream=name, message=str(error), again=getattr(error, "again", False))
            del self.streams[name]
        if told["do"] == "end":
            self.streams.pop(name, None)

    def load(self, told: dict[str, Any]) -> type[Rule]:
        from luff import _rules
        from luff.errors import LuffError

        if told.get("protocol") != _PROTOCOL:
            raise _Over(
                f"protocol {told.get('protocol')} found, {_PROTOCOL} expected: luff and its package differ"
            )
        try:
            return _rules.load(told["rule"])
        except (MemoryError, KeyboardInterrupt):
            raise
        except LuffError:
            raise
        except BaseException as error:
            raise _Over(f"the file of the rule cannot be loaded: {_rules.place_of(error, None)}") from None

    def describe(self, told: dict[str, Any]) -> None:
        from luff import _rules

        self.say("description", **_rules.describe(self.load(told), told["parameters"]))


def main() -> int:
    """Serves until the other side is gone; returns the exit code."""
    # What the rule prints goes to descriptor 1, never between the protocol's lines. Each direction has a descriptor
    # of its own.
    lines, out = os.fdopen(os.dup(_SOCKET), "rb"), os.fdopen(os.dup(_SOCKET), "wb")
    os.close(_SOCKET)
    child = _Child(lines, out)
    try:
        from luff.errors import LuffError, NotFoundError

        try:
            child.serve()
        except LuffError as error:
            child.say("error", message=str(error), unknown=isinstance(error, NotFoundError))
    except _Over as over:
        child.say("error", message=str(over), again=over.again)
    except MemoryError:
        os.write(2, b"out of memory: it needs more than limit_memory_mb allows\n")
        os._exit(_NO_MEMORY)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # do not wait for threads that the rule left behind
