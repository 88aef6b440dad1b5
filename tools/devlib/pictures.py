"""`./dev docs --pictures`: runs the commands that the documentation shows, and draws them and the page."""

import fcntl
import html
import os
import pty
import re
import struct
import subprocess
import tempfile
import termios
from pathlib import Path

from devlib import page_pictures
from devlib.term import ROOT, VENV, say

FOLDER = ROOT / "docs" / "images"
COLUMNS, ROWS = 110, 60
CELL, LINE, MARGIN = 7.8, 17, 14  # pixels
SEQUENCE = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])")
NO_BREAK = "\u00a0"  # a space that no reader of SVG folds into its neighbours
COLOURS = {
    "31": "#ff7b72",
    "32": "#7ee787",
    "33": "#e3b341",
    "34": "#79c0ff",
    "35": "#d2a8ff",
    "36": "#76e3ea",
}

#: name of the picture, what is typed, and its arguments
SHOWN = (
    (
        "run",
        "luff run --on-finding stop -- python train.py --learning-rate 3.0",
        ["run", "--on-finding", "stop", "--", "python", "train.py", "--learning-rate", "3.0"],
    ),
    (
        "runs",
        "luff runs --where 'steps > 0'",
        ["runs", "--where", "steps > 0"],
    ),
    ("plot", "luff plot @2 CrossEntropyLoss_output_0", ["plot", "@2", "CrossEntropyLoss_output_0"]),
)


def draw():
    """Makes all pictures anew from two real trainings."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        script = home / "train.py"
        script.write_bytes((ROOT / "examples" / "digits" / "train.py").read_bytes())
        output(home, ["run", "--", "python", "train.py"])  # a healthy one, for the list and the plot
        for name, typed, arguments in SHOWN:
            text = output(home, arguments).replace(f"{home}/.luff", "~/.luff").replace(str(home), "~")
            (FOLDER / f"terminal-{name}.svg").write_text(svg(typed, screen(text)))
            say(f"  docs/images/terminal-{name}.svg: {typed}")
        page_pictures.draw(home, _environment(home))
    return 0


def _environment(home):
    return {
        "PATH": f"{VENV / 'bin'}:/usr/bin:/bin",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
    }


def output(home, arguments):
    """Returns what `luff` prints on a terminal of its own."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = _environment(home) | {"TERM": "xterm"}
    job = subprocess.Popen(
        [VENV / "bin" / "luff", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=home,
        env=environment,
    )
    os.close(theirs)
    parts = []
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the last writer has closed the terminal
            break
        if not part:
            break
        parts.append(part)
    os.close(ours)
    job.wait()
    return b"".join(parts).decode(errors="replace")


def screen(text):
    """Returns the lines that remain, each a list of (character, style), after all that was overwritten."""
    lines, column, style, at = [[]], 0, "", 0
    while at < len(text):
        sequence = SEQUENCE.match(text, at)
        if sequence:
            at = sequence.end()
            if sequence[2] == "m":
                style = sequence[1].strip("0;") and sequence[1]
            elif sequence[2] == "K":
                lines[-1] = [] if sequence[1] == "2" else lines[-1][:column]
            continue
        character, at = text[at], at + 1
        if character == "\n":
            lines, column = [*lines, []], 0
        elif character == "\r":
            column = 0
        elif character.isprintable():
            if column == COLUMNS:  # the terminal wraps
                lines, column = [*lines, []], 0
            lines[-1] += [(" ", "")] * (column - len(lines[-1]))
            lines[-1][column : column + 1] = [(character, style)]
            column += 1
    while lines and not lines[-1]:
        lines.pop()
    return lines


def svg(typed, lines):
    """Returns a picture of a terminal in which a command was typed and these lines are left."""
    rows = [[(c, "1") for c in f"$ {typed}"], *lines]
    width, height = round(COLUMNS * CELL + 2 * MARGIN), len(rows) * LINE + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">',
        f"<title>{html.escape(typed)}</title>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#161b22"/>',
        '<g font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="13" fill="#e6edf3">',
    ]
    for number, row in enumerate(rows):
        y = MARGIN + number * LINE + 13
        at = 0
        while at < len(row):
            style = row[at][1]
            end = next((i for i in range(at, len(row)) if row[i][1] != style), len(row))
            text = "".join(character for character, _ in row[at:end])
            if text.strip():
                length = round((end - at) * CELL, 1)
                parts.append(
                    f'<text x="{round(MARGIN + at * CELL, 1)}" y="{y}" textLength="{length}"{attributes(style)}>'
                    f"{html.escape(text).replace(' ', NO_BREAK)}</text>"
                )
            at = end
    return "\n".join([*parts, "</g>", "</svg>", ""])


def attributes(style):
    codes = style.split(";")
    colour = next((COLOURS[code] for code in codes if code in COLOURS), "")
    return (
        (f' fill="{colour}"' if colour else "")
        + (' font-weight="bold"' if "1" in codes else "")
        + (' opacity="0.65"' if "2" in codes else "")
    )
