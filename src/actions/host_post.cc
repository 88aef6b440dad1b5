#include "luff/actions/host_post.h"

#include <utility>

#include "luff/base/env.h"
#include "luff/store/host_folder.h"

namespace luff::actions {
namespace {

constexpr std::size_t kAtOnce = 64;  // messages that are taken

}  // namespace

FolderPost::FolderPost(std::string run) : run_(std::move(run)) { store::ClearHostFolder(run_); }

void FolderPost::Look() {
  // The folder of a run is empty until the training makes the run.
  if (!made_ && Env::Real().Exists(run_ + "/run.json")) made_ = store::MakeHostFolder(run_).ok();
}

bool FolderPost::reaches() {
  if (next_ != 0) return true;
  if (const auto begun = store::HostLogBegun(run_); made_ && begun) next_ = *begun + 1;
  return next_ != 0;
}

Status FolderPost::Send(std::uint64_t sequence, const std::string& object) {
  return store::GiveHostMessage(run_, sequence, object);
}

bool FolderPost::TakeBack(std::uint64_t sequence) { return store::TakeBackHostMessage(run_, sequence); }

std::vector<std::string> FolderPost::Take() {
  // Not as many come of one proposal; who goes on without the first of them is of no use, and ends.
  constexpr std::uint64_t kMostKept = 1'500;
  std::vector<std::string> messages;
  while (reaches() && messages.size() < kAtOnce) {
    auto message = store::TakeHostMessage(run_, next_);
    if (!message.ok()) break;  // none is there, or not now
    messages.push_back(*std::move(message));
    if (kept_ == 0) kept_ = next_;
    ++next_;
  }
  if (kept_ != 0 && next_ - kept_ > kMostKept) Release();
  return messages;
}

void FolderPost::Release() {
  for (; kept_ != 0 && kept_ < next_; ++kept_) store::DropHostMessage(run_, kept_);
  kept_ = 0;
}

Status InheritedPost::Send(std::uint64_t, const std::string&) {
  return FailedPrecondition("the supervisor has died");
}

bool InheritedPost::TakeBack(std::uint64_t) { return store::TakeBackAllHostMessages(run_); }

std::vector<std::string> InheritedPost::Take() {
  std::vector<std::string> messages;
  if (next_ == 0) next_ = store::FirstKeptHostMessage(run_);
  while (next_ != 0 && messages.size() < kAtOnce) {
    auto message = store::ReadKeptHostMessage(run_, next_);
    if (!message.ok()) message = store::TakeHostMessage(run_, next_);
    if (!message.ok()) break;
    messages.push_back(*std::move(message));
    ++next_;
  }
  return messages;
}

}  // namespace luff::actions
