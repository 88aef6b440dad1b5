#include "luff/format/footer.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <map>

namespace luff::format::footer_test {
namespace {

struct Model {  // what the footer must return: per tensor, (step index, value) in order
  std::map<std::uint32_t, std::vector<std::pair<std::uint32_t, double>>> summaries, scalars, index, forms;
  std::uint32_t steps = 0;
};

/// Makes a sealed segment: header page, `steps` steps with pseudo-random rows, footer. Leaves out the frames
/// of the rows.
std::vector<std::byte> MakeSegment(std::uint32_t steps, std::uint32_t seed, Model* model) {
  FooterBuilder builder;
  std::uint64_t state = seed;
  const auto next = [&](std::uint32_t n) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<std::uint32_t>(state >> 33) % n;
  };
  builder.AddTensorDef({3, Role::kWeight, "fc.weight", "fc", "Linear", {}});
  for (std::uint32_t step = 0; step < steps; ++step) {
    std::vector<SummaryRow> summaries;
    std::vector<ScalarRow> scalars;
    std::vector<IndexRow> index;
    std::vector<FormRow> forms;
    for (std::uint32_t tensor = 0; tensor < 9; ++tensor) {
      const double value = next(1000);
      if (next(3) != 0) {
        SummaryRow row{};
        row.tensor = tensor * 7;
        row.dtype = static_cast<std::uint8_t>(DType::kFloat32);
        row.sum = value;
        row.steps = 1;
        summaries.push_back(row);
        model->summaries[row.tensor].push_back({step, value});
      }
      if (next(4) == 0) {
        scalars.push_back({tensor, 0, value});
        model->scalars[tensor].push_back({step, value});
      }
      if (next(2) == 0) {
        IndexRow row{};
        row.tensor = tensor;
        row.dtype = static_cast<std::uint8_t>(DType::kInt8);
        row.parts = 1;
        row.offset = static_cast<std::uint64_t>(value) * 64;
        index.push_back(row);
        model->index[tensor].push_back({step, value});
      }
      if (next(5) == 0) {
        FormRow row{};
        row.tensor = tensor;
        row.form = static_cast<std::uint16_t>(Form::kHash);
        row.values[0] = value;
        forms.push_back(row);
        model->forms[tensor].push_back({step, value});
      }
    }
    std::reverse(summaries.begin(), summaries.end());
    builder.AddSummaries(summaries);
    builder.AddScalars(scalars);
    builder.AddIndex(index);
    builder.AddForms(forms);
    StepMark mark{};
    mark.global_step = std::int64_t{step} * 10;
    mark.mode = 1;
    builder.AddStep(100 + step, mark);
  }
  SummaryRow open{};
  builder.AddSummaries(std::span(&open, 1));  // a step that never got its mark
  builder.DropOpenStep();
  model->steps = steps;
  FrameBuffer buffer;
  buffer.Reset(5, kFileHeaderBytes);
  EXPECT_TRUE(builder.Build(100 + steps, 1, &buffer).ok());
  std::vector<std::byte> file(kFileHeaderBytes + buffer.bytes().size());
  std::memcpy(file.data() + kFileHeaderBytes, buffer.bytes().data(), buffer.bytes().size());
  return file;
}

RC_GTEST_PROP(FooterProperty, HoldsWhatWasAdded, ()) {
  const auto steps = *rc::gen::inRange<std::uint32_t>(0, 40);
  Model model;
  const auto file = MakeSegment(steps, *rc::gen::arbitrary<std::uint32_t>(), &model);
  auto view = FooterView::ParseUntrusted(file, 5);
  RC_ASSERT(view.ok());
  RC_ASSERT(view->steps().size() == steps);
  for (std::uint32_t i = 0; i < steps; ++i) {
    RC_ASSERT(view->steps().ordinal[i] == 100 + i);
    RC_ASSERT(view->steps().mark(i).global_step == i * 10);
  }
  Model found;
  for (const TensorEntry& entry : view->tensors()) {
    const auto summaries = view->SummariesUntrusted(entry, true);
    const auto scalars = view->ScalarsUntrusted(entry, true);
    const auto index = view->IndexUntrusted(entry, true);
    const auto forms = view->FormsUntrusted(entry, true);
    RC_ASSERT(summaries.ok() && scalars.ok() && index.ok() && forms.ok());
    for (std::size_t i = 0; i < summaries->size(); ++i) {
      found.summaries[entry.tensor].push_back({summaries->step[i], summaries->sum[i]});
      RC_ASSERT(summaries->row(i, entry.tensor).steps == 1);
    }
    for (std::size_t i = 0; i < scalars->size(); ++i) {
      found.scalars[entry.tensor].push_back({scalars->step[i], scalars->value[i]});
    }
    for (std::size_t i = 0; i < index->rows.size(); ++i) {
      found.index[entry.tensor].push_back({index->step[i], static_cast<double>(index->rows[i].offset) / 64});
    }
    for (std::size_t i = 0; i < forms->rows.size(); ++i) {
      found.forms[entry.tensor].push_back({forms->step[i], forms->rows[i].values[0]});
    }
  }
  RC_ASSERT(found.summaries == model.summaries);
  RC_ASSERT(found.scalars == model.scalars);
  RC_ASSERT(found.index == model.index);
  RC_ASSERT(found.forms == model.forms);
  auto defs = view->TensorDefsUntrusted();
  RC_ASSERT(defs.ok() && defs->size() == 1U && (*defs)[0].name == "fc.weight");
}

TEST(FooterTest, EveryTruncationIsNoFooter) {
  Model model;
  const auto file = MakeSegment(6, 1, &model);
  for (std::size_t n = 0; n < file.size(); ++n) {
    EXPECT_FALSE(FooterView::ParseUntrusted(std::span(file).first(n), 5).ok()) << n;
  }
}

TEST(FooterTest, EveryFlippedBitIsFoundBeforeItsRowsAreShown) {
  Model model;
  auto file = MakeSegment(2, 3, &model);
  for (std::size_t bit = kFileHeaderBytes * 8; bit < file.size() * 8; bit += 3) {
    file[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    auto view = FooterView::ParseUntrusted(file, 5);
    bool good = view.ok();
    if (good) {
      for (const TensorEntry& entry : view->tensors()) {
        good = good && view->SummariesUntrusted(entry, true).ok() &&
               view->ScalarsUntrusted(entry, true).ok() && view->IndexUntrusted(entry, true).ok() &&
               view->FormsUntrusted(entry, true).ok();
      }
      good = good && view->TensorDefsUntrusted().ok() && view->LayoutDefsUntrusted().ok() &&
             view->FramesUntrusted().ok();
    }
    EXPECT_FALSE(good) << bit / 8;
    file[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
  }
}

}  // namespace
}  // namespace luff::format::footer_test
