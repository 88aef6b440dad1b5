"""The hook: one run, one session, one step machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from luff import corrections
from luff._base_hook import ACT, mode_of
from luff._codes import Mode
from luff._hook import RunOptions, Session, rank_from_environment
from luff._tracer import TracedHook
from luff._weak import Identities
from luff.torch.capture._early import asks_for_attention, asks_for_gradients, asks_for_values
from luff.torch.capture._gradients import GradientCapture, Watch
from luff.torch.capture._module_times import times_modules
from luff.torch.capture._names import Names
from luff.torch.capture._recorder import parameters_of
from luff.torch.loop._first_step import with_first_step
from luff.torch.loop._machine import Machine
from luff.torch.loop._next_training import NextTraining
from luff.torch.loop._trace import Profilers, TorchTracer
from luff.torch.loop._writer import TensorWriter

__all__ = ["Hook"]


class Hook(TracedHook):
    """Attaches Luff to a PyTorch training. Made by `attach`, or by ``luff run``."""

    framework = "torch"
    writer = TensorWriter
    steps: TensorWriter

    def __init__(
        self,
        options: RunOptions,
        model: Any = None,
        on_stop: Callable[[], object] | None = None,
        correct: corrections.Corrections | None = None,
    ) -> None:
        if model is None:
            options = replace(options, config=with_first_step(options.config))
        super().__init__(options, on_stop, correct)
        self._owned: Identities[bool] = Identities()  # module or optimizer -> whether it is the hook's
        self._parameters: Identities[None] = Identities()
        self.asleep = False  # in a forked child that has not trained yet
        self.on_all = model is None
        self.deferred = False  # a framework's loop carries out stops and corrections
        names = Names()
        if model is not None:
            names.add_root(model)
            self._learn(model)
        self.machine = self._machine(names, eager=model is not None)

    # Ownership --------------------------------------------------------------------------------------------------

    def owns(self, module: Any) -> bool:
        """Returns whether the module is the hook's model, a part of it, or contains it."""
        if self.on_all:
            return True
        known = self._owned.get(module)
        if known is None:
            known = self._owned[module] = any(p in self._parameters for p in module.parameters())
        return known

    def parameters(self) -> list[Any]:
        """Returns the parameters of the hook's models."""
        return self._parameters.things()

    def held_of(self, optimizer: Any) -> int:
        """Returns how many of the optimizer's parameters are the hook's."""
        return sum(parameter in self._parameters for parameter in parameters_of(optimizer))

    def owns_optimizer(self, optimizer: Any) -> bool:
        """Returns whether the optimizer holds a parameter of the hook's model."""
        if self.on_all:
            return True
        known = self._owned.get(optimizer)
        if known is None:
            known = self._owned[optimizer] = any(p in self._parameters for p in parameters_of(optimizer))
        return known

    def tells_training(self) -> Callable[[Any], bool] | None:
        """Returns whether an optimizer holds a parameter of the hook's models, or of an optimizer that updated in the
        run. Keeps none of them alive.
        """
        held: Identities[None] = Identities()
        recorder = self.machine.recorder
        pairs = recorder.living() if recorder is not None else []
        for parameters in (
            self.parameters(),
            *(parameters_of(o) for record, o in pairs if record.settled is not None),
        ):
            for parameter in parameters:
                held[parameter] = None
        return lambda optimizer: any(parameter in held for parameter in parameters_of(optimizer))

    def watch(self, model: Any) -> None:
        """Watches another model, or what was added to a model since."""
        if not self.live:
            return
        if not self.on_all:
            self._learn(model)
            if self.registry is not None:
                self.registry.add(self, [model, *model.parameters()])
        self.guarded("model", self.machine.called.root, model)

    def _learn(self, model: Any) -> None:
        for parameter in model.parameters():
            self._parameters[parameter] = None
        self._owned.clear()

    def told(self, place: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Like `guarded`, for calls of the training; returns None in a thread to which the steps do not belong."""
        try:
            with self.lock:
                machine = self.machine
                return function(*arguments) if machine.turn.keeps() or machine.mine() else None
        except Exception as error:
            self.failed(place, error)
            return None

    # For users -------------------------------------------------------------------------------------------------

    def step(self, mode: Mode | str | None = None, update: int | None = None) -> None:
        """Ends the current step and begins the next. After the first call, steps are counted only by hand.

        Parameters
        ----------
        mode
            Mode of the step that begins; by default the one set by `set_mode`, or TRAIN.
        update
            Number of updates before the step that ends; by default as Luff counts them.
        """
        number = mode_of(mode)
        self.told("step", self.machine.next_step, number, update)
        self.leave_if_stopped()

    def trace(self, steps: int = 3, *, stacks: bool = False) -> str:
        """Traces from here until `steps` TRAIN steps have ended; see `luff.trace`. Returns why not, or ""."""
        why = self.told("trace", self._trace, steps, stacks)
        return "the training is not recorded, or this thread does not train" if why is None else str(why)

    # Inside ----------------------------------------------------------------------------------------------------

    def leave_if_stopped(self) -> None:
        """Carries out what all ranks have agreed on; raises `luff.StopTraining` if a finding stops the run."""
        answer = self.machine.stop
        if not answer or not self.live or self.deferred:
            return
        if answer == ACT:
            self.machine.stop = 0
        self.obey(answer)

    def _lower_lr(self, factor: float) -> None:
        self.machine.lower_lr(factor)

    def make_tracer(self, session: Session, facts: dict[str, Any]) -> TorchTracer:
        """Returns what traces with PyTorch's profiler."""
        return TorchTracer(session, session.run_path, facts, self.opened_s, self.look_at_trace)

    def look_at_trace(self) -> None:
        """Ends a trace that has taken long or recorded much within a step; called between two bytecodes of any code."""
        if self.lock._is_owned():  # type: ignore[attr-defined]  # Luff's own code is at work: the next look will do
            return
        if self.lock.acquire(blocking=False):  # the code around may hold what another thread waits for
            try:
                self.guarded("trace", self._look_at_trace)
            finally:
                self.lock.release()

    def compiles(self) -> None:
        """Called when this thread begins to compile."""
        if self._tracer is not None:
            self.guarded("trace", self._tracer.compiles)

    def _look_at_trace(self) -> None:
        if self._tracer is not None:
            self._tracer.look_here()

    def _trace(self, steps: int, stacks: bool, asked: Mapping[str, Any] | None = None) -> str | None:
        why = super()._trace(steps, stacks, asked)
        if why == "":
            self.machine.tracing = self._tracer
        return why

    def wake(self) -> None:
        """Makes a forked child that trains record as a worker of its own."""
        self.asleep = False

    def forked(self) -> None:
        """Drops the parent's session, in a forked child."""
        super().forked()
        self.asleep = True
        Profilers.forked()
        old = self.machine
        self.machine = self._machine(old.names, eager=False)
        self.machine.take_over(old)

    def leave_for(self, model: Any) -> bool:
        """Ends the run if the call of a model begins another training of this process, which gets its own run."""
        optimizers = self.machine.others_train(model)
        if optimizers is None:
            return False
        self.begin_again()
        for optimizer in optimizers:
            self.machine.optimizer_made(optimizer)
        return True

    def loop_begins(self, model: Any, optimizers: Iterable[Any]) -> None:
        """Called where a framework's loop begins to train a model: its run may end that of the training before."""
        machine = self.machine
        if any(machine.names.parameter(parameter) is not None for parameter in model.parameters()):
            return
        self.trains(model, model.parameters)
        if self.machine is not machine:
            for optimizer in optimizers:
                self.machine.optimizer_made(optimizer)

    def begin_again(self) -> None:
        """Ends the run before another training, which has its own."""
        recorder = self.machine.recorder
        before = [optimizer for _, optimizer in recorder.living()] if recorder is not None else []
        loads = self.machine.evidence.loads.hand_over()  # since the last step, for the next training
        loaders = self.machine.loaders
        super().begin_again()
        self.machine = self._machine(Names(), eager=False)
        self.machine.evidence.loads = loads
        self.machine.loaders = loaders.hand_over(self.machine.clock)
        self.machine.next_training = NextTraining(before)

    def _machine(self, names: Names, eager: bool) -> Machine:
        machine = Machine(names, self.steps, eager)
        if self.on_all and self.one_run_each:
            machine.next_training = NextTraining()
        config = self._options.config
        machine.times_modules = times_modules(config)
        machine.early = asks_for_values(config)
        machine.early_gradients = asks_for_gradients(config)
        machine.early_attention = asks_for_attention(config)
        machine.samples.early = bool(config.get("save_all")) or '"sample"' in json.dumps(config, default=str)
        return machine

    # Session ---------------------------------------------------------------------------------------------------

    def ensure_session(self) -> Session | None:
        """Returns the session, opened by the first backward pass or update; None if that fails, or in a sleeping
        child.
        """
        return None if self.asleep else super().ensure_session()

    def open_now(self, optimizers: Iterable[Any] = (), loss_fn: Any = None) -> None:
        """Opens the session at once, with the optimizers and the loss that are known; errors are left to the caller.

        Raises
        ------
        LuffError
            When the run cannot be created, or the configuration is wrong.
        """
        for optimizer in optimizers:
            self.machine.optimizer_made(optimizer)
        super().open_now()
        recorder = self.machine.recorder
        if recorder is None or loss_fn is None:
            return
        if isinstance(loss_fn, torch.nn.Module):
            recorder.loss(type(loss_fn).__name__, loss_fn)
        else:
            recorder.loss(getattr(loss_fn, "__name__", "loss"))

    def opened(self, session: Session) -> None:
        """Called when the session is open."""
        self.machine.opened(session, self.gradient_arrived)
        self.machine.loaders.opened(session)

    def gradient_arrived(self, gradients: GradientCapture, watch: Watch, gradient: Any) -> None:
        """Called inside a backward pass, in the thread that runs it, with a gradient that was watched for."""
        modules = self.machine.modules
        if self.live and not self.asleep and modules is not None and modules.gradients is gradients:
            self.guarded("gradient", gradients.arrived, watch, gradient)

    def rank(self) -> tuple[int, int] | None:
        """Returns rank and world size from torch.distributed or from a launcher, or None."""
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank()), int(distributed.get_world_size())
        return rank_from_environment()

    def versions(self) -> dict[str, Any]:
        """Returns torch's version, numbers of threads, and the backend of torch.distributed."""
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        return {
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "interop_threads": torch.get_num_interop_threads(),
            "distributed": torch.distributed.get_backend() if distributed else None,
        }

    def _end_trace(self) -> None:
        if self._tracer is not None:
            self.machine.tracing = None
        super()._end_trace()

    def _finish(self) -> None:
        super()._finish()
        if self.machine.session is not None:
            self.machine.finish()
