#include <set>

#include "base/format.h"
#include "base/json.h"
#include "base/text_escape.h"
#include "cli/export_trace.h"
#include "cli/json.h"
#include "luff/format/names.h"
#include "server/gzip.h"

namespace luff::cli {
namespace {

/// Times are microseconds since 1970, with the nanoseconds as decimals.
class ChromeTrace final : public TraceFormat {
 public:
  void Begin(const std::string& run, std::string* to) override {
    json_ = fmt::format(R"({{"displayTimeUnit":"ms","otherData":{{"run":{}}},"traceEvents":[)",
                        JsonText(Json(ValidUtf8(run))));
    Pass(0, to);
  }

  void Rank(std::uint32_t worker, std::string* to) override {
    if (!ranks_.insert(worker).second) return;
    Event(R"({{"name":"process_name","ph":"M","pid":{0},"args":{{"name":"rank {0}"}}}})", worker);
    Event(R"({{"name":"process_sort_index","ph":"M","pid":{0},"args":{{"sort_index":{0}}}}})", worker);
    Event(R"({{"name":"thread_name","ph":"M","pid":{},"tid":0,"args":{{"name":"training thread"}}}})",
          worker);
    Pass(0, to);
  }

  void Step(std::uint32_t worker, const query::StepInfo& info, const query::StepPhases& phases,
            const profile::PlacedStep& placed, std::string* to) override {
    std::string notes = fmt::format(R"("step":{},"global_step":{},"update":{})", info.mode_step,
                                    info.global_step, info.update);
    if (phases.head.steps != 1) notes += fmt::format(R"(,"steps":{})", phases.head.steps);
    if (phases.head.cpu_ns >= 0) notes += fmt::format(R"(,"cpu_ms":{})", Milli(phases.head.cpu_ns));
    if (phases.head.run_queue_ns >= 0)
      notes += fmt::format(R"(,"queue_ms":{})", Milli(phases.head.run_queue_ns));
    if (phases.has_device())
      notes +=
          fmt::format(R"(,"device_ms":{},"device_idle":{})", Milli(phases.head.device_ns), phases.idle_steps);
    Slice(worker, fmt::format("{} step", query::ModeName(info.mode)), "step", placed, notes);
    for (const profile::PhaseSlice& slice : placed.phases) {
      std::string more = slice.begins > 1 ? fmt::format(R"("times":{})", slice.begins) : "";
      if (const std::int64_t ns = phases.device_ns[static_cast<std::size_t>(slice.phase)]; ns >= 0)
        more += fmt::format(R"({}"device_ms":{})", more.empty() ? "" : ",", Milli(ns));
      Slice(worker, format::PhaseName(static_cast<std::uint8_t>(slice.phase)), "phase", slice, more);
    }
    Pass(64 << 10, to);
  }

  void Finding(const rules::Finding& finding, std::int64_t at_ns, std::string* to) override {
    Json json = {{"name", finding.cause.empty() ? finding.rule : finding.rule + ": " + finding.cause},
                 {"cat", "finding"},
                 {"ph", "i"},
                 {"s", "p"},
                 {"pid", finding.worker},
                 {"tid", 0},
                 {"ts", static_cast<double>(std::max<std::int64_t>(at_ns, 0)) * 1e-3},
                 {"args",
                  {{"rule", finding.rule},
                   {"severity", finding.severity == rules::Severity::kStop ? "stop" : "warn"},
                   {"step", finding.step},
                   {"tensor", finding.tensor},
                   {"what", finding.what},
                   {"why", finding.why},
                   {"remedy", finding.remedy}}}};
    Event("{}", JsonText(json));
    Pass(64 << 10, to);
  }

  void Series(std::uint32_t host, const std::string& name, std::string_view unit, std::string* to) override {
    host_ = kFirstHost + host;
    if (hosts_.insert(host).second)
      Event(R"({{"name":"process_name","ph":"M","pid":{},"args":{{"name":"host {}"}}}})", host_, host);
    series_ = JsonText(Json(ValidUtf8(name + (unit.empty() ? "" : fmt::format(" [{}]", unit)))));
    Pass(64 << 10, to);
  }

  void Value(std::int64_t at_ns, double value, std::string* to) override {
    Event(R"({{"name":{},"ph":"C","pid":{},"ts":{},"args":{{"value":{}}}}})", series_, host_, Micro(at_ns),
          value);
    Pass(64 << 10, to);
  }

  void Track(std::uint32_t worker, std::uint32_t track, const std::string& name, std::string* to) override {
    worker_ = worker;
    thread_ = kFirstThread + track;
    Event(R"({{"name":"thread_name","ph":"M","pid":{},"tid":{},"args":{{"name":{}}}}})", worker, thread_,
          JsonText(Json(ValidUtf8(name))));
    Pass(64 << 10, to);
  }

  void Operator(const profile::TraceEvent& event, std::string* to) override {
    Event(R"({{"name":{},"cat":"{}","ph":"X","pid":{},"tid":{},"ts":{},"dur":{}}})",
          JsonText(Json(ValidUtf8(std::string(event.name)))), event.category, worker_, thread_,
          Micro(event.begin_ns), Micro(event.end_ns - event.begin_ns));
    Pass(64 << 10, to);
  }

  void End(std::string* to) override {
    json_ += "\n]}\n";
    Pass(0, to);
    gzip_.Finish(to);
  }

 private:
  static std::string Milli(std::int64_t ns) {
    return fmt::format("{}.{:06}", ns / 1'000'000, ns % 1'000'000);
  }
  static std::string Micro(std::int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }
  template <typename... Args>
  void Event(fmt::format_string<Args...> form, Args&&... args) {
    json_ += any_ ? ",\n" : "\n";
    any_ = true;
    fmt::format_to(std::back_inserter(json_), form, std::forward<Args>(args)...);
  }
  void Slice(std::uint32_t worker, std::string_view name, std::string_view category,
             const profile::Interval& span, std::string_view notes) {
    Event(R"({{"name":"{}","cat":"{}","ph":"X","pid":{},"tid":0,"ts":{},"dur":{},"args":{{{}}}}})", name,
          category, worker, Micro(span.begin_ns), Micro(span.end_ns - span.begin_ns), notes);
  }
  void Pass(std::size_t at_least, std::string* to) {
    if (json_.size() < at_least) return;
    gzip_.Add(json_, to);
    json_.clear();
  }

  server::GzipStream gzip_;
  std::string json_;
  std::set<std::uint32_t> ranks_, hosts_;
  static constexpr std::uint64_t kFirstHost = 1'000'000;  // beyond any rank
  std::uint64_t host_ = 0;
  static constexpr std::uint64_t kFirstThread = 1;  // 0 is the training thread's steps
  std::uint64_t thread_ = 0;
  std::uint32_t worker_ = 0;
  std::string series_;
  bool any_ = false;
};

}  // namespace

std::unique_ptr<TraceFormat> MakeChromeTrace() { return std::make_unique<ChromeTrace>(); }

}  // namespace luff::cli
