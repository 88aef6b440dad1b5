#include "catalog/select.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "base/format.h"
#include "base/nearest_names.h"
#include "base/text_escape.h"
#include "catalog/card.h"
#include "catalog/fields.h"

namespace luff::catalog {
namespace {

// Fields of every card, also where no run has one yet.
const std::vector<std::string>& OwnFields() {
  static const std::vector<std::string> names = {
      "name",      "title",   "note",      "run",   "outcome", "verdict",  "why",   "host",
      "framework", "command", "begun",     "took",  "workers", "findings", "steps", "tag",
      "rule",      "loss",    "eval_loss", "sweep", "trial",   "pruned"};
  return names;
}

const char* OpText(Condition::Op op) {
  switch (op) {
    case Condition::Op::kLess: return "<";
    case Condition::Op::kLessEqual: return "<=";
    case Condition::Op::kGreater: return ">";
    case Condition::Op::kGreaterEqual: return ">=";
    default: return "=";
  }
}

class Writer {
 public:
  Writer(Database* database, std::vector<Bound>* bound) : database_(database), bound_(bound) {}

  Result<std::string> Write(const Condition& condition) {
    switch (condition.kind) {
      case Condition::Kind::kAnd: return Joined(condition, " AND ");
      case Condition::Kind::kOr: return Joined(condition, " OR ");
      case Condition::Kind::kNot: {
        LUFF_ASSIGN_OR_RETURN(const std::string part, Write(condition.parts.front()));
        return "NOT " + part;
      }
      case Condition::Kind::kCompare: break;
    }
    return Comparison(condition);
  }

  /// The numbers of a field's names, as a list of SQL: "(3, 17)". `column`: its place in the question, or 0.
  Result<std::string> NumbersOf(const std::string& field, std::size_t column) {
    std::string list;
    for (const std::string& name : MeantBy(field)) {
      LUFF_ASSIGN_OR_RETURN(Statement known, database_->Prepare("SELECT id FROM field_name WHERE name=?"));
      LUFF_ASSIGN_OR_RETURN(const bool row, known.With({name}).Row());
      if (row) list += fmt::format("{}{}", list.empty() ? "" : ", ", known.Integer(0));
    }
    const auto& own = OwnFields();
    if (list.empty() && std::find(own.begin(), own.end(), field) == own.end()) return Unknown(field, column);
    return "(" + list + ")";
  }

 private:
  Result<std::string> Joined(const Condition& condition, std::string_view word) {
    std::string all;
    for (const Condition& part : condition.parts) {
      LUFF_ASSIGN_OR_RETURN(const std::string one, Write(part));
      all += (all.empty() ? "(" : std::string(word)) + one;
    }
    return all + ")";
  }

  Result<std::string> Comparison(const Condition& condition) {
    LUFF_RETURN_IF_ERROR(CheckWord(condition));
    LUFF_ASSIGN_OR_RETURN(const std::string names, NumbersOf(condition.field, condition.column));
    const std::string exists =
        fmt::format("EXISTS(SELECT 1 FROM field f WHERE f.run=r.id AND f.name IN {}", names);
    const bool unequal = condition.op == Condition::Op::kUnequal;
    const std::string test = fmt::format("{} AND {})", exists, Test(condition));
    return unequal ? fmt::format("({}) AND NOT {})", exists, test) : test;
  }

  std::string Test(const Condition& condition) {
    if (condition.op == Condition::Op::kContains) {
      bound_->emplace_back(condition.text);
      return "instr(lower(f.text), lower(?))>0";
    }
    if (condition.is_number) {
      bound_->emplace_back(condition.number);
      bound_->emplace_back(condition.text);
      return fmt::format("(f.number{0}? OR (f.number IS NULL AND f.text{0}? COLLATE NOCASE))",
                         OpText(condition.op));
    }
    bound_->emplace_back(condition.text);
    return fmt::format("f.text{}? COLLATE NOCASE", OpText(condition.op));
  }

  // A typing error in a verdict would select nothing, without a word.
  static Status CheckWord(const Condition& condition) {
    if (condition.field != "verdict" || condition.op == Condition::Op::kContains) return Status::Ok();
    const auto& words = VerdictWords();
    if (std::find(words.begin(), words.end(), condition.text) != words.end()) return Status::Ok();
    return InvalidArgument(fmt::format("there is no verdict '{}'; there are {}", Escaped(condition.text),
                                       fmt::join(words, ", ")));
  }

  Status Unknown(const std::string& field, std::size_t column) {
    std::set<std::string> names(OwnFields().begin(), OwnFields().end());
    LUFF_ASSIGN_OR_RETURN(Statement all, database_->Prepare("SELECT name FROM field_name LIMIT 10000"));
    while (true) {
      LUFF_ASSIGN_OR_RETURN(const bool row, all.Row());
      if (!row) break;
      const std::string name = all.Text(0);
      const std::size_t dot = name.find('.');
      const std::string kind = name.substr(0, dot);
      const bool plain = kind == "parameter" || kind == "scalar";  // may be asked for without its kind
      names.insert(plain ? name.substr(dot + 1) : name);
    }
    const std::vector<std::string> known(names.begin(), names.end());
    const std::string near = NearestText(field, known);
    return InvalidArgument(fmt::format(
        "no run has a field '{}'{}{}", Escaped(field), column > 0 ? fmt::format(" (column {})", column) : "",
        near.empty() ? "; there are loss, steps, verdict and others (docs/spec/catalog.md)" : Escaped(near)));
  }

  Database* database_;
  std::vector<Bound>* bound_;
};

/// Adds the condition that each word of `text` occurs in what is known of the run. The index holds all pieces
/// of three characters; shorter words are looked for in the texts themselves.
void SelectWords(std::string_view text, Selection* selection) {
  std::string phrases;
  std::vector<std::string> shorter;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t end = std::min(text.find_first_of(" \t\n", i), text.size());
    const std::string word(text.substr(i, end - i));
    i = end + 1;
    if (word.empty()) continue;
    const auto characters = std::ranges::count_if(word, [](char c) { return (c & 0xC0) != 0x80; });
    if (characters < 3) {
      shorter.push_back(word);
      continue;
    }
    phrases += phrases.empty() ? "\"" : " AND \"";
    for (const char c : word) phrases += c == '"' ? std::string(2, c) : std::string(1, c);
    phrases += '"';
  }
  if (!phrases.empty()) {
    selection->where += " AND r.id IN (SELECT rowid FROM words WHERE words MATCH ?)";
    selection->bound.emplace_back(phrases);
  }
  for (std::string& word : shorter) {
    selection->where += " AND r.id IN (SELECT rowid FROM words WHERE instr(lower(text), lower(?))>0)";
    selection->bound.emplace_back(std::move(word));
  }
}

}  // namespace

Result<Selection> Select(Database* database, const Question& question) {
  Selection selection;
  SelectWords(question.text, &selection);
  Writer writer(database, &selection.bound);
  for (const std::string& tag : question.tags) {
    Condition has;
    has.field = "tag";
    has.text = tag;
    LUFF_ASSIGN_OR_RETURN(const std::string one, writer.Write(has));
    selection.where += " AND " + one;
  }
  if (question.where) {
    LUFF_ASSIGN_OR_RETURN(const std::string one, writer.Write(*question.where));
    selection.where += " AND " + one;
  }
  const char* direction = question.ascending ? "ASC" : "DESC";
  const char* newest_first = "begun DESC, path DESC";
  if (question.sort == "begun") {
    selection.order =
        question.ascending ? " ORDER BY begun, path" : fmt::format(" ORDER BY {}", newest_first);
    return selection;
  }
  LUFF_ASSIGN_OR_RETURN(const std::string names, writer.NumbersOf(question.sort, 0));
  for (const char* column : {"number", "text"}) {
    selection.order +=
        fmt::format("{} (SELECT f.{} FROM field f WHERE f.run=r.id AND f.name IN {} LIMIT 1) {} NULLS LAST",
                    selection.order.empty() ? " ORDER BY" : ",", column, names, direction);
  }
  selection.order += fmt::format(", {}", newest_first);
  return selection;
}

}  // namespace luff::catalog
