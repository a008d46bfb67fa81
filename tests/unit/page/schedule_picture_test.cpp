// SPDX-License-Identifier: Apache-2.0
#include <p3d/page/schedule_picture.hpp>

#include <unit/schedule/small_timeline.hpp>

#include <gtest/gtest.h>

#include <string>

using namespace p3d::schedule;
using p3d::page::to_svg, p3d::test::count, p3d::test::small_timeline;

TEST(SchedulePicture, svg_draws_every_action) {
  Timeline t = small_timeline();
  t.rank_notes = {"first", "second"};
  t.caption = {"bubble 30 %"};
  std::string const svg = to_svg({t});
  for (char const* text : {"a &lt;b&gt; &amp; c", ">rank 0<", ">rank 1<", ">first<", ">second<", ">bubble 30 %<",
                           ">forward<", ">backward<", ">input part<", ">weight part<", ">wait (lost time)<", ">in s<"})
    EXPECT_NE(svg.find(text), std::string::npos) << text;
  EXPECT_EQ(count(svg, "<text"), count(svg, "</text>"));
  EXPECT_NE(to_svg({t, t}, "two").find(">two<"), std::string::npos);
  EXPECT_NE(to_svg({Timeline{}}).find("</svg>"), std::string::npos);  // nothing to draw is no error
}

// Inside the rows it lay over the actions and the ranks' notes.
TEST(SchedulePicture, says_above_the_rows_where_a_long_timeline_is_cut) {
  Timeline t = small_timeline();
  t.title = "short";
  Timeline lengthy = small_timeline();
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

TEST(SchedulePicture, large_pictures_stay_small) {
  Timeline t;
  t.num_ranks = 500;
  for (int r = 0; r < t.num_ranks; ++r)
    for (int i = 0; i < 4000; ++i) t.events.push_back({r, {Op::forward, r, i, 0}, 1.0 * i, i + 1.0});
  EXPECT_LT(to_svg({t}).size(), 10u << 20);
}
