"""The hook of Keras, a call-back. Each batch is a step, and so is each entry of a wrapped tape."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from luff.compat.smdebug.core.callback_hook import CallbackHook
from luff.compat.smdebug.core.collection import CollectionKeys
from luff.compat.smdebug.core.error_handling_agent import error_handling_agent
from luff.compat.smdebug.core.modes import ModeKeys
from luff.compat.smdebug.core.reductions import PREFIX
from luff.compat.smdebug.core.utils import FRAMEWORK
from luff.compat.smdebug.exceptions import SMDebugError, SMDebugTypeError
from luff.compat.smdebug.tensorflow._tape import watch
from luff.compat.smdebug.tensorflow._values import Wrappings, layers_of, to_numpy
from luff.compat.smdebug.tensorflow.collection import (
    DEFAULT_TF_COLLECTIONS,
    Collection,
    CollectionManager,
    variable_name,
)

__all__ = ["KerasHook"]

_LOSSES = ("loss", "val_loss")
# Expressions that collections get when the first tape is wrapped.
_OF_TAPES = {
    CollectionKeys.WEIGHTS: "^weights/.*/((?!bias).)*$",
    CollectionKeys.LOSSES: ".*loss.*",
    CollectionKeys.GRADIENTS: "^gradient",
}


class KerasHook(CallbackHook, keras.callbacks.Callback):  # type: ignore[misc]
    """Saves what Keras reports for each batch: ``model.fit(..., callbacks=[hook])``.

    The parameters are those of `luff.compat.smdebug.core.framework_hook.FrameworkHook`.
    """

    framework = FRAMEWORK.TENSORFLOW
    collections_class = CollectionManager
    saved_by_default = DEFAULT_TF_COLLECTIONS

    def __init__(self, out_dir: Any, *args: Any, **kwargs: Any) -> None:
        if keras.backend.backend() != "tensorflow":
            raise SMDebugError(
                f"found Keras on {keras.backend.backend()}, expected TensorFlow: smdebug knew no other; "
                "luff.keras watches all three"
            )
        keras.callbacks.Callback.__init__(self)
        CallbackHook.__init__(self, out_dir, *args, **kwargs)
        self._wrappings = Wrappings(self._wants, self._also, self._save_if_due)
        self._names: dict[int, str] = {}  # id of a variable -> its name, beginning with its layer
        self._weights: dict[str, Any] = {}  # name -> variable, for the layers
        self._optimizers: list[Any] = []  # wrapped by the user
        self._optimizer_variables: list[Any] = []
        self._model_known = -1
        self._tapes = False
        self._told_of_graphs = False

    # ---- registration -------------------------------------------------------------------------------------------

    def register_model(self, model: Any) -> None:
        """Watches a model that is trained in a loop: wraps its layers if a collection asks for them."""
        if not isinstance(model, keras.Model):
            raise SMDebugTypeError(f"found {type(model).__name__}, expected a keras.Model")
        self._know(model)
        self._watch_layers(model)

    @error_handling_agent.catch_smdebug_errors()
    def _watch_layers(self, model: Any) -> bool:
        if not self.prepared_collections:
            self._prepare_collections()
        return self._wrappings.layers(model, self._name_layer)

    def wrap_optimizer(self, optimizer: Any) -> Any:
        """Saves the gradients and variables of an optimizer; returns the optimizer."""
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise SMDebugTypeError(f"found {type(optimizer).__name__}, expected an optimizer of Keras")
        self._wrappings.optimizer(optimizer, self._gradient_name)
        if all(known is not optimizer for known in self._optimizers):
            self._optimizers.append(optimizer)
        return optimizer

    def wrap_tape(self, tape: Any) -> Any:
        """Makes each entry of a tape a step, whose loss, gradients and weights are saved; returns the tape."""
        if not self._tapes:
            self._tapes = True
            for name, expression in _OF_TAPES.items():
                self.get_collection(name).include(expression)
        self.set_mode(ModeKeys.TRAIN)
        return watch(tape, self)

    def set_gradients(self, gradients: Any = None, gradients_and_variables: Any = None) -> None:
        """Saves gradients with the open step."""
        if gradients_and_variables is None:
            variables: Iterable[Any] = () if self.model is None else self.model.trainable_variables
            gradients_and_variables = zip(gradients or (), variables, strict=False)
        for gradient, variable in gradients_and_variables:
            if gradient is not None:
                self._save_if_due(self._gradient_name(variable), gradient)

    def set_optimizer_variables(self, optimizer_variables: Any) -> None:
        """Saves these variables in addition to those of the model's optimizer."""
        self._optimizer_variables = list(optimizer_variables)

    def add_to_collection(self, collection_name: str, variable: Any) -> None:
        """Saves a variable with a collection."""
        self.get_collection(collection_name).add(variable)

    # ---- called by Keras ----------------------------------------------------------------------------------------

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Begins a training."""
        self._begins(ModeKeys.TRAIN)

    def on_test_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Begins an evaluation."""
        self._begins(ModeKeys.EVAL)

    def on_predict_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Begins a prediction."""
        self._begins(ModeKeys.PREDICT)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Begins a step."""
        self._step_begins(ModeKeys.TRAIN)

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Begins a step."""
        self._step_begins(ModeKeys.EVAL)

    def on_predict_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Begins a step."""
        self._step_begins(ModeKeys.PREDICT)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Saves the values of a batch that has ended."""
        self._batch_ends(batch, logs or {})

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Saves the values of a batch that has ended."""
        self._batch_ends(batch, logs or {})

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        """Saves the values of a batch that has ended."""
        self._batch_ends(batch, logs or {})

    @error_handling_agent.catch_smdebug_errors()
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Saves losses and metrics of the epoch regardless of the interval, and ends the step."""
        if self._asleep() or not self.prepared_collections:
            return
        saved = {collection.name for collection in self._collections_to_save}
        found = [(key, value, self._collection_of(key)) for key, value in (logs or {}).items()]
        found = [each for each in found if each[2].name in saved or CollectionKeys.ALL in saved]
        if found:
            self._initialize_writers()
        for key, value, collection in found:
            self._save_for_tensor(key, value, [collection])
        self._close_writers()

    @error_handling_agent.catch_smdebug_errors()
    def _begins(self, mode: ModeKeys) -> None:
        if self._asleep():
            return
        self.set_mode(mode)
        self._wrappings.mode = mode
        if not self.prepared_collections:
            self._prepare_collections()
        model = self.model
        self._know(model)
        fresh = self._wrappings.layers(model, self._name_layer)
        optimizer = getattr(model, "optimizer", None)
        if mode is ModeKeys.TRAIN and optimizer is not None:
            variables = model.trainable_variables
            if variables and any(self._wants(self._gradient_name(variable)) for variable in variables):
                fresh = self._wrappings.optimizer(optimizer, self._gradient_name) or fresh
        if fresh:  # functions compiled before do not contain the hook's wrappers
            for kind in ("train", "test", "predict"):
                if getattr(model, f"{kind}_function", None) is not None:
                    getattr(model, f"make_{kind}_function")(force=True)

    @error_handling_agent.catch_smdebug_errors()
    def _step_begins(self, mode: ModeKeys) -> None:
        if self._asleep():
            return
        self._flush_custom_tensors()
        self._close_writers()
        if self.mode is not mode:
            self.set_mode(mode)
        self._wrappings.mode = mode
        if not self.prepared_collections:
            self._prepare_collections()
        self._increment_step()
        if self._due():
            self._initialize_writers()

    @error_handling_agent.catch_smdebug_errors()
    def _batch_ends(self, batch: int, logs: dict[str, Any]) -> None:
        if self._asleep() or not self.prepared_collections:
            return
        self._know(self.model)
        if self.writer is not None and self._due():
            self._save_logs({**logs, "batch": batch})
            for name, variable in self._variables():
                if self._due_of(name):
                    self._save_for_tensor(name, variable)
            for name, value in self._wrappings.kept(self.mode):
                if self._due_of(name):
                    self._save_for_tensor(name, value)
            self._flush_custom_tensors()
            self.last_saved_step = self.step
        self.export_collections()

    def _cleanup(self) -> None:
        if not self._asleep():
            self._exported = False  # values given by hand enter their collections only now
        super()._cleanup()

    # ---- tapes --------------------------------------------------------------------------------------------------

    def tape_begins(self) -> None:
        """Begins a step when a wrapped tape is entered."""
        if tf.executing_eagerly():
            self._step_begins(ModeKeys.TRAIN)
        elif not self._told_of_graphs:
            self._told_of_graphs = True
            self.logger.warning("a tape inside of a tf.function is not seen: it runs as a graph")

    @error_handling_agent.catch_smdebug_errors()
    def tape_gave(self, target: Any, sources: Any, gradients: Any) -> None:
        """Saves the gradients that a wrapped tape has computed."""
        if self._asleep() or self.writer is None or not tf.executing_eagerly():
            return
        pairs = zip(tf.nest.flatten(sources), tf.nest.flatten(gradients), strict=False)
        for variable, gradient in pairs:
            if not (isinstance(variable, tf.Variable) or hasattr(variable, "path")):
                continue
            if gradient is not None:
                self._save_if_due(self._gradient_name(variable), gradient)
            if tf.as_dtype(variable.dtype).is_floating:  # excludes states of random number generators
                self._save_if_due(f"weights/{self._name_of(variable)}", variable)
        for index, loss in enumerate(tf.nest.flatten(target)):
            if tf.is_tensor(loss):
                self._save_if_due("loss" if index == 0 else f"loss_{index}", loss)
        for name, variable in self._variables():
            if not name.partition("/weights/")[1]:  # those of layers are already saved as weights/...
                self._save_if_due(name, variable)
        self.last_saved_step = self.step
        self.export_collections()

    def save_tape_logs(self, model_inputs: Any = None, outputs: Any = None) -> None:
        """Saves inputs and outputs of a model with the open step."""
        for name, collection, values in (
            ("inputs", CollectionKeys.INPUTS, model_inputs),
            ("predictions", CollectionKeys.OUTPUTS, outputs),
        ):
            self._save_several(name, collection, values)

    @contextmanager
    def profiler(self, mode: ModeKeys = ModeKeys.TRAIN) -> Iterator[None]:
        """Adds the duration of a block to the timeline, if profiling is on."""
        start = time.time()
        try:
            yield
        finally:
            self.record_trace_events(
                timestamp=start,
                training_phase=f"Step:{mode.name}",
                op_name=f"Step:{mode.name}",
                phase="X",
                duration=time.time() - start,
                step_num=str(self.mode_steps.get(mode, 0)),
            )

    # ---- values -------------------------------------------------------------------------------------------------

    def record_tensor_value(self, tensor_name: str, tensor_value: Any) -> None:
        """Saves a metric or a loss with the open step."""
        self.save_tensor(tensor_name, tensor_value, self._collection_of(tensor_name).name)

    def _save_logs(self, logs: dict[str, Any]) -> None:
        for key, value in logs.items():
            if key == "outputs":  # from predict
                self._save_several("predictions", CollectionKeys.OUTPUTS, value)
                continue
            self._collection_of(key)
            if self._due_of(key):
                self._save_for_tensor(key, value)

    def _save_several(self, name: str, collection: str, values: Any) -> None:
        flat = [] if values is None else tf.nest.flatten(values)
        for index, value in enumerate(flat):
            full = name if len(flat) == 1 else f"{name}_{index}"
            self.get_collection(collection).add_tensor_name(full)
            self._save_if_due(full, value)

    def _collection_of(self, key: str) -> Collection:
        """Adds a loss or metric to its collection, and returns the collection."""
        name = CollectionKeys.LOSSES if key in _LOSSES else CollectionKeys.METRICS
        collection: Collection = self.get_collection(name)
        collection.add_tensor_name(key)
        return collection

    def _save_if_due(self, name: str, value: Any) -> None:
        """Saves a value that was computed eagerly, if it is due."""
        if not self._asleep() and self.writer is not None and self._due_of(name):
            self._save_for_tensor(name, value)

    def _wants(self, name: str) -> bool:
        return bool(self._collections_of(name))

    def _also(self, name: str, full: str) -> None:
        if full != name:
            for collection in self._collections_of(name):
                collection.add_tensor_name(full)

    def _variables(self) -> Iterator[tuple[str, Any]]:
        """Yields (name, variable) of layers, of optimizers, and of variables that were added to collections."""
        yield from self._weights.items()
        own = getattr(self.model, "optimizer", None)
        optimizers = {id(optimizer): optimizer for optimizer in (own, *self._optimizers)}
        held = [variable for each in optimizers.values() for variable in getattr(each, "variables", ())]
        states = self.get_collection(CollectionKeys.OPTIMIZER_VARIABLES)
        for variable in [*held, *self._optimizer_variables]:
            name = variable_name(variable)
            states.add_tensor_name(name)
            yield name, variable
        for collection in self.get_collections().values():
            yield from getattr(collection, "variables", {}).items()

    def _know(self, model: Any) -> None:
        """Names the variables of a model's layers and adds them to their collections."""
        if model is None or self._model_known == len(model.variables) > 0:
            return
        self._model_known = len(model.variables)
        for layer in layers_of(model):
            for variable in layer.weights:
                short = _from(layer.name, variable_name(variable))
                name = f"{layer.name}/weights/{short}"
                self._names[id(variable)] = short
                self._weights[name] = variable
                bias = "bias" in variable.name
                kind = CollectionKeys.BIASES if bias else CollectionKeys.WEIGHTS
                self.get_collection(kind).add_tensor_name(name)

    def _name_of(self, variable: Any) -> str:
        return self._names.get(id(variable)) or variable_name(variable)

    def _gradient_name(self, variable: Any) -> str:
        name = f"gradients/{re.sub(r':[0-9]+$', '', self._name_of(variable))}Grad"
        self.get_collection(CollectionKeys.GRADIENTS).add_tensor_name(name)
        return name

    def _name_layer(self, layer: Any) -> None:
        """Adds a layer to the collection `layers`, whose expressions match names of layers."""
        layers = self.get_collection(CollectionKeys.LAYERS)
        if layers.include_regex and not any(re.search(text, layer.name) for text in layers.include_regex):
            return
        for what in ("inputs", "outputs"):
            layers.add_tensor_name(f"{layer.name}/{what}")

    def _reduction_name(self, tensor: str, reduction: str, magnitudes: bool) -> str:
        return f"{PREFIX}{'abs_' if magnitudes else ''}{reduction}/{tensor}"

    def _make_numpy_array(self, value: Any) -> Any:
        if (
            tf.is_tensor(value)
            or isinstance(value, (tf.Variable, tf.IndexedSlices))
            or hasattr(value, "path")
        ):
            return to_numpy(value)
        return super()._make_numpy_array(value)

    def _is_tensor(self, value: Any) -> bool:
        return bool(tf.is_tensor(value))


def _from(layer: str, name: str) -> str:
    """Returns a variable's name from its layer on: `sequential/dense/kernel:0` of `dense` is `dense/kernel:0`."""
    parts = name.split("/")
    return "/".join(parts[parts.index(layer) :]) if layer in parts else name
