"""Lists what is compiled into the wheel as a CycloneDX document: inside the wheel (PEP 770) and beside it."""

import base64
import hashlib
import json
import os
import re
import subprocess
import time
import uuid
import zipfile

from devlib.term import ROOT, VENV, output_of

PAGE = "inside the page"  # of `luff serve`
# Name, licence (SPDX), origin, Debian package or None (a Python package of the build), name in CMake or in an
# #include. THIRD_PARTY_NOTICES.md contains the licences' texts; tests/house/test_sbom.py compares.
PARTS = (
    ("nlohmann-json", "MIT", "https://github.com/nlohmann/json", "nlohmann-json3-dev", "nlohmann_json"),
    ("fmt", "MIT", "https://fmt.dev", "libfmt-dev", "fmt"),
    ("xxHash", "BSD-2-Clause", "https://xxhash.com", "libxxhash-dev", "xxhash.h"),
    ("Highway", "Apache-2.0", "https://github.com/google/highway", "libhwy-dev", "hwy/highway.h"),
    ("PCRE2", "BSD-3-Clause", "https://www.pcre.org", "libpcre2-dev", "pcre2.h"),
    (
        "protozero", "BSD-2-Clause AND Apache-2.0", "https://github.com/mapbox/protozero", "libprotozero-dev",
        "protozero/pbf_reader.hpp",
    ),
    ("toml++", "MIT", "https://marzer.github.io/tomlplusplus", "libtomlplusplus-dev", "toml++/toml.h"),
    ("SQLite", "blessing", "https://sqlite.org", "libsqlite3-dev", "sqlite3.h"),
    ("CLI11", "BSD-3-Clause", "https://github.com/CLIUtils/CLI11", "libcli11-dev", "CLI/CLI.hpp"),
    ("Boost", "BSL-1.0", "https://www.boost.org", "libboost1.81-dev", "boost/beast/version.hpp"),
    ("libsodium", "ISC", "https://libsodium.org", "libsodium-dev", "sodium.h"),
    ("Svelte", "MIT", "https://svelte.dev", PAGE, "svelte"),
    ("uPlot", "MIT", "https://github.com/leeoniya/uPlot", PAGE, "uplot"),
    ("nanobind", "BSD-3-Clause", "https://github.com/wjakob/nanobind", None, "nanobind"),
    ("robin-map", "MIT", "https://github.com/Tessil/robin-map", "inside nanobind", "robin-map"),
)  # fmt: skip


def _version(name, package):
    if package is None:
        code = f"import importlib.metadata as m; print(m.version({name!r}))"
        return (output_of([VENV / "bin" / "python", "-c", code]) or "").strip()
    if package == PAGE:
        return json.loads((ROOT / "web/package.json").read_text())["dependencies"][name.lower()]
    if " " in package:
        return ""
    done = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def _component(name, licence, home, package):
    version = _version(name, package)
    one = {
        "type": "library",
        "bom-ref": name,
        "name": name,
        **({"version": version} if version else {}),
        "licenses": [{"expression": licence}] if " " in licence else [{"license": {"id": licence}}],
        "externalReferences": [{"type": "website", "url": home}],
    }
    if version:
        kind = (
            f"npm/{name.lower()}"
            if package == PAGE
            else f"deb/debian/{package}"
            if package
            else f"pypi/{name}"
        )
        one["purl"] = f"pkg:{kind}@{version.replace('+', '%2B').replace(':', '%3A')}"
    return one


def product_version():
    """Returns the version in CMakeLists.txt."""
    return re.search(r"project\(luff VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)


def document(wheel_name):
    """Returns the CycloneDX document of a wheel."""
    version = product_version()
    components = [_component(*part[:4]) for part in PARTS]
    seconds = os.environ.get("SOURCE_DATE_EPOCH")
    when = time.gmtime(int(seconds) if seconds else time.time())
    identity = json.dumps([wheel_name, components], sort_keys=True)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, identity)}",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", when),
            "component": {
                "type": "library",
                "bom-ref": "luff",
                "name": "luff",
                "version": version,
                "purl": f"pkg:pypi/luff@{version}",
                "licenses": [{"license": {"id": "Apache-2.0"}}],
                "properties": [{"name": "luff:wheel", "value": wheel_name}],
            },
        },
        "components": components,
        "dependencies": [
            {"ref": "luff", "dependsOn": [c["bom-ref"] for c in components if c["name"] != "robin-map"]},
            {"ref": "nanobind", "dependsOn": ["robin-map"]},
        ],
    }


def put_into(wheel, text):
    """Adds the document to a wheel, with its line in RECORD."""
    unfinished = wheel.with_suffix(".tmp")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as new:
        record = next(name for name in old.namelist() if name.endswith(".dist-info/RECORD"))
        place = record.replace("/RECORD", "/sboms/luff.cdx.json")
        for entry in old.infolist():
            if entry.filename not in (record, place):
                new.writestr(entry, old.read(entry))
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        new.writestr(place, text)
        lines = [line for line in old.read(record).decode().splitlines() if not line.startswith(place)]
        lines.insert(-1, f"{place},sha256={digest},{len(text.encode())}")
        new.writestr(record, "\n".join(lines) + "\n")
    unfinished.replace(wheel)


def write_for(wheel):
    """Writes the document into the wheel and beside it; returns the file beside it."""
    text = json.dumps(document(wheel.name), indent=2) + "\n"
    put_into(wheel, text)
    beside = wheel.with_suffix(".cdx.json")
    beside.write_text(text)
    return beside
