"""The environment of the benchmarks' peers: .venvs/peers, which sees all of .venv and adds smdebug and TraceML.

As published, smdebug 1.0.34 needs protobuf <= 3.20.3 and NumPy < 2.3. `modernise` removes both limits with two edits,
so that it runs in the same process as Luff: its generated *_pb2.py are rewritten in the form that current protobuf
accepts (the same serialised descriptors), and `ndarray.tostring()` becomes `tobytes()`.
"""

import re

from devlib import stamp
from devlib.term import say

_DESCRIPTOR = re.compile(r"serialized_pb=(b?'(?:[^'\\]|\\.)*'|b?\"(?:[^\"\\]|\\.)*\")", re.DOTALL)
_DEPENDENCY = re.compile(r"^from smdebug\.core\.tfevent\.proto import \w+_pb2.*$", re.MULTILINE)


def modernise(folder):
    """Edits smdebug in an environment, once."""
    mark = folder / "luff-modernised.stamp"
    if mark.exists():
        return
    package = folder / "lib" / "python3.11" / "site-packages" / "smdebug"
    count = 0
    for file in sorted((package / "core" / "tfevent" / "proto").glob("*_pb2.py")):
        source = file.read_text()
        match = _DESCRIPTOR.search(source)
        if match:
            name = f"smdebug.core.tfevent.proto.{file.stem}"
            file.write_text(
                "from google.protobuf import descriptor_pool as _pool\n"
                "from google.protobuf.internal import builder as _builder\n"
                + "".join(f"{line}\n" for line in _DEPENDENCY.findall(source))
                + f"DESCRIPTOR = _pool.Default().AddSerializedFile({match.group(1)})\n"
                "_builder.BuildMessageAndEnumDescriptors(DESCRIPTOR, globals())\n"
                f"_builder.BuildTopDescriptorsAndMessages(DESCRIPTOR, {name!r}, globals())\n"
            )
            count += 1
    for file in package.rglob("*.py"):
        source = file.read_text()
        if ".tostring()" in source:
            file.write_text(source.replace(".tostring()", ".tobytes()"))
            count += 1
    say(f"  smdebug: {count} files brought up to current protobuf and NumPy")
    stamp.write(mark, str(count))
