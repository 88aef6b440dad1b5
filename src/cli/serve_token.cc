#include "cli/serve_token.h"

#include <charconv>
#include <ctime>
#include <filesystem>

#include "base/format.h"
#include "catalog/catalog.h"
#include "cli/reading.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "luff/actions/requests.h"
#include "luff/base/env.h"
#include "server/audit.h"
#include "server/tokens.h"

namespace luff::cli {
namespace {

namespace fs = std::filesystem;

struct TokenOptions {
  std::string name, role = "viewer", expires;
  std::vector<std::string> roots;
};

std::string BelowHome(const char* name) {
  const std::string home = catalog::Home();
  return home.empty() ? "" : home + "/serve/" + name;
}

server::TokenFile FileOrExit() {
  if (TokensPath().empty()) ExitWithError(InvalidArgument("neither LUFF_HOME nor HOME is set"));
  return server::TokenFile(TokensPath());
}

/// "30d", "12h", "45m" -> seconds.
std::int64_t SecondsOrExit(const std::string& text) {
  std::int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number);
  const std::int64_t unit = at + 1 != end ? 0 : *at == 'd' ? 86400 : *at == 'h' ? 3600 : *at == 'm' ? 60 : 0;
  if (error != std::errc() || number < 1 || number > 36'500 || unit == 0)
    ExitWithError(InvalidArgument(fmt::format("--expires is '{}', expected e.g. 30d, 12h or 45m", text)));
  return number * unit;
}

std::string DayOf(std::int64_t unix_s) {
  const std::time_t time = unix_s;
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32];
  const std::size_t size = std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M UTC", &parts);
  return {text, size};
}

void WriteAudit(std::string_view event, std::string_view detail) {
  server::AuditFile audit(AuditPath());
  const Status written = audit.Write(event, actions::Author(), detail);
  if (!written.ok()) PrintError(written.WithContext("the audit is not written"));
}

void AddToken(const TokenOptions& options) {
  server::NamedToken token{.name = options.name, .role = ValueOrExit(server::ParseRole(options.role))};
  if (!options.expires.empty())
    token.expires_unix_s = Env::Real().NowUnixNs() / 1'000'000'000 + SecondsOrExit(options.expires);
  for (const std::string& root : options.roots) {
    std::error_code error;
    if (!fs::is_directory(root, error)) ExitWithError(NotFound("this is no directory: " + root));
    token.roots.push_back(AbsoluteDirectory(root));
  }
  const std::string text = ValueOrExit(FileOrExit().Add(token));
  WriteAudit("token added", fmt::format("{}, {}", token.name, server::RoleName(token.role)));
  fmt::print("{}\n", text);
  fmt::print(stderr, "luff: this is the only time that the token of '{}' is shown\n", token.name);
  ExitWith(kExitOk);
}

void ListTokens() {
  const std::int64_t now = Env::Real().NowUnixNs() / 1'000'000'000;
  for (const server::NamedToken& token : ValueOrExit(FileOrExit().Read())) {
    const std::string until = token.expires_unix_s == 0 ? "never expires"
                              : token.expired(now)      ? "expired " + DayOf(token.expires_unix_s)
                                                        : "expires " + DayOf(token.expires_unix_s);
    std::string roots;
    for (const std::string& root : token.roots) roots += "  " + Escaped(root);
    fmt::print("{:<24} {:<8}  {}{}\n", token.name, server::RoleName(token.role), until, roots);
  }
  ExitWith(kExitOk);
}

void RevokeToken(const TokenOptions& options) {
  if (const Status done = FileOrExit().Revoke(options.name); !done.ok()) ExitWithError(done);
  WriteAudit("token revoked", options.name);
  ExitWith(kExitOk);
}

}  // namespace

std::string TokensPath() { return BelowHome("tokens.json"); }
std::string AuditPath() { return BelowHome("audit.jsonl"); }

std::string AbsoluteDirectory(const std::string& path) {
  std::string absolute = fs::absolute(path).lexically_normal().string();
  while (absolute.size() > 1 && absolute.back() == '/') absolute.pop_back();
  return absolute;
}

void AddServeToken(CLI::App& serve) {
  CLI::App* token = serve.add_subcommand("token", "Tokens for people and programs, beside the link");
  token->require_subcommand(1);
  auto options = std::make_shared<TokenOptions>();
  CLI::App* add = token->add_subcommand("add", "Make a token and print it; servers take it within a second");
  add->add_option("NAME", options->name, "Whose it is")->required();
  add->add_option("--role", options->role, "metrics, viewer, operator or admin")->capture_default_str();
  add->add_option("--expires", options->expires, "After 30d, 12h, 45m; without it: never");
  add->add_option("--root", options->roots, "Only runs below this directory; may be repeated")
      ->allow_extra_args(false);
  add->callback([options] { AddToken(*options); });
  token->add_subcommand("list", "The tokens that there are; not their texts, which nobody keeps")
      ->callback(ListTokens);
  CLI::App* revoke = token->add_subcommand("revoke", "End a token, and the sessions that began with it");
  revoke->add_option("NAME", options->name)->required();
  revoke->callback([options] { RevokeToken(*options); });
}

}  // namespace luff::cli
