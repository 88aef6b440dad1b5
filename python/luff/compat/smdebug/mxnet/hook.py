"""The hook of MXNet. Every forward pass of a registered block is a step.

Parameters and gradients of a step are saved when the next step begins, so that weights are those after the update.
"""

from __future__ import annotations

from typing import Any

from mxnet import MXNetError, gluon
from mxnet.ndarray import NDArray

from luff.compat.smdebug.core.callback_hook import CallbackHook
from luff.compat.smdebug.core.collection import Collection as BaseCollection
from luff.compat.smdebug.core.collection import CollectionKeys
from luff.compat.smdebug.core.error_handling_agent import error_handling_agent
from luff.compat.smdebug.core.utils import FRAMEWORK, horovod_rank_and_size
from luff.compat.smdebug.mxnet.collection import DEFAULT_MXNET_COLLECTIONS, CollectionManager

__all__ = ["Hook"]

_OF_PARAMETERS = {
    CollectionKeys.WEIGHTS,
    CollectionKeys.BIASES,
    CollectionKeys.GRADIENTS,
    CollectionKeys.LOSSES,
}


class Hook(CallbackHook):
    """Saves what a model computes while it is trained.

    The parameters are those of `luff.compat.smdebug.core.framework_hook.FrameworkHook`.
    """

    framework = FRAMEWORK.MXNET
    collections_class = CollectionManager
    saved_by_default = DEFAULT_MXNET_COLLECTIONS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._registered: set[int] = set()
        self._blocks: list[gluon.Block] = []  # models, without losses
        self._of_step: set[BaseCollection] = set()  # what the open step saves
        self._failure: BaseException | None = None

    # ---- workers ------------------------------------------------------------------------------------------------

    def _get_worker_name(self) -> str:
        return f"worker_{horovod_rank_and_size('mxnet')[0]}"

    def _get_num_workers(self) -> int:
        return horovod_rank_and_size("mxnet")[1]

    # ---- registration -------------------------------------------------------------------------------------------

    @error_handling_agent.catch_smdebug_errors()
    def register_block(self, block: gluon.Block) -> None:
        """Watches a model, of which each forward pass is a step; or a loss."""
        if not isinstance(block, gluon.Block):
            self.logger.error("found %s, expected a mxnet.gluon.Block", type(block).__name__)
            return
        if id(block) in self._registered:
            self.logger.warning("block %s is registered already", block.name)
            return
        self._registered.add(id(block))
        if isinstance(block, gluon.loss.Loss):
            block.register_forward_hook(self.forward_hook)
            return
        self._blocks.append(block)
        block.register_forward_pre_hook(self.forward_pre_hook)
        if self._saves_layers():
            block.apply(lambda part: part.register_forward_hook(self.forward_hook))

    def register_hook(self, block: gluon.Block) -> None:
        """Watches a model; the older name of `register_block`."""
        self.register_block(block)

    def _saves_layers(self) -> bool:
        """Returns whether anything beyond parameters and losses is saved."""
        default = self.get_collection(CollectionKeys.DEFAULT)
        names = self.include_collections - _OF_PARAMETERS - {CollectionKeys.DEFAULT}
        return bool(names or (default.include_regex and CollectionKeys.DEFAULT in self.include_collections))

    # ---- called by MXNet ----------------------------------------------------------------------------------------

    def forward_pre_hook(self, block: gluon.Block, inputs: Any) -> None:
        """Begins a step."""
        if any(self._is_tensor(value) for value in self._flat(inputs)):
            self._step_begins(block)
            self._hand_on()

    def forward_hook(self, block: gluon.Block, inputs: Any, outputs: Any) -> None:
        """Saves the inputs and outputs of a block."""
        self._block_called(block, inputs, outputs)
        self._hand_on()

    @error_handling_agent.catch_smdebug_errors()
    def _step_begins(self, block: gluon.Block) -> None:  # noqa: ARG002
        if self._asleep():
            return
        self._end_step()
        self._close_writers()
        if not self.prepared_collections:
            self._prepare_collections()
        self._increment_step()
        self._of_step = set(self._due())
        if self._of_step:
            self._initialize_writers()
        if self.last_saved_step is not None and not self._exported:
            self.export_collections()

    @error_handling_agent.catch_smdebug_errors()
    def _block_called(self, block: gluon.Block, inputs: Any, outputs: Any) -> None:
        if self._asleep() or self.writer is None or not self._of_step:
            return
        self._write_inputs(block.name, inputs)
        self._write_outputs(block.name, outputs)
        self.last_saved_step = self.step

    def _end_step(self) -> None:
        """Saves the due parameters of the step, and the values that the user has given."""
        if self.writer is None:
            return
        self._flush_custom_tensors()
        seen: set[str] = set()
        for block in self._blocks:
            for name, parameter in block.collect_params().items():
                if (
                    name in seen or not parameter._data
                ):  # all contexts hold the same value; a parameter may not be initialised yet
                    continue
                seen.add(name)
                self._save_due(name, parameter._data[0])
                if parameter.grad_req != "null" and parameter._grad:
                    self._save_due(f"gradient/{name}", parameter._grad[0])
        self.last_saved_step = self.step

    def _save_due(self, name: str, value: Any) -> None:
        """Like `_save_for_tensor`, but for the step that was begun: the mode may have changed since."""
        due = [collection for collection in self._collections_of(name) if collection in self._of_step]
        if due:
            self._save_for_tensor(name, value, due)

    def _cleanup(self) -> None:
        if not self._asleep():
            try:
                self._end_step()
            except Exception as error:  # an exiting process must not raise
                self.logger.error("the last step is not whole: %s", error)
        super()._cleanup()

    # ---- values -------------------------------------------------------------------------------------------------

    def _make_numpy_array(self, value: Any) -> Any:
        try:
            return super()._make_numpy_array(value)
        except MXNetError as error:
            self._failure = error
            raise

    def _hand_on(self) -> None:
        """Raises an error of the training itself, which MXNet reports only where a value is first waited for."""
        failure, self.__dict__["_failure"] = self.__dict__.get("_failure"), None
        if failure is not None:
            raise failure

    def _is_tensor(self, value: Any) -> bool:
        return isinstance(value, NDArray)
