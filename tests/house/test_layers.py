"""tools/check_layers.py and tools/check_prose.py find the violations that they are made for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def layers(tree: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/check_layers.py"), str(tree)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (1 if done.stdout else 0), done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("path", "line", "complaint"),
    [
        ("src/query/trial.cc", '#include "luff/capture/session.h"', "query includes luff/capture/session.h"),
        ("src/tensor/view.cc", '#include "store/files.h"', "tensor includes store/files.h"),
        ("include/luff/store/writer.h", '#include "impl.h"', 'a public header includes "impl.h"'),
        (
            "include/luff/base/json.h",
            "#include <nlohmann/json.hpp>",
            "a public header includes <nlohmann/json.hpp>",
        ),
        ("src/capture/pool.cc", "#include <hwy/highway.h>", "<hwy/highway.h> is not for room capture"),
        ("src/store/writer.cc", "#include <zstd.h>", "does not know"),
        ("src/store/writer.cc", "#include <gtest/gtest.h>", "outside of a test"),
        ("src/gadgets/x.cc", "", "room 'gadgets'"),
        ("python/src/cli.cc", '#include "luff/cli/verbs.h"', "python/src includes luff/cli/verbs.h"),
        ("src/query/x.cc", "const auto j = nlohmann::json::parse(text);", "use ParseJson"),
        ("src/rules/x.cc", "return Json::sax_parse(text, &look);", "use ParseJson"),
        ("src/cli/x.cc", "fmt::print(all.dump(2));", "use JsonText"),
        (
            "src/rules/kit/x.cc",
            '#include "rules/facts/sample.h"',
            "rules/kit includes rules/facts/sample.h, and may use only kit",
        ),
        ("src/rules/builtin/loss/x.cc", '#include "rules/own/expression.h"', "rules/builtin includes"),
        ("src/rules/own/x.h", '#include "rules/engine/grouping.h"', "may use only own, kit, facts"),
        ("src/store/x.cc", "std::ifstream file(path);", "use base/bounded_read.h"),
        ("src/cli/x.cc", 'FILE* file = std::fopen(path, "r");', "use base/bounded_read.h"),
        ("python/luff/hook.py", "def f():\n    import torch", "imports torch"),
        ("python/luff/torch/__init__.py", "import tensorflow", "imports tensorflow"),
        (
            "python/luff/torch/evidence/_samples.py",
            "from luff.torch.loop._machine import Machine, x",
            "room evidence of torch imports luff.torch.loop._machine",
        ),
        (
            "python/luff/torch/capture/_names.py",
            "import luff.torch",
            "room capture of torch imports luff.torch,",
        ),
        (
            "python/luff/torch/loop/_hook.py",
            "import luff.torch._frameworks",
            "imports luff.torch._frameworks",
        ),
        (
            "python/luff/torch/replay/_replay.py",
            "def f():\n    from luff.torch import patches",
            "room replay of torch imports luff.torch.patches",
        ),
        ("python/luff/torch/attic/x.py", "import luff.torch.capture", "room 'attic' of torch"),
    ],
)
def test_a_step_upwards_is_one_line_of_complaint(
    tmp_path: Path, path: str, line: str, complaint: str
) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(line + "\n")
    found = layers(tmp_path)
    assert len(found) == 1, found
    assert complaint in found[0]
    assert found[0].startswith(path)


def test_steps_downwards_are_fine(tmp_path: Path) -> None:
    files = {
        "src/rules/rule.cc": '#include "luff/query/trial.h"\n#include <vector>\n#include "rule_impl.h"\n',
        "src/rules/builtin/loss/x.cc": '#include "rules/facts/sample.h"\n#include "rules/kit/select.h"\n',
        "src/rules/builtin/loss/x_test.cc": '#include "rules/engine/grouping.h"\n',
        "src/rules/engine/x.cc": '#include "rules/own/own_spec.h"\n',
        "src/base/env.cc": "#include <sys/stat.h>\n#include <unistd.h>\n",
        "src/base/json.cc": "Json::parse(text);\n",
        "src/rules/rule_test.cc": "std::ifstream file(path);\nJson::parse(file).dump();\n",
        "src/store/writer_test.cc": "#include <gtest/gtest.h>\n#include <rapidcheck.h>\n",
        "python/src/session.cc": '#include <nanobind/nanobind.h>\n#include "luff/capture/session.h"\n',
        "python/luff/torch/__init__.py": "import torch\nfrom luff import errors\n",
        "python/luff/torch/loop/_machine.py": "from luff.torch.evidence import _step\nfrom luff.torch.loop import x\n",
        "python/luff/__init__.py": "def __getattr__(name):\n    import luff.torch\n    return luff.torch\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert layers(tmp_path) == []


def test_import_of_luff_may_not_reach_a_framework_through_another_module(tmp_path: Path) -> None:
    package = tmp_path / "python" / "luff"
    (package / "torch").mkdir(parents=True)
    (package / "__init__.py").write_text("from luff import middle\n")
    (package / "middle.py").write_text("from .torch import hook\n")
    (package / "torch" / "__init__.py").write_text("")
    (package / "torch" / "hook.py").write_text("import torch\n")
    assert layers(tmp_path) == ["luff.torch.hook: `import luff` would import torch"]


def test_prose_names_file_line_and_what(tmp_path: Path) -> None:
    bad = tmp_path / "x.py"
    bad.write_text(
        "# TO"
        + "DO: later\n"
        + 'p = "/wo'
        + 'rk/main/x"\n'
        + "# the th"
        + "e end\n"
        + "y = 1 \n"
        + "# TO"
        + "DO(#12): fine\n"
    )
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/check_prose.py"), str(bad)],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert [line.split(":")[1] for line in lines] == ["1", "2", "3", "4"]


def test_prose_names_joined_separators_and_hard_words(tmp_path: Path) -> None:
    header, page = tmp_path / "x.h", tmp_path / "x.md"
    header.write_text(
        "// Names\n// " + "-" * 60 + " All: they\nvoid F(In i" + "n);  // an a" + "n\n// " + "-" * 60 + "\n"
    )
    page.write_text("A mistake is to" + "ld.\nIt begins an" + "ew.\nLuff was told to stop.\n")
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/check_prose.py"), str(header), str(page)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert [line.split(":")[:2] for line in done.stdout.splitlines()] == [
        [str(header), "2"],
        [str(header), "3"],
        [str(page), "1"],
        [str(page), "2"],
    ]
