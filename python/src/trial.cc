// Trial of luff._core: runs opened for reading. Names, defaults and conversions are those of luff/trial.py.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "errors.h"
#include "luff/query/trial.h"
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

/// A read-only array over memory that `owner` keeps alive. Empty memory gets no owner: there is nothing to
/// keep.
template <typename T>
nb::object View(const T* data, std::vector<std::size_t> shape, std::shared_ptr<const void> owner) {
  auto* keep = new std::shared_ptr<const void>(std::move(owner));
  nb::capsule capsule(keep, [](void* p) noexcept { delete static_cast<std::shared_ptr<const void>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, const T>(data, shape.size(), shape.data(), capsule));
}

/// dtypes that NumPy has itself are made here; others come as bytes and luff/trial.py gives them their type.
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
  const auto add = [&](const char* name, const auto& column) {
    d[name] = View(column.data(), {column.size()}, c);
  };
  add("step", c->global_step);
  add("mode_step", c->mode_step);
  add("update", c->update);
  add("mode", c->mode);
  add("count", c->count);
  add("zero_count", c->zero_count);
  add("nan_count", c->nan_count);
  add("inf_count", c->inf_count);
  add("min", c->min);
  add("max", c->max);
  add("mean", c->mean);
  add("std", c->std);
  add("sum", c->sum);
  add("abs_mean", c->abs_mean);
  add("l2", c->l2);
  return d;
}

/// Waits in slices, so that Ctrl-C is seen.
template <typename Wait>
bool InSlices(double timeout_s, Wait wait) {
  const auto deadline = std::chrono::steady_clock::now() +
                        milliseconds(static_cast<std::int64_t>(std::min(timeout_s, 1e9) * 1e3));
  for (;;) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
    const auto slice = std::clamp(left, milliseconds(0), milliseconds(100));
    bool done = false;
    {
      nb::gil_scoped_release release;
      done = wait(slice);
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (done || left <= slice) return done;
  }
}

}  // namespace

void InitTrial(nb::module_& m);
void InitTrial(nb::module_& m) {
  nb::class_<Trial> trial(m, "Trial");
  m.def(
      "open_trial",
      [](const std::string& path, double wait_s, bool use_live_page, double lost_after_s,
         std::optional<std::size_t> show_at_most) {
        query::OpenOptions options;
        if (show_at_most) options.show_at_most = *show_at_most;
        options.use_live_page = use_live_page;
        options.lost_after_s = lost_after_s;
        std::unique_ptr<Trial> opened;
        {
          nb::gil_scoped_release release;
          opened = Unwrap(Trial::Open(path, options));
        }
        if (wait_s > 0) {
          InSlices(wait_s, [&](milliseconds slice) {
            (void)Unwrap(opened->WaitForNews(slice));
            return opened->step_count() > 0 || opened->loaded_all_steps();
          });
        }
        return opened.release();
      },
      nb::arg("path"), nb::arg("wait_s"), nb::arg("use_live_page"), nb::arg("lost_after_s"),
      nb::arg("show_at_most") = nb::none(), nb::rv_policy::take_ownership);
  trial.def("refresh", [](Trial& t) { return Unwrap(t.Refresh()); });
  trial.def("wait_for_news", [](Trial& t, double timeout_s) {
    return InSlices(timeout_s,
                    [&](milliseconds slice) { return Unwrap(t.WaitForNews(slice)) || t.loaded_all_steps(); });
  });
  trial.def("wait_for_step", [](Trial& t, std::int64_t step, int mode, double timeout_s) {
    Status last;
    InSlices(timeout_s, [&](milliseconds slice) {
      last = t.WaitForStep(step, ModeOf(mode), slice);
      return last.code() != StatusCode::kDeadlineExceeded;
    });
    ThrowIfError(std::move(last));
  });
  trial.def_prop_ro("loaded_all_steps", [](const Trial& t) { return t.loaded_all_steps(); });
  trial.def_prop_ro("path", [](const Trial& t) { return t.path(); });
  trial.def_prop_ro("world_size", [](const Trial& t) { return t.world_size(); });
  trial.def_prop_ro("step_count", [](const Trial& t) { return t.step_count(); });
  trial.def("outcome", [](const Trial& t) {
    const auto outcome = t.outcome();
    return nb::make_tuple(outcome.state, outcome.why);
  });
  trial.def("problems", [](const Trial& t) { return t.Problems(); });
  trial.def("workers", [](const Trial& t) {
    nb::list list;
    for (const auto& w : t.workers()) {
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
  trial.def("tensors", [](const Trial& t, const std::string& regex, const std::string& collection, int mode,
                          std::optional<std::int64_t> step) {
    return Unwrap(t.TensorNames({regex, collection, step, ModeOf(mode)}));
  });
  trial.def("find", [](const Trial& t, const std::string& name) { return Unwrap(t.FindTensor(name)); });
  trial.def("info", [](const Trial& t, std::uint32_t id) {
    const auto& info = t.tensor(id);
    return nb::make_tuple(info.name, static_cast<int>(info.role), info.module_path, info.module_type,
                          info.collections);
  });
  trial.def("collections", [](const Trial& t) { return t.CollectionNames(); });
  trial.def("document", [](const Trial& t, const std::string& name) { return t.Document(name); });
  trial.def("steps", [](const Trial& t, int mode) { return t.Steps(ModeOf(mode)); });
  trial.def("step_info", [](const Trial& t, std::int64_t step, int mode) {
    const auto info = Unwrap(t.FindStep(step, ModeOf(mode)));
    return nb::make_tuple(info.global_step, info.mode_step, info.update, static_cast<int>(info.mode),
                          info.wall_unix_ns, info.duration_ns);
  });
  trial.def("show_at_most", [](Trial& t, std::size_t steps) { t.ShowAtMost(steps); });
  trial.def("step_at", [](const Trial& t, std::size_t n) {
    if (n >= t.step_count()) ThrowIfError(OutOfRange("there is no step number " + std::to_string(n)));
    const auto info = t.step_at(n);
    return nb::make_tuple(info.global_step, info.mode_step, info.update, static_cast<int>(info.mode),
                          info.wall_unix_ns, info.duration_ns);
  });
  trial.def("step_rows", [](const Trial& t, std::size_t n) {
    Trial::StepRows rows;
    ThrowIfError(t.ReadStepRows(n, &rows));
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
      summaries.append(nb::make_tuple(t.tensor(entry.tensor).name, SummaryDict(at)));
    }
    nb::list scalars;
    for (const auto& entry : rows.scalars)
      scalars.append(nb::make_tuple(t.tensor(entry.tensor).name, entry.worker, entry.value));
    return nb::make_tuple(summaries, scalars);
  });
  trial.def("step_state", [](const Trial& t, std::int64_t step, int mode) {
    return static_cast<int>(t.StateOfStep(step, ModeOf(mode)));
  });
  trial.def("tensor_steps", [](const Trial& t, std::uint32_t id, int mode) {
    return Unwrap(t.TensorSteps(id, ModeOf(mode)));
  });
  trial.def(
      "value_steps",
      [](const Trial& t, std::uint32_t id, int mode, Worker worker) {
        return Unwrap(t.ValueSteps(id, ModeOf(mode), worker));
      },
      nb::arg("id"), nb::arg("mode"), nb::arg("worker").none());
  trial.def("tensor_workers", [](const Trial& t, std::uint32_t id, std::int64_t step, int mode) {
    return Unwrap(t.TensorWorkers(id, step, ModeOf(mode)));
  });
  trial.def(
      "value",
      [](const Trial& t, std::uint32_t id, std::int64_t step, int mode, Worker worker) {
        query::Value value = Unwrap(t.ReadValue(id, step, ModeOf(mode), worker));
        return ArrayOf(value.dtype, value.bytes.data(), value.bytes.size(), Shape(value.shape),
                       std::move(value.owner));
      },
      nb::arg("id"), nb::arg("step"), nb::arg("mode"), nb::arg("worker").none());
  trial.def(
      "stack",
      [](const Trial& t, std::uint32_t id, int mode, Worker worker, std::uint64_t max_bytes) {
        Trial::Stack stack;
        {
          nb::gil_scoped_release release;
          stack = Unwrap(t.ReadStack(id, ModeOf(mode), worker, max_bytes));
        }
        auto shape = Shape(stack.shape);
        shape.insert(shape.begin(), stack.steps.size());
        if (stack.dtype == DType::kInvalid) stack.dtype = DType::kFloat32;
        nb::object array = ArrayOf(stack.dtype, stack.bytes.get(), stack.byte_count, shape, stack.bytes);
        return nb::make_tuple(Owned(std::move(stack.steps)), array);
      },
      nb::arg("id"), nb::arg("mode"), nb::arg("worker").none(), nb::arg("max_bytes"));
  trial.def(
      "shape",
      [](const Trial& t, std::uint32_t id, std::int64_t step, int mode, Worker worker) {
        const auto shape = Unwrap(t.Shape(id, step, ModeOf(mode), worker));
        return nb::make_tuple(nb::cast(shape.shape), std::string(DTypeName(shape.dtype)),
                              nb::cast(shape.global_shape), nb::cast(shape.global_offset));
      },
      nb::arg("id"), nb::arg("step"), nb::arg("mode"), nb::arg("worker").none());
  trial.def(
      "summary",
      [](const Trial& t, std::uint32_t id, std::int64_t step, int mode, Worker worker) {
        return SummaryDict(Unwrap(t.ReadSummaryAt(id, step, ModeOf(mode), worker)));
      },
      nb::arg("id"), nb::arg("step"), nb::arg("mode"), nb::arg("worker").none());
  trial.def(
      "summaries",
      [](const Trial& t, std::uint32_t id, int mode, Worker worker) {
        return Columns(Unwrap(t.SharedSummaries(id, ModeOf(mode), worker)));
      },
      nb::arg("id"), nb::arg("mode"), nb::arg("worker").none());
  trial.def(
      "scalars",
      [](const Trial& t, std::uint32_t id, int mode, Worker worker) {
        const auto scalars = Unwrap(t.Scalars(id, ModeOf(mode), worker));
        std::vector<std::int64_t> steps, mode_steps;
        std::vector<double> values;
        for (const auto& scalar : scalars) {
          steps.push_back(scalar.global_step);
          mode_steps.push_back(scalar.mode_step);
          values.push_back(scalar.value);
        }
        return nb::make_tuple(Owned(std::move(steps)), Owned(std::move(mode_steps)),
                              Owned(std::move(values)));
      },
      nb::arg("id"), nb::arg("mode"), nb::arg("worker").none());
  trial.def(
      "form",
      [](const Trial& t, std::uint32_t id, int form, std::int64_t step, int mode, Worker worker) {
        const auto row = Unwrap(t.ReadForm(id, static_cast<format::Form>(form), step, ModeOf(mode), worker));
        return std::vector<double>(row.values, row.values + 6);
      },
      nb::arg("id"), nb::arg("form"), nb::arg("step"), nb::arg("mode"), nb::arg("worker").none());
  trial.def(
      "histogram",
      [](const Trial& t, std::uint32_t id, std::int64_t step, int mode, Worker worker) {
        const auto bins = Unwrap(t.Histogram(id, step, ModeOf(mode), worker));
        std::vector<double> low, high;
        std::vector<std::uint64_t> count;
        for (const HistogramBin& bin : bins) {
          low.push_back(HistogramBinLow(bin.bin));
          high.push_back(HistogramBinHigh(bin.bin));
          count.push_back(bin.count);
        }
        return nb::make_tuple(Owned(std::move(low)), Owned(std::move(high)), Owned(std::move(count)));
      },
      nb::arg("id"), nb::arg("step"), nb::arg("mode"), nb::arg("worker").none());
  trial.def(
      "saved_reductions",
      [](const Trial& t, std::uint32_t id, std::int64_t step, int mode, Worker worker) {
        nb::list list;
        for (const auto& saved : Unwrap(t.SavedReductions(id, step, ModeOf(mode), worker)))
          list.append(nb::make_tuple(saved.name, saved.abs, saved.value));
        return list;
      },
      nb::arg("id"), nb::arg("step"), nb::arg("mode"), nb::arg("worker").none());
  trial.def(
      "quantile",
      [](const Trial& t, std::uint32_t id, std::int64_t step, double q, int mode, Worker worker) {
        return HistogramQuantile(Unwrap(t.Histogram(id, step, ModeOf(mode), worker)), q);
      },
      nb::arg("id"), nb::arg("step"), nb::arg("q"), nb::arg("mode"), nb::arg("worker").none());
  trial.def("gaps", [](const Trial& t) {
    nb::list list;
    for (const auto& gap : t.Gaps()) {
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
  trial.def("events", [](const Trial& t, int mode) {
    nb::list list;
    for (const auto& e : t.Events(ModeOf(mode))) {
      list.append(nb::make_tuple(e.global_step, e.worker, static_cast<int>(e.row.kind), e.row.subject,
                                 e.row.argument, e.row.since_step_ns));
    }
    return list;
  });
  trial.def("json_events", [](const Trial& t) {
    nb::list list;
    for (const auto& e : t.JsonEvents())
      list.append(nb::make_tuple(e.global_step, e.worker, nb::bytes(e.json.data(), e.json.size())));
    return list;
  });
}

}  // namespace luff::python
