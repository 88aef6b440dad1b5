"""The wheel's list of third-party parts: complete, valid in its main fields, with a licence for each."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import zipfile
from base64 import urlsafe_b64decode
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from devlib import sbom  # noqa: E402

# Found by CMake but part of no binary: threads and the package finder; libraries that no source includes.
NOT_COMPILED_IN = {"Threads", "PkgConfig", "Python"}


def found_by_cmake() -> set[str]:
    """Returns the names by which CMake finds third-party parts of the product; those for
    tests follow LUFF_DEVELOPER.
    """
    texts = [(ROOT / "cmake" / "LuffDependencies.cmake").read_text().split("if(LUFF_DEVELOPER)")[0]]
    texts += [
        file.read_text() for file in [*ROOT.glob("src/*/CMakeLists.txt"), ROOT / "python/src/CMakeLists.txt"]
    ]
    found: set[str] = set()
    for text in texts:
        found |= set(re.findall(r"find_package\((\w+)", text))
        found |= set(re.findall(r"find_path\(\w+ (\S+)", text))
    return found - NOT_COMPILED_IN


def included() -> set[str]:
    """Returns the first parts of the third-party headers that sources include."""
    sources = [*ROOT.glob("src/**/*.cc"), *ROOT.glob("src/**/*.h"), *ROOT.glob("python/src/*")]
    borrowed = {
        "hwy",
        "xxhash.h",
        "pcre2.h",
        "nlohmann",
        "fmt",
        "protozero",
        "toml++",
        "CLI",
        "spdlog",
        "boost",
        "sodium.h",
    }
    names = {
        match.split("/")[0]
        for file in sources if file.is_file()
        for match in re.findall(r"#\s*include\s*<([^>]+)>", file.read_text(errors="replace"))
    }  # fmt: skip
    return names & borrowed


def test_names_every_part_that_cmake_finds_or_a_source_includes() -> None:
    known = {part[4] for part in sbom.PARTS}
    assert found_by_cmake() <= known
    page = json.loads((ROOT / "web/package.json").read_text())["dependencies"]
    assert set(page) <= known  # what runs in the browser
    heads = {name.split("/")[0] for name in known} | {"nlohmann"}
    assert included() <= heads


def test_every_part_has_its_notice() -> None:
    notices = (ROOT / "THIRD_PARTY_NOTICES.md").read_text()
    sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", notices, re.MULTILINE | re.DOTALL))
    assert set(sections) == {part[0] for part in sbom.PARTS}
    for name, text in sections.items():
        assert re.search(r"Copyright|disclaims copyright", text), name
        assert re.search(
            r"Permission is hereby|Permission to use|Redistribution and use|Apache License|May you share freely",
            text,
        ), name


def test_the_document_is_cyclonedx_and_goes_into_the_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "luff-0.1.0-cp311-cp311-manylinux_2_34_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("luff/__init__.py", "")
        made.writestr("luff-0.1.0.dist-info/RECORD", "luff/__init__.py,,0\nluff-0.1.0.dist-info/RECORD,,\n")
    for _ in range(2):  # a second call gives the same result
        beside = sbom.write_for(wheel)
    document = json.loads(beside.read_text())
    assert (document["bomFormat"], document["specVersion"], document["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", document["serialNumber"])
    assert document["metadata"]["component"]["name"] == "luff"
    components = {one["name"]: one for one in document["components"]}
    assert set(components) == {part[0] for part in sbom.PARTS}
    for one in components.values():
        assert one["type"] == "library"
        assert one["licenses"]
        assert all("license" in licence or "expression" in licence for licence in one["licenses"])
    refs = {"luff", *(one["bom-ref"] for one in components.values())}
    assert {ref for row in document["dependencies"] for ref in [row["ref"], *row["dependsOn"]]} == refs
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        text = archive.read("luff-0.1.0.dist-info/sboms/luff.cdx.json")
        record = archive.read("luff-0.1.0.dist-info/RECORD").decode().splitlines()
    assert len(names) == len(set(names)) == 3
    assert json.loads(text) == document
    line = next(row for row in record if "sboms" in row)
    digest = urlsafe_b64decode(line.split("sha256=")[1].split(",")[0] + "=")
    assert digest == hashlib.sha256(text).digest()
    assert record[-1] == "luff-0.1.0.dist-info/RECORD,,"
