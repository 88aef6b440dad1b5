#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <string_view>

#include "keys/secret_key.h"
#include "luff/store/control.h"

/// `--key FILE`, for verbs that command a job which has keys.
namespace luff::cli {

inline constexpr std::int64_t kSignedForNs = 300'000'000'000;  // how long what the command signs counts

void AddKeyOption(CLI::App* verb, std::string* key);
/// The key in this file; "": in the one that LUFF_KEY names. Exits without either, or if it cannot be read.
[[nodiscard]] keys::SecretKey KeyOrExit(const std::string& file);
/// What signs a record for the run, or null where nothing has to be signed: no key was given, and the run has
/// none or nobody supervises it. Exits if the run has keys and no key was given, or one that may not do this.
/// `right`: of keys::kRights.
[[nodiscard]] store::RecordSigner SignerOrExit(const std::string& file, const std::string& run,
                                               std::string_view right);
/// Exits if the run's keys do not have this one with this right: the job would refuse it.
void ExitUnlessAllowed(const keys::SecretKey& key, const std::string& run, std::string_view right);
/// The id in a run's run.json. Exits without one.
[[nodiscard]] std::string RunIdOrExit(const std::string& run);

}  // namespace luff::cli
