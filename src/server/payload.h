#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace luff::server {

/// Numbers in safetensors' format: the length of a JSON header (U64), the header, then the arrays,
/// little-endian and aligned to 8 bytes.
class Payload {
 public:
  /// `what`: texts that readers find under `__metadata__`.
  void Tell(std::string what, std::string text) { texts_[std::move(what)] = std::move(text); }
  void Add(std::string name, std::span<const std::int64_t> values) {
    Put(std::move(name), "I64", std::as_bytes(values), values.size());
  }
  void Add(std::string name, std::span<const double> values) {
    Put(std::move(name), "F64", std::as_bytes(values), values.size());
  }
  void Add(std::string name, std::span<const float> values) {
    Put(std::move(name), "F32", std::as_bytes(values), values.size());
  }
  void Add(std::string name, std::span<const std::uint8_t> values) {
    Put(std::move(name), "U8", std::as_bytes(values), values.size());
  }
  /// Rows of `columns` values.
  void AddRows(std::string name, std::span<const double> values, std::size_t columns) {
    Put(std::move(name), "F64", std::as_bytes(values), values.size(), columns);
  }
  void AddRows(std::string name, std::span<const std::int64_t> values, std::size_t columns) {
    Put(std::move(name), "I64", std::as_bytes(values), values.size(), columns);
  }
  /// Bytes of the arrays so far.
  [[nodiscard]] std::size_t size() const noexcept { return data_.size(); }
  [[nodiscard]] std::string Bytes() const;

 private:
  struct Array {
    std::string name;
    const char* dtype;
    std::size_t size, columns, begin, end;  // columns: 0 of an array without rows
  };
  void Put(std::string name, const char* dtype, std::span<const std::byte> bytes, std::size_t size,
           std::size_t columns = 0);

  std::map<std::string, std::string> texts_;
  std::vector<Array> arrays_;
  std::string data_;
};

}  // namespace luff::server
