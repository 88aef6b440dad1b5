// luff._core.Trial: runs opened for reading. luff/trial.py decides about names, defaults and conversions.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "errors.h"
#include "luff/profile/module_table.h"
#include "luff/profile/timeline.h"
#include "luff/query/run_pieces.h"
#include "luff/query/trial.h"
#include "luff/rules/kept_findings.h"
#include "text.h"

namespace luff::python {
namespace nb = nanobind;
namespace {

using query::Mode;
using query::Trial;
using std::chrono::milliseconds;

using Worker = std::optional<std::uint32_t>;

Mode ModeOf(int mode) {
  if (mode < 1 || mode > 4)
    ThrowIfError(InvalidArgument("mode " + std::to_string(mode) + " found, 1 to 4 expected"));
  return static_cast<Mode>(mode);
}

/// Returns a read-only array over memory that `owner` keeps alive.
template <typename T>
nb::object View(const T* data, std::vector<std::size_t> shape, std::shared_ptr<const void> owner) {
  auto* keep = new std::shared_ptr<const void>(std::move(owner));
  nb::capsule capsule(keep, [](void* p) noexcept { delete static_cast<std::shared_ptr<const void>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, const T>(data, shape.size(), shape.data(), capsule));
}

/// Returns an array for dtypes that NumPy has, else (dtype, shape, bytes), which luff/trial.py converts.
nb::object ArrayOf(DType dtype, const std::byte* data, std::uint64_t bytes,
                   const std::vector<std::size_t>& shape, std::shared_ptr<const void> owner) {
  const auto view = [&]<typename T>(T) {
    return View(reinterpret_cast<const T*>(data), shape, std::move(owner));
  };
  switch (dtype) {
    case DType::kBool: return view(bool{});
    case DType::kUInt8: return view(std::uint8_t{});
    case DType::kInt8: return view(std::int8_t{});
    case DType::kUInt16: return view(std::uint16_t{});
    case DType::kInt16: return view(std::int16_t{});
    case DType::kUInt32: return view(std::uint32_t{});
    case DType::kInt32: return view(std::int32_t{});
    case DType::kUInt64: return view(std::uint64_t{});
    case DType::kInt64: return view(std::int64_t{});
    case DType::kFloat32: return view(float{});
    case DType::kFloat64: return view(double{});
    default: {
      nb::object raw = View(reinterpret_cast<const std::uint8_t*>(data), {static_cast<std::size_t>(bytes)},
                            std::move(owner));
      nb::object python_shape = nb::cast(shape);
      return nb::make_tuple(std::string(DTypeName(dtype)), python_shape, raw);
    }
  }
}

std::vector<std::size_t> Shape(const std::vector<std::int64_t>& shape) {
  return {shape.begin(), shape.end()};
}

template <typename T>
nb::object Owned(std::vector<T> values) {
  auto owner = std::make_shared<const std::vector<T>>(std::move(values));
  return View(owner->data(), {owner->size()}, owner);
}

nb::dict SummaryDict(const query::SummaryAt& at) {
  const Summary& s = at.summary;
  nb::dict d;
  d["step"] = at.global_step;
  d["mode_step"] = at.mode_step;
  d["update"] = at.update;
  d["mode"] = std::string(query::ModeName(at.mode));
  d["worker"] = at.worker;
  d["dtype"] = std::string(DTypeName(at.dtype));
  d["merged_steps"] = at.merged_steps;
  d["count"] = s.count;
  d["min"] = s.min(at.dtype);
  d["max"] = s.max(at.dtype);
  d["mean"] = s.mean();
  d["std"] = s.std();
  d["variance"] = s.variance();
  d["sum"] = s.sum;
  d["l1"] = s.abs_sum;
  d["l2"] = s.l2();
  d["abs_mean"] = s.abs_mean();
  d["abs_max"] = s.abs_max(at.dtype);
  d["sum_sq"] = s.sum_sq;
  d["zero_count"] = s.zero_count;
  d["nan_count"] = s.nan_count;
  d["inf_count"] = s.inf_count;
  return d;
}

nb::dict Columns(const std::shared_ptr<const query::SummaryColumns>& c) {
  nb::dict d;
  query::SummaryColumns::ForEach([&](const char* name, auto member) {
    const auto& column = (*c).*member;
    d[name] = View(column.data(), {column.size()}, c);
  });
  return d;
}

std::atomic<std::uint32_t> g_process{1};  // incremented in the child of each fork

/// A mutex that knows which process locked it. A forked child inherits locks of threads that do not exist in
/// it, and the data that such a thread was changing stays half changed.
class ForkAwareMutex {
 public:
  [[nodiscard]] bool try_lock() noexcept {
    std::uint32_t free = 0;
    return holder_.compare_exchange_strong(free, g_process);
  }
  /// Throws if a thread of the parent process holds it.
  void lock() {
    for (std::uint32_t holder = 0; !holder_.compare_exchange_strong(holder, g_process); holder = 0) {
      if (IsAbandoned(holder)) {
        throw StatusException(FailedPrecondition(
            "found a trial that another thread was reading when this process was forked, expected one of its "
            "own: open the run again in the child"));
      }
      holder_.wait(holder);
    }
  }
  void unlock() noexcept {
    holder_ = 0;
    holder_.notify_one();
  }
  [[nodiscard]] bool abandoned() const noexcept { return IsAbandoned(holder_); }

 private:
  static bool IsAbandoned(std::uint32_t holder) noexcept { return holder != 0 && holder != g_process; }
  std::atomic<std::uint32_t> holder_{0};  // the process (g_process) whose thread holds it; 0: none
};

/// A trial that Python threads share. A call holds the lock while C++ works on the trial and makes Python
/// objects of the answer afterwards, because Python may run other code, even another call, whenever it
/// allocates. A thread never waits for the lock while it holds the GIL, nor for the GIL while it holds the
/// lock, so the two cannot deadlock.
class SharedTrial {
 public:
  explicit SharedTrial(std::unique_ptr<Trial> trial) : trial_(std::move(trial)) {}
  ~SharedTrial() {
    if (mutex_.abandoned()) static_cast<void>(trial_.release());  // half changed
  }
  SharedTrial(const SharedTrial&) = delete;
  SharedTrial& operator=(const SharedTrial&) = delete;

  /// Returns `use(trial)`; `use` must not touch Python. Keeps the GIL if the lock is free: releasing it
  /// costs more than most calls take. Of a run in a bucket any call may wait for the network.
  template <typename Use>
  auto With(Use use) {
    if (afar_) return WithoutGil(use);
    std::unique_lock lock(mutex_, std::try_to_lock);
    return lock ? use(*trial_) : WithoutGil(use);
  }
  /// Like With, for long reads: releases the GIL, so that other threads run.
  template <typename Use>
  auto WithoutGil(Use use) {
    nb::gil_scoped_release release;  // reacquires the GIL after the lock is released
    const std::lock_guard lock(mutex_);
    return use(*trial_);
  }
  /// Refreshes until `done(trial)` or the time-out. Between two refreshes other threads may use the trial,
  /// and Ctrl-C is handled. `news`: set if any refresh found something new.
  template <typename Done>
  bool WaitFor(double timeout_s, Done done, bool* news = nullptr) {
    using std::chrono::nanoseconds;
    using std::chrono::steady_clock;
    const auto deadline =
        steady_clock::now() + milliseconds(static_cast<std::int64_t>(std::clamp(timeout_s, 0.0, 1e9) * 1e3));
    nanoseconds pause{0};
    for (;;) {
      const bool found = WithoutGil([&](Trial& trial) {
        const bool more = Unwrap(trial.Refresh());
        if (news != nullptr) *news = *news || more;
        pause = trial.PauseAfter(pause);
        return done(trial);
      });
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      const nanoseconds left = deadline - steady_clock::now();
      if (found || left.count() <= 0) return found;
      nb::gil_scoped_release release;
      std::this_thread::sleep_for(std::min(pause, left));
    }
  }

 private:
  ForkAwareMutex mutex_;
  std::unique_ptr<Trial> trial_;
  const bool afar_ = !trial_->MirrorNote().empty();
};

nb::tuple StepTuple(const query::StepInfo& info) {
  return nb::make_tuple(info.global_step, info.mode_step, info.update, static_cast<int>(info.mode),
                        info.wall_unix_ns, info.duration_ns);
}

/// Steps with phases, as columns.
class PhaseColumns {
 public:
  void Add(const query::StepInfo& info, const query::StepPhases& phases) {
    if (!timeline_ || phases.worker != worker_.back()) timeline_.emplace();
    timeline_->Place(phases, &placed_);
    const std::size_t rows = step_.size();
    step_.push_back(info.global_step);
    mode_step_.push_back(info.mode_step);
    update_.push_back(info.update);
    mode_.push_back(static_cast<std::uint8_t>(info.mode));
    begin_ns_.push_back(placed_.begin_ns);
    worker_.push_back(phases.worker);
    wall_ns_.push_back(phases.head.wall_ns);
    cpu_ns_.push_back(phases.head.cpu_ns);
    run_queue_ns_.push_back(phases.head.run_queue_ns);
    device_ns_.push_back(phases.head.device_ns);
    idle_steps_.push_back(phases.has_device() ? static_cast<std::int64_t>(phases.idle_steps) : -1);
    merged_.push_back(phases.head.steps);
    major_faults_.push_back(phases.head.major_faults);
    flags_.push_back(phases.head.flags);
    for (std::size_t i = 0; i < format::kPhaseCount; ++i) {
      const bool there = phases.ns[i] != 0 || phases.begins[i] != 0;
      One& one = phases_[i];
      if (!there && one.ns.empty()) continue;
      if (one.ns.empty())
        one = {Numbers(rows, -1), std::vector<std::uint32_t>(rows, 0), Numbers(rows, -1), Numbers(rows, -1)};
      one.ns.push_back(there ? phases.ns[i] : -1);
      one.begins.push_back(phases.begins[i]);
      one.begin_ns.push_back(-1);
      one.device_ns.push_back(phases.device_ns[i]);
    }
    for (const profile::PhaseSlice& slice : placed_.phases)
      phases_[static_cast<std::size_t>(slice.phase)].begin_ns.back() = slice.begin_ns;
  }

  /// Of each phase that occurs, by number: its time, how often it began, where its interval begins, and its
  /// time on a device.
  nb::dict Dict() && {
    nb::dict d;
    d["step"] = Owned(std::move(step_));
    d["mode_step"] = Owned(std::move(mode_step_));
    d["update"] = Owned(std::move(update_));
    d["mode"] = Owned(std::move(mode_));
    d["worker"] = Owned(std::move(worker_));
    d["merged"] = Owned(std::move(merged_));
    d["begin_ns"] = Owned(std::move(begin_ns_));
    d["wall_ns"] = Owned(std::move(wall_ns_));
    d["cpu_ns"] = Owned(std::move(cpu_ns_));
    d["run_queue_ns"] = Owned(std::move(run_queue_ns_));
    d["device_ns"] = Owned(std::move(device_ns_));
    d["idle_steps"] = Owned(std::move(idle_steps_));
    d["major_faults"] = Owned(std::move(major_faults_));
    d["flags"] = Owned(std::move(flags_));
    nb::dict phases;
    for (std::size_t i = 0; i < format::kPhaseCount; ++i) {
      One& one = phases_[i];
      if (one.ns.empty()) continue;
      phases[nb::int_(i)] = nb::make_tuple(Owned(std::move(one.ns)), Owned(std::move(one.begins)),
                                           Owned(std::move(one.begin_ns)), Owned(std::move(one.device_ns)));
    }
    d["phases"] = phases;
    return d;
  }

 private:
  using Numbers = std::vector<std::int64_t>;
  struct One {
    Numbers ns;  // -1: the step lacks it
    std::vector<std::uint32_t> begins;
    Numbers begin_ns;
    Numbers device_ns;  // -1: not known
  };
  Numbers step_, mode_step_, update_, begin_ns_, wall_ns_, cpu_ns_, run_queue_ns_, device_ns_, idle_steps_;
  std::vector<std::uint32_t> worker_, merged_, major_faults_, flags_;
  std::vector<std::uint8_t> mode_;
  std::array<One, format::kPhaseCount> phases_;
  std::optional<profile::Timeline> timeline_;  // of the last worker
  profile::PlacedStep placed_;
};

/// Binds a method of the trial without arguments.
template <typename Read>
auto Get(Read read) {
  return [read](SharedTrial& shared) { return shared.With(read); };
}

}  // namespace

void InitTrial(nb::module_& m);
void InitTrial(nb::module_& m) {
  pthread_atfork(nullptr, nullptr, [] { ++g_process; });
  nb::class_<SharedTrial> trial(m, "Trial");
  m.def(
      "open_trial",
      [](const std::string& path, double wait_s, bool use_live_page, double lost_after_s,
         std::optional<std::size_t> show_at_most) {
        query::OpenOptions options;
        if (show_at_most) options.show_at_most = *show_at_most;
        options.use_live_page = use_live_page;
        options.lost_after_s = lost_after_s;
        std::unique_ptr<SharedTrial> opened;
        {
          nb::gil_scoped_release release;
          opened = std::make_unique<SharedTrial>(Unwrap(Trial::Open(path, options)));
        }
        if (wait_s > 0) {
          opened->WaitFor(wait_s, [](Trial& t) { return t.step_count() > 0 || t.loaded_all_steps(); });
        }
        return opened.release();
      },
      nb::arg("path"), nb::arg("wait_s"), nb::arg("use_live_page"), nb::arg("lost_after_s"),
      nb::arg("show_at_most") = nb::none(), nb::rv_policy::take_ownership);
  trial.def("refresh", Get([](Trial& t) { return Unwrap(t.Refresh()); }));
  trial.def(
      "wait_for_news",
      [](SharedTrial& shared, double timeout_s) {
        const std::size_t steps = shared.With([](Trial& t) { return t.step_count(); });
        bool news = false;
        const auto done = [&](Trial& t) { return t.step_count() != steps || t.loaded_all_steps(); };
        return shared.WaitFor(timeout_s, done, &news) || news;
      },
      nb::arg("timeout_s"));
  trial.def(
      "wait_for_step",
      [](SharedTrial& shared, std::int64_t step, int mode, double timeout_s) {
        Status last;
        const Mode of = ModeOf(mode);
        const bool known = shared.WaitFor(timeout_s, [&](Trial& t) {
          last = t.FindStep(step, of).status();
          return last.code() != StatusCode::kUnavailable;
        });
        if (!known)
          last = shared.WithoutGil([&](Trial& t) { return t.WaitForStep(step, of, milliseconds(0)); });
        ThrowIfError(std::move(last));
      },
      nb::arg("step"), nb::arg("mode"), nb::arg("timeout_s"));
  trial.def_prop_ro("loaded_all_steps", Get([](const Trial& t) { return t.loaded_all_steps(); }));
  trial.def_prop_ro("path", Get([](const Trial& t) { return t.path(); }));
  trial.def_prop_ro("world_size", Get([](const Trial& t) { return t.world_size(); }));
  trial.def_prop_ro("step_count", Get([](const Trial& t) { return t.step_count(); }));
  trial.def("outcome", [](SharedTrial& shared) {
    const auto outcome = shared.With([](const Trial& t) { return t.outcome(); });
    return nb::make_tuple(outcome.state, outcome.why);
  });
  trial.def("problems", Get([](const Trial& t) { return t.Problems(); }));
  trial.def("workers", [](SharedTrial& shared) {
    nb::list list;
    for (const auto& w : shared.With([](const Trial& t) { return t.workers(); })) {
      nb::dict d;
      d["worker"] = w.worker;
      d["alive"] = w.alive;
      d["ended"] = w.ended;
      static constexpr const char* kReasons[] = {"", "completed", "stopped", "exception", "signal", "failed"};
      const auto reason = w.reason ? static_cast<std::size_t>(*w.reason) : 0;
      d["reason"] = reason < std::size(kReasons) ? kReasons[reason] : "failed";
      d["last_step"] = w.last_global_step;
      d["last_train_step"] = w.last_train_step;
      d["heartbeat_unix_ns"] = w.heartbeat_unix_ns;
      list.append(d);
    }
    return list;
  });
  trial.def(
      "tensors",
      [](SharedTrial& shared, const std::string& regex, const std::string& collection, int mode,
         std::optional<std::int64_t> step) {
        return shared.With(
            [&](const Trial& t) { return Unwrap(t.TensorNames({regex, collection, step, ModeOf(mode)})); });
      },
      nb::arg("regex"), nb::arg("collection"), nb::arg("mode"), nb::arg("step").none());
  trial.def(
      "find",
      [](SharedTrial& shared, const std::string& name) {
        return shared.With([&](const Trial& t) { return Unwrap(t.FindTensor(name)); });
      },
      nb::arg("name"));
  trial.def(
      "info",
      [](SharedTrial& shared, std::uint32_t id) {
        const auto info = shared.With([&](const Trial& t) { return t.tensor(id); });
        return nb::make_tuple(info.name, static_cast<int>(info.role), info.module_path, info.module_type,
                              info.collections);
      },
      nb::arg("id"));
  trial.def("collections", Get([](const Trial& t) { return t.CollectionNames(); }));
  trial.def(
      "document",
      [](SharedTrial& shared, const std::string& name, std::optional<std::uint32_t> worker) {
        return shared.With(
            [&](const Trial& t) { return worker ? query::DocumentOf(t, *worker, name) : t.Document(name); });
      },
      nb::arg("name"), nb::arg("worker") = nb::none());
  trial.def(
      "steps",
      [](SharedTrial& shared, int mode) {
        return shared.With([&](const Trial& t) { return t.Steps(ModeOf(mode)); });
      },
      nb::arg("mode"));
  trial.def(
      "step_info",
      [](SharedTrial& shared, std::int64_t step, int mode) {
        return StepTuple(shared.With([&](const Trial& t) { return Unwrap(t.FindStep(step, ModeOf(mode))); }));
      },
      nb::arg("step"), nb::arg("mode"));
  trial.def(
      "show_at_most",
      [](SharedTrial& shared, std::size_t steps) { shared.With([&](Trial& t) { t.ShowAtMost(steps); }); },
      nb::arg("steps"));
  trial.def(
      "step_at",
      [](SharedTrial& shared, std::size_t n) {
        return StepTuple(shared.With([&](const Trial& t) {
          if (n >= t.step_count()) ThrowIfError(OutOfRange("there is no step number " + std::to_string(n)));
          return t.step_at(n);
        }));
      },
      nb::arg("n"));
  trial.def(
      "step_rows",
      [](SharedTrial& shared, std::size_t n) {
        Trial::StepRows rows;
        std::vector<std::string> names;  // of the tensors of summaries, then of scalars
        shared.With([&](const Trial& t) {
          ThrowIfError(t.ReadStepRows(n, &rows));
          for (const auto& entry : rows.summaries) names.push_back(t.tensor(entry.tensor).name);
          for (const auto& entry : rows.scalars) names.push_back(t.tensor(entry.tensor).name);
        });
        auto name = names.begin();
        nb::list summaries;
        for (const auto& entry : rows.summaries) {
          query::SummaryAt at;
          at.global_step = rows.info.global_step;
          at.mode_step = rows.info.mode_step;
          at.update = rows.info.update;
          at.mode = rows.info.mode;
          at.worker = entry.worker;
          at.dtype = entry.dtype;
          at.summary = entry.summary;
          summaries.append(nb::make_tuple(*name++, SummaryDict(at)));
        }
        nb::list scalars;
        for (const auto& entry : rows.scalars)
          scalars.append(nb::make_tuple(*name++, entry.worker, entry.value));
        return nb::make_tuple(summaries, scalars);
      },
      nb::arg("n"));
  trial.def(
      "step_state",
      [](SharedTrial& shared, std::int64_t step, int mode) {
        return shared.With(
            [&](const Trial& t) { return static_cast<int>(t.StateOfStep(step, ModeOf(mode))); });
      },
      nb::arg("step"), nb::arg("mode"));
  trial.def(
      "tensor_steps",
      [](SharedTrial& shared, std::uint32_t id, int mode) {
        return shared.With([&](const Trial& t) { return Unwrap(t.TensorSteps(id, ModeOf(mode))); });
      },
      nb::arg("id"), nb::arg("mode"));
  trial.def(
      "tensor_workers",
      [](SharedTrial& shared, std::uint32_t id, std::int64_t step, int mode) {
        return shared.With([&](const Trial& t) { return Unwrap(t.TensorWorkers(id, step, ModeOf(mode))); });
      },
      nb::arg("id"), nb::arg("step"), nb::arg("mode"));
  // Bind reads of one tensor, over all steps and at one step. `made` turns the result into a Python object.
  const auto over_steps = [&](const char* name, auto read, auto made) {
    trial.def(
        name,
        [read, made](SharedTrial& shared, std::uint32_t id, int mode, Worker worker) {
          return made(
              shared.With([&](const Trial& t) { return Unwrap((t.*read)(id, ModeOf(mode), worker)); }));
        },
        nb::arg("id"), nb::arg("mode"), nb::arg("worker").none());
  };
  const auto at_step = [&](const char* name, auto read, auto made) {
    trial.def(
        name,
        [read, made](SharedTrial& shared, std::uint32_t id, std::int64_t step, int mode, Worker worker) {
          return made(
              shared.With([&](const Trial& t) { return Unwrap((t.*read)(id, step, ModeOf(mode), worker)); }));
        },
        nb::arg("id"), nb::arg("step"), nb::arg("mode"), nb::arg("worker").none());
  };
  over_steps("value_steps", &Trial::ValueSteps, [](std::vector<std::int64_t> steps) { return steps; });
  at_step("value", &Trial::ReadValue, [](query::Value value) {
    return ArrayOf(value.dtype, value.bytes.data(), value.bytes.size(), Shape(value.shape),
                   std::move(value.owner));
  });
  trial.def(
      "stack",
      [](SharedTrial& shared, std::uint32_t id, int mode, Worker worker, std::uint64_t max_bytes) {
        Trial::Stack stack = shared.WithoutGil(
            [&](const Trial& t) { return Unwrap(t.ReadStack(id, ModeOf(mode), worker, max_bytes)); });
        auto shape = Shape(stack.shape);
        shape.insert(shape.begin(), stack.steps.size());
        if (stack.dtype == DType::kInvalid) stack.dtype = DType::kFloat32;
        nb::object array = ArrayOf(stack.dtype, stack.bytes.get(), stack.byte_count, shape, stack.bytes);
        return nb::make_tuple(Owned(std::move(stack.steps)), array);
      },
      nb::arg("id"), nb::arg("mode"), nb::arg("worker").none(), nb::arg("max_bytes"));
  at_step("shape", &Trial::Shape, [](const Trial::ValueShape& shape) {
    return nb::make_tuple(nb::cast(shape.shape), std::string(DTypeName(shape.dtype)),
                          nb::cast(shape.global_shape), nb::cast(shape.global_offset));
  });
  at_step("summary", &Trial::ReadSummaryAt, SummaryDict);
  over_steps("summaries", &Trial::SharedSummaries, Columns);
  over_steps("scalars", &Trial::Scalars, [](const std::vector<query::ScalarAt>& scalars) {
    std::vector<std::int64_t> steps, mode_steps, updates;
    std::vector<double> values;
    for (const auto& scalar : scalars) {
      steps.push_back(scalar.global_step);
      mode_steps.push_back(scalar.mode_step);
      updates.push_back(scalar.update);
      values.push_back(scalar.value);
    }
    return nb::make_tuple(Owned(std::move(steps)), Owned(std::move(mode_steps)), Owned(std::move(updates)),
                          Owned(std::move(values)));
  });
  trial.def(
      "form",
      [](SharedTrial& shared, std::uint32_t id, int form, std::int64_t step, int mode, Worker worker) {
        const auto row = shared.With([&](const Trial& t) {
          return Unwrap(t.ReadForm(id, static_cast<format::Form>(form), step, ModeOf(mode), worker));
        });
        return std::vector<double>(row.values, row.values + 6);
      },
      nb::arg("id"), nb::arg("form"), nb::arg("step"), nb::arg("mode"), nb::arg("worker").none());
  at_step("histogram", &Trial::Histogram, [](const SparseHistogram& bins) {
    std::vector<double> low, high;
    std::vector<std::uint64_t> count;
    for (const HistogramBin& bin : bins) {
      low.push_back(HistogramBinLow(bin.bin));
      high.push_back(HistogramBinHigh(bin.bin));
      count.push_back(bin.count);
    }
    return nb::make_tuple(Owned(std::move(low)), Owned(std::move(high)), Owned(std::move(count)));
  });
  at_step("saved_reductions", &Trial::SavedReductions, [](const std::vector<query::SavedReduction>& all) {
    nb::list list;
    for (const auto& saved : all) list.append(nb::make_tuple(saved.name, saved.abs, saved.value));
    return list;
  });
  trial.def(
      "quantile",
      [](SharedTrial& shared, std::uint32_t id, std::int64_t step, double q, int mode, Worker worker) {
        return shared.With([&](const Trial& t) {
          return HistogramQuantile(Unwrap(t.Histogram(id, step, ModeOf(mode), worker)), q);
        });
      },
      nb::arg("id"), nb::arg("step"), nb::arg("q"), nb::arg("mode"), nb::arg("worker").none());
  trial.def("findings", [](SharedTrial& shared) {
    const std::string run = shared.With([](const Trial& t) { return t.path(); });
    rules::KeptFindings kept;
    {
      const nb::gil_scoped_release released;
      kept = rules::FindingsOfRun(run);
    }
    nb::list list;
    for (const rules::Finding& finding : kept.findings)
      list.append(finding.healed ? rules::ToJson(finding, "healed") : rules::ToJson(finding, "new"));
    return nb::make_tuple(list, kept.problems);
  });
  trial.def("gaps", [](SharedTrial& shared) {
    nb::list list;
    for (const auto& gap : shared.With([](const Trial& t) { return t.Gaps(); })) {
      nb::dict d;
      d["worker"] = gap.worker;
      d["tensor"] = gap.tensor;
      d["collection"] = gap.collection;
      d["reason"] = gap.reason;
      d["forms"] = gap.forms;
      d["count"] = gap.count;
      d["bytes"] = gap.bytes;
      d["first_step"] = gap.first_step;
      d["last_step"] = gap.last_step;
      list.append(d);
    }
    return list;
  });
  trial.def(
      "events",
      [](SharedTrial& shared, int mode) {
        nb::list list;
        for (const auto& e : shared.With([&](const Trial& t) { return t.Events(ModeOf(mode)); })) {
          list.append(nb::make_tuple(e.global_step, e.worker, static_cast<int>(e.row.kind), e.row.subject,
                                     e.row.argument, e.row.since_step_ns));
        }
        return list;
      },
      nb::arg("mode"));
  trial.def(
      "phases",
      [](SharedTrial& shared, Worker worker) {
        PhaseColumns columns;
        shared.WithoutGil([&](const Trial& t) {
          ThrowIfError(
              query::VisitPhases(t, [&](const query::StepInfo& info, const query::StepPhases& phases) {
                if (!worker || phases.worker == *worker) columns.Add(info, phases);
              }));
        });
        return std::move(columns).Dict();
      },
      nb::arg("worker").none());
  trial.def(
      "modules",
      [](SharedTrial& shared, Worker worker) {
        profile::ModuleTable table;
        profile::Scope scope;
        scope.worker = worker;
        shared.WithoutGil([&](const Trial& t) { table = Unwrap(profile::ModulesOf(t, scope)); });
        nb::list lines;
        for (const profile::ModuleLine& line : table.lines)
          lines.append(nb::make_tuple(line.name, line.type, line.calls, line.forward_s, line.forward_own_s,
                                      line.backward_s, line.backward_own_s));
        return nb::make_tuple(table.steps, lines);
      },
      nb::arg("worker").none());
  trial.def("json_events", [](SharedTrial& shared) {
    nb::list list;
    for (const auto& e : shared.With([](const Trial& t) { return t.JsonEvents(); }))
      list.append(nb::make_tuple(e.global_step, e.worker, nb::bytes(e.json.data(), e.json.size())));
    return list;
  });
}

}  // namespace luff::python
