// A tensor of more than 4 GiB and more than 2^32 elements, in parts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstring>

#include "capture/block_pool.h"
#include "capture/testing.h"

namespace luff::capture::large_test {
namespace {

constexpr std::uint64_t kElements = (4ULL << 30) + (512ULL << 20) + 12'345;  // uint8: bytes, too
constexpr std::uint64_t kNeeded = 6ULL << 30;  // if the writer thread gets no time at all; else 100 MB

constexpr bool Sanitized() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
  return true;
#else
  return false;
#endif
#else
  return false;
#endif
}

std::uint64_t AvailableBytes() {
  std::FILE* file = std::fopen("/proc/meminfo", "r");
  if (file == nullptr) return 0;
  char line[256];
  unsigned long long kib = 0;
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (std::sscanf(line, "MemAvailable: %llu kB", &kib) == 1) break;
  }
  std::fclose(file);
  return kib << 10U;
}

struct Mapping {
  explicit Mapping(std::size_t size)
      : bytes(size),
        data(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                    0)) {
    // Pages that are only read share one page of zeros; huge pages would take memory.
    if (data != MAP_FAILED) static_cast<void>(::madvise(data, size, MADV_NOHUGEPAGE));
  }
  ~Mapping() {
    if (data != MAP_FAILED) static_cast<void>(::munmap(data, bytes));
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::size_t bytes;
  void* data;
};

TEST(LargeTensorTest, MoreThanFourGigabytesComeBackInParts) {
  if (Sanitized()) GTEST_SKIP() << "4.5 GiB take minutes under a sanitizer";
  if (AvailableBytes() < kNeeded + (1ULL << 30)) {
    GTEST_SKIP() << "less than 7 GiB of memory are available";
  }
  Mapping memory(kElements);
  if (memory.data == MAP_FAILED) GTEST_SKIP() << "no address space of 4.5 GiB";
  auto* values = static_cast<std::uint8_t*>(memory.data);
  // Where 32 bits would wrap around, and at the end.
  const std::vector<std::uint64_t> marked{3, 1ULL << 32, kElements - 1};
  for (std::size_t i = 0; i < marked.size(); ++i) values[marked[i]] = static_cast<std::uint8_t>(i + 1);

  const auto disk = std::make_shared<testing::Disk>();
  const auto session = testing::StartSession(
      disk,
      R"({"max_overhead":0,"pool_max_bytes":6442450944,"collections":[{"name":"large","include":["large"],
               "forms":["summary","raw"],"save":{"save_interval":1}}]})");
  ASSERT_NE(session, nullptr);
  const TensorId id = session->DefineTensor("large", format::Role::kWeight, "", "");
  const LayoutId layout =
      session->DefineLayout(testing::MakeLayout(DType::kUInt8, {static_cast<std::int64_t>(kElements)}));
  session->BeginStep(format::Mode::kTrain, 0);
  const TensorRef ref{id, layout, reinterpret_cast<const std::byte*>(values), 0, 0};
  session->Capture({&ref, 1});
  session->EndStep({format::Mode::kTrain, 0, 0, 0});
  session->Close(format::EndReason::kCompleted, std::chrono::seconds(120));

  const auto steps = disk->Steps();
  ASSERT_EQ(steps.size(), 1U);
  const store::StepBatch& batch = steps[0].batch;
  EXPECT_TRUE(batch.gaps.empty());
  ASSERT_EQ(batch.summaries.size(), 1U);
  EXPECT_EQ(batch.summaries[0].count, kElements);
  EXPECT_EQ(batch.summaries[0].zero_count, kElements - marked.size());
  EXPECT_EQ(batch.summaries[0].sum, 1.0 + 2.0 + 3.0);

  ASSERT_EQ(batch.index.size(), (kElements + kBlockHugeBytes - 1) / kBlockHugeBytes);
  std::uint64_t at = 0;
  std::vector<std::uint64_t> found;
  for (std::size_t part = 0; part < batch.index.size(); ++part) {
    const format::IndexRow& row = batch.index[part];
    ASSERT_EQ(row.part, part);
    ASSERT_EQ(row.parts, batch.index.size());
    Result<std::vector<std::byte>> value = disk->Value(row);
    ASSERT_TRUE(value.ok()) << value.status().ToString();
    ASSERT_EQ(value->size(), row.raw_bytes);
    ASSERT_EQ(std::memcmp(value->data(), values + at, value->size()), 0) << "part " << part;
    for (const std::uint64_t where : marked) {
      if (where >= at && where < at + value->size() && (*value)[where - at] != std::byte{0})
        found.push_back(where);
    }
    at += value->size();
  }
  EXPECT_EQ(at, kElements);
  EXPECT_EQ(found, marked);
}

}  // namespace
}  // namespace luff::capture::large_test
