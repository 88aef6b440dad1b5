#include "catalog/bucket_card.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/hex_id.h"
#include "base/json.h"
#include "catalog/bucket_look.h"

namespace luff::catalog {
namespace {

using Json = nlohmann::json;

constexpr int kCardVersion = 1;
constexpr std::size_t kScalars = 16;
// A text that was cut within a character has grown by the sign that stands for it.
constexpr std::size_t kMaxRead = kMaxText + 8;
constexpr std::size_t kMaxWord = 16;  // of words that Luff chooses

/// How much of a card is kept.
struct Room {
  std::size_t scalars, parameters, versions, words, list, points, text;
  [[nodiscard]] Room Half() const {
    return {scalars / 2, parameters / 2, versions / 2, words / 2, list / 2, points, text / 2};
  }
};

bool Shorten(std::string* text, std::size_t most) {
  if (text->size() <= most) return false;
  text->resize(most < 3 ? 0 : most - 3);
  if (most >= 3) *text += "...";
  return true;
}

bool Shorten(std::vector<std::string>* list, std::size_t most, std::size_t text) {
  const bool cut = list->size() > most;
  if (cut) list->resize(most);
  bool shorter = false;
  for (std::string& one : *list) shorter = Shorten(&one, text) || shorter;
  return cut || shorter;
}

/// A name that was cut would be another name, so what has a long one is left out.
template <typename Map>
bool Thin(Map* map, std::size_t most, std::size_t text) {
  const std::size_t before = map->size();
  std::erase_if(*map, [&](const auto& one) { return one.first.size() > text; });
  while (map->size() > most) map->erase(std::prev(map->end()));
  return map->size() != before;
}

/// Returns true if something was left out.
bool Fit(const Room& room, Card* card) {
  bool cut = false;
  const std::size_t scalars = card->scalars.size();
  std::erase_if(card->scalars, [&](const Scalar& one) { return one.name.size() > room.text; });
  if (card->scalars.size() > room.scalars) card->scalars.resize(room.scalars);
  cut = card->scalars.size() != scalars;
  cut = Thin(&card->parameters, room.parameters, room.text) || cut;
  for (auto& [name, value] : card->parameters) {
    if (auto* text = std::get_if<std::string>(&value)) cut = Shorten(text, room.text) || cut;
  }
  cut = Thin(&card->versions, room.versions, room.text) || cut;
  for (auto& [name, version] : card->versions) cut = Shorten(&version, room.text) || cut;
  cut = Shorten(&card->command, room.words, room.text) || cut;
  for (auto* list : {&card->tags, &card->rules, &card->problems})
    cut = Shorten(list, room.list, room.text) || cut;
  if (card->course.size() > room.points) card->course.resize(room.points);
  for (std::string* text :
       {&card->name, &card->host, &card->framework, &card->sweep, &card->trial, &card->title, &card->note,
        &card->why, &card->headline.rule, &card->headline.tensor, &card->headline.what})
    cut = Shorten(text, room.text) || cut;
  for (std::string* name : {&card->loss, &card->eval_loss}) {
    if (name->size() > room.text) name->clear();
  }
  return cut;
}

std::string TextOf(const Card& card, bool cut) {
  Json json = TryParseJson(ToJson(card));
  json.erase("run");
  if (cut) json["cut"] = true;
  return JsonText(json);
}

// ---- Reading ----

class CardReader {
 public:
  explicit CardReader(const Json& json) : json_(json) {}

  [[nodiscard]] bool good() const noexcept { return good_; }

  std::string Text(const char* name) { return TextIn(json_, name); }
  std::string Word(const Json& object, const char* name) { return TextIn(object, name, kMaxWord); }

  std::string TextIn(const Json& object, const char* name, std::size_t most = kMaxRead) {
    const auto at = object.find(name);
    return at == object.end() ? std::string() : TextOf(*at, most);
  }

  double Real(const Json& object, const char* name) {
    const auto at = object.find(name);
    if (at == object.end()) return 0;
    if (at->is_number()) return at->get<double>();
    if (at->is_string()) {
      const auto& text = at->get_ref<const std::string&>();
      if (text == "NaN") return std::nan("");
      if (text == "Infinity") return HUGE_VAL;
      if (text == "-Infinity") return -HUGE_VAL;
    }
    good_ = false;
    return 0;
  }

  std::int64_t Whole(const Json& object, const char* name, std::int64_t least = 0) {
    const auto at = object.find(name);
    if (at == object.end()) return 0;
    const bool whole =
        at->is_number_integer() && (!at->is_number_unsigned() || at->get<std::uint64_t>() <= INT64_MAX);
    if (!whole || at->get<std::int64_t>() < least) return good_ = false, 0;
    return at->get<std::int64_t>();
  }

  std::vector<std::string> List(const Json& object, const char* name) {
    std::vector<std::string> list;
    for (const Json& one : Member(object, name, Json::value_t::array)) list.push_back(TextOf(one));
    return list;
  }

  /// The member; an empty list or object if there is none.
  const Json& Member(const Json& object, const char* name, Json::value_t type) {
    static const Json list = Json::array();
    static const Json none = Json::object();
    const auto at = object.find(name);
    if (at != object.end() && at->type() == type) return *at;
    good_ = good_ && at == object.end();
    return type == Json::value_t::array ? list : none;
  }

  Parameter ParameterIn(const Json& value) {
    if (value.is_boolean()) return value.get<bool>();
    if (value.is_number()) return value.get<double>();
    return TextOf(value);
  }

  std::string TextOf(const Json& value, std::size_t most = kMaxRead) {
    if (!value.is_string() || value.get_ref<const std::string&>().size() > most)
      return good_ = false, std::string();
    return value.get<std::string>();
  }

 private:
  const Json& json_;
  bool good_ = true;
};

void ReadFindings(const Json& json, CardReader* reader, Card* card) {
  const Json& findings = reader->Member(json, "findings", Json::value_t::object);
  card->findings = static_cast<std::uint64_t>(reader->Whole(findings, "count"));
  card->rules = reader->List(findings, "rules");
  const Json& first = reader->Member(findings, "first", Json::value_t::object);
  card->headline = {reader->TextIn(first, "rule"),   reader->Word(first, "severity"),
                    reader->TextIn(first, "tensor"), reader->Word(first, "mode"),
                    reader->TextIn(first, "what"),   reader->Whole(first, "since_step", INT64_MIN)};
}

void ReadScalars(const Json& json, CardReader* reader, Card* card) {
  for (const Json& one : reader->Member(json, "scalars", Json::value_t::array)) {
    if (!one.is_object()) continue;
    Scalar scalar;
    scalar.name = reader->TextIn(one, "name");
    scalar.eval = reader->TextIn(one, "mode") == "EVAL";
    scalar.count = static_cast<std::uint64_t>(reader->Whole(one, "count"));
    scalar.first = reader->Real(one, "first");
    scalar.last = reader->Real(one, "last");
    scalar.min = reader->Real(one, "min");
    scalar.max = reader->Real(one, "max");
    scalar.last_step = reader->Whole(one, "last_step", INT64_MIN);
    scalar.min_step = reader->Whole(one, "min_step", INT64_MIN);
    scalar.max_step = reader->Whole(one, "max_step", INT64_MIN);
    card->scalars.push_back(std::move(scalar));
  }
}

Card CardIn(const Json& json, CardReader* reader) {
  Card card;
  card.name = reader->Text("name");
  card.run_id = reader->Text("run_id");
  card.host = reader->Text("host");
  card.framework = reader->Text("framework");
  card.command = reader->List(json, "command");
  for (const auto& [name, version] : reader->Member(json, "versions", Json::value_t::object).items())
    card.versions[name] = reader->TextOf(version);
  for (const auto& [name, value] : reader->Member(json, "parameters", Json::value_t::object).items())
    card.parameters[name] = reader->ParameterIn(value);
  card.sweep = reader->Text("sweep");
  card.trial = reader->Text("trial");
  card.tags = reader->List(json, "tags");
  card.title = reader->Text("title");
  card.note = reader->Text("note");
  card.outcome = reader->Word(json, "outcome");
  card.why = reader->Text("why");
  card.verdict = reader->Word(json, "verdict");
  card.begun_unix_ns = reader->Whole(json, "begun_unix_ns");
  card.took_s = reader->Real(json, "took_s");
  const Json& steps = reader->Member(json, "steps", Json::value_t::object);
  for (const char* mode : {"TRAIN", "EVAL", "PREDICT"}) {
    if (steps.contains(mode)) card.steps[mode] = static_cast<std::uint64_t>(reader->Whole(steps, mode));
  }
  card.workers = static_cast<std::uint64_t>(reader->Whole(json, "workers"));
  ReadFindings(json, reader, &card);
  card.loss = reader->Text("loss");
  card.eval_loss = reader->Text("eval_loss");
  ReadScalars(json, reader, &card);
  const Json& course = reader->Member(json, "course", Json::value_t::array);
  for (std::size_t i = 0; i < std::min(course.size(), kCoursePoints); ++i)
    card.course.push_back(course[i].is_number() ? course[i].get<double>() : std::nan(""));
  card.problems = reader->List(json, "problems");
  card.pruned = reader->Word(json, "pruned");
  return card;
}

}  // namespace

std::string BucketCard(const Card& card) {
  Card small = card;
  Room room{kScalars, 64, 16, 64, 32, kCoursePoints, kMaxText};
  bool cut = false;
  while (true) {
    cut = Fit(room, &small) || cut;
    std::string text = TextOf(small, cut);
    // At the last everything is empty, and what is left are names of members.
    if (text.size() <= kMaxBucketCard || room.text == 0) return text;
    room = room.Half();
    if (room.text == 0) room.points = 0;
  }
}

Result<Card> ParseBucketCardUntrusted(std::string_view text) {
  if (text.size() > kMaxBucketCard)
    return Corruption(
        fmt::format("the card has {} bytes, Luff writes at most {}", text.size(), kMaxBucketCard));
  const Json json = TryParseJson(text, {.bytes = kMaxBucketCard, .depth = 6});
  if (!json.is_object()) return Corruption("the card is no JSON object");
  const std::int64_t version = WholeMember(json, "card", 0);
  if (version > kCardVersion)
    return Status(StatusCode::kUnsupportedVersion,
                  fmt::format("the card has version {}, this Luff reads {}; install a later one", version,
                              kCardVersion));
  CardReader reader(json);
  Card card = CardIn(json, &reader);
  const auto& words = VerdictWords();
  if (version != kCardVersion || !IsHexId(card.run_id) || !reader.good() || !std::isfinite(card.took_s) ||
      card.took_s < 0 || std::find(words.begin(), words.end(), card.verdict) == words.end())
    return Corruption("the card has a member that Luff does not write");
  return card;
}

}  // namespace luff::catalog
