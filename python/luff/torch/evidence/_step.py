"""The open step, and what evidence sees of the training around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from luff import _codes as codes
from luff._codes import Mode
from luff._hook import Session, StepClock
from luff.torch.capture._called import CalledModels
from luff.torch.capture._device import DeviceScalar
from luff.torch.capture._early import EarlyValues
from luff.torch.capture._modules import ModuleCapture
from luff.torch.capture._names import Names
from luff.torch.capture._recorder import Recorder

__all__ = ["MAX_WAITING", "FunctionLoss", "Step", "StepContext"]

MAX_WAITING = 1024  # most evaluation steps that wait for a TRAIN step to be published
_TRAIN = int(Mode.TRAIN)
_NONE: Mapping[Any, Any] = {}


class FunctionLoss(NamedTuple):
    """A call of a functional loss in training."""

    output: Any  # weak reference
    kind: str
    node: int  # sequence number of the node that made it
    call: int  # its place among the calls of its kind in the step, as for its samples
    value: float | DeviceScalar | None  # None where it cannot be read
    given: dict[str, Any]  # settings that it was called with by name; empty once its kind is in the document


class UsedLosses:
    """Counts how often gradients go through the nodes that made a step's losses; hooked to these."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, _gradients: Any) -> None:
        self.count += 1


class Step:
    """A step that has begun and is not yet published. What most steps leave empty is replaced, never modified."""

    begun = False  # the session has begun it
    captured = False  # the session has values that cannot be captured again
    direct = False  # its events go directly to the session
    forwards = 0
    plain_loss = False  # a loss was computed while no saved-tensor hooks were in use
    weights_done = False
    update = -1
    updated = False
    ended = False  # an evaluation's step in a framework's loop has ended: the next forward pass begins another step
    may_train = False  # eval mode, but with gradients: a backward pass makes it a TRAIN step
    batch: int | None = None  # of the data of evaluations, where only these say that it is one
    dropped = False  # an evaluation has applied dropout by a function
    clips = 0  # calls that clipped gradients
    samples = False  # whether samples are taken
    kept: EarlyValues | None = None  # inputs, outputs and labels from before the session was open
    root: Any = None  # weak reference to the model that an EVAL step called
    early: Sequence[Any] = ()  # samples taken before the session was open
    #: Losses before the session was opened.
    pending: Sequence[tuple[str, int, float | DeviceScalar | None, int]] = ()
    function_losses: Sequence[FunctionLoss] = ()
    known_functions: frozenset[int] = frozenset()  # nodes of those that a backward pass has reached
    # Those that the roots of backward passes sum up, where there are several; None: not known.
    summed_losses: frozenset[int] | None = frozenset()
    module_losses: Mapping[str, int] = _NONE
    graph_losses: Mapping[str, int] = _NONE
    sampled: Mapping[int, int] = _NONE  # id of a model -> number of its tensors that were sampled
    sampled_losses: Mapping[str, int] = _NONE  # kind of loss -> number of its calls

    def __init__(self, mode: int) -> None:
        self.mode = mode
        self.decided = mode != _TRAIN  # whether a backward pass was seen
        # Subject: a number, or a weak reference to a module. Argument: a number, or a function that returns one.
        self.events: list[tuple[int, Any, Any]] = []
        self.losses: dict[str, int] = {}  # loss names used, with counts
        self.loss_outputs: list[Any] = []  # weak references to outputs of loss modules
        self.used_losses: UsedLosses | None = None  # made when a loss is marked
        self.loss_nodes: dict[int, str] = {}  # sequence numbers of nodes that made losses, and their kinds

    @property
    def accumulates(self) -> bool:
        """Whether gradients of backward passes wait for an update, or for more of them."""
        return self.mode == _TRAIN and self.decided and not self.updated

    def goes_on(self, batch: int) -> bool:
        """Whether models have got this batch in the step: a backward pass makes all their calls training."""
        return self.may_train and self.batch == batch


class StepContext:
    """What evidence sees of the training: the open step, its session, and the models. `Machine` implements it.

    Attributes
    ----------
    session, recorder, modules
        None until the session is open.
    step
        The open step, or None.
    due
        Of which roles anything is due in the step that the session has begun: bits, 1 << role.
    looked_from
        TRAIN steps before the one in which the optimizers or what they train were last found to have changed: what is
        looked at in the first steps is looked at again, at most 32 times.
    saved_hooks, saving
        Whether saved-tensor hooks were in use since the last TRAIN step, and how many are in use now.
    """

    def __init__(self, names: Names, clock: StepClock) -> None:
        self.names = names
        self.clock = clock
        self.called = CalledModels()
        self.session: Session | None = None
        self.recorder: Recorder | None = None
        self.modules: ModuleCapture | None = None
        self.step: Step | None = None
        self.due = 0
        self.looked_from = 0
        self.saved_hooks = False
        self.saving = 0

    @property
    def looks(self) -> bool:
        """Whether it is looked at what backward passes reach in the next or open TRAIN step, one in powers of two."""
        since = self.clock.mode_steps[_TRAIN] - self.looked_from
        return not since & (since - 1)

    def event(self, kind: int, subject: Any = codes.NO_ID, argument: Any = 0) -> None:
        """Records an event of the training loop."""
        raise NotImplementedError

    def step_of_loss(self) -> Step | None:
        """Returns the step that a loss with a gradient belongs to; begins a TRAIN step if none is open."""
        raise NotImplementedError

    def is_over(self, step: Step) -> bool:
        """Returns whether a step is over by an update that a script without modules and optimizers makes by hand."""
        raise NotImplementedError
