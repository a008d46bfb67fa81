// SPDX-License-Identifier: Apache-2.0
// Updates of a whole stage, against the published formulas in double; and what an optimizer's state promises: pieces
// give the bits of the whole, ranks that own a part have the numbers of the whole, and an update can be taken back.
//
// Each failure names the array, the element of the flat buffer and the parameter that it belongs to, for example
// "second_moment, element 230 (layers.1.attn.q.weight)".

#include <p3d/base/error.hpp>
#include <p3d/layout/stages.hpp>
#include <p3d/optim/optimizer.hpp>
#include <p3d/optim/versions.hpp>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include <unit/kernels/support.hpp>
#include <unit/layout/tiny_models.hpp>

namespace {

using namespace p3d;
using test::Vec;

/// The only stage of a small model: matrices, whose weights decay, and vectors, whose weights do not.
struct Stage {
  explicit Stage(config::Config c = test::tiny_gpt())
      : config(std::move(c)), params(table, stages, 0, config.parallel, layout::PerAxis::all(0)) {
    config.optimizer.weight_decay = 0.1;
  }
  std::int64_t size() const { return params.flat_size(); }
  layout::OwnedRun whole() const { return {0, size(), 0, false}; }

  config::Config config;
  layout::ParamTable table = layout::make_param_table(config);
  layout::StageMap stages = layout::make_stage_map(config);
  layout::StageParams params;
};

/// Random numbers for all parameters, and zeros for the padding between them.
Vec numbers(Stage const& stage, std::string const& name, double std = 1.0) {
  Vec out(static_cast<std::size_t>(stage.size()), 0.0);
  auto const random = test::random_values(name, stage.size(), std);
  for (auto const& item : stage.params.items())
    for (auto i = item.offset; i < item.offset + item.size(); ++i)
      out[static_cast<std::size_t>(i)] = random[static_cast<std::size_t>(i)];
  return out;
}

/// The first element that `differs`, in words; empty: none does.
template <class Differs>
std::string first_difference(Stage const& stage, std::string const& array, Vec const& found, Vec const& expected,
                             Differs const& differs) {
  if (found.size() != expected.size())
    return fmt::format("{} has {} elements, not {}", array, found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!differs(found[i], expected[i])) continue;
    std::string owner = "padding";
    for (auto const& item : stage.params.items())
      if (auto const at = static_cast<std::int64_t>(i); at >= item.offset && at < item.offset + item.size())
        owner = item.spec->name;
    return fmt::format("{}, element {} ({}): {:.17g}, not {:.17g}", array, i, owner, found[i], expected[i]);
  }
  return {};
}

/// Every element is the expected one to within `tolerance` of the largest.
void expect_near(Stage const& stage, std::string const& array, Vec const& found, Vec const& expected,
                 double tolerance) {
  double const slack = tolerance * test::largest(expected);
  EXPECT_EQ("", first_difference(stage, array, found, expected,
                                 [&](double a, double b) { return !(std::abs(a - b) <= slack); }));
}
void expect_equal(Stage const& stage, std::string const& array, Vec const& found, Vec const& expected) {
  EXPECT_EQ("", first_difference(stage, array, found, expected, [](double a, double b) { return !(a == b); }));
}

template <class P>
Vec host(optim::StateView<P> const& view) {
  Vec out;
  view.visit([&](auto const& numbers) { out = test::host(numbers); });
  return out;
}

/// Weights and gradients of a stage on the device, with its optimizer and state.
template <class P>
struct Training {
  using Storage = typename P::Storage;
  Stage const& stage;
  Vec initial = numbers(stage, "weights");
  device::Owned1<typename P::Master> master = test::vector_of<typename P::Master>(initial);
  device::Owned1<typename P::Gradient> gradient;
  device::Owned1<Storage> storage{"p3d::test::storage", initial.size()};
  std::unique_ptr<optim::Optimizer<P>> optimizer =
      optim::make_optimizer<P>(stage.config.optimizer_with_versions(), stage.params);
  optim::StateMemory<P> state;

  explicit Training(Stage const& s, bool narrow = false)
      : stage(s), state(s.config.optimizer_with_versions(), s.size(), narrow) {
    for (std::int64_t age = 0; age < stage.config.latest_delay(); ++age)
      Kokkos::deep_copy(state.newest(s.whole(), age), master);
  }

  /// The gradients of update t, rounded to their type.
  Vec gradients_of(int t) const {
    return test::rounded<typename P::Gradient>(numbers(stage, "gradients " + std::to_string(t), 0.5));
  }
  optim::Piece<P> piece(layout::OwnedRun const& run) const {
    auto const part = [&]<class T>(device::Owned1<T> const& all) {
      return device::View1<T>(all.data() + run.begin, static_cast<std::size_t>(run.count));
    };
    optim::Piece<P> out{run, part(master), part(gradient)};
    if (P::has_master) out.storage = part(storage);
    state.bind(out);
    if (auto const delay = stage.config.latest_delay(); delay > 0) optim::aim_at_newest(out, delay);
    return out;
  }
  static optim::UpdateStep step(int t) {
    return {.number = t, .lr = 1e-2 * t, .grad_scale = 0.25, .keep_gradients = t % 2 == 0};
  }
  void update(int t, std::vector<layout::OwnedRun> const& runs) {
    gradient = test::vector_of<typename P::Gradient>(gradients_of(t));
    for (auto const& run : runs) update_piece(step(t), piece(run));
  }
  void update_piece(optim::UpdateStep const& of, optim::Piece<P> const& one) const {
    auto const& c = stage.config;
    if (c.latest_delay() > 1 || c.mixes_delays())
      optim::update_versions(device::ExecSpace(), *optimizer, of, stage.params, one);
    else
      optimizer->update(device::ExecSpace(), of, one);
  }
};

/// The formulas, an element at a time, in double.
struct Reference {
  Stage const& stage;
  Vec master, first, second;

  explicit Reference(Stage const& s, Vec weights)
      : stage(s), master(std::move(weights)), first(master.size(), 0.0), second(master.size(), 0.0) {}
  template <class Rule>
  void update(Vec const& gradient, Rule const& rule) {
    for (auto const& item : stage.params.items())
      for (auto at = item.offset; at < item.offset + item.size(); ++at) {
        auto const i = static_cast<std::size_t>(at);
        rule(i, gradient[i], item.spec->decay ? stage.config.optimizer.weight_decay : 0.0);
      }
  }
  /// Loshchilov, Hutter, arXiv 1711.05101, algorithm 2.
  void adamw(optim::UpdateStep const& step, Vec const& gradient) {
    auto const& o = stage.config.optimizer;
    auto const t = static_cast<double>(step.number);
    update(gradient, [&](std::size_t i, double g, double decay) {
      g *= step.grad_scale;
      first[i] = o.beta1 * first[i] + (1 - o.beta1) * g;
      second[i] = o.beta2 * second[i] + (1 - o.beta2) * g * g;
      double const m = first[i] / (1 - std::pow(o.beta1, t)), v = second[i] / (1 - std::pow(o.beta2, t));
      master[i] -= step.lr * (m / (std::sqrt(v) + o.eps) + decay * master[i]);
    });
  }
  void sgd(optim::UpdateStep const& step, Vec const& gradient) {
    update(gradient, [&](std::size_t i, double g, double decay) {
      master[i] -= step.lr * (step.grad_scale * g + decay * master[i]);
    });
  }
};

/// `updates` are those of the formula; layers read the weights rounded to nearest; gradients are cleared unless they
/// are kept.
template <class P>
void check_formula(config::OptimizerType type, double tolerance, bool narrow = false, int updates = 5) {
  auto c = test::tiny_gpt();
  c.optimizer.type = type;
  Stage const stage(c);
  bool const adamw = type == config::OptimizerType::adamw;
  Training<P> training(stage, narrow);
  Reference reference(stage, test::host(training.master));
  for (int t = 1; t <= updates; ++t) {
    auto const step = training.step(t);
    auto const gradients = training.gradients_of(t);
    training.update(t, {stage.whole()});
    adamw ? reference.adamw(step, gradients) : reference.sgd(step, gradients);
    expect_equal(stage, "gradient", test::host(training.gradient),
                 step.keep_gradients ? gradients : Vec(gradients.size(), 0.0));
  }
  expect_near(stage, "master", test::host(training.master), reference.master, tolerance);
  if (P::has_master)
    expect_equal(stage, "storage", test::host(training.storage),
                 test::rounded<typename P::Storage>(test::host(training.master)));
  ASSERT_EQ(training.state.arrays().size(), adamw ? 2u : 0u);
  if (!adamw) return;
  double const rounding = narrow ? test::roundoff<device::bfloat16> : 0.0;
  expect_near(stage, "first_moment", host(training.state.arrays()[0]), reference.first, tolerance + rounding);
  expect_near(stage, "second_moment", host(training.state.arrays()[1]), reference.second, tolerance + rounding);
}

TEST(Optimizer, AdamwFollowsTheFormula) {
  constexpr auto adamw = config::OptimizerType::adamw;
  check_formula<device::Fp64>(adamw, 1e-14);
  check_formula<device::Fp32>(adamw, 2e-6);
#if P3D_16BIT
  check_formula<device::Bf16>(adamw, 2e-6);
  check_formula<device::Fp16>(adamw, 2e-6);
  check_formula<device::Bf16Gradients>(adamw, 2e-6);
  // Moments in bfloat16 are rounded after each update: from zeros, the weights of the first one do not show it.
  check_formula<device::Fp32>(adamw, 2e-6, true, 1);
  check_formula<device::Bf16>(adamw, 2e-6, true, 1);
#endif
}

TEST(Optimizer, SgdFollowsTheFormula) {
  constexpr auto sgd = config::OptimizerType::sgd;
  check_formula<device::Fp64>(sgd, 1e-14);
  check_formula<device::Fp32>(sgd, 1e-6);
#if P3D_16BIT
  check_formula<device::Bf16>(sgd, 1e-6);
  check_formula<device::Bf16Gradients>(sgd, 1e-6);
#endif
}

/// All arrays of a training, by name.
template <class P>
std::map<std::string, Vec> arrays_of(Training<P> const& training) {
  std::map<std::string, Vec> out{{"master", test::host(training.master)}, {"gradient", test::host(training.gradient)}};
  auto const names = config::state_of(training.stage.config.optimizer_with_versions()).arrays;
  for (std::size_t k = 0; k < names.size(); ++k) out[names[k].group()] = host(training.state.arrays()[k]);
  return out;
}

/// A model whose optimizer is that of a row of the table.
config::Config with_row(config::OptimizerState const& row) {
  auto c = test::tiny_gpt();
  c.optimizer.type = row.type;
  c.optimizer.delay = row.delay;
  return c;
}

TEST(Optimizer, PiecesHaveTheBitsOfTheWhole) {
  for (auto const& row : config::optimizer_states) {
    if (row.delay > 2) continue;  // three updates show what layers read
    Stage const stage(with_row(row));
    Training<device::Fp32> whole(stage), pieces(stage);
    std::vector<layout::OwnedRun> runs;  // of 1, 38, 75, ... elements: they cut parameters and padding
    for (std::int64_t at = 0, count = 1; at < stage.size(); at += count, count += 37)
      runs.push_back({at, std::min(count, stage.size() - at), at, false});
    for (std::size_t k = 1; k < runs.size(); ++k) ASSERT_EQ(runs[k].begin, runs[k - 1].begin + runs[k - 1].count);
    for (int t = 1; t <= 3; ++t) {
      whole.update(t, {stage.whole()});
      pieces.update(t, runs);
    }
    auto const expected = arrays_of(whole);
    for (auto const& [name, found] : arrays_of(pieces)) expect_equal(stage, name, found, expected.at(name));
    EXPECT_NE(expected.at("master"), test::rounded<float>(whole.initial));
  }
}

TEST(Optimizer, ARankThatOwnsAPartHasTheNumbersOfTheWhole) {
  Stage const stage(test::tiny_gpt({.dp = 3}));
  Training<device::Fp32> whole(stage);
  for (int t = 1; t <= 3; ++t) whole.update(t, {stage.whole()});
  auto const expected = arrays_of(whole);
  std::int64_t owned = 0;
  for (int rank = 0; rank < 3; ++rank) {
    layout::RankGrid const grid(stage.config.parallel, layout::parse_order(stage.config.parallel.order));
    auto const shard =
        layout::make_shard(stage.params, 500, grid, layout::PerAxis::only(layout::Axis::dp, rank), {.divided = true});
    Training<device::Fp32> part(stage);
    part.state = optim::StateMemory<device::Fp32>(stage.config.optimizer, shard.owned_size, false);
    for (int t = 1; t <= 3; ++t) part.update(t, shard.owned);
    // What the rank does not own stays as it was.
    std::map<std::string, Vec> here{{"master", test::rounded<float>(part.initial)}};
    for (auto const& run : shard.owned) {
      layout::for_parameters(stage.params, run.begin, run.count,
                             [&](auto const&, std::int64_t, std::int64_t count) { owned += count; });
      auto const to = [&](std::string const& name, Vec const& from, std::int64_t first) {
        if (!here.contains(name)) here[name] = expected.at(name);
        for (std::int64_t i = 0; i < run.count; ++i)
          here[name][static_cast<std::size_t>(run.begin + i)] = from[static_cast<std::size_t>(first + i)];
      };
      to("master", expected.at("master"), run.begin);
      to("first_moment", host(part.state.arrays()[0]), run.packed);
      to("second_moment", host(part.state.arrays()[1]), run.packed);
    }
    expect_equal(stage, "master", test::host(part.master), here.at("master"));
    expect_equal(stage, "first_moment", here.at("first_moment"), expected.at("first_moment"));
    expect_equal(stage, "second_moment", here.at("second_moment"), expected.at("second_moment"));
  }
  EXPECT_EQ(owned, stage.table.num_parameters()) << "each element has one owner";
}

/// After two updates, of which the second one is taken back, all is as after the first.
template <class P>
void check_taking_back(config::OptimizerType type, bool narrow) {
  auto c = test::tiny_gpt();
  c.optimizer.type = type;
  c.optimizer.post_validation = true;
  Stage const stage(c);
  Training<P> training(stage, narrow);
  training.update(1, {stage.whole()});
  auto const before = arrays_of(training);
  training.gradient = test::vector_of<typename P::Gradient>(training.gradients_of(2));
  std::vector<layout::OwnedRun> const runs{{0, 200, 0, false}, {200, stage.size() - 200, 200, false}};
  for (auto const& run : runs) {
    auto piece = training.piece(run);
    training.state.keep_replaced(piece);
    training.optimizer->update(device::ExecSpace(), training.step(2), piece);
  }
  auto const after = arrays_of(training);
  auto const taken_back = [&] {
    for (auto const& run : runs) training.state.take_back(device::ExecSpace(), run, training.piece(run).master);
    return arrays_of(training);
  }();
  for (auto const& [name, numbers] : before) {
    if (name == "gradient") continue;
    EXPECT_NE(after.at(name), numbers) << name << " is not updated";
    expect_equal(stage, name, taken_back.at(name), numbers);
  }
}

TEST(Optimizer, AnUpdateIsTakenBackBitForBit) {
  for (auto const& row : config::optimizer_states) {
    if (row.delay > 0) continue;  // the input refuses post_validation there
    check_taking_back<device::Fp64>(row.type, false);
    check_taking_back<device::Fp32>(row.type, false);
#if P3D_16BIT
    check_taking_back<device::Bf16>(row.type, false);
    check_taking_back<device::Fp32>(row.type, true);
#endif
  }
}

// After T updates, the newest weights are those of T updates with the same gradients, and layers read those of T - 1.
TEST(Optimizer, WhereGradientsAreLateLayersReadTheWeightsBefore) {
  auto const check = []<class P>(P, bool narrow) {
    for (auto const& row : config::optimizer_states) {
      if (row.delay != 1) continue;
      Stage const late(with_row(row)), at_once([&] {
        auto c = with_row(row);
        c.optimizer.delay = 0;
        return c;
      }());
      Training<P> training(late, narrow), plain(at_once, narrow);
      Vec before;
      for (int t = 1; t <= 3; ++t) {
        before = test::host(plain.master);
        plain.update(t, {at_once.whole()});
        training.update(t, {late.whole()});
      }
      expect_equal(late, "newest", test::host(training.state.newest(late.whole())), test::host(plain.master));
      expect_equal(late, "read", test::host(training.master), before);
      EXPECT_NE(before, test::host(plain.master));
      if (P::has_master)
        expect_equal(late, "storage", test::host(training.storage), test::rounded<typename P::Storage>(before));
      auto const moments = plain.state.arrays().size();
      for (std::size_t k = 0; k < moments; ++k)
        expect_equal(late, row.arrays[k].name, host(training.state.arrays()[k]), host(plain.state.arrays()[k]));
    }
  };
  check(device::Fp64(), false);
  check(device::Fp32(), false);
#if P3D_16BIT
  check(device::Bf16(), true);
  check(device::Fp16(), false);
  check(device::Bf16Gradients(), false);
#endif
}

// After T updates with a delay of d, layers read the weights of T - d updates, and all between them are kept.
TEST(Optimizer, EachDelayHasItsVersion) {
  auto const check = [](std::vector<int> const& delays) {
    auto c = test::tiny_gpt();
    c.model.tied_embeddings = false;
    auto without = c;
    c.pipeline.delays = delays;
    Stage const late(c), at_once(without);
    Training<device::Fp32> training(late), plain(at_once);
    std::vector<Vec> versions{test::host(plain.master)};
    for (int t = 1; t <= 5; ++t) {
      plain.update(t, {at_once.whole()});
      training.update(t, {late.whole()});
      versions.push_back(test::host(plain.master));
      auto const version = [&](std::int64_t age) {
        return versions[static_cast<std::size_t>(std::max<std::int64_t>(0, t - age))];
      };
      for (std::int64_t age = 0; age < c.latest_delay(); ++age)
        expect_equal(late, "kept", test::host(training.state.newest(late.whole(), age)), version(age));
      auto const read = test::host(training.master);
      for (auto const& item : late.params.items()) {
        auto const expected = version(c.delay_of(item.spec->layer));
        for (auto i = static_cast<std::size_t>(item.offset); i < static_cast<std::size_t>(item.offset + item.size());
             ++i)
          ASSERT_EQ(read[i], expected[i]) << item.spec->name << " after update " << t;
      }
    }
  };
  check({3, 0});
  check({0, 1});
  check({2, 2});
}

// On f(w) = a w^2 / 2 with gradients that are late by d updates, SGD converges where lr a < 2 sin(pi / (4 d + 2)): 2,
// 1, 0.618, 0.445 for d = 0, 1, 2, 3 (arXiv 1910.05124, lemma 1).
TEST(Optimizer, LateGradientsLowerTheLargestLearningRate) {
  auto const last = [](std::int64_t delay, double lr) {
    auto c = test::tiny_gpt();
    c.optimizer.type = config::OptimizerType::sgd;
    c.optimizer.delay = delay;
    Stage stage(c);
    stage.config.optimizer.weight_decay = 0.0;
    Training<device::Fp64> training(stage);
    for (int t = 1; t <= 2000; ++t) {
      training.gradient = test::vector_of<double>(test::host(training.master));  // a = 1, where layers read
      training.update_piece({.number = t, .lr = lr}, training.piece(stage.whole()));
    }
    return test::largest(test::host(training.master)) / test::largest(training.initial);
  };
  for (std::int64_t delay : {0, 1, 2, 3, 4}) {
    double const bound = 2 * std::sin(std::acos(-1.0) / (4.0 * static_cast<double>(delay) + 2));
    EXPECT_LT(last(delay, 0.98 * bound), 0.1) << delay;
    EXPECT_GT(last(delay, 1.02 * bound), 10.0) << delay;
  }
}

TEST(OptimizerState, HasTheArraysOfTheTable) {
  for (auto const& row : config::optimizer_states) {
    auto options = with_row(row).optimizer;
    constexpr std::int64_t n = 1000;
    auto const arrays = static_cast<std::int64_t>(row.arrays.size());
    using State = optim::StateMemory<device::Fp32>;
    State const state(options, n, false);
    EXPECT_EQ(state.bytes(), 4 * n * arrays);
    EXPECT_EQ(state.arrays().size(), row.arrays.size());
    EXPECT_EQ(optim::StateMemory<device::Fp64>(options, n, false).bytes(), 8 * n * arrays);
    EXPECT_EQ(State(options, n, false, false).bytes(), 0) << "offloaded";
    for (auto const& view : state.arrays()) EXPECT_EQ(host(view), Vec(n, 0.0));
#if P3D_16BIT
    EXPECT_EQ(State(options, n, true).bytes(), 2 * n * (arrays + row.delay)) << "weights stay in fp32";
#endif
    optim::Piece<device::Fp32> piece;
    EXPECT_THROW(State(options, n, false).keep_replaced(piece), base::Error);
    options.post_validation = true;
    EXPECT_EQ(State(options, n, false).bytes(), 4 * n * (2 * arrays + 1));
    EXPECT_THROW(State(options, n, false, false), base::Error);
  }
}

TEST(OptimizerState, TheTableHasEachOptimizerOnceAndNoNameTwice) {
  std::set<std::pair<config::OptimizerType, std::int64_t>> rows;
  for (auto const& row : config::optimizer_states) {
    EXPECT_TRUE(rows.insert({row.type, row.delay}).second);
    std::set<std::string> names{"parameters"};  // a checkpoint has a group of this name
    for (auto const& array : row.arrays) EXPECT_TRUE(names.insert(array.group()).second) << array.group();
    if (row.delay > 0) {
      EXPECT_EQ(row.arrays.back().group(), "previous_weights");
    }
  }
  EXPECT_EQ(rows.size(), (1 + config::Optimizer::most_delay) * enum_names(config::OptimizerType{}).size());
}

TEST(Optimizer, ClippingBringsTheNormDown) {
  EXPECT_EQ(optim::clip_factor(4.0, 1.0), 0.25);
  EXPECT_EQ(optim::clip_factor(1.0, 1.0), 1.0);
  EXPECT_EQ(optim::clip_factor(0.5, 1.0), 1.0);
  EXPECT_EQ(optim::clip_factor(4.0, 0.0), 1.0) << "no clipping";
}

}  // namespace
