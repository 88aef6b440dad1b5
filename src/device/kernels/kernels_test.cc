// The kernels' own sources, run on the CPU, against the CPU's kernels and against loops in long double.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <array>
#include <cstring>
#include <memory>
#include <new>

#include "base/test_effort.h"
#include "device/kernels/arguments.h"
#include "device/testing/launch.h"
#include "tensor/strided.h"
#include "tensor/testing.h"

namespace luff::device::kernels_test {
namespace {

using luff::tensor::AllDTypes;
using luff::tensor::Content;
using luff::tensor::MakeElements;
using luff::tensor::Mismatch;
using luff::tensor::Reference;
using luff::tensor::ReferenceSummary;
using testing::ThreadOrder;

template <class T>
U64 AddressOf(T* at) {
  return reinterpret_cast<U64>(at);
}

/// One tensor of a launch, and what is wanted of it.
struct Request {
  TensorView view;
  bool forms = false;  // luff_forms instead of luff_statistics
  bool histogram = false;
  std::byte* previous = nullptr;
  bool replace = false;
  std::byte* copy_to = nullptr;
};

struct Answer {
  Summary summary;
  luff::Difference difference;
  std::vector<U64> histogram;
};

/// What the host does around the launches of a step.
std::vector<Answer> Launch(const std::vector<Request>& requests, ThreadOrder order = ThreadOrder::kForwards) {
  std::vector<Row> rows;
  std::vector<Loops> loops;
  std::vector<Work> plain, forms;
  std::vector<U32> joined;
  U32 partials = 0;
  std::vector<std::vector<U64>> histograms;
  for (const Request& request : requests) {
    const Layout& layout = request.view.layout;
    const std::size_t size = DTypeSize(layout.dtype);
    Row row{};
    row.count = layout.element_count();
    row.dtype = static_cast<U8>(layout.dtype);
    row.result = row.difference = static_cast<U32>(rows.size());
    row.copy_to = AddressOf(request.copy_to);
    row.previous = AddressOf(request.previous);
    row.flags = request.replace ? kRowReplacePrevious : U16{0};
    const bool ordered = request.previous != nullptr || request.copy_to != nullptr;
    tensor::Loops walk;
    walk.base = request.view.data;
    if (row.count != 0) walk = tensor::MakeLoops(request.view, !ordered);
    row.data = AddressOf(walk.base);
    if (row.count == 0 || walk.is_dense(size)) {
      if (request.previous == nullptr && row.data % kVectorBytes % size == 0)
        row.lead = static_cast<U32>(row.data % kVectorBytes / size);
    } else {
      row.depth = static_cast<U8>(walk.depth);
      row.loops = static_cast<U32>(loops.size());
      loops.emplace_back();
      for (std::size_t i = 0; i < static_cast<std::size_t>(walk.depth); ++i) {
        loops.back().count[i] = walk.count[i];
        loops.back().stride[i] = walk.stride[i];
      }
    }
    const bool needs_forms = request.forms || request.histogram || request.previous != nullptr;
    histograms.emplace_back(request.histogram ? kHistogramCounters : 0);
    row.histogram = request.histogram ? AddressOf(histograms.back().data()) : 0;
    const U64 chunks = std::max<U64>(1, ((row.count + row.lead) * size + kChunkBytes - 1) / kChunkBytes);
    for (U32 chunk = 0; chunk < chunks; ++chunk)
      (needs_forms ? forms : plain).push_back({static_cast<U32>(rows.size()), chunk});
    if (chunks > 1) {
      row.first_partial = partials;
      partials += static_cast<U32>(chunks);
      joined.push_back(static_cast<U32>(rows.size()));
    }
    rows.push_back(row);
  }
  // Not a byte larger than needed, so that sanitizers see what is written beyond; a pattern, so that missing
  // writes are seen.
  std::vector<Statistics> partial_rows(partials), results(rows.size());
  std::vector<Differences> partial_differences(partials), differences(rows.size());
  std::memset(static_cast<void*>(results.data()), 0x5a, results.size() * sizeof(Statistics));
  const auto launch = [&](const char* name, std::size_t grid, auto arguments) {
    if (grid == 0) return;
    void* parameters[] = {&arguments};
    ASSERT_TRUE(testing::LaunchByName(name, static_cast<unsigned>(grid), kBlockThreads, parameters, order));
  };
  StatisticsArguments arguments = {AddressOf(rows.data()),       AddressOf(loops.data()),
                                   AddressOf(plain.data()),      AddressOf(partial_rows.data()),
                                   AddressOf(results.data()),    AddressOf(partial_differences.data()),
                                   AddressOf(differences.data())};
  launch(kStatisticsKernel, plain.size(), arguments);
  arguments.work = AddressOf(forms.data());
  launch(kFormsKernel, forms.size(), arguments);
  launch(kReduceKernel, joined.size(),
         ReduceArguments{arguments.rows, AddressOf(joined.data()), arguments.partials, arguments.results,
                         arguments.difference_partials, arguments.differences});
  std::vector<Answer> answers;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Statistics& s = results[i];
    Answer answer;
    answer.summary.count = s.count;
    answer.summary.sum = s.sum;
    answer.summary.sum_sq = s.sum_sq;
    answer.summary.abs_sum = s.abs_sum;
    answer.summary.min_bits = s.min_bits;
    answer.summary.max_bits = s.max_bits;
    answer.summary.zero_count = s.zeros;
    answer.summary.nan_count = s.nans;
    answer.summary.inf_count = s.infs;
    const Differences& d = differences[i];
    answer.difference = {d.l1, d.sum_sq, d.max, d.changed, d.previous_l1, d.previous_sum_sq};
    answer.histogram = histograms[i];
    answers.push_back(answer);
  }
  return answers;
}

TensorView Flat(DType dtype, const std::byte* data, std::size_t count) {
  const std::int64_t dims[] = {static_cast<std::int64_t>(count)};
  return {data, Layout::Contiguous(dtype, dims).value()};
}

/// Memory that begins `shift` bytes after a multiple of 16, and not a byte larger than needed.
class Room {
 public:
  Room(std::size_t shift, std::size_t bytes)
      : memory_(static_cast<std::byte*>(::operator new(shift + bytes, kAlignment))),
        shift_(shift) {}
  Room(std::size_t shift, const std::vector<std::byte>& content) : Room(shift, content.size()) {
    std::copy(content.begin(), content.end(), data());
  }
  std::byte* data() { return memory_.get() + shift_; }

 private:
  static constexpr std::align_val_t kAlignment{16};
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete(memory, kAlignment); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t shift_;
};

class KernelsTest : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, KernelsTest, ::testing::ValuesIn(AllDTypes()),
                         [](const auto& tested) { return std::string(DTypeName(tested.param)); });

TEST_P(KernelsTest, AgreeWithALoop_ForEverySizeAndContent) {
  const DType dtype = GetParam();
  const std::size_t size = DTypeSize(dtype), chunk = kChunkBytes / size;
  std::vector<Request> requests;
  std::vector<Room> rooms;
  std::vector<Reference> wanted;
  rooms.reserve(64);
  const auto add = [&](std::size_t count, Content content, std::size_t shift) {
    const auto data = MakeElements(dtype, count, content, count + shift);
    rooms.emplace_back(shift, data);
    wanted.push_back(ReferenceSummary(dtype, data.data(), count));
    requests.push_back({.view = Flat(dtype, rooms.back().data(), count)});
  };
  for (const Content content :
       {Content::kOrdinary, Content::kWithNonFinite, Content::kAnyBits, Content::kOffset, Content::kZeros}) {
    for (const std::size_t count : {1u, 2u, 17u, 255u, 1000u}) add(count, content, 0);
    add(4 * 256 * 16 / size, content, 0);          // one group a thread
    add(3 * 4 * 256 * 16 / size + 5, content, 0);  // three, and a rest
  }
  add(0, Content::kZeros, 0);
  add(chunk, Content::kWithNonFinite, 0);
  add(chunk + 1, Content::kAnyBits, 0);
  add(chunk, Content::kOrdinary, size < 16 ? size : 0);  // the last element is in a second chunk
  const auto answers = Launch(requests);
  for (std::size_t i = 0; i < answers.size(); ++i)
    EXPECT_EQ(Mismatch(answers[i].summary, wanted[i]), "")
        << "request " << i << ", count " << wanted[i].summary.count;
}

TEST_P(KernelsTest, ReadAnyAlignment_AndNothingElse) {
  const DType dtype = GetParam();
  const std::size_t size = DTypeSize(dtype);
  std::vector<Request> requests;
  std::vector<Room> rooms, copies;
  std::vector<std::vector<std::byte>> contents;
  rooms.reserve(256);
  copies.reserve(256);
  for (std::size_t shift = 0; shift < 17; shift += FewerCases() ? 5 : 1) {
    for (const std::size_t count :
         {std::size_t{1}, std::size_t{3}, 16 / size + 1, std::size_t{37}, 5000 / size}) {
      contents.push_back(MakeElements(dtype, count, Content::kAnyBits, count + shift));
      rooms.emplace_back(shift, contents.back());
      const bool same = shift % 2 == 0;  // where the copy lies
      copies.emplace_back(same ? shift : 3 * shift % 17, contents.back().size());
      requests.push_back({.view = Flat(dtype, rooms.back().data(), count), .copy_to = copies.back().data()});
    }
  }
  const auto answers = Launch(requests);
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const auto count = static_cast<std::size_t>(answers[i].summary.count);
    EXPECT_EQ(Mismatch(answers[i].summary, ReferenceSummary(dtype, contents[i].data(), count)), "") << i;
    EXPECT_EQ(std::memcmp(copies[i].data(), contents[i].data(), contents[i].size()), 0) << i;
  }
}

TEST_P(KernelsTest, Bits_DependOnNoOrder) {
  const DType dtype = GetParam();
  const std::size_t count = 3 * kChunkBytes / DTypeSize(dtype) / 2;
  const auto data = MakeElements(dtype, count, Content::kWithNonFinite, 9);
  auto previous = MakeElements(dtype, count, Content::kWithNonFinite, 10);
  const Request plain = {.view = Flat(dtype, data.data(), count)};
  const Request forms = {.view = plain.view, .histogram = true, .previous = previous.data()};
  const auto want = Launch({plain, forms});
  for (const ThreadOrder order : {ThreadOrder::kBackwards, ThreadOrder::kMixed}) {
    const auto got = Launch({plain, forms}, order);
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(std::memcmp(&got[i].summary, &want[i].summary, sizeof(Summary)), 0);
      EXPECT_EQ(std::memcmp(&got[i].difference, &want[i].difference, sizeof(luff::Difference)), 0);
      EXPECT_EQ(got[i].histogram, want[i].histogram);
    }
  }
}

TEST_P(KernelsTest, Histogram_HasTheBinsOfTheCpu) {
  const DType dtype = GetParam();
  std::vector<Request> requests;
  std::vector<std::vector<std::byte>> contents;
  for (const Content content :
       {Content::kOrdinary, Content::kWithNonFinite, Content::kAnyBits, Content::kZeros}) {
    for (const std::size_t count :
         {std::size_t{1}, std::size_t{1003}, 3 * kChunkBytes / DTypeSize(dtype) / 2}) {
      contents.push_back(MakeElements(dtype, count, content, count));
      requests.push_back({.view = Flat(dtype, contents.back().data(), count), .histogram = true});
    }
  }
  const auto answers = Launch(requests);
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const std::size_t count = requests[i].view.layout.element_count();
    std::vector<std::uint64_t> want(kHistogramBins);
    AddHistogram(requests[i].view, want);
    // A magnitude may differ in the last place, and then lie in the next bin; there is none such here.
    EXPECT_TRUE(std::equal(want.begin(), want.end(), answers[i].histogram.begin())) << i;
    EXPECT_EQ(Mismatch(answers[i].summary, ReferenceSummary(dtype, contents[i].data(), count)), "") << i;
  }
}

TEST_P(KernelsTest, Difference_IsThatOfTheCpu_AndReplacesWhenAsked) {
  const DType dtype = GetParam();
  const std::size_t size = DTypeSize(dtype);
  for (const std::size_t count : {std::size_t{1}, 16 / size + 1, std::size_t{1500}, kChunkBytes / size + 3}) {
    for (const std::size_t shift : {0u, 1u, 4u}) {
      if (FewerCases() && shift == 1) continue;
      const auto now = MakeElements(dtype, count, Content::kWithNonFinite, 1);
      auto before = MakeElements(dtype, count, Content::kWithNonFinite, 2);
      std::memcpy(before.data(), now.data(), size * (count / 4));  // some have not changed
      Room current(shift, now), previous(shift == 4 ? 3 : 0, before);
      Request request = {.view = Flat(dtype, current.data(), count), .previous = previous.data()};
      luff::Difference want;
      ComputeDifference(Flat(dtype, now.data(), count), before.data(), false, &want);
      const luff::Difference got = Launch({request})[0].difference;
      EXPECT_EQ(got.changed_count, want.changed_count);
      EXPECT_EQ(std::memcmp(previous.data(), before.data(), before.size()), 0);
      EXPECT_NEAR(got.l1, want.l1, want.l1 * 1e-12);
      EXPECT_NEAR(got.sum_sq, want.sum_sq, want.sum_sq * 1e-12);
      EXPECT_NEAR(got.max, want.max, want.max * 1e-15);
      EXPECT_NEAR(got.previous_l1, want.previous_l1, want.previous_l1 * 1e-12);
      EXPECT_NEAR(got.previous_sum_sq, want.previous_sum_sq, want.previous_sum_sq * 1e-12);
      request.replace = true;
      EXPECT_EQ(Launch({request})[0].difference.changed_count, want.changed_count);
      EXPECT_EQ(std::memcmp(previous.data(), now.data(), now.size()), 0);
      EXPECT_EQ(Launch({request})[0].difference.changed_count, 0u);
    }
  }
}

/// A random view into memory that holds exactly the elements it can reach.
struct RandomView {
  std::unique_ptr<Room> room;
  TensorView view;
  std::vector<std::byte> row_major;
};

RandomView MakeRandomView(DType dtype) {
  const auto rank = *rc::gen::inRange<std::size_t>(0, 5);
  std::vector<std::int64_t> dims, strides;
  std::int64_t low = 0, high = 0;
  for (std::size_t i = 0; i < rank; ++i) {
    dims.push_back(*rc::gen::inRange<std::int64_t>(1, 9));
    strides.push_back(*rc::gen::element<std::int64_t>(0, 1, 1, 2, 3, 8, 40, -1, -5, 64));
    (strides.back() < 0 ? low : high) += strides.back() * (dims.back() - 1);
  }
  RandomView r;
  const auto size = static_cast<std::int64_t>(DTypeSize(dtype));
  const auto shift = *rc::gen::element<std::size_t>(0, 0, 1, 4, 8);
  r.room = std::make_unique<Room>(
      shift, MakeElements(dtype, static_cast<std::size_t>(high - low + 1), Content::kAnyBits, 3));
  r.view = {r.room->data() - low * size, Layout::Strided(dtype, dims, strides).value()};
  r.row_major.resize(r.view.layout.byte_count());
  CopyContiguous(r.view, r.row_major.data());
  return r;
}

TEST(KernelsOnStrides, EqualTheContiguousCopy) {
  EXPECT_TRUE(rc::check("any strides", [] {
    const DType dtype = *rc::gen::elementOf(AllDTypes());
    const RandomView r = MakeRandomView(dtype);
    const std::size_t count = r.view.layout.element_count();
    const Reference want = ReferenceSummary(dtype, r.row_major.data(), count);
    std::vector<std::byte> copy(r.row_major.size());
    const auto answers =
        Launch({{.view = r.view}, {.view = r.view, .copy_to = copy.data()}, {.view = r.view, .forms = true}});
    for (const Answer& answer : answers) RC_ASSERT(Mismatch(answer.summary, want) == "");
    RC_ASSERT(copy == r.row_major);
  }));
}

/// Runs the kernels of units over a view. `permuted` sees the same elements as (outer, units, inner).
UnitCounts LaunchUnits(const TensorView& permuted, U64 outer, U64 units, U64 inner, bool across) {
  const tensor::Loops walk = tensor::MakeLoops(permuted, false);
  Loops loops{};
  UnitsRow row{};
  row.data = AddressOf(walk.base);
  row.outer = outer;
  row.units = units;
  row.inner = inner;
  row.dtype = static_cast<U8>(permuted.layout.dtype);
  row.form = across ? kUnitsAcross : kUnitsWithin;
  if (!walk.is_dense(DTypeSize(permuted.layout.dtype))) {
    row.depth = static_cast<U8>(walk.depth);
    for (std::size_t i = 0; i < static_cast<std::size_t>(walk.depth); ++i) {
      loops.count[i] = walk.count[i];
      loops.stride[i] = walk.stride[i];
    }
  }
  const U64 length = across ? kAcrossPositions : kWithinPositions;
  row.splits = static_cast<U32>((outer * inner + length - 1) / length);
  std::vector<UnitCount> partials(row.splits > 1 ? row.splits * units : 0), results(units);
  row.partials = AddressOf(partials.data());
  row.results = AddressOf(results.data());
  std::vector<UnitsWork> work, joined;
  for (U64 unit = 0; unit < units; unit += across ? kAcrossUnits : kWithinUnits) {
    for (U32 split = 0; split < row.splits; ++split) work.push_back({0, split, unit});
  }
  for (U64 unit = 0; row.splits > 1 && unit < units; unit += kBlockThreads) joined.push_back({0, 0, unit});
  UnitsArguments arguments = {AddressOf(&row), AddressOf(&loops), AddressOf(work.data())};
  void* parameters[] = {&arguments};
  EXPECT_TRUE(
      testing::LaunchByName(kUnitsKernel, static_cast<unsigned>(work.size()), kBlockThreads, parameters));
  if (!joined.empty()) {
    ReduceUnitsArguments reduce = {AddressOf(&row), AddressOf(joined.data())};
    void* more[] = {&reduce};
    EXPECT_TRUE(
        testing::LaunchByName(kReduceUnitsKernel, static_cast<unsigned>(joined.size()), kBlockThreads, more));
  }
  UnitCounts counts;
  for (const UnitCount& unit : results) {
    counts.positive.push_back(unit.positive);
    counts.zero.push_back(unit.zero);
    counts.sum.push_back(unit.sum);
  }
  return counts;
}

void ExpectUnits(const UnitCounts& got, const UnitCounts& want) {
  EXPECT_EQ(got.positive, want.positive);
  EXPECT_EQ(got.zero, want.zero);
  ASSERT_EQ(got.sum.size(), want.sum.size());
  for (std::size_t i = 0; i < want.sum.size(); ++i) {
    const double most = static_cast<double>(want.values_per_unit) * 40;
    EXPECT_NEAR(got.sum[i], want.sum[i],
                std::isfinite(want.sum[i]) ? std::fabs(want.sum[i]) * 1e-9 + most * 1e-14 : 0);
  }
}

TEST_P(KernelsTest, Units_AreThoseOfTheCpu) {
  const DType dtype = GetParam();
  const Content content =
      IsFloating(dtype) && DTypeSize(dtype) >= 4 ? Content::kWithNonFinite : Content::kZeros;
  struct Shape {
    std::int64_t outer, units, inner;
  };
  for (const Shape shape :
       {Shape{1, 1, 1}, Shape{7, 40, 1}, Shape{3, 9, 50}, Shape{2100, 3, 1}, Shape{5, 2, 2000}}) {
    const std::int64_t dims[] = {shape.outer, shape.units, shape.inner};
    const auto count = static_cast<std::size_t>(shape.outer * shape.units * shape.inner);
    auto data = MakeElements(dtype, count, content, count);
    if (content == Content::kZeros) {  // small numbers, whatever their format
      for (std::size_t i = 0; i < data.size(); i += DTypeSize(dtype)) data[i] = static_cast<std::byte>(i % 5);
    }
    const TensorView view = {data.data(), Layout::Contiguous(dtype, dims).value()};
    UnitCounts want;
    ComputeUnits(view, UnitAxis::kChannel, &want);
    for (const bool across : {true, false}) {
      ExpectUnits(LaunchUnits(view, static_cast<U64>(shape.outer), static_cast<U64>(shape.units),
                              static_cast<U64>(shape.inner), across),
                  want);
    }
  }
}

TEST(KernelsOnUnits, ChannelsLast_AreReadAsTheyLie) {
  // (2, 3, 4, 5) with channels last is dense as (2 * 4 * 5, 3).
  const auto data = MakeElements(DType::kFloat32, 120, Content::kOrdinary, 1);
  const std::int64_t dims[] = {2, 3, 4, 5}, strides[] = {60, 1, 15, 3}, flat[] = {40, 3};
  UnitCounts want;
  ComputeUnits({data.data(), Layout::Strided(DType::kFloat32, dims, strides).value()}, UnitAxis::kChannel,
               &want);
  ExpectUnits(LaunchUnits({data.data(), Layout::Contiguous(DType::kFloat32, flat).value()}, 40, 3, 1, true),
              want);
  // As it is, by its loops.
  ExpectUnits(
      LaunchUnits({data.data(), Layout::Strided(DType::kFloat32, dims, strides).value()}, 2, 3, 20, false),
      want);
}

TEST(Kernels, VarianceOfOffsetValues_KeepsItsDigits) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    const std::size_t count = 100000;
    const auto data = MakeElements(dtype, count, Content::kOffset, 4);  // mean 1e6, deviation 1
    const Reference want = ReferenceSummary(dtype, data.data(), count);
    const Summary got = Launch({{.view = Flat(dtype, data.data(), count)}})[0].summary;
    const long double n = count, mean = want.sum / n;
    EXPECT_NEAR(got.variance(), static_cast<double>(want.sum_sq / n - mean * mean), 0.01) << DTypeName(dtype);
  }
}

TEST(Kernels, ValuesFarFromTheFirstOnes_KeepTheirDigits) {
  // The first elements of each thread make a centre that is far from all others.
  const std::size_t count = kChunkBytes / 4;
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = i < 4096 ? 1.0001234f : static_cast<float>(i % 7) * 1e-6f;
  const auto* data = reinterpret_cast<const std::byte*>(values.data());
  const Reference want = ReferenceSummary(DType::kFloat32, data, count);
  EXPECT_EQ(Mismatch(Launch({{.view = Flat(DType::kFloat32, data, count)}})[0].summary, want), "");
}

TEST(Kernels, SmallAndLargeFloats_KeepTheirDigits) {
  for (const float scale : {1e-44f, 1e-30f, 1e-19f, 1e15f, 1e25f, 3e38f}) {
    std::vector<float> values(20000);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = scale * (static_cast<float>(i % 100) / 100);
    const auto* data = reinterpret_cast<const std::byte*>(values.data());
    const Reference want = ReferenceSummary(DType::kFloat32, data, values.size());
    EXPECT_EQ(Mismatch(Launch({{.view = Flat(DType::kFloat32, data, values.size())}})[0].summary, want), "")
        << scale;
  }
}

TEST(Kernels, IndicesBeyond32Bits_AreRead) {
  // 2^33 + 5 elements that all lie at one place: one loop of stride 0.
  std::byte element{3};
  Row row{};
  row.data = AddressOf(&element);
  row.count = (U64{1} << 33) + 5;
  row.dtype = static_cast<U8>(DType::kUInt8);
  row.depth = 1;
  Loops loops{};
  loops.count[0] = row.count;
  const Work work = {0, static_cast<U32>((row.count - 1) / kChunkBytes)};
  std::vector<Statistics> partials(work.chunk + 1);
  Statistics result{};
  StatisticsArguments arguments = {AddressOf(&row),
                                   AddressOf(&loops),
                                   AddressOf(&work),
                                   AddressOf(partials.data()),
                                   AddressOf(&result),
                                   0,
                                   0};
  void* parameters[] = {&arguments};
  ASSERT_TRUE(testing::LaunchByName(kStatisticsKernel, 1, kBlockThreads, parameters));
  EXPECT_EQ(partials.back().count, 5u);
  EXPECT_EQ(partials.back().sum, 15.0);
  for (std::size_t i = 0; i + 1 < partials.size(); ++i) partials[i] = {7, 1, 1, 1, 2, 9, 1, 0, 0};
  const U32 joined = 0;
  ReduceArguments reduce = {arguments.rows, AddressOf(&joined), arguments.partials, arguments.results, 0, 0};
  void* more[] = {&reduce};
  ASSERT_TRUE(testing::LaunchByName(kReduceKernel, 1, kBlockThreads, more));
  EXPECT_EQ(result.count, 7 * (partials.size() - 1) + 5);
  EXPECT_EQ(result.min_bits, 2u);
  EXPECT_EQ(result.max_bits, 9u);
}

TEST(Launching, UnknownNamesAndOtherShapes_AreRefused) {
  ReadArguments arguments{};
  void* parameters[] = {&arguments};
  EXPECT_FALSE(testing::LaunchByName("luff_read_all", 1, kBlockThreads, parameters));
  EXPECT_FALSE(testing::LaunchByName(kReadKernel, 0, kBlockThreads, parameters));
  EXPECT_FALSE(testing::LaunchByName(kReadKernel, 1, 128, parameters));
  EXPECT_FALSE(testing::LaunchByName(kReadKernel, 1, kBlockThreads, nullptr));
}

TEST(Reading, TouchesEveryVectorOnce) {
  std::vector<std::array<U32, 4>> vectors(kChunkVectors + 3);
  vectors.back()[3] = 0x9e3779b9;  // what makes the thread that reads it write
  U32 sink = 0;
  ReadArguments arguments = {AddressOf(vectors.data()), vectors.size(), AddressOf(&sink)};
  void* parameters[] = {&arguments};
  ASSERT_TRUE(testing::LaunchByName(kReadKernel, 2, kBlockThreads, parameters));
  EXPECT_EQ(sink, 0x9e3779b9u);
}

TEST(RunBlock, BarriersKeepThreadsTogether_InEveryOrder) {
  for (const ThreadOrder order : {ThreadOrder::kForwards, ThreadOrder::kBackwards, ThreadOrder::kMixed}) {
    std::vector<int> reached(100);
    bool together = true;
    testing::RunBlock(100, order, [&](unsigned thread) {
      for (int round = 1; round <= 3; ++round) {
        ++reached[thread];
        testing::Barrier();
        for (const int other : reached) together = together && other >= round;
        testing::Barrier();
      }
    });
    EXPECT_TRUE(together);
  }
}

using RunBlockDeathTest = ::testing::Test;
TEST_F(RunBlockDeathTest, ABarrierThatSomeNeverReach_IsFound) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(testing::RunBlock(4, ThreadOrder::kForwards,
                                 [](unsigned thread) {
                                   if (thread != 2) testing::Barrier();
                                 }),
               "1 of 4 threads ended");
}

}  // namespace
}  // namespace luff::device::kernels_test
