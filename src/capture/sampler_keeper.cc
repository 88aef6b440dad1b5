#include "capture/sampler_keeper.h"

#include <exception>
#include <utility>

#include "base/start_apart.h"
#include "luff/store/owner.h"
#include "luff/store/reader.h"

namespace luff::capture {
namespace {

constexpr int kMostStarts = 2;
constexpr std::int64_t kLookEveryNs = 5'000'000'000;

}  // namespace

SamplerKeeper::SamplerKeeper(std::string program, std::vector<std::string> environment, std::string run_path)
    : program_(std::move(program)),
      environment_(std::move(environment)),
      run_path_(std::move(run_path)),
      folder_(store::HostFolder(run_path_, store::ThisHostNumber())) {}

void SamplerKeeper::Look(std::int64_t now_ns) noexcept {
  if (program_.empty() || starts_ >= kMostStarts) return;
  if (next_ns_ == 0) next_ns_ = now_ns + 1;  // a training that ends at once is not measured
  if (now_ns < next_ns_) return;
  next_ns_ = now_ns + kLookEveryNs;
  try {
    const auto writer = store::WriterOf(folder_);
    if (writer && !writer->ended) return;
    ++starts_;
    if (!StartApart({program_, "_sample", "--", run_path_}, environment_)) starts_ = kMostStarts;
  } catch (const std::exception&) {
    starts_ = kMostStarts;  // no memory: nothing is measured
  }
}

}  // namespace luff::capture
