"""./dev docs: checks that links lead somewhere, commands exist, and Python examples compile."""

import ast
import re
import subprocess
import urllib.parse

from devlib import build, pictures, setup
from devlib.check import files
from devlib.term import ROOT, VENV, say

LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"`[^`\n]*`")
SHELL = {"sh", "bash", "shell", "console", ""}


def docs_arguments(parser):
    parser.add_argument(
        "--no-commands", action="store_true", help="do not ask the installed luff which verbs it has"
    )
    parser.add_argument(
        "--pictures", action="store_true", help="draw the pictures of terminals and of the page again"
    )


def docs_main(args):
    setup.ensure_packages(optional=False)
    setup.ensure_venv()
    if args.pictures:
        build.ensure_all()
        return pictures.draw()
    verbs = None
    if not args.no_commands:
        build.ensure_product()
        verbs = luff_verbs()
    names = [f for f in files((".md",)) if not f.startswith(("benchmarks/faultbench/", "testdata/"))]
    problems = [p for name in names for p in check_page(name, (ROOT / name).read_text(), verbs)]
    for problem in problems:
        say(problem)
    say(f"{len(names)} pages, {len(problems)} problems")
    return 1 if problems else 0


def luff_verbs():
    """Returns the verbs of the installed command, or None if it is not installed."""
    program = VENV / "bin" / "luff"
    if not program.exists():
        return None
    text = subprocess.run([str(program), "--help"], capture_output=True, text=True, check=False).stdout
    return set(re.findall(r"^  ([a-z][a-z-]*)\b", text, re.MULTILINE))


def check_page(name, text, verbs):
    """Yields the problems of one page as "file:line: what"."""

    def at(position):
        return f"{name}:{text.count(chr(10), 0, position) + 1}"

    prose = BLOCK.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), text)
    prose = INLINE_CODE.sub(lambda m: " " * len(m.group(0)), prose)
    for match in LINK.finditer(prose):
        target = match.group(1) or match.group(2)
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = urllib.parse.unquote(target).partition("#")
        file = ((ROOT / name).parent / path) if path else ROOT / name
        if not file.exists():
            yield f"{at(match.start())}: leads nowhere: {target}"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text() if path else text):
            yield f"{at(match.start())}: no such heading: {target}"
    for match in BLOCK.finditer(text):
        language, code = match.groups()
        if language == "python" and ">>>" not in code:
            try:
                ast.parse(code)
            except SyntaxError as error:
                yield f"{at(match.start(2))}: this Python does not compile: {error.msg}"
        if language in SHELL:
            yield from check_commands(at(match.start(2)), code, verbs)


def check_commands(where, code, verbs):
    """Yields the problems of the commands in one block."""
    dev_verbs = set(re.findall(r'^    "(\w+)": \(', (ROOT / "dev").read_text(), re.MULTILINE))
    for line in code.splitlines():
        command = line.strip().removeprefix("$ ").split("#")[0].split()
        if len(command) < 2 or command[1].startswith(("-", "<", "V")):
            continue
        if command[0] == "./dev" and command[1] not in dev_verbs:
            yield f"{where}: ./dev has no verb {command[1]!r}"
        program = command[0].rpartition("/")[2]
        if program == "luff" and verbs and re.fullmatch(r"[a-z-]+", command[1]) and command[1] not in verbs:
            yield f"{where}: luff has no verb {command[1]!r}"


def anchors(text):
    """Returns the anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.replace("`", "")).strip().lower().replace(" ", "-") for h in heads}
