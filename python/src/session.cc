// luff._core.Session: the functions that a hook calls while a model trains. Capture releases the GIL only
// when it reads more than 32 KiB; the calls made for every module and event keep it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "errors.h"
#include "luff/capture/config.h"
#include "luff/capture/module_timer.h"
#include "luff/capture/session.h"
#include "luff/store/trainings.h"
#include "terminate.h"
#include "text.h"

namespace luff::python {
namespace nb = nanobind;
namespace {

using Table = nb::ndarray<const std::uint64_t, nb::shape<-1, 4>, nb::c_contig, nb::device::cpu>;
using Heads = nb::ndarray<const std::uint64_t, nb::shape<-1>, nb::c_contig, nb::device::cpu>;
using Summaries = nb::ndarray<const double, nb::shape<-1, 8>, nb::c_contig, nb::device::cpu>;
using Numbers = std::vector<std::int64_t>;

std::chrono::milliseconds Milliseconds(double seconds) {
  constexpr double kLongestS = 86'400;
  if (!(seconds > 0)) return std::chrono::milliseconds(0);
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::min(seconds, kLongestS) * 1000));
}

Layout MakeLayout(int dtype, const Numbers& shape, const std::optional<Numbers>& strides) {
  if (dtype < 0 || dtype > 255 || !IsKnownDType(static_cast<std::uint8_t>(dtype))) {
    ThrowIfError(
        InvalidArgument("dtype code " + std::to_string(dtype) + " found, a member of DType expected"));
  }
  const auto type = static_cast<DType>(dtype);
  return Unwrap(strides ? Layout::Strided(type, shape, *strides) : Layout::Contiguous(type, shape));
}

class PySession {
 public:
  PySession(std::unique_ptr<capture::Session> session, std::string run_path)
      : session_(std::move(session)),
        run_path_(std::move(run_path)) {
    EndAtTerminate(session_.get());
  }
  ~PySession() { ForgetAtTerminate(session_.get()); }
  PySession(const PySession&) = delete;
  PySession& operator=(const PySession&) = delete;

  static std::unique_ptr<PySession> Open(const std::string& run_path, bool resume, bool join,
                                         std::optional<std::uint32_t> worker, std::uint32_t world_size,
                                         const std::string& config_json, const std::string& command_json,
                                         const std::string& sampler,
                                         const std::vector<std::string>& sampler_environment) {
    capture::SessionOptions options;
    options.run_path = run_path;
    options.resume = resume;
    options.join = join;
    options.worker = worker.value_or(format::kNoId);
    options.world_size = world_size;
    options.config_json = config_json;
    options.command_json = command_json;
    options.sampler = sampler;
    options.sampler_environment = sampler_environment;
    auto opened = [&options] {
      const nb::gil_scoped_release others_go_on;  // a dead network file system may take a minute
      return capture::Session::Open(options);
    }();
    return std::make_unique<PySession>(Unwrap(std::move(opened)), run_path);
  }

  [[nodiscard]] capture::Session& get() const noexcept { return *session_; }
  [[nodiscard]] const std::string& run_path() const noexcept { return run_path_; }

  void Capture(const Table& table, std::optional<std::size_t> count, double factor) const {
    static_assert(sizeof(capture::TensorRef) == 4 * sizeof(std::uint64_t));
    const std::size_t rows = std::min(count.value_or(table.shape(0)), table.shape(0));
    const std::span<const capture::TensorRef> refs(reinterpret_cast<const capture::TensorRef*>(table.data()),
                                                   rows);
    CaptureRefs(refs, factor);
  }

  void CaptureSummaries(const Heads& heads, const Summaries& values) const {
    const auto number = [](double x) {
      return x >= 0 && x < 9e15 ? static_cast<std::uint64_t>(x) : ~std::uint64_t{0};
    };
    for (std::size_t i = 0; i < std::min(heads.shape(0), values.shape(0)); ++i) {
      const double* row = values.data() + i * 8;
      const std::uint64_t head = heads.data()[i];
      session_->CaptureSummary(
          static_cast<std::uint32_t>(head), static_cast<std::uint32_t>(head >> 32U),
          {row[0], row[1], row[2], row[3], row[4], number(row[5]), number(row[6]), number(row[7])});
    }
  }

  void CaptureRefs(std::span<const capture::TensorRef> refs, double factor) const {
    if (!session_->WorthReleasing(refs)) {
      session_->CaptureScaled(refs, factor);
      return;
    }
    const nb::gil_scoped_release release;
    session_->CaptureScaled(refs, factor);
  }

 private:
  std::unique_ptr<capture::Session> session_;
  std::string run_path_;
};

nb::dict HealthDict(const PySession& session) {
  const capture::Health health = session.get().health();
  nb::dict counters;
  for (const capture::Counter& counter : health.counters) {
    counters[nb::str(counter.name.data(), counter.name.size())] = counter.value;
  }
  nb::dict out;
  out["accepting"] = health.accepting;
  out["first_error"] = health.first_error;
  out["overhead_ratio"] = health.overhead_ratio;
  out["counters"] = counters;
  return out;
}

}  // namespace

void InitSession(nb::module_& m);
void InitSession(nb::module_& m) {
  m.def(
      "find_run",
      [](const std::string& first_run, const std::string& job, const std::string& world,
         const std::string& command_json, std::optional<std::uint32_t> rank, bool resume) {
        auto found = [&] {
          const nb::gil_scoped_release others_go_on;  // a dead network file system may take a minute
          return capture::FindRun(first_run, {0, job, world, command_json, ""}, rank.value_or(format::kNoId),
                                  resume);
        }();
        return Unwrap(std::move(found));
      },
      nb::arg("first_run"), nb::arg("job"), nb::arg("world"), nb::arg("command_json"), nb::arg("rank").none(),
      nb::arg("resume"),
      "Returns the run that this process's training records into, in a job that may start several.");
  m.def(
      "check_config",
      [](const std::string& config_json) {
        return capture::DescribeCollections(Unwrap(capture::ParseConfigUntrusted(config_json)));
      },
      nb::arg("config_json"),
      "The collections that a capture configuration means, as JSON; raises what is wrong with it.");

  nb::class_<PySession>(m, "Session",
                        "One worker's recording of a run. All methods after `open` never raise for "
                        "reasons of the run, the disk or the network.")
      .def_static(
          "open", &PySession::Open, nb::arg("run_path"), nb::kw_only(), nb::arg("resume") = false,
          nb::arg("join") = false, nb::arg("worker") = nb::none(), nb::arg("world_size") = 1,
          nb::arg("config_json") = "", nb::arg("command_json") = "", nb::arg("sampler") = "",
          nb::arg("sampler_environment") = std::vector<std::string>(),
          "Create or join the run. `worker` None takes the lowest free number. `sampler`: path of `luff`, "
          "which measures the machine meanwhile.")
      .def(
          "define_tensor",
          [](const PySession& s, std::string_view name, std::uint8_t role, std::string_view module_path,
             std::string_view module_type) {
            return s.get().DefineTensor(name, static_cast<format::Role>(role), module_path, module_type);
          },
          nb::arg("name"), nb::arg("role"), nb::arg("module_path") = "", nb::arg("module_type") = "",
          "Number of the tensor of this name.")
      .def(
          "define_layout",
          [](const PySession& s, int dtype, const Numbers& shape, const std::optional<Numbers>& strides) {
            return s.get().DefineLayout(MakeLayout(dtype, shape, strides));
          },
          nb::arg("dtype"), nb::arg("shape"), nb::arg("strides") = nb::none(),
          "Number of a dtype, shape and strides (in elements; None: row-major).")
      .def(
          "define_shard_layout",
          [](const PySession& s, int dtype, const Numbers& shape, const std::optional<Numbers>& strides,
             const Numbers& global_shape, const Numbers& global_offset) {
            return s.get().DefineShardLayout(MakeLayout(dtype, shape, strides), global_shape, global_offset);
          },
          nb::arg("dtype"), nb::arg("shape"), nb::arg("strides").none(), nb::arg("global_shape"),
          nb::arg("global_offset"), "The same for a part of a larger tensor.")
      .def(
          "set_document",
          [](const PySession& s, std::string_view name, std::string_view json) {
            s.get().SetDocument(name, json);
          },
          nb::arg("name"), nb::arg("json_text"), "A JSON document of the run, at most 16 MiB.")
      .def(
          "begin_step",
          [](const PySession& s, std::uint8_t mode, std::int64_t mode_step) {
            s.get().BeginStep(static_cast<format::Mode>(mode), mode_step);
            return s.get().DueRoles();
          },
          nb::arg("mode"), nb::arg("mode_step"),
          "Decide what is due in the step that begins. Returns of which roles anything is: bits, 1 << role.")
      .def(
          "due_role",
          [](const PySession& s, std::uint8_t role) {
            return s.get().DueForms(static_cast<format::Role>(role));
          },
          nb::arg("role"), "Form bits due in this step for any tensor of the role; 0: nothing.")
      .def(
          "due_tensor", [](const PySession& s, std::uint32_t id) { return s.get().DueForms(id); },
          nb::arg("tensor"), "Form bits due in this step for one tensor.")
      .def(
          "capture",
          [](const PySession& s, const Table& table, std::optional<std::size_t> count) {
            s.Capture(table, count, 1.0);
          },
          nb::arg("table"), nb::arg("count") = nb::none(),
          "Copy and summarise what is due. Rows of uint64: id | layout << 32, address, storage key, flags.")
      .def(
          "capture_one",
          [](const PySession& s, std::uint32_t id, std::uint32_t layout, std::uint64_t address,
             std::uint64_t storage_key, std::uint64_t flags) {
            // NOLINTNEXTLINE(performance-no-int-to-ptr): Python hands addresses over as numbers
            const capture::TensorRef ref{id, layout, reinterpret_cast<const std::byte*>(address), storage_key,
                                         flags};
            s.CaptureRefs({&ref, 1}, 1.0);
          },
          nb::arg("tensor"), nb::arg("layout"), nb::arg("address"), nb::arg("storage_key") = 0,
          nb::arg("flags") = 0, "The same for one tensor.")
      .def(
          "capture_scaled",
          [](const PySession& s, const Table& table, double factor, std::optional<std::size_t> count) {
            s.Capture(table, count, factor);
          },
          nb::arg("table"), nb::arg("factor"), nb::arg("count") = nb::none(),
          "The same for values to be multiplied.")
      .def(
          "capture_on_device",
          [](const PySession& s, const Table& table, std::size_t count, std::int32_t device,
             std::uint64_t stream, double factor, std::uint64_t divisor) {
            const std::span<const capture::TensorRef> refs(
                reinterpret_cast<const capture::TensorRef*>(table.data()), std::min(count, table.shape(0)));
            const nb::gil_scoped_release others_go_on;  // the driver may make a launch wait for earlier ones
            s.get().CaptureOnDevice(refs, {device, stream, divisor}, factor);
          },
          nb::arg("table"), nb::arg("count"), nb::arg("device"), nb::arg("stream"), nb::arg("factor") = 1.0,
          nb::arg("divisor") = 0,
          "The same for memory of an accelerator, behind the work of a stream. `divisor`: address of a "
          "float32 there.")
      .def(
          "scalar_on_device",
          [](const PySession& s, std::uint32_t id, std::uint32_t layout, std::uint8_t dtype,
             std::uint64_t address, std::int32_t device, std::uint64_t stream, double factor) {
            if (!IsKnownDType(dtype)) return;
            const nb::gil_scoped_release others_go_on;
            s.get().ScalarOnDevice({id, layout, static_cast<DType>(dtype), address, factor},
                                   {device, stream, 0});
          },
          nb::arg("tensor"), nb::arg("layout"), nb::arg("dtype"), nb::arg("address"), nb::arg("device"),
          nb::arg("stream"), nb::arg("factor") = 1.0,
          "Record a number in memory of an accelerator, as a tensor too if that is due.")
      .def(
          "hash_on_device",
          [](const PySession& s, std::uint64_t seed, std::uint64_t address, std::uint64_t nbytes,
             std::uint64_t parts, std::uint64_t stride, std::int32_t device, std::uint64_t stream) {
            std::array<capture::DeviceRange, 16> ranges{};
            if (parts > ranges.size()) return std::uint64_t{0};
            for (std::uint64_t i = 0; i < parts; ++i) ranges[i] = {address + i * stride, nbytes};
            const nb::gil_scoped_release others_go_on;
            return s.get().HashOnDevice(seed, std::span(ranges).first(parts), {device, stream, 0});
          },
          nb::arg("seed"), nb::arg("address"), nb::arg("nbytes"), nb::arg("parts"), nb::arg("stride"),
          nb::arg("device"), nb::arg("stream"),
          "Hash memory of an accelerator: `parts` ranges of `nbytes`, `stride` apart. Returns what stands "
          "for "
          "the hash in events of batches of this step; 0: it cannot be read now.")
      .def(
          "read_on_device",
          [](const PySession& s, const std::vector<std::uint64_t>& ranges, std::int32_t device,
             std::uint64_t stream) {
            std::vector<capture::DeviceRange> of;
            for (std::size_t i = 0; i + 1 < ranges.size(); i += 2) of.push_back({ranges[i], ranges[i + 1]});
            const nb::gil_scoped_release others_go_on;
            return s.get().ReadOnDevice(of, {device, stream, 0});
          },
          nb::arg("ranges"), nb::arg("device"), nb::arg("stream"),
          "Read memory of an accelerator for the caller: address and bytes of each range, one after the "
          "other. "
          "Returns a number for `take_read`; 0: nothing can be read now.")
      .def(
          "take_read",
          [](const PySession& s, std::uint64_t read) -> nb::object {
            std::string bytes;
            const capture::LateRead found = [&] {
              const nb::gil_scoped_release others_go_on;
              return s.get().TakeRead(read, &bytes);
            }();
            switch (found) {
              case capture::LateRead::kWaits: return nb::none();
              case capture::LateRead::kHere: return nb::bytes(bytes.data(), bytes.size());
              case capture::LateRead::kLost: break;
            }
            return nb::bytes("", 0);
          },
          nb::arg("read"), "What was read, once it has come; None: it is on its way; empty: it was lost.")
      .def(
          "begin_phase_on_device",
          [](const PySession& s, std::uint8_t phase, std::int32_t device, std::uint64_t stream) {
            const nb::gil_scoped_release others_go_on;
            s.get().BeginPhaseOnDevice(static_cast<format::Phase>(phase), {device, stream, 0});
          },
          nb::arg("phase"), nb::arg("device"), nb::arg("stream"),
          "A phase of the training begins behind the work of the stream: mark the place.")
      .def(
          "end_step_on_device",
          [](const PySession& s, std::int32_t device, std::uint64_t stream) {
            const nb::gil_scoped_release others_go_on;
            s.get().EndStepOnDevice({device, stream, 0});
          },
          nb::arg("device"), nb::arg("stream"),
          "The step ends behind the work of the stream: mark the place.")
      .def(
          "capture_summaries",
          [](const PySession& s, const Heads& heads, const Summaries& values) {
            s.CaptureSummaries(heads, values);
          },
          nb::arg("heads"), nb::arg("values"),
          "Record summaries computed elsewhere. Heads: id | layout << 32. Rows of float64: sum, sum of "
          "squares, sum of "
          "absolute values, minimum, maximum, zeros, NaN, Inf.")
      .def(
          "scalar", [](const PySession& s, std::uint32_t id, double value) { s.get().Scalar(id, value); },
          nb::arg("tensor"), nb::arg("value"), "Record a number.")
      .def(
          "text", [](const PySession& s, std::uint32_t id, std::string_view text) { s.get().Text(id, text); },
          nb::arg("tensor"), nb::arg("utf8"), "Record a text.")
      .def(
          "event",
          [](const PySession& s, std::uint16_t kind, std::uint32_t subject, std::uint64_t argument) {
            s.get().Event(static_cast<format::EventKind>(kind), subject, argument);
          },
          nb::arg("kind"), nb::arg("subject") = format::kNoId, nb::arg("argument") = 0,
          "Record an event of the training loop.")
      .def(
          "event_json", [](const PySession& s, std::string_view json) { s.get().EventJson(json); },
          nb::arg("json_text"), "Record an event with an object of its own, which has \"kind\".")
      .def(
          "gap",
          [](const PySession& s, std::uint32_t id, std::uint16_t reason, std::uint32_t forms,
             std::uint64_t count) { s.get().Gap(id, static_cast<format::GapReason>(reason), forms, count); },
          nb::arg("tensor"), nb::arg("reason"), nb::arg("forms"), nb::arg("count") = 1,
          "Say that something was not recorded, and why.")
      .def(
          "hash",
          [](const PySession& s, std::uint64_t address, std::size_t bytes) {
            // NOLINTNEXTLINE(performance-no-int-to-ptr): Python hands addresses over as numbers
            return s.get().Hash(reinterpret_cast<const std::byte*>(address), bytes);
          },
          nb::arg("address"), nb::arg("nbytes"), "XXH3-64 of memory; 0 for none.")
      .def(
          "module_times",
          [](const PySession& s, const capture::ModuleTimer& timer) { s.get().ModuleTimes(timer); },
          nb::arg("timer"), "The step in progress has these times of modules.")
      .def(
          "traced", [](const PySession& s, bool begins) { s.get().Traced(begins); }, nb::arg("begins"),
          "Operators are traced from now on, or until the end of the step in progress.")
      .def(
          "waited", [](const PySession& s, std::int64_t ns) { s.get().Waited(ns); }, nb::arg("ns"),
          "The step in progress began its phase `compute` with a wait for data of so many ns.")
      .def(
          "mark_step_end", [](const PySession& s) { s.get().MarkStepEnd(); },
          "A step has ended now, and a later `end_step` with a time hands it over: keep where its time went.")
      .def(
          "end_step",
          [](const PySession& s, std::uint8_t mode, std::int64_t global_step, std::int64_t mode_step,
             std::int64_t update, std::int64_t wall_unix_ns, std::int64_t duration_ns) {
            s.get().EndStep(
                {static_cast<format::Mode>(mode), global_step, mode_step, update, wall_unix_ns, duration_ns});
          },
          nb::arg("mode"), nb::arg("global_step"), nb::arg("mode_step"), nb::arg("update"),
          nb::arg("wall_unix_ns") = 0, nb::arg("duration_ns") = 0,
          "Hand the step to the writer thread; with a time: one that ended then.")
      .def(
          "nonfinite", [](const PySession& s) { return s.get().nonfinite_summaries(); },
          "Summaries so far of tensors that were not finite throughout.")
      .def(
          "abandon_step", [](const PySession& s) { s.get().AbandonStep(); }, "Drop the step in progress.")
      .def(
          "stop_state", [](const PySession& s) { return static_cast<int>(s.get().stop_state()); },
          "0: go on; 1: something is proposed; 2: stop now.")
      .def(
          "at_step_boundary",
          [](const PySession& s, std::int64_t train_step) {
            const nb::gil_scoped_release release;
            return static_cast<int>(s.get().AtStepBoundary(train_step));
          },
          nb::arg("train_step"),
          "After that many TRAIN steps: wait, bounded, if a proposal names this one. 2: stop now; 3: "
          "take_action.")
      .def(
          "stop_reason", [](const PySession& s) { return s.get().stop_reason(); },
          "Why the run is stopped, for people.")
      .def(
          "accept_actions",
          [](const PySession& s, const std::vector<std::string>& kinds) { s.get().AcceptActions(kinds); },
          nb::arg("kinds"), "Kinds of corrective actions that the training has opted into.")
      .def(
          "take_action",
          [](const PySession& s)
              -> std::optional<std::tuple<std::uint64_t, std::string, std::string, std::string>> {
            std::optional<capture::PendingAction> action = s.get().TakeAction();
            if (!action) return std::nullopt;
            return std::tuple(action->control, action->kind, action->body, action->reason);
          },
          "What has to be carried out now: number, kind, settings as JSON, reason; None if nothing.")
      .def(
          "action_done",
          [](const PySession& s, std::uint64_t control, bool done) { s.get().ActionDone(control, done); },
          nb::arg("control"), nb::arg("done"), "Answer whether it was carried out.")
      .def(
          "flush",
          [](const PySession& s, double timeout_s) {
            const nb::gil_scoped_release release;
            return s.get().Flush(Milliseconds(timeout_s));
          },
          nb::arg("timeout_s"), "Wait until everything so far is published; False after the time-out.")
      .def(
          "close",
          [](const PySession& s, std::uint32_t reason, double timeout_s) {
            const nb::gil_scoped_release release;
            s.get().Close(static_cast<format::EndReason>(reason), Milliseconds(timeout_s));
            ForgetAtTerminate(&s.get());
          },
          nb::arg("reason"), nb::arg("timeout_s") = 2.0, "End the recording. Idempotent.")
      .def(
          "after_fork_in_child", [](const PySession& s) { s.get().AfterForkInChild(); },
          "In a forked child: take nothing more.")
      .def("health", &HealthDict, "Counters, the first error, and whether anything is still taken.")
      .def_prop_ro(
          "worker", [](const PySession& s) { return s.get().worker(); }, "Number of this worker.")
      .def_prop_ro(
          "reads_accelerators", [](const PySession& s) { return s.get().reads_accelerators(); },
          "Whether memory of accelerators is read at all.")
      .def_prop_ro("run_path", &PySession::run_path, "The run directory.");
}

}  // namespace luff::python
