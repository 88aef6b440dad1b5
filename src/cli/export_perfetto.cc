// Field numbers and values are those of Perfetto's protos/perfetto/trace/*.proto.
#include <set>

#include <protozero/pbf_writer.hpp>

#include "base/text_escape.h"
#include "cli/export_trace.h"
#include "luff/format/names.h"

namespace luff::cli {
namespace {

using protozero::pbf_tag_type;
using protozero::pbf_writer;

namespace trace {
constexpr pbf_tag_type kPacket = 1;
}
namespace packet {
constexpr pbf_tag_type kClockSnapshot = 6, kTimestamp = 8, kSequence = 10, kEvent = 11, kInterned = 12,
                       kFlags = 13, kDefaults = 59, kDescriptor = 60;
constexpr std::uint32_t kStateCleared = 1, kNeedsState = 2;
}  // namespace packet
namespace clock_snapshot {
constexpr pbf_tag_type kClock = 1, kPrimary = 2;
constexpr pbf_tag_type kId = 1, kTimestamp = 2, kIncremental = 3;
constexpr std::uint32_t kRealtime = 1, kBoottime = 6;
constexpr std::uint32_t kDifferences = 64;  // the sequence's own clock: each time counts from the one before
}  // namespace clock_snapshot
namespace defaults {
constexpr pbf_tag_type kEvent = 11, kClock = 58;
}
namespace descriptor {
constexpr pbf_tag_type kUuid = 1, kName = 2, kProcess = 3, kThread = 4, kParent = 5, kCounter = 8;
constexpr pbf_tag_type kUnit = 3, kUnitName = 6;
constexpr pbf_tag_type kProcessPid = 1, kProcessName = 6;
constexpr pbf_tag_type kThreadPid = 1, kThreadTid = 2, kThreadName = 5;
}  // namespace descriptor
namespace interned {
constexpr pbf_tag_type kCategory = 1, kName = 2, kNoteName = 3;
constexpr pbf_tag_type kIid = 1, kText = 2;
}  // namespace interned
namespace event {
constexpr pbf_tag_type kCategories = 3, kNote = 4, kType = 9, kNameIid = 10, kTrack = 11, kCategoryName = 22,
                       kName = 23, kDoubleValue = 44;
constexpr std::int32_t kBegin = 1, kEnd = 2, kInstant = 3, kCounter = 4;
}  // namespace event
namespace note {
constexpr pbf_tag_type kNameIid = 1, kInt = 4, kDouble = 5, kText = 6;
}

enum Category : std::uint64_t { kSteps = 1, kPhases = 2, kFindings = 3 };
enum Note : std::uint64_t {
  kStep = 1,
  kGlobalStep,
  kUpdate,
  kMergedSteps,
  kTimes,
  kCpuMs,
  kRunQueueMs,
  kMajorFaults,
  kRule,
  kSeverity,
  kWhat,
  kWhy,
  kRemedy,
  kTensor,
  kDeviceMs,
  kDeviceIdle
};
constexpr const char* kNoteNames[] = {
    "step", "global step", "update", "steps", "times",  "CPU ms", "queue ms",  "major faults",
    "rule", "severity",    "what",   "why",   "remedy", "tensor", "device ms", "device idle"};
constexpr std::uint64_t kFirstModeName = 100;

/// Tracks of a rank. Uuids are any numbers that differ.
std::uint64_t ProcessTrack(std::uint32_t worker) { return (std::uint64_t{worker} + 1) << 8; }
std::uint64_t ThreadTrack(std::uint32_t worker) { return ProcessTrack(worker) + 1; }
std::uint64_t FindingsTrack(std::uint32_t worker) { return ProcessTrack(worker) + 2; }
// A process's number in the trace: its real one is not known, and 0 means none.
std::int32_t Pid(std::uint32_t worker) { return static_cast<std::int32_t>(worker % 1'000'000) + 1; }

class PerfettoTrace final : public TraceFormat {
 public:
  void Begin(const std::string&, std::string*) override {}

  void Rank(std::uint32_t worker, std::string* to) override {
    sequence_ = worker + 1;
    now_ns_ = -1;
    Descriptor(worker, to);
  }

  void Step(std::uint32_t worker, const query::StepInfo& info, const query::StepPhases& phases,
            const profile::PlacedStep& placed, std::string* to) override {
    if (now_ns_ < 0) Restart(worker, placed.begin_ns, to);
    Packet(placed.begin_ns, to, [&](pbf_writer& out) {
      out.add_enum(event::kType, event::kBegin);
      out.add_uint64(event::kCategories, kSteps);
      out.add_uint64(event::kNameIid, kFirstModeName + static_cast<std::uint64_t>(info.mode));
      Add(&out, kStep, info.mode_step);
      Add(&out, kGlobalStep, info.global_step);
      Add(&out, kUpdate, info.update);
      if (phases.head.steps != 1) Add(&out, kMergedSteps, phases.head.steps);
      if (phases.head.cpu_ns >= 0) AddDouble(&out, kCpuMs, static_cast<double>(phases.head.cpu_ns) * 1e-6);
      if (phases.head.run_queue_ns >= 0)
        AddDouble(&out, kRunQueueMs, static_cast<double>(phases.head.run_queue_ns) * 1e-6);
      if (phases.has_device()) {
        AddDouble(&out, kDeviceMs, static_cast<double>(phases.head.device_ns) * 1e-6);
        Add(&out, kDeviceIdle, phases.idle_steps);
      }
      if (phases.head.major_faults != format::kNoId && phases.head.major_faults != 0)
        Add(&out, kMajorFaults, phases.head.major_faults);
    });
    for (const profile::PhaseSlice& slice : placed.phases) {
      Packet(slice.begin_ns, to, [&](pbf_writer& out) {
        out.add_enum(event::kType, event::kBegin);
        out.add_uint64(event::kCategories, kPhases);
        out.add_uint64(event::kNameIid, static_cast<std::uint64_t>(slice.phase) + 1);
        if (slice.begins > 1) Add(&out, kTimes, slice.begins);
        if (const std::int64_t ns = phases.device_ns[static_cast<std::size_t>(slice.phase)]; ns >= 0)
          AddDouble(&out, kDeviceMs, static_cast<double>(ns) * 1e-6);
      });
      End(slice.end_ns, to);
    }
    End(placed.end_ns, to);
  }

  void Finding(const rules::Finding& finding, std::int64_t at_ns, std::string* to) override {
    Absolute(at_ns, kFindingsSequence, &findings_begun_, to, [&](pbf_writer& out) {
      out.add_enum(event::kType, event::kInstant);
      out.add_uint64(event::kTrack, FindingsTrack(finding.worker));
      out.add_string(event::kName,
                     ValidUtf8(finding.rule + (finding.cause.empty() ? "" : ": " + finding.cause)));
      out.add_uint64(event::kCategories, kFindings);
      AddText(&out, kRule, finding.rule);
      AddText(&out, kSeverity, finding.severity == rules::Severity::kStop ? "stop" : "warn");
      AddText(&out, kWhat, finding.what);
      AddText(&out, kWhy, finding.why);
      AddText(&out, kRemedy, finding.remedy);
      if (!finding.tensor.empty()) AddText(&out, kTensor, finding.tensor);
      Add(&out, kStep, finding.step);
    });
  }

  void Series(std::uint32_t host, const std::string& name, std::string_view unit, std::string* to) override {
    const std::uint64_t parent = (std::uint64_t{1} << 48) + host;
    if (hosts_.insert(host).second) {
      Track(parent, 0, nullptr, to, kSamplesSequence, [&](pbf_writer& out) {
        pbf_writer process(out, descriptor::kProcess);
        process.add_int32(descriptor::kProcessPid, Pid(host) + kFirstHostPid);
        process.add_string(descriptor::kProcessName, "host " + std::to_string(host));
      });
    }
    series_ = (std::uint64_t{1} << 49) + series_count_++;
    Track(series_, parent, ValidUtf8(name).c_str(), to, kSamplesSequence, [&](pbf_writer& out) {
      pbf_writer counter(out, descriptor::kCounter);
      counter.add_enum(descriptor::kUnit,
                       0);  // unspecified: an empty message would be left out, and so its values
      if (!unit.empty()) counter.add_string(descriptor::kUnitName, unit.data(), unit.size());
    });
  }

  void Value(std::int64_t at_ns, double value, std::string* to) override {
    Absolute(at_ns, kSamplesSequence, &samples_begun_, to, [&](pbf_writer& out) {
      out.add_enum(event::kType, event::kCounter);
      out.add_uint64(event::kTrack, series_);
      out.add_double(event::kDoubleValue, value);
    });
  }

  void Track(std::uint32_t worker, std::uint32_t track, const std::string& name, std::string* to) override {
    Close(INT64_MAX, to);
    operators_ = (std::uint64_t{1} << 50) + (std::uint64_t{worker} << 16) + track;
    Track(operators_, ProcessTrack(worker), ValidUtf8(name).c_str(), to, kOperatorsSequence,
          [](pbf_writer&) {});
  }

  void Operator(const profile::TraceEvent& event, std::string* to) override {
    Close(event.begin_ns, to);
    Absolute(event.begin_ns, kOperatorsSequence, &operators_begun_, to, [&](pbf_writer& out) {
      out.add_enum(event::kType, event::kBegin);
      out.add_uint64(event::kTrack, operators_);
      out.add_string(event::kName, ValidUtf8(std::string(event.name)));
      out.add_string(event::kCategoryName, event.category.data(), event.category.size());
    });
    open_.push_back(event.end_ns);
  }

  void End(std::string* to) override { Close(INT64_MAX, to); }

 private:
  static constexpr std::uint32_t kFindingsSequence = UINT32_MAX, kSamplesSequence = UINT32_MAX - 1,
                                 kOperatorsSequence = UINT32_MAX - 2;
  static constexpr std::int32_t kFirstHostPid = 1'000'000;

  /// Ends the operators that have ended by then.
  void Close(std::int64_t by_ns, std::string* to) {
    for (; !open_.empty() && open_.back() <= by_ns; open_.pop_back()) {
      Absolute(open_.back(), kOperatorsSequence, &operators_begun_, to, [&](pbf_writer& out) {
        out.add_enum(event::kType, event::kEnd);
        out.add_uint64(event::kTrack, operators_);
      });
    }
  }

  /// An event at any Unix time, in a sequence of its own.
  static void Absolute(std::int64_t at_ns, std::uint32_t sequence, bool* begun, std::string* to,
                       const auto& fill) {
    const std::int64_t at = std::max<std::int64_t>(at_ns, 0);
    if (!*begun) Snapshot(at, sequence, to);
    pbf_writer all(*to);
    pbf_writer one(all, trace::kPacket);
    one.add_uint64(packet::kTimestamp, static_cast<std::uint64_t>(at));
    one.add_uint32(packet::kSequence, sequence);
    one.add_uint32(packet::kFlags, (*begun ? 0 : packet::kStateCleared) | packet::kNeedsState);
    if (!*begun) {
      one.add_message(packet::kInterned, Names());
      pbf_writer settings(one, packet::kDefaults);
      settings.add_uint32(defaults::kClock, clock_snapshot::kRealtime);
    }
    *begun = true;
    pbf_writer out(one, packet::kEvent);
    fill(out);
  }

  static void Add(pbf_writer* to, Note name, std::int64_t value) {
    pbf_writer out(*to, event::kNote);
    out.add_uint64(note::kNameIid, name);
    out.add_int64(note::kInt, value);
  }
  static void AddDouble(pbf_writer* to, Note name, double value) {
    pbf_writer out(*to, event::kNote);
    out.add_uint64(note::kNameIid, name);
    out.add_double(note::kDouble, value);
  }
  static void AddText(pbf_writer* to, Note name, const std::string& value) {
    pbf_writer out(*to, event::kNote);
    out.add_uint64(note::kNameIid, name);
    out.add_string(note::kText, ValidUtf8(value));
  }

  /// An event of the rank's thread, at a time that is not before the last one.
  template <typename Fill>
  void Packet(std::int64_t at_ns, std::string* to, Fill fill) {
    pbf_writer all(*to);
    pbf_writer one(all, trace::kPacket);
    one.add_uint64(packet::kTimestamp, static_cast<std::uint64_t>(at_ns - now_ns_));
    now_ns_ = at_ns;
    one.add_uint32(packet::kSequence, sequence_);
    one.add_uint32(packet::kFlags, packet::kNeedsState);
    pbf_writer out(one, packet::kEvent);
    fill(out);
  }
  void End(std::int64_t at_ns, std::string* to) {
    Packet(at_ns, to, [](pbf_writer& out) { out.add_enum(event::kType, event::kEnd); });
  }

  static void Track(std::uint64_t uuid, std::uint64_t parent, const char* name, std::string* to,
                    std::uint32_t sequence, const auto& fill) {
    pbf_writer all(*to);
    pbf_writer one(all, trace::kPacket);
    one.add_uint32(packet::kSequence, sequence);
    pbf_writer out(one, packet::kDescriptor);
    out.add_uint64(descriptor::kUuid, uuid);
    if (parent != 0) out.add_uint64(descriptor::kParent, parent);
    if (name != nullptr) out.add_string(descriptor::kName, name);
    fill(out);
  }

  void Descriptor(std::uint32_t worker, std::string* to) const {
    Track(ProcessTrack(worker), 0, nullptr, to, sequence_, [&](pbf_writer& out) {
      pbf_writer process(out, descriptor::kProcess);
      process.add_int32(descriptor::kProcessPid, Pid(worker));
      process.add_string(descriptor::kProcessName, "rank " + std::to_string(worker));
    });
    Track(ThreadTrack(worker), ProcessTrack(worker), nullptr, to, sequence_, [&](pbf_writer& out) {
      pbf_writer thread(out, descriptor::kThread);
      thread.add_int32(descriptor::kThreadPid, Pid(worker));
      thread.add_int32(descriptor::kThreadTid, Pid(worker));
      thread.add_string(descriptor::kThreadName, "training thread");
    });
    Track(FindingsTrack(worker), ProcessTrack(worker), "findings", to, sequence_, [](pbf_writer&) {});
  }

  /// What names stand for, as the body of a message.
  static std::string Names() {
    std::string body;
    pbf_writer out(body);
    const auto add = [&](pbf_tag_type kind, std::uint64_t iid, std::string_view text) {
      pbf_writer one(out, kind);
      one.add_uint64(interned::kIid, iid);
      one.add_string(interned::kText, text.data(), text.size());
    };
    add(interned::kCategory, kSteps, "step");
    add(interned::kCategory, kPhases, "phase");
    add(interned::kCategory, kFindings, "finding");
    for (std::size_t i = 0; i < format::kPhaseCount; ++i) add(interned::kName, i + 1, format::kPhaseNames[i]);
    for (const query::Mode mode : {query::Mode::kTrain, query::Mode::kEval, query::Mode::kPredict}) {
      add(interned::kName, kFirstModeName + static_cast<std::uint64_t>(mode),
          std::string(query::ModeName(mode)) + " step");
    }
    for (std::size_t i = 0; i < std::size(kNoteNames); ++i) add(interned::kNoteName, i + 1, kNoteNames[i]);
    return body;
  }

  /// Which clocks there are. Unix time is the trace's own.
  static void Snapshot(std::int64_t at_ns, std::uint32_t sequence, std::string* to) {
    pbf_writer all(*to);
    pbf_writer one(all, trace::kPacket);
    one.add_uint32(packet::kSequence, sequence);
    pbf_writer out(one, packet::kClockSnapshot);
    const auto at = static_cast<std::uint64_t>(std::max<std::int64_t>(at_ns, 0));
    for (const std::uint32_t id :
         {clock_snapshot::kRealtime, clock_snapshot::kBoottime, clock_snapshot::kDifferences}) {
      if (id == clock_snapshot::kDifferences && sequence >= kOperatorsSequence) continue;
      pbf_writer clock(out, clock_snapshot::kClock);
      clock.add_uint32(clock_snapshot::kId, id);
      clock.add_uint64(clock_snapshot::kTimestamp, at);
      if (id == clock_snapshot::kDifferences) clock.add_bool(clock_snapshot::kIncremental, true);
    }
    out.add_enum(clock_snapshot::kPrimary, clock_snapshot::kRealtime);
  }

  /// Begins the rank's sequence: its clock, its track, its names.
  void Restart(std::uint32_t worker, std::int64_t at_ns, std::string* to) {
    now_ns_ = at_ns;
    Snapshot(at_ns, sequence_, to);
    pbf_writer all(*to);
    pbf_writer one(all, trace::kPacket);
    one.add_uint32(packet::kSequence, sequence_);
    one.add_uint32(packet::kFlags, packet::kStateCleared);
    one.add_message(packet::kInterned, Names());
    pbf_writer settings(one, packet::kDefaults);
    settings.add_uint32(defaults::kClock, clock_snapshot::kDifferences);
    pbf_writer out(settings, defaults::kEvent);
    out.add_uint64(event::kTrack, ThreadTrack(worker));
  }

  std::uint32_t sequence_ = 1;
  std::int64_t now_ns_ = -1;  // of the sequence's last packet; -1: it has none
  bool findings_begun_ = false, samples_begun_ = false, operators_begun_ = false;
  std::uint64_t operators_ = 0;     // the track of the operators that come
  std::vector<std::int64_t> open_;  // ends of those that are open
  std::set<std::uint32_t> hosts_;
  std::uint64_t series_ = 0, series_count_ = 0;  // the track of the values that come
};

}  // namespace

std::unique_ptr<TraceFormat> MakePerfettoTrace() { return std::make_unique<PerfettoTrace>(); }

}  // namespace luff::cli
