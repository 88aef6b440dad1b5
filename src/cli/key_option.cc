#include "cli/key_option.h"

#include <cstdlib>
#include <memory>
#include <utility>

#include "base/format.h"
#include "cli/json.h"
#include "cli/reading.h"
#include "cli/terminal.h"
#include "keys/gate.h"
#include "keys/order.h"
#include "luff/base/env.h"
#include "luff/store/owner.h"
#include "luff/store/reader.h"

namespace luff::cli {
namespace {

std::string Given(const std::string& file) {
  if (!file.empty()) return file;
  const char* const named = std::getenv("LUFF_KEY");
  return named != nullptr ? named : "";
}

}  // namespace

void AddKeyOption(CLI::App* verb, std::string* key) {
  verb->add_option("--key", *key,
                   "File of the key that signs it (luff keys new); default: the one that LUFF_KEY names");
}

keys::SecretKey KeyOrExit(const std::string& file) {
  const std::string path = Given(file);
  if (path.empty())
    ExitWithError(
        InvalidArgument("nothing signs it; give --key FILE, or set LUFF_KEY to the file (luff keys new)"));
  return ValueOrExit(keys::SecretKey::Read(path));
}

std::string RunIdOrExit(const std::string& run) {
  std::string id = ValueOrExit(store::ReadRunId(run));
  if (id.empty()) ExitWithError(Corruption("found no run_id: " + run + "/run.json"));
  return id;
}

void ExitUnlessAllowed(const keys::SecretKey& key, const std::string& run, std::string_view right) {
  const auto known = keys::KeysOfRun(run);
  const keys::PublicKey* const found = keys::FindKey(known, key.id());
  std::string names;
  for (const keys::PublicKey& one : known) names += (names.empty() ? "" : ", ") + one.id;
  if (found == nullptr) {
    ExitWithError(
        FailedPrecondition(fmt::format("the job would refuse it: its luff.toml has {}, not '{}'; `luff keys "
                                       "check FILE` prints the lines to add",
                                       names.empty() ? "no keys" : "the keys " + names, key.id())));
  }
  if (found->ed25519 != key.ed25519()) {
    ExitWithError(
        FailedPrecondition(fmt::format("the job would refuse it: its luff.toml has another key named '{}'; "
                                       "`luff keys check FILE` prints this one",
                                       key.id())));
  }
  if (found->expired(Env::Real().NowUnixNs() / 1'000'000'000)) {
    ExitWithError(FailedPrecondition(fmt::format("the job would refuse it: key '{}' has expired on {}",
                                                 key.id(), keys::TimeOf(found->expires_unix_s))));
  }
  if (!found->May(right)) {
    ExitWithError(FailedPrecondition(fmt::format("the job would refuse it: key '{}' may not {}; it may {}",
                                                 key.id(), right, fmt::join(found->may, ", "))));
  }
}

store::RecordSigner SignerOrExit(const std::string& file, const std::string& run, std::string_view right) {
  const bool needed = !keys::KeysOfRun(run).empty() && store::SupervisorLock::IsTaken(run);
  if (Given(file).empty()) {
    if (!needed) return {};
    ExitWithError(
        FailedPrecondition("this job obeys only what is signed ([control] keys of its luff.toml); give --key "
                           "FILE, or set LUFF_KEY"));
  }
  auto key = std::make_shared<const keys::SecretKey>(KeyOrExit(file));
  if (keys::KeysOfRun(run).empty()) return {};  // LUFF_KEY may be set for other jobs
  ExitUnlessAllowed(*key, run, right);
  return [key, id = RunIdOrExit(run)](store::ControlRecord* record) {
    return keys::SignRecord(*key, id, kSignedForNs, record);
  };
}

}  // namespace luff::cli
