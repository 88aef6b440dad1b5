"""Finds the parts of a training script: optimizers, schedulers, losses, rates, arrays of rows."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from mutants.tree import Loop, Tree, base_text, keyword, name_of, named, set_keyword

OPTIMIZERS = (
    "SGD",
    "Adam",
    "AdamW",
    "NAdam",
    "RAdam",
    "Adamax",
    "Adagrad",
    "Adadelta",
    "RMSprop",
    "ASGD",
    "LBFGS",
)

SCHEDULERS = (
    "StepLR",
    "MultiStepLR",
    "ExponentialLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "OneCycleLR",
    "LambdaLR",
    "LinearLR",
    "PolynomialLR",
    "SequentialLR",
)

LOSSES = {
    "CrossEntropyLoss": "cross_entropy",
    "NLLLoss": "nll_loss",
    "BCELoss": "binary_cross_entropy",
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
    "MSELoss": "mse_loss",
    "L1Loss": "l1_loss",
    "SmoothL1Loss": "smooth_l1_loss",
    "HuberLoss": "huber_loss",
    "KLDivLoss": "kl_div",
}


@dataclass(frozen=True)
class Loss:
    """A loss: `call` gets output and target, `maker` has the options (`call` itself, or the module's constructor)."""

    kind: str
    call: ast.Call
    maker: ast.Call

    @property
    def plain(self) -> bool:
        """True if the loss has no options."""
        return not self.maker.keywords and len(self.call.args) == 2 and not self.call.keywords


class Source(Tree):
    """A training script. Operators search it for places and edit them; `text()` returns the edited script."""

    def optimizers(self) -> list[ast.Call]:
        """Returns the calls that make an optimizer."""
        return self.calls(*OPTIMIZERS)

    def optimizer_name(self) -> str | None:
        """Returns the expression that the only optimizer of the script is assigned to."""
        made = self.optimizers()
        if len(made) != 1:
            return None
        statement = self.statement(made[0])
        return ast.unparse(statement.targets[0]) if isinstance(statement, ast.Assign) else None

    def assigned_from(self, *names: str) -> list[str]:
        """Returns the expressions that calls of these names are assigned to."""
        made = {id(c) for c in self.calls(*names)}
        pairs: list[tuple[ast.expr, ast.expr]] = []
        for n in ast.walk(self.tree):
            if isinstance(n, ast.Assign):
                target = n.targets[0]
                if isinstance(target, ast.Tuple) and isinstance(n.value, ast.Tuple):
                    pairs += zip(target.elts, n.value.elts, strict=False)
                else:
                    pairs.append((target, n.value))
        return [ast.unparse(target) for target, value in pairs if id(value) in made]

    def steps(self, *makers: str) -> list[ast.Call]:
        """Returns the calls of `step` on objects that these calls made."""
        names = self.assigned_from(*makers)
        return [c for c in self.calls("step") if base_text(c) in names]

    def update(self) -> ast.Call | None:
        """Returns the only `step()` of the only optimizer, if it is in a loop and takes no closure."""
        steps = self.steps(*OPTIMIZERS)
        alone = len(steps) == 1 and len(self.optimizers()) == 1 and not steps[0].args
        if not alone or not self.loops(steps[0]) or not isinstance(self.statement(steps[0]), ast.Expr):
            return None
        return steps[0]

    def schedule(self, code: str, *, each_epoch: bool) -> bool:
        """Adds a scheduler before the training loops if there is none; ``{}`` in `code` stands for the optimizer."""
        step = self.update()
        if step is None or self.calls(*SCHEDULERS, "ReduceLROnPlateau") or not self.imports("torch"):
            return False
        loops = self.loops(step)
        if len(loops) < 2 and not isinstance(self.scope(step), ast.Module):
            return False  # the function is called for each epoch
        self.before(loops[-1], f"schedule = torch.optim.lr_scheduler.{code.format(base_text(step))}")
        self.after(loops[-1].body[-1] if each_epoch else step, "schedule.step()")
        return True

    def reaches(self, made: ast.AST, use: ast.AST) -> bool:
        """Returns whether variables of one place are visible by the same names in another."""
        own = self.scope(made)
        return own is self.scope(use) or isinstance(own, ast.Module)

    def losses(self, *kinds: str) -> list[Loss]:
        """Returns the losses in the training; `kinds` are names of functions in `torch.nn.functional`."""
        found = [Loss(name_of(c.func), c, c) for c in self.calls(*kinds)]
        for maker in self.calls(*LOSSES):
            statement = self.statement(maker)
            if isinstance(statement, ast.Assign) and statement.value is maker:
                name = ast.unparse(statement.targets[0])
                calls = [
                    n for n in ast.walk(self.tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == name
                ]
                found += [Loss(LOSSES[name_of(maker.func)], c, maker) for c in calls]
        return [
            loss
            for loss in found
            if loss.kind in kinds and len(loss.call.args) >= 2 and not self.without_gradient(loss.call)
        ]

    def objectives(self) -> list[ast.expr]:
        """Returns the expressions that `backward`, `training_step` and JAX's `grad` differentiate."""
        found: list[ast.expr] = []
        for call in self.calls("backward", "manual_backward"):
            other = base_text(call) in ("accelerator", "fabric", "self")
            if other and call.args:
                found.append(call.args[0])
            elif isinstance(call.func, ast.Attribute) and not call.args:
                scaled = call.func.value
                is_scaled = isinstance(scaled, ast.Call) and name_of(scaled.func) == "scale"
                found.append(scaled.args[0] if is_scaled else scaled)
        names = [
            c.args[0].id
            for c in self.calls("grad", "value_and_grad")
            if c.args and isinstance(c.args[0], ast.Name)
        ]
        for function in ast.walk(self.tree):
            if isinstance(function, ast.FunctionDef) and (
                function.name == "training_step" or function.name in names
            ):
                values = [
                    n.value for n in ast.walk(function) if isinstance(n, ast.Return) and n.value is not None
                ]
                found += [
                    v.elts[0] if isinstance(v, ast.Tuple) else v
                    for v in values
                    if not isinstance(v, ast.Dict)
                ]
        return found

    def last_term(self) -> ast.expr | None:
        """Returns the last term of a sum of losses."""
        for objective in self.objectives():
            names = {n.id for n in ast.walk(objective) if isinstance(n, ast.Name)}
            scope = self.scope(objective)
            values = [objective]
            for n in ast.walk(scope):
                if (
                    isinstance(n, ast.Assign)
                    and isinstance(n.targets[0], ast.Name)
                    and n.targets[0].id in names
                ):
                    values.append(n.value)
                if (
                    isinstance(n, ast.AugAssign)
                    and isinstance(n.op, ast.Add)
                    and isinstance(n.target, ast.Name)
                ):
                    if n.target.id in names and not any(True for _ in named(n.value, "item", "float")):
                        return n.value
            made = [name_of(v.func) for v in values if isinstance(v, ast.Call)]
            for f in ast.walk(self.tree):
                if isinstance(f, ast.FunctionDef) and f.name in made:
                    values += [
                        n.value for n in ast.walk(f) if isinstance(n, ast.Return) and n.value is not None
                    ]
            for value in values:
                while isinstance(value, ast.BinOp) and isinstance(value.op, ast.Sub):
                    value = value.left
                if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
                    return value.right
        return None

    def trained(self, optimizer: ast.Call) -> list[ast.expr]:
        """Returns the models of which an optimizer gets all `parameters()`."""
        if not optimizer.args:
            return []
        calls = [c for c in named(optimizer.args[0], "parameters") if not c.args]
        return [c.func.value for c in calls if isinstance(c.func, ast.Attribute)]

    def model(self) -> tuple[ast.Call, ast.expr] | None:
        """Returns the only optimizer, and the only model that it gets: `Adam(model.parameters(), ...)`."""
        made = self.optimizers()
        models = self.trained(made[0]) if len(made) == 1 else []
        if len(models) != 1 or not ast.unparse(made[0].args[0]).startswith(ast.unparse(models[0])):
            return None
        return made[0], models[0]

    def all_parameters(self) -> tuple[ast.expr, str] | None:
        """Returns `model.parameters()` as the only optimizer of torch gets it, and the model; none for LBFGS."""
        made = self.model()
        if made is None or not self.imports("torch") or name_of(made[0].func) == "LBFGS":
            return None
        argument, model = made[0].args[0], ast.unparse(made[1])
        return (argument, model) if ast.unparse(argument) == f"{model}.parameters()" else None

    def rates(self) -> list[ast.expr]:
        """Returns the learning rates: arguments, entries of groups, and values assigned to groups."""
        names = ("lr", "learning_rate", "max_lr", "eta")
        found: list[ast.expr | None] = []
        for n in ast.walk(self.tree):
            if isinstance(n, ast.Call):
                found += [k.value for k in n.keywords if k.arg in names]
            elif isinstance(n, ast.Dict):
                found += [
                    v
                    for k, v in zip(n.keys, n.values, strict=True)
                    if isinstance(k, ast.Constant) and k.value in names
                ]
            elif isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Subscript):
                place = n.targets[0].slice
                if (
                    isinstance(place, ast.Constant)
                    and place.value in names
                    and "lr" not in ast.unparse(n.value)
                ):
                    found.append(n.value)
        for call in self.optimizers():
            place = 1 if self.imports("torch") else 0
            if len(call.args) > place and not keyword(call, "lr"):
                found.append(call.args[place])
        found += [c.args[0] for c in self.calls("sgd", "adam", "adamw") if c.args]  # of Optax
        return [
            n
            for n in found
            if n is not None and not (isinstance(n, ast.Constant) and isinstance(n.value, str))
        ]

    def arrays(self, *names: str) -> bool:
        """Returns whether the script has these arrays of rows."""
        return all(self.assigned(name) for name in names)

    def real_inputs(self) -> bool:
        """Returns whether inputs are numbers (not ids), in arrays that can be written to."""
        return (
            self.arrays("train_x") and not self.calls("Embedding", "EmbeddingBag") and not self.imports("jax")
        )

    def mode_matters(self) -> bool:
        """Returns whether a layer behaves differently in evaluations."""
        layers = ("Dropout", "Dropout1d", "Dropout2d", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "dropout")
        return bool(self.calls(*layers, "TransformerEncoderLayer")) or bool(
            re.search(r"dropout=0\.[1-9]", self.text())
        )

    # Edits ---------------------------------------------------------------------

    def edit_arrays(self, code: str, *names: str) -> bool:
        """Inserts statements after the last assignment of some arrays of rows, if the script has them all."""
        if not self.arrays(*names):
            return False
        places = [self.assigned(name) for name in names]
        last = max((s for s in places if s is not None), key=self.tree.body.index)
        self.after(last, code)
        if "np." in code:
            self.need("import numpy as np")
        return True

    def unshuffle(self) -> bool:
        """Stops the shuffling of the training's rows. Returns whether there was any."""
        changed = False
        fits = ("fit",) if self.imports("keras") or self.imports("tensorflow") else ()
        for call in self.calls("DataLoader", *fits):
            shuffled = keyword(call, "shuffle")
            if (shuffled is not None and ast.unparse(shuffled) == "True") or (
                name_of(call.func) == "fit" and keyword(call, "epochs")
            ):
                set_keyword(call, "shuffle", "False")
                changed = True
        for call in self.calls("randperm", "permutation"):
            inside = any(isinstance(n, Loop | ast.FunctionDef) for n in self.ancestors(call))
            if inside and call.args and self._is_count(call.args[-1]):
                library = "torch" if name_of(call.func) == "randperm" else "np"
                if library == "np":
                    self.need("import numpy as np")
                self.replace(call, f"{library}.arange({ast.unparse(call.args[-1])})")
                changed = True
        for call in self.calls("shuffle"):
            if self.loops(call) and isinstance(self.statement(call), ast.Expr):
                self.drop(call)
                changed = True
        return changed

    def _is_count(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Name):
            made = self.assigned(node.id)
            return (
                isinstance(made, ast.Assign)
                and not isinstance(made.value, ast.Name)
                and self._is_count(made.value)
            )
        return isinstance(node, ast.Constant) or bool(
            re.search(r"^len\(|shape\[0\]$|\.size\(0\)$", ast.unparse(node))
        )
