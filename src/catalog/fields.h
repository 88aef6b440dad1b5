#pragma once
#include <string>
#include <vector>

#include "catalog/card.h"

/// What a card is searched and sorted by.
namespace luff::catalog {

struct Field {
  std::string name;
  std::string text;
  bool is_number = false;
  double number = 0;
};

/// Fields of a card, sorted by name; `tag`, `rule` and `version.NAME` may occur several times. Parameters are
/// `parameter.NAME`, scalars `scalar.NAME` (`eval.NAME` for means of evaluations), each also with `.first`,
/// `.min`, `.max`; `loss` and `eval_loss` are those of the main losses.
[[nodiscard]] std::vector<Field> FieldsOf(const Card& card);

/// All texts of a card in which people look for words: names, title, note, tags, command, parameters,
/// verdict, why and the finding that leads. At most kMaxWordsBytes.
[[nodiscard]] std::string WordsOf(const Card& card);
inline constexpr std::size_t kMaxWordsBytes = 4096;

/// Full names that a name in a question may stand for: `lr` is `parameter.lr`, `scalar.lr` or `eval.lr`.
[[nodiscard]] std::vector<std::string> MeantBy(const std::string& name);

}  // namespace luff::catalog
