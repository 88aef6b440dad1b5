#include "base/nearest_names.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <tuple>

namespace luff {
namespace {

constexpr std::size_t kNamed = 3;
constexpr std::size_t kMaxBytes = 128;  // compared of a name
constexpr std::size_t kAffixCost = 2;   // at most, of a name that only goes on, or ends earlier
constexpr std::size_t kShortest = 2;    // of what another name begins with or contains
constexpr std::size_t kFartherBy = 2;   // than the nearest one; what is farther is left out

std::string Lower(std::string_view text) {
  std::string lower(text.substr(0, kMaxBytes));
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

/// Edits of letters between two texts: one put in, left out, replaced, or exchanged with its neighbour
/// (optimal string alignment distance).
std::size_t EditDistance(std::string_view a, std::string_view b) {
  std::array<std::vector<std::size_t>, 3> rows;  // of i - 2, i - 1 and i
  for (auto& row : rows) row.resize(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) rows[1][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    auto& [before, last, row] = rows;
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::rotate(rows.begin(), rows.begin() + 1, rows.end());
  }
  return rows[1][b.size()];
}

struct Near {
  bool contained = false;  // and no more than that
  std::size_t cost = 0, bytes = 0, place = 0;
  [[nodiscard]] auto order() const { return std::tuple(contained, cost, bytes, place); }
};

std::optional<Near> NearnessOf(const std::string& name, const std::string& known) {
  Near near{false, EditDistance(name, known), known.size(), 0};
  const bool few = near.cost <= std::max<std::size_t>(1, name.size() / 3) && near.cost < name.size();
  const bool goes_on = name.size() >= kShortest && known.starts_with(name);
  const bool ends_earlier = known.size() > kShortest && name.starts_with(known);
  if (goes_on || ends_earlier) near.cost = std::min(near.cost, kAffixCost);
  if (few || goes_on || ends_earlier) return near;
  if (name.size() < kShortest || known.find(name) == std::string::npos) return {};
  near.contained = true;
  near.cost = 0;
  return near;
}

}  // namespace

std::vector<std::string> NearestNames(std::string_view name, std::span<const std::string> known) {
  const std::string wanted = Lower(name);
  std::vector<Near> ranked;
  for (std::size_t i = 0; i < known.size(); ++i) {
    std::optional<Near> near = NearnessOf(wanted, Lower(known[i]));
    if (!near) continue;
    near->place = i;
    ranked.push_back(*near);
  }
  std::ranges::sort(ranked, {}, &Near::order);
  std::vector<std::string> nearest;
  for (const Near& near : ranked) {
    if (nearest.size() == kNamed) break;
    if (!near.contained && near.cost > ranked.front().cost + kFartherBy) continue;
    nearest.push_back(known[near.place]);
  }
  return nearest;
}

std::string NearestText(std::string_view name, std::span<const std::string> known) {
  std::string text;
  for (const std::string& near : NearestNames(name, known))
    text += (text.empty() ? "; nearest: " : ", ") + near;
  return text;
}

}  // namespace luff
