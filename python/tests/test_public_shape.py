"""All frameworks attach in the same way: same argument names, same functions. The test imports none of them."""

from __future__ import annotations

import ast
from pathlib import Path

import luff
import pytest

PACKAGE = Path(luff.__file__).resolve().parent
COMMON = {"run", "collections", "resume", "on_stop", "correct"}


def entries() -> dict[str, ast.FunctionDef]:
    """Returns `attach` of each framework, and the constructor of its `Callback`."""
    found = {}
    for file in PACKAGE.glob("*/*.py"):
        for node in ast.parse(file.read_text()).body:
            name = f"{file.parent.name}.{getattr(node, 'name', '')}"
            if isinstance(node, ast.FunctionDef) and node.name == "attach":
                found[name] = node
            elif isinstance(node, ast.ClassDef) and node.name == "Callback":
                for item in node.body:
                    if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                        found[name] = item
    return found


ENTRIES = entries()


def test_every_framework_has_one() -> None:
    frameworks = {name.partition(".")[0] for name in ENTRIES}
    assert frameworks == {
        "accelerate", "jax", "keras", "lightgbm", "lightning", "mxnet", "numpy", "sklearn", "tensorflow",
        "torch", "transformers", "xgboost",
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_arguments_have_the_same_names(name: str) -> None:
    arguments = ENTRIES[name].args
    assert {one.arg for one in arguments.args + arguments.kwonlyargs} >= COMMON
    options = arguments.kwarg
    assert options is not None
    assert options.arg == "options"
    assert options.annotation is not None
    assert ast.unparse(options.annotation) == "Unpack[CaptureOptions]"


@pytest.mark.parametrize("framework", sorted({name.partition(".")[0] for name in ENTRIES}))
def test_modules_give_the_same_functions(framework: str) -> None:
    tree = ast.parse((PACKAGE / framework / "__init__.py").read_text())
    listed = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    assert {"StopTraining", "get_hook", "save_scalar", "save_tensor"} <= set(listed)
