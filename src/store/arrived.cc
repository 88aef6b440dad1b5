#include "luff/store/arrived.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string_view>

#include "luff/base/env.h"
#include "store/owned_folder.h"

namespace luff::store {
namespace {

constexpr const char* kFolder = "requests";
constexpr std::string_view kObject = ".json", kProblem = ".problem";
constexpr std::size_t kDigits = 6;

/// The number in a name of six digits and `ending`; 0 if it is none.
std::uint64_t NumberOf(std::string_view name, std::string_view ending) {
  if (name.size() != kDigits + ending.size() || !name.ends_with(ending)) return 0;
  std::uint64_t number = 0;
  const auto [at, error] = std::from_chars(name.data(), name.data() + kDigits, number);
  return error == std::errc() && at == name.data() + kDigits ? number : 0;
}

std::string NameOf(std::uint64_t number, std::string_view ending) {
  char digits[16];
  std::snprintf(digits, sizeof(digits), "%06llu", static_cast<unsigned long long>(number % 1'000'000));
  return std::string(digits) + std::string(ending);
}

}  // namespace

Status WantArrivals(const std::string& run_path) {
  Env& env = Env::Real();
  const std::string folder = run_path + "/" + kFolder;
  return env.Exists(folder) ? Status::Ok() : env.MakeDirectory(folder);
}

Result<std::vector<Arrived>> ReadArrived(const std::string& run_path, std::size_t most) {
  LUFF_ASSIGN_OR_RETURN(const OwnedFolder run, OwnedFolder::Open(run_path));
  LUFF_ASSIGN_OR_RETURN(const OwnedFolder folder, run.Below(kFolder));
  LUFF_ASSIGN_OR_RETURN(std::vector<std::string> names, folder.List());
  std::ranges::sort(names);
  std::vector<Arrived> all;
  for (const std::string& name : names) {
    if (all.size() == most) break;
    Arrived one;
    const std::uint64_t object = NumberOf(name, kObject);
    one.number = object != 0 ? object : NumberOf(name, kProblem);
    if (one.number == 0) continue;
    auto text = folder.Read(name, kMaxArrivedBytes);
    if (!text.ok()) {
      one.problem = text.status().message();
    } else if (object != 0) {
      one.bytes = *std::move(text);
    } else {
      one.problem = text->substr(0, 1000);
    }
    all.push_back(std::move(one));
  }
  return all;
}

Status RemoveArrived(const std::string& run_path, std::uint64_t number) {
  Env& env = Env::Real();
  Status removed = Status::Ok();
  for (const std::string_view ending : {kObject, kProblem}) {
    const std::string path = run_path + "/" + kFolder + "/" + NameOf(number, ending);
    if (!env.Exists(path)) continue;
    if (Status one = env.Remove(path); !one.ok()) removed = std::move(one);
  }
  return removed;
}

}  // namespace luff::store
