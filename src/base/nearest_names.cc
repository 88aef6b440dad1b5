#include "base/nearest_names.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace luff {
namespace {

/// Levenshtein distance, ignoring case. Texts are cut at 128 bytes.
std::size_t EditDistance(std::string_view a, std::string_view b) {
  a = a.substr(0, 128);
  b = b.substr(0, 128);
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  const auto lower = [](char c) { return std::tolower(static_cast<unsigned char>(c)); };
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (lower(a[i - 1]) == lower(b[j - 1]) ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

}  // namespace

std::vector<std::string> NearestNames(std::string_view name, std::span<const std::string> known) {
  std::vector<std::pair<std::size_t, std::size_t>> ranked;  // distance, position
  for (std::size_t i = 0; i < known.size(); ++i) {
    // A known name that contains `name` is near, however long it is.
    const bool holds = !name.empty() && known[i].find(name) != std::string::npos;
    ranked.emplace_back(holds ? 0 : 1 + EditDistance(name, known[i]), i);
  }
  const std::size_t wanted = std::min<std::size_t>(3, ranked.size());
  std::partial_sort(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(wanted), ranked.end());
  std::vector<std::string> nearest;
  for (std::size_t i = 0; i < wanted; ++i) nearest.push_back(known[ranked[i].second]);
  return nearest;
}

}  // namespace luff
