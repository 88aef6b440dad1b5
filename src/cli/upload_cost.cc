#include "cli/upload_cost.h"

#include <algorithm>

#include "base/bounded_read.h"
#include "base/format.h"
#include "base/json.h"
#include "cli/reading.h"
#include "cli/report.h"
#include "luff/base/env.h"

namespace luff::cli {
namespace {

constexpr std::uint64_t kMaxBytes = 16 << 20;  // mirror.json names each worker
constexpr std::size_t kMaxUploads = 64;
constexpr double kGb = 1e9;

std::optional<Upload> ReadUpload(const std::string& path, std::string_view format) {
  const auto text = ReadRegular(path, kMaxBytes, 1);
  if (!text.ok()) return {};
  const nlohmann::json json = TryParseJson(*text, {.bytes = kMaxBytes, .depth = 8});
  if (!json.is_object() || TextMember(json, "format") != format) return {};
  const auto number = [&](const char* name) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(0, WholeMember(json, name, 0)));
  };
  return Upload{TextMember(json, "url"), number("requests"), std::min(number("puts"), number("requests")),
                number("sent")};
}

double Requests(const Upload& upload, const BucketPrices& prices) {
  return (static_cast<double>(upload.puts) * prices.per_1000_puts +
          static_cast<double>(upload.requests - upload.puts) * prices.per_1000_gets) /
         1000;
}

double Month(const Upload& upload, const BucketPrices& prices) {
  return static_cast<double>(upload.sent_bytes) / kGb * prices.per_gb_month;
}

std::string MoneyText(double amount) {
  constexpr double kLeast = 0.0001;
  if (amount > 0 && amount < kLeast) return fmt::format("less than ${}", kLeast);
  return amount < 1 ? fmt::format("${:.2g}", amount) : fmt::format("${:.2f}", amount);
}

}  // namespace

std::vector<Upload> UploadsOf(const std::string& run) {
  if (auto copy = ReadUpload(run + "/mirror.json", "luff-mirror")) return {std::move(*copy)};
  std::vector<Upload> uploads;
  const auto names = Env::Real().List(run + "/sync");
  if (!names.ok()) return uploads;
  for (const std::string& name : *names) {
    if (!name.ends_with(".json") || uploads.size() == kMaxUploads) continue;
    if (auto one = ReadUpload(run + "/sync/" + name, "luff-sync")) uploads.push_back(std::move(*one));
  }
  return uploads;
}

std::string UploadText(const Upload& upload, const std::optional<BucketPrices>& prices) {
  std::string text =
      fmt::format("{} ({} puts and lists), {} sent", Plural(upload.requests, "request", "requests"),
                  upload.puts, SizeText(upload.sent_bytes));
  if (prices)
    text += fmt::format("; {} for requests, at most {} a month for what is kept",
                        MoneyText(Requests(upload, *prices)), MoneyText(Month(upload, *prices)));
  return text;
}

Json ToJson(const Upload& upload, const std::optional<BucketPrices>& prices) {
  Json json{{"url", upload.url},
            {"requests", upload.requests},
            {"puts", upload.puts},
            {"sent_bytes", upload.sent_bytes}};
  if (prices) {
    json["requests_cost"] = Requests(upload, *prices);
    json["month_cost_at_most"] = Month(upload, *prices);
  }
  return json;
}

}  // namespace luff::cli
