"""The C++ core of Luff. Private: use the modules of `luff`."""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray

def version() -> str:
    """The version of this build."""

def raise_status(code: int, message: str) -> None:
    """
    Raise the exception of a status code, so that tests can see each of them.
    """

def escaped(text: str) -> str:
    """Text for a terminal: what steers one becomes \\xNN."""

def valid_text(text: str) -> str:
    """Text whose bytes that were no UTF-8 have become \\xNN."""

def write_output(path: str, content: bytes, replace: bool) -> None:
    """
    Write a file whole; links are not followed, a file that is there is kept unless `replace`.
    """

class OutputFolder:
    """A directory that is filled with files; below it no link is followed."""

    def __init__(self, path: str) -> None: ...
    def write(self, name: str, content: bytes) -> None:
        """Write a file whole, in place of one of this name."""

    def remove(self, name: str) -> None:
        """Remove a file."""

def call_soon(function: object) -> bool:
    """
    The main thread calls it when it next comes to Python code. False: it will not, too many others wait.
    """

def search(pattern: str, texts: Sequence[str]) -> list[int]:
    """
    Places of the texts in which an expression of Python's dialect matches. Its matching is bounded: beyond the bound it counts as no match.
    """

def enter_phase(phase: int) -> None:
    """The calling thread is in this phase until `leave_phase`."""

def enter_wait(loader: int, worker: int, ready: int) -> None:
    """
    It waits for a batch: number of the loader, of the worker that makes it, and of the batches that are ready; 2**32 - 1 in each: not known. Left by `leave_phase(DATA_WAIT)`.
    """

def leave_phase(phase: int) -> None:
    """It is no longer."""

class ModuleTimer:
    """How long the calls of modules take in one step. No call raises."""

    def __init__(self) -> None: ...
    def begin(self) -> None:
        """A step begins."""

    def enter(self, module: int) -> int:
        """
        A call of a module begins; its time begins with `resume`. Returns the number of the call.
        """

    def leave(self, call: int) -> None:
        """It has ended; the time of the call around it goes on with `resume`."""

    def pause(self) -> None:
        """From here to `resume` time belongs to no module."""

    def resume(self) -> None:
        """The time of the innermost call goes on."""

    def stamp(self, call: int, leaves: bool) -> int:
        """
        What a node of the graph says to `at`: a backward pass comes to this call, or leaves it.
        """

    def at(self, stamp: int, gradients: object | None = None) -> None:
        """A backward pass has come to a node with this stamp."""

    def backward_begins(self) -> None:
        """Stamps count from here on."""

    def backward_ends(self) -> None:
        """They count no more."""

    def tell(self, flag: int) -> None:
        """
        Something cannot be seen: 1: modules inside a graph; 2: a backward pass computes activations again.
        """

def forget_phases() -> None:
    """In a forked child: forget what the parent was doing."""

def collecting(phase: object, info: object) -> None:
    """A call-back for `gc.callbacks`."""

def find_run(first_run: str, job: str, world: str, command_json: str, rank: int | None, resume: bool) -> str:
    """
    Returns the run that this process's training records into, in a job that may start several.
    """

def check_config(config_json: str) -> str:
    """
    The collections that a capture configuration means, as JSON; raises what is wrong with it.
    """

class Session:
    """
    One worker's recording of a run. All methods after `open` never raise for reasons of the run, the disk or the network.
    """

    @staticmethod
    def open(
        run_path: str,
        *,
        resume: bool = False,
        join: bool = False,
        worker: int | None = None,
        world_size: int = 1,
        config_json: str = "",
        command_json: str = "",
        sampler: str = "",
        sampler_environment: Sequence[str] = [],
    ) -> Session:
        """
        Create or join the run. `worker` None takes the lowest free number. `sampler`: path of `luff`, which measures the machine meanwhile.
        """

    def define_tensor(self, name: str, role: int, module_path: str = "", module_type: str = "") -> int:
        """Number of the tensor of this name."""

    def define_layout(self, dtype: int, shape: Sequence[int], strides: Sequence[int] | None = None) -> int:
        """Number of a dtype, shape and strides (in elements; None: row-major)."""

    def define_shard_layout(
        self,
        dtype: int,
        shape: Sequence[int],
        strides: Sequence[int] | None,
        global_shape: Sequence[int],
        global_offset: Sequence[int],
    ) -> int:
        """The same for a part of a larger tensor."""

    def set_document(self, name: str, json_text: str) -> None:
        """A JSON document of the run, at most 16 MiB."""

    def begin_step(self, mode: int, mode_step: int) -> int:
        """
        Decide what is due in the step that begins. Returns of which roles anything is: bits, 1 << role.
        """

    def due_role(self, role: int) -> int:
        """Form bits due in this step for any tensor of the role; 0: nothing."""

    def due_tensor(self, tensor: int) -> int:
        """Form bits due in this step for one tensor."""

    def capture(
        self,
        table: Annotated[
            NDArray[numpy.uint64], dict(shape=(None, 4), order="C", device="cpu", writable=False)
        ],
        count: int | None = None,
    ) -> None:
        """
        Copy and summarise what is due. Rows of uint64: id | layout << 32, address, storage key, flags.
        """

    def capture_one(
        self, tensor: int, layout: int, address: int, storage_key: int = 0, flags: int = 0
    ) -> None:
        """The same for one tensor."""

    def capture_scaled(
        self,
        table: Annotated[
            NDArray[numpy.uint64], dict(shape=(None, 4), order="C", device="cpu", writable=False)
        ],
        factor: float,
        count: int | None = None,
    ) -> None:
        """The same for values to be multiplied."""

    def capture_on_device(
        self,
        table: Annotated[
            NDArray[numpy.uint64], dict(shape=(None, 4), order="C", device="cpu", writable=False)
        ],
        count: int,
        device: int,
        stream: int,
        factor: float = 1.0,
        divisor: int = 0,
    ) -> None:
        """
        The same for memory of an accelerator, behind the work of a stream. `divisor`: address of a float32 there.
        """

    def scalar_on_device(
        self,
        tensor: int,
        layout: int,
        dtype: int,
        address: int,
        device: int,
        stream: int,
        factor: float = 1.0,
    ) -> None:
        """
        Record a number in memory of an accelerator, as a tensor too if that is due.
        """

    def hash_on_device(
        self, seed: int, address: int, nbytes: int, parts: int, stride: int, device: int, stream: int
    ) -> int:
        """
        Hash memory of an accelerator: `parts` ranges of `nbytes`, `stride` apart. Returns what stands for the hash in events of batches of this step; 0: it cannot be read now.
        """

    def read_on_device(self, ranges: Sequence[int], device: int, stream: int) -> int:
        """
        Read memory of an accelerator for the caller: address and bytes of each range, one after the other. Returns a number for `take_read`; 0: nothing can be read now.
        """

    def take_read(self, read: int) -> object:
        """
        What was read, once it has come; None: it is on its way; empty: it was lost.
        """

    def begin_phase_on_device(self, phase: int, device: int, stream: int) -> None:
        """
        A phase of the training begins behind the work of the stream: mark the place.
        """

    def end_step_on_device(self, device: int, stream: int) -> None:
        """The step ends behind the work of the stream: mark the place."""

    def capture_summaries(
        self,
        heads: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        values: Annotated[
            NDArray[numpy.float64], dict(shape=(None, 8), order="C", device="cpu", writable=False)
        ],
    ) -> None:
        """
        Record summaries computed elsewhere. Heads: id | layout << 32. Rows of float64: sum, sum of squares, sum of absolute values, minimum, maximum, zeros, NaN, Inf.
        """

    def scalar(self, tensor: int, value: float) -> None:
        """Record a number."""

    def text(self, tensor: int, utf8: str) -> None:
        """Record a text."""

    def event(self, kind: int, subject: int = 4294967295, argument: int = 0) -> None:
        """Record an event of the training loop."""

    def event_json(self, json_text: str) -> None:
        """Record an event with an object of its own, which has "kind"."""

    def gap(self, tensor: int, reason: int, forms: int, count: int = 1) -> None:
        """Say that something was not recorded, and why."""

    def hash(self, address: int, nbytes: int) -> int:
        """XXH3-64 of memory; 0 for none."""

    def module_times(self, timer: ModuleTimer) -> None:
        """The step in progress has these times of modules."""

    def traced(self, begins: bool) -> None:
        """
        Operators are traced from now on, or until the end of the step in progress.
        """

    def waited(self, ns: int) -> None:
        """
        The step in progress began its phase `compute` with a wait for data of so many ns.
        """

    def mark_step_end(self) -> None:
        """
        A step has ended now, and a later `end_step` with a time hands it over: keep where its time went.
        """

    def end_step(
        self,
        mode: int,
        global_step: int,
        mode_step: int,
        update: int,
        wall_unix_ns: int = 0,
        duration_ns: int = 0,
    ) -> None:
        """Hand the step to the writer thread; with a time: one that ended then."""

    def nonfinite(self) -> int:
        """Summaries so far of tensors that were not finite throughout."""

    def abandon_step(self) -> None:
        """Drop the step in progress."""

    def stop_state(self) -> int:
        """0: go on; 1: something is proposed; 2: stop now."""

    def at_step_boundary(self, train_step: int) -> int:
        """
        After that many TRAIN steps: wait, bounded, if a proposal names this one. 2: stop now; 3: take_action.
        """

    def stop_reason(self) -> str:
        """Why the run is stopped, for people."""

    def accept_actions(self, kinds: Sequence[str]) -> None:
        """Kinds of corrective actions that the training has opted into."""

    def take_action(self) -> tuple[int, str, str, str] | None:
        """
        What has to be carried out now: number, kind, settings as JSON, reason; None if nothing.
        """

    def action_done(self, control: int, done: bool) -> None:
        """Answer whether it was carried out."""

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything so far is published; False after the time-out."""

    def close(self, reason: int, timeout_s: float = 2.0) -> None:
        """End the recording. Idempotent."""

    def after_fork_in_child(self) -> None:
        """In a forked child: take nothing more."""

    def health(self) -> dict:
        """Counters, the first error, and whether anything is still taken."""

    @property
    def worker(self) -> int:
        """Number of this worker."""

    @property
    def reads_accelerators(self) -> bool:
        """Whether memory of accelerators is read at all."""

    @property
    def run_path(self) -> str:
        """The run directory."""

def know_stacks(package: str) -> None:
    """
    Lets sessions read the stacks of this interpreter's threads. `package`: the folder of Luff's own package.
    """

def on_terminate(function: object) -> None:
    """
    What the main thread calls before SIGTERM ends the process, if it comes to Python code within 0.15 s.
    """

class Samples:
    def refresh(self) -> bool: ...
    def hosts(self) -> list: ...
    def document(self, host: int, name: str) -> str: ...
    def series(self, host: int) -> list: ...
    def read(self, host: int, name: str) -> tuple: ...

def open_samples(path: str) -> Samples: ...

class Trial:
    def refresh(self) -> bool: ...
    def wait_for_news(self, timeout_s: float) -> bool: ...
    def wait_for_step(self, step: int, mode: int, timeout_s: float) -> None: ...
    @property
    def loaded_all_steps(self) -> bool: ...
    @property
    def path(self) -> str: ...
    @property
    def world_size(self) -> int: ...
    @property
    def step_count(self) -> int: ...
    def outcome(self) -> tuple: ...
    def problems(self) -> list[str]: ...
    def workers(self) -> list: ...
    def tensors(self, regex: str, collection: str, mode: int, step: int | None) -> list[str]: ...
    def find(self, name: str) -> int: ...
    def info(self, id: int) -> tuple: ...
    def collections(self) -> list[str]: ...
    def document(self, name: str, worker: int | None = None) -> str: ...
    def steps(self, mode: int) -> list[int]: ...
    def step_info(self, step: int, mode: int) -> tuple: ...
    def show_at_most(self, steps: int) -> None: ...
    def step_at(self, n: int) -> tuple: ...
    def step_rows(self, n: int) -> tuple: ...
    def step_state(self, step: int, mode: int) -> int: ...
    def tensor_steps(self, id: int, mode: int) -> list[int]: ...
    def tensor_workers(self, id: int, step: int, mode: int) -> list[int]: ...
    def value_steps(self, id: int, mode: int, worker: int | None) -> list[int]: ...
    def value(self, id: int, step: int, mode: int, worker: int | None) -> object: ...
    def stack(self, id: int, mode: int, worker: int | None, max_bytes: int) -> tuple: ...
    def shape(self, id: int, step: int, mode: int, worker: int | None) -> tuple: ...
    def summary(self, id: int, step: int, mode: int, worker: int | None) -> dict: ...
    def summaries(self, id: int, mode: int, worker: int | None) -> dict: ...
    def scalars(self, id: int, mode: int, worker: int | None) -> tuple: ...
    def form(self, id: int, form: int, step: int, mode: int, worker: int | None) -> list[float]: ...
    def histogram(self, id: int, step: int, mode: int, worker: int | None) -> tuple: ...
    def saved_reductions(self, id: int, step: int, mode: int, worker: int | None) -> list: ...
    def quantile(self, id: int, step: int, q: float, mode: int, worker: int | None) -> float: ...
    def findings(self) -> tuple: ...
    def gaps(self) -> list: ...
    def events(self, mode: int) -> list: ...
    def phases(self, worker: int | None) -> dict: ...
    def modules(self, worker: int | None) -> tuple: ...
    def json_events(self) -> list: ...

def open_trial(
    path: str, wait_s: float, use_live_page: bool, lost_after_s: float, show_at_most: int | None = None
) -> Trial: ...
