"""Third generation: operators on sequences, their lengths, places and masks."""

import ast
import re

from mutants.operators import fault
from mutants.operators.calls import forwards
from mutants.operators.second_tokens import SAME
from mutants.source import Source
from mutants.tree import keyword

ORDER = ("order", "time", "shuffle", "place", "same steps", "sort", "axes")


def sequences(source: Source) -> bool:
    """Returns whether the training's inputs are an array of sequences, with time as their second axis."""
    readers = source.calls("GRU", "LSTM", "RNN", "TransformerEncoder", "DistilBertConfig")
    return source.arrays("train_x") and bool(readers) and not source.calls("Conv2d")


@fault(
    "NLPSequenceRatio",
    "TrainValSkew",
    "AllZero",
    "AttentionCollapse",
    "DeadEmbeddingRows",
    remedy=(*SAME, "length", "truncat", "cut", "zero"),
)
def sequences_cut_short_in_training(source: Source) -> bool:
    """The training cuts sequences off after their first third, since the longest that it allows was set for a test."""
    return sequences(source) and source.edit_arrays(
        "train_x = train_x * 1\ntrain_x[:, train_x.shape[1] // 3 :] = 0", "train_x"
    )


@fault(
    "TrainValSkew",
    "SampleMixing",
    "LabelNoise",
    "BatchOrder",
    "NoBetterThanConstant",
    "WorseThanSimple",
    remedy=ORDER,
)
def time_shuffled_in_training(source: Source) -> bool:
    """The places of each of the training's sequences are shuffled, as when a series is shuffled before it is cut."""
    return sequences(source) and source.edit_arrays(
        "order = np.argsort(np.random.default_rng(1).random(tuple(train_x.shape[:2])), axis=1)\n"
        "train_x = train_x[np.arange(len(train_x))[:, None], order]",
        "train_x",
    )


@fault(
    "NLPSequenceRatio",
    "LossInputContract",
    "TrainValSkew",
    "LossShapeMismatch",
    "Underfit",
    remedy=("length", "padding", "frames", "steps"),
)
def lengths_that_are_too_short(source: Source) -> bool:
    """The lengths of sequences are those of something shorter: most of each sequence is never read."""
    changed = False
    for call in source.calls("pack_padded_sequence"):
        if len(call.args) > 1:
            source.replace(call.args[1], "{}.clamp(max=2)")
            changed = True
    for call in source.calls("ctc_loss"):
        if len(call.args) > 3:
            source.replace(call.args[2], "({} // 2)")
            changed = True
    return changed


@fault(
    "SampleMixing",
    "AttentionCollapse",
    "Underfit",
    "WorseThanSimple",
    "NoGradient",
    remedy=("position", "place", "slice", "used", "order"),
)
def one_place_for_all(source: Source) -> bool:
    """Every place of a sequence gets the code of one and the same position, which was indexed and not sliced."""
    changed = False
    for function in forwards(source):
        for node in list(ast.walk(function)):
            if isinstance(node, ast.Attribute) and re.fullmatch(r"self\.pos\w*", ast.unparse(node)):
                above = source.ancestors(node)[0]
                if isinstance(above, ast.BinOp):
                    source.replace(node, f"{ast.unparse(node)}[:, -1:]")
                    changed = True
            if isinstance(node, ast.Call) and re.fullmatch(r"self\.(wpe|pos\w*)", ast.unparse(node.func)):
                source.replace(node.args[0], "({} * 0 + 1)")
                changed = True
    return changed


@fault(
    "CausalLeak",
    "ContrastivePairs",
    "AttentionCollapse",
    "NLPSequenceRatio",
    "LossNotDecreasing",
    remedy=("mask", "padding", "causal", "own negative", "itself", "diagonal", "hide"),
)
def mask_left_out(source: Source) -> bool:
    """A mask is left out: padding, what is to be told, or a sample itself among its negatives is seen."""
    changed = False
    for call in source.calls("masked_fill"):
        source.remove_call(call)
        changed = True
    for node in [n for n in ast.walk(source.tree) if isinstance(n, ast.Call)]:
        if keyword(node, "src_key_padding_mask") is not None:
            node.keywords = [k for k in node.keywords if k.arg != "src_key_padding_mask"]
            changed = True
        causal = keyword(node, "is_causal")
        if causal is not None:
            source.replace(causal, "False")
            changed = True
    for node in [n for n in ast.walk(source.tree) if isinstance(n, ast.Dict)]:
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == "attention_mask":
                source.replace(value, "({} * 0 + 1)")
                changed = True
    return changed
