#include "rules/facts/run_machines.h"

#include <algorithm>
#include <utility>

namespace luff::rules {
namespace {

constexpr std::size_t kMostWindows = 16;

}  // namespace

bool RunMachines::Refresh(const query::Trial& trial, std::int64_t now_ns) {
  if (now_ns != 0 && now_ns == asked_ns_) return read_;
  asked_ns_ = now_ns;
  windows_.clear();  // samples of a window may come late
  if (samples_ == nullptr) {
    auto opened = query::Samples::Open(trial.path());
    read_ = opened.ok();
    if (read_) samples_ = std::move(opened).value();
  } else {
    read_ = samples_->Refresh().ok();
  }
  return read_;
}

bool RunMachines::Cover(std::int64_t unix_ns) const {
  return measured() && std::ranges::all_of(samples_->hosts(), [&](const query::HostSamples& host) {
           return host.last_unix_ns() >= unix_ns || host.ended();
         });
}

const std::vector<profile::MachineUse>& RunMachines::In(std::int64_t from_ns, std::int64_t to_ns,
                                                        double least) {
  const auto known = std::ranges::find_if(windows_, [&](const Window& window) {
    return window.from_ns == from_ns && window.to_ns == to_ns && window.least == least;
  });
  if (known != windows_.end()) return known->machines;
  if (windows_.size() == kMostWindows) windows_.pop_front();
  Window& window = windows_.emplace_back(Window{from_ns, to_ns, least, {}});
  if (samples_ == nullptr) return window.machines;
  const double clock_s = static_cast<double>(to_ns - from_ns) * 1e-9;
  for (const query::HostSamples& host : samples_->hosts()) {
    auto use = profile::UseOf(host, {from_ns, to_ns});
    if (use.ok() && use->seconds >= least * clock_s) window.machines.push_back(std::move(use).value());
  }
  return window.machines;
}

}  // namespace luff::rules
