#pragma once
#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "luff/base/result.h"

/// Saves and loads the state of a rule: one VisitFields function does both.
///
///     void VisitFields(Fields& io) {
///       io("updates", updates_);
///       io("layers", layers_, kMaxLayers);  // a map whose values have VisitFields(Fields&) themselves
///     }
namespace luff::rules {

class Fields;

template <typename T>
concept HasFields = requires(T& value, Fields& io) { value.VisitFields(io); };

/// **Not thread-safe.** Saves to JSON, or loads from it. Loading checks types, ranges and sizes. It stops at
/// the first mismatch, and the error names the field by its path.
class Fields {
 public:
  static constexpr std::size_t kMost = 1 << 20;  // default bound on the entries of a list or map

  /// Returns the fields that `visit` names as JSON text.
  [[nodiscard]] static std::string Save(const std::function<void(Fields&)>& visit);
  /// Errors: kCorruption if the text is not JSON, a field is missing or has another type, a whole number is
  /// beyond its type (signed: or beyond 2^53), a list is longer than its bound, or a Check fails.
  [[nodiscard]] static Status LoadUntrusted(std::string_view json, const std::function<void(Fields&)>& visit);

  Fields(const Fields&) = delete;
  Fields& operator=(const Fields&) = delete;
  ~Fields();

  [[nodiscard]] bool loading() const noexcept;

  /// Saves or loads one field. `most`: largest number of entries of a list or map.
  template <typename T>
  void operator()(std::string_view name, T& value, std::size_t most = kMost) {
    if (!Enter(name)) return;
    One(value, most);
    Leave();
  }

  /// Fails the load unless `holds`; `what` names the expected value. Does nothing when saving.
  void Check(bool holds, std::string_view what);

 private:
  Fields();
  struct State;

  [[nodiscard]] bool Enter(std::string_view name);  // a member of the current object
  [[nodiscard]] bool EnterItem(std::size_t index);  // of the current list; appended when saving
  void Leave();
  [[nodiscard]] std::size_t List(std::size_t count,
                                 std::size_t most);  // saving: makes a list; loading: its length
  [[nodiscard]] std::vector<std::string> Names(
      std::size_t most);                  // saving: makes an object; loading: its members' names
  [[nodiscard]] bool Null(bool is_null);  // saving: writes null; loading: whether it is null
  void Bool(bool& value);
  void Whole(std::int64_t& value, std::int64_t least, std::int64_t largest);
  void Unsigned(std::uint64_t& value, std::uint64_t largest);
  void Real(double& value);
  void Text(std::string& value);

  template <typename T>
  void One(T& value, std::size_t most) {
    if constexpr (HasFields<T>) {
      value.VisitFields(*this);
    } else if constexpr (std::is_same_v<T, bool>) {
      Bool(value);
    } else if constexpr (std::is_same_v<T, std::string>) {
      Text(value);
    } else if constexpr (std::is_enum_v<T>) {
      auto number = static_cast<std::underlying_type_t<T>>(value);
      One(number, most);
      value = static_cast<T>(number);
    } else if constexpr (std::signed_integral<T>) {
      std::int64_t number = value;
      Whole(number, std::numeric_limits<T>::min(), std::numeric_limits<T>::max());
      value = static_cast<T>(number);
    } else if constexpr (std::unsigned_integral<T>) {
      std::uint64_t number = value;
      Unsigned(number, std::numeric_limits<T>::max());
      value = static_cast<T>(number);
    } else if constexpr (std::floating_point<T>) {
      double number = value;
      Real(number);
      value = static_cast<T>(number);
    } else if constexpr (requires { typename T::mapped_type; }) {
      Map(value, most);
    } else if constexpr (requires { value.has_value(); }) {
      if (Null(!value.has_value())) {
        value.reset();
        return;
      }
      if (!value.has_value()) value.emplace();
      One(*value, most);
    } else if constexpr (requires {
                           value.first;
                           value.second;
                         }) {
      if (List(2, 2) != 2) return Check(false, "a pair");
      Item(0, value.first, most);
      Item(1, value.second, most);
    } else if constexpr (requires { typename T::key_type; }) {
      Set(value, most);
    } else if constexpr (requires { value.resize(1); }) {
      const std::size_t count = List(value.size(), most);
      if (loading()) {
        value.clear();
        value.resize(count);
      }
      for (std::size_t i = 0; i < count; ++i) Item(i, value[i], most);
    } else {  // std::array
      const std::size_t count = List(value.size(), value.size());
      Check(count == value.size(), "a list of fixed length");
      for (std::size_t i = 0; i < count; ++i) Item(i, value[i], most);
    }
  }

  template <typename T>
  void Item(std::size_t index, T& value, std::size_t most) {
    if (!EnterItem(index)) return;
    One(value, most);
    Leave();
  }

  // Text keys become names of members, other maps a list of pairs. Sorted by key, so that equal states give
  // equal text.
  template <typename M>
  void Map(M& map, std::size_t most) {
    using Key = typename M::key_type;
    if constexpr (std::is_same_v<Key, std::string>) {
      if (loading()) map.clear();
      for (const std::string& name : Names(most)) (*this)(name, map[name], most);
      if (!loading()) {
        for (auto& [name, value] : map) (*this)(name, value, most);
      }
    } else {
      std::vector<std::pair<Key, typename M::mapped_type>> pairs;
      if (!loading()) {
        pairs.assign(map.begin(), map.end());
        std::sort(pairs.begin(), pairs.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
      }
      One(pairs, most);
      if (!loading()) return;
      map.clear();
      for (auto& [key, value] : pairs) map.emplace(std::move(key), std::move(value));
    }
  }

  template <typename S>
  void Set(S& set, std::size_t most) {
    std::vector<typename S::key_type> keys;
    if (!loading()) {
      keys.assign(set.begin(), set.end());
      std::sort(keys.begin(), keys.end());
    }
    One(keys, most);
    if (loading()) set = S(keys.begin(), keys.end());
  }

  std::unique_ptr<State> state_;
};

}  // namespace luff::rules
