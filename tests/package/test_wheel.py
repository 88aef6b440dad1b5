"""The repaired wheel: what it links and exports, and that it runs where nothing can be compiled."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from .conftest import call

# Any other library would be a copy that conflicts with the process it is loaded into.
ALLOWED_LIBRARIES = {
    "libc.so.6",
    "libm.so.6",
    "libstdc++.so.6",
    "libgcc_s.so.1",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
}


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def needed(path: Path) -> set[str]:
    with path.open("rb") as file:
        dynamic = ELFFile(file).get_section_by_name(".dynamic")
        return {tag.needed for tag in dynamic.iter_tags() if tag.entry.d_tag == "DT_NEEDED"}


def exported(path: Path) -> set[str]:
    with path.open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym").iter_symbols()
        return {
            s.name
            for s in symbols
            if s["st_shndx"] != "SHN_UNDEF"
            and s["st_info"]["bind"] == "STB_GLOBAL"
            and s["st_other"]["visibility"] == "STV_DEFAULT"
        }


def core_of(folder: Path) -> Path:
    return next(folder.glob("luff/_core*.so"))


def test_core_links_only_the_runtime_of_the_compiler(unpacked: Path) -> None:
    assert needed(core_of(unpacked)) <= ALLOWED_LIBRARIES


def test_core_exports_only_its_init_function(unpacked: Path) -> None:
    ours = {
        name
        for name in exported(core_of(unpacked))
        if not name.startswith(("_init", "_fini", "__bss", "_end", "_edata"))
    }
    assert ours == {"PyInit__core"}


def test_command_is_an_executable_of_ours_and_links_only_the_runtime(unpacked: Path) -> None:
    command = next(unpacked.glob("luff-*.data/scripts/luff"), None)
    assert command is not None, "the wheel has no scripts/luff"
    assert command.read_bytes()[:4] == b"\x7fELF"
    assert needed(command) <= ALLOWED_LIBRARIES


def test_wheel_carries_types_and_licence(unpacked: Path) -> None:
    assert (unpacked / "luff" / "py.typed").exists()
    assert (unpacked / "luff" / "_core.pyi").exists()
    assert any("Apache License" in f.read_text() for f in unpacked.rglob("LICENSE"))


def test_wheel_carries_notices_and_the_list_of_what_it_borrows(wheel: Path, unpacked: Path) -> None:
    notices = next(unpacked.rglob("THIRD_PARTY_NOTICES.md")).read_text()
    document = json.loads(next(unpacked.glob("luff-*.dist-info/sboms/luff.cdx.json")).read_text())
    assert document == json.loads(wheel.with_suffix(".cdx.json").read_text())
    assert document["bomFormat"] == "CycloneDX"
    for part in document["components"]:
        assert f"## {part['name']}\n" in notices
        assert part.get("version") or part["name"] == "robin-map", part


def test_wheel_holds_no_headers_or_static_libraries(unpacked: Path) -> None:
    assert not [p for p in unpacked.rglob("*") if p.suffix in {".h", ".a", ".cmake"}]


def test_installs_and_runs_without_compiler_and_headers(
    wheel: Path, clean_python: Path, clean_env: dict[str, str], root: Path, tmp_path: Path
) -> None:
    pip = [clean_python, "-m", "pip", "install", "-q"]
    call(*pip, "--require-hashes", "-r", root / "requirements" / "base.txt", env=clean_env)
    call(*pip, "--no-index", wheel, env=clean_env)  # base.txt lists everything that it needs
    script = tmp_path / "use.sh"
    script.write_text(
        "set -eu\n"
        'if [ "${1:-}" = hide ]; then for d in /usr/include /usr/lib/gcc; do mount -t tmpfs none $d; done; fi\n'
        "for c in cc gcc g++ clang cmake ninja; do if command -v $c; then exit 9; fi; done\n"
        "luff --version\n"
        'python -c "import luff; print(luff.__version__)"\n'
    )
    hide = ["unshare", "-rm"]
    can_hide = (
        shutil.which("unshare")
        and subprocess.run([*hide, "true"], capture_output=True, check=False).returncode == 0
    )
    command = [*hide, "/bin/sh", script, "hide"] if can_hide else ["/bin/sh", script]
    mount_path = f"{clean_env['PATH']}:{tmp_path / 'bin'}"
    (tmp_path / "bin").mkdir()
    for tool in ("mount",):
        found = shutil.which(tool, path="/usr/bin:/bin:/sbin:/usr/sbin")
        if found:
            (tmp_path / "bin" / tool).symlink_to(found)
    lines = call(
        shutil.which(str(command[0])) or command[0], *command[1:], env={**clean_env, "PATH": mount_path}
    ).split("\n")
    version = lines[-2]
    assert version.count(".") == 2
    assert version in lines[0]
