#include "server/hide_secrets.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "catalog/secret_words.h"

namespace luff::server {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

void HideSecrets(Json* document) {  // as deep as the document, which is bounded
  if (document->is_object()) {
    for (auto& [name, value] : document->items()) {
      if (value.is_string() && catalog::SoundsSecret(name))
        value = catalog::kHidden;
      else
        HideSecrets(&value);
    }
  } else if (document->is_array()) {
    const bool words = std::ranges::all_of(*document, [](const Json& one) { return one.is_string(); });
    if (words && !document->empty())
      *document = catalog::WithoutSecrets(document->get<std::vector<std::string>>());
    else
      for (Json& one : *document) HideSecrets(&one);
  } else if (document->is_string()) {
    *document = catalog::WithoutSecrets({document->get<std::string>()}).front();
  }
}

}  // namespace luff::server
