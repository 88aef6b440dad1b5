#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "luff/profile/input.h"
#include "rules/builtin/data/shared_out.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/json_event.h"
#include "rules/facts/loss_call.h"
#include "rules/facts/model_modules.h"
#include "rules/facts/sample.h"
#include "rules/facts/shuffled_rows.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// SampleMixing: docs/rules/sample_mixing.md.
namespace luff::rules::sample_mixing {
namespace {

using format::Role;
constexpr const char* kName = "SampleMixing";
constexpr std::size_t kMaxCauses = 64;
constexpr std::int64_t kLastStep = 64;  // of what shapes and sums show
constexpr double kPlaced = 1e-2;        // likewise
constexpr double kOrdered = 1e-2;       // likewise
constexpr double kMasked = 0.1;         // likewise
constexpr double kPadded = 1;           // of the outputs' spread: as far as rows differ from each other

struct Limits {
  std::int64_t times;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::times, "times", "2", "steps in which shapes or sums must say so (Luff)", AtLeast(1)},
};

// Modules that pass information along their time axis.
const std::vector<std::string>& Sequential() {
  static const std::vector<std::string> kTypes = {"RNN", "LSTM", "GRU", "TransformerEncoder",
                                                  "MultiheadAttention"};
  return kTypes;
}

class SampleMixing final : public KeptRule {
 public:
  explicit SampleMixing(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode != query::Mode::kTrain || info.superseded) return;
    Asked(view, sink);  // answers come when a child has them, at any step
    Reshaped(view, sink);
    Shared(view, sink);
    Padded(view, sink);
    Placed(view, sink);
    Exchanged(view, sink);
    Ordered(view, sink);
    Masked(view, sink);
    if (info.mode_step > kLastStep) return;
    modules_.OnStep(view);
    const std::vector<LossCall>& calls = reader_.Read(view);
    if (calls.empty()) return;
    for (const LossCall& call : calls) Normalised(view, call, sink);
    for (const auto& [entry, tensor] : view.index.summaries(Role::kInput)) {
      if (!tensor.name.ends_with("_input_0") ||
          std::find(Sequential().begin(), Sequential().end(), tensor.module_type) == Sequential().end())
        continue;
      Recurrence(view, entry, tensor, calls, sink);
    }
  }
  void VisitFields(Fields& io) override {
    io("seen", seen_, kMaxCauses);
    io("told", told_, kMaxCauses);
    io("innocent", innocent_, kMaxCauses);
    io("length", length_);
    io("lengths_differ", lengths_differ_);
    io("padded", padded_);
    io("first_axis", first_axis_);
    io("order", order_);
    io("shared", shared_);
    io("shuffled", shuffled_);
    io("reader", reader_);
  }

 private:
  // Counts one more step that shows `key`. Returns true once, when there are enough and none showed the
  // opposite.
  bool Enough(const std::string& key) {
    if (told_.contains(key) || innocent_.contains(key)) return false;
    if (!seen_.contains(key) && seen_.size() >= kMaxCauses) return false;
    if (++seen_[key] < limits_.times) return false;
    told_.insert(key);
    return true;
  }

  // Reports a model of tokens whose answer for a row changes with other rows: it was asked, in evaluation
  // mode.
  void Asked(const StepView& view, Sink& sink) {
    for (const auto& event : view.index.json_events("softmax_first_axis"))
      first_axis_ = ShapeIn(*event, "shape");
    for (const auto& answer : view.index.json_events("causal")) {
      const double across = NumberIn(*answer, "across");
      if (!(across > kAcross) || !told_.insert("asked").second) continue;
      Finding finding = FindingAt(kName, "rows", view, TensorAt{format::kNoId});
      finding.since_step = 0;
      finding.what = "the model's outputs for a sample depend on the other samples of the batch";
      finding.why = fmt::format(
          "with other tokens in the other rows, outputs of the first row change by {:.2g} of their spread, "
          "in evaluation mode too",
          across);
      finding.remedy = "set batch_first=True where inputs are (batch, time, features), or transpose them";
      finding.causes = {"batch_first=True is missing", "a transposition that is missing or doubled",
                        "a reshape that moves values to other samples"};
      if (!first_axis_.empty()) {
        finding.causes.insert(
            finding.causes.begin(),
            fmt::format("a softmax along the first axis (dim=0) of ({}): if the samples lie "
                        "there, it shares 1 out among them",
                        first_axis_));
        finding.remedy =
            "give the softmax the axis whose values it is to weigh (dim=-1 for attention over places); if "
            "its "
            "first axis is not that of the samples, " +
            finding.remedy;
      }
      finding.evidence = {{"change", across}};
      finding.threshold =
          fmt::format("more than {:g} of the outputs' spread, asked of the model itself (Luff)", kAcross);
      sink.Report(std::move(finding));
    }
  }

  // Reports a model in which a reshape moves the batch to another axis, and whose answer for a sample changes
  // with the order of the others: it was asked, in evaluation mode.
  void Reshaped(const StepView& view, Sink& sink) {
    for (const auto& answer : view.index.json_events("mixing")) {
      const double across = NumberIn(*answer, "across");
      const double rows = NumberIn(*answer, "rows");
      const std::string before = ShapeIn(*answer, "before");
      const std::string behind = ShapeIn(*answer, "behind");
      if (!(across > kAcross) || before.empty() || behind.empty() || !told_.insert("reshape").second)
        continue;
      Finding finding = FindingAt(kName, "reshape", view, TensorAt{format::kNoId});
      finding.since_step = 0;
      finding.what =
          fmt::format("a reshape from ({}) to ({}) mixes the samples of the batch", before, behind);
      finding.why = fmt::format(
          "the {:g} samples lie along another axis behind it, and a reshape moves no axes: each row then "
          "holds values of several samples; with the other samples in another order, the model's output for "
          "the first one changes by {:.2g} of the outputs' spread, in evaluation mode too",
          rows, across);
      finding.remedy =
          "transpose or permute before the reshape, so that the batch comes first: h.transpose(0, "
          "1).reshape(N, -1) for the last states of an RNN, whose shape is (layers, N, width) with "
          "batch_first=True too";
      finding.causes = {"a reshape or view in the place of transpose or permute",
                        "states of an RNN taken as if the batch were their first axis"};
      finding.evidence = {{"change", across}, {"itself", NumberIn(*answer, "itself")}, {"rows", rows}};
      finding.threshold = fmt::format(
          "the shapes say so, and more than {:g} of the outputs' spread, asked of the model itself (Luff)",
          kAcross);
      sink.Report(std::move(finding));
    }
  }

  // Reports a model that shares 1 out among the samples, or scales a column of their numbers to one length:
  // its graph shows it along the first axis, and its answer for a sample is another one beside other samples.
  // Rows may be the places of one sample, which may look at each other: not those of a loader's batches, nor
  // where what was shared out along one axis weighs values along another.
  void Shared(const StepView& view, Sink& sink) {
    if (told_.contains("asked")) return;
    for (const auto& answer : view.index.json_events("mixing")) shared_.Read(*answer);
    if (shared_.of.empty()) return;
    shuffled_.OnStep(view);
    const bool loader = IsBatchOfALoader(view, shared_.rows);
    if (!shared_.weighs && !loader && !shuffled_.regrouped()) return;
    told_.insert("asked");
    Finding finding = FindingAt(kName, "rows", view, TensorAt{format::kNoId});
    finding.since_step = 0;
    finding.what = "the model's outputs for a sample depend on the other samples of the batch";
    finding.why = fmt::format(
        "{} runs along {} ({}), where the {:g} samples lie{}; with other samples beside it, outputs of the "
        "first one change by {:.2g} of their spread, in evaluation mode too",
        shared_.Does(), shared_.whole ? "all axes of" : "the first axis (dim=0) of", shared_.shape,
        shared_.rows,
        shared_.weighs
            ? ", and what it shares out weighs values along another axis, where the weights of a sample do "
              "not add up to 1"
        : loader ? ""
                 : ", which the training gives again in other places and in other company",
        shared_.across);
    finding.remedy = shared_.Remedy();
    finding.causes = {fmt::format("{} in {}", shared_.whole ? "no dim" : "dim=0", shared_.Call()),
                      "inputs whose batch was taken for another axis"};
    finding.evidence = {{"change", shared_.across}, {"itself", shared_.itself}, {"rows", shared_.rows}};
    finding.threshold = fmt::format(
        "a fact of the graph, and more than {:g} of the outputs' spread, asked of the model itself (Luff)",
        kAcross);
    sink.Report(std::move(finding));
  }

  // Whether a loader makes batches of so many samples. Which one trains is known at the end of an epoch only.
  static bool IsBatchOfALoader(const StepView& view, double rows) {
    const std::vector<profile::Loader> loaders = profile::LoadersOf(view.trial.Document("loaders"));
    return std::any_of(loaders.begin(), loaders.end(), [&](const profile::Loader& loader) {
      return static_cast<double>(loader.batch_size) == rows;
    });
  }

  // Reports a model whose answer for a row is another one without the row's padding: it was asked, in
  // evaluation mode. Only where batches are as long as their longest row, which then has a say in all others'
  // answers.
  void Padded(const StepView& view, Sink& sink) {
    if (told_.contains("padding")) return;
    for (const ModelInput& input : ModelInputsOf(view)) {
      if (lengths_differ_ || !IsIds(input.entry->dtype)) break;
      const auto shape = view.trial.Shape(input.entry->tensor, view.rows.info.global_step,
                                          query::Mode::kGlobal, input.entry->worker);
      if (!shape.ok() || shape.value().shape.size() != 2) continue;
      const std::int64_t length = shape.value().shape[1];
      lengths_differ_ = length_ >= 0 && length_ != length;
      length_ = length;
      break;  // one argument tells
    }
    for (const auto& answer : view.index.json_events("padding")) {
      const double change = NumberIn(*answer, "change");
      const double rows = NumberIn(*answer, "rows");
      if (change > kPadded && rows >= 1) padded_ = {change, rows, NumberIn(*answer, "least")};
    }
    if (!lengths_differ_ || !(padded_[0] > kPadded) || !told_.insert("padding").second) return;
    Finding finding = FindingAt(kName, "padding", view, TensorAt{format::kNoId});
    finding.since_step = 0;
    finding.what = "the model's answer for a row depends on how far its batch pads it";
    finding.why = fmt::format(
        "batches are as long as their longest row; asked for {:g} rows alone, without their padding, the "
        "model's answers change by {:.2g} times the outputs' spread (median), in evaluation mode too: "
        "padding is part of a mean, or what a recurrent network read last",
        padded_[1], padded_[0]);
    finding.remedy =
        "leave padding out: (h * mask).sum(1) / mask.sum(1) for a mean, pack_padded_sequence or the state "
        "at the last real place for an RNN, a key_padding_mask for attention";
    finding.causes = {"a mean over all places, padding included",
                      "out[:, -1] or the last state of an RNN that has read the padding"};
    finding.evidence = {{"change", padded_[0]}, {"rows", padded_[1]}, {"least", padded_[2]}};
    finding.threshold = fmt::format(
        "more than {:g} times the outputs' spread for half of the rows, asked of the model itself (Luff)",
        kPadded);
    sink.Report(std::move(finding));
  }

  // Reports a model that gives one sample another answer in each place of the batch, though the other samples
  // do not matter to it: it was asked, in evaluation mode.
  void Placed(const StepView& view, Sink& sink) {
    for (const auto& answer : view.index.json_events("places")) {
      const double placed = NumberIn(*answer, "placed");
      const double rows = NumberIn(*answer, "rows"), answers = NumberIn(*answer, "answers");
      if (!(placed > kPlaced && answers > rows / 2 && rows >= 1) || !told_.insert("place").second) continue;
      Finding finding = FindingAt(kName, "place", view, TensorAt{format::kNoId});
      finding.since_step = 0;
      finding.what = "the model's answer for a sample depends on the sample's place in the batch";
      finding.why = fmt::format(
          "given one sample in all {:g} places, it gives {:g} answers, {:.2g} of the outputs' spread apart, "
          "in evaluation mode; the other samples do not matter to it: positions are counted along the "
          "batch, and the places of a sequence are not told apart",
          rows, answers, placed);
      finding.remedy =
          "add positions along the axis of the sequence: with inputs of (batch, length, width), pe[:, "
          ":x.size(1)] where pe has the shape (1, length, width), or embeddings of arange(x.size(1))";
      finding.causes = {"a positional encoding for (length, batch, width) in a model with batch_first=True",
                        "pe[:x.size(0)] in the place of pe[:, :x.size(1)]"};
      finding.evidence = {{"apart", placed}, {"answers", answers}, {"rows", rows}};
      finding.threshold = fmt::format(
          "more than {:g} of the outputs' spread, and more answers than half of the places, asked of the "
          "model itself (Luff)",
          kPlaced);
      sink.Report(std::move(finding));
    }
  }

  // Reports a model whose answers do not move along when the rows of its batch are given in another order: it
  // was asked, in evaluation mode. Only where the training itself gives its rows in ever other orders: those
  // that are places of a sequence, nodes of a graph or sensors have one.
  void Ordered(const StepView& view, Sink& sink) {
    if (told_.contains("place") || told_.contains("order")) return;
    for (const auto& answer : view.index.json_events("places")) order_.Read(*answer);
    if (order_.of.empty()) return;
    shuffled_.OnStep(view);
    const bool place = order_.of == "place", one = order_.of == "one";
    const bool samples = shuffled_.shuffled() || ((place || one) && IsBatchOfALoader(view, order_.batch));
    if (!samples || told_.contains("asked") || told_.contains("reshape")) return;
    told_.insert(place ? "place" : "order");
    Finding finding = FindingAt(kName, place ? "place" : "order", view, TensorAt{format::kNoId});
    finding.since_step = 0;
    finding.what = place ? "the model's answer for a sample depends on the sample's place in the batch"
                         : "the model's answers depend on the order of the samples in the batch";
    finding.why = fmt::format(
        "{}, but with {:g} of them in another order the answer for one of them changes by {:.2g} of the "
        "outputs' spread, in evaluation mode: {}",
        shuffled_.shuffled() ? "the training shuffles its rows" : "rows are the samples of a loader",
        order_.rows, order_.change,
        place && order_.alone >= 0
            ? fmt::format("the sample in place {:g} is treated otherwise than those in all other places, "
                          "whose answers depend on nothing but the sample",
                          order_.alone)
        : place ? "each place has its own answer for one sample, whatever stands beside it"
        : one
            ? fmt::format("the sample in place {:g} has a say in the answers for all others, which have none",
                          order_.alone)
            : "a small change of one sample changes the answers for others, and not for all in one way");
    finding.remedy =
        place && order_.alone >= 0 ? "give the edges of each graph the number of its first node, where "
                                     "graphs of a batch are joined: "
                                     "edge_index + number * nodes for each (torch_geometric's Batch does); "
                                     "look for an index 0 where "
                                     "all samples are meant"
        : place
            ? "count positions along the axis of the sequence: arange(x.size(1)) for (batch, length, width)"
        : one
            ? "look for an index 0 in forward(), as in t[0], mask[0] or h[0], and take the value of each "
              "sample: t[:, None]"
            : "let each layer work along another axis than the batch: batch_first=True for (batch, length, "
              "width), x[:, None] in front of a recurrent layer or a convolution that gets vectors, dim=1 in "
              "cumsum, roll, flip or diff, transpose in the place of reshape";
    finding.causes =
        place ? std::vector<std::string>{"edges of a batch of graphs without offsets",
                                         "positions or masks taken along the batch"}
        : one ? std::vector<std::string>{"a value of the first sample that is taken for the whole batch"}
              : std::vector<std::string>{
                    "a recurrent layer, attention or convolution that takes the samples for a sequence",
                    "an operation along the wrong axis (dim=0)", "a reshape in the place of transpose"};
    finding.evidence = {{"change", order_.change}, {"rows", order_.rows}};
    finding.threshold = fmt::format(
        "more than {:g} of the outputs' spread, asked of the model itself; rows that came again stood in "
        "another "
        "place and beside others, or are a loader's (Luff)",
        kOrdered);
    sink.Report(std::move(finding));
  }

  // Reports a reshape whose axes are those of a transposition, as the layers around it show.
  void Exchanged(const StepView& view, Sink& sink) {
    for (const auto& event : view.index.json_events("exchanged_axes")) {
      const std::string before = ShapeIn(*event, "before"), behind = ShapeIn(*event, "behind");
      const auto kind = event->find("of");
      if (before.empty() || behind.empty() || kind == event->end() || !kind->is_string()) continue;
      const auto& of = kind->get_ref<const std::string&>();
      const bool features = of == "features", merged = of == "merged";
      if (!(features || merged || of == "heads") || !told_.insert("axes").second) continue;
      Finding finding = FindingAt(kName, "axes", view, TensorAt{format::kNoId});
      finding.since_step = 0;
      finding.what =
          fmt::format("a reshape from ({}) to ({}) stands in the place of a transposition", before, behind);
      finding.why = fmt::format(
          "a view or reshape keeps the order of the values and moves no axes: {}",
          features
              ? "the layer before it makes features along one axis, the layer behind it takes them along "
                "another of the same size, so that each of its rows mixes features and places"
          : merged
              ? "the heads of the attention come first, and behind it each place holds pieces of other "
                "places"
              : "the heads are to come before the places, but each head gets pieces of a few neighbouring "
                "places, and attention never compares the others");
      finding.remedy =
          features ? "transpose or permute the axes: x.transpose(1, 2) for (N, C, L), x.flatten(2)"
                     ".transpose(1, 2) for (N, C, H, W); then reshape, if at all"
          : merged ? "transpose before the reshape: x.transpose(1, 2).reshape(N, L, H * D)"
                   : "split, then transpose: x.view(N, L, H, D).transpose(1, 2), and before heads "
                     "are merged x.transpose(1, 2).reshape(N, L, H * D)";
      finding.causes = {"a view or reshape in the place of transpose or permute"};
      finding.threshold = "a fact of the graph, in two steps: the layers around it and the sizes (Luff)";
      sink.Report(std::move(finding));
    }
  }

  // Reports a module whose time axis is as long as the target has rows, while no axis of the target fits the
  // module's batch axis: it runs over the samples.
  void Recurrence(const StepView& view, const query::Trial::SummaryEntry& entry,
                  const query::TensorInfo& tensor, const std::vector<LossCall>& calls, Sink& sink) {
    if (told_.contains(tensor.name) || innocent_.contains(tensor.name)) return;
    const auto shape =
        view.trial.Shape(entry.tensor, view.rows.info.global_step, query::Mode::kGlobal, entry.worker);
    if (!shape.ok() || shape.value().shape.size() != 3) return;
    const std::string name = tensor.name.substr(0, tensor.name.rfind("_input_"));
    const auto module = std::find_if(modules_.modules().begin(), modules_.modules().end(),
                                     [&](const ModuleFacts& facts) { return facts.name == name; });
    if (module == modules_.modules().end()) return;
    std::optional<double> batch_first = module->Number("batch_first");
    if (!batch_first.has_value()) {
      // A stack of layers has the layout of its layers.
      for (const ModuleFacts& within : modules_.modules()) {
        if (within.model == module->model && within.path.starts_with(module->path + ".") &&
            within.Number("batch_first").has_value())
          batch_first = within.Number("batch_first");
      }
    }
    if (!batch_first.has_value()) return;
    const std::int64_t time = shape.value().shape[*batch_first != 0 ? 1 : 0];
    const std::int64_t batch = shape.value().shape[*batch_first != 0 ? 0 : 1];
    if (time < 2 || batch < 2 || time == batch) return;
    for (const LossCall& call : calls) {
      const std::vector<std::int64_t>& target = call.target.whole_shape;
      if (target.empty()) return;
      std::int64_t elements = 1;
      for (const std::int64_t size : target) elements *= std::max<std::int64_t>(size, 1);
      const bool along_time = target[0] == time;
      const bool along_batch = std::find(target.begin(), target.end(), batch) != target.end() ||
                               (elements / time) % batch == 0 || (!along_time && elements % batch == 0);
      if (along_batch) {
        if (innocent_.size() < kMaxCauses) innocent_.insert(tensor.name);
        return;
      }
      if (!along_time || !Enough(tensor.name)) continue;
      Finding finding = FindingAt(kName, "recurrence", view, entry);
      finding.since_step = 0;
      finding.what = fmt::format("{} runs over the samples of the batch", name);
      finding.why = fmt::format(
          "its input has the shape ({}) and batch_first is {}, so axis {} of size {} is time for it; but "
          "the target has {} rows: that axis holds the samples, and each output depends on other samples",
          fmt::join(shape.value().shape, ", "), *batch_first != 0, *batch_first != 0 ? 1 : 0, time,
          target[0]);
      finding.remedy = *batch_first != 0 ? "give inputs as (batch, time, features), or set batch_first=False"
                                         : "set batch_first=True, or give inputs as (time, batch, features)";
      finding.causes = {*batch_first != 0 ? "inputs have time first" : "batch_first=True is missing",
                        "a transposition that is missing or doubled"};
      finding.evidence = {{"time_axis", time}, {"batch_axis", batch}, {"target_rows", target[0]}};
      finding.threshold = fmt::format("the shapes say so in {} steps (Luff)", limits_.times);
      sink.Report(std::move(finding));
      return;
    }
  }

  // Reports probabilities that add up to 1 over the samples, but not over the classes.
  void Normalised(const StepView& view, const LossCall& call, Sink& sink) {
    const std::vector<std::int64_t>& shape = call.output.shape;
    if (shape.size() != 2 || !call.output.whole() || !call.output.is_float() || shape[0] < 2 ||
        shape[1] < 2 || call.target.whole_shape.empty() || call.target.whole_shape[0] != shape[0])
      return;
    const std::string& name = view.trial.tensor(call.loss).name;
    if (told_.contains(name) || innocent_.contains(name)) return;
    const std::size_t rows = static_cast<std::size_t>(shape[0]);
    const std::size_t columns = static_cast<std::size_t>(shape[1]);
    const auto add_up = [&](bool logarithms, bool over_rows) {
      const std::size_t outer = over_rows ? columns : rows;
      const std::size_t inner = over_rows ? rows : columns;
      for (std::size_t i = 0; i < outer; ++i) {
        double sum = 0;
        for (std::size_t j = 0; j < inner; ++j) {
          const double value = call.output.values[over_rows ? j * columns + i : i * columns + j];
          if (!std::isfinite(value) || (logarithms ? value > 1e-3 : value < 0)) return false;
          sum += logarithms ? std::exp(value) : value;
        }
        if (std::abs(sum - 1) > 2e-3) return false;
      }
      return true;
    };
    const bool logarithms = add_up(true, true);
    const bool mixed = (logarithms && !add_up(true, false)) || (add_up(false, true) && !add_up(false, false));
    if (!mixed) {
      if (innocent_.size() < kMaxCauses && view.rows.info.mode_step > 0) innocent_.insert(name);
      return;
    }
    if (!Enough(name)) return;
    Finding finding = FindingAt(kName, "softmax", view, TensorAt{call.loss, call.worker});
    finding.since_step = 0;
    finding.what = fmt::format("the outputs that {} gets add up to 1 over the samples instead of the classes",
                               call.kind);
    finding.why = fmt::format(
        "each of the {} columns of the {} x {} outputs is a {} over the batch: what a sample gets depends "
        "on the others in its batch",
        columns, rows, columns, logarithms ? "log-softmax" : "softmax");
    finding.remedy = "use dim=-1 (or dim=1) in the softmax";
    finding.causes = {"dim=0 in softmax or log_softmax", "outputs were transposed"};
    finding.evidence = {{"samples", rows}, {"classes", columns}};
    finding.threshold =
        fmt::format("every column adds up to 1 within 0.002, in {} steps (Luff)", limits_.times);
    sink.Report(std::move(finding));
  }

  // Reports a model that gets a mask of the padding, or the rows' lengths, uses neither, and whose answers
  // change with what stands in the padding: it was asked, in evaluation and in training mode.
  void Masked(const StepView& view, Sink& sink) {
    for (const auto& answer : view.index.json_events("places")) {
      const auto name = answer->find("mask");
      const double change = NumberIn(*answer, "padding"), rows = NumberIn(*answer, "padded_rows");
      if (name == answer->end() || !name->is_string() || !(change > kMasked) || !(rows >= 1)) continue;
      if (!told_.insert("mask").second) continue;
      told_.insert("padding");  // follows from it
      const std::string& key = name->get_ref<const std::string&>();
      const bool number = !key.empty() && key.find_first_not_of("0123456789") == std::string::npos;
      Finding finding = FindingAt(kName, "mask", view, TensorAt{format::kNoId});
      finding.since_step = 0;
      finding.what = fmt::format("the model gets a mask or lengths as {}{} and does not use them",
                                 number ? "argument " : "", key);
      finding.why = fmt::format(
          "no number of its results changes with another mask, in evaluation and in training; but with other "
          "values in the padding of {:g} rows their answers change by {:.2g} of the outputs' spread "
          "(median): "
          "padding counts as if it were real",
          rows, change);
      finding.remedy =
          "hand the mask on: src_key_padding_mask=~mask of nn.TransformerEncoder, attention_mask=mask of an "
          "encoder inside, (h * mask).sum(1) / mask.sum(1) for a mean, pack_padded_sequence for lengths";
      finding.causes = {"an argument of forward() that no layer gets",
                        "a mask that a later line replaces, or that is made and never applied"};
      finding.evidence = {{"change", change}, {"rows", rows}};
      finding.threshold = fmt::format(
          "bit for bit the same, and more than {:g} of the outputs' spread, asked of the model itself (Luff)",
          kMasked);
      sink.Report(std::move(finding));
    }
  }

  // What a model said of another order of its batch.
  struct Order {
    std::string of;  // "place", "one" or "others"; empty: nothing
    double change = 0, rows = 0, alone = -1, batch = 0;
    void Read(const nlohmann::json& answer) {
      const auto name = answer.find("of");
      if (name == answer.end() || !name->is_string()) return;
      const std::string& value = name->get_ref<const std::string&>();
      const double far = NumberIn(answer, "change"), given = NumberIn(answer, "order_rows");
      if ((value != "place" && value != "one" && value != "others") || !(far > kOrdered) || !(given >= 2))
        return;
      const double place = NumberIn(answer, "alone");
      if (value == "one" && !(place >= 0)) return;
      of = value, change = far, rows = given, alone = place >= 0 ? place : -1;
      const double all = NumberIn(answer, "batch");
      batch = all > 0 ? all : 0;
    }
    void VisitFields(Fields& io) {
      io("of", of);
      io("change", change);
      io("rows", rows);
      io("alone", alone);
      io("batch", batch);
    }
  };

  const Limits limits_;
  Order order_;
  SharedOut shared_;
  ShuffledRows shuffled_;
  LossReader reader_;
  ModelModules modules_;
  std::map<std::string, std::int64_t> seen_;
  std::set<std::string> told_, innocent_;
  std::int64_t length_ = -1;  // of the newest rows of ids
  bool lengths_differ_ = false;
  std::string first_axis_;          // shape of what a softmax takes along its first axis; empty: none does
  std::array<double, 3> padded_{};  // the model's answer: median change, rows, least change
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<SampleMixing>(kName, kParams);
  // 2: cause "reshape"; 3: "padding"; 4: "place"; 5: "axes"; 6, 7: softmax along the batch; 8: "order",
  // "mask"; 9: shares among rows that the training shuffles
  spec.version = 9;
  spec.summary =
      "outputs that depend on the other samples of the batch or on a sample's place in it, or axes that a "
      "reshape has mixed";
  spec.needs = [](const Parameters&) -> std::vector<Need> {
    std::vector<Need> needs = SampleNeeds();
    needs.push_back({.collection = "sequence_inputs",
                     .roles = {Role::kInput},
                     .module_types = Sequential(),
                     .forms = Bit(format::Form::kSummary) | Bit(format::Form::kRaw),
                     .save_interval = 1000000,  // step 0 and the first steps only
                     .first_steps = 5});
    return needs;
  };
  return spec;
}

}  // namespace luff::rules::sample_mixing
