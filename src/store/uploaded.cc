#include "store/uploaded.h"

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "luff/base/env.h"
#include "store/owned_folder.h"

namespace luff::store {
namespace {

constexpr std::uint64_t kMaxBytes = 1 << 20;
constexpr char kFolder[] = "sync", kName[] = "uploaded.json";

}  // namespace

Result<Uploaded> ParseUploadedUntrusted(std::string_view text, std::uint32_t worker) {
  const nlohmann::json json = TryParseJson(text, {.bytes = kMaxBytes, .depth = 4});
  if (!json.is_object() || TextMember(json, "format") != "luff-uploaded" ||
      WholeMember(json, "version", -1) != 1)
    return Corruption("this does not say what was uploaded");
  Uploaded uploaded;
  uploaded.url = TextMember(json, "url");
  uploaded.unix_ns = WholeMember(json, "unix_ns", 0);
  const std::int64_t keep = WholeMember(json, "keep_bytes", -1);
  const auto listed = json.find("payload");
  if (keep < 0 || listed == json.end() || !listed->is_array())
    return Corruption("it is not said what is to be kept, or what was uploaded");
  uploaded.keep_bytes = static_cast<std::uint64_t>(keep);
  for (const nlohmann::json& one : *listed) {
    if (!one.is_array() || one.size() != 3 || !one[0].is_number_unsigned() || !one[1].is_number_unsigned() ||
        !one[2].is_number_unsigned())
      return Corruption("an entry of what was uploaded is none");
    if (one[0].get<std::uint64_t>() != worker || one[1].get<std::uint64_t>() > UINT32_MAX) continue;
    uploaded.payload[one[1].get<std::uint32_t>()] = one[2].get<std::uint64_t>();
  }
  return uploaded;
}

Result<Uploaded> ReadUploaded(const std::string& run_path, std::uint32_t worker) {
  if (!Env::Real().Exists(run_path + "/" + kFolder + "/" + kName))
    return NotFound("no upload says what it has uploaded");
  LUFF_ASSIGN_OR_RETURN(const OwnedFolder run, OwnedFolder::Open(run_path));
  LUFF_ASSIGN_OR_RETURN(const OwnedFolder folder, run.Below(kFolder));
  LUFF_ASSIGN_OR_RETURN(const std::string text, folder.Read(kName, kMaxBytes));
  return ParseUploadedUntrusted(text, worker);
}

}  // namespace luff::store
