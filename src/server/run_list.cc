#include "server/run_list.h"

#include <algorithm>
#include <ctime>
#include <set>

#include <sodium.h>
#include <nlohmann/json.hpp>

#include "base/bounded_read.h"
#include "base/format.h"
#include "base/json.h"
#include "catalog/card.h"
#include "catalog/walk.h"
#include "luff/base/env.h"
#include "luff/store/trainings.h"
#include "server/brief.h"
#include "server/hide_secrets.h"

namespace luff::server {
namespace {

constexpr std::size_t kIdLetters = 32, kMaxPage = 1000, kMaxRows = 10'000, kMaxFields = 16;
constexpr std::uint64_t kMaxIdentity = 16 << 20;  // of run.json

bool IsId(std::string_view text) {
  return text.size() == kIdLetters && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string IdOfPath(const std::string& path) {
  unsigned char hash[kIdLetters / 2];
  crypto_generichash(hash, sizeof(hash), reinterpret_cast<const unsigned char*>(path.data()), path.size(),
                     nullptr, 0);
  std::string text;
  for (const unsigned char byte : hash) text += fmt::format("{:02x}", byte);
  return text;
}

/// The run's own id from its card; "" if it has none.
std::string OwnId(const std::string& card) {
  std::string id = TextMember(TryParseJson(card), "run_id");
  return IsId(id) ? id : "";
}

/// What is said of a directory that is gone or cannot be read; "" for other errors. The others are still
/// shown.
std::string RootNote(const std::string& root, const Status& why) {
  if (why.code() == StatusCode::kNotFound) {
    return fmt::format(
        "{} is gone. Its runs come back with it; to serve other directories, start luff serve with them.",
        root);
  }
  if (why.code() != StatusCode::kIo) return {};
  return fmt::format("{} cannot be read ({}). Let the user who runs luff serve read it.", root,
                     why.message());
}

std::int64_t ThreadCpuNs() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<std::int64_t>(used.tv_sec) * 1'000'000'000 + used.tv_nsec;
}

/// The card with `id` and `place`.
std::string CardText(const ListedRun& run) {
  nlohmann::ordered_json card = TryParseOrderedJson(run.card);
  if (!card.is_object()) card = nlohmann::ordered_json::object();
  HideSecrets(&card);
  card["id"] = run.id;
  card["place"] = run.name;
  return JsonText(card);
}

/// fields=lr,tag
std::vector<std::string> FieldsIn(const Request& request) {
  std::vector<std::string> fields;
  std::string_view text = request.Parameter("fields");
  while (!text.empty()) {
    const std::string_view field = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), field.size() + 1));
    if (!field.empty()) fields.emplace_back(field);
  }
  return fields;
}

/// Whether a directory that is served is a run itself: it may have become one since.
bool IsRun(const std::string& root) { return catalog::StampOf(root) != 0; }

/// Whether a path that a run names is that of another training of its job: RUN-2, RUN-3, ...
bool IsBeside(const std::string& path, const std::string& run) {
  return path.size() > run.size() + 1 && path.starts_with(run) && path[run.size()] == '-' &&
         path.find_first_not_of("0123456789", run.size() + 1) == std::string::npos;
}

}  // namespace

Result<ListedRun> DescribeRun(const std::string& path) {
  LUFF_ASSIGN_OR_RETURN(const catalog::Card card, catalog::ReadCard(path));
  ListedRun run{"", path, card.name, catalog::ToJson(card)};
  run.id = OwnId(run.card);
  if (run.id.empty()) run.id = IdOfPath(path);
  return run;
}

Result<DirectoryId> PlaceOf(const ListedRun& run) {
  auto place = DirectoryAt(run.path, run.below);
  if (!place.ok() && place.status().code() == StatusCode::kCorruption)
    return NotFound("a link has taken the place of the run: " + run.path);
  return place;
}

bool IsStill(const ListedRun& run) {
  const std::string id = OwnId(run.card);
  if (id.empty()) return true;  // nothing says which run it is
  const auto text = ReadRegular(run.path + "/run.json", kMaxIdentity, 1);
  return text.ok() && OwnId(*text) == id;
}

std::size_t RunList::NamesBelow(const std::string& path) const {
  for (const std::string& root : roots_) {
    if (path == root) return 0;
    if (path.starts_with(root + "/"))
      return static_cast<std::size_t>(std::ranges::count(path.substr(root.size()), '/'));
  }
  return 1;  // beside a run that is served by itself
}

Result<catalog::Answer> RunList::Ask(catalog::Question question) {
  question.leave = [&](const std::string& run) { return patience_.Leave(run, Env::Real().NowMonotonicNs()); };
  if (open_) {
    question.open = [&](const std::string& path, catalog::Card* card) {
      std::optional<ListedRun> listed;
      {
        const MutexLock lock(mutex_);
        if (const auto at = by_path_.find(path); at != by_path_.end()) listed = at->second;
      }
      return listed && open_(*listed, card);
    };
  }
  std::size_t read = 0;
  const std::int64_t before = ThreadCpuNs();
  auto answer = catalog::Ask(index_, question, [&](std::size_t done, std::size_t) { read = done; });
  patience_.Spent(ThreadCpuNs() - before, read);
  return answer;
}

Result<bool> RunList::Refresh() {
  struct Found {
    std::string name, card;
  };
  std::map<std::string, Found> cards;  // by path
  for (const std::string& root : roots_) {
    if (IsRun(root)) {
      std::vector<std::string> job = {root};  // with the runs of its other trainings, and of earlier parts
      for (store::Training& training : store::ReadTrainings(root, 0)) {
        if (IsBeside(training.run, root)) job.push_back(std::move(training.run));
      }
      for (const std::string& run : job) {
        const auto card = catalog::ReadCard(run);
        if (card.ok()) cards.insert_or_assign(run, Found{card->name, catalog::ToJson(*card)});
      }
      continue;
    }
    catalog::Question question;
    question.folder = root;
    question.limit = SIZE_MAX;
    auto answer = Ask(question);
    if (!answer.ok() && RootNote(root, answer.status()).empty()) return answer.status();
    if (!answer.ok()) continue;  // List() says it
    for (catalog::Entry& entry : answer->entries)
      cards.emplace(std::move(entry.path), Found{std::move(entry.name), std::move(entry.card)});
  }
  const MutexLock lock(mutex_);
  bool changed = cards.size() != by_path_.size();
  std::map<std::string, ListedRun> next;
  std::map<std::string, std::string, std::less<>> paths;
  for (auto& [path, found] : cards) {
    const auto known = by_path_.find(path);
    ListedRun run;
    if (known != by_path_.end() && known->second.card == found.card) {
      run = std::move(known->second);
    } else {
      changed = true;
      run = {OwnId(found.card), path, std::move(found.name), std::move(found.card)};
      run.brief = BriefOf(run.card);
      run.below = NamesBelow(path);
    }
    // A copy of a run has the same id: the first path keeps it.
    if (run.id.empty() || paths.contains(run.id)) run.id = IdOfPath(path);
    paths.emplace(run.id, path);
    next.emplace(path, std::move(run));
  }
  by_path_ = std::move(next);
  path_of_ = std::move(paths);
  return changed;
}

std::vector<ListedRun> RunList::All() const {
  const MutexLock lock(mutex_);
  std::vector<ListedRun> runs;
  for (const auto& [path, run] : by_path_) runs.push_back(run);
  return runs;
}

std::optional<ListedRun> RunList::Find(std::string_view id) const {
  const MutexLock lock(mutex_);
  const auto path = path_of_.find(id);
  if (path == path_of_.end()) return std::nullopt;
  return by_path_.at(path->second);
}

bool RunList::Holds(const std::string& path, const std::string& card) const {
  const MutexLock lock(mutex_);
  const auto at = by_path_.find(path);
  return at != by_path_.end() && at->second.card == card;
}

std::size_t RunList::CountOf(const std::string& root, const Visitor* visitor) const {
  const MutexLock lock(mutex_);
  return static_cast<std::size_t>(std::ranges::count_if(by_path_, [&](const auto& one) {
    return one.first.starts_with(root + "/") &&
           (visitor == nullptr || visitor->May(Role::kViewer, one.first));
  }));
}

Response RunList::Fields(const Visitor& visitor) const {
  std::set<std::string> names = {"name",      "title", "outcome", "verdict", "host",
                                 "framework", "tag",   "rule",    "workers"};
  {
    const MutexLock lock(mutex_);
    for (const auto& [path, run] : by_path_) {
      if (!visitor.May(Role::kViewer, path)) continue;
      const nlohmann::json card = TryParseJson(run.card);
      for (const auto& [member, prefix] : {std::pair("parameters", ""), std::pair("versions", "version.")}) {
        if (!card.is_object() || !card.contains(member) || !card[member].is_object()) continue;
        for (const auto& [name, value] : card[member].items()) names.insert(prefix + name);
      }
    }
  }
  return {.body = JsonText(nlohmann::json{{"fields", names}})};
}

Response RunList::List(const Request& request, const Visitor& visitor) {
  catalog::Question question;
  if (const std::string_view where = request.Parameter("where"); !where.empty()) {
    auto condition = catalog::ParseCondition(where);
    if (!condition.ok()) return ProblemOf(condition.status());
    question.where = std::move(*condition);
  }
  for (const auto& [name, value] : request.query) {
    if (name == "tag") question.tags.push_back(value);
  }
  const std::string sort =
      request.Parameter("sort").empty() ? "-begun" : std::string(request.Parameter("sort"));
  question.ascending = !sort.starts_with('-');
  question.sort = question.ascending ? sort : sort.substr(1);
  const auto limit = NumberIn<std::size_t>(request, "limit", 200);
  if (!limit.ok()) return ProblemOf(limit.status());
  const auto after = NumberIn<std::size_t>(request, "after", 0);
  if (!after.ok()) return ProblemOf(after.status());
  const bool brief = request.Parameter("brief") == "1";
  question.fields = FieldsIn(request);
  if (question.fields.size() > kMaxFields)
    return Problem(400, "Bad request", fmt::format("an answer has at most {} fields", kMaxFields));
  const std::size_t last = std::min(*after, SIZE_MAX / 2) + std::min(*limit, brief ? kMaxRows : kMaxPage);
  question.limit = roots_.size() == 1 && !visitor.restricted() ? last : SIZE_MAX;

  std::vector<catalog::Answer> answers;
  std::vector<std::string> folders;  // of the answers
  bool stale = false;                // also where a run is served by itself, which is read each time
  for (const std::string& root : roots_) {
    if (IsRun(root)) {
      stale = true;
      continue;
    }
    question.folder = root;
    auto answer = Ask(question);
    stale = stale || (answer.ok() ? answer->all : 0) != CountOf(root, nullptr);  // runs are new, or gone
    if (!answer.ok()) {
      catalog::Answer none;
      none.notes.push_back(RootNote(root, answer.status()));
      if (none.notes.front().empty()) return ProblemOf(answer.status());
      answers.push_back(std::move(none));
      folders.push_back(root);
      continue;
    }
    if (visitor.restricted()) {  // neither counts nor notes speak of what is elsewhere
      std::erase_if(answer->entries,
                    [&](const catalog::Entry& one) { return !visitor.May(Role::kViewer, one.path); });
      answer->matching = answer->entries.size();
      answer->notes.clear();
    }
    answers.push_back(std::move(*answer));
    folders.push_back(root);
  }
  const auto is_new = [&](const catalog::Entry& entry) { return !Holds(entry.path, entry.card); };
  if (stale || std::ranges::any_of(
                   answers, [&](const auto& one) { return std::ranges::any_of(one.entries, is_new); })) {
    if (const auto changed = Refresh(); !changed.ok()) return ProblemOf(changed.status());
  }
  for (std::size_t i = 0; visitor.restricted() && i < answers.size(); ++i)
    answers[i].all = CountOf(folders[i], &visitor);
  return Page(answers, *after, last, request, visitor);
}

Response RunList::Page(const std::vector<catalog::Answer>& answers, std::size_t first, std::size_t last,
                       const Request& request, const Visitor& visitor) const {
  nlohmann::ordered_json notes = nlohmann::ordered_json::array();
  std::size_t place = 0;
  const MutexLock lock(mutex_);
  const bool brief = request.Parameter("brief") == "1";
  const catalog::Entry none;
  std::string rows;
  const auto put = [&](const ListedRun& run, const catalog::Entry& entry) {
    if (place++ < first || place > last) return;
    rows += rows.empty() ? "" : ",";
    rows += brief ? RowOf(run, entry.fields) : CardText(run);
  };
  for (const std::string& root : roots_) {  // runs that are served by themselves
    const auto at = by_path_.find(root);
    if (at != by_path_.end() && visitor.May(Role::kViewer, root)) put(at->second, none);
  }
  std::size_t matching = place;
  std::size_t all = place;
  if (place > 0 && !request.Parameter("where").empty())
    notes.push_back("a run that is served by itself is shown whatever the filter");
  for (const catalog::Answer& answer : answers) {
    matching += answer.matching;
    all += answer.all;
    for (const std::string& note : answer.notes) notes.push_back(note);
    for (const catalog::Entry& entry : answer.entries) {
      if (const auto at = by_path_.find(entry.path); at != by_path_.end()) put(at->second, entry);
    }
  }
  return {.body = fmt::format(R"({{"runs":[{}],"matching":{},"all":{},"notes":{}}})", rows, matching, all,
                              JsonText(notes))};
}

}  // namespace luff::server
