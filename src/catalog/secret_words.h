#pragma once
#include <string>
#include <string_view>
#include <vector>

/// What must not be shown of a command line or a document: values whose names sound like secrets.
namespace luff::catalog {

inline constexpr std::string_view kHidden = "(hidden)";

/// "api_key", "hf-token", "DB_PASSWORD", "authToken"; not "max_tokens", "tokenizer" or "pad_token".
[[nodiscard]] bool SoundsSecret(std::string_view name);

/// A copy in which kHidden stands for the values of options and variables whose names sound like secrets
/// ("--api-key VALUE", "--api-key=VALUE", "API_KEY=VALUE"), and for the password in an address.
[[nodiscard]] std::vector<std::string> WithoutSecrets(std::vector<std::string> words);

}  // namespace luff::catalog
