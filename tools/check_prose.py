"""Checks words and text files: open ends, machine paths, doubled words, overlong files, wrong vocabulary.

usage: check_prose.py FILE...; prints one line for each violation and exits with 1.
"""

import re
import sys
from pathlib import Path

MAX_LINES = 650  # in a source file: one idea per file
SOURCES = {".h", ".cc", ".py", ".pyi", ".cmake"}
SKIP = re.compile(
    r"^(benchmarks/faultbench/|testdata/|LICENSE$|requirements/)|\.(png|svg|bin|run|json|jsonl|frame|seg)$"
)
SELF = "tools/check_prose.py"

DOUBLED = r"\b(?P<word>the|a|an|of|to|in|is|and|or|for|with|that|it) (?P=word)\b"

# (pattern, what is wrong with it, suffixes of files to check; () means all)
PATTERNS = [
    (r"\b(?:TODO|FIXME|XXX|HACK)\b(?!\(#\d+\))", "an open end without an issue: TODO(#N) or do it", ()),
    (r"(?<![\w.])/(?:work|root|home/\w+|Users/\w+)/", "a path of somebody's machine", ()),
    (r"(?:\.\./)+shared/", "a path outside of the repository", ()),
    (r"Co-authored-by", "authors are git's business", ()),
    (
        r"(?<!--)\b(?:master|slave|whitelist|blacklist)\b",
        "say main, worker, allow-list, deny-list",
        (".md", ".py", ".cc", ".h"),
    ),
    (DOUBLED, "a doubled word", (".md", ".py", ".pyi", ".txt", ".cmake", ".toml")),
    (r"//.*" + DOUBLED, "a doubled word", (".cc", ".h")),  # in comments: `In in` declares a variable
    (r"[ \t]+$", "blanks at the end of the line", ()),
    (r"\t", "a tab", (".py", ".cc", ".h", ".cmake", ".toml")),
    (r"^\s*//+ -{8,} \w", "a separator that clang-format joined with prose", (".cc", ".h")),
    (r"\b(?:is|are|was|were|been) told\b(?! to\b)", "say reported", (".md",)),
    (r"\banew\b", "say again", (".md",)),
    (r"\bof the user's own\b", "say custom, or the user's own ...", (".md",)),
    (r"\bso manieth\b", "say which one", (".md", ".h", ".cc")),
]
COMPILED = [
    (re.compile(p, re.IGNORECASE if "doubled" in what else 0), what, only) for p, what, only in PATTERNS
]


def violations(name, text):
    """Yields lines "file:line: what" for one file."""
    suffix = Path(name).suffix
    lines = text.splitlines()
    if suffix in SOURCES and len(lines) > MAX_LINES:
        yield f"{name}: {len(lines)} lines, at most {MAX_LINES}: split it by idea"
    if text and not text.endswith("\n"):
        yield f"{name}:{len(lines)}: no newline at the end of the file"
    for number, line in enumerate(lines, 1):
        for pattern, what, only in COMPILED:
            if (not only or suffix in only) and pattern.search(line):
                yield f"{name}:{number}: {what}: {line.strip()[:80]}"


def main(names):
    bad = 0
    for name in names:
        if SKIP.search(name) or name == SELF:
            continue
        try:
            text = Path(name).read_text()
        except (UnicodeDecodeError, FileNotFoundError):
            continue
        for line in violations(name, text):
            print(line)
            bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
