#include "base/text_escape.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <nlohmann/json.hpp>

namespace luff::text_escape_test {
namespace {

TEST(TextEscapeTest, PrintableTextStaysAsItIs) {
  EXPECT_EQ(Escaped("layer.0/wéight ⁰ 重 \xF0\x9F\x98\x80 \\x1b"),
            "layer.0/wéight ⁰ 重 \xF0\x9F\x98\x80 \\x1b");
}

TEST(TextEscapeTest, WhatSteersATerminalBecomesVisible) {
  EXPECT_EQ(Escaped("\x1b]8;;http://x\x07"), "\\x1b]8;;http://x\\x07");
  EXPECT_EQ(Escaped("a\r\n\tb\x7f"), "a\\x0d\\x0a\\x09b\\x7f");
  EXPECT_EQ(Escaped("\x9b"
                    "31m"),
            "\\x9b31m");  // C1 as a byte
  EXPECT_EQ(Escaped("\xC2\x9B"
                    "31m"),
            "\\xc2\\x9b31m");  // and as UTF-8
  EXPECT_EQ(Escaped("\xE2\x80\xAE"
                    "cod"),
            "\\xe2\\x80\\xaecod");  // right to left
  EXPECT_EQ(Escaped("\xD8\x9C\xEF\xBB\xBF\xE2\x81\xA6"), "\\xd8\\x9c\\xef\\xbb\\xbf\\xe2\\x81\\xa6");
  EXPECT_EQ(Escaped("\xF3\xA0\x81\x81"), "\\xf3\\xa0\\x81\\x81");  // a tag
}

TEST(TextEscapeTest, InvalidUtf8BecomesVisible) {
  for (const char* text :
       {"\xFF", "\xC0\xAF", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x80", "\xC3"}) {
    for (const char c : Escaped(text)) EXPECT_LT(static_cast<unsigned char>(c), 0x7F) << text;
    EXPECT_EQ(Escaped(text), ValidUtf8(text));
  }
  EXPECT_EQ(ValidUtf8("\x1b\xC2\x9B\xFF"), "\x1b\xC2\x9B\\xff");
}

TEST(TextEscapeTest, ACsvFieldIsNoFormula) {
  EXPECT_EQ(CsvField("fc.weight"), "fc.weight");
  EXPECT_EQ(CsvField("=cmd|' /C calc'!A0"), "'=cmd|' /C calc'!A0");
  EXPECT_EQ(CsvField("+1"), "'+1");
  EXPECT_EQ(CsvField("-1"), "'-1");
  EXPECT_EQ(CsvField(" @SUM(1,2)"), "\"' @SUM(1,2)\"");
  EXPECT_EQ(CsvField("\t=1"), "\\x09=1");
  EXPECT_EQ(CsvField("\r=1"), "\\x0d=1");
  EXPECT_EQ(CsvField("a \"b\", c\n"), "\"a \"\"b\"\", c\\x0a\"");
}

RC_GTEST_PROP(TextEscapeTest, NothingThatSteersIsLeft, (const std::string& text)) {
  for (const std::string& out : {Escaped(text), CsvField(text)}) {
    RC_ASSERT(Escaped(out) == out);
  }
  const std::string valid = ValidUtf8(text);
  RC_ASSERT(ValidUtf8(valid) == valid);
  const std::string shown = JsonEscaped(nlohmann::json(valid).dump());
  RC_ASSERT(Escaped(shown) == shown);
  RC_ASSERT(nlohmann::json::parse(shown).get<std::string>() == valid);
}

TEST(TextEscapeTest, JsonStaysTheSameToAParser) {
  const std::string text = "a\x1b\x7f\xC2\x9B\xE2\x80\xAE\xF3\xA0\x81\x81 é";
  const std::string shown = JsonEscaped(nlohmann::json({{"name", text}}).dump(2));
  EXPECT_EQ(shown, "{\n  \"name\": \"a\\u001b\\u007f\\u009b\\u202e\\udb40\\udc41 é\"\n}");
  EXPECT_EQ(nlohmann::json::parse(shown)["name"], text);
}

}  // namespace
}  // namespace luff::text_escape_test
