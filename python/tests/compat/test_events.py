"""Records of event files: their bytes, and the errors about damaged ones."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from luff.compat.smdebug.core.events import _CODES, decode_event, read_record, tensor_event
from luff.compat.smdebug.core.modes import ModeKeys
from luff.compat.smdebug.core.reader import FileReader, read_value
from luff.compat.smdebug.core.writer import FileWriter
from luff.compat.smdebug.exceptions import SMDebugError, SMDebugRuntimeError, SMDebugTypeError


def joined(name, value, **at):
    at = {"wall_time": 1.0, "step": 3, "mode": 1, "mode_step": 1, **at}
    return b"".join(bytes(part) for part in tensor_event(name, value, **at))


def test_a_record_has_the_bytes_that_smdebug_writes():
    # [[1, 2]] as float32 under the name w: TRAIN step 1, global step 3, one second after the epoch.
    expected = bytes.fromhex(
        "5100000000000000 9ca1d9bc"
        "09 000000000000f03f 1003 2a44 0a42 0a01 77 4220 0801 1212 1207 0801 1203 775f31 1207 0802 1203 775f32"
        "2208 0000803f00000040 4a1b 0a0e 0a09 6d6f64655f73746570 1201 31 0a09 0a04 6d6f6465 1201 31"
        "b3c02d06"
    )
    assert joined("w", np.array([[1, 2]], np.float32)) == expected


def test_text_is_written_as_smdebug_does():
    assert bytes.fromhex("12091207080212 03735f32 42026162 420163") in joined("s", np.array(["ab", "c"]))


@pytest.mark.parametrize("dtype", sorted(_CODES))
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (2, 1, 2)])
def test_values_come_back(dtype, shape):
    value = (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 2).astype(dtype)
    record = read_record(io.BytesIO(joined("t", value)), "here")
    assert record.value.dtype == value.dtype
    assert record.value.shape == shape
    np.testing.assert_array_equal(record.value, value)
    assert (record.step, record.mode, record.mode_step, record.wall_time) == (3, 1, 1, 1.0)


def test_what_the_format_cannot_hold_is_refused_by_name():
    with pytest.raises(SMDebugTypeError, match="tensor 't': found type"):
        tensor_event("t", np.zeros(2, "datetime64[s]"), 0.0, 0, 4, 0)
    with pytest.raises(SMDebugTypeError, match="array of objects"):
        tensor_event("t", np.array({"a": 1}), 0.0, 0, 4, 0)


def test_a_strided_or_foreign_ordered_array_is_written_as_its_values():
    value = np.arange(12, dtype=">f4").reshape(3, 4)[:, ::2]
    np.testing.assert_array_equal(read_record(io.BytesIO(joined("t", value)), "here").value, value)


def test_every_damaged_byte_is_told_with_its_place_or_harmless():
    good = joined("name", np.arange(4, dtype=np.float32))
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 0xFF
        told = ""
        try:
            read_record(io.BytesIO(bytes(bad)), "file.tfevents")
        except SMDebugRuntimeError as error:
            told = str(error)
        assert not told or "file.tfevents, offset 0" in told


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_foreign_bytes_are_a_message_or_an_error(data):
    good = joined("name", np.arange(4, dtype=np.float32))[12:-4]
    payload = bytearray(data.draw(st.one_of(st.just(good), st.binary(max_size=200))))
    for _ in range(data.draw(st.integers(0, 4))):
        if payload:
            payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_event(bytes(payload))
    except ValueError:
        pass


def test_a_length_without_bytes_takes_no_memory():
    from luff.compat.smdebug.core.events import _masked_crc

    head = (1 << 39).to_bytes(8, "little")
    with pytest.raises(SMDebugError, match="are left"):
        read_record(io.BytesIO(head + _masked_crc(head) + b"x" * 20), "file.tfevents")


def test_a_file_that_ends_early_is_told():
    good = joined("name", np.arange(4, dtype=np.float32))
    for size in range(1, len(good)):
        with pytest.raises(SMDebugError, match=r"offset 0"):
            read_record(io.BytesIO(good[:size]), "file.tfevents")


def test_a_writer_leaves_an_index_that_says_where_each_record_is(tmp_path: Path):
    with FileWriter(trial_dir=str(tmp_path), step=1002, worker="worker_1") as writer:
        writer.write_tensor(np.ones(3, np.float32), "a", mode=ModeKeys.EVAL, mode_step=7)
        writer.write_tensor(np.zeros((2, 2)), "b", mode=ModeKeys.EVAL, mode_step=7)
        writer.write_shape("c", (5, 6), mode=ModeKeys.EVAL, mode_step=7)
    index = json.loads((tmp_path / "index/000000001/000000001002_worker_1.json").read_text())
    event_file = "events/000000001002/000000001002_worker_1.tfevents"
    assert index["meta"] == {"mode": "EVAL", "mode_step": 7, "event_file_name": event_file}
    assert index["shape_payload"] == [{"tensorname": "c", "originalname": "c", "shape": [5, 6]}]
    values = {
        row["tensorname"]: read_value(str(tmp_path / event_file), row["start_idx"], row["length"])
        for row in index["tensor_payload"]
    }
    np.testing.assert_array_equal(values["a"], np.ones(3))
    np.testing.assert_array_equal(values["b"], np.zeros((2, 2)))
    assert [row[0] for row in FileReader(str(tmp_path / event_file)).read_tensors()] == ["a", "b"]
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_remainder_of_a_crash_harms_no_later_file(tmp_path: Path):
    folder = tmp_path / "index/000000000"
    folder.mkdir(parents=True)
    (folder / "000000000000_worker_0.json.tmp").write_text('{"meta": {')
    with FileWriter(trial_dir=str(tmp_path), step=0, worker="worker_0") as writer:
        writer.write_tensor(np.ones(1), "a")
    assert json.loads((folder / "000000000000_worker_0.json").read_text())["tensor_payload"]
