#include "cli/heir.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "base/json_number.h"
#include "base/text_escape.h"
#include "cli/json.h"
#include "cli/reading.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "keys/host_seal.h"
#include "luff/actions/inherit.h"

namespace luff::cli {
namespace {

struct NamedSetting {
  const char* name;
  double actions::StopSettings::* member;
};
/// What matters once the workers were asked.
constexpr std::array<NamedSetting, 7> kInherited = {
    {{"answer_s", &actions::StopSettings::answer_s},
     {"leave_s", &actions::StopSettings::leave_s},
     {"swallow_s", &actions::StopSettings::swallow_s},
     {"kill_s", &actions::StopSettings::kill_s},
     {"hosts_answer_s", &actions::StopSettings::hosts_answer_s},
     {"hosts_wait_s", &actions::StopSettings::hosts_wait_s},
     {"hosts_doubt_s", &actions::StopSettings::hosts_doubt_s}}};

std::string WillOf(const actions::Inheritance& inheritance, const std::string& keys) {
  Json will{{"job", inheritance.job},
            {"instance", inheritance.instance},
            {"followed", inheritance.bequest.followed},
            {"proposal", inheritance.bequest.proposal},
            {"keys", keys}};
  if (const auto& past = inheritance.bequest.past) {
    will["heard"] = past->heard;
    will["decided"] = past->decided;
  }
  for (const auto& [name, member] : kInherited) will[name] = inheritance.stop.*member;
  return JsonText(will);
}

Result<actions::Inheritance> ReadWill(std::string run, const std::string& text) {
  const auto will = TryParseJson(text);
  if (!will.is_object()) return InvalidArgument("the will of a supervisor is no JSON object");
  actions::Inheritance inheritance;
  inheritance.run = std::move(run);
  inheritance.job = TextMember(will, "job");
  inheritance.instance = TextMember(will, "instance");
  inheritance.bequest.followed = TextMember(will, "followed");
  inheritance.bequest.proposal =
      static_cast<std::uint64_t>(std::max<std::int64_t>(0, WholeMember(will, "proposal", 0)));
  actions::HostLog::Past past;
  if (const auto heard = will.find("heard"); heard != will.end() && heard->is_object()) {
    for (const auto& [instance, sequence] : heard->items())
      past.heard[instance] = sequence.is_number_unsigned() ? sequence.get<std::uint64_t>() : 0;
  }
  if (const auto decided = will.find("decided"); decided != will.end() && decided->is_array()) {
    for (const auto& one : *decided) past.decided.push_back(one.is_string() ? one.get<std::string>() : "");
  }
  inheritance.bequest.past = std::make_shared<const actions::HostLog::Past>(std::move(past));
  for (const auto& [name, member] : kInherited) {
    const auto at = will.find(name);
    if (at != will.end() && at->is_number()) inheritance.stop.*member = at->get<double>();
  }
  if (inheritance.bequest.proposal == 0) return InvalidArgument("the will of a supervisor names no proposal");
  return inheritance;
}

/// Whose messages count. The log of the run has them, too, but one record that cannot be read hides them.
std::vector<keys::PublicKey> KeysOf(const std::string& will) {
  auto keys = keys::ParseKeysUntrusted(TextMember(TryParseJson(will), "keys"));
  return keys.ok() ? *std::move(keys) : std::vector<keys::PublicKey>();
}

/// True if the supervisor has died; false if it has said that nobody is needed.
bool Dies() {
  char byte = 0;
  ssize_t got = 0;
  while ((got = read(STDIN_FILENO, &byte, 1)) < 0 && errno == EINTR) {
  }
  return got == 0;
}

}  // namespace

Heir::Heir(std::string run, std::string job, std::string instance, actions::StopSettings stop,
           const std::vector<keys::PublicKey>& keys)
    : run_(std::move(run)),
      job_(std::move(job)),
      instance_(std::move(instance)),
      keys_(keys::KeysText(keys)),
      stop_(stop) {}

Status Heir::Follow(const std::optional<actions::Coordinator::Bequest>& bequest) {
  if (bequest && bequest->followed == followed_) return Status::Ok();  // also if it has died meanwhile
  Dismiss();
  return bequest ? Start(*bequest) : Status::Ok();
}

Status Heir::Start(const actions::Coordinator::Bequest& bequest) {
  followed_ = bequest.followed;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return IoError("no pipe can be made");
  const OwnedFd read_end(ends[0]);
  pipe_ = OwnedFd(ends[1]);
  const OwnedFd nowhere(open("/dev/null", O_WRONLY | O_CLOEXEC));
  ProcessOptions process;
  process.argv = {"/proc/self/exe", "_heir",
                  "--will=" + WillOf({run_, job_, instance_, bequest, stop_}, keys_), "--", run_};
  process.new_session = true;  // what ends our group or terminal does not end it
  process.stdin_fd = read_end.get();
  process.stdout_fd = nowhere.get();
  const Result<pid_t> started = StartProcess(process);
  if (!started.ok()) return pipe_ = OwnedFd(), started.status();
  living_.push_back(*started);
  return Status::Ok();
}

void Heir::Dismiss() noexcept {
  followed_.clear();
  if (!pipe_.valid()) return;
  const ssize_t told = write(pipe_.get(), ".", 1);  // else it finds that we live by our lock
  static_cast<void>(told);
  pipe_ = OwnedFd();
}

bool Heir::Owns(pid_t pid) const noexcept { return std::ranges::find(living_, pid) != living_.end(); }

void Heir::Ended(pid_t pid) noexcept { std::erase(living_, pid); }

void AddHeir(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("_heir", "The process that goes on for a supervisor that dies");
  verb->group("");  // hidden
  auto run = std::make_shared<std::string>();
  auto text = std::make_shared<std::string>();
  verb->add_option("RUN", *run, "Run directory")->required();
  verb->add_option("--will", *text, "What the supervisor leaves")->required();
  verb->callback([run, text] {
    signal(SIGPIPE, SIG_IGN);  // who has read what we say may have died with the supervisor
    const actions::Inheritance will = ValueOrExit(ReadWill(*run, *text));
    if (!Dies()) ExitWith(kExitOk);
    const auto say = [&](const std::string& line) {
      fmt::print(stderr, "{}",
                 EscapedLines(fmt::format("luff: the supervisor of {} has died; {}\n", *run, line)));
    };
    const Status status = actions::Inherit(
        will, std::make_unique<keys::KeySeal>(nullptr, KeysOf(*text)),
        [](std::uint64_t pid, int number) { kill(static_cast<pid_t>(pid), number); }, say);
    if (status.code() == StatusCode::kAlreadyExists) ExitWith(kExitOk);  // somebody supervises the run
    if (!status.ok()) say(std::string(status.message()));
    ExitWith(status.ok() ? kExitOk : kExitUsage);
  });
}

}  // namespace luff::cli
