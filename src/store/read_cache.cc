#include "store/read_cache.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <utility>

#include "luff/base/bytes.h"
#include "luff/format/layout.h"

namespace luff::store {
namespace {

constexpr std::uint64_t kEntryBytes = 160;         // of an entry without its bytes, approximately
constexpr std::size_t kAsked = 1 << 17;            // 512 KiB, allocated on first use
constexpr std::uint64_t kMinPassing = 256 << 10;   // so that most smaller blocks fit as well
constexpr std::uint64_t kMaxPassing = 8ULL << 20;  // larger ones are not kept
constexpr std::uint64_t kMaxLasting = 8ULL << 20;  // in all; about what is read of a segment while it grows

/// Physical memory in bytes. Larger values are refused, since encoded chunks may expand to far more than
/// their file holds.
std::uint64_t MemoryOfMachine() noexcept {
  static const auto bytes = static_cast<std::uint64_t>(std::max(0L, sysconf(_SC_PHYS_PAGES))) *
                            static_cast<std::uint64_t>(std::max(0L, sysconf(_SC_PAGESIZE)));
  return bytes;
}

}  // namespace

std::shared_ptr<std::byte> AllocateForReading(std::uint64_t bytes) {
  if (bytes > MemoryOfMachine()) return nullptr;
  const std::uint64_t whole = AlignUp(std::max<std::uint64_t>(bytes, 1), format::kChunkAlign);
  void* at = std::aligned_alloc(format::kChunkAlign, static_cast<std::size_t>(whole));
  if (at == nullptr) return nullptr;
  return {static_cast<std::byte*>(at), [](std::byte* p) { std::free(p); }};
}

std::size_t ReadCache::Hash::operator()(const Key& key) const noexcept {
  std::uint64_t hash = (key.part + key.file * 0x9E3779B97F4A7C15ULL) * 0xD6E8FEB86659FD93ULL;
  hash ^= hash >> 32;
  return static_cast<std::size_t>(hash * 0xD6E8FEB86659FD93ULL);
}

std::uint64_t ReadCache::NewFile() noexcept {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

const ReadCache::Entry* ReadCache::Find(const Key& key) {
  const auto at = kept_.find(key);
  if (at == kept_.end()) return nullptr;
  at->second.asked = true;
  return &at->second.entry;
}

void ReadCache::Put(const Key& key, Entry entry) {
  const std::uint64_t size = entry.bytes.size() + kEntryBytes;
  if (size > kMaxBytes || kept_.contains(key)) return;
  while (bytes_ + size > kMaxBytes) {
    const Key next = turns_.front();
    turns_.pop_front();
    const auto at = kept_.find(next);
    if (std::exchange(at->second.asked, false)) {
      turns_.push_back(next);
      continue;
    }
    bytes_ -= at->second.entry.bytes.size() + kEntryBytes;
    kept_.erase(at);
  }
  kept_.emplace(key, Kept{std::move(entry)});
  turns_.push_back(key);
  bytes_ += size;
}

std::shared_ptr<const std::vector<std::uint32_t>> ReadCache::Shared(std::vector<std::uint32_t> ids) {
  if (shared_ == nullptr || *shared_ != ids) {
    ids.shrink_to_fit();
    shared_ = std::make_shared<const std::vector<std::uint32_t>>(std::move(ids));
  }
  return shared_;
}

bool ReadCache::AskedBefore(const Key& key) {
  if (asked_.empty()) asked_.resize(kAsked);
  const std::uint64_t hash = Hash()(key);
  std::uint32_t& place = asked_[static_cast<std::size_t>(hash % kAsked)];
  const auto mark = static_cast<std::uint32_t>(hash >> 32 | 1);
  return std::exchange(place, mark) == mark;
}

std::shared_ptr<std::byte> ReadCache::Passing(std::uint64_t bytes) {
  if (bytes > kMaxPassing) return AllocateForReading(bytes);
  if (passing_.use_count() != 1 || passing_bytes_ < bytes) {
    passing_bytes_ = std::max(bytes, kMinPassing);
    passing_ = AllocateForReading(passing_bytes_);
  }
  return passing_;
}

std::shared_ptr<std::byte> ReadCache::Lasting(std::uint64_t bytes) {
  std::uint64_t all = 0;
  for (const Room& room : lasting_) {
    const bool fits = bytes <= room.bytes && bytes >= room.bytes - room.bytes / 4;
    if (fits && room.memory.use_count() == 1) return room.memory;
    all += room.bytes;
  }
  const std::uint64_t room = bytes + bytes / 16;  // steps differ a little
  auto memory = AllocateForReading(room);
  if (memory == nullptr) return nullptr;
  if (all + room > kMaxLasting) TrimLasting();  // those are of another size
  all = 0;
  for (const Room& one : lasting_) all += one.bytes;
  if (all + room <= kMaxLasting) lasting_.push_back({memory, room});
  return memory;
}

void ReadCache::TrimLasting() noexcept {
  std::erase_if(lasting_, [](const Room& room) { return room.memory.use_count() == 1; });
}

}  // namespace luff::store
