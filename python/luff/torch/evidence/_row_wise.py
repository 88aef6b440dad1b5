"""Reads off a graph whether a model works on each sample alone, so that the order of a batch cannot matter to it.

From what the model has returned the graph is read back to the arguments and the weights. Each node on the way must be
known to leave the first axis alone: layers, activations, what runs along later axes, reshapes behind which the numbers
of a sample still lie together. What has no graph must be an argument as the model got it. Anything else, and anything
in doubt, is not plain: the model is asked then (`_orders`). docs/adr/0010.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from luff.torch.capture._graphs import operation_of
from luff.torch.capture._memory import array_of
from luff.torch.capture._modules import tensors_in

__all__ = ["ForwardPass"]

_MOST_NODES = 4096
_MOST_RESULTS = 8  # of a model; one that gives as many or more is asked
_DRAWN = 4096  # numbers of a mask that are looked at
_WEIGHTS, _ROWS = 1, 2  # what a tensor holds: nothing of the batch, or the samples one behind the other


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# One number after another, or windows along later axes.
_EACH = _names(
    """
    Abs Alias Celu Clamp ClampMax ClampMin Clone Cos Elu Erf Exp Expm1 Gelu Hardsigmoid Hardswish
    Hardtanh LeakyRelu Log Log1P LogSigmoid Mish NativeDropout Neg Pow Reciprocal Relu Rsqrt Rsub Selu
    Sigmoid Silu Sin Softplus Sqrt Tanh Threshold ToCopy MaxPool2DWithIndices MaxPool3DWithIndices
    AvgPool2D AvgPool3D AdaptiveAvgPool2D AdaptiveAvgPool3D AdaptiveMaxPool2D ReflectionPad1D
    ReflectionPad2D ReplicationPad1D ReplicationPad2D UpsampleNearest1D UpsampleNearest2D
    UpsampleLinear1D UpsampleBilinear2D UpsampleBicubic2D
    """
)
_BY_NUMBERS = ("Pow", "Rsub", "Select", "Slice", "SplitWithSizes")  # of a number that nothing tells
_PAIRS = _names("Add Sub Rsub Mul Div Maximum Minimum")
# Along axes that they tell.
_ALONG = _names(
    """
    Softmax SafeSoftmax LogSoftmax Sum Mean Max Min Amax Amin Logsumexp Var Std VarMean StdMean
    LinalgVectorNorm Norm Cumsum Glu Select Slice Split SplitWithSizes Unbind Cat
    """
)
_NEW_AXIS = _names("Unsqueeze Stack")
_VIEWS = _names("View UnsafeView ReshapeAlias Squeeze")
_LAYERS = _names("Convolution NativeBatchNorm NativeLayerNorm NativeGroupNorm PreluKernel")
# Of weights alone: norms and products of them, and views.
_OF_WEIGHTS = (
    _EACH
    | _PAIRS
    | _VIEWS
    | _NEW_AXIS
    | _names("T Transpose Permute Expand WeightNormInterface Sum Mean LinalgVectorNorm Norm")
)


class ForwardPass:
    """A call of a model: what it got, and what it has returned."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._given = [(one, one._version) for one in tensors_in([args, kwargs]) if not one.is_inference()]
        #: Nodes, by which the graph lives, and where their results are. None until the call has returned.
        self._returned: list[Any] | None = None

    def returned(self, tensors: list[Any]) -> None:
        """Called when the model has returned."""
        if self._returned is None:
            few = len(tensors) < _MOST_RESULTS
            self._returned = [(one.grad_fn, one.output_nr) for one in tensors] if few else []

    def forget(self) -> None:
        """Lets go of the graph: another pass of the model follows, and whether this one is used must still show."""
        self._returned = []

    def is_row_wise(self, model: Any, rows: int) -> bool:
        """Whether each row of the results is known to be of one sample and the weights only.

        Called before the graph is freed, while no hooks for saved tensors are in use. `rows`: samples of the batch.
        """
        results, self._returned = self._returned or [], []
        if not results or any(node is None for node, _ in results):
            return False
        try:
            if any(one._version != version for one, version in self._given):
                return False
            reader = _Reader(model, [one for one, _ in self._given], rows)
            return reader.reads([node for node, _ in results]) and all(
                reader.kinds[node] == _ROWS and _shape(node, at)[:1] == [rows] for node, at in results
            )
        except (
            RuntimeError,
            AttributeError,
            IndexError,
            TypeError,
        ):  # freed, changed in place, or saved otherwise
            return False


class _Reader:
    """Says of each node what its results hold."""

    def __init__(self, model: Any, given: list[Any], rows: int) -> None:
        self.kinds: dict[Any, int] = {}
        self._given, self._rows = given, rows
        self._borders = [one.grad_fn for one in given if one.grad_fn is not None]
        self._weights = {id(one) for one in model.parameters()}
        self._held = {(one.untyped_storage().data_ptr(), one.numel()) for one in model.parameters()}
        # A number, as of a product or a slice, may be the first sample's where a model gets more than its inputs.
        self._numbers = len(given) == 1 and given[0].dim() > 1

    def reads(self, starts: list[Any]) -> bool:
        """Whether all nodes behind these are plain."""
        waiting = [(node, False) for node in starts]
        while waiting:
            node, ready = waiting.pop()
            if node in self.kinds:
                continue
            behind = [one for one, _ in node.next_functions if one is not None and one not in self.kinds]
            if behind and not ready and node not in self._borders:
                if len(waiting) + len(self.kinds) > _MOST_NODES:
                    return False
                waiting += [(node, True), *((one, False) for one in behind)]
                continue
            kind = self._kind(node)
            if not kind:
                return False
            self.kinds[node] = kind
        return True

    def _kind(self, node: Any) -> int:
        """Returns what the results of a node hold; 0: it is not plain."""
        if node in self._borders:
            return _ROWS if _shape(node, 0)[:1] == [self._rows] else 0
        if _is_leaf(node):
            if id(node.variable) in self._weights:
                return _WEIGHTS
            own = any(node.variable is one for one in self._given)
            return _ROWS if own and _shape(node, 0)[:1] == [self._rows] else 0
        if not node.name()[-1:].isdigit():  # a function of the user's, or of a compiler
            return 0
        operation = operation_of(node)
        parts: list[tuple[int, list[int]] | None] = [
            None if behind is None else (self.kinds[behind], _shape(behind, at))
            for behind, at in node.next_functions
        ]
        if not parts:
            return 0
        if operation != "Embedding" and all(_is(part, _WEIGHTS) for part in parts):
            return _WEIGHTS if operation in _OF_WEIGHTS else 0
        return _ROWS if self._is_plain(node, operation, parts) else 0

    def _is_plain(self, node: Any, operation: str, parts: list[tuple[int, list[int]] | None]) -> bool:
        """Whether a node keeps the samples apart and in their order. `parts`: of what it works on, kind and shape."""
        if operation in ("Addmm", "Mm"):
            (bias, *product) = parts if operation == "Addmm" else ((_WEIGHTS, []), *parts)
            name = "_saved_mat1" if operation == "Addmm" else "_saved_self"
            first = product[0] if product[0] is not None else self._of_saved(node, name)
            other = product[1] if product[1] is not None else self._of_saved(node, "_saved_mat2")
            return (
                _is(first, _ROWS)
                and _is(other, _WEIGHTS)
                and bias is not None
                and _is(bias, _WEIGHTS)
                and (len(bias[1]) < 2 or bias[1][0] == 1)
            )
        if operation == "Embedding":
            return _is(parts[0], _WEIGHTS) and _is(self._of_saved(node, "_saved_indices"), _ROWS)
        if operation in _LAYERS:
            return self._is_layer(node, operation, parts)
        if operation in _PAIRS and len(parts) == 2:
            return self._is_pair(node, operation, parts)
        shape = _shape(node, 0)
        if not all(_is(part, _ROWS) for part in parts) or not shape:
            return False
        before = parts[0][1] if parts[0] is not None else []
        if operation in _EACH:
            known = operation not in _BY_NUMBERS or self._numbers
            return len(parts) == 1 and (known or (operation == "Pow" and node._saved_exponent == 2))
        if operation in _ALONG:
            if operation in _BY_NUMBERS and not self._numbers:
                return False
            axes = node._saved_dim
            axes = [axes] if isinstance(axes, int) else axes
            alike = all(part is not None and len(part[1]) == len(before) for part in parts)
            return alike and bool(axes) and all(_signed(axis) % len(before) for axis in axes)
        if operation in _NEW_AXIS:
            return bool(_signed(node._saved_dim) % (len(before) + 1))
        if operation in _VIEWS:  # the numbers of a sample lie together before and behind it
            return shape[0] > 0 and shape[0] % self._rows == 0
        if operation == "Transpose":
            return all(_signed(one) % len(before) for one in (node._saved_dim0, node._saved_dim1))
        if operation == "Permute":
            return _signed(node._saved_dims[0]) % len(before) == 0
        if operation == "Expand":
            return len(before) == len(shape) and before[0] == shape[0]
        if operation == "Repeat":
            return bool(len(before) == len(node._saved_repeats) and node._saved_repeats[0] == 1)
        return operation == "ConstantPadNd" and bool(len(node._saved_pad) < 2 * len(before))

    def _is_layer(self, node: Any, operation: str, parts: list[tuple[int, list[int]] | None]) -> bool:
        first, others = parts[0], parts[1:]
        if first is None:
            first = self._of_saved(node, "_saved_input")
        if not _is(first, _ROWS) or not all(part is None or part[0] == _WEIGHTS for part in others):
            return False
        if operation == "Convolution" and others[0] is None:  # frozen
            return _is(self._of_saved(node, "_saved_weight"), _WEIGHTS)
        if operation == "NativeLayerNorm" and first is not None:
            return bool(len(node._saved_normalized_shape) < len(first[1]))
        return True

    def _is_pair(self, node: Any, operation: str, parts: list[tuple[int, list[int]] | None]) -> bool:
        """Of two operands: those of samples have them along the same axis, and those of weights have no such axis."""
        if None in parts:
            at = parts.index(None)
            if operation not in ("Mul", "Div"):  # nothing tells what the other is
                return False
            saved = node._saved_other if at else node._saved_self
            known = parts[1 - at]
            if known is None or saved is None or (operation == "Div" and not at):
                return False
            if known[0] == _ROWS and (self._is_number(saved) or _is_drawn(saved, known[1])):
                return True
            parts = [known, self._of(saved)]
        shapes = [part[1] for part in parts if part is not None and part[0] == _ROWS]
        rank = len(_shape(node, 0))
        if len(shapes) == 2:
            return len(shapes[0]) == len(shapes[1]) == rank and shapes[0][0] == shapes[1][0]
        others = [part[1] for part in parts if part is not None and part[0] == _WEIGHTS]
        if len(shapes) != 1 or len(others) != 1 or len(shapes[0]) != rank:
            return False
        return len(others[0]) < rank or others[0][0] == 1

    def _of_saved(self, node: Any, name: str) -> tuple[int, list[int]] | None:
        saved = getattr(node, name)
        return None if saved is None else self._of(saved)

    def _of(self, tensor: Any) -> tuple[int, list[int]] | None:
        """Returns what a tensor without a graph holds, and its shape; None if that is not known."""
        shape = [int(size) for size in tensor.shape]
        address = tensor.untyped_storage().data_ptr()
        if (address, tensor.numel()) in self._held:
            return _WEIGHTS, shape
        if any(self._is_view(tensor, one) for one in self._given):
            return _ROWS, shape
        return None

    def _is_view(self, tensor: Any, given: Any) -> bool:
        """Whether each row of a tensor holds numbers of the same row of an argument, and of no other one."""
        if tensor.untyped_storage().data_ptr() != given.untyped_storage().data_ptr():
            return False
        if not given.dim() or not tensor.dim() or given.shape[0] != self._rows:
            return False
        offset = tensor.storage_offset() - given.storage_offset()
        if tensor.is_contiguous() and given.is_contiguous() and tensor.numel() == given.numel():
            return bool(offset == 0 and tensor.shape[0] % self._rows == 0)
        step = given.stride(0)
        reach = offset + sum((n - 1) * s for n, s in zip(tensor.shape[1:], tensor.stride()[1:], strict=True))
        alike = tensor.shape[0] == self._rows and tensor.stride(0) == step
        return bool(
            alike and offset >= 0 and reach < step and (self._numbers or tensor.numel() == given.numel())
        )

    def _is_number(self, tensor: Any) -> bool:
        """Whether it is a number of the program's: one of the batch has the type of an argument."""
        plain = not tensor.dim() and tensor.dtype.itemsize == 8 and not tensor.dtype.is_complex
        return self._numbers and plain and tensor.dtype != self._given[0].dtype


def _is(part: tuple[int, list[int]] | None, kind: int) -> bool:
    return part is not None and part[0] == kind


def _is_drawn(tensor: Any, shape: list[int]) -> bool:
    """Whether it is what dropout multiplies by: 0, or a number above 1 for as many places as its inverse says."""
    if tensor.dim() != len(shape) or tensor.shape[0] != shape[0] or tensor.numel() < 32:
        return False
    array = array_of(tensor)
    if array is None:
        return False
    values = array.reshape(-1)[:_DRAWN].astype(np.float64)
    most = float(values.max())
    if not most > 1.001 or not bool(((values == 0) | (values == most)).all()):
        return False
    share = 1 / most
    kept = float((values > 0).mean())
    return bool(abs(kept - share) <= 5 * float(np.sqrt(share * (1 - share) / len(values))) + 1 / len(values))


def _shape(node: Any, at: int) -> list[int]:
    """Returns the shape of a node's result."""
    made = node.variable if _is_leaf(node) else node._input_metadata[at]
    return [int(size) for size in made.shape]


def _is_leaf(node: Any) -> bool:
    return bool(node.name() == "torch::autograd::AccumulateGrad")


def _signed(axis: Any) -> int:
    number = int(axis)
    return number - (1 << 64 if number >> 63 and number > 0 else 0)
