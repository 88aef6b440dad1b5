"""`./dev docs --pictures` draws what a terminal shows: colours, what was overwritten, lines that wrap."""

import re
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from devlib import page_pictures, pictures  # noqa: E402


def text(lines: list[list[tuple[str, str]]]) -> list[str]:
    return ["".join(character for character, _ in line) for line in lines]


def test_what_was_overwritten_or_cleared_is_gone() -> None:
    assert text(pictures.screen("step 1\r\x1b[2Kdone\nab\rc\nxyz\r\x1b[Kx\n\n")) == ["done", "cb", "x"]


def test_long_lines_wrap() -> None:
    assert [len(line) for line in text(pictures.screen("a" * (pictures.COLUMNS + 3)))] == [
        pictures.COLUMNS,
        3,
    ]


def test_colours_and_spaces_are_kept() -> None:
    picture = pictures.svg("luff x", pictures.screen("luff:   \x1b[1;31mSTOP\x1b[0m <&>"))
    pieces = [(e.text or "", e.attrib) for e in ET.fromstring(picture).iter() if e.tag.endswith("text")]
    assert [piece for piece, _ in pieces] == [
        "$\u00a0luff\u00a0x",
        "luff:\u00a0\u00a0\u00a0",
        "STOP",
        "\u00a0<&>",
    ]
    assert (pieces[2][1]["fill"], pieces[2][1]["font-weight"]) == ("#ff7b72", "bold")


def test_the_pictures_of_the_documentation_are_there() -> None:
    for name, typed, _ in pictures.SHOWN:
        picture = (ROOT / "docs" / "images" / f"terminal-{name}.svg").read_text()
        assert ET.fromstring(picture)[0].text == typed
        assert not re.search(r"[ >](/\w+){2}", picture), "a path of the machine that drew it"
    tour = (ROOT / "docs" / "studio.md").read_text()
    for name in page_pictures.PAGES:
        assert (ROOT / "docs" / "images" / f"page-{name}.webp").read_bytes()[8:12] == b"WEBP"
        assert f"images/page-{name}.webp" in tour
