"""./dev compat: runs smdebug's own public tests on Luff's package of its API.

The tests come from the caller's clone of github.com/awslabs/sagemaker-debugger; nothing of it is kept. They run in a
copy of its `tests` folder, so that the clone does not change. Some write to /tmp and /opt/ml.
"""

import os
import re
import shutil
import tempfile
from pathlib import Path

from devlib import build, results, setup
from devlib.term import LOGS, Failed, output_of, run, say

FILE_LIMIT_S = 400

FOLDERS = (
    "tests/pytorch", "tests/xgboost", "tests/analysis", "tests/rules", "tests/profiler/core",
    "tests/profiler/pytorch",
)  # fmt: skip
# The parts of tests/core that are about files on this machine.
CORE = (
    "collections", "reduction_config", "save_config", "modes", "index", "index_utils", "numpy", "make_numpy_array",
    "state_store", "training_end", "error_handling_agent", "paths", "logger", "timeline_writer",
)  # fmt: skip
# Cases that smdebug itself does not pass without its authors' buckets, or without what the reason names.
BUCKETS = "needs its authors' buckets"
OUT_OF_REACH = (
    (r"analysis/tensors/test_refresh\.py", BUCKETS),
    (r"analysis/trials/(test_create|test_refresh)\.py::\w+_s3", BUCKETS),
    (r"analysis/trials/test_has_passed_step_scenarios\.py::(?!\w+_two_modes)", BUCKETS),
    (r"analysis/trials/(test_load_collections|test_s3)\.py", BUCKETS),
    (r"core/test_numpy\.py::test_s3", BUCKETS),
    (r"core/test_training_end\.py::\w*s3", BUCKETS),
    (r"core/test_paths\.py::test_s3", BUCKETS),
    (r"core/test_index_utils\.py::test_parse", BUCKETS),
    (r"core/test_index_utils\.py::test_tf", "needs TensorFlow"),
    (r"core/test_paths\.py::test_outdir_sagemaker", "needs TensorFlow before 2.12"),
    (
        r"profiler/core/test_(algorithm_metric|system_metric)_readers?\.py::\w*(S3|all_files|TF\w+\[s3)",
        BUCKETS,
    ),
    (r"profiler/core/test_pandas_frames\.py", BUCKETS),
    (
        r"profiler/core/test_utils\.py::(\w+\[s3\]|\w+_s3_write|\w+_suffix_filter|\w+_metadata_file_read)",
        BUCKETS,
    ),
    (r"profiler/core/test_python_profiler\.py::test_python_analysis", "uploads to its authors' buckets"),
    (
        r"profiler/core/test_horovodprofiler_events\.py",
        "needs Horovod's rotation of files, which is not there",
    ),
    (
        r"rules/action/test_message_action\.py::test_action_(sms|email|multiple)$",
        "needs a message service of AWS",
    ),
)


def compat_arguments(parser):
    parser.add_argument(
        "--suite", metavar="PATH", help="a clone of github.com/awslabs/sagemaker-debugger; default: skipped"
    )
    parser.add_argument("--only", metavar="TEXT", default="", help="only files whose path contains TEXT")


def compat_main(args):
    tally = suite(args.suite, args.only)
    results.show(tally)
    say(tally.line())
    return 1 if tally.failures else 0


def suite(path, only=""):
    """Returns the tally of the public tests."""
    if not path:
        return results.skipped(
            "smdebug's own tests",
            "no --suite PATH (LUFF_COMPAT_SUITE): a clone of awslabs/sagemaker-debugger",
        )
    clone = Path(path).expanduser().resolve()
    if not (clone / "tests" / "pytorch").is_dir():
        raise Failed(
            f"--suite names no clone of github.com/awslabs/sagemaker-debugger: {clone} has no tests/pytorch"
        )
    commit = (output_of(["git", "-C", clone, "log", "-1", "--format=%H %cs"]) or "unknown commit").strip()
    say(f"awslabs/sagemaker-debugger {commit}")
    build.ensure_product()
    python = setup.environment("compat")
    with tempfile.TemporaryDirectory(prefix="luff-compat-") as scratch:
        copy = Path(scratch) / "suite"
        for name in ("tests", "config"):
            shutil.copytree(clone / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        return _run_files(copy, python, only)


def _files(root, only):
    found = [f for folder in FOLDERS for f in sorted((root / folder).rglob("test_*.py"))]
    found += [f for f in (root / "tests" / "core" / f"test_{name}.py" for name in CORE) if f.exists()]
    return [f.relative_to(root) for f in found if only in str(f.relative_to(root))]


def _run_files(root, python, only):
    total, by_folder = results.Tally(), {}
    logs = LOGS / "compat"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    env = {
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_DEFAULT_REGION": "us-east-1",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{python.parent}:{os.environ.get('PATH', '/usr/bin:/bin')}",
    }
    for file in _files(root, only):
        name = str(file.with_suffix("")).replace("/", "-")
        xml = logs / f"{name}.xml"
        command = [
            python,
            "-m",
            "luff.compat.smdebug",
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-W",
            "ignore",
        ]
        code, _ = run(
            str(file), [*command, "--junitxml", xml, file], log=f"compat/{name}", env=env, cwd=root, check=False,
            timeout_s=FILE_LIMIT_S, echo=False,
        )  # fmt: skip
        found = results.read_xml(xml)
        if found is None:
            found = results.failed(str(file), f"pytest ended with {code}; log: build/logs/compat/{name}.log")
        found = _classified(found, file)
        say(f"  {file}: {found.line()}")
        folder = "/".join(file.parts[:2])
        by_folder.setdefault(folder, results.Tally()).add(found)
        total.add(found)
    for folder, tally in by_folder.items():
        say(f"{folder}: {tally.line()}")
    return total


def _classified(tally, file):
    """Returns the tally with the cases that are out of reach among the skipped ones."""
    out = results.Tally(passed=tally.passed, skips=list(tally.skips))
    for failure in tally.failures:
        case = failure.partition(": ")[0].rpartition(".")[2].partition("[")[0]
        parameters = failure.partition(": ")[0].rpartition(".")[2].removeprefix(case)
        place = f"{file}::{case}"
        reason = next(
            (
                w
                for pattern, w in OUT_OF_REACH
                if re.search(pattern, place) or re.search(pattern, place + parameters)
            ),
            None,
        )
        if reason is None:
            out.failures.append(f"{place}: {failure.partition(': ')[2]}")
        else:
            out.skips.append((place, reason))
    return out
