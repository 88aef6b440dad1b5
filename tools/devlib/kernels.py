"""./dev kernels: builds src/device/kernels into the image that the library contains.

The image is committed, so that nobody else needs compilers for GPUs, and so is kernels.json: the hash of all that it
was built from, and registers, spills and shared memory of each kernel. `./dev check` compares both with the sources.
"""

import ctypes
import hashlib
import json
import re
import subprocess
import zlib

from devlib import setup, stamp
from devlib.term import ROOT, Failed, say

KERNELS = ROOT / "src" / "device" / "kernels"
IMAGE = KERNELS / "kernels.image"
RECORD = KERNELS / "kernels.json"
MODULE = "kernels.cu"  # includes all others
PINS = setup.REQUIREMENTS / "kernels.txt"
FOLDER = ROOT / ".venvs" / "kernels"
PTX = "70"
MACHINES = ("80", "86", "89", "90", "100", "120")
OPTIONS = (f"--gpu-architecture=compute_{PTX}", "--std=c++17")
MOST_BYTES = 200_000  # of the image
MOST_SHARED = 48 << 10  # bytes of a block that need no permission
INCLUDE = re.compile(r'^\s*#\s*include\s+"device/kernels/([^"]+)"', re.MULTILINE)


def kernels_arguments(parser):
    parser.add_argument(
        "--check", action="store_true", help="build, compare with what is committed, write nothing"
    )


def kernels_main(args):
    setup.ensure_packages()
    setup.make_venv(FOLDER, [PINS])
    image, record = build()
    if args.check:
        wrong = _differences(image, record)
        say("\n".join(wrong) or f"{IMAGE.relative_to(ROOT)} is what its sources give")
        return 1 if wrong else 0
    IMAGE.write_bytes(image)
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    say(f"  written: {IMAGE.relative_to(ROOT)} ({len(image):,} bytes), {RECORD.relative_to(ROOT)}")
    for kernel, machines in record["kernels"].items():
        registers = [of["registers"] for of in machines.values()]
        spills = max(of["spill_bytes"] for of in machines.values())
        shared = max(of["shared_bytes"] for of in machines.values())
        say(
            f"  {kernel:<18} {min(registers)}-{max(registers)} registers, {spills} bytes spilled, {shared} shared"
        )
    return 0


def check():
    """Returns (True, False or None if it cannot be known, text) for `./dev check`."""
    if not RECORD.exists() or not IMAGE.exists():
        return False, "there is no image of the kernels: run ./dev kernels"
    record = json.loads(RECORD.read_text())
    if record["inputs"] != inputs():
        return False, "the image of the kernels is older than its sources or its compilers: run ./dev kernels"
    image = IMAGE.read_bytes()
    if hashlib.sha256(image).hexdigest() != record["image_sha256"]:
        return False, f"{IMAGE.name} and {RECORD.name} are not of one build: run ./dev kernels"
    wrong = _limits(image, record)
    if wrong:
        return False, "\n".join(wrong)
    if not (FOLDER / "luff-requirements.stamp").exists():
        return (
            True,
            "hashes agree; bytes were not compared, since ./dev kernels has not been run in this checkout",
        )
    mark = ROOT / "build" / "stamps" / "kernels"
    if not stamp.fresh(mark, record["image_sha256"]):
        setup.make_venv(FOLDER, [PINS])
        wrong = _differences(*build())
        if wrong:
            return False, "\n".join(wrong)
        stamp.write(mark, record["image_sha256"])
    return True, "built again: the same bytes"


def sources():
    """Returns {name: text} of the module and everything that it includes."""
    found, todo = {}, [MODULE]
    while todo:
        name = todo.pop()
        if name not in found:
            found[name] = (KERNELS / name).read_text()
            todo += INCLUDE.findall(found[name])
    return dict(sorted(found.items()))


def inputs():
    """Returns the hash of all that an image depends on."""
    h = hashlib.sha256()
    targets = repr((OPTIONS, PTX, MACHINES))
    for name, text in [*sources().items(), ("pins", PINS.read_text()), ("targets", targets)]:
        h.update(f"{name}\0{text}\0".encode())
    return h.hexdigest()


def build():
    """Returns (image, record)."""
    ptx = _compile(sources())
    binaries, table = {}, {}
    work = ROOT / "build" / "kernels"
    work.mkdir(parents=True, exist_ok=True)
    (work / "kernels.ptx").write_bytes(ptx)
    for machine in MACHINES:
        binaries[machine], of = _assemble(work, machine)
        for kernel, numbers in of.items():
            table.setdefault(kernel, {})[f"sm_{machine}"] = numbers
    binary = _bind(ptx, binaries)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15, 9)
    image = len(binary).to_bytes(4, "little") + packer.compress(binary) + packer.flush()
    record = {
        "inputs": inputs(),
        "fatbin_sha256": hashlib.sha256(binary).hexdigest(),
        "image_sha256": hashlib.sha256(image).hexdigest(),
        "kernels": dict(sorted(table.items())),
    }
    wrong = _limits(image, record)
    if wrong:
        raise Failed("\n".join(wrong))
    return image, record


def _limits(image, record):
    """Returns what no build may have, as lines."""
    wrong = []
    if len(image) > MOST_BYTES:
        wrong.append(f"{IMAGE.name} has {len(image):,} bytes, {MOST_BYTES:,} at most")
    for kernel, machines in record["kernels"].items():
        for machine, of in machines.items():
            # A block has 256 threads, a processor 65,536 registers: two blocks at least.
            if of["registers"] > 128 or of["shared_bytes"] > MOST_SHARED:
                wrong.append(f"{kernel} for {machine}: {of}; registers: 128 at most, shared: {MOST_SHARED}")
    return wrong


def _differences(image, record):
    """Returns how a build differs from what is committed, as lines. Packed bytes may depend on the version of zlib."""
    committed = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    wrong = []
    if committed.get("inputs") != record["inputs"]:
        wrong.append(f"{RECORD.name} was made from other sources or tools")
    if not IMAGE.exists() or _unpacked(IMAGE.read_bytes()) != _unpacked(image):
        wrong.append(f"{IMAGE.name} is not what the sources give")
    for kernel, machines in record["kernels"].items():
        for machine, numbers in machines.items():
            was = committed.get("kernels", {}).get(kernel, {}).get(machine)
            if was != numbers:
                wrong.append(f"{kernel} for {machine}: {numbers}, committed is {was}")
    return wrong


def _unpacked(image):
    return zlib.decompress(image[4:], -15)


# --- compilers ---


def _tool(pattern):
    found = sorted((FOLDER / "lib/python3.11/site-packages/nvidia").glob(pattern))
    if not found:
        raise Failed(f".venvs/kernels has no {pattern}: remove that folder and run ./dev kernels again")
    return found[0]


def _call(library, function, *arguments):
    code = getattr(library, function)(*arguments)
    if code != 0:
        raise Failed(f"{function} failed with {code}")


def _strings(texts):
    return (ctypes.c_char_p * len(texts))(*texts)


def _compile(texts):
    """Returns PTX as bytes."""
    nvrtc = ctypes.CDLL(str(_tool("cuda_nvrtc/lib/libnvrtc.so.*")))
    headers = {f"device/kernels/{name}": text for name, text in texts.items() if name != MODULE}
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    names = _strings([name.encode() for name in headers])
    contents = _strings([text.encode() for text in headers.values()])
    module = texts[MODULE].encode()
    _call(
        nvrtc, "nvrtcCreateProgram",
        ctypes.byref(program), module, MODULE.encode(), len(headers), contents, names,
    )  # fmt: skip
    options = [option.encode() for option in OPTIONS]
    failed = nvrtc.nvrtcCompileProgram(program, len(options), _strings(options))
    _call(nvrtc, "nvrtcGetProgramLogSize", program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    _call(nvrtc, "nvrtcGetProgramLog", program, log)
    if failed:
        raise Failed(f"the kernels do not compile:\n{log.value.decode(errors='replace')}")
    _call(nvrtc, "nvrtcGetPTXSize", program, ctypes.byref(size))
    ptx = ctypes.create_string_buffer(size.value)
    _call(nvrtc, "nvrtcGetPTX", program, ptx)
    lines = (line.split(b"//")[0].strip() for line in ptx.value.splitlines())
    return b"\n".join(line for line in lines if line) + b"\n"


def _assemble(work, machine):
    """Returns the machine code of one architecture, and {kernel: registers, spills, shared memory}."""
    target = work / f"kernels.{machine}.cubin"
    command = [_tool("cuda_nvcc/bin/ptxas"), f"-arch=sm_{machine}", "-v", "-o", target.name, "kernels.ptx"]
    done = subprocess.run([str(c) for c in command], cwd=work, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"ptxas for sm_{machine}:\n{done.stderr}")
    return target.read_bytes(), _numbers(done.stderr)


def _numbers(report):
    """Reads what ptxas -v says about each kernel."""
    found = {}
    for part in report.split("Compiling entry function '")[1:]:
        name = part.split("'")[0]
        used = re.search(r"Used (\d+) registers(.*)", part)
        spills = re.search(r"(\d+) bytes spill stores", part)
        shared = re.search(r"(\d+) bytes smem", used.group(2))
        found[name] = {
            "registers": int(used.group(1)),
            "spill_bytes": int(spills.group(1)),
            "shared_bytes": int(shared.group(1)) if shared else 0,
        }
    return found


def _bind(ptx, binaries):
    """Returns the fat binary, not compressed: old drivers do not know every way of it."""
    library = ctypes.CDLL(str(_tool("nvfatbin/lib/libnvfatbin.so.*")))
    handle, size = ctypes.c_void_p(), ctypes.c_size_t()
    _call(library, "nvFatbinCreate", ctypes.byref(handle), _strings([b"-compress=false"]), ctypes.c_size_t(1))
    text = ptx + b"\0"
    _call(library, "nvFatbinAddPTX", handle, text, ctypes.c_size_t(len(text)), PTX.encode(), b"luff", None)
    for machine, code in binaries.items():
        _call(
            library, "nvFatbinAddCubin", handle, code, ctypes.c_size_t(len(code)), machine.encode(), b"luff"
        )
    _call(library, "nvFatbinSize", handle, ctypes.byref(size))
    binary = ctypes.create_string_buffer(size.value)
    _call(library, "nvFatbinGet", handle, binary)
    _call(library, "nvFatbinDestroy", ctypes.byref(handle))
    return binary.raw
