#include "cli/tensor_names.h"

#include <algorithm>
#include <cctype>

#include "base/format.h"
#include "rules/kit/need_names.h"

namespace luff::cli {
namespace {

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

bool IsOfRole(const query::TensorInfo& info, const std::string& word) {
  const auto role = static_cast<std::size_t>(info.role);
  return word == Lower(rules::RoleText(info.role)) ||
         (role < rules::kRolePlurals.size() && word == rules::kRolePlurals[role]);
}

template <typename Chosen>
std::vector<std::string> NamesOf(const query::Trial& trial, const Chosen& chosen) {
  std::vector<std::string> names;
  for (std::size_t n = 0; n < trial.tensor_count(); ++n) {
    const query::TensorInfo& info = trial.tensor(static_cast<query::TensorId>(n));
    if (chosen(info)) names.push_back(info.name);
  }
  return names;
}

}  // namespace

std::vector<std::string> NamesMeantBy(const query::Trial& trial, std::string_view word) {
  const std::string wanted = Lower(word);
  std::vector<std::string> names = NamesOf(trial, [&](const query::TensorInfo& info) {
    return IsOfRole(info, wanted) ||
           std::find(info.collections.begin(), info.collections.end(), word) != info.collections.end();
  });
  if (!names.empty() || wanted.empty()) return names;
  return NamesOf(trial, [&](const query::TensorInfo& info) {
    return Lower(info.name).find(wanted) != std::string::npos;
  });
}

Result<query::TensorId> FindMeant(const query::Trial& trial, const std::string& word) {
  constexpr std::size_t kListed = 8;
  Result<query::TensorId> exact = trial.FindTensor(word);
  if (exact.ok() || exact.status().code() != StatusCode::kNotFound) return exact;
  const std::vector<std::string> names = NamesMeantBy(trial, word);
  if (names.empty()) return exact;
  if (names.size() == 1) return trial.FindTensor(names.front());
  std::string listed;
  for (std::size_t n = 0; n < std::min(names.size(), kListed); ++n)
    listed += fmt::format("{}\"{}\"", n == 0 ? "" : ", ", names[n]);
  return NotFound(fmt::format(
      "no tensor \"{}\"; it may mean {}{}; name one: {}", word, listed,
      names.size() > kListed ? fmt::format(" and {} more", names.size() - kListed) : "", trial.path()));
}

}  // namespace luff::cli
