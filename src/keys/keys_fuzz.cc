// Fuzzes what is read of keys and signed requests: files of keys, records of keys, objects of a bucket,
// signed texts.
#include <cstdlib>
#include <string_view>

#include "keys/gate.h"
#include "keys/order.h"
#include "keys/secret_key.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  namespace keys = luff::keys;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)keys::SecretKey::ParseUntrusted(text).ok();
  (void)keys::ParseTime(text).ok();
  if (const auto known = keys::ParseKeysUntrusted(text); known.ok()) {
    const auto again = keys::ParseKeysUntrusted(keys::KeysText(*known));
    if (!again.ok() || again->size() != known->size()) std::abort();
  }
  if (const auto order = keys::ParseOrderUntrusted(text); order.ok()) {
    const auto again = keys::ParseOrderUntrusted(keys::OrderText(*order));
    if (again.ok() && again->nonce != order->nonce) std::abort();
    (void)keys::RightOf(*order);
  }
  keys::KeyGate gate(
      {{.id = "k", .ed25519 = std::string(keys::kPublicBytes, '\1'), .may = {"stop"}, .expires_unix_s = 0}});
  gate.SetRun(std::string(32, '0'));
  if (gate.Open(text, 1).ok()) std::abort();  // nobody has signed it
  return 0;
}
