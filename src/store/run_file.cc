#include "store/run_file.h"

#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/bounded_read.h"
#include "base/json.h"
#include "base/json_number.h"
#include "luff/format/layout.h"
#include "luff/store/reader.h"

namespace luff::store {
namespace {

using Json = nlohmann::json;
constexpr const char* kHex = "0123456789abcdef";
constexpr std::size_t kMaxDepth = 16;

int HexDigit(char c) noexcept {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

std::string FormatRunFile(const RunInfo& info) {
  std::string id;
  for (const std::uint8_t byte : info.run_id) {
    id += kHex[byte >> 4];
    id += kHex[byte & 15];
  }
  try {
    Json json;
    json["format"] = "luff-run";
    json["format_major"] = format::kFormatMajor;
    json["format_minor"] = format::kFormatMinor;
    json["run_id"] = id;
    json["created_unix_ns"] = info.created_unix_ns;
    json["world_size"] = info.world_size;
    Json command = TryParseJson(info.command, {kMaxRunFileBytes, kMaxDepth - 1});
    json["command"] = command.is_discarded() ? Json(nullptr) : std::move(command);
    return JsonText(json, 2) + "\n";
  } catch (const std::exception&) {
    return {};
  }
}

Result<RunInfo> ParseRunFileUntrusted(std::string_view text) {
  if (text.size() > kMaxRunFileBytes) return Corruption("run.json is larger than 1 MiB");
  try {
    const Json json = TryParseJson(text, {kMaxRunFileBytes, kMaxDepth});
    if (!json.is_object() || json.value("format", "") != "luff-run") {
      return Corruption("run.json is no description of a run");
    }
    const auto major = WholeNumber<std::uint32_t>(json.at("format_major"));
    if (major > format::kFormatMajor) {
      return UnsupportedVersion("found a run of format version " + std::to_string(major) +
                                ", this build reads up to " + std::to_string(format::kFormatMajor) +
                                "; use a newer luff");
    }
    RunInfo info;
    const auto id = json.at("run_id").get<std::string>();
    if (id.size() != 32) return Corruption("run.json holds no run id of 32 hexadecimal digits");
    for (std::size_t i = 0; i < 16; ++i) {
      const int high = HexDigit(id[2 * i]);
      const int low = HexDigit(id[2 * i + 1]);
      if (high < 0 || low < 0) return Corruption("run.json holds no run id of 32 hexadecimal digits");
      info.run_id[i] = static_cast<std::uint8_t>(high << 4 | low);
    }
    info.created_unix_ns = WholeNumber<std::int64_t>(json.at("created_unix_ns"));
    info.world_size = WholeNumber<std::uint32_t>(json, "world_size", 1);
    if (json.contains("command") && !json["command"].is_null()) info.command = JsonText(json["command"]);
    return info;
  } catch (const std::exception& error) {
    return Corruption(std::string("run.json: ") + error.what());
  }
}

Result<RunInfo> ReadRunFile(Env& env, const std::string& run_path) {
  auto text = ReadRegular(run_path + "/run.json", kMaxRunFileBytes, 1);
  if (!text.ok()) {
    if (text.status().code() != StatusCode::kNotFound) return text.status();
    if (!env.Exists(run_path)) return NotFound("no such directory: " + run_path);
    std::error_code error;
    if (!std::filesystem::is_directory(run_path, error))
      return FailedPrecondition("found a file, expected the directory of a run: " + run_path);
    return FailedPrecondition("found a directory without run.json, expected a run: " + run_path);
  }
  auto info = ParseRunFileUntrusted(*text);
  if (!info.ok()) return Status(info.status().code(), std::string(info.status().message()) + ": " + run_path);
  return info;
}

Result<std::string> ReadRunId(const std::string& run_path) {
  LUFF_ASSIGN_OR_RETURN(const auto text, ReadRegular(run_path + "/run.json", kMaxRunFileBytes, 1));
  return TextMember(TryParseJson(text, {kMaxRunFileBytes, kMaxDepth}), "run_id");
}

}  // namespace luff::store
