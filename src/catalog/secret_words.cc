#include "catalog/secret_words.h"

#include <algorithm>
#include <array>

namespace luff::catalog {
namespace {

/// "https://user:password@host" -> "https://user:(hidden)@host".
void HidePassword(std::string* word) {
  const std::size_t scheme = word->find("://");
  if (scheme == std::string::npos) return;
  const std::size_t begin = scheme + 3;
  const std::size_t end = std::min(word->find('/', begin), word->size());
  const std::size_t at = word->rfind('@', end - 1);
  const std::size_t colon = word->find(':', begin);
  if (at == std::string::npos || at < begin || colon == std::string::npos || colon > at) return;
  word->replace(colon + 1, at - colon - 1, kHidden);
}

}  // namespace

bool SoundsSecret(std::string_view name) {
  std::string parts;  // "_hf_token_": lower, one underscore between words
  for (const char c : name) {
    const bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (word)
      parts += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    else if (!parts.empty() && parts.back() != '_')
      parts += '_';
  }
  while (parts.ends_with('_')) parts.pop_back();
  // Tokens of a vocabulary are no secrets.
  for (const std::string_view token : {"pad", "eos", "bos", "unk", "mask", "sep", "cls", "special", "per"}) {
    if (parts == std::string(token) + "_token" || parts.ends_with("_" + std::string(token) + "_token"))
      return false;
  }
  if (parts.ends_with("token")) return true;  // and not "token_type_ids"
  constexpr std::array kWords = {"secret",     "password",  "passwd",      "passphrase",
                                 "api_key",    "apikey",    "credential",  "credentials",
                                 "access_key", "accesskey", "private_key", "privatekey"};
  const std::string whole = parts + "_";
  return std::ranges::any_of(kWords, [&](std::string_view word) {
    return whole.find(std::string(word) + "_") != std::string::npos;
  });
}

std::vector<std::string> WithoutSecrets(std::vector<std::string> words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::string& word = words[i];
    HidePassword(&word);
    const std::size_t equals = word.find('=');
    if (equals != std::string::npos) {
      if (SoundsSecret(std::string_view(word).substr(0, equals)))
        word = word.substr(0, equals + 1) + std::string(kHidden);
    } else if (word.starts_with('-') && SoundsSecret(word) && i + 1 < words.size() &&
               !words[i + 1].starts_with("--")) {
      words[++i] = kHidden;
    }
  }
  return words;
}

}  // namespace luff::catalog
