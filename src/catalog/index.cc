#include "catalog/index.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/format.h"
#include "base/hex_id.h"
#include "catalog/bucket_card.h"
#include "catalog/card.h"
#include "catalog/fields.h"
#include "catalog/select.h"
#include "luff/store/owner.h"

namespace luff::catalog {
namespace {

constexpr int kVersion = 5;          // raised when cards or tables change
constexpr std::size_t kBatch = 100;  // runs in a transaction: an interrupted refresh keeps what it read

constexpr const char* kTables = R"(
CREATE TABLE IF NOT EXISTS run(id INTEGER PRIMARY KEY, path TEXT UNIQUE NOT NULL, stamp INTEGER NOT NULL, begun INTEGER, took REAL,
                 steps INTEGER, loss REAL, best_loss REAL, verdict TEXT, why TEXT, headline TEXT, findings INTEGER);
CREATE TABLE IF NOT EXISTS card(run INTEGER PRIMARY KEY, json TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS field_name(id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL);
CREATE TABLE IF NOT EXISTS field(run INTEGER, name INTEGER, place INTEGER, number REAL, text TEXT,
                   PRIMARY KEY(run, name, place)) WITHOUT ROWID;
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(text, tokenize='trigram');
CREATE INDEX IF NOT EXISTS run_by_age ON run(begun DESC, path DESC);
)";

std::string HeadlineOf(const Card& card) {
  const Headline& head = card.headline;
  if (head.rule.empty()) return {};
  const std::string step = head.mode == "TRAIN" ? fmt::format("step {}", head.since_step)
                                                : fmt::format("{} step {}", head.mode, head.since_step);
  return head.tensor.empty() ? fmt::format("{} (since {})", head.rule, step)
                             : fmt::format("{} ({}, since {})", head.rule, head.tensor, step);
}

// The runs below a folder, or of a bucket: another one may lie below that.
constexpr const char* kBelow = " WHERE r.path>? AND r.path<? AND (?=0 OR length(CAST(r.path AS BLOB))=?)";
std::vector<Bound> Below(const std::string& folder) {
  const auto bytes = static_cast<std::int64_t>(folder.size() + 1 + kHexIdDigits);
  const bool bucket = !folder.starts_with('/');
  return {folder + "/", folder + "0", bucket ? bytes : std::int64_t{0}, bytes};  // '0' follows '/'
}

std::uint64_t StepsOf(const Card& card) {
  if (const auto train = card.steps.find("TRAIN"); train != card.steps.end()) return train->second;
  std::uint64_t all = 0;
  for (const auto& [mode, count] : card.steps) all += count;
  return all;
}

}  // namespace

Result<Index> Index::Open(const std::string& path) {
  LUFF_ASSIGN_OR_RETURN(Database database, Database::Open(path));
  std::int64_t version = 0;
  {
    LUFF_ASSIGN_OR_RETURN(Statement asked, database.Prepare("PRAGMA user_version"));
    LUFF_ASSIGN_OR_RETURN(const bool row, asked.Row());
    version = row ? asked.Integer(0) : 0;
  }
  if (version != 0 && version != kVersion) return Corruption("the catalog has another version: " + path);
  // All here is read again from the runs, so nothing waits for the disk: a journal keeps the index whole if a
  // process is killed, and one that a lost machine left damaged is made anew.
  LUFF_RETURN_IF_ERROR(
      database.Run("PRAGMA cache_size=-16000; PRAGMA trusted_schema=OFF; PRAGMA synchronous=OFF"));
  if (version == 0) {
    LUFF_RETURN_IF_ERROR(
        database.Run(fmt::format("BEGIN IMMEDIATE; {} PRAGMA user_version={}; COMMIT", kTables, kVersion)));
  }
  return Index(std::move(database));
}

Result<std::int64_t> Index::IdOfName(const std::string& name) {
  LUFF_ASSIGN_OR_RETURN(Statement known, database_.Prepare("SELECT id FROM field_name WHERE name=?"));
  LUFF_ASSIGN_OR_RETURN(const bool row, known.With({name}).Row());
  if (row) return known.Integer(0);
  LUFF_ASSIGN_OR_RETURN(Statement add, database_.Prepare("INSERT INTO field_name(name) VALUES(?)"));
  LUFF_RETURN_IF_ERROR(add.With({name}).Run());
  return database_.LastId();
}

Status Index::Forget(std::int64_t run) {
  for (const char* sql : {"DELETE FROM field WHERE run=?", "DELETE FROM card WHERE run=?",
                          "DELETE FROM words WHERE rowid=?", "DELETE FROM run WHERE id=?"}) {
    LUFF_ASSIGN_OR_RETURN(Statement remove, database_.Prepare(sql));
    LUFF_RETURN_IF_ERROR(remove.With({run}).Run());
  }
  return Status::Ok();
}

Status Index::PutFields(std::int64_t run, const Card& card) {
  LUFF_ASSIGN_OR_RETURN(
      Statement add,
      database_.Prepare("INSERT INTO field(run, name, place, number, text) VALUES(?,?,?,?,?)"));
  std::int64_t place = 0;
  for (const Field& field : FieldsOf(card)) {
    LUFF_ASSIGN_OR_RETURN(const std::int64_t name, IdOfName(field.name));
    const Bound number = field.is_number ? Bound(field.number) : Bound::Null();
    LUFF_RETURN_IF_ERROR(add.With({run, name, place++, number, field.text}).Run());
  }
  return Status::Ok();
}

Status Index::Read(const Question& question, const std::string& run, std::uint64_t stamp) {
  // Asked first: who leaves while the run is read may have written after that.
  const bool judged = store::SupervisorLock::IsTaken(run);
  Card open;
  const Result<Card> read =
      question.open && question.open(run, &open) ? Result<Card>(std::move(open)) : ReadCard(run);
  if (!read.ok()) {
    const StatusCode code = read.status().code();
    const bool no_run = code == StatusCode::kNotFound || code == StatusCode::kFailedPrecondition;
    if (!no_run) notes_.push_back("a run cannot be read: " + std::string(read.status().message()));
    return ForgetPath(run);
  }
  // While somebody writes or judges, the run is read each time.
  const bool settled = read->outcome != "running" && !judged;
  return Put(run, settled ? static_cast<std::int64_t>(stamp) : std::int64_t{0}, *read);
}

Status Index::PutUntrusted(const std::string& url, const BucketRun& run) {
  const std::string path = url + "/" + run.run_id;
  auto card = ParseBucketCardUntrusted(*run.card);
  if (card.ok() && card->run_id != run.run_id) card = Corruption("the card is of another run");
  if (!card.ok()) {
    notes_.push_back(fmt::format("{}: {}/cards/{}", card.status().message(), url, run.run_id));
    return ForgetPath(path);
  }
  card->run = path;
  card->heard_unix_ns = run.heard_unix_ns;
  return Put(path, static_cast<std::int64_t>(run.stamp), *card);
}

Status Index::ForgetPath(const std::string& run) {
  LUFF_ASSIGN_OR_RETURN(Statement known, database_.Prepare("SELECT id FROM run WHERE path=?"));
  LUFF_ASSIGN_OR_RETURN(const bool old, known.With({run}).Row());
  return old ? Forget(known.Integer(0)) : Status::Ok();
}

Status Index::Put(const std::string& run, std::int64_t stamp, const Card& card) {
  LUFF_RETURN_IF_ERROR(ForgetPath(run));
  const Scalar* loss = FindScalar(card, card.loss, false);
  LUFF_ASSIGN_OR_RETURN(
      Statement add,
      database_.Prepare(
          "INSERT INTO run(path, stamp, begun, took, steps, loss, best_loss, verdict, why, headline, "
          "findings) VALUES(?,?,?,?,?,?,?,?,?,?,?)"));
  LUFF_RETURN_IF_ERROR(
      add.With({run, stamp, card.begun_unix_ns, card.took_s, static_cast<std::int64_t>(StepsOf(card)),
                loss != nullptr ? Bound(loss->last) : Bound::Null(),
                loss != nullptr ? Bound(loss->min) : Bound::Null(), card.verdict,
                card.verdict == "damaged" && !card.problems.empty() ? card.problems.front() : card.why,
                HeadlineOf(card), static_cast<std::int64_t>(card.findings)})
          .Run());
  const std::int64_t id = database_.LastId();
  LUFF_ASSIGN_OR_RETURN(Statement keep, database_.Prepare("INSERT INTO card(run, json) VALUES(?,?)"));
  LUFF_RETURN_IF_ERROR(keep.With({id, ToJson(card)}).Run());
  LUFF_ASSIGN_OR_RETURN(Statement words, database_.Prepare("INSERT INTO words(rowid, text) VALUES(?,?)"));
  LUFF_RETURN_IF_ERROR(words.With({id, WordsOf(card)}).Run());
  return PutFields(id, card);
}

Result<Index::KnownRuns> Index::KnownBelow(const std::string& folder) {
  KnownRuns known;
  LUFF_ASSIGN_OR_RETURN(Statement all,
                        database_.Prepare(std::string("SELECT path, id, stamp FROM run r") + kBelow));
  all.With(Below(folder));
  while (true) {
    LUFF_ASSIGN_OR_RETURN(const bool row, all.Row());
    if (!row) return known;
    known.emplace(all.Text(0), Known{all.Integer(1), all.Integer(2)});
  }
}

Status Index::RefreshFrom(const std::string& url, CardSource* source, const Progress& progress,
                          Status* bucket) {
  LUFF_ASSIGN_OR_RETURN(KnownRuns known, KnownBelow(url));
  std::vector<BucketRun> runs;
  for (const auto& [path, one] : known) {
    runs.emplace_back();
    runs.back().run_id = path.substr(url.size() + 1);
    runs.back().stamp = static_cast<std::uint64_t>(one.stamp);
  }
  *bucket = source->Begin(runs);
  std::size_t read = 0;
  for (bool more = bucket->ok(); more;) {
    // A transaction waits for nobody else: what was told is gathered first.
    std::vector<BucketRun> changed;
    while (more && changed.size() < kBatch) {
      auto next = source->Next(&notes_);
      if (!next.ok()) *bucket = next.status();
      more = next.ok() && next->has_value();
      if (!more) break;
      if (const auto at = known.find(url + "/" + (*next)->run_id); at != known.end()) at->second.seen = true;
      if ((*next)->card) changed.push_back(std::move(**next));
    }
    if (changed.empty()) continue;
    LUFF_RETURN_IF_ERROR(database_.Run("BEGIN IMMEDIATE"));
    for (const BucketRun& run : changed) {
      LUFF_RETURN_IF_ERROR(PutUntrusted(url, run));
      if (progress) progress(++read, std::max(read, source->changed()));
    }
    LUFF_RETURN_IF_ERROR(database_.Run("COMMIT"));
  }
  if (!bucket->ok()) return Status::Ok();
  LUFF_RETURN_IF_ERROR(database_.Run("BEGIN IMMEDIATE"));
  for (const auto& [path, one] : known) {
    if (!one.seen) LUFF_RETURN_IF_ERROR(Forget(one.id));
  }
  return database_.Run("COMMIT");
}

Status Index::Refresh(const Question& question, const Found& found, const Progress& progress) {
  LUFF_ASSIGN_OR_RETURN(KnownRuns known, KnownBelow(question.folder));
  std::vector<const FoundRun*> changed;
  for (const FoundRun& run : found.runs) {
    const auto at = known.find(run.path);
    if (at != known.end()) at->second.seen = true;
    if (at != known.end() && at->second.stamp == 0 && question.leave && question.leave(run.path)) continue;
    if (at == known.end() || at->second.stamp != static_cast<std::int64_t>(run.stamp))
      changed.push_back(&run);
  }
  std::vector<std::int64_t> gone;
  for (const auto& [path, one] : known) {
    if (!one.seen && (found.left_out.empty() || StampOf(path) == 0)) gone.push_back(one.id);
  }
  if (changed.empty() && gone.empty()) return Status::Ok();
  for (std::size_t i = 0; i < std::max<std::size_t>(changed.size(), 1); i += kBatch) {
    LUFF_RETURN_IF_ERROR(database_.Run("BEGIN IMMEDIATE"));
    Status done = Status::Ok();
    if (i == 0) {
      for (const std::int64_t id : gone) done = done.ok() ? Forget(id) : done;
    }
    for (std::size_t k = i; done.ok() && k < std::min(i + kBatch, changed.size()); ++k) {
      done = Read(question, changed[k]->path, changed[k]->stamp);
      if (progress) progress(k + 1, changed.size());
    }
    LUFF_RETURN_IF_ERROR(done.ok() ? database_.Run("COMMIT") : done);
  }
  return Status::Ok();
}

Result<std::vector<std::int64_t>> Index::Ids(const std::string& sql, const std::vector<Bound>& bound) {
  LUFF_ASSIGN_OR_RETURN(Statement rows, database_.Prepare(sql));
  rows.With(bound);
  std::vector<std::int64_t> ids;
  while (true) {
    LUFF_ASSIGN_OR_RETURN(const bool row, rows.Row());
    if (!row) return ids;
    ids.push_back(rows.Integer(0));
  }
}

Result<std::vector<std::string>> Index::ValuesOf(std::int64_t run,
                                                 const std::vector<std::vector<std::int64_t>>& names) {
  std::vector<std::string> values;
  if (names.empty()) return values;
  LUFF_ASSIGN_OR_RETURN(Statement texts,
                        database_.Prepare("SELECT text FROM field WHERE run=? AND name=? ORDER BY place"));
  for (const auto& meant : names) {
    std::string value;
    for (const std::int64_t name : meant) {
      if (!value.empty()) break;  // the first that it may stand for
      texts.With({run, name});
      while (true) {
        LUFF_ASSIGN_OR_RETURN(const bool more, texts.Row());
        if (!more) break;
        value += (value.empty() ? "" : " ") + texts.Text(0);
      }
    }
    values.push_back(std::move(value));
  }
  return values;
}

Status Index::Find(const Question& question, Answer* answer) {
  const std::string from = std::string("SELECT id FROM run r") + kBelow;
  const std::vector<Bound> folder = Below(question.folder);
  LUFF_ASSIGN_OR_RETURN(const std::vector<std::int64_t> by_age,
                        Ids(from + " ORDER BY begun DESC, path DESC", folder));
  LUFF_ASSIGN_OR_RETURN(const Selection selection, Select(&database_, question));
  std::vector<Bound> bound = folder;
  bound.insert(bound.end(), selection.bound.begin(), selection.bound.end());
  LUFF_ASSIGN_OR_RETURN(const std::vector<std::int64_t> found,
                        Ids(from + selection.where + selection.order, bound));
  answer->all = by_age.size();
  answer->matching = found.size();
  std::unordered_map<std::int64_t, std::size_t> age;
  for (std::size_t i = 0; i < by_age.size(); ++i) age[by_age[i]] = i + 1;
  std::vector<std::vector<std::int64_t>> names;  // of each field: what it may stand for
  for (const std::string& field : question.fields) {
    names.emplace_back();
    for (const std::string& name : MeantBy(field)) {
      LUFF_ASSIGN_OR_RETURN(const auto ids, Ids("SELECT id FROM field_name WHERE name=?", {name}));
      names.back().insert(names.back().end(), ids.begin(), ids.end());
    }
  }
  LUFF_ASSIGN_OR_RETURN(
      Statement row,
      database_.Prepare(
          "SELECT path, begun, took, steps, loss, best_loss, verdict, why, headline, findings, json "
          "FROM run JOIN card ON card.run=run.id WHERE run.id=?"));
  for (std::size_t i = 0; i < std::min(found.size(), question.limit); ++i) {
    LUFF_ASSIGN_OR_RETURN(const bool there, row.With({found[i]}).Row());
    if (!there) continue;
    Entry entry;
    entry.path = row.Text(0);
    entry.name = entry.path.substr(question.folder.size() + 1);
    entry.age = age[found[i]];
    entry.begun_unix_ns = row.Integer(1);
    entry.took_s = row.Real(2);
    entry.steps = static_cast<std::uint64_t>(row.Integer(3));
    if (!row.IsNull(4)) entry.loss = row.Real(4);
    if (!row.IsNull(5)) entry.best_loss = row.Real(5);
    entry.verdict = row.Text(6);
    entry.why = row.Text(7);
    entry.headline = row.Text(8);
    entry.findings = static_cast<std::uint64_t>(row.Integer(9));
    entry.card = row.Text(10);
    LUFF_ASSIGN_OR_RETURN(entry.fields, ValuesOf(found[i], names));
    answer->entries.push_back(std::move(entry));
  }
  return Status::Ok();
}

}  // namespace luff::catalog
