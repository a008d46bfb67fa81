// SPDX-License-Identifier: Apache-2.0
#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/base/printable.hpp>

#include <gtest/gtest.h>

#include <string>

using namespace p3d::base;

TEST(Printable, LeavesTextAlone) {
  EXPECT_EQ(printable("The licence,\n\tas is."), "The licence,\n\tas is.");
  EXPECT_EQ(printable("caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"),
            "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");  // 2, 3, 4 bytes
  EXPECT_EQ(printable(""), "");
  EXPECT_EQ(printable_line("caf\xc3\xa9 a"), "caf\xc3\xa9 a");
}

TEST(Printable, ShowsWhatWouldChangeTheTerminal) {
  EXPECT_EQ(printable("a\x1b[2Jb\rc\x7f"), "a\\x1b[2Jb\\x0dc\\x7f");
  EXPECT_EQ(printable(std::string_view("\0\a", 2)), "\\x00\\x07");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            "\\xc2\\x9b2J");  // U+009B starts a control sequence, like ESC [
}

TEST(Printable, ShowsBytesThatAreNotUtf8) {
  EXPECT_EQ(printable("\xc3"), "\\xc3");                             // cut off
  EXPECT_EQ(printable("\xc3(\xa9"), "\\xc3(\\xa9");                  // a wrong second byte, a second byte alone
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf");                    // overlong, two bytes
  EXPECT_EQ(printable("\xe0\x80\xaf"), "\\xe0\\x80\\xaf");           // overlong, three bytes
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(printable("\xf5\x80\x80\x80"), "\\xf5\\x80\\x80\\x80");  // beyond Unicode
}

TEST(Printable, ShowsWhatTurnsTheOrderOfALine) {
  EXPECT_EQ(printable("a\xe2\x80\xae"
                      "b"),
            "a\\xe2\\x80\\xaeb");
  EXPECT_EQ(printable("a\xe2\x81\xa6"), "a\\xe2\\x81\\xa6");
  EXPECT_EQ(printable("\xe2\x80\x94"), "\xe2\x80\x94");  // a dash stays
}

TEST(Printable, OneLineHasNoLineEnds) { EXPECT_EQ(printable_line("a\nb\tc\x1b"), "a\\nb\\tc\\x1b"); }

TEST(MarkupText, LeavesNoMarkupAndOnlyUtf8) {
  EXPECT_EQ(markup_text("<script>\"&'"), "&lt;script&gt;&quot;&amp;&#39;");
  EXPECT_EQ(markup_text("\xC3\xA4 \xE2\x82\xAC \xF0\x9F\x98\x80"), "\xC3\xA4 \xE2\x82\xAC \xF0\x9F\x98\x80");
  std::string const bad = "\xEF\xBF\xBD";
  EXPECT_EQ(markup_text(std::string("a\0b\x1b", 4)), "a" + bad + "b" + bad);
  EXPECT_EQ(markup_text("\xC0\x80"), bad + bad);                      // overlong
  EXPECT_EQ(markup_text("\xED\xA0\x80"), bad + bad + bad);            // a surrogate
  EXPECT_EQ(markup_text("\xE2\x82"), bad + bad);                      // cut off
  EXPECT_EQ(markup_text("\xF4\x90\x80\x80"), bad + bad + bad + bad);  // above U+10FFFF
}

TEST(FileName, IsOneFileOfOneFolder) {
  for (auto const* name : {"tokenizer.json", ".hidden", "a b", "caf\xc3\xa9.model", "..."})
    EXPECT_TRUE(is_file_name(name)) << name;
  for (auto const* name : {"", ".", "..", "../victim/profile.sh", "/etc/passwd", "a/b", "a\n", "a\x1b[2J", "\xff"})
    EXPECT_FALSE(is_file_name(name)) << printable_line(name);
  EXPECT_TRUE(is_file_name(std::string(255, 'x')));
  EXPECT_FALSE(is_file_name(std::string(256, 'x')));
  EXPECT_FALSE(is_file_name(std::string_view("a\0b", 3)));
}

// Strings of files come into errors and log lines: these are where they are made safe.
TEST(Printable, ErrorsAndTheLogShowWhatTheyQuote) {
  Error const error({.expected = "a", .found = "\x1b]0;title\x07", .where = "b\x9b", .fix = "c\n            d"});
  EXPECT_STREQ(error.what(), "expected: a\nfound:    \\x1b]0;title\\x07\nwhere:    b\\x9b\nfix:      c\n            d");
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  log_root("a\x1b[2J\n\tb");
  warn_root("c\x1b[2J");
  error_once("d\x1b[2J");
  error_here("e\x1b[2J\nf");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "a\\x1b[2J\n\tb\n");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "p3d: warning: c\\x1b[2J\np3d stops:\nd\\x1b[2J\ne\\x1b[2J\nf\n");
}
