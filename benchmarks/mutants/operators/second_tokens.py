"""Second generation: operators on tokens, their embeddings and their masks."""

import ast
import re

from mutants.operators import fault
from mutants.operators.belonging import flattened
from mutants.operators.second_inputs import numbers
from mutants.source import Source
from mutants.tree import keyword, set_keyword

SAME = ("same steps", "padding", "vocabulary", "tokeni", "ids", "side")


def tokens(source: Source) -> bool:
    """Returns whether inputs are ids of tokens, in arrays."""
    return (
        source.arrays("train_x", "test_x")
        and not numbers(source)
        and source.imports("torch")
        and not source.imports("jax")
    )


@fault("TrainValSkew", "NLPSequenceRatio", "AttentionCollapse", remedy=SAME)
def padded_on_the_other_side_in_evaluation(source: Source) -> bool:
    """Sequences are padded on the left in evaluations, and on the right in the training."""
    if not tokens(source) or not re.search(r"\bPAD\b|padding_idx", source.text()):
        return False
    return source.edit_arrays(
        "test_x = torch.stack([torch.cat([row[row == 0], row[row != 0]]) for row in test_x])",
        "train_x",
        "test_x",
    )


@fault("TrainValSkew", "DeadEmbeddingRows", remedy=(*SAME, "embedding", "shift"))
def ids_off_by_one_in_evaluation(source: Source) -> bool:
    """Ids of evaluations are one higher than those of the training, since their vocabulary has one entry more."""
    return tokens(source) and source.edit_arrays(
        "test_x = torch.minimum(test_x + 1, train_x.max(0).values)", "train_x", "test_x"
    )


@fault("DeadEmbeddingRows", "NLPSequenceRatio", remedy=(*SAME, "embedding", "unknown", "clamp"))
def most_ids_are_unknown(source: Source) -> bool:
    """Ids above 8 were cut off to 8 in the training, as those of unknown words are with too small a vocabulary."""
    return tokens(source) and source.edit_arrays("train_x = train_x.clamp(max=8)", "train_x", "test_x")


@fault("CausalLeak", "LossShapeMismatch", "LabelNoise", remedy=("shift", "next", "once", "belong"))
def targets_shifted_twice(source: Source) -> bool:
    """The targets of a next-token model are shifted a second time: it learns the token after the next."""
    losses = flattened(source) if source.calls("Embedding") else []
    for loss in losses:
        target = loss.call.args[1]
        assert isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute)
        source.replace(target.func.value, "{}.roll(-1, 1)")
    return bool(losses)


@fault(
    "FrozenAtInit",
    "UnchangedTensor",
    "NoGradient",
    "DeadEmbeddingRows",
    remedy=("requires_grad", "freez", "load", "pretrained", "train"),
)
def embeddings_frozen_at_random(source: Source) -> bool:
    """The embeddings are frozen as pretrained ones are, but were drawn at random."""
    calls = source.calls("Embedding") if source.imports("torch") else []
    for call in calls[:2]:
        source.replace(call, f"{ast.unparse(call)}.requires_grad_(False)")
    return bool(calls)


@fault(
    "AttentionCollapse",
    "NLPSequenceRatio",
    "ContrastivePairs",
    "NonFinite",
    "ExplodingTensor",
    "LossNotDecreasing",
    remedy=("mask", "padding", "negative", "invert"),
)
def mask_inverted(source: Source) -> bool:
    """A mask is inverted: what should be hidden is seen, and all else is hidden."""
    changed = False
    for call in source.calls("TransformerEncoder", "blocks", "encoder", "masked_fill"):
        mask = keyword(call, "src_key_padding_mask")
        if mask is not None:
            set_keyword(call, "src_key_padding_mask", "~{}")
            changed = True
        elif ast.unparse(call.func).endswith("masked_fill") and call.args:
            source.replace(call.args[0], "~{}")
            changed = True
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "attention_mask":
                    source.replace(value, "1 - {}")
                    return True
    return changed
