#include <charconv>
#include <memory>
#include <optional>

#include "base/format.h"
#include "cli/config_file.h"
#include "cli/json.h"
#include "cli/key_option.h"
#include "cli/reading.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "keys/gate.h"
#include "keys/public_key.h"
#include "luff/base/env.h"

/// `luff keys new` and `luff keys check`: keys that sign what a job is asked for.
namespace luff::cli {
namespace {

struct KeysOptions {
  std::string file, id, expires, config, run;
  std::vector<std::string> may{"stop"};
  bool json = false, encryption = false;
};

std::int64_t NowS() { return Env::Real().NowUnixNs() / 1'000'000'000; }

/// "90d", "12h" or a day -> seconds since 1970.
std::int64_t ExpiryOrExit(const std::string& text) {
  if (text.empty()) return 0;
  std::int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number);
  const std::int64_t unit = at + 1 != end ? 0 : *at == 'd' ? 86400 : *at == 'h' ? 3600 : 0;
  if (error == std::errc() && number >= 1 && number <= 36'500 && unit != 0) return NowS() + number * unit;
  const auto time = keys::ParseTime(text);
  if (!time.ok())
    ExitWithError(InvalidArgument(
        fmt::format("--expires is '{}', expected e.g. 90d, 12h or 2027-01-31", Escaped(text))));
  if (*time <= NowS())
    ExitWithError(InvalidArgument(
        fmt::format("--expires is '{}', which is over: no signature of the key would count", Escaped(text))));
  return *time;
}

/// The lines of luff.toml.
std::string TomlOf(const keys::PublicKey& key) {
  std::string text = fmt::format("[[control.keys]]\nid = \"{}\"\ned25519 = \"{}\"\nmay = [\"{}\"]\n", key.id,
                                 keys::Base64Of(key.ed25519), fmt::join(key.may, "\", \""));
  if (key.may.empty()) text.replace(text.find("[\"\"]"), 4, "[]");
  if (key.expires_unix_s != 0) {
    std::string time = keys::TimeOf(key.expires_unix_s);  // 2027-01-31 12:00 UTC
    text += fmt::format("expires = \"{}T{}:00Z\"\n", time.substr(0, 10), time.substr(11, 5));
  }
  return text;
}

constexpr const char* kNeedsPython = "keys of encryption belong to Luff's Python package";

void New(const KeysOptions& options) {
  if (options.encryption) BecomePython("seal", {"new", options.file}, kNeedsPython);
  keys::PublicKey key;
  for (const std::string& right : options.may) {
    if (const Status good = keys::CheckRight(right); !good.ok()) ExitWithError(good.WithContext("--may"));
  }
  key.may = options.may;
  key.expires_unix_s = ExpiryOrExit(options.expires);
  const keys::SecretKey secret = ValueOrExit(keys::SecretKey::Create(options.file, options.id));
  key.id = secret.id();
  key.ed25519 = secret.ed25519();
  fmt::print("{}", TomlOf(key));
  fmt::print(stderr,
             "luff: {} holds the secret key: keep it where only those can read it who may command a job.\n"
             "luff: The lines above are not secret; they belong into the luff.toml of each job that is to "
             "obey it.\n",
             Escaped(options.file));
  ExitWith(kExitOk);
}

std::string StateOf(const keys::PublicKey& key) {
  if (key.expires_unix_s == 0) return "never expires";
  return fmt::format("{} {}", key.expired(NowS()) ? "EXPIRED" : "expires", keys::TimeOf(key.expires_unix_s));
}

void Check(KeysOptions options) {
  if (IsUrl(options.file)) {
    if (options.json || !options.config.empty() || !options.run.empty())
      ExitWithError(InvalidArgument("the runs of a bucket are checked without --config, --run and --json"));
    BecomePython("seal", {"check", options.file}, kNeedsPython);
  }
  std::optional<std::vector<keys::PublicKey>> known;
  if (!options.config.empty()) known = ValueOrExit(ReadConfigFile(options.config)).keys;
  if (!options.run.empty()) {
    FindRunOrExit(&options.run);
    known = keys::KeysOfRun(options.run);
  }
  std::optional<keys::SecretKey> secret;
  if (!options.file.empty()) secret.emplace(ValueOrExit(keys::SecretKey::Read(options.file)));
  if (!secret && !known)
    ExitWithError(InvalidArgument("what is to be checked? Give a FILE, --config or --run"));
  bool good = true;
  std::string verdict;
  if (secret && known) {
    const keys::PublicKey* const found = keys::FindKey(*known, secret->id());
    good = found != nullptr && found->ed25519 == secret->ed25519() && !found->expired(NowS());
    verdict = found == nullptr ? "it is not among them: the job refuses what it signs"
              : found->ed25519 != secret->ed25519()
                  ? "another key has its id there: the job refuses what it signs"
              : found->expired(NowS()) ? "it has expired: the job refuses what it signs"
                                       : fmt::format("it may {}", fmt::join(found->may, ", "));
  }
  if (options.json) {
    Json json = Json::object();
    if (secret) json["key"] = {{"id", secret->id()}, {"ed25519", keys::Base64Of(secret->ed25519())}};
    if (known) {
      json["known"] = Json::array();
      for (const keys::PublicKey& key : *known) {
        json["known"].push_back({{"id", key.id},
                                 {"ed25519", keys::Base64Of(key.ed25519)},
                                 {"may", key.may},
                                 {"expires_unix_s", key.expires_unix_s},
                                 {"expired", key.expired(NowS())}});
      }
    }
    if (!verdict.empty()) json["verdict"] = verdict;
    json["good"] = good;
    PrintJson(std::move(json));
  } else {
    if (secret) {
      fmt::print("key {}: whole, readable by its owner only\nid = \"{}\"\ned25519 = \"{}\"\n", secret->id(),
                 secret->id(), keys::Base64Of(secret->ed25519()));
    }
    if (known && known->empty())
      fmt::print("the job has no keys: it obeys whoever can write into its run, and no bucket\n");
    for (const keys::PublicKey& key : known.value_or(std::vector<keys::PublicKey>())) {
      fmt::print("{:<24} {}  may {}\n", key.id, StateOf(key),
                 key.may.empty() ? "nothing" : fmt::format("{}", fmt::join(key.may, ", ")));
    }
    if (!verdict.empty()) fmt::print("{}: {}\n", secret->id(), verdict);
  }
  ExitWith(good ? kExitOk : kExitFindings);
}

}  // namespace

void AddKeys(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("keys", "Keys that sign what a job is asked for (luff request)");
  verb->require_subcommand(1);
  auto options = std::make_shared<KeysOptions>();
  CLI::App* make = verb->add_subcommand("new", "Make a key; prints the lines that let a job obey it");
  make->add_option("FILE", options->file, "The new file, which only you can read")->required();
  make->add_option("--id", options->id, "What the key is called; default: made of its public part");
  make->add_option("--may", options->may, "stop,lower_lr,skip_batch,rollback,capture,trace,mark,label")
      ->delimiter(',')
      ->capture_default_str();
  make->add_option("--expires", options->expires,
                   "After 90d or 12h, or a day: 2027-01-31; without it: never");
  make->add_flag("--encryption", options->encryption,
                 "A key that opens encrypted runs of a bucket, not one that signs (docs/security.md)")
      ->excludes("--id")
      ->excludes("--may")
      ->excludes("--expires");
  make->callback([options] { New(*options); });
  CLI::App* check = verb->add_subcommand("check", "What a key is, and whether a job would obey it");
  check->add_option("FILE", options->file,
                    "The file of a key; or the URL of a bucket: whether its encrypted runs open here");
  check->add_option("--config", options->config, "luff.toml of a job: its keys");
  check->add_option("--run", options->run, std::string(kRunHelp) + ": its keys")->excludes("--config");
  check->add_flag("--json", options->json, "JSON on stdout");
  check->footer(
      "Exit code: 0 all is well; 1 the job would refuse the key; 2 no key, or one that is damaged.");
  check->callback([options] { Check(*options); });
}

}  // namespace luff::cli
