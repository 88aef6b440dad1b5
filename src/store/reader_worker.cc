#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "luff/base/env.h"
#include "luff/store/reader.h"
#include "store/live_page.h"
#include "store/paths.h"
#include "store/read_cache.h"
#include "store/reader_file.h"
#include "store/reader_tail.h"
#include "store/segment_holes.h"
#include "store/uploaded.h"

namespace luff::store {
namespace {

// How often the directory is checked even if the live page shows nothing new.
constexpr std::int64_t kScanEveryNs = 500'000'000;
// A directory changed so recently may change again in the same tick.
constexpr std::int64_t kFreshFolderNs = 2'000'000'000;
constexpr std::size_t kMaxProblems = 100;
constexpr std::uint32_t kLooseKinds = 1U << static_cast<unsigned>(format::FrameKind::kDocument) |
                                      1U << static_cast<unsigned>(format::FrameKind::kGapRows) |
                                      1U << static_cast<unsigned>(format::FrameKind::kAck) |
                                      1U << static_cast<unsigned>(format::FrameKind::kEnd) |
                                      1U << static_cast<unsigned>(format::FrameKind::kRelocate) |
                                      1U << static_cast<unsigned>(format::FrameKind::kRetire);

std::int64_t ModifiedNs(const std::string& path) noexcept {
  struct stat info{};
  if (stat(path.c_str(), &info) != 0) return -1;
  return static_cast<std::int64_t>(info.st_mtim.tv_sec) * 1'000'000'000 + info.st_mtim.tv_nsec;
}

bool InBucket(std::uint32_t reason) noexcept {
  return reason == static_cast<std::uint32_t>(format::GapReason::kUploaded);
}

std::uint64_t DefKey(std::uint32_t epoch, std::uint32_t id) noexcept {
  return std::uint64_t{epoch} << 32 | id;
}

}  // namespace

Status CheckOwner(const format::FileHeader& header, const RunInfo& run, std::uint32_t worker) {
  if (std::memcmp(header.run_id, run.run_id.data(), sizeof(header.run_id)) != 0)
    return Corruption("found a file of another run");
  if (header.worker != worker) {
    return Corruption("found a file of worker " + std::to_string(header.worker) + ", expected worker " +
                      std::to_string(worker));
  }
  return Status::Ok();
}

WorkerReader::~WorkerReader() = default;

Result<std::unique_ptr<WorkerReader>> WorkerReader::Open(const std::string& folder, std::uint32_t worker,
                                                         const RunInfo& run, const ReaderOptions& options,
                                                         std::shared_ptr<ReadCache> cache) {
  std::unique_ptr<WorkerReader> reader(new WorkerReader());
  reader->folder_ = folder;
  reader->worker_ = worker;
  reader->run_ = run;
  reader->options_ = options;
  reader->cache_ = cache != nullptr ? std::move(cache) : std::make_shared<ReadCache>();
  reader->cache_file_ = ReadCache::NewFile();
  reader->heartbeat_ = run.created_unix_ns;
  LUFF_RETURN_IF_ERROR(reader->Refresh().status());
  return reader;
}

void WorkerReader::Problem(std::string text) {
  if (problems_.size() < kMaxProblems &&
      std::find(problems_.begin(), problems_.end(), text) == problems_.end()) {
    problems_.push_back(std::move(text));
  }
}

void WorkerReader::OpenLive() {
  live_.reset();
  if (options_.use_live_page) live_ = LivePageReader::Open(folder_, worker_, run_);
}

bool WorkerReader::ReadLive(std::uint64_t* position, std::uint32_t* changes) {
  if (!live_) return false;
  const auto news = live_->Read();
  if (!news) {
    live_.reset();  // removed or truncated; the frames are followed instead
    return false;
  }
  *position = news->meta_position;
  *changes = news->changes;
  return true;
}

Liveness WorkerReader::liveness() const {
  Liveness result{heartbeat_, std::nullopt};
  if (live_) {
    if (const auto news = live_->Read())
      result.heartbeat_unix_ns = std::max(heartbeat_, news->heartbeat_unix_ns);
    result.process_exists = live_->WriterRuns();
    if (result.process_exists.value_or(false)) result.pid = live_->pid();
  }
  return result;
}

Result<bool> WorkerReader::Refresh(bool thorough) {
  Env& env = Env::Real();
  const std::int64_t now = env.NowMonotonicNs();
  const bool check = thorough || folder_mtime_ns_ < 0 || now - checked_monotonic_ns_ > kScanEveryNs;
  bool news = false;
  std::uint64_t position = 0;
  std::uint32_t changes = 0;
  if (!check && ReadLive(&position, &changes)) {
    if (position == live_position_ && changes == live_changes_) return false;
    const bool same_file =
        !segments_.empty() && segments_.back()->sequence() == format::PositionSequence(position);
    if (same_file && changes == live_changes_ && !segments_.back()->sealed()) {
      live_position_ = position;
      return PollTail(format::PositionLength(position));
    }
    live_position_ = position;
    live_changes_ = changes;
    LUFF_ASSIGN_OR_RETURN(news, ScanFolder());
    return news;
  }
  checked_monotonic_ns_ = now;
  static_cast<void>(ReadLive(&live_position_, &live_changes_));
  const std::int64_t modified = ModifiedNs(folder_);
  const std::int64_t age = env.NowUnixNs() - modified;
  if (modified != folder_mtime_ns_ || (age < kFreshFolderNs && age > -kFreshFolderNs)) {
    folder_mtime_ns_ = modified;
    LUFF_ASSIGN_OR_RETURN(news, ScanFolder());
    return news;
  }
  return PollAllOfTail();
}

/// What the live page tells of is read first: it is known to be whole.
bool WorkerReader::PollAllOfTail() {
  bool news = false;
  if (live_ && !segments_.empty() && segments_.back()->sequence() == format::PositionSequence(live_position_))
    news = PollTail(format::PositionLength(live_position_));
  return PollTail(~std::uint64_t{0}) || news;
}

bool WorkerReader::PollTail(std::uint64_t limit) {
  if (segments_.empty() || segments_.back()->sealed()) return false;
  SegmentReader& tail = *segments_.back();
  const auto polled = tail.Poll(limit, live_ == nullptr);
  if (!polled.ok()) {
    Problem(std::string(polled.status().message()));
    return false;
  }
  if (*polled) TakeInSegment(tail, false);
  return *polled;
}

Result<bool> WorkerReader::ScanFolder() {
  OpenLive();
  static_cast<void>(ReadLive(&live_position_, &live_changes_));
  auto names = Env::Real().List(folder_);
  if (!names.ok()) {
    if (segments_.empty()) return names.status();
    Problem(std::string(names.status().message()));  // the folder was removed; open files stay readable
    return false;
  }
  std::map<std::uint64_t, std::uint32_t> files;  // sequence, highest generation
  for (const std::string& name : *names) {
    const auto parsed = ParseStreamFileName(name);
    if (!parsed || !parsed->meta) continue;
    std::uint32_t& generation = files[parsed->sequence];
    generation = std::max(generation, parsed->generation);
  }
  // The previous tail may have grown before the next file was created.
  bool news = PollAllOfTail();
  std::vector<SegmentReader*> fresh;
  for (const auto& [sequence, generation] : files) {
    const auto at =
        std::lower_bound(segments_.begin(), segments_.end(), sequence,
                         [](const auto& segment, std::uint64_t key) { return segment->sequence() < key; });
    const bool known = at != segments_.end() && (*at)->sequence() == sequence;
    if (known && (*at)->generation() >= generation) continue;
    std::shared_ptr<SegmentHoles> holes;
    if (options_.mirror != nullptr)
      holes = std::make_shared<SegmentHoles>(options_.mirror, Mirror::Segment{worker_, sequence, generation});
    auto opened = SegmentReader::Open(folder_ + "/" + MetaFileName(sequence, generation), sequence,
                                      generation, cache_, std::move(holes));
    if (!opened.ok()) {
      // The newest file may be seen before its header is written; an old one that is unreadable stays so.
      if (sequence != files.rbegin()->first && unreadable_.insert(sequence).second) {
        Problem("segment is unreadable, its steps are lost: " + std::string(opened.status().message()));
      }
      continue;
    }
    if (const Status status = CheckOwner((*opened)->header(), run_, worker_); !status.ok()) {
      if (unreadable_.insert(sequence).second) {
        Problem("segment is not shown, its steps are lost: " + std::string(status.message()) + ": " +
                (*opened)->path());
      }
      continue;
    }
    if (!(*opened)->damage().ok())
      Problem("footer is not used: " + std::string((*opened)->damage().message()));
    if (options_.rest) (*opened)->Rest();
    fresh.push_back(opened->get());
    if (known) {
      *at = std::move(opened).value();
      ++rebuilds_;
    } else {
      segments_.insert(at, std::move(opened).value());
    }
    news = true;
  }
  // Newest first: its footer has all definitions of its epoch.
  for (auto at = fresh.rbegin(); at != fresh.rend(); ++at) TakeDefs(**at);
  for (SegmentReader* segment : fresh) {
    if (const Status status = segment->Wake(); !status.ok())
      Problem("segment is unreadable, its steps are lost: " + std::string(status.message()));
    TakeInSegment(*segment, true);
    if (options_.rest) segment->Rest();
  }
  return news;
}

void WorkerReader::TakeInSegment(SegmentReader& segment, bool fresh) {
  if (segment.header().epoch > epoch_) {
    epoch_ = segment.header().epoch;
    end_.reset();
  }
  heartbeat_ = std::max({heartbeat_, segment.header().created_unix_ns, segment.heartbeat_unix_ns()});
  const auto& steps = segment.steps();
  if (steps.size() > 0) {
    ForgetLastRowsBefore(segment);
    next_ordinal_ = std::max(next_ordinal_, steps.ordinal.back() + 1);
    heartbeat_ = std::max(heartbeat_, steps.wall_unix_ns.back());
  }
  if (!fresh || !segment.sealed()) TakeDefs(segment);
  TakeFrames(segment);
  if (end_ && segment.sealed()) cache_->TrimLasting();
}

/// The last steps of other segments are the newest no more.
void WorkerReader::ForgetLastRowsBefore(const SegmentReader& segment) {
  for (auto at = segments_.rbegin(); at != segments_.rend(); ++at) {
    if ((*at)->sequence() >= segment.sequence()) continue;
    (*at)->ForgetLastRows();
    if ((*at)->steps().size() > 0) break;  // those before it were told when it came
  }
}

void WorkerReader::TakeDefs(SegmentReader& segment) {
  const std::uint32_t epoch = segment.header().epoch;
  if (segment.sealed()) {
    // All definitions of the epoch are in its newest footer; older ones add nothing.
    const bool newest = std::none_of(segments_.begin(), segments_.end(), [&](const auto& other) {
      return other->sealed() && other->header().epoch == epoch && other->sequence() > segment.sequence();
    });
    if (!newest) return;
  }
  const SegmentReader::DefCounts counts = segment.def_counts();
  SegmentReader::DefCounts& known = known_defs_[epoch];
  SegmentReader::DefCounts from;
  if (segment.sealed()) {
    if (counts == known) return;
  } else {
    if (tail_defs_.sequence == segment.sequence()) from = tail_defs_.taken;
    tail_defs_ = {segment.sequence(), counts};
    if (counts == from) return;
  }
  auto tensors = segment.TensorDefs(from.tensors);
  if (!tensors.ok()) Problem("definitions of tensors are lost: " + std::string(tensors.status().message()));
  if (tensors.ok()) {
    for (TensorDef& def : *tensors) {
      if (!defined_.insert(DefKey(epoch, def.id)).second) continue;
      definitions_.push_back({epoch, std::move(def)});
      ++known.tensors;
    }
  }
  auto layouts = segment.LayoutDefs(from.layouts);
  if (!layouts.ok()) Problem("definitions of layouts are lost: " + std::string(layouts.status().message()));
  if (layouts.ok()) {
    for (LayoutDef& def : *layouts)
      known.layouts += layouts_.try_emplace(DefKey(epoch, def.id), std::move(def)).second ? 1 : 0;
  }
}

void WorkerReader::TakeDocument(const std::string& name, std::string json, std::uint64_t ordinal) {
  constexpr std::uint64_t kMaxBytes = 16ULL << 20;
  last_ordinal_ = ordinal == format::kLooseOrdinal ? last_ordinal_ : std::max(last_ordinal_, ordinal);
  std::vector<Version>& versions = versions_[name];
  if (versions.size() < kMaxVersions && version_bytes_ + json.size() <= kMaxBytes) {
    version_bytes_ += json.size();
    versions.push_back({last_ordinal_, json});
  }
  documents_[name] = std::move(json);
}

const std::string* WorkerReader::DocumentAt(const std::string& name, std::uint64_t ordinal) const {
  const auto latest = documents_.find(name);
  if (latest == documents_.end()) return nullptr;
  const auto known = versions_.find(name);
  if (known == versions_.end() || known->second.empty()) return &latest->second;
  const std::vector<Version>& versions = known->second;
  std::size_t at = 0;
  while (at + 1 < versions.size() && versions[at + 1].ordinal <= ordinal + 1) ++at;
  // Versions that were not kept lie behind the last one that was.
  const bool last = at + 1 == versions.size() && versions[at].json != latest->second;
  return last ? &latest->second : &versions[at].json;
}

void WorkerReader::TakeFrames(SegmentReader& segment) {
  if ((segment.frame_kinds() & kLooseKinds) == 0) return;
  const auto frames = segment.Frames(Again::kNo);
  if (!frames.ok()) {
    Problem("gaps, documents and events of a segment are lost: " + std::string(frames.status().message()));
    return;
  }
  // Frames keep their order when a segment is sealed, so a count shows which were read. Merging, too, keeps
  // those of loose kinds, and appends a gap to them, but it drops others.
  FramesTaken& taken = frames_taken_[segment.sequence()];
  std::size_t known = 0;
  if (taken.generation != segment.generation()) {
    known = taken.loose;
    taken = {segment.generation(), 0, 0};
  }
  std::vector<std::byte> scratch;
  for (; taken.listed < frames->size(); ++taken.listed) {
    const format::FrameEntry& entry = (*frames)[taken.listed];
    if (entry.kind >= 32 || (kLooseKinds >> entry.kind & 1U) == 0) continue;
    if (taken.loose++ < known) continue;
    const auto body = segment.ReadFrame(entry, &scratch);
    if (!body.ok()) {
      Problem(std::string(body.status().message()));
      continue;
    }
    switch (static_cast<format::FrameKind>(entry.kind)) {
      case format::FrameKind::kDocument:
        if (const auto document = format::ParseDocumentUntrusted(*body); document.ok()) {
          TakeDocument(std::string(document->name), std::string(document->json), entry.ordinal);
        }
        break;
      case format::FrameKind::kGapRows:
        if (const auto rows = format::ParseGapRowsUntrusted(*body); rows.ok()) {
          for (const format::GapRow& row : *rows) {
            if (InBucket(row.reason) && options_.mirror != nullptr)
              continue;  // of this copy nothing is missing
            const std::uint32_t epoch = segment.header().epoch;
            const auto [at, fresh] = gaps_.try_emplace(
                {DefKey(epoch, row.tensor), std::uint64_t{row.collection} << 32 |
                                                static_cast<std::uint32_t>(row.reason << 16) | row.forms},
                Gap{epoch, row});
            if (fresh) continue;
            format::GapRow& sum = at->second.row;
            sum.count += row.count;
            sum.bytes += row.bytes;
            sum.first_step = std::min(sum.first_step, row.first_step);
            sum.last_step = std::max(sum.last_step, row.last_step);
          }
        }
        break;
      case format::FrameKind::kAck:
        if (const auto rows = format::ParseAckRowsUntrusted(*body); rows.ok()) {
          acks_.insert(acks_.end(), rows->begin(), rows->end());
        }
        break;
      case format::FrameKind::kEnd:
        if (const auto mark = format::ParseEndMarkUntrusted(*body);
            mark.ok() && segment.header().epoch == epoch_) {
          end_ = *mark;
          heartbeat_ = std::max(heartbeat_, mark->unix_ns);
        }
        break;
      case format::FrameKind::kRelocate:
        if (const auto rows = format::ParseRelocateRowsUntrusted(*body); rows.ok()) {
          for (const auto& row : *rows)
            relocated_[{row.from_file, row.from_offset}] = {row.to_file, row.to_offset};
        }
        break;
      case format::FrameKind::kRetire:
        if (const auto rows = format::ParseRetireRowsUntrusted(*body); rows.ok()) {
          for (const auto& row : *rows) {
            if (InBucket(row.reason) && options_.mirror != nullptr) continue;
            retired_[row.data_file] = row.reason;
            data_files_.erase(row.data_file);
          }
        }
        break;
      default: break;
    }
  }
}

std::vector<WorkerReader::Gap> WorkerReader::gaps() const {
  std::vector<Gap> result;
  for (const auto& [key, gap] : gaps_) result.push_back(gap);
  return result;
}

const LayoutDef* WorkerReader::FindLayout(std::uint32_t epoch, std::uint32_t id) const {
  const auto at = layouts_.find(DefKey(epoch, id));
  return at == layouts_.end() ? nullptr : &at->second;
}

std::optional<WorkerReader::StepPlace> WorkerReader::FirstStepFrom(std::uint64_t ordinal) const noexcept {
  // Ordinals ascend over segments; a segment may be without steps.
  const auto ends_before = [ordinal](const std::unique_ptr<SegmentReader>& segment) {
    const auto ordinals = segment->steps().ordinal;
    return !ordinals.empty() && ordinals.back() < ordinal;
  };
  std::size_t low = 0;
  std::size_t high = segments_.size();
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    std::size_t probe = middle;
    while (probe < high && segments_[probe]->steps().size() == 0) ++probe;
    if (probe < high && ends_before(segments_[probe])) {
      low = probe + 1;
    } else {
      high = middle;
    }
  }
  for (; low < segments_.size(); ++low) {
    const auto ordinals = segments_[low]->steps().ordinal;
    if (ordinals.empty() || ordinals.back() < ordinal) continue;
    if (const auto exact = segments_[low]->FindOrdinal(ordinal))
      return StepPlace{segments_[low].get(), *exact};
    const auto at = std::lower_bound(ordinals.begin(), ordinals.end(), ordinal);
    return StepPlace{segments_[low].get(), static_cast<std::uint32_t>(at - ordinals.begin())};
  }
  return std::nullopt;
}

std::optional<WorkerReader::StepPlace> WorkerReader::FindStep(std::uint64_t ordinal) const noexcept {
  const auto place = FirstStepFrom(ordinal);
  if (!place || place->segment->steps().ordinal[place->index] != ordinal) return std::nullopt;
  return place;
}

}  // namespace luff::store
