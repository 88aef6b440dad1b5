#include "server/payload.h"

#include <bit>
#include <cstring>

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace luff::server {

static_assert(std::endian::native == std::endian::little);

void Payload::Put(std::string name, const char* dtype, std::span<const std::byte> bytes, std::size_t size,
                  std::size_t columns) {
  const std::size_t begin = data_.size();
  data_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  arrays_.push_back({std::move(name), dtype, size, columns, begin, data_.size()});
  // The format knows no holes: arrays that end between are followed by one that fills them up.
  if (const std::size_t over = data_.size() % 8; over != 0) {
    const std::size_t from = data_.size();
    data_.append(8 - over, '\0');
    arrays_.push_back({"_" + arrays_.back().name, "U8", 8 - over, 0, from, data_.size()});
  }
}

std::string Payload::Bytes() const {
  nlohmann::ordered_json header;
  header["__metadata__"] = texts_;
  for (const Array& array : arrays_) {
    std::vector<std::size_t> shape = {array.size};
    if (array.columns != 0) shape = {array.size / array.columns, array.columns};
    header[array.name] = {
        {"dtype", array.dtype}, {"shape", shape}, {"data_offsets", {array.begin, array.end}}};
  }
  std::string text = JsonText(header);
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string bytes(8, '\0');
  const std::uint64_t length = text.size();
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + text + data_;
}

}  // namespace luff::server
