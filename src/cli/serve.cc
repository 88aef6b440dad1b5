#include <charconv>
#include <csignal>
#include <filesystem>

#include "base/format.h"
#include "catalog/catalog.h"
#include "cli/reading.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "luff/base/env.h"
#include "server/net.h"
#include "server/service.h"

namespace luff::cli {
namespace {

namespace fs = std::filesystem;

struct ServeOptions {
  std::vector<std::string> roots;
  std::string listen = "127.0.0.1:0";
  std::uint64_t cache_bytes = server::OverviewCache::kDefaultBytes;
  bool beside_job = false;
};

/// "127.0.0.1:6006", "[::1]:6006", "6006" -> address and port.
std::pair<std::string, std::uint16_t> AddressOrExit(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  std::string address = colon == std::string::npos ? "127.0.0.1" : text.substr(0, colon);
  if (address.starts_with('[') && address.ends_with(']')) address = address.substr(1, address.size() - 2);
  const std::string number = colon == std::string::npos ? text : text.substr(colon + 1);
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), port);
  if (error != std::errc() || end != number.data() + number.size())
    ExitWithError(InvalidArgument(fmt::format("--listen is '{}', expected ADDRESS:PORT", text)));
  return {address, port};
}

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
    FindRunOrExit(&root);
    std::error_code error;
    if (!fs::is_directory(root, error)) ExitWithError(NotFound("this is no directory: " + root));
    root = fs::absolute(root).lexically_normal().string();
    while (root.size() > 1 && root.back() == '/') root.pop_back();
  }
  return roots;
}

void Serve(const ServeOptions& options) {
  const auto roots = RootsOrExit(options.roots);
  const auto [address, port] = AddressOrExit(options.listen);
  const auto listener = ValueOrExit(server::Listener::Open(address, port));
  server::Secrets secrets;
  const std::string token = server::NewToken();
  secrets.Add(token, server::Role::kAdmin);
  const std::string home = catalog::Home();
  const server::OverviewCache cache(server::OverviewCache::DefaultFolder(), options.cache_bytes);
  server::Service service(server::LoopbackPlace(listener->port()), &secrets, roots,
                          home.empty() ? std::string() : home + "/catalog.sqlite3", &cache);
  const std::string host = address.find(':') == std::string::npos ? address : "[" + address + "]";
  const std::string link = fmt::format("http://{}:{}/#token={}", host, listener->port(), token);
  if (options.beside_job) {
    fmt::print(stderr, "luff: watch it in a browser: {}\n", link);
  } else {
    fmt::print("{}\n", link);  // alone on standard output, for scripts
    std::fflush(stdout);
    if (const auto found = service.list().Refresh(); !found.ok()) ExitWithError(found.status());
    fmt::print(stderr, "luff: serving {} of {}; the link above opens them, Ctrl-C ends it\n",
               Plural(service.list().All().size(), "run", "runs"),
               Escaped(roots.size() == 1 ? roots.front() : fmt::format("{} directories", roots.size())));
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
  verb->add_option("--listen", options->listen, "ADDRESS:PORT of this machine itself; port 0 is any")
      ->capture_default_str();
  verb->add_option("--cache-bytes", options->cache_bytes,
                   "What overviews of runs may take below $XDG_CACHE_HOME/luff; 0: keep none")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("4GiB");
  verb->add_flag("--beside-job", options->beside_job, "Say only where, as luff run --serve does")->group("");
  verb->footer(
      "Prints a link with a token; the server answers nobody without it, and ends with SIGTERM or Ctrl-C.\n"
      "It reads, and writes only what you ask of a job on the page. From another machine: ssh -L "
      "PORT:127.0.0.1:PORT HOST, then the same link.");
  verb->callback([options] { Serve(*options); });
}

}  // namespace luff::cli
