"""What is shipped, and how soon the server listens."""

from __future__ import annotations

import re
import shlex
import struct
import subprocess
import zlib
from pathlib import Path

from _gates import luff_command
from _studio import ROOT, Bench, Skipped, record

#: Libraries that only the server needs; its page is in the first.
OF_SERVER = ("libluff_server.a", "libsodium.a", "libz.a")
SHIPPED = (".text", ".rodata", ".data", ".eh_frame", ".gcc_except_table", ".init_array")


def parts_of(link_map: str) -> list[tuple[int, int]]:
    """Returns address and bytes of what the server's libraries have in the executable, by the linker's map."""
    parts = []
    section = ""
    for line in link_map.split("Linker script and memory map", 1)[1].splitlines():
        if named := re.match(r" (\.\S+)", line):
            section = named[1]
        place = re.search(r"\s0x([0-9a-f]+)\s+0x([0-9a-f]+)\s+(\S.*)$", line)
        if place is None or not section.startswith(SHIPPED):
            continue
        if Path(place[3].split("(")[0]).name in OF_SERVER:
            parts.append((int(place[1], 16), int(place[2], 16)))
    return parts


def bytes_at(elf: bytes, parts: list[tuple[int, int]]) -> bytes:
    """Returns the bytes that lie at these addresses of a 64-bit little-endian ELF file."""
    (table,) = struct.unpack_from("<Q", elf, 32)
    size, count = struct.unpack_from("<HH", elf, 54)
    loaded = []
    for i in range(count):
        kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", elf, table + i * size)
        if kind == 1:
            loaded.append((address, length, offset))
    found = []
    for address, length in parts:
        for begin, room, offset in loaded:
            if begin <= address < begin + room:
                found.append(elf[offset + address - begin : offset + address - begin + length])
    return b"".join(found)


def server_bytes(folder: Path) -> bytes:
    """Links the executable of the tree `build/dev` once more, with a map; returns what the server adds to it."""
    build = ROOT / "build" / "dev"
    try:
        commands = subprocess.run(
            ["ninja", "-C", build, "-t", "commands", "src/cli/luff"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        raise Skipped("there is no tree build/dev; ./dev build makes it") from None
    link = next(line for line in reversed(commands) if " -o src/cli/luff " in line)
    words = shlex.split(link.split("&&")[1] if "&&" in link else link)
    linked, link_map = folder / "luff", folder / "luff.map"
    words[words.index("src/cli/luff")] = str(linked)
    done = subprocess.run(
        [*words, f"-Wl,-Map={link_map}"], cwd=build, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise Skipped("build/dev is not complete; ./dev build makes it")
    return bytes_at(linked.read_bytes(), parts_of(link_map.read_text()))


def growth(bench: Bench) -> None:
    folder = bench.folder / "linked"
    folder.mkdir()
    try:
        added = server_bytes(folder)
    except Skipped as reason:
        bench.skip("wheel growth, MB", str(reason))
        return
    bench.note("executable: what the server adds, MB", len(added) / 1e6)
    bench.note("wheel growth, MB", len(zlib.compress(added, 6)) / 1e6)  # as wheels are compressed


def measure(bench: Bench) -> None:
    for asset in (ROOT / "web/dist/assets").glob("*.gz"):
        bench.note("bundle gzip, KB", asset.stat().st_size / 1e3)
    if "bundle gzip, KB" in bench.found:  # what a browser loads, all together
        bench.found["bundle gzip, KB"] = [sum(bench.found["bundle gzip, KB"])]
    else:
        bench.skip("bundle gzip, KB", "web/dist holds no page")
    growth(bench)
    root = bench.folder / "small"
    root.mkdir()
    record(root / "run", 10, 10)
    for _ in range(bench.rounds + 2):
        with bench.server(root, home="small-home") as server:
            bench.note("start to listening, CPU ms", 1e3 * server.cpu_to_listening_s)
    size = Path(luff_command()).stat().st_size
    stripped = subprocess.run(["size", luff_command()], capture_output=True, text=True, check=False)
    if stripped.returncode == 0:
        size = int(stripped.stdout.splitlines()[1].split()[3])
    bench.note("luff without symbols, MB", size / 1e6)
