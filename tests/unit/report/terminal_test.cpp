#include <p3d/report/terminal.hpp>

#include <gtest/gtest.h>

using p3d::report::printable;

TEST(Printable, LeavesTextAlone) {
  EXPECT_EQ(printable("The licence,\n\tas is."), "The licence,\n\tas is.");
  EXPECT_EQ(printable("caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"),
            "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");  // 2, 3, 4 bytes
  EXPECT_EQ(printable(""), "");
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
