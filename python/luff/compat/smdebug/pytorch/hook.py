"""The hook of PyTorch. Every forward pass of a registered module is a step."""

from __future__ import annotations

import sys
import weakref
from typing import Any

import torch
from torch import nn
from torch.nn.modules.loss import _Loss

from luff.compat.smdebug.core.callback_hook import CallbackHook
from luff.compat.smdebug.core.collection import CollectionKeys
from luff.compat.smdebug.core.error_handling_agent import error_handling_agent
from luff.compat.smdebug.core.modes import ModeKeys
from luff.compat.smdebug.core.utils import FRAMEWORK
from luff.compat.smdebug.exceptions import SMDebugError, SMDebugTypeError
from luff.compat.smdebug.pytorch.collection import (
    DEFAULT_PYTORCH_COLLECTIONS,
    Collection,
    CollectionManager,
)
from luff.compat.smdebug.pytorch.utils import rank_and_size

__all__ = ["CollectionKeys", "Hook"]


def _class_name(module: nn.Module) -> str:
    return str(module._get_name())  # type: ignore[no-untyped-call]


class Hook(CallbackHook):
    """Saves what a model computes while it is trained.

    The parameters are those of `luff.compat.smdebug.core.framework_hook.FrameworkHook`.
    """

    framework = FRAMEWORK.PYTORCH
    collections_class = CollectionManager
    saved_by_default = DEFAULT_PYTORCH_COLLECTIONS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.has_registered_module = False
        self.has_registered_loss_module = False
        self._modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._roots: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    # ---- workers ------------------------------------------------------------------------------------------------

    def _get_worker_name(self) -> str:
        return f"worker_{rank_and_size()[0]}"

    def _get_num_workers(self) -> int:
        return rank_and_size()[1]

    # ---- modes --------------------------------------------------------------------------------------------------

    def set_mode(self, mode: ModeKeys) -> None:
        """Sets the mode of the following steps, also in the run that ``luff run`` records of the script.

        There an evaluation needs the word only if a backward pass follows; training shows by itself.
        """
        super().set_mode(mode)
        watching = sys.modules.get("luff.torch")
        hook = watching.get_hook() if watching is not None else None
        if hook is not None:
            hook.set_mode(mode.name if mode in (ModeKeys.EVAL, ModeKeys.PREDICT) else None)

    # ---- registration -------------------------------------------------------------------------------------------

    @error_handling_agent.catch_smdebug_errors()
    def register_module(self, module: nn.Module) -> None:
        """Watches a model: each of its forward passes is a step."""
        if not isinstance(module, nn.Module):
            raise SMDebugError(f"found {type(module).__name__}, expected a torch.nn.Module")
        named = [(name or _class_name(module), child) for name, child in module.named_modules()]
        for name, child in named:
            assert child not in self._modules, f"module {name} is registered already"
        for name, child in named:
            self._modules.add(child)
            child._module_name = name
        self._roots.add(module)
        module.register_forward_pre_hook(self.forward_pre_hook)
        for _, child in named:
            child.register_forward_hook(self.forward_hook)
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                parameter.register_hook(  # type: ignore[no-untyped-call]
                    self.backward_hook(f"{_class_name(module)}_{name}")
                )
        self.has_registered_module = True

    def register_hook(self, module: nn.Module) -> None:
        """Watches a model; the older name of `register_module`."""
        self.register_module(module)

    @error_handling_agent.catch_smdebug_errors()
    def register_loss(self, loss_module: nn.Module) -> None:
        """Saves the inputs and outputs of a loss module."""
        assert isinstance(loss_module, _Loss), (
            f"found {type(loss_module).__name__}, expected a loss of torch.nn"
        )
        if loss_module not in self._modules:
            self._modules.add(loss_module)
            loss_module._module_name = _class_name(loss_module)  # type: ignore[assignment]
            loss_module.register_forward_hook(self.forward_hook)
        self.has_registered_loss_module = True

    def _prepare(self) -> None:
        for collection in self.get_collections().values():
            if isinstance(collection, Collection):
                collection.resolve_modules()

    # ---- called by PyTorch --------------------------------------------------------------------------------------

    @error_handling_agent.catch_smdebug_errors()
    def forward_pre_hook(self, module: nn.Module, inputs: Any) -> None:  # noqa: ARG002
        """Begins a step."""
        if self._asleep():
            return
        self._close_writers()
        if not self.prepared_collections:
            self._prepare_collections()
        self._increment_step()
        if self._due():
            self._initialize_writers()
            if self.writer is not None:
                self._save_parameters(module)
        if self.last_saved_step is not None and not self._exported:
            self.export_collections()

    def _save_parameters(self, module: nn.Module) -> None:
        root = _class_name(module)
        for name, parameter in module.named_parameters():
            self._save_for_tensor(f"{root}_{name}", parameter)

    @error_handling_agent.catch_smdebug_errors()
    def forward_hook(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        """Saves the inputs and outputs of a module."""
        if self._asleep():
            return
        name = str(module._module_name)
        self._profile.module_ran(name, module in self._roots)
        if self.writer is None or not self._due():
            return
        self._write_inputs(name, inputs)
        self._write_outputs(name, outputs)
        self._flush_custom_tensors()
        self.last_saved_step = self.step

    def backward_hook(self, tname: str) -> Any:
        """Returns a function that saves a gradient."""

        @error_handling_agent.catch_smdebug_errors()
        def save_gradient(gradient: torch.Tensor) -> None:
            if not self._asleep() and self.writer is not None and self._due():
                self._save_for_tensor(self.GRADIENT_PREFIX + tname, gradient)
                self._flush_custom_tensors()

        return save_gradient

    @error_handling_agent.catch_smdebug_errors()
    def record_tensor_value(self, tensor_name: str, tensor_value: torch.Tensor) -> None:
        """Saves a tensor as <tensor_name>_output_<k>: for losses that are functions."""
        if not isinstance(tensor_value, torch.Tensor):
            raise SMDebugTypeError(
                f"tensor {tensor_name!r}: found {type(tensor_value).__name__}, expected a torch.Tensor"
            )
        if not self._asleep() and self.writer is not None and self._due():
            self._write_outputs(tensor_name, tensor_value)
            self.last_saved_step = self.step

    def _is_tensor(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)
