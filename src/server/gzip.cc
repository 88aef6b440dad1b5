#include "server/gzip.h"

#include <array>
#include <cstdint>

#include <boost/beast/zlib/deflate_stream.hpp>
#include <boost/beast/zlib/inflate_stream.hpp>

namespace luff::server {
namespace {

namespace zlib = boost::beast::zlib;

constexpr std::size_t kHead = 10, kTail = 8;
// Behind what comes out: with less left, Beast takes bytes of the tail that it does not give back.
constexpr std::size_t kRoom = 4096;
constexpr int kLevel = 6, kWindowBits = 15, kMemory = 8;

constexpr std::array<std::uint32_t, 256> kCrcTable = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0xEDB88320U : 0U);
    table[i] = crc;
  }
  return table;
}();

/// Of more bytes: `crc` is that of those before them.
std::uint32_t Crc32(std::string_view bytes, std::uint32_t crc = 0) {
  crc = ~crc;
  for (const char byte : bytes) crc = kCrcTable[(crc ^ static_cast<std::uint8_t>(byte)) & 0xFFU] ^ (crc >> 8);
  return ~crc;
}

void PutNumber32(std::size_t number, std::string* to) {
  for (int shift = 0; shift < 32; shift += 8) to->push_back(static_cast<char>((number >> shift) & 0xFFU));
}

}  // namespace

struct GzipStream::State {
  zlib::deflate_stream stream;
  std::array<char, 64 << 10> room;
  std::size_t bytes = 0;
  std::uint32_t crc = 0;
  bool begun = false;

  void Write(std::string_view more, zlib::Flush flush, std::string* to) {
    // No name, no time: equal bytes, equal result.
    if (!begun) to->append("\x1f\x8b\x08\0\0\0\0\0\0\xff", kHead);
    begun = true;
    zlib::z_params state;
    state.next_in = more.data();
    state.avail_in = more.size();
    do {
      state.next_out = room.data();
      state.avail_out = room.size();
      boost::beast::error_code error;  // that there is nothing more to do
      stream.write(state, flush, error);
      to->append(room.data(), room.size() - state.avail_out);
    } while (state.avail_out == 0 || state.avail_in != 0);
  }
};

GzipStream::GzipStream() : state_(std::make_unique<State>()) {
  state_->stream.reset(kLevel, kWindowBits, kMemory, zlib::Strategy::normal);
}
GzipStream::~GzipStream() = default;

void GzipStream::Add(std::string_view bytes, std::string* to) {
  state_->crc = Crc32(bytes, state_->crc);
  state_->bytes += bytes.size();
  state_->Write(bytes, zlib::Flush::none, to);
}

void GzipStream::Finish(std::string* to) {
  state_->Write({}, zlib::Flush::finish, to);
  PutNumber32(state_->crc, to);
  PutNumber32(state_->bytes, to);
}

std::string Gzipped(std::string_view bytes) {
  std::string gzip;
  GzipStream stream;
  stream.Add(bytes, &gzip);
  stream.Finish(&gzip);
  return gzip;
}

Result<std::string> Gunzipped(std::string_view gzip, std::size_t most) {
  if (gzip.size() < kHead + kTail || !gzip.starts_with("\x1f\x8b\x08") || gzip[3] != 0)
    return Corruption("this is no gzip member without optional fields");
  zlib::inflate_stream stream;
  zlib::z_params state;
  state.next_in = gzip.data() + kHead;
  state.avail_in = gzip.size() - kHead;  // with the tail: the stream's last code may end within its last byte
  std::size_t size = 0;                  // as its last four bytes say
  for (std::size_t i = 1; i <= 4; ++i) size = size << 8 | static_cast<std::uint8_t>(gzip[gzip.size() - i]);
  if (size > most) return Corruption("the gzip member is larger than it may be");
  std::string bytes(size + kRoom, '\0');
  state.next_out = bytes.data();
  state.avail_out = bytes.size();
  boost::beast::error_code error;
  while (!error) stream.write(state, zlib::Flush::sync, error);  // the last code may take another call
  bytes.resize(bytes.size() - state.avail_out);
  std::string tail;
  PutNumber32(Crc32(bytes), &tail);
  PutNumber32(bytes.size(), &tail);
  if (error != zlib::error::end_of_stream || state.avail_in != kTail ||
      tail != gzip.substr(gzip.size() - kTail))
    return Corruption("the gzip member is damaged");
  return bytes;
}

}  // namespace luff::server
