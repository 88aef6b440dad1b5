#pragma once
#include <memory>
#include <string>
#include <vector>

#include "cli/live_outputs.h"
#include "keys/public_key.h"
#include "keys/secret_key.h"
#include "luff/actions/coordinator.h"
#include "luff/actions/policy.h"
#include "luff/rules/choice.h"
#include "luff/store/owner.h"

/// The supervisor behind `luff run`.
namespace luff::cli {

struct SuperviseOptions {
  std::vector<std::string> command;
  std::string job;  // its name for people
  std::string run;  // absolute; an empty directory, or a run when resume is set
  bool resume = false;
  bool ended = false;                  // before it was watched: how it ended is not ours to say
  std::vector<rules::Choice> choices;  // of the rules that judge here
  std::size_t recorded_for = 0;        // rules that judge later or elsewhere (--rules later)
  rules::ParameterSet set = rules::ParameterSet::kLuff;
  bool stop_on_finding = false;
  bool sample = false;        // measure the machine meanwhile
  std::string findings_file;  // "" if none
  std::string capture_json;   // from the configuration file, "" if none
  std::string trial_json;     // the document `trial` of each training's run, "" if it is none of a sweep
  std::string bootstrap;      // folder with sitecustomize.py
  actions::StopSettings stop;
  std::vector<actions::ActionSpec> actions;
  std::vector<keys::PublicKey> keys;  // whose signatures count
  bool keys_of_run = false;           // those that the run names count, if it names some
  std::string hosts_job;              // name of the job that has ranks on other hosts, too; "" if it has none
  std::shared_ptr<const keys::SecretKey> host_key;  // by which these know each other
  std::vector<LiveOutput> outputs;
  std::vector<std::string> tags;  // of the run of each training
  std::uint64_t log_bytes = 0;    // of each stream that are kept in the first run; 0: the job's own streams
  std::vector<std::string> notifier;            // argv of the program that sends webhooks and mails
  std::shared_ptr<store::SupervisorLock> lock;  // of the run
  std::size_t training = 1;                     // of the job, which may start several
};

struct Supervised {
  int code = 0;                   // luff's exit code
  std::vector<std::string> runs;  // of the trainings that were watched
};

/// Runs the command to its end, and watches each training that it starts. Prints to stderr only.
[[nodiscard]] Supervised Supervise(const SuperviseOptions& options);

/// Makes this process the only one that commands the run: checks that the user owns it, and takes the
/// supervisor's lock.
[[nodiscard]] Status TakeRun(SuperviseOptions* options);

}  // namespace luff::cli
