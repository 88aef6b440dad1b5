"""Code that every framework's hook shares: errors, step counters, the worker's number, opening the session.

Nothing here imports a framework. Code that runs inside a training step never raises into it and never prints:
`Guard` counts errors, and the session carries the counts into the run.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from luff import _codes as codes
from luff._world import world_name

if TYPE_CHECKING:
    from luff._core import ModuleTimer

__all__ = [
    "Guard",
    "Refused",
    "ResumePoint",
    "RunOptions",
    "Session",
    "StepClock",
    "environment_document",
    "find_run",
    "note_aside",
    "open_session",
    "resume_point",
    "run_from_environment",
    "set_trial_run",
]

ENVIRONMENT_VARIABLE = "LUFF_SESSION"
_aged = False
_MAX_ASIDE_BYTES = 1 << 16  # a file of this size takes no more notes


class Session(Protocol):
    """The part of a capture session that a hook uses; `luff._core.Session` implements it."""

    def define_tensor(self, name: str, role: int, module_path: str = "", module_type: str = "") -> int: ...
    def define_layout(
        self, dtype: int, shape: Sequence[int], strides: Sequence[int] | None = None
    ) -> int: ...
    def define_shard_layout(
        self,
        dtype: int,
        shape: Sequence[int],
        strides: Sequence[int] | None,
        global_shape: Sequence[int],
        global_offset: Sequence[int],
    ) -> int: ...
    def set_document(self, name: str, json_text: str) -> None: ...
    def begin_step(self, mode: int, mode_step: int) -> int: ...
    def waited(self, ns: int) -> None: ...
    def mark_step_end(self) -> None: ...
    def module_times(self, timer: ModuleTimer) -> None: ...
    def traced(self, begins: bool) -> None: ...
    def due_role(self, role: int) -> int: ...
    def due_tensor(self, tensor: int) -> int: ...
    def capture(self, table: NDArray[np.uint64], count: int | None = None) -> None: ...
    def capture_one(
        self, tensor: int, layout: int, address: int, storage_key: int = 0, flags: int = 0
    ) -> None: ...
    def capture_scaled(self, table: NDArray[np.uint64], factor: float, count: int | None = None) -> None: ...
    def capture_on_device(
        self,
        table: NDArray[np.uint64],
        count: int,
        device: int,
        stream: int,
        factor: float = 1.0,
        divisor: int = 0,
    ) -> None: ...
    def scalar_on_device(
        self,
        tensor: int,
        layout: int,
        dtype: int,
        address: int,
        device: int,
        stream: int,
        factor: float = 1.0,
    ) -> None: ...
    def hash_on_device(
        self, seed: int, address: int, nbytes: int, parts: int, stride: int, device: int, stream: int
    ) -> int: ...
    def read_on_device(self, ranges: Sequence[int], device: int, stream: int) -> int: ...
    def take_read(self, read: int) -> bytes | None: ...
    def begin_phase_on_device(self, phase: int, device: int, stream: int) -> None: ...
    def end_step_on_device(self, device: int, stream: int) -> None: ...
    def capture_summaries(self, heads: NDArray[np.uint64], values: NDArray[np.float64]) -> None: ...
    def scalar(self, tensor: int, value: float) -> None: ...
    def text(self, tensor: int, utf8: str) -> None: ...
    def event(self, kind: int, subject: int = codes.NO_ID, argument: int = 0) -> None: ...
    def event_json(self, json_text: str) -> None: ...
    def gap(self, tensor: int, reason: int, forms: int, count: int = 1) -> None: ...
    def hash(self, address: int, nbytes: int) -> int: ...
    def end_step(
        self,
        mode: int,
        global_step: int,
        mode_step: int,
        update: int,
        wall_unix_ns: int = 0,
        duration_ns: int = 0,
    ) -> None: ...
    def nonfinite(self) -> int: ...
    def abandon_step(self) -> None: ...
    def stop_state(self) -> int: ...
    def at_step_boundary(self, train_step: int) -> int: ...
    def stop_reason(self) -> str: ...
    def accept_actions(self, kinds: Sequence[str]) -> None: ...
    def take_action(self) -> tuple[int, str, str, str] | None: ...
    def action_done(self, control: int, done: bool) -> None: ...
    def flush(self, timeout_s: float) -> bool: ...
    def close(self, reason: int, timeout_s: float = 2.0) -> None: ...
    def after_fork_in_child(self) -> None: ...
    def health(self) -> dict[str, Any]: ...
    @property
    def worker(self) -> int: ...
    @property
    def reads_accelerators(self) -> bool: ...
    @property
    def run_path(self) -> str: ...


class Refused(Exception):
    """What was asked for is not done now, for a reason that the run holds."""


class Guard:
    """Counts errors inside a hook and keeps the text of the first one of each place. Bounded."""

    LIMIT = 64

    def __init__(self) -> None:
        self.count = 0
        self.places: dict[str, int] = {}
        self.first: dict[str, str] = {}
        self.unreported: list[str] = []

    def note(self, place: str, error: BaseException) -> None:
        """Counts one error; never raises."""
        try:
            self.count += 1
            if place in self.places:
                self.places[place] += 1
            elif len(self.places) < self.LIMIT:
                self.places[place] = 1
                text = f"{type(error).__name__}: {error}"[:500]
                self.first[place] = text
                self.unreported.append(place)
        except Exception:  # the exception cannot be converted to text
            self.count += 1

    def report(self, session: Session) -> None:
        """Records the errors not yet reported: for each place a gap, and an event with the text."""
        places, self.unreported = self.unreported, []
        for place in places:
            session.gap(codes.NO_ID, int(codes.GapReason.HOOK_ERROR), 0, 1)
            session.event_json(json.dumps({"kind": "hook_error", "place": place, "error": self.first[place]}))


@dataclass
class ResumePoint:
    """Counts of the steps in a run, which are the numbers of the next steps."""

    global_step: int
    mode_steps: dict[int, int]
    update: int


def resume_point(path: str) -> ResumePoint | None:
    """Returns where a resumed run continues; None for a run without steps, or one that cannot be read.

    Called before the session is opened: in a distributed job no rank can have published a step by then.
    """
    try:
        from luff.trial import open_trial

        with open_trial(path) as trial:
            last = trial.steps()
            if not last:
                return None
            modes = [m for m in codes.Mode if m is not codes.Mode.GLOBAL]
            ends = {int(m): trial.steps(m)[-1:] for m in modes}
            newest = trial.step_info(last[-1])
            # newest["update"] excludes the step itself, which is an update if its mode is TRAIN
            updated = int(newest["mode"] == "TRAIN")
            counts = {m: end[0] + 1 for m, end in ends.items() if end}
            return ResumePoint(last[-1] + 1, counts, int(newest["update"]) + updated)
    except Exception:  # an unreadable run does not stop the training: counting starts at 0, in a new epoch
        return None


@dataclass
class StepClock:
    """Counts all steps, the steps of each mode, and the updates of each optimizer."""

    global_step: int = 0
    mode_steps: dict[int, int] = field(default_factory=lambda: {1: 0, 2: 0, 3: 0, 4: 0})
    updates: dict[int, int] = field(default_factory=dict)  # optimizer number -> updates so far
    first_update: int = 0  # updates before the first step of this process
    first_train_step: int = 0

    def resume(self, point: ResumePoint) -> None:
        """Continues after the last step of an earlier process."""
        self.global_step = point.global_step
        self.mode_steps.update(point.mode_steps)
        self.first_update = point.update
        self.first_train_step = self.mode_steps[int(codes.Mode.TRAIN)]

    def update_of(self, optimizer: int) -> int:
        """Returns the updates of one optimizer so far."""
        return self.updates.get(optimizer, self.first_update)

    def advance(self, mode: int) -> None:
        """Counts a finished step of the mode."""
        self.global_step += 1
        self.mode_steps[mode] += 1

    def latest_update(self) -> int:
        """Returns the largest number of updates of any optimizer."""
        return max(self.updates.values(), default=self.first_update)


@dataclass
class RunOptions:
    """Where and how a session is opened."""

    path: str
    resume: bool = False
    join: bool = False
    config: dict[str, Any] = field(default_factory=dict)
    job: str = ""  # of `luff run`, which may start several trainings; `path` is the run of the first
    supervisor: int = 0  # process number of that `luff run`
    rules: str = ""  # to run beside a training that no `luff run` watches; empty for none
    on_finding: str = "warn"
    upload: str = ""  # URL of the bucket into which a run is uploaded that no `luff run` watches; "" for none
    unnamed: bool = False  # nobody chose `path`
    marks: str = ""  # document "trial" of what `luff run --sweep` says, as JSON; "" for none
    trial: Trial | None = (
        None  # the `luff.trial_run` under way: its end ends the run, and the process goes on
    )


class Trial(Protocol):
    """What a hook asks of a `luff.trial_run`."""

    def document(self) -> str: ...
    def opened(self, session: Session, run: str) -> None: ...


_trial: RunOptions | None = None


def set_trial_run(options: RunOptions | None) -> None:
    """Chooses the run of what this process trains from now on, in place of that of `luff run`; None: no more."""
    global _trial
    _trial = options


def run_from_environment() -> RunOptions | None:
    """Returns the run that `luff.trial_run`, else `luff run`, chose for this process, or None."""
    if _trial is not None:
        return _trial
    text = os.environ.get(ENVIRONMENT_VARIABLE)
    if not text:
        return None
    try:
        record = json.loads(text)
        if not isinstance(record, dict) or not isinstance(record.get("run"), str):
            return None
        config = record.get("config") or {}
        return RunOptions(
            path=record["run"],
            resume=bool(record.get("resume", False)),
            join=True,
            config=config if isinstance(config, dict) else {},
            job=str(record.get("job", "")),
            supervisor=int(record.get("supervisor_pid", 0)),
            marks=json.dumps(record["trial"]) if isinstance(record.get("trial"), dict) else "",
        )
    except (ValueError, TypeError):
        return None


def rank_from_environment() -> tuple[int, int] | None:
    """Returns the rank and world size that a launcher set in the environment, or None."""
    try:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return None
    return (rank, world) if 0 <= rank < world else None


def note_aside(path: str, error: BaseException) -> None:
    """Notes in the supervisor's run why this process, or what it trains from now on, is not watched; never raises."""
    try:
        text = f"{type(error).__name__}: {error}"[:1000]
        line = json.dumps({"pid": os.getpid(), "error": text}) + "\n"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(os.path.join(path, "aside.jsonl"), flags, 0o600)
        try:
            if os.fstat(file).st_size < _MAX_ASIDE_BYTES:
                os.write(file, line.encode())
        finally:
            os.close(file)
    except Exception:  # the directory is gone, or the disk is full: there is no way to report it
        return


def _command() -> str:
    return json.dumps([sys.executable, *sys.argv])


def find_run(options: RunOptions, rank: tuple[int, int] | None) -> str:
    """Returns the run that a new session of this process records into.

    Each training of a `luff run` has a run of its own; the ranks of a world share one.

    Raises
    ------
    LuffError
        If a directory beside the run of the first training is needed and cannot be made.
    """
    if not options.job:
        return options.path
    from luff import _core

    try:
        return _core.find_run(
            options.path,
            options.job,
            world_name(rank, options.supervisor),
            _command(),
            None if rank is None else rank[0],
            options.resume,
        )
    except Exception as error:
        note_aside(options.path, error)
        raise


def open_session(options: RunOptions, rank: tuple[int, int] | None) -> Session:
    """Opens a session for this process.

    Under `luff run` an error is also noted in the run's directory, for the verdict.

    Parameters
    ----------
    options
        Run and capture configuration.
    rank
        Rank and world size, or None for a process without rank.

    Raises
    ------
    LuffError
        If the run cannot be created or joined.
    """
    from luff import _core
    from luff._sampler import sampler_of

    sampler, environment = sampler_of(options)
    _core.know_stacks(os.path.dirname(os.path.abspath(__file__)) + os.sep)
    world = rank[1] if rank else 1
    join = options.join or world > 1

    def opened(worker: int | None) -> Session:
        opener: Any = _core.Session.open
        session: Session = opener(
            options.path,
            worker=worker,
            world_size=world,
            join=join,
            resume=options.resume,
            config_json=json.dumps(options.config) if options.config else "",
            command_json=_command(),
            sampler=sampler,
            sampler_environment=environment,
        )
        if options.marks and options.trial is None:
            session.set_document("trial", options.marks)
        return session

    try:
        if rank is None:
            return opened(None if join else 0)
        try:
            return opened(rank[0])
        except Exception:
            if not options.join:
                raise
            return opened(None)  # another process has this rank: this one is a child of a rank
    except Exception as error:
        if options.job:
            note_aside(options.path, error)
        raise


def _cores() -> int:
    """Returns how many cores the process may use: those of all its threads, as OpenMP can bind the first to one."""
    allowed = os.sched_getaffinity(0)
    try:
        for thread in os.listdir("/proc/self/task")[:1024]:
            allowed |= os.sched_getaffinity(int(thread))
    except (OSError, ValueError):  # a thread has ended meanwhile
        pass
    return len(allowed)


def _age() -> dict[str, float]:
    """Returns for how long the process has run, and for how long its main thread had no core meanwhile, in seconds.

    Nothing after the first call, in a session that somebody types into (the time is theirs), or where the system
    does not tell.
    """
    global _aged
    if _aged:
        return {}
    _aged = True
    if hasattr(sys, "ps1") or sys.flags.interactive or "ipykernel" in sys.modules:
        return {}
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        with open("/proc/self/schedstat", encoding="ascii", errors="replace") as file:
            waited = int(file.read().split()[1]) * 1e-9
        return {"age_s": round(age, 3), "age_run_queue_s": round(waited, 3)}
    except (OSError, ValueError, IndexError, AttributeError):
        return {}


def environment_document(**more: Any) -> str:
    """Returns the document "environment" as JSON: the software of this process."""
    record: dict[str, Any] = {
        "python": platform.python_version(),
        "executable": sys.executable,
        "argv": list(sys.argv)[:256],
        "platform": platform.platform(),
        "host": platform.node(),
        "pid": os.getpid(),
        "cpus": os.cpu_count(),
        "cores": _cores(),
        "numpy": np.__version__,
    }
    record.update(_age())
    record.update(more)
    return json.dumps(record, default=str)
