#include "luff/query/column.h"

#include <iterator>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace luff::query {
namespace {

constexpr std::size_t kSmallest = 16U << 10;  // for smaller blocks the allocator itself reuses warm memory
constexpr std::size_t kKeptBytes = 8U << 20;
constexpr std::size_t kKeptBlocks = 128;

struct Kept {
  std::mutex mutex;
  std::size_t bytes = 0;
  std::vector<std::pair<void*, std::size_t>> blocks;  // newest last: their memory is warm
};

/// Never destroyed, because columns may release memory while the process exits.
Kept& TheKept() {
  static Kept* kept = [] {
    auto* fresh = new Kept;
    fresh->blocks.reserve(kKeptBlocks);
    return fresh;
  }();
  return *kept;
}

std::size_t RoundUp(std::size_t bytes) noexcept {
  return bytes < kSmallest ? bytes : (bytes + kSmallest - 1) / kSmallest * kSmallest;
}

/// Takes a kept block of this size, or null. Uses try_lock: in a forked child, the thread that holds the lock
/// may not exist.
void* TakeKept(std::size_t bytes) noexcept {
  if (bytes < kSmallest) return nullptr;
  Kept& kept = TheKept();
  const std::unique_lock lock(kept.mutex, std::try_to_lock);
  if (!lock) return nullptr;
  for (auto at = kept.blocks.rbegin(); at != kept.blocks.rend(); ++at) {
    if (at->second != bytes) continue;
    void* memory = at->first;
    kept.blocks.erase(std::next(at).base());
    kept.bytes -= bytes;
    return memory;
  }
  return nullptr;
}

void GiveBack(void* memory, std::size_t bytes) noexcept {
  Kept& kept = TheKept();
  const bool keeps = bytes >= kSmallest && bytes <= kKeptBytes;
  const auto lock = keeps ? std::unique_lock(kept.mutex, std::try_to_lock) : std::unique_lock<std::mutex>();
  if (!lock) {
    ::operator delete(memory);
    return;
  }
  while (!kept.blocks.empty() && (kept.bytes + bytes > kKeptBytes || kept.blocks.size() == kKeptBlocks)) {
    kept.bytes -= kept.blocks.front().second;
    ::operator delete(kept.blocks.front().first);
    kept.blocks.erase(kept.blocks.begin());
  }
  kept.blocks.emplace_back(memory, bytes);
  kept.bytes += bytes;
}

}  // namespace

std::shared_ptr<void> TakeColumnMemory(std::size_t bytes) {
  bytes = RoundUp(bytes);
  void* memory = TakeKept(bytes);
  if (memory == nullptr) memory = ::operator new(bytes);
  return {memory, [bytes](void* p) { GiveBack(p, bytes); }};
}

}  // namespace luff::query
