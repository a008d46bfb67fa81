// SPDX-License-Identifier: Apache-2.0
#include <p3d/schedule/schedule.hpp>
#include <p3d/schedule/timeline.hpp>

#include <unit/schedule/small_timeline.hpp>

#include <gtest/gtest.h>

#include <string>

using namespace p3d::schedule;

using p3d::test::small_timeline, p3d::test::count;

TEST(Timeline, accounts_for_all_time) {
  auto const times = rank_times(small_timeline());
  ASSERT_EQ(times.size(), 2u);
  EXPECT_EQ(times[0].compute, 6);
  EXPECT_EQ(times[0].other, 1);
  EXPECT_EQ(times[0].wait, 3);
  EXPECT_EQ(times[1].wait, 2);
  EXPECT_DOUBLE_EQ(bubble_share(small_timeline()), 1 - 14.0 / 20);
  EXPECT_EQ(bubble_share({}), 0);
}

TEST(Timeline, chrome_trace_has_every_action_and_every_wait) {
  std::string const json = to_chrome_trace(small_timeline());
  EXPECT_EQ(count(json, "\"ph\": \"X\""), 6u + 3u);  // rank 0 waits from 2 to 4 and 9 to 10; rank 1 from 0 to 2
  EXPECT_EQ(count(json, "\"name\": \"wait\""), 3u);
  EXPECT_NE(json.find("\"name\": \"0W0\", \"cat\": \"weight part\", \"ph\": \"X\", \"pid\": 0, \"tid\": 0, \"ts\": "
                      "6000000.000, \"dur\": 2000000.000, "
                      "\"args\": {\"stage\": 0, \"microbatch\": 0, \"slot\": 0}"),
            std::string::npos)
      << json;
  EXPECT_EQ(count(json, "{"), count(json, "}"));
  EXPECT_EQ(count(json, "["), count(json, "]"));
}

TEST(Csv, round_trip_and_errors) {
  Program const program = one_f_one_b(3, 4);
  EXPECT_EQ(parse_csv(to_csv(program)), program);
  EXPECT_EQ(to_csv(one_f_one_b(2, 2)), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  // One column per step, as PyTorch writes it; spaces, quotes and comments do not matter.
  EXPECT_EQ(parse_csv("# two ranks\n0F0,0F1,,0B0,,0B1\r\n,\"1F0\", 1B0,1F1,1B1,\n"), one_f_one_b(2, 2));
  for (auto const& [text, words] :
       std::vector<std::pair<std::string, std::string>>{{"", "one row of actions"},
                                                        {"0F0,0B0\n0F1\n", "stage 0 on one rank"},
                                                        {"0F0,2F0\n", "every stage"},
                                                        {"0F0,oops\n", "cell 2"}}) {
    try {
      parse_csv(text);
      ADD_FAILURE() << text;
    } catch (std::exception const& e) {
      EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
    }
  }
}
