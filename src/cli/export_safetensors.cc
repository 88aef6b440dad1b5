#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "base/text_escape.h"
#include "cli/export.h"

namespace luff::cli {
namespace {

constexpr std::size_t kMaxRemarks = 20;

/// The format's name for a type; "" if it has none.
const char* SafetensorsType(DType dtype) {
  switch (dtype) {
    case DType::kBool: return "BOOL";
    case DType::kUInt8: return "U8";
    case DType::kInt8: return "I8";
    case DType::kUInt16: return "U16";
    case DType::kInt16: return "I16";
    case DType::kUInt32: return "U32";
    case DType::kInt32: return "I32";
    case DType::kUInt64: return "U64";
    case DType::kInt64: return "I64";
    case DType::kFloat16: return "F16";
    case DType::kBFloat16: return "BF16";
    case DType::kFloat32: return "F32";
    case DType::kFloat64: return "F64";
    case DType::kComplex64: return "C64";
    case DType::kFloat8E4M3FN: return "F8_E4M3";
    case DType::kFloat8E5M2: return "F8_E5M2";
    case DType::kFloat8E8M0FNU: return "F8_E8M0";
    default: return "";
  }
}

/// Returns a name that the format can hold: valid UTF-8, not the reserved name, and unique.
std::string NameFor(const std::string& name, const nlohmann::json& header) {
  std::string one = ValidUtf8(name);
  while (header.contains(one)) one += '_';
  return one;
}

}  // namespace

Result<SafetensorsWritten> ExportSafetensors(const query::Trial& trial, const ExportChoice& choice,
                                             std::size_t n, const std::string& out, Existing existing) {
  query::Trial::StepContents contents;
  LUFF_RETURN_IF_ERROR(trial.ReadStepContents(n, &contents));
  const query::StepInfo info = trial.step_at(n);
  struct Item {
    query::TensorId tensor;
    std::uint32_t worker;
    std::uint64_t bytes;
  };
  std::vector<Item> items;
  std::vector<std::uint8_t> taken(trial.tensor_count(), 0);
  SafetensorsWritten written;
  nlohmann::json header;
  header["__metadata__"] = {{"format", "pt"},
                            {"step", std::to_string(info.global_step)},
                            {"mode", std::string(query::ModeName(info.mode))},
                            {"mode_step", std::to_string(info.mode_step)}};
  std::uint64_t at = 0;
  for (const auto& [tensor, worker] : contents.values) {
    if (!choice.Takes(tensor, worker) || taken[tensor] != 0) continue;
    LUFF_ASSIGN_OR_RETURN(const auto shape,
                          trial.Shape(tensor, info.global_step, query::Mode::kGlobal, worker));
    const char* type = SafetensorsType(shape.dtype);
    if (*type == '\0') continue;
    std::uint64_t bytes = DTypeSize(shape.dtype);
    for (const std::int64_t dim : shape.shape) bytes *= static_cast<std::uint64_t>(dim);
    taken[tensor] = 1;
    const std::string& name = trial.tensor(tensor).name;
    const std::string one = NameFor(name, header);
    if (one != name && written.remarks.size() < kMaxRemarks)
      written.remarks.push_back(
          fmt::format("the format cannot hold the name '{}', it is written as '{}'", name, one));
    header[one] = {{"dtype", type}, {"shape", shape.shape}, {"data_offsets", {at, at + bytes}}};
    items.push_back({tensor, worker, bytes});
    at += bytes;
  }
  if (items.empty()) {
    return OutOfRange(
        fmt::format("no value of what is wanted was saved at {} step {} ({} of all); values are recorded of "
                    "collections whose forms hold \"raw\" (docs/capture.md)",
                    query::ModeName(info.mode), info.mode_step, info.global_step));
  }
  std::string head;
  try {
    head = JsonText(header);
  } catch (const std::exception& error) {
    return Internal(error.what());
  }
  head.resize((head.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = head.size();
  LUFF_ASSIGN_OR_RETURN(const auto file, OutputFile::Create(out, existing));
  LUFF_RETURN_IF_ERROR(file->Append({reinterpret_cast<const char*>(&length), sizeof(length)}));
  LUFF_RETURN_IF_ERROR(file->Append(head));
  for (const Item& item : items) {
    LUFF_ASSIGN_OR_RETURN(const auto value,
                          trial.ReadValue(item.tensor, info.global_step, query::Mode::kGlobal, item.worker));
    if (value.bytes.size() != item.bytes)
      return Corruption("a value has other bytes than its shape: " + trial.path());
    LUFF_RETURN_IF_ERROR(
        file->Append({reinterpret_cast<const char*>(value.bytes.data()), value.bytes.size()}));
  }
  LUFF_RETURN_IF_ERROR(file->Commit());
  written.values = items.size();
  return written;
}

}  // namespace luff::cli
