#include "cli/config_bucket.h"

#include <array>

namespace luff::cli {
namespace {

constexpr double kMostPrice = 1e6;
constexpr std::size_t kMostRecipients = 16, kMostText = 1024;
constexpr std::array kEncryptions = {"AES256", "aws:kms", "aws:kms:dsse"};

bool IsPlain(const std::string& text) {
  return !text.empty() && text.size() <= kMostText &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return c >= ' ' && c != 127; });
}

Result<double> Price(const toml::key& key, const toml::node& node, const ConfigPlace& place) {
  const auto price = node.value<double>();
  if (!price || !node.is_number() || !(*price >= 0 && *price <= kMostPrice))
    return place.Wrong(node,
                       fmt::format("'{}' in [bucket] is no price from 0 to {:g}", key.str(), kMostPrice));
  return *price;
}

// "x25519:KEY,command:/bin/kms", as the upload takes it, which knows more of them.
Result<std::string> Recipients(const toml::node& node, const ConfigPlace& place) {
  const toml::array* list = node.as_array();
  if (list == nullptr || list->empty() || list->size() > kMostRecipients)
    return place.Wrong(node,
                       "'encrypt_to' in [bucket] is no list of 1 to 16 recipients; write e.g. "
                       "encrypt_to = [\"x25519:...\"], as `luff keys new FILE --encryption` prints it");
  std::string text;
  for (const toml::node& one : *list) {
    const auto recipient = one.value<std::string>();
    const bool kind =
        one.is_string() && (recipient->starts_with("x25519:") || recipient->starts_with("command:"));
    if (!kind || !IsPlain(*recipient) || recipient->find(',') != std::string::npos)
      return place.Wrong(
          one, "a recipient of 'encrypt_to' is x25519:KEY or command:/PATH/OF/PROGRAM, without commas");
    text += (text.empty() ? "" : ",") + *recipient;
  }
  return text;
}

}  // namespace

Result<BucketConfig> ReadBucket(const toml::table& table, const ConfigPlace& place) {
  BucketConfig config;
  BucketPrices prices;
  std::string sse;
  const std::pair<std::string_view, double*> numbers[] = {{"price_per_1000_puts", &prices.per_1000_puts},
                                                          {"price_per_1000_gets", &prices.per_1000_gets},
                                                          {"price_per_gb_month", &prices.per_gb_month}};
  for (const auto& [key, node] : table) {
    const auto number = std::find_if(std::begin(numbers), std::end(numbers),
                                     [&, &name = key](const auto& one) { return one.first == name.str(); });
    if (number != std::end(numbers)) {
      LUFF_ASSIGN_OR_RETURN(*number->second, Price(key, node, place));
      config.prices = prices;
    } else if (key == "encrypt_to") {
      LUFF_ASSIGN_OR_RETURN(std::string recipients, Recipients(node, place));
      config.environment.emplace_back("LUFF_BUCKET_ENCRYPT_TO", std::move(recipients));
    } else if (key == "sse") {
      const auto text = node.value<std::string>();
      if (!node.is_string() || std::ranges::find(kEncryptions, *text) == kEncryptions.end())
        return place.Wrong(node,
                           fmt::format("'sse' in [bucket] is none of {}", fmt::join(kEncryptions, ", ")));
      sse = *text;
      config.environment.emplace_back("AWS_SERVER_SIDE_ENCRYPTION", sse);
    } else if (key == "sse_kms_key_id") {
      const auto text = node.value<std::string>();
      if (!node.is_string() || !IsPlain(*text))
        return place.Wrong(node, "'sse_kms_key_id' in [bucket] is no id or ARN of a key");
      config.environment.emplace_back("AWS_SSE_KMS_KEY_ID", *text);
    } else if (key == "sse_bucket_key_enabled") {
      const auto wanted = node.value<bool>();
      if (!node.is_boolean())
        return place.Wrong(node, "'sse_bucket_key_enabled' in [bucket] is not true or false");
      config.environment.emplace_back("AWS_SSE_BUCKET_KEY_ENABLED", *wanted ? "true" : "false");
    } else {
      return place.Unknown(key, "in [bucket]",
                           {"price_per_1000_puts", "price_per_1000_gets", "price_per_gb_month", "sse",
                            "sse_kms_key_id", "sse_bucket_key_enabled", "encrypt_to"});
    }
  }
  for (const char* key : {"sse_kms_key_id", "sse_bucket_key_enabled"}) {
    if (const toml::node* node = table.get(key); node != nullptr && !sse.starts_with("aws:kms"))
      return place.Wrong(*node, fmt::format("'{}' in [bucket] needs sse = \"aws:kms\"", key));
  }
  return config;
}

Status CheckEncryptionBy(const Variables& environment, const std::string& url) {
  const bool sse = std::ranges::any_of(
      environment, [](const auto& one) { return one.first == "AWS_SERVER_SIDE_ENCRYPTION"; });
  if (!sse || url.starts_with("s3://")) return Status::Ok();
  return InvalidArgument("'sse' in [bucket] is for s3://BUCKET, and says nothing to " + url +
                         "; leave it out, and let the store encrypt by its own settings");
}

}  // namespace luff::cli
