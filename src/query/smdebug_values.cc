#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "luff/base/work_bound.h"
#include "query/smdebug_files.h"
#include "query/smdebug_trial.h"
#include "query/smdebug_with-inl.h"

namespace luff::query {
namespace {

/// Reads a range of a file. Checks that the file has it before allocating memory, since the index file may be
/// wrong.
Result<std::vector<std::byte>> ReadRange(const std::string& root, const std::string& name,
                                         std::uint64_t start, std::uint64_t length) {
  const std::string path = root + "/" + name;
  auto file = OpenFile(root, name);
  if (file.status().code() == StatusCode::kNotFound) {
    return NotFound("found no event file, though its index file is there; copy the folder events too: " +
                    path);
  }
  LUFF_RETURN_IF_ERROR(file.status());
  if (start > (*file)->size() || length > (*file)->size() - start) {
    return Corruption("found an event file of " + std::to_string((*file)->size()) +
                      " bytes, expected at least " + std::to_string(start) + " + " + std::to_string(length) +
                      " by its index file; copy it again from where the job wrote it: " + path);
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(length));
  LUFF_RETURN_IF_ERROR((*file)->ReadAllAt(bytes, start));
  return bytes;
}

Value ValueOf(DType dtype, std::vector<std::int64_t> shape, std::span<const std::byte> bytes) {
  Value value;
  value.dtype = dtype;
  value.shape = std::move(shape);
  // Numbers in a record may be unaligned; those of a value are aligned.
  const std::shared_ptr<std::byte[]> memory(new std::byte[std::max<std::size_t>(1, bytes.size())]);
  std::copy(bytes.begin(), bytes.end(), memory.get());
  value.bytes = {memory.get(), bytes.size()};
  value.owner = memory;
  return value;
}

}  // namespace

Result<Value> SmdebugTrial::ValueOfRecord(const Record& record, std::span<const std::byte> bytes) const {
  const Entry& entry = directory_.entries()[record.entry];
  const auto bad = [&](const std::string& what) {
    return Corruption(what + "; record at byte " + std::to_string(record.start) + ": " +
                      directory_.EventPath(entry));
  };
  const auto parsed = format::ParseRecordUntrusted(bytes, 0);
  if (!parsed.ok()) return bad(std::string(parsed.status().message()));
  auto event = format::ParseEventUntrusted(parsed->payload);
  if (!event.ok()) return bad(std::string(event.status().message()));
  format::EventValue* found = nullptr;
  for (auto& value : event->values) {
    if (value.kind == format::EventValue::Kind::kTensor) found = &value;
  }
  if (found == nullptr) return bad("found a record without a tensor");
  const std::string& name = tensors_[record.tensor].name;
  const std::string_view tail(found->tag.ends_with(name) ? found->tag : std::string_view());
  if (tail.empty() && !name.empty()) {
    return bad("found tensor \"" + std::string(found->tag.substr(0, 200)) + "\", expected \"" + name +
               "\" by the index file");
  }
  format::EventTensor& tensor = found->tensor;
  if (tensor.dtype == DType::kString) {
    // Text has one form, whatever its shape: a JSON array of the strings.
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const std::string_view text : tensor.strings) list.push_back(std::string(text));
    const std::string text = JsonText(list);
    return ValueOf(DType::kString, {static_cast<std::int64_t>(text.size())}, std::as_bytes(std::span(text)));
  }
  if (tensor.dtype == DType::kInvalid)
    return bad("found a tensor of type number " + std::to_string(tensor.wire_dtype) + ", which Luff has not");
  return ValueOf(tensor.dtype, std::move(tensor.shape), tensor.content);
}

Result<Value> SmdebugTrial::ReadRecord(const Record& record) const {
  LUFF_ASSIGN_OR_RETURN(const auto bytes,
                        ReadRange(directory_.path(), directory_.EventName(directory_.entries()[record.entry]),
                                  record.start, record.length));
  return ValueOfRecord(record, bytes);
}

Result<double> SmdebugTrial::ReadReduction(const Record& record) const {
  LUFF_ASSIGN_OR_RETURN(const Value value, ReadRecord(record));
  const std::size_t size = DTypeSize(value.dtype);
  if (value.dtype == DType::kString || size == 0 || value.bytes.size() != size) {
    return Corruption("found a reduction that is not one number: " +
                      directory_.EventPath(directory_.entries()[record.entry]));
  }
  double number = 0;
  ToFloat64(value.dtype, value.bytes.data(), 1, &number);
  return number;
}

Result<Value> SmdebugTrial::ReadValue(TensorId id, std::int64_t step, Mode mode,
                                      std::optional<std::uint32_t> worker) const {
  Value value;
  LUFF_RETURN_IF_ERROR(FirstWith(id, "value", step, mode, worker, [&](const Found& found) -> Result<bool> {
    if (found.value == nullptr) return false;
    LUFF_ASSIGN_OR_RETURN(value, ReadRecord(*found.value));
    return true;
  }));
  return value;
}

Result<Trial::ValueShape> SmdebugTrial::Shape(TensorId id, std::int64_t step, Mode mode,
                                              std::optional<std::uint32_t> worker) const {
  ValueShape shape;
  LUFF_RETURN_IF_ERROR(FirstWith(id, "shape", step, mode, worker, [&](const Found& found) -> Result<bool> {
    shape.worker = directory_.workers()[found.entry->worker].number;
    if (found.value != nullptr) {
      LUFF_ASSIGN_OR_RETURN(Value value, ReadRecord(*found.value));
      shape.dtype = value.dtype;
      shape.shape = std::move(value.shape);
      return true;
    }
    if (found.shape == nullptr) return false;
    const auto dims = directory_.ShapeOf(*found.shape);
    shape.shape.assign(dims.begin(), dims.end());
    return true;
  }));
  return shape;
}

Result<Trial::Stack> SmdebugTrial::ReadStack(TensorId id, Mode mode, std::optional<std::uint32_t> worker,
                                             std::uint64_t max_bytes) const {
  LUFF_RETURN_IF_ERROR(CheckId(id));
  LUFF_RETURN_IF_ERROR(CheckWorker(worker));
  const auto places = StepsWith(id, mode, worker, [](const Record& r) { return r.kind == Kind::kValue; });
  Stack stack;
  std::vector<std::byte> all;
  for (const auto& [n, entry] : places) {
    const std::int64_t step = steps_.key(n, mode);
    if (!stack.steps.empty() && stack.steps.back() == step) continue;  // the value of another worker
    LUFF_RETURN_IF_ERROR(WorkBound::GoOn());
    LUFF_ASSIGN_OR_RETURN(Value value, ReadRecord(*RowsOf(entry, id)->value));
    if (stack.steps.empty()) {
      stack.dtype = value.dtype;
      stack.shape = value.shape;
    } else if (value.dtype != stack.dtype || value.shape != stack.shape) {
      return FailedPrecondition(
          "values of \"" + tensors_[id].name +
          "\" differ in dtype or shape, so they cannot be stacked; read them one by one");
    }
    if (all.size() + value.bytes.size() > max_bytes) {
      return ResourceExhausted("values of " + std::to_string(places.size()) + " steps of " +
                               std::to_string(value.bytes.size()) + " bytes, at most " +
                               std::to_string(max_bytes) + " bytes are stacked at once");
    }
    if (stack.steps.empty() && value.bytes.size() <= max_bytes / std::max<std::size_t>(1, places.size()))
      all.reserve(value.bytes.size() * places.size());
    all.insert(all.end(), value.bytes.begin(), value.bytes.end());
    stack.steps.push_back(step);
  }
  stack.byte_count = all.size();
  auto owner = std::make_shared<std::vector<std::byte>>(std::move(all));
  if (owner->empty()) owner->resize(1);
  stack.bytes = std::shared_ptr<std::byte>(owner, owner->data());
  return stack;
}

}  // namespace luff::query
