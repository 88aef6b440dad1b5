#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <exception>
#include <set>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "cli/export.h"
#include "cli/json.h"
#include "luff/format/event_file.h"
#include "luff/format/smdebug.h"

namespace luff::cli {
namespace {

using format::Role;

/// Collections that smdebug has by default for PyTorch, with its expressions.
struct Standard {
  const char* name;
  const char* regex;
  Role role;
};
constexpr Standard kStandard[] = {
    {"weights", "^(?!gradient).*weight", Role::kWeight},
    {"biases", "^(?!gradient).*bias", Role::kBias},
    {"gradients", "^gradient", Role::kGradient},
    {"losses", "[Ll]oss_(?!input).*output", Role::kLoss},
};

template <typename To, typename From>
std::vector<std::byte> Converted(std::span<const std::byte> from) {
  const std::size_t count = from.size() / sizeof(From);
  std::vector<std::byte> to(count * sizeof(To));
  for (std::size_t i = 0; i < count; ++i) {
    From element;
    std::memcpy(&element, from.data() + i * sizeof(From), sizeof(From));
    const To wide = static_cast<To>(element);
    std::memcpy(to.data() + i * sizeof(To), &wide, sizeof(To));
  }
  return to;
}

/// A value in a type that smdebug's reader knows; others are widened to a type that holds all their values.
struct Readable {
  DType dtype = DType::kInvalid;
  std::span<const std::byte> bytes;
  std::vector<std::byte> own;
};

Readable ForSmdebug(const query::Value& value) {
  Readable out;
  out.dtype = value.dtype;
  const auto take = [&](DType dtype, std::vector<std::byte> bytes) {
    out.dtype = dtype;
    out.own = std::move(bytes);
  };
  switch (value.dtype) {
    case DType::kInt8: take(DType::kInt32, Converted<std::int32_t, std::int8_t>(value.bytes)); break;
    case DType::kInt16: take(DType::kInt32, Converted<std::int32_t, std::int16_t>(value.bytes)); break;
    case DType::kUInt16: take(DType::kInt32, Converted<std::int32_t, std::uint16_t>(value.bytes)); break;
    case DType::kUInt32: take(DType::kInt64, Converted<std::int64_t, std::uint32_t>(value.bytes)); break;
    case DType::kUInt64: out.dtype = DType::kInt64; break;  // the same bits: below 2^63 the same numbers
    case DType::kComplex64: take(DType::kComplex128, Converted<double, float>(value.bytes)); break;
    case DType::kBFloat16:
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E5M2:
    case DType::kFloat8E4M3FNUZ:
    case DType::kFloat8E5M2FNUZ:
    case DType::kFloat8E8M0FNU: {
      const std::size_t count = value.bytes.size() / DTypeSize(value.dtype);
      std::vector<double> wide(count);
      ToFloat64(value.dtype, value.bytes.data(), count, wide.data());
      take(DType::kFloat32, Converted<float, double>(std::as_bytes(std::span(wide))));
      break;
    }
    case DType::kComplex32: out.dtype = DType::kInvalid; break;
    default: break;
  }
  out.bytes = out.own.empty() ? value.bytes : std::span<const std::byte>(out.own);
  return out;
}

class SmdebugExporter final : public Exporter {
 public:
  SmdebugExporter(const OutputFolder& out, const ExportChoice* choice) : out_(out), choice_(choice) {}

  Status Begin(const query::Trial& trial, const ExportState&) override { return WriteCollections(trial); }

  Status Step(const query::Trial& trial, std::size_t n, const query::Trial::StepRows& rows) override {
    const query::StepInfo& info = rows.info;
    if (info.global_step < 0) {
      Remark("a step below 0 has no file name in smdebug's format and is left out");
      return Status::Ok();
    }
    LUFF_RETURN_IF_ERROR(trial.ReadStepContents(n, &contents_));
    InOrder(&contents_.values);
    std::set<std::uint32_t> workers;
    for (const auto& [tensor, worker] : contents_.values) workers.insert(worker);
    for (const auto& row : rows.summaries) workers.insert(row.worker);
    for (const auto& row : rows.scalars) workers.insert(row.worker);
    for (const std::uint32_t worker : workers) LUFF_RETURN_IF_ERROR(WriteStep(trial, rows, worker));
    return Status::Ok();
  }

  Status Flush(ExportState*) override { return Status::Ok(); }

  Status End(const query::Trial& trial, bool over) override {
    LUFF_RETURN_IF_ERROR(WriteCollections(trial));
    return over ? out_.Write(format::kSmdebugEndFile, "") : Status::Ok();
  }

 private:
  static std::string WorkerName(std::uint32_t worker) { return "worker_" + std::to_string(worker); }

  /// An event file that is being written.
  struct Writing {
    std::unique_ptr<OutputFile> file;
    format::SmdebugIndex index;
    std::set<query::TensorId> written;
    std::deque<std::string> names;
  };

  Status Append(Writing* to, const query::StepInfo& info, format::TensorToWrite tensor) {
    tensor.mode_step = info.mode_step;
    tensor.mode = static_cast<int>(info.mode);
    const double wall = static_cast<double>(info.wall_unix_ns) * 1e-9;
    record_.clear();
    format::AppendRecord(format::EncodeSmdebugTensor(wall, info.global_step, tensor),
                         format::RecordFooter::kSmdebug, &record_);
    to->index.tensors.push_back({to->names.emplace_back(tensor.name), to->file->bytes(), record_.size()});
    bytes_ += record_.size();
    return to->file->Append(record_);
  }

  Status AppendNumber(Writing* to, const query::StepInfo& info, const std::string& name, double value) {
    format::TensorToWrite tensor;
    tensor.name = name;
    tensor.dtype = DType::kFloat64;
    tensor.content = std::as_bytes(std::span(&value, 1));
    return Append(to, info, tensor);
  }

  Status AppendValue(Writing* to, const query::Trial& trial, const query::StepInfo& info, query::TensorId id,
                     std::uint32_t worker) {
    const auto value = trial.ReadValue(id, info.global_step, query::Mode::kGlobal, worker);
    const std::string& name = trial.tensor(id).name;
    if (!value.ok()) {
      Remark(std::string(value.status().message()));
      return Status::Ok();
    }
    if (value->bytes.empty()) return Status::Ok();  // smdebug's reader cannot read it, and its hooks omit it
    format::TensorToWrite tensor;
    tensor.name = name;
    const std::int64_t one = 1;
    if (value->dtype == DType::kString) {
      const std::string_view text(reinterpret_cast<const char*>(value->bytes.data()), value->bytes.size());
      tensor.shape = {&one, 1};
      tensor.strings = {&text, 1};
      to->written.insert(id);
      return Append(to, info, tensor);
    }
    const Readable readable = ForSmdebug(*value);
    if (readable.dtype == DType::kInvalid || format::WireOfDType(readable.dtype) == 0) {
      Remark(fmt::format("values of type {} have no counterpart in smdebug's format and are left out: {}",
                         DTypeName(value->dtype), name));
      return Status::Ok();
    }
    if (readable.dtype != value->dtype) {
      Remark(fmt::format("values of type {} are written as {}, which smdebug reads", DTypeName(value->dtype),
                         DTypeName(readable.dtype)));
    }
    tensor.dtype = readable.dtype;
    tensor.shape = value->shape;
    tensor.content = readable.bytes;
    to->written.insert(id);
    return Append(to, info, tensor);
  }

  /// Stores the statistics of a tensor without a value as smdebug stores reductions.
  Status AppendReductions(Writing* to, const query::Trial& trial, const query::StepInfo& info,
                          const query::Trial::SummaryEntry& row) {
    const std::string& name = trial.tensor(row.tensor).name;
    const auto append = [&](std::string_view reduction, bool abs, double value) -> Status {
      return AppendNumber(
          to, info, fmt::format("{}{}{}/{}", format::kSmdebugReductions, abs ? "abs_" : "", reduction, name),
          value);
    };
    const auto saved = trial.SavedReductions(row.tensor, info.global_step, query::Mode::kGlobal, row.worker);
    if (saved.ok() && !saved->empty()) {
      for (const auto& one : *saved) LUFF_RETURN_IF_ERROR(append(one.name, one.abs, one.value));
      return Status::Ok();
    }
    const Summary& s = row.summary;
    // smdebug's reductions cover all elements, so a non-finite one shows in them.
    const double strange = s.nan_count != 0 ? std::nan("") : s.inf_count != 0 ? HUGE_VAL : 0;
    const bool finite = s.nan_count + s.inf_count == 0;
    for (const auto& [reduction, abs, value] : {std::tuple("min", false, s.min(row.dtype)),
                                                {"max", false, s.max(row.dtype)},
                                                {"mean", false, s.mean()},
                                                {"std", false, s.std()},
                                                {"variance", false, s.variance()},
                                                {"sum", false, s.sum},
                                                {"l1", false, s.abs_sum},
                                                {"l2", false, s.l2()},
                                                {"mean", true, s.abs_mean()}}) {
      LUFF_RETURN_IF_ERROR(append(reduction, abs, finite ? value : strange));
    }
    return Status::Ok();
  }

  Status WriteStep(const query::Trial& trial, const query::Trial::StepRows& rows, std::uint32_t worker) {
    const query::StepInfo& info = rows.info;
    const std::string name = WorkerName(worker);
    const std::string event_path = format::SmdebugEventPath(info.global_step, name);
    Writing to;
    LUFF_ASSIGN_OR_RETURN(to.file, out_.Create(event_path));
    for (const auto& [tensor, of] : contents_.values) {
      if (of != worker || !choice_->Takes(tensor, worker)) continue;
      LUFF_RETURN_IF_ERROR(AppendValue(&to, trial, info, tensor, worker));
    }
    for (const auto& [tensor, of, value] : rows.scalars) {
      if (of != worker || !choice_->Takes(tensor, worker) || !to.written.insert(tensor).second) continue;
      LUFF_RETURN_IF_ERROR(AppendNumber(&to, info, trial.tensor(tensor).name, value));
    }
    for (const auto& row : rows.summaries) {
      if (row.worker != worker || !choice_->Takes(row.tensor, worker) || to.written.contains(row.tensor))
        continue;
      LUFF_RETURN_IF_ERROR(AppendReductions(&to, trial, info, row));
    }
    if (to.index.tensors.empty()) return Status::Ok();
    LUFF_RETURN_IF_ERROR(to.file->Commit());
    to.index.mode = info.mode;
    to.index.mode_step = info.mode_step;
    to.index.event_file = event_path;
    const std::string text = format::FormatSmdebugIndex(to.index);
    bytes_ += text.size();
    return out_.Write(format::SmdebugIndexPath(info.global_step, name),
                      text);  // last, when the file that it names exists
  }

  Status WriteCollections(const query::Trial& trial) {
    std::vector<std::uint32_t> workers;
    for (const auto& worker : trial.workers()) {
      if (!choice_->worker || *choice_->worker == worker.worker) workers.push_back(worker.worker);
    }
    if (workers.empty()) workers.push_back(choice_->worker.value_or(0));
    const std::size_t announced =
        choice_->worker ? 1 : std::max<std::size_t>(workers.size(), trial.world_size());
    try {
      std::map<std::string, std::set<std::string>> tensors;
      for (const std::string& name : trial.CollectionNames()) tensors[name];
      for (const Standard& standard : kStandard) tensors[standard.name];
      for (std::size_t id = 0; id < trial.tensor_count(); ++id) {
        const query::TensorInfo& info = trial.tensor(static_cast<query::TensorId>(id));
        if (id >= choice_->wanted.size() || choice_->wanted[id] == 0) continue;
        for (const std::string& name : info.collections) tensors[name].insert(info.name);
        for (const Standard& standard : kStandard) {
          if (info.role == standard.role) tensors[standard.name].insert(info.name);
        }
      }
      Json collections = Json::object();
      for (const auto& [name, members] : tensors) {
        Json regexes = Json::array();
        for (const Standard& standard : kStandard) {
          if (name == standard.name) regexes.push_back(standard.regex);
        }
        collections[name] = {{"name", name},
                             {"include_regex", regexes},
                             {"tensor_names", members},
                             {"reduction_config", nullptr},
                             {"save_config", nullptr},
                             {"save_histogram", false}};
      }
      const Json json = {{"collections", collections}, {"_meta", {{"num_workers", announced}}}};
      const std::string text = AsciiJsonText(json);
      for (const std::uint32_t worker : workers) {
        LUFF_RETURN_IF_ERROR(out_.Write(format::SmdebugCollectionsPath(WorkerName(worker)), text));
      }
      return Status::Ok();
    } catch (const std::exception& error) {
      return Internal(error.what());
    }
  }

  const OutputFolder& out_;
  std::string record_;
  const ExportChoice* choice_;
  query::Trial::StepContents contents_;
};

}  // namespace

std::unique_ptr<Exporter> MakeSmdebugExporter(const OutputFolder& out, const ExportChoice* choice) {
  return std::make_unique<SmdebugExporter>(out, choice);
}

}  // namespace luff::cli
