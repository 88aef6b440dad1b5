#include <algorithm>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <utility>

#include "base/format.h"
#include "base/private_file.h"
#include "catalog/catalog.h"
#include "cli/reading.h"
#include "cli/report.h"
#include "cli/serve.h"
#include "cli/serve_config.h"
#include "cli/serve_token.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "luff/base/env.h"
#include "server/net.h"
#include "server/service.h"

namespace luff::cli {
namespace {

namespace fs = std::filesystem;

struct ServeOptions : ServeConfig {  // what the command line says
  std::string config, metrics_tensors;
  std::string beside_job;  // the name of the job's run, which the link leads to; "": there is none
  std::uint64_t cache_bytes = server::OverviewCache::kDefaultBytes;
};

constexpr std::string_view kUnix = "unix:";

/// A part of an address: all but letters, digits and "-._" as %NN.
std::string UrlText(std::string_view text) {
  std::string url;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.' || c == '_';
    url += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return url;
}

}  // namespace

server::ListenAt ListenAtOrExit(const std::string& text, const char* option) {
  server::ListenAt at;
  if (text.starts_with(kUnix)) {
    at.path = text.substr(kUnix.size());
    if (at.path.empty()) ExitWithError(InvalidArgument(fmt::format("{} unix:PATH needs a path", option)));
    return at;
  }
  const std::size_t colon = text.rfind(':');
  if (colon != std::string::npos) at.address = text.substr(0, colon);
  if (at.address.starts_with('[') && at.address.ends_with(']'))
    at.address = at.address.substr(1, at.address.size() - 2);
  const std::string number = colon == std::string::npos ? text : text.substr(colon + 1);
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), at.port);
  if (error != std::errc() || end != number.data() + number.size()) {
    ExitWithError(
        InvalidArgument(fmt::format("{} is '{}', expected ADDRESS:PORT or unix:PATH", option, text)));
  }
  return at;
}

std::string OriginOf(const server::ListenAt& at, std::uint16_t port) {
  const bool six = at.address.find(':') != std::string::npos;
  return fmt::format("http://{}{}{}:{}", six ? "[" : "", at.address, six ? "]" : "", port);
}

server::Place PlaceAt(const server::ListenAt& at, std::uint16_t port) {
  server::Place place = server::LoopbackPlace(port);
  const std::string own = OriginOf(at, port);
  std::ranges::stable_partition(place.origins, [&](const std::string& origin) { return origin != own; });
  return place;
}

namespace {

/// The directories that are served, absolute. A run may be called by its name.
std::vector<std::string> RootsOrExit(const std::vector<std::string>& given) {
  std::vector<std::string> roots = given;
  const std::string home = catalog::Home();
  if (roots.empty()) {
    if (home.empty())
      ExitWithError(InvalidArgument("neither LUFF_HOME nor HOME is set; name the directory of the runs"));
    roots.push_back(home + "/runs");
    if (const Status made = Env::Real().MakeDirectories(roots.back()); !made.ok()) ExitWithError(made);
  }
  for (std::string& root : roots) {
    FindOwnRunOrExit(&root);
    std::error_code error;
    if (!fs::is_directory(root, error)) ExitWithError(NotFound("this is no directory: " + root));
    root = AbsoluteDirectory(root);
  }
  return roots;
}

/// What the file says, and the command line over it.
ServeConfig ConfigOrExit(const ServeOptions& options) {
  ServeConfig config;
  if (!options.config.empty()) config = ValueOrExit(ReadServeConfig(options.config));
  if (!options.roots.empty()) config.roots = options.roots;
  for (const auto& [said, kept] :
       {std::pair(&options.listen, &config.listen), std::pair(&options.auth, &config.auth),
        std::pair(&options.public_url, &config.public_url),
        std::pair(&options.base_path, &config.base_path)}) {
    if (!said->empty()) *kept = *said;
  }
  config.tls_by_proxy = config.tls_by_proxy || options.tls_by_proxy;
  if (config.listen.empty()) config.listen = "127.0.0.1:0";
  if (config.auth.empty()) config.auth = "token";
  return config;
}

/// The sign-on by a proxy, with its secret; ends the program where anybody could claim to be anybody.
server::ProxySignOn ProxyOrExit(const ServeConfig& config, const server::ListenAt& at) {
  server::ProxySignOn proxy = config.proxy;
  for (auto& group : proxy.groups) {
    for (std::string& root : group.grant.roots) root = AbsoluteDirectory(root);
  }
  if (proxy.groups.empty()) {
    ExitWithError(InvalidArgument(
        "--auth proxy needs groups that may look: [[proxy.group]] with name and role in --config FILE"));
  }
  if (!config.proxy_secret_file.empty()) {
    std::string secret = ValueOrExit(ReadPrivate(config.proxy_secret_file, 4096));
    while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
    if (secret.size() < 16)
      ExitWithError(InvalidArgument("the secret has less than 16 characters: " + config.proxy_secret_file));
    proxy.secret = std::move(secret);
  } else if (at.path.empty()) {
    ExitWithError(FailedPrecondition(
        "every program of this machine could say that it is the proxy; listen on a Unix socket (--listen "
        "unix:PATH), or let the proxy send a secret: secret_file in [proxy] of --config FILE"));
  }
  return proxy;
}

server::Place PlaceOrExit(const ServeConfig& config, const server::ListenAt& at, std::uint16_t port) {
  server::Place place = PlaceAt(at, port);
  if (!config.public_url.empty()) {
    if (const Status added = server::AddPublicUrl(config.public_url, &place); !added.ok())
      ExitWithError(added.WithContext("--public-url"));
  }
  if (!config.base_path.empty()) {
    std::string base = config.base_path;
    while (base.ends_with('/')) base.pop_back();
    server::Request parsed;
    if (!base.empty() && (!server::ParseTarget(base, &parsed).ok() || parsed.path != base))
      ExitWithError(
          InvalidArgument(fmt::format("--base-path is '{}', expected e.g. /luff", config.base_path)));
    place.base = base;
  }
  if (config.auth == "proxy") place.proxy = ProxyOrExit(config, at);
  return place;
}

/// Refuses an address that others reach, unless a proxy signs its users on and encrypts.
void CheckReachOrExit(const ServeConfig& config, server::ListenAt* at) {
  if (config.auth != "token" && config.auth != "proxy")
    ExitWithError(InvalidArgument(fmt::format("--auth is '{}', expected token or proxy", config.auth)));
  at->group = config.socket_group;
  if (!at->group.empty() && at->path.empty())
    ExitWithError(InvalidArgument("socket_group belongs to --listen unix:PATH"));
  at->others = config.tls_by_proxy && config.auth == "proxy";
  if (config.tls_by_proxy && !at->others)
    ExitWithError(InvalidArgument("--tls-by-proxy belongs to --auth proxy"));
  if (at->others && config.public_url.empty())
    ExitWithError(InvalidArgument("--tls-by-proxy needs --public-url, the address that browsers show"));
  const Status reach = server::CheckAddress(*at);
  if (reach.code() == StatusCode::kFailedPrecondition) {
    ExitWithError(FailedPrecondition(fmt::format(
        "{}, or put a proxy with TLS and sign-on in front: --auth proxy --tls-by-proxy (docs/serve.md)",
        reach.message())));
  }
}

/// The address by which a browser comes, without a token.
std::string LinkOf(const ServeConfig& config, const server::ListenAt& at, const server::Place& place,
                   std::uint16_t port) {
  if (!config.public_url.empty()) return fmt::format("{}{}/", place.origins.back(), place.base);
  if (!at.path.empty()) return fmt::format("unix:{}", at.path);
  return fmt::format("{}{}/", OriginOf(at, port), place.base);
}

void Serve(const ServeOptions& options) {
  const ServeConfig config = ConfigOrExit(options);
  const auto roots = RootsOrExit(config.roots);
  server::ListenAt at = ListenAtOrExit(config.listen, "--listen");
  CheckReachOrExit(config, &at);
  const auto listener = ValueOrExit(server::Listener::Open(at));
  server::Secrets secrets(TokensPath());
  if (const Status read = secrets.Refresh(Env::Real().NowMonotonicNs()); !read.ok()) ExitWithError(read);
  const server::Place place = PlaceOrExit(config, at, listener->port());
  const std::string home = catalog::Home();
  const server::OverviewCache cache(server::OverviewCache::DefaultFolder(), options.cache_bytes);
  std::string link = LinkOf(config, at, place, listener->port());
  if (config.auth == "token") {
    const std::string token = server::NewToken();
    secrets.Add(token, server::Role::kAdmin);
    link += (at.path.empty() || !config.public_url.empty() ? "#token=" : " token=") + token;
  }
  server::Service service(place, &secrets,
                          {.roots = roots,
                           .index = home.empty() ? std::string() : home + "/catalog.sqlite3",
                           .audit = AuditPath(),
                           .cache = &cache,
                           .values = config.values.value_or(server::Role::kViewer)});
  if (const Status tried = service.audit().Try(); tried.code() == StatusCode::kFailedPrecondition)
    ExitWithError(tried.WithContext("the audit"));
  else if (!tried.ok())
    PrintError(tried.WithContext("nobody writes down who asks what"));
  if (!options.metrics_tensors.empty()) {
    auto regex = Regex::Compile(options.metrics_tensors);
    if (!regex.ok()) ExitWithError(regex.status().WithContext("--metrics-tensors"));
    service.metrics().Configure({config.public_url, *std::move(regex)});
  } else {
    service.metrics().Configure({config.public_url, std::nullopt});
  }
  if (!options.beside_job.empty()) {
    const std::string run =
        link.find("#token=") == std::string::npos ? "" : "/?await=" + UrlText(options.beside_job);
    fmt::print(stderr, "luff: watch it in a browser: {}{}\n", link, run);
  } else {
    fmt::print("{}\n", link);  // alone on standard output, for scripts
    std::fflush(stdout);
    if (const auto found = service.list().Refresh(); !found.ok()) ExitWithError(found.status());
    const bool socket = !at.path.empty() && config.public_url.empty();  // which no browser opens by itself
    fmt::print(
        stderr, "luff: serving {} of {}; {}, Ctrl-C ends it\n",
        Plural(service.list().All().size(), "run", "runs"),
        Escaped(roots.size() == 1 ? roots.front() : fmt::format("{} directories", roots.size())),
        socket ? fmt::format("curl --unix-socket {} http://localhost/api/v1/runs asks it (with the token)",
                             Escaped(at.path))
               : "the link above opens them");
  }
  (void)listener->Serve(&service);
  ExitWith(kExitOk);
}

}  // namespace

void AddServe(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("serve", "Show runs in a browser, while they train and afterwards");
  auto options = std::make_shared<ServeOptions>();
  verb->add_option("DIR", options->roots,
                   "Directories of runs, or runs; default: $LUFF_HOME/runs, or ~/.luff/runs");
  verb->add_option("--listen", options->listen,
                   "ADDRESS:PORT of this machine itself (port 0: any), or unix:PATH; default: 127.0.0.1:0");
  verb->add_option(
      "--auth", options->auth,
      "Who signs visitors on: token (the link, luff serve token), or proxy (headers of a proxy)");
  verb->add_option("--public-url", options->public_url,
                   "Address by which browsers come through a proxy: https://example.org/luff");
  verb->add_option("--base-path", options->base_path,
                   "Path below which everything is; default: that of --public-url");
  verb->add_flag("--tls-by-proxy", options->tls_by_proxy,
                 "With --auth proxy: another machine's proxy encrypts; allows an address that others reach");
  verb->add_option("--config", options->config, "TOML file with these and other settings (docs/serve.md)");
  verb->add_option("--metrics-tensors", options->metrics_tensors,
                   "Regular expression: at most 20 tensors of each run that get metrics of their own");
  verb->add_option("--cache-bytes", options->cache_bytes,
                   "What overviews of runs may take below $XDG_CACHE_HOME/luff; 0: keep none")
      ->transform(SizeValue(false))
      ->default_str("4GiB");
  verb->add_option("--beside-job", options->beside_job,
                   "Say only where, as luff run --serve does: the name of its run")
      ->group("");
  verb->footer(
      "Prints a link with a token; the server answers nobody without it, and ends with SIGTERM or Ctrl-C.\n"
      "It reads, and writes only what you ask of a job on the page. From another machine: ssh -L "
      "PORT:127.0.0.1:PORT HOST, then the same link.");
  AddServeToken(*verb);
  verb->callback([options] { Serve(*options); });
}

}  // namespace luff::cli
