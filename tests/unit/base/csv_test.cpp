// SPDX-License-Identifier: Apache-2.0
#include <p3d/base/csv.hpp>
#include <p3d/base/error.hpp>

#include <gtest/gtest.h>

namespace {
using namespace p3d;
using Cells = std::vector<std::string>;

TEST(Csv, ReadsRowsWithTheirLines) {
  auto const rows = base::parse_csv("\xEF\xBB\xBFid, time\r\n# a comment\n\na,1\nb,\n,\n", "t.csv");
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[0].cells, (Cells{"id", "time"}));
  EXPECT_EQ(rows[1].cells, (Cells{"a", "1"}));
  EXPECT_EQ(rows[1].line, 4);
  EXPECT_EQ(rows[2].cells, (Cells{"b", ""}));
  EXPECT_EQ(rows[3].cells, (Cells{"", ""}));
}

TEST(Csv, QuotesHoldCommasLineEndsAndQuotes) {
  auto const rows = base::parse_csv("\"a,b\",\"two\nlines\", \"say \"\"x\"\"\" \nlast,1,2", "t.csv");
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].cells, (Cells{"a,b", "two\nlines", "say \"x\""}));
  EXPECT_EQ(rows[1].cells, (Cells{"last", "1", "2"}));
  EXPECT_EQ(rows[1].line, 3);
}

TEST(Csv, RefusesQuotesThatNothingCloses) {
  for (auto const* text : {"a\nb,\"open", "a\nb,\"closed\"x"}) {
    try {
      base::parse_csv(text, "t.csv");
      FAIL() << text;
    } catch (base::Error const& e) {
      EXPECT_EQ(e.code(), base::ExitCode::bad_input);
      EXPECT_EQ(e.text().where, "t.csv, line 2");
    }
  }
}

TEST(Csv, WrittenCellsReadBack) {
  Cells const cells{"plain", "a,b", "say \"x\"", "two\nlines", " blanks ", "#5", ""};
  auto const rows = base::parse_csv(base::csv_row(cells), "t.csv");
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].cells, cells);
}

}  // namespace
