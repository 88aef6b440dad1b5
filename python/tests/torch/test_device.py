"""Tensors on an accelerator, with tensors of the CPU that say they were there: every training records the same as on
the CPU, by the calls for accelerators, and each thing that cannot be read is a gap.
"""

from __future__ import annotations

import gc
import importlib

import cases
import numpy as np
import pytest
import torch
from fake_session import DEFAULT_ROLES, FakeSession
from host_reads import HostReads
from luff._codes import GapReason, Mode, Phase, Role
from luff.torch.capture import _device
from luff.torch.capture._device import DeviceRows, DeviceScalar, is_on_device, record_number, scalar_of
from luff.torch.capture._memory import Layouts, read_scalar
from luff.torch.capture._tables import Table
from torch import nn

STREAM = 77
WRAPPED = (torch.float64, torch.int64)
UNSUPPORTED, NOT_SEEN = int(GapReason.UNSUPPORTED), int(GapReason.NOT_SEEN)
ROLES = DEFAULT_ROLES | {Role.BUFFER, Role.OPTIMIZER_STATE, Role.OPTIMIZER_SETTING, Role.INPUT, Role.OUTPUT}
ROLES |= {Role.SAMPLE, Role.INPUT_GRADIENT, Role.OUTPUT_GRADIENT}
BATCH = 7  # kind of an event
#: Compilers and processes are slow and see other devices; the rest of the trainings is tried.
LEFT_OUT = {"compiled", "compiled_in_place_with_step", "loader_workers", "scripted", "copied_and_pickled"}


@pytest.fixture
def on_device(monkeypatch):
    """Makes all tensors say that they are on device 0, from the call on."""

    def begin(where=lambda tensor: True):
        cpu = torch._C.TensorBase.is_cpu

        def there(t):  # numbers that a script multiplies by are tensors of the CPU beside a GPU, too
            return bool(cpu.__get__(t) and (t.dim() or t.dtype not in WRAPPED) and where(t))

        monkeypatch.setattr(_device, "_raw_stream", lambda device: STREAM + device)
        monkeypatch.setattr(torch.Tensor, "is_cuda", property(there), raising=False)
        here = property(lambda t: bool(cpu.__get__(t)) and not there(t))
        monkeypatch.setattr(torch.Tensor, "is_cpu", here, raising=False)
        monkeypatch.setattr(torch.Tensor, "get_device", lambda t: 0, raising=False)
        reads.begin(lambda where, name, value: monkeypatch.setattr(where, name, value, raising=False))

    reads = HostReads()
    yield begin
    monkeypatch.undo()
    assert reads.found == []


def recorded(session):
    return [(s.mode, s.mode_step, s.update, s.values, s.scalars) for s in session.steps]


def same(one, other):
    return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


@pytest.fixture
def uncollected():
    """Keeps what is only held by cycles, as optimizers are: the last step has the settings of those that still live
    when it ends.
    """
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("name", sorted(set(cases.CASES) - LEFT_OUT))
def test_a_training_records_what_it_records_on_the_cpu(name, watched, on_device):
    torch.manual_seed(0)
    hook, expected = watched(roles=ROLES)
    losses, _ = cases.CASES[name]()
    hook.close()
    expected_steps = recorded(expected)
    gc.collect()

    on_device()
    torch.manual_seed(0)
    hook, session = watched(roles=ROLES)
    again, _ = cases.CASES[name]()
    hook.close()
    assert again == losses
    steps = recorded(session)
    known = (
        2 if name == "grad_scaler_fused" else 3
    )  # nobody on the host knows that a fused update was skipped
    assert [s[:known] for s in steps] == [s[:known] for s in expected_steps]
    missing, wrong = set(), set()
    for (mode, step, _, values, scalars), (*_, expected_values, expected_scalars), gaps in zip(
        steps, expected_steps, [s.gaps for s in session.steps], strict=True
    ):
        lost = set(expected_values) - set(values) | set(expected_scalars) - set(scalars)
        if (mode, step) in {
            (1, 0),
            (2, 0),
        }:  # copies of what was there before the session are made by the host
            lost = {n for n in lost if ("_input_" not in n and "_output_" not in n) or "Loss" in n}
            # Nothing is copied or held on the device: what is gone by the first backward pass is a gap.
            lost -= {n for n in lost if n.startswith("sample/") and (n, NOT_SEEN) in gaps}
        missing |= {(mode, step, n) for n in lost}
        wrong |= {
            n for n in values.keys() & expected_values.keys() if not same(values[n], expected_values[n])
        }
        wrong |= {
            n
            for n in scalars.keys() & expected_scalars.keys()
            if not same(np.float64(scalars[n]), np.float64(expected_scalars[n]))
        }
    assert sorted(wrong) == []
    batches = [[e for e in s.events if e[0] == BATCH] for s in session.steps]
    assert batches == [[e for e in s.events if e[0] == BATCH] for s in expected.steps]
    assert sorted(missing) == MISSING.get(name, [])
    assert session.device_calls
    assert {stream for _, _, stream in session.device_calls} == {STREAM}


#: What is not read on an accelerator.
MISSING: dict[str, list[tuple[int, int, str]]] = {
    "sparse_embedding": [(1, step, "gradient/EmbeddingBag_weight") for step in range(cases.STEPS)],
}


class TestScalars:
    def test_a_number_of_the_cpu_is_read_at_once(self):
        assert scalar_of(torch.tensor(2.5)) == 2.5
        assert scalar_of(None) is None

    def test_a_number_of_an_accelerator_comes_later(self, on_device, watched):
        _, session = watched()
        session.begin_step(int(Mode.TRAIN), 0)
        on_device()
        number = session.define_tensor("x", int(Role.SCALAR))
        value = scalar_of(torch.tensor(3.0))
        assert type(value) is DeviceScalar
        layout = session.define_layout(11, [])
        assert (value / 2).record(session, number, session.define_layout(int(_float32()), []))
        assert session.open.scalars == {"x": 1.5}
        assert layout >= 0
        session.open = None

    @pytest.mark.parametrize(
        "tensor",
        [torch.zeros(2), torch.zeros((), dtype=torch.complex64), torch.zeros((), device="meta"), "text"],
        ids=["two elements", "complex", "meta", "no tensor"],
    )
    def test_others_are_not_read(self, tensor, on_device):
        on_device()
        assert scalar_of(tensor) is None

    def test_it_keeps_memory_and_no_graph(self, on_device):
        on_device()
        value = scalar_of((torch.ones(1, requires_grad=True) * 3).sum())
        assert type(value) is DeviceScalar
        kept = [getattr(value, name) for name in DeviceScalar.__slots__]
        assert not any(isinstance(part, torch.Tensor) for part in kept)
        assert any(isinstance(part, torch.UntypedStorage) for part in kept)

    def test_one_that_was_changed_in_place_is_not_recorded(self, on_device, watched):
        _, session = watched()
        session.begin_step(int(Mode.TRAIN), 0)
        on_device()
        loss = torch.tensor(3.0)
        value = scalar_of(loss)
        loss.mul_(2)
        number = session.define_tensor("x", int(Role.SCALAR))
        assert not value.record(session, number, 0)
        assert session.open.scalars == {}
        session.open = None


def _float32():
    return _device._FLOAT32


class Subclass(torch.Tensor):
    pass


class TestRows:
    def test_rows_of_each_device_are_one_call(self, on_device, watched, monkeypatch):
        _, session = watched()
        session.begin_step(int(Mode.TRAIN), 0)
        on_device()
        tensors = [torch.full((3,), float(n)) for n in range(40)]
        monkeypatch.setattr(torch.Tensor, "get_device", lambda t: int(t[0].item()) % 2)
        rows, layout = DeviceRows(session), session.define_layout(_float32(), [3])
        for n, tensor in enumerate(tensors):
            rows.add(session.define_tensor(f"w{n}", int(Role.WEIGHT)) | layout << 32, tensor)
        assert rows.capture() == 40
        assert session.device_calls == [("capture", 0, STREAM), ("capture", 1, STREAM + 1)]
        assert [session.open.values[f"w{n}"][0] for n in range(40)] == list(range(40))
        assert rows.capture() == 0
        session.open = None

    @pytest.mark.parametrize(
        "tensor",
        [torch.zeros(2).to_sparse(), torch.zeros(2, device="meta"), torch.zeros(2).as_subclass(Subclass)],
        ids=["sparse", "meta", "subclass"],
    )
    def test_others_are_not_on_a_device(self, tensor, on_device):
        on_device()
        assert not is_on_device(tensor)

    def test_a_build_without_cuda_reads_nothing(self, on_device, monkeypatch):
        on_device()
        monkeypatch.setattr(_device, "_raw_stream", None)
        assert not is_on_device(torch.zeros(2))


def train(model, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(torch.randn(4, 6)), torch.zeros(4, 3))
        loss.backward()
        optimizer.step()


def test_the_borders_of_phases_are_told_in_the_order_of_the_stream(watched, on_device):
    model = nn.Linear(6, 3)
    on_device()
    hook, session = watched(roles=DEFAULT_ROLES)
    train(model, steps=3)
    forward, rest = (
        int(Phase.FORWARD),
        [int(p) for p in (Phase.BACKWARD, Phase.OTHER, Phase.OPTIMIZER, Phase.OTHER)] + [-1],
    )
    assert [phase for phase, _, _ in session.borders] == rest + [forward, *rest] * 2
    assert {(device, stream) for _, device, stream in session.borders} == {(0, STREAM)}
    session.borders.clear()
    model.eval()
    with torch.no_grad():
        model(torch.randn(4, 6))
        model(torch.randn(4, 6))
    assert [phase for phase, _, _ in session.borders] == [forward, -1, forward]
    hook.close()  # while the tensors still say so


def test_a_model_on_the_cpu_has_no_borders(watched):
    _, session = watched(roles=DEFAULT_ROLES)
    train(nn.Linear(6, 3))
    assert session.borders == []


@pytest.mark.parametrize("late", [0, 1, 5])
@pytest.mark.parametrize(("dtype", "shape"), [(torch.bfloat16, (3, 6)), (torch.float32, (50, 70))])
@pytest.mark.parametrize("rate", [1e-9, 10.0])
def test_what_rounding_leaves_of_an_update_is_compared_when_it_has_come(
    watched, on_device, late, dtype, shape, rate
):
    """What is told equals what is told on the CPU, if all weights of the tensor are looked at."""
    told = []
    for there in (False, True):
        if there:
            on_device()
        _, session = watched(roles=DEFAULT_ROLES)
        session.late = late
        torch.manual_seed(0)
        model = nn.Linear(shape[1], shape[0], bias=False).to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        for _ in range(50):
            optimizer.zero_grad()
            model(torch.randn(4, shape[1]).to(dtype)).float().sin().mean().backward()  # stays finite
            optimizer.step()
        told.append([event for event in session.json_events if event["kind"] == "rounding"])
        assert all(event["parameters"][0]["moving"] > 0 for event in told[-1])
    host, device = told
    assert len(host) == 6  # updates 1, 2, 4, 8, 16, 32
    if shape == (3, 6):
        assert device == host
    else:  # other elements are looked at
        assert [event["parameters"][0]["looked"] for event in device] == [512] * 6
        for event in device:
            changed = event["parameters"][0]["changed"] / event["parameters"][0]["moving"]
            assert changed > 0.9 if rate > 1 else changed < 0.9


def test_weights_that_are_gone_before_they_are_compared(watched, on_device):
    on_device()
    _, session = watched(roles=DEFAULT_ROLES)
    session.late = 10_000  # they never come
    for _ in range(20):
        train(nn.Linear(6, 3))
    assert [event for event in session.json_events if event["kind"] == "rounding"] == []
    assert len(session.reads) < 200


def test_half_of_a_model_on_the_cpu(watched, on_device):
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    there = {id(p) for p in model[1].parameters()}
    on_device(lambda t: id(t) in there or t.shape in [(3, 5), (3,)])
    _, session = watched(roles=DEFAULT_ROLES)
    train(model)
    step = session.steps[-1]
    assert {n for n in step.values if "weight" in n} == {
        "Sequential_0.weight", "Sequential_1.weight", "gradient/Sequential_0.weight", "gradient/Sequential_1.weight",
    }  # fmt: skip
    assert step.gaps == []


def test_a_parameter_that_moves_is_read_where_it_is(watched, on_device):
    model, where = nn.Linear(6, 3), {"device": True}
    on_device(lambda t: where["device"])
    _, session = watched(roles=DEFAULT_ROLES)
    train(model, 2)
    calls = len(session.device_calls)
    where["device"] = False
    train(model, 2)
    assert len(session.device_calls) == calls
    assert all("Linear_weight" in step.values for step in session.steps)


def test_a_transposed_view_and_an_empty_tensor(watched, on_device):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.turned = nn.Parameter(torch.randn(3, 6).t())
            self.empty = nn.Parameter(torch.zeros(0, 3))

        def forward(self, x):
            return x @ self.turned + self.empty.sum()

    on_device()
    model = Odd()
    _, session = watched(roles={Role.WEIGHT, Role.OTHER, *DEFAULT_ROLES})
    train(model, 1)
    values = session.steps[0].values
    assert values["Odd_turned"].shape == (6, 3)
    assert values["Odd_empty"].shape == (0, 3)


def test_sparse_gradients_are_gaps(watched, on_device):
    on_device()
    model = nn.EmbeddingBag(10, 3, sparse=True)
    _, session = watched(roles=DEFAULT_ROLES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.tensor([[1, 2]])).sum().backward()
    optimizer.step()
    assert ("gradient/EmbeddingBag_weight", UNSUPPORTED) in session.steps[0].gaps


def test_a_read_by_the_host_is_noticed(on_device, monkeypatch):
    from luff.torch.evidence import _kept_gradients, _padding

    tensor = torch.ones(3)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda t: True), raising=False)
    reads = HostReads()
    reads.begin(monkeypatch.setattr)
    _padding.array_view(tensor, np.float32)
    _kept_gradients.ctypes.string_at(tensor.data_ptr(), 12)
    where = "luff.torch.evidence._padding", "luff.torch.evidence._kept_gradients"
    assert reads.found == [f"{where[0]} reads (3,)", f"{where[1]} reads 12 bytes"]


@pytest.mark.parametrize("evidence", ["_causal", "_padding"])
def test_ids_that_move_to_an_accelerator_are_not_read(evidence, on_device):
    module = importlib.import_module(f"luff.torch.evidence.{evidence}")
    ids = torch.tensor([[1, 2, 0, 0], [1, 0, 0, 0], [1, 2, 3, 0], [1, 1, 1, 1]])
    read = module._ids if evidence == "_causal" else lambda t: module._lengths(nn.Embedding(4, 2), t)
    assert read(ids) is not None
    on_device()
    assert read(ids) is None


def test_nothing_is_read_as_if_it_were_on_the_cpu(on_device):
    on_device()
    assert read_scalar(torch.tensor(1.0)) is None


def test_record_number_takes_both_and_tells_what_it_cannot_read(on_device, watched):
    _, session = watched()
    session.begin_step(int(Mode.TRAIN), 0)
    layouts = Layouts(session)
    a, b, c, d = (session.define_tensor(name, int(Role.SCALAR)) for name in "abcd")
    record_number(session, layouts, a, 2.0)
    on_device()
    record_number(session, layouts, b, scalar_of(torch.tensor(4.0)))
    changed = torch.tensor(5.0)
    value = scalar_of(changed)
    changed.add_(1)
    record_number(session, layouts, c, value)
    record_number(session, layouts, d, None)
    assert session.open.scalars == {"a": 2.0, "b": 4.0}
    assert session.open.gaps == [("c", UNSUPPORTED), ("d", UNSUPPORTED)]
    session.open = None


def test_rows_of_a_capture_that_was_interrupted_are_not_read_later(on_device, monkeypatch):
    session = FakeSession(frozenset(DEFAULT_ROLES))
    one, two = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    numbers = [session.define_tensor(name, int(Role.WEIGHT)) for name in ("one", "two")]
    table = Table(session, Layouts(session), zip((one, two), numbers, strict=True))
    on_device()
    session.begin_step(int(Mode.TRAIN), 0)
    assert table.capture() == 2

    def interrupted(tensor):
        if tensor is two:
            raise KeyboardInterrupt
        return 0

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "get_device", interrupted)
        with pytest.raises(KeyboardInterrupt):
            table.capture()
    del one, table._entries[0]
    session.open.values.clear()
    assert table.capture() == 1
    assert set(session.open.values) == {"two"}
    session.open = None


def test_a_view_of_memory_that_was_given_back_has_no_address(on_device, monkeypatch):
    flat = torch.ones(8)
    view, number = flat[4:], flat[7]
    flat.untyped_storage().resize_(0)
    assert view.data_ptr()  # its offset: to read there would end the training
    on_device()
    calls = []
    session = FakeSession(frozenset())
    monkeypatch.setattr(session, "capture_on_device", lambda rows, count, *_: calls.append(rows[0, 1]))
    rows = DeviceRows(session)
    rows.add(0, view)
    assert rows.capture() == 1
    assert calls == [0]
    assert scalar_of(number) is None


class TestSamples:
    def test_rows_of_a_large_input_and_of_a_loss(self, on_device, watched):
        on_device()
        model, loss_of = nn.Linear(3000, 3), nn.CrossEntropyLoss()
        _, session = watched(roles=DEFAULT_ROLES | {Role.SAMPLE})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        inputs = [torch.randn(16, 3000) for _ in range(3)]
        for x in inputs:
            scores = model(x)
            loss_of(scores, torch.zeros(16, dtype=torch.int64)).backward()
            optimizer.step()
            optimizer.zero_grad()
        for x, step in zip(inputs, session.train(), strict=True):
            rows = step.values["sample/Linear_input_0"]
            assert rows.shape == (5, 3000)  # of 12,000 bytes each
            assert np.array_equal(rows, x[:5].numpy())
            assert step.values["sample/CrossEntropyLoss_input_0"].shape == (16, 3)
            assert step.gaps == []

    def test_what_was_changed_before_the_session_was_open_is_a_gap(self, on_device, watched):
        class Scaled(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.ones(()))

            def forward(self, x):
                return x.sum() * self.scale  # nothing of the graph holds x

        on_device()
        model = Scaled()
        hook, session = watched(roles=DEFAULT_ROLES | {Role.SAMPLE})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(4, 6)
        loss = model(x)
        x.zero_()
        loss.backward()
        optimizer.step()
        hook.close()
        (step,) = session.train()
        assert "sample/Scaled_input_0" not in step.values
        assert ("sample/Scaled_input_0", NOT_SEEN) in step.gaps


class TestBatches:
    def train(self, model, inputs):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in inputs:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

    def batches(self, session):
        return [argument for step in session.train() for kind, _, argument in step.events if kind == BATCH]

    @pytest.mark.parametrize("columns", [5, 5000])
    def test_equal_batches_have_equal_hashes_as_on_the_cpu(self, columns, on_device, watched):
        one, other = torch.randn(4, columns), torch.randn(4, columns)
        inputs = [one, other, one.clone(), other]
        _, session = watched()
        self.train(nn.Linear(columns, 2), inputs)
        expected = self.batches(session)
        on_device()
        _, session = watched()
        self.train(nn.Linear(columns, 2), inputs)
        assert self.batches(session) == expected
        assert len(set(expected)) == 2

    def test_one_that_is_not_contiguous_has_none(self, on_device, watched):
        on_device()
        _, session = watched()
        self.train(nn.Linear(4, 2), [torch.randn(4, 6).t()[:, :4]] * 2)
        assert self.batches(session) == []

    def test_one_that_cannot_be_read_now_has_none(self, on_device, watched, monkeypatch):
        on_device()
        _, session = watched()
        monkeypatch.setattr(session, "hash_on_device", lambda *_: 0)
        self.train(nn.Linear(4, 2), [torch.randn(4, 4)] * 2)
        assert self.batches(session) == []


class TestSavedTensors:
    def test_one_of_a_step_is_read(self, on_device, watched):
        import luff.torch

        on_device()
        model = nn.Linear(6, 3)
        _, session = watched()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i in range(3):
            model(torch.randn(4, 6)).sum().backward()
            luff.torch.save_tensor("mine", torch.full((2, 2), float(i)))
            optimizer.step()
            optimizer.zero_grad()
        assert [step.values["mine"].tolist() for step in session.train()] == [
            [[i, i], [i, i]] for i in (0, 1, 2)
        ]

    @pytest.mark.parametrize("what", ["kept", "gone", "changed", "smaller", "other dtype"])
    def test_one_that_waits_for_a_step_is_read_if_it_is_still_there(self, what, on_device, watched):
        import luff.torch

        model = nn.Linear(6, 3)
        _, session = watched()
        train(model, 1)
        on_device()
        mine = torch.ones(3)
        luff.torch.save_tensor("mine", mine)
        if what == "gone":
            del mine
        elif what == "changed":
            mine.add_(1)
        elif what == "smaller":
            mine.data = torch.ones(2)  # counts no change
        elif what == "other dtype":
            mine.data = torch.ones(3, dtype=torch.bfloat16)
        train(model, 1)
        found = [step for step in session.steps if "mine" in step.values]
        gaps = [gap for step in session.steps for gap in step.gaps if gap[0] == "mine"]
        assert (len(found), gaps) == ((1, []) if what == "kept" else (0, [("mine", NOT_SEEN)]))


class TestAcceleratorsOff:
    """Nothing is prepared for a session that reads no accelerators."""

    @pytest.fixture
    def off(self, on_device, watched):
        def begin(roles):
            on_device()
            hook, session = watched(roles=roles)
            session.reads_accelerators = False
            return hook, session

        return begin

    def test_no_hook_lasts_and_no_batch_is_hashed(self, off, monkeypatch):
        living = []
        register = torch.Tensor.register_hook

        def counted(tensor, function):
            handle = register(tensor, function)
            living.append(handle)
            return handle

        monkeypatch.setattr(torch.Tensor, "register_hook", counted)
        _, session = off(ROLES)
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.randn(4, 6)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert {call for call, _, _ in session.device_calls if call == "hash"} == set()
        assert len(living) <= 1  # of the first step, before the session was open
        assert len(session.train()) == 3
        for step in session.train():
            assert ("gradient/Linear_output_0", UNSUPPORTED) in step.gaps
        for step in session.train()[1:]:
            assert ("sample/Linear_input_0", UNSUPPORTED) in step.gaps

    def test_a_tensor_to_save_is_an_error_that_names_the_setting(self, off):
        import luff.torch

        hook, _ = off(DEFAULT_ROLES)
        model = nn.Linear(6, 3)
        train(model, 1)
        luff.torch.save_tensor("mine", torch.ones(3))
        (error,) = hook.guard.first.values()
        assert "accelerators=True" in error
        hook.close()
        hook.guard.first.clear()


class TestInferenceMode:
    def test_a_loss_is_recorded_at_once_where_changes_are_not_counted(self, on_device, watched):
        model, loss = nn.Linear(3, 2), nn.MSELoss()
        hook, session = watched(model=model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss(model(torch.ones(4, 3)), torch.ones(4, 2)).backward()
        optimizer.step()
        model.eval()
        on_device()
        with torch.inference_mode():
            seen = [float(loss(model(torch.full((4, 3), i)), torch.ones(4, 2))) for i in (1.0, 2.0)]
        hook.close()
        evaluated = [step for step in session.steps if step.mode == Mode.EVAL]
        assert [step.scalars["MSELoss_output_0"] for step in evaluated] == seen

    def test_it_is_not_kept_for_later(self, on_device):
        on_device()
        with torch.inference_mode():
            assert not scalar_of(torch.tensor(1.0)).lasts
        assert scalar_of(torch.tensor(1.0)).lasts
