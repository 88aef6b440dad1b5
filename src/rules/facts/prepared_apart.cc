#include "rules/facts/prepared_apart.h"

#include "base/format.h"

namespace luff::rules {
namespace {

SideText RowsText(const std::string& name, RowScale::By by, const RowScale& other, bool in_training) {
  const char* side = in_training ? "training" : "evaluations";
  const char* opposite = in_training ? "evaluations" : "training";
  const bool deviation = by == RowScale::By::kDeviation;
  SideText text;
  text.cause = "by_row";
  text.what = deviation ? fmt::format(
                              "each row of {} has mean 0 and deviation 1 by itself in {}, and none has "
                              "in {}",
                              name, side, opposite)
                        : fmt::format("each row of {} has length 1 in {}, and rows of {} have not", name,
                                      side, opposite);
  text.why = fmt::format(
      "rows are scaled one by one, each by its own numbers, on one side only: what a row's level and size "
      "say is "
      "lost there, and the same row is another one to the model{}",
      deviation
          ? fmt::format(" (means of rows in {} vary by {:.2g} deviations)", opposite, other.means_spread())
          : fmt::format(" (rows in {} have lengths of {:.2g} on average)", opposite, other.mean_length()));
  text.remedy =
      "prepare inputs of training and evaluations by the same steps: mean and deviation of each column (axis "
      "0), "
      "taken from the training data, kept, and used for both";
  text.causes = {"a mean and a deviation along the wrong axis (axis 1 in place of 0, no dim=0)",
                 "a Normalizer, which scales rows, in place of a StandardScaler, which scales columns",
                 "rows that were prepared one at a time, as they come, by a scaler that was fitted to each"};
  text.evidence = {{"in_training", in_training ? 1.0 : 0.0},
                   {"means_spread", other.means_spread()},
                   {"mean_length", other.mean_length()}};
  text.threshold =
      deviation ? "all rows with mean 0 and one deviation, within 0.005, and means on the other side that "
                  "vary by half of 1 / sqrt(columns), of images 0.3 (Luff)"
                : "all rows with length 1, within 0.005, and 1.5 times as much or as little on the other "
                  "side (Luff)";
  return text;
}

SideText CodeText(const std::string& name, const MissingCodes::Code& code, bool in_training) {
  const char* side = in_training ? "training" : "evaluations";
  const char* opposite = in_training ? "evaluations" : "training";
  SideText text;
  text.cause = "code";
  text.what = fmt::format("column {} of {} is {:.6g} in {:.2g} % of the rows in {}, and never in {}",
                          code.column, name, code.value, 100 * code.share, side, opposite);
  text.why = fmt::format(
      "one value that comes again {:.2g} times as far away as all others differ is a code for what is "
      "missing; {} "
      "has none in this column, so what is missing is prepared otherwise there",
      code.ratio, opposite);
  text.remedy =
      "fill what is missing by the same step on both sides (the median of the training data), before it is "
      "scaled";
  text.causes = {"fillna or dropna on one side only", "a table that was read without na_values on one side"};
  text.evidence = {{"in_training", in_training ? 1.0 : 0.0},
                   {"column", code.column},
                   {"value", code.value},
                   {"share", code.share},
                   {"ratio", code.ratio}};
  text.threshold =
      "nines with a minus, 10 times as far away as all others differ, or another known code, 500 times; ten "
      "would "
      "be expected on the other side, and none is there (Luff)";
  return text;
}

SideText ErasedText(const std::string& name, const ErasedValues::Found& found) {
  SideText text;
  text.cause = "erased";
  text.what = fmt::format("{:.0f} % of the values of {} are 0 in evaluations, and none in training",
                          100 * found.share, name);
  text.why = fmt::format(
      "the zeros stand in all of the {:.0f} columns that are compared, here and there, and what is not 0 is "
      "as it is "
      "in training: parts of the rows are erased, or were missing and filled with 0, only where the model is "
      "evaluated",
      found.columns);
  text.remedy =
      "erase, mask and augment rows of the training alone, and fill what is missing by the same step on both "
      "sides";
  text.causes = {"the transforms of training and evaluation exchanged",
                 "a mask or a dropout on what is evaluated", "fillna(0) on one side only"};
  text.evidence = {{"columns", found.columns}, {"share", found.share}};
  text.threshold =
      "a tenth of the values, in nine tenths of the columns; at most 1 % of the training's (Luff)";
  return text;
}

}  // namespace

SideText CutText(const std::string& name, const WholeNumbers::Cut& cut, bool in_training,
                 const std::string& cause) {
  const char* side = in_training ? "training" : "evaluations";
  const char* opposite = in_training ? "evaluations" : "training";
  SideText text;
  text.cause = cause;
  text.what = fmt::format("{} is cut to integers in {}, and not in {}", name, side, opposite);
  text.why = fmt::format(
      "in {} all values are whole numbers, {:.0f} % of them 0, which is how those of {} are distributed "
      "without "
      "what stands behind the point ({:.0f} % of these have something there): most of what the values say is "
      "gone "
      "on one side",
      side, 100 * cut.zeros, opposite, 100 * cut.real_share);
  text.remedy =
      "take the cast to integers out (float, not int or long), so that both sides get the same numbers";
  text.causes = {".long(), .int() or astype(int) before the conversion to float",
                 "a tensor or an array that was made with an integer type, into which numbers were written",
                 "a file or a column that was stored as integers on one side"};
  text.evidence = {{"in_training", in_training ? 1.0 : 0.0},
                   {"zeros", cut.zeros},
                   {"real_share", cut.real_share},
                   {"as_cut", cut.as_cut},
                   {"as_rounded", cut.as_rounded}};
  text.threshold =
      "distributions within 0.1 if cut off, three times as far apart if rounded, 128 values on either side "
      "(Luff)";
  return text;
}

void PreparedApart::Add(const SampleValues& sample, bool train) {
  (train ? whole_ : evaluated_whole_).Add(sample.values);
  (train ? scale_ : evaluated_scale_).Add(sample);
  (train ? codes_ : evaluated_codes_).Add(sample);
  (train ? erased_ : evaluated_erased_).Add(sample);
}

std::vector<SideText> PreparedApart::Find(const std::string& name) const {
  std::vector<SideText> found;
  if (const auto cut = WholeNumbers::Compare(evaluated_whole_, whole_); cut)
    found.push_back(CutText(name, *cut, false, "cut"));
  if (const auto cut = WholeNumbers::Compare(whole_, evaluated_whole_); cut)
    found.push_back(CutText(name, *cut, true, "cut"));
  if (const auto by = RowScale::Compare(evaluated_scale_, scale_); by != RowScale::By::kNothing)
    found.push_back(RowsText(name, by, scale_, false));
  if (const auto by = RowScale::Compare(scale_, evaluated_scale_); by != RowScale::By::kNothing)
    found.push_back(RowsText(name, by, evaluated_scale_, true));
  const auto code = codes_.Find(true);
  const auto evaluated_code = evaluated_codes_.Find(true);
  if (evaluated_code && !code && evaluated_code->well_known && codes_.Lacks(*evaluated_code))
    found.push_back(CodeText(name, *evaluated_code, false));
  if (code && !evaluated_code && code->well_known && evaluated_codes_.Lacks(*code))
    found.push_back(CodeText(name, *code, true));
  if (const auto erased = ErasedValues::Compare(evaluated_erased_, erased_); erased && found.empty())
    found.push_back(ErasedText(name, *erased));
  return found;
}

void PreparedApart::Next() {
  evaluated_whole_.Clear();
  evaluated_scale_.Clear();
  evaluated_codes_ = {};
  evaluated_erased_.Clear();
}

void PreparedApart::VisitFields(Fields& io) {
  io("whole", whole_);
  io("evaluated_whole", evaluated_whole_);
  io("scale", scale_);
  io("evaluated_scale", evaluated_scale_);
  io("codes", codes_);
  io("evaluated_codes", evaluated_codes_);
  io("erased", erased_);
  io("evaluated_erased", evaluated_erased_);
}

}  // namespace luff::rules
