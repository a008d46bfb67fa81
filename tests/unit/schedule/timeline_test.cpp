// SPDX-License-Identifier: Apache-2.0
#include <p3d/schedule/schedule.hpp>
#include <p3d/schedule/timeline.hpp>

#include <gtest/gtest.h>

#include <string>

using namespace p3d::schedule;

namespace {

/// Two ranks for 10 seconds: rank 0 computes 6 and reduces 1, rank 1 computes 8.
Timeline small() {
  Timeline t;
  t.num_ranks = 2;
  t.title = "a <b> & c";
  t.events = {{1, {Op::backward, 1, 0, 0}, 4, 10},  // in any order
              {0, {Op::forward, 0, 0, 0}, 0, 2},        {1, {Op::forward, 1, 0, 0}, 2, 4},
              {0, {Op::backward_input, 0, 0, 0}, 4, 6}, {0, {Op::backward_weight, 0, 0, 0}, 6, 8},
              {0, {Op::reduce_gradients, 0}, 8, 9}};
  return t;
}

std::size_t count(std::string const& text, std::string const& what) {
  std::size_t n = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

}  // namespace

TEST(Timeline, accounts_for_all_time) {
  auto const times = rank_times(small());
  ASSERT_EQ(times.size(), 2u);
  EXPECT_EQ(times[0].compute, 6);
  EXPECT_EQ(times[0].other, 1);
  EXPECT_EQ(times[0].wait, 3);
  EXPECT_EQ(times[1].wait, 2);
  EXPECT_DOUBLE_EQ(bubble_share(small()), 1 - 14.0 / 20);
  EXPECT_EQ(bubble_share({}), 0);
}

TEST(Timeline, chrome_trace_has_every_action_and_every_wait) {
  std::string const json = to_chrome_trace(small());
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

TEST(Timeline, svg_draws_every_action) {
  Timeline t = small();
  t.rank_notes = {"first", "second"};
  t.caption = {"bubble 30 %"};
  std::string const svg = to_svg(t);
  for (char const* text : {"a &lt;b&gt; &amp; c", ">rank 0<", ">rank 1<", ">first<", ">second<", ">bubble 30 %<",
                           ">forward<", ">backward<", ">input part<", ">weight part<", ">wait (lost time)<", ">in s<"})
    EXPECT_NE(svg.find(text), std::string::npos) << text;
  EXPECT_EQ(count(svg, "<text"), count(svg, "</text>"));
  EXPECT_NE(to_svg({t, t}, "two").find(">two<"), std::string::npos);
  EXPECT_NE(to_svg(Timeline{}).find("</svg>"), std::string::npos);  // nothing to draw is no error
}

// Inside the rows it lay over the actions and the ranks' notes.
TEST(Timeline, says_above_the_rows_where_a_long_timeline_is_cut) {
  Timeline t = small();
  t.title = "short";
  Timeline lengthy = small();
  lengthy.title = "long";
  for (TimelineEvent& e : lengthy.events) e.start *= 5, e.end *= 5;
  std::string const svg = to_svg({t, t, lengthy}, "", "f (forward of a rank)");
  std::string const words = ">cut: goes on to 50 f (forward of a rank)</text>";
  EXPECT_EQ(count(svg, words), 1u);
  std::size_t const at = svg.rfind("<text", svg.find(words)), title = svg.rfind("<text", svg.find(">long</text>"));
  auto const y_of = [&](std::size_t element) {
    std::size_t const y = svg.find(" y=\"", element) + 4;
    return std::stod(svg.substr(y, svg.find('"', y) - y));
  };
  EXPECT_NEAR(y_of(at), y_of(title), 3.0) << "in the line of the title";
  EXPECT_NE(svg.substr(at, svg.find('>', at) - at).find("x=\"1186.0\""), std::string::npos);
  EXPECT_NE(svg.substr(at, svg.find('>', at) - at).find("text-anchor=\"end\""), std::string::npos);
}

TEST(Timeline, large_pictures_stay_small) {
  Timeline t;
  t.num_ranks = 500;
  for (int r = 0; r < t.num_ranks; ++r)
    for (int i = 0; i < 4000; ++i) t.events.push_back({r, {Op::forward, r, i, 0}, 1.0 * i, i + 1.0});
  EXPECT_LT(to_svg(t).size(), 10u << 20);
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
