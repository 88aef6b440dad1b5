#pragma once
#include <nlohmann/json_fwd.hpp>

namespace luff::server {

/// Hides what sounds like a secret in a document of a run: members by their names, and words of command lines
/// (catalog/secret_words.h). For all visitors.
void HideSecrets(nlohmann::ordered_json* document);

}  // namespace luff::server
