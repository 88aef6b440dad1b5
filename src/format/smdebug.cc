#include "luff/format/smdebug.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <limits>

#include "base/json_scan.h"
#include "luff/format/names.h"

namespace luff::format {
namespace {

constexpr std::array<std::string_view, kSmdebugReductionCount> kReductionNames = {
    "min", "max", "mean", "std", "variance", "sum", "prod", "l1", "l2"};

std::string Digits(std::int64_t number, int width) {
  char text[32];
  std::snprintf(text, sizeof(text), "%0*lld", width, static_cast<long long>(number));
  return text;
}

bool ParseMeta(JsonScan* scan, SmdebugIndex* to) {
  if (!scan->BeginObject()) return false;
  bool has_mode = false;
  for (std::string_view key; scan->NextKey(&key);) {
    if (key == "mode") {
      std::string_view name;
      if (!scan->String(&name)) return false;
      has_mode = true;
      const auto* const found = std::ranges::find(kModeNames, name);
      if (found == kModeNames.end()) return scan->Fail("one of the modes TRAIN, EVAL, PREDICT and GLOBAL");
      to->mode = static_cast<Mode>(found - kModeNames.begin() + 1);
    } else if (key == "mode_step") {
      std::uint64_t step = 0;
      if (!scan->Natural(&step, "a mode_step that is not negative")) return false;
      to->mode_step = static_cast<std::int64_t>(step);
    } else if (key == "event_file_name") {
      if (scan->Peek() == 'n' ? !scan->Null() : !scan->String(&to->event_file)) return false;
    } else if (!scan->Skip()) {
      return false;
    }
  }
  return !scan->failed() && (has_mode || scan->Fail("\"mode\" in \"meta\""));
}

bool ParseTensor(JsonScan* scan, SmdebugIndex* to) {
  if (!scan->BeginObject()) return false;
  SmdebugIndex::Tensor tensor;
  unsigned seen = 0;
  for (std::string_view key; scan->NextKey(&key);) {
    bool good = true;
    if (key == "tensorname") {
      good = scan->String(&tensor.name);
      seen |= 1;
    } else if (key == "start_idx") {
      good = scan->Natural(&tensor.start, "a start_idx that is not negative");
      seen |= 2;
    } else if (key == "length") {
      good = scan->Natural(&tensor.length, "a length that is not negative");
      seen |= 4;
    } else {
      good = scan->Skip();
    }
    if (!good) return false;
  }
  if (scan->failed()) return false;
  if (seen != 7) return scan->Fail("\"tensorname\", \"start_idx\" and \"length\" of each tensor before here");
  to->tensors.push_back(tensor);
  return true;
}

bool ParseShape(JsonScan* scan, SmdebugIndex* to) {
  if (!scan->BeginObject()) return false;
  SmdebugIndex::Shape shape;
  shape.first = static_cast<std::uint32_t>(to->dims.size());
  for (std::string_view key; scan->NextKey(&key);) {
    bool good = true;
    if (key == "tensorname") {
      good = scan->String(&shape.name);
    } else if (key == "originalname") {
      good = scan->Peek() == 'n' ? scan->Null() : scan->String(&shape.original_name);
    } else if (key == "shape") {
      good = scan->BeginArray();
      while (good && scan->NextElement()) {
        std::uint64_t dim = 0;
        good = scan->Natural(&dim, "a dimension that is not negative");
        to->dims.push_back(static_cast<std::int64_t>(dim));
      }
      good = good && !scan->failed();
    } else {
      good = scan->Skip();
    }
    if (!good) return false;
  }
  if (scan->failed()) return false;
  shape.rank = static_cast<std::uint32_t>(to->dims.size()) - shape.first;
  to->shapes.push_back(shape);
  return true;
}

template <typename One>
bool ParseList(JsonScan* scan, SmdebugIndex* to, One one) {
  if (!scan->BeginArray()) return false;
  while (scan->NextElement()) {
    if (!one(scan, to)) return false;
  }
  return !scan->failed();
}

bool ParseIndex(JsonScan* scan, SmdebugIndex* to) {
  if (!scan->BeginObject()) return false;
  bool has_meta = false;
  bool has_payload = false;
  for (std::string_view key; scan->NextKey(&key);) {
    bool good = true;
    if (key == "meta") {
      good = ParseMeta(scan, to);
      has_meta = true;
    } else if (key == "tensor_payload") {
      good = ParseList(scan, to, ParseTensor);
      has_payload = true;
    } else if (key == "shape_payload") {
      good = ParseList(scan, to, ParseShape);
      has_payload = true;
    } else {
      good = scan->Skip();
    }
    if (!good) return false;
  }
  if (scan->failed()) return false;
  if (!has_meta) return scan->Fail("\"meta\" before here");
  if (!has_payload) return scan->Fail("\"tensor_payload\" or \"shape_payload\" before here");
  return scan->End();
}

}  // namespace

Status ParseSmdebugIndexUntrusted(std::string_view json, SmdebugIndex* to) {
  to->mode = Mode::kGlobal;
  to->mode_step = 0;
  to->event_file = {};
  to->tensors.clear();
  to->shapes.clear();
  to->dims.clear();
  to->unescaped.clear();
  JsonScan scan(json, &to->unescaped);
  if (ParseIndex(&scan, to)) return Status::Ok();
  to->error_at = scan.at();
  return scan.failed() ? scan.status() : Internal("an index file ended early");
}

void AppendPythonJson(std::string_view text, std::string* to) {
  const auto escape = [&](std::uint32_t code) {
    char escaped[8];
    std::snprintf(escaped, sizeof(escaped), "\\u%04x", code);
    *to += escaped;
  };
  *to += '"';
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c == '"' || c == '\\') {
      *to += '\\';
      *to += text[i];
    } else if (c == '\n') {
      *to += "\\n";
    } else if (c == '\r') {
      *to += "\\r";
    } else if (c == '\t') {
      *to += "\\t";
    } else if (c == '\b') {
      *to += "\\b";
    } else if (c == '\f') {
      *to += "\\f";
    } else if (c < 0x20) {
      escape(c);
    } else if (c < 0x80) {
      *to += text[i];
    } else {
      const int more = c >= 0xF0 ? 3 : c >= 0xE0 ? 2 : c >= 0xC0 ? 1 : 0;
      std::uint32_t code = c & (0x3FU >> more);
      bool good = more > 0 && text.size() - i > static_cast<std::size_t>(more);
      for (int k = 1; good && k <= more; ++k) {
        const auto next = static_cast<unsigned char>(text[i + static_cast<std::size_t>(k)]);
        good = (next & 0xC0U) == 0x80U;
        code = code << 6 | (next & 0x3FU);
      }
      constexpr std::uint32_t kLeast[] = {0, 0x80, 0x800, 0x10000};  // by number of further bytes
      const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
      if (!good || code < kLeast[more] || code > 0x10FFFF || surrogate) {
        escape(0xFFFD);
        continue;
      }
      i += static_cast<std::size_t>(more);
      if (code >= 0x10000) {
        escape(0xD800 + ((code - 0x10000) >> 10));
        code = 0xDC00 + ((code - 0x10000) & 0x3FFU);
      }
      escape(code);
    }
  }
  *to += '"';
}

std::string FormatSmdebugIndex(const SmdebugIndex& index) {
  std::string out;
  out.reserve(160 + index.tensors.size() * 96 + index.shapes.size() * 96);
  out += R"({"meta": {"mode": ")";
  out += ModeName(index.mode);
  out += R"(", "mode_step": )" + std::to_string(index.mode_step);
  if (!index.event_file.empty()) {
    out += R"(, "event_file_name": )";
    AppendPythonJson(index.event_file, &out);
  }
  out += "}";
  const auto list = [&](const char* key, const auto& items, const auto& one) {
    out += std::string(", \"") + key + "\": [";
    bool first = true;
    for (const auto& item : items) {
      out += first ? R"({"tensorname": )" : R"(, {"tensorname": )";
      first = false;
      AppendPythonJson(item.name, &out);
      one(item);
      out += "}";
    }
    out += "]";
  };
  list("tensor_payload", index.tensors, [&](const SmdebugIndex::Tensor& tensor) {
    out +=
        ", \"start_idx\": " + std::to_string(tensor.start) + ", \"length\": " + std::to_string(tensor.length);
  });
  list("shape_payload", index.shapes, [&](const SmdebugIndex::Shape& shape) {
    out += ", \"originalname\": ";
    AppendPythonJson(shape.original_name, &out);
    out += ", \"shape\": [";
    for (std::uint32_t i = 0; i < shape.rank; ++i)
      out += (i == 0 ? "" : ", ") + std::to_string(index.dims[shape.first + i]);
    out += "]";
  });
  out += "}";
  return out;
}

std::optional<SmdebugFileName> ParseSmdebugIndexName(std::string_view name) {
  for (const std::string_view end : {".json", ".csv"}) {
    if (!name.ends_with(end)) continue;
    name.remove_suffix(end.size());
    SmdebugFileName parsed;
    const auto [rest, error] = std::from_chars(name.data(), name.data() + name.size(), parsed.step);
    if (error != std::errc() || parsed.step < 0 || name.empty() || name.front() == '-') return std::nullopt;
    const auto digits = static_cast<std::size_t>(rest - name.data());
    if (digits + 1 >= name.size() || name[digits] != '_') return std::nullopt;
    parsed.worker = name.substr(digits + 1);
    return parsed;
  }
  return std::nullopt;
}

std::string SmdebugIndexPath(std::int64_t step, std::string_view worker) {
  return "index/" + Digits(step / 1000, 9) + "/" + Digits(step, 12) + "_" + std::string(worker) + ".json";
}

std::string SmdebugEventPath(std::int64_t step, std::string_view worker) {
  const std::string digits = Digits(step, 12);
  return "events/" + digits + "/" + digits + "_" + std::string(worker) + ".tfevents";
}

std::string SmdebugCollectionsPath(std::string_view worker) {
  return "collections/000000000/" + std::string(worker) + "_collections.json";
}

std::string SmdebugWorkerName(std::string_view in_file_name) {
  std::string name(in_file_name);
  if (!name.starts_with('_')) return name;
  std::replace(name.begin(), name.end(), '_', '/');
  std::replace(name.begin(), name.end(), '-', ':');
  return name;
}

std::string_view SmdebugReductionName(SmdebugReduction reduction) noexcept {
  return kReductionNames[static_cast<std::size_t>(reduction)];
}

std::optional<SmdebugReductionOf> ParseSmdebugReduction(std::string_view name) {
  if (!name.starts_with(kSmdebugReductions)) return std::nullopt;
  name.remove_prefix(kSmdebugReductions.size());
  SmdebugReductionOf parsed;
  if (name.starts_with("abs_")) {
    parsed.abs = true;
    name.remove_prefix(4);
  }
  const std::size_t slash = name.find('/');
  if (slash == std::string_view::npos || slash + 1 == name.size()) return std::nullopt;
  const auto at = std::find(kReductionNames.begin(), kReductionNames.end(), name.substr(0, slash));
  if (at == kReductionNames.end()) return std::nullopt;
  parsed.reduction = static_cast<SmdebugReduction>(at - kReductionNames.begin());
  parsed.tensor = name.substr(slash + 1);
  return parsed;
}

}  // namespace luff::format
