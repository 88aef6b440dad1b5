"""Checks that every include and import points downwards, and that no two headers define a class of one name in one
namespace: the linker would take either. The tables below define the architecture.

usage: check_layers.py [ROOT]; prints one line for each violation and exits with 1.
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parents[1])

# Room -> rooms that it may include, in addition to itself. `query` and `rules` never see `capture`.
ROOMS = {
    "base": [],
    "tensor": ["base"],
    "device": ["base", "tensor"],
    "format": ["base", "tensor"],
    "store": ["base", "tensor", "format"],
    "capture": ["base", "tensor", "device", "format", "store"],
    "query": ["base", "tensor", "format", "store"],
    "profile": ["base", "tensor", "format", "store", "query"],
    "rules": ["base", "tensor", "format", "store", "query", "profile"],
    "actions": ["base", "tensor", "format", "store", "query", "profile", "rules"],
    "catalog": ["base", "tensor", "format", "store", "query", "profile", "rules"],
    "keys": ["base", "tensor", "format", "store", "query", "profile", "rules", "actions"],
    "server": [
        "base",
        "tensor",
        "format",
        "store",
        "query",
        "profile",
        "rules",
        "actions",
        "catalog",
        "keys",
    ],
    "watch": ["base", "tensor", "format", "store", "query", "profile", "rules", "actions", "catalog", "keys"],
    "cli": [
        "base",
        "tensor",
        "device",
        "format",
        "store",
        "capture",
        "query",
        "profile",
        "rules",
        "actions",
        "catalog",
        "keys",
        "server",
        "watch",
    ],
}
# Folders of src/rules -> those that they may include in addition to themselves. Tests may include all of them.
RULES = {
    "kit": [],
    "facts": ["kit"],
    "builtin": ["kit", "facts"],
    "own": ["kit", "facts"],
    "engine": ["kit", "facts", "builtin", "own"],
}
# Third-party headers (by first path component or name) -> rooms whose sources may include them. Public headers: none.
BORROWED = {
    "hwy": ["tensor"],
    "xxhash.h": ["base", "tensor", "format", "store", "rules"],
    "pcre2.h": ["base"],
    "nlohmann": [
        "base",
        "format",
        "store",
        "capture",
        "query",
        "profile",
        "rules",
        "actions",
        "catalog",
        "keys",
        "server",
        "watch",
        "cli",
    ],
    "fmt": list(ROOMS),
    "fmt/format.h": ["base"],  # compiled only once, by base/format.h
    "protozero": ["format", "cli"],
    "toml++": ["cli"],
    "CLI": ["cli"],
    "spdlog": ["cli"],
    "sqlite3.h": ["catalog"],
    "boost": ["server"],
    "sodium.h": ["keys", "server"],
}
# Calls that only the room `base` may make, and their replacements elsewhere. Tests may make them.
ONE_DOOR = [
    (
        r"\b(?:json|Json|JSON|ordered_json|OrderedJson)::(?:parse|sax_parse|accept|from_\w+|to_\w+)\s*\(",
        "the library's own parser: use ParseJson (base/json.h), which bounds bytes and depth",
    ),
    (r"(?:\.|->)dump\s*\(", "the library's own writer: use JsonText (base/json.h)"),
    (r"\b(?:std::)?(?:ifstream|fstream)\b", "opens whatever a path leads to: use base/bounded_read.h"),
    (r"#\s*include\s*<fstream>", "opens whatever a path leads to: use base/bounded_read.h"),
    (r"\bfopen\s*\(", "opens whatever a path leads to: use base/bounded_read.h"),
]
TEST_HEADERS = {"gtest", "gmock", "rapidcheck", "rapidcheck.h", "benchmark"}
# The Python module may bind every room except those of the executable.
CORE_ROOMS = [room for room in ROOMS if room not in ("catalog", "keys", "server", "watch", "cli")]

# Python: which of our modules may import what, in addition to the standard library, numpy, ml_dtypes and luff itself.
# A name that ends in "/" is a folder.
FRAMEWORKS = {
    "torch": [
        "torch/",
        "keras/",
        "lightning/",
        "transformers/",
        "accelerate/",
        "compat/smdebug/pytorch/",
        "compat/smdebug/core/utils.py",
    ],
    "optuna": ["optuna.py"],
    "ray": ["ray/"],
    "hydra": ["hydra.py"],
    "omegaconf": ["hydra.py"],
    "xgboost": ["xgboost/", "compat/smdebug/xgboost/"],
    "keras": ["keras/", "tensorflow/", "compat/smdebug/tensorflow/"],
    "tensorflow": [
        "_xplane.py",
        "keras/",
        "tensorflow/",
        "compat/smdebug/tensorflow/",
        "compat/smdebug/core/utils.py",
    ],
    "jax": ["_jax_compiles.py", "_xplane.py", "jax/", "keras/"],
    "flax": ["jax/"],
    "optax": ["jax/"],
    "mxnet": ["mxnet/", "compat/smdebug/mxnet/"],
    "lightning": ["lightning/"],
    "pytorch_lightning": ["lightning/"],
    "transformers": ["transformers/"],
    "accelerate": ["accelerate/"],
    "lightgbm": ["lightgbm/"],
    "sklearn": ["sklearn/"],
    "matplotlib": ["_verbs/"],
    "pyarrow": ["_verbs/export.py", "_verbs/runs_table.py"],
    "pandas": ["profile.py", "compat/smdebug/profiler/analysis/"],
    "bokeh": ["compat/smdebug/profiler/analysis/notebook_utils/"],
    "pyinstrument": ["compat/smdebug/profiler/python_profiler.py"],
    "opentelemetry": ["_verbs/otlp.py"],
    "obstore": ["remote/_store.py"],
    "cryptography": ["remote/_seal.py", "remote/_recipients.py"],
}
# Rooms of our Python packages: folder of python/luff -> room -> rooms that it may import, in addition to itself. A
# file beside the rooms may import all of them; no room imports such a file.
PYTHON_ROOMS = {
    "torch": {
        "capture": [],
        "replay": ["capture"],
        "source": [],
        "evidence": ["capture", "replay", "source"],
        "loop": ["capture", "replay", "source", "evidence"],
        "patches": ["capture", "replay", "source", "evidence", "loop"],
    },
}
PYTHON_FREE = {"numpy", "ml_dtypes", "luff", "typing_extensions"}
# What importing `luff` must not import, directly or through other modules of ours.
LAZY = tuple(FRAMEWORKS)

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
# POSIX headers have a slash or match this pattern; C++ standard headers have neither slash nor suffix.
SYSTEM = re.compile(r"^(sys|linux|netinet|arpa|bits|asm|sanitizer)/|^[a-z0-9_]+$|^[a-z0-9_]+\.h$")
SYSTEM_NOT = {"pcre2.h", "xxhash.h", "httplib.h", "rapidcheck.h", "zstd.h", "lz4.h", "zlib.h"}


def cpp_violations():
    for file in sorted(
        [*ROOT.glob("include/luff/**/*.h"), *ROOT.glob("src/**/*.h"), *ROOT.glob("src/**/*.cc")]
    ):
        relative = file.relative_to(ROOT)
        public = relative.parts[0] == "include"
        room = relative.parts[2] if public else relative.parts[1]
        if room not in ROOMS:
            yield f"{relative}: room {room!r} is not in tools/check_layers.py"
            continue
        yield from _includes(file, relative, [room, *ROOMS[room]], room=room, public=public)
    for file in sorted([*ROOT.glob("python/src/*.h"), *ROOT.glob("python/src/*.cc")]):
        yield from _includes(file, file.relative_to(ROOT), CORE_ROOMS, room=None, public=False)


def _doors(text, relative):
    """Yields calls that bypass the room `base`."""
    for pattern, why in ONE_DOOR:
        for match in re.finditer(pattern, text):
            where = f"{relative}:{text.count(chr(10), 0, match.start()) + 1}"
            yield f"{where}: {match.group().strip()}: {why}"


def _includes(file, relative, allowed, *, room, public):
    text = file.read_text(errors="replace")
    test = file.stem.endswith(("_test", "_fuzz", "_benchmark", "testing")) or "test_" in file.name
    test = test or file.parent.name == "testing"
    if not test and room != "base":
        yield from _doors(text, relative)
    for match in INCLUDE.finditer(text):
        bracket, name = match.groups()
        where = f"{relative}:{text.count(chr(10), 0, match.start(2)) + 1}"
        top = name.split("/")[0]
        if bracket == '"':
            if top == "luff":
                target = name.split("/")[1]
            elif public:
                yield f'{where}: a public header includes "{name}"; only luff/... and the standard library are allowed'
                continue
            else:
                target = top if "/" in name else None  # a header in the same folder
            if not test and room == "rules" and not public:
                yield from _between_folders(relative, name, where)
            if target is not None and target in ROOMS and target not in allowed:
                yield f"{where}: {room or 'python/src'} includes {name}, and may use only {', '.join(allowed)}"
            continue
        known = name in BORROWED or top in BORROWED
        if SYSTEM.match(name) and name not in SYSTEM_NOT and not known and top not in TEST_HEADERS:
            continue
        if top == "nanobind" and room is None:
            continue
        if public:
            yield f"{where}: a public header includes <{name}>; only luff/... and the standard library are allowed"
        elif top in TEST_HEADERS:
            if not test:
                yield f"{where}: <{name}> outside of a test"
        elif not known:
            yield f"{where}: <{name}> is a borrowed part that tools/check_layers.py does not know"
        elif room is not None and not _may_borrow(name, [room, *ROOMS[room]] if test else [room]):
            yield f"{where}: <{name}> is not for room {room}"


def _between_folders(relative, name, where):
    """Yields upward includes between the folders of src/rules."""
    own, theirs = relative.parts[2], (name.split("/") + [""])[:2]
    if own not in RULES or theirs[0] != "rules" or theirs[1] not in RULES or own == theirs[1]:
        return
    if theirs[1] not in RULES[own]:
        may = ", ".join([own, *RULES[own]])
        yield f"{where}: rules/{own} includes {name}, and may use only {may}"


def _may_borrow(name, rooms):
    """Returns whether a test may use a header: it may use those of the rooms below its own."""
    users = BORROWED.get(name, BORROWED.get(name.split("/")[0], []))
    return any(room in users for room in rooms)


def one_name_violations():
    """Yields classes that two headers define in the same namespace."""
    defined = {}
    for header in sorted([*(ROOT / "src").rglob("*.h"), *(ROOT / "include").rglob("*.h")]):
        text = header.read_text()
        space = re.search(r"^namespace ([\w:]+) \{", text, re.M)
        for name in re.findall(r"^(?:class|struct) (\w+)[^;\n]*\{", text, re.M):
            first = defined.setdefault((space and space[1], name), header)
            if first != header:
                yield f"{header.relative_to(ROOT)}: {name} is defined in {first.relative_to(ROOT)}, too"


def python_violations():
    package = ROOT / "python" / "luff"
    at_import = {}  # module -> our modules that its import imports
    frameworks = {}  # module -> frameworks that its import imports
    for file in sorted(package.rglob("*.py")):
        relative = file.relative_to(package)
        module = _module(relative)
        try:
            tree = ast.parse(file.read_text())
        except SyntaxError as error:
            yield f"python/luff/{relative}:{error.lineno}: {error.msg}"
            continue
        at_import[module], frameworks[module] = set(), set()
        for node, lazy in _imports(tree):
            names = _names(node, module, is_package=file.name == "__init__.py")
            if wrong := _wrong_room(relative.parts, names):
                yield f"python/luff/{relative}:{node.lineno}: {wrong}"
            for name in names:
                top = name.split(".")[0]
                if top == "luff":
                    if not lazy:
                        at_import[module].add(name)
                    continue
                if top in sys.stdlib_module_names or top in PYTHON_FREE:
                    continue
                if relative.parts[0] == "_bootstrap" and (file.parent / f"{top}.py").exists():
                    continue  # on PYTHONPATH, and so imported by its own name
                if not any(str(relative).startswith(p) for p in FRAMEWORKS.get(top, [])):
                    where = f"python/luff/{relative}:{node.lineno}"
                    yield f"{where}: imports {top}; tools/check_layers.py does not allow it there"
                elif not lazy:
                    frameworks[module].add(top)
    reached, todo = set(), ["luff"]
    while todo:
        module = todo.pop()
        if module in reached:
            continue
        reached.add(module)
        todo += [
            m
            for m in at_import
            for name in at_import.get(module, ())
            if m == name or name.startswith(f"{m}.")
        ]
    for module in sorted(reached):
        for framework in sorted(frameworks.get(module, set()) & set(LAZY)):
            yield f"{module}: `import luff` would import {framework}"


def _wrong_room(parts, names):
    """Returns why a file (given by its parts below python/luff) may not import one of these names; None if it may."""
    rooms = PYTHON_ROOMS.get(parts[0])
    if rooms is None or len(parts) == 2:
        return None
    room = parts[1]
    if room not in rooms:
        return f"room {room!r} of {parts[0]} is not in tools/check_layers.py"
    allowed = [room, *rooms[room]]
    for name in names:
        _, package, target, *_ = *name.split("."), "", "", ""
        whole = not any(other.startswith(f"{name}.") for other in names)  # not the `a` of `from a import b`
        if package == parts[0] and target not in allowed and whole:
            return f"room {room} of {package} imports {name}, and may use only {', '.join(allowed)}"
    return None


def _module(relative):
    parts = ["luff", *relative.with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(tree):
    """Yields (import statement, whether it runs later than the module's import)."""

    def walk(node, lazy):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.Import, ast.ImportFrom)):
                yield child, lazy
            elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) or (
                isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
            ):
                yield from walk(child, True)
            else:
                yield from walk(child, lazy)

    yield from walk(tree, False)


def _names(node, module, *, is_package):
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = node.module or ""
    if node.level:
        parts = module.split(".")
        parts = parts if is_package else parts[:-1]
        parts = parts[: len(parts) - (node.level - 1)]
        base = ".".join([*parts, base] if base else parts)
    return [base, *(f"{base}.{alias.name}" for alias in node.names)] if base.startswith("luff") else [base]


def main():
    violations = [*cpp_violations(), *one_name_violations(), *python_violations()]
    for line in violations:
        print(line)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
