#include "luff/store/host_folder.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "luff/base/env.h"
#include "store/owned_folder.h"

namespace luff::store {
namespace {

constexpr std::uint64_t kMaxMessageBytes = 64 << 10, kMaxNumber = 999'999, kMaxNumberBytes = 16;

std::string NameOf(std::uint64_t number) {
  char name[32];
  std::snprintf(name, sizeof(name), "%06llu.json", static_cast<unsigned long long>(number));
  return name;
}

Result<OwnedFolder> OpenHosts(const std::string& run_path) {
  LUFF_ASSIGN_OR_RETURN(const OwnedFolder run, OwnedFolder::Open(run_path));
  return run.Below("hosts");
}

/// The number in a name that NameOf() makes; 0: it is none.
std::uint64_t NumberOf(const std::string& name) {
  std::uint64_t number = 0;
  const char* const end = name.data() + name.size();
  const auto [at, error] = std::from_chars(name.data(), end, number);
  return error == std::errc() && number <= kMaxNumber && name == NameOf(number) ? number : 0;
}

Result<std::string> ReadMessage(const std::string& run_path, const char* below, std::uint64_t number) {
  LUFF_ASSIGN_OR_RETURN(const OwnedFolder hosts, OpenHosts(run_path));
  LUFF_ASSIGN_OR_RETURN(const OwnedFolder folder, hosts.Below(below));
  auto text = folder.Read(NameOf(number), kMaxMessageBytes);
  const StatusCode code = text.ok() ? StatusCode::kOk : text.status().code();
  const bool never = code == StatusCode::kOutOfRange || code == StatusCode::kCorruption ||
                     code == StatusCode::kFailedPrecondition;
  // Another failure may be the decision's: it is read later, never left out.
  return never ? Result<std::string>(std::string()) : std::move(text);
}

}  // namespace

Status MakeHostFolder(const std::string& run_path) {
  LUFF_RETURN_IF_ERROR(Env::Real().MakeDirectories(run_path + "/hosts/in"));
  LUFF_RETURN_IF_ERROR(Env::Real().MakeDirectories(run_path + "/hosts/kept"));
  return Env::Real().MakeDirectories(run_path + "/hosts/out");
}

void ClearHostFolder(const std::string& run_path) {
  Env& env = Env::Real();
  const std::string folder = run_path + "/hosts";
  if (!env.Exists(folder)) return;
  for (const char* name : {"/begun", "/begun~", "/heard", "/heard~"})
    static_cast<void>(env.Remove(folder + name));
  for (const char* below : {"/in", "/kept", "/out"}) {
    const auto names = env.List(folder + below);
    if (!names.ok()) continue;
    for (const std::string& name : *names) static_cast<void>(env.Remove(folder + below + "/" + name));
  }
}

void RemoveHostFolder(const std::string& run_path) {
  ClearHostFolder(run_path);
  for (const char* folder : {"/hosts/in", "/hosts/kept", "/hosts/out", "/hosts"})
    static_cast<void>(rmdir((run_path + folder).c_str()));
}

bool HasHostFolder(const std::string& run_path) { return Env::Real().Exists(run_path + "/hosts/out"); }

std::optional<std::uint64_t> HostLogBegun(const std::string& run_path) {
  const auto folder = OpenHosts(run_path);
  if (!folder.ok()) return std::nullopt;
  const auto text = folder->Read("begun", kMaxNumberBytes);
  if (!text.ok()) return std::nullopt;
  std::uint64_t number = 0;
  const auto [at, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc() || at != text->data() + text->size() || number > kMaxNumber) return std::nullopt;
  return number;
}

std::uint64_t FirstKeptHostMessage(const std::string& run_path) {
  std::uint64_t first = 0;
  for (const char* below : {"/hosts/kept", "/hosts/in"}) {
    const auto names = Env::Real().List(run_path + below);
    if (!names.ok()) continue;
    for (const std::string& name : *names) {
      const std::uint64_t number = NumberOf(name);
      if (number != 0 && (first == 0 || number < first)) first = number;
    }
  }
  return first;
}

Result<std::string> ReadKeptHostMessage(const std::string& run_path, std::uint64_t number) {
  return ReadMessage(run_path, "kept", number);
}

Result<std::string> TakeHostMessage(const std::string& run_path, std::uint64_t number) {
  LUFF_ASSIGN_OR_RETURN(std::string text, ReadMessage(run_path, "in", number));
  const std::string name = NameOf(number), from = run_path + "/hosts/in/" + name;
  if (!Env::Real().Rename(from, run_path + "/hosts/kept/" + name).ok()) {
    const Status removed = Env::Real().Remove(from);
    static_cast<void>(removed);  // its number is not asked for again
  }
  return text;
}

void DropHostMessage(const std::string& run_path, std::uint64_t number) {
  const Status removed = Env::Real().Remove(run_path + "/hosts/kept/" + NameOf(number));
  static_cast<void>(removed);
}

Status GiveHostMessage(const std::string& run_path, std::uint64_t sequence, const std::string& object) {
  if (sequence > kMaxNumber) return OutOfRange("a supervisor has sent a million messages to the other hosts");
  if (object.size() > kMaxMessageBytes)
    return OutOfRange(
        "a message to the other hosts is larger than 64 KiB: the job has too many ranks or hosts");
  return WriteNewFile(Env::Real(), run_path + "/hosts/out/" + NameOf(sequence), object);
}

bool TakeBackHostMessage(const std::string& run_path, std::uint64_t sequence) {
  // The upload renames a file before it begins to put it, so of the two one succeeds.
  return Env::Real().Remove(run_path + "/hosts/out/" + NameOf(sequence)).ok();
}

bool TakeBackAllHostMessages(const std::string& run_path) {
  const auto names = Env::Real().List(run_path + "/hosts/out");
  if (!names.ok()) return false;
  for (const std::string& name : *names) {
    if (const std::uint64_t number = NumberOf(name); number != 0)
      static_cast<void>(TakeBackHostMessage(run_path, number));
  }
  const auto left = Env::Real().List(run_path + "/hosts/out");
  return left.ok() && std::ranges::none_of(*left, [](const auto& name) { return name.ends_with(".sent"); });
}

}  // namespace luff::store
