// SPDX-License-Identifier: Apache-2.0
// From the input to the schedule: names, files, auto, and what is refused.

#include <p3d/base/error.hpp>
#include <p3d/config/config.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/plan/model_cost.hpp>
#include <p3d/plan/pipeline.hpp>
#include <p3d/plan/run_plan.hpp>
#include <p3d/schedule/registry.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

using namespace p3d;

namespace {

config::Config pipeline(std::string const& schedule, int pp, int microbatches, int layers = 16) {
  config::Config c;
  c.model.layers = layers;
  c.parallel.pp = pp;
  c.batch.microbatches = c.batch.global = microbatches;
  c.pipeline.schedule = schedule;
  return c;
}

/// Expects a bad input whose text has all the words.
void refused(config::Config const& c, std::vector<std::string> const& words, plan::RankBytes const& bytes = {}) {
  try {
    plan::plan_pipeline(c, bytes);
    ADD_FAILURE() << c.pipeline.schedule;
  } catch (base::Error const& e) {
    EXPECT_EQ(e.code(), base::ExitCode::bad_input);
    for (auto const& word : words)
      EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << word << " in\n" << e.what();
  }
}

struct TempFile {
  explicit TempFile(std::string const& content)
      : path((std::filesystem::temp_directory_path() /
              ("p3d_pipeline_test_" + std::to_string(std::hash<std::string>{}(content))))
                 .string()) {
    std::ofstream(path) << content;
  }
  ~TempFile() { std::filesystem::remove(path); }
  std::string path;
};

}  // namespace

// The input knows the names without knowing the room that has them: the two lists must agree.
TEST(Pipeline, the_input_names_every_schedule_and_no_other) {
  std::set<std::string> in_input, in_registry{"file", "auto"};
  for (auto const& key : config::key_help()) {
    if (key.key != "pipeline.schedule") continue;
    std::istringstream words(key.type.substr(key.type.find(':') + 1));
    for (std::string word; words >> word;)
      if (word != "|") in_input.insert(word);
  }
  for (schedule::Generator const* g : schedule::generators()) {
    in_registry.emplace(g->name);
    if (!g->alias.empty()) in_registry.emplace(g->alias);
  }
  EXPECT_EQ(in_input, in_registry);
}

TEST(Pipeline, every_schedule_is_planned_with_its_stages) {
  for (schedule::Generator const* g : schedule::generators()) {
    auto const plan = plan::plan_pipeline(pipeline(std::string(g->name), 4, 8));
    EXPECT_EQ(plan.schedule, g->name);
    EXPECT_EQ(plan.program->num_stages, 4 * g->stages_per_rank);
    EXPECT_EQ(plan.stages.num_stages(), plan.program->num_stages);
    EXPECT_EQ(plan.stages.num_layers(), 16);
    for (int s = 0; s < plan.stages.num_stages(); ++s)
      EXPECT_EQ(plan.stages.pipeline_rank(s), plan.program->stage_rank[static_cast<std::size_t>(s)]);
  }
  auto c = pipeline("interleaved_1f1b", 4, 8);
  c.pipeline.virtual_stages = 3;
  EXPECT_EQ(plan::plan_pipeline(c).program->num_stages, 12);
}

// Messages that start together may close a circle with the exchanges of a divided vocabulary, in one order of these or
// in both. A way that does is left out, and an input without any other is refused, before anything is simulated.
TEST(Pipeline, a_divided_vocabulary_is_planned_or_refused_with_all_messages) {
  int planned = 0, refusals = 0;
  for (schedule::Generator const* g : schedule::generators())
    for (auto const p2p : {config::P2p::separate, config::P2p::batched, config::P2p::ring})
      for (int const pp : {2, 3})
        for (int const microbatches : {6, 8, 16}) {
          auto c = pipeline(std::string(g->name), pp, microbatches);
          c.pipeline.vocab_parallel = true;
          c.pipeline.p2p = p2p;
          SCOPED_TRACE(std::string(g->name) + " on " + std::to_string(pp) + ", " + std::to_string(microbatches));
          try {
            auto const plan = plan::plan_pipeline(c, {}, plan::execution_of(c));
            EXPECT_TRUE(plan.program->divides_vocabulary);  // it is proved: plan.program is a ValidProgram
            ++planned;
          } catch (base::Error const& e) {
            EXPECT_EQ(e.code(), base::ExitCode::bad_input) << e.what();
            ++refusals;
          }
        }
  EXPECT_GT(planned, 100);
  EXPECT_LT(refusals, 40);
}

TEST(Pipeline, refuses_what_the_schedule_cannot_do) {
  refused(pipeline("dualpipe_v", 4, 7), {"at least 8 microbatches", "batch.microbatches"});
  refused(pipeline("zb_v", 4, 8, 7), {"each of the 8 stages", "7 layers"});
  auto c = pipeline("zb_v", 4, 8);
  c.pipeline.layer_split = config::LayerSplit::list;
  c.pipeline.layers_per_stage = {4, 4, 4, 4};
  refused(c, {"each of the 8 stages", "4 entries"});
  c = pipeline("1f1b", 4, 8);
  c.pipeline.virtual_stages = 2;
  refused(c, {"1 stage per rank for 1f1b", "pipeline.virtual_stages"});
}

// The executor puts a receive off only where no rank waits for another one of its stage inside an action. One function
// says where, for the program that is made, its proof, its simulation and its run.
TEST(Pipeline, receives_are_put_off_by_one_rule) {
  auto c = pipeline("gpipe", 3, 8);
  c.memory.offload_activations = config::OffloadTo::disk;
  // Forwards of the second rank that directly follow their receive, and the time of a step with copies.
  auto const planned = [](config::Config const& of) {
    auto const plan = plan::plan_pipeline(of, {}, plan::execution_of(of));
    auto costs = plan::PipelineCosts::uniform(3);
    costs.swap.assign(3, 0.5);
    int late = 0;
    auto const& list = plan.program->ranks[1];
    for (std::size_t i = 0; i + 1 < list.size(); ++i)
      late += list[i].op == schedule::Op::recv_activation && list[i + 1].op == schedule::Op::forward &&
              list[i].microbatch == list[i + 1].microbatch;
    return std::pair(late, plan::simulate(plan.program, costs, plan.program.execution()).step_time);
  };
  auto const put_off = planned(c);
  EXPECT_LE(put_off.first, 1);
  auto waiting = c;
  waiting.parallel.tp = 2;
  auto const waited = planned(waiting);
  EXPECT_EQ(waited.first, 8);
  auto context = c;
  context.parallel.cp = 2;
  auto experts = c;
  experts.model.moe.experts = 4;
  experts.parallel.ep = experts.parallel.dp = 2;
  for (auto const& of : {context, experts}) {
    EXPECT_TRUE(plan::execution_of(of).waits_inside);
    EXPECT_EQ(planned(of), waited);
  }
  // Replicas wait for each other in REDUCE alone, and whole experts for nobody.
  auto replicas = c;
  replicas.parallel.dp = 2;
  replicas.model.moe.experts = 4;
  EXPECT_EQ(planned(replicas), put_off);
}

// A last stage that takes twice as long as the others hands its gradients on before it makes its weights'.
TEST(Pipeline, weight_gradients_wait_for_the_pipeline_to_empty) {
  auto c = pipeline("1f1b", 4, 8);
  auto const time = [&](int limit) {
    c.pipeline.weight_deferral_limit = limit;
    auto const plan = plan::plan_pipeline(c);
    auto costs = plan::PipelineCosts::uniform(4);
    costs.stages.back() = {.forward = 2, .input = 2, .weight = 2};
    EXPECT_EQ(plan.program->num_slots.back(), 2 + limit) << "each that waits keeps its slot";
    return plan::simulate(plan.program, costs, plan.program.execution()).step_time;
  };
  double const whole = time(0);
  EXPECT_LT(time(1), whole);
  EXPECT_LT(time(2), time(1));
  // The stages before it take 2 to empty for each microbatch of it: more than they need for its weight parts gains
  // nothing.
  EXPECT_LE(time(3), time(2));
  c.pipeline.schedule = "zb_h1";
  refused(c, {"whole backwards on its last stage", "pipeline.weight_deferral_limit"});
  c.pipeline.schedule = "auto";
  EXPECT_FALSE(plan::plan_pipeline(c).schedule.empty()) << "which has schedules of both kinds to choose from";
}

TEST(Pipeline, reads_schedules_from_files) {
  auto const original = schedule::generate("zb_v", {2, 3, 0});
  for (auto const& text :
       {schedule::to_csv(original), schedule::to_text(original), schedule::to_text(schedule::complete(original)),
        schedule::to_csv(schedule::complete(original))}) {
    bool const only_compute = text.find("SEND") == std::string::npos;
    TempFile const file(text);
    auto c = pipeline("file", 2, 3);
    c.pipeline.file = file.path;
    c.pipeline.lookahead = 0;
    EXPECT_EQ(plan::plan_pipeline(c).program, schedule::complete(original)) << text;
    c.pipeline.lookahead = 1;  // for the message pass
    EXPECT_EQ(plan::plan_pipeline(c).program,
              only_compute ? schedule::complete(original, 1, 1) : schedule::complete(original))
        << text;
    c.parallel.pp = 3;
    refused(c, {"parallel.pp = 3", "pipeline.file"});
    c.parallel.pp = 2;
    c.batch.microbatches = 4;
    refused(c, {"4 microbatches"});
  }
  auto csv = schedule::to_csv(original);
  csv.replace(csv.find("1F2"), 3, "1F1");
  TempFile const file(csv);
  auto c = pipeline("file", 2, 3);
  c.pipeline.file = file.path;
  refused(c, {">1F1<", "a second 1F1"});
  TempFile const nonsense("0F0,0B0\n1F0,1Q0\n");
  c.pipeline.file = nonsense.path;
  refused(c, {"line 2", "1Q0", "cell 2"});
}

TEST(Pipeline, auto_takes_the_quickest_that_fits) {
  auto c = pipeline("auto", 4, 8);
  c.model.vocab_size = 256;
  c.pipeline.lookahead = 0;
  auto const all = plan::compare_schedules(c, [&](auto const& stages) { return plan::model_costs(c, stages); });
  ASSERT_TRUE(all.front().refused.empty());
  auto const free = plan::plan_pipeline(c);
  EXPECT_EQ(free.schedule, all.front().schedule);
  EXPECT_NE(free.reason.find("auto chose " + free.schedule), std::string::npos) << free.reason;
  // A rank that takes a GiB for every slot: memory decides.
  constexpr double gib = 1024.0 * 1024 * 1024;
  plan::RankBytes const bytes = [](layout::StageMap const& stages, schedule::Program const& program) {
    std::vector<double> out(static_cast<std::size_t>(program.num_ranks), 0.0);
    for (int s = 0; s < program.num_stages; ++s)
      out[static_cast<std::size_t>(stages.pipeline_rank(s))] +=
          stages.num_layers(s) * gib / 4 * program.num_slots[static_cast<std::size_t>(s)];
    return out;
  };
  double last = 0;
  for (double limit : {9.0, 4.0, 2.5, 1.0}) {
    c.pipeline.max_memory = limit;
    auto const plan = plan::plan_pipeline(c, bytes);
    auto const need = bytes(plan.stages, plan.program);
    EXPECT_LE(*std::max_element(need.begin(), need.end()), limit * gib) << plan.schedule;
    auto const time = plan::simulate(plan.program, plan::model_costs(c, plan.stages)).step_time;
    EXPECT_GE(time, last) << "less memory, yet quicker: " << plan.schedule;
    last = time;
    EXPECT_NE(plan.reason.find("within"), std::string::npos);
  }
  c.pipeline.max_memory = 0.5;
  refused(c, {"pipeline.max_memory", "the smallest"}, bytes);
  c.pipeline.max_memory = 1;  // what fitted needs more when messages are to be hidden
  c.pipeline.lookahead = 1;
  refused(c, {"or pipeline.lookahead"}, bytes);
}

// 6 operations per weight and token, 12 with attention as everywhere in plan: the parts must sum to the causal count.
TEST(PipelineCosts, sum_to_the_operations_of_the_model) {
  for (auto activation : {config::Activation::gelu, config::Activation::swiglu}) {
    auto c = pipeline("zb_v", 4, 8, 13);
    c.model.activation = activation;
    c.model.mtp.depth = activation == config::Activation::gelu ? 0 : 2;
    c.parallel.tp = 2;
    c.batch.micro = 3;
    auto const plan = plan::plan_pipeline(c);
    auto const costs = plan::model_costs(c, plan.stages, {.flops = 1, .bandwidth = 1, .latency = 0});
    double sum = 0;
    for (auto const& s : costs.stages) sum += s.forward + s.input + s.weight;
    double const tokens = 3.0 * static_cast<double>(c.model.seq_len);
    // Token i sees i + 1 of the s tokens, (s + 1) / 2 in the mean: the convention counts s.
    double const seen = static_cast<double>(c.model.seq_len + 1) / 2.0, all = static_cast<double>(c.model.seq_len);
    double const causal =
        plan::flops_per_token(c) - 12.0 * static_cast<double>(c.model.all_layers() * 64) * (all - seen);
    EXPECT_NEAR(2 * sum / (tokens * causal), 1, 1e-12);
    EXPECT_EQ(costs.message_bytes, tokens * 64 * 4);
    c.parallel.sequence = true;
    EXPECT_EQ(plan::model_costs(c, plan.stages).message_bytes, std::ceil(tokens / 2) * 64 * 4);
  }
}

// All of a block's backward comes with the input part of the last stage.
TEST(PipelineCosts, multi_token_prediction_is_on_the_last_stage) {
  auto c = pipeline("zb_h1", 2, 4, 16);
  auto const stages = plan::plan_pipeline(c).stages;
  auto const of = [&] { return plan::model_costs(c, stages, {.flops = 1, .bandwidth = 1, .latency = 0}).stages; };
  auto const plain = of();
  c.model.mtp.depth = 1;
  auto const predicting = of();
  EXPECT_EQ(predicting[0].forward, plain[0].forward);
  EXPECT_EQ(predicting[1].weight, plain[1].weight);
  double const forward = predicting[1].forward - plain[1].forward;
  EXPECT_GT(forward, plain[1].forward / 8);
  EXPECT_NEAR(predicting[1].input - plain[1].input, 2 * forward, 1e-6 * forward);
  c.pipeline.layer_split = config::LayerSplit::cost;
  EXPECT_LT(layout::make_stage_map(c).num_layers(1), 8) << "the block has the last stage's time";
}

// Causal attention sees (s + 1) / 2 tokens; 12 of 16 layers are remade, without the last matrix.
TEST(PipelineCosts, backward_counts_what_is_remade) {
  auto c = pipeline("1f1b", 2, 4, 16);
  c.memory.recompute = config::Recompute::full;
  c.memory.recompute_layers = 6;
  auto const stages = plan::plan_pipeline(c).stages;
  auto const costs = plan::model_costs(c, stages, {.flops = 1, .bandwidth = 1, .latency = 0});
  auto const h = static_cast<double>(c.model.hidden), s = static_cast<double>(c.model.seq_len);
  for (auto const& stage : costs.stages)
    EXPECT_DOUBLE_EQ(stage.recompute, s * 6 * (2 * (4 * h * h + 4 * h * h) + 4 * h * (s + 1) / 2));
  auto without = c;
  without.memory = {};
  auto const other = plan::model_costs(without, stages, {.flops = 1, .bandwidth = 1, .latency = 0});
  EXPECT_EQ(costs.stages[1].input, other.stages[1].input);
  EXPECT_EQ(other.stages[1].recompute, 0);
  auto const table = plan::parse_costs(plan::to_csv(costs), 2);
  EXPECT_DOUBLE_EQ(table.stages[1].input, costs.stages[1].input + costs.stages[1].recompute);
}

TEST(PipelineCosts, csv_round_trip_and_errors) {
  plan::PipelineCosts costs;
  costs.stages = {{1e-3, 2e-3, 0.1}, {0.3, 1.0 / 3, 0}};
  costs.latency = 5e-6;
  costs.send = 3e-6;
  costs.receive = 2e-6;
  auto const back = plan::parse_costs(plan::to_csv(costs), 2);
  EXPECT_EQ(back.stages, costs.stages);
  EXPECT_FALSE(std::isfinite(back.bandwidth)) << "not written: no limit";
  EXPECT_EQ(back.latency, costs.latency);
  EXPECT_EQ(back.send, costs.send);
  EXPECT_EQ(back.receive, costs.receive);
  for (auto const& [text, words] : std::vector<std::pair<std::string, std::string>>{
           {"stage,forward,input,weight\n0,1,1,1\n", "every one of the 2 stages"},
           {"0,1,1,1\n2,1,1,1\n", "line 2"},
           {"0,1,x,1\n", "\"x\""},
           {"0,1,-1,1\n", "from 0 to 1000000000"},
           {"0,1,1e308,1\n", "\"1e308\""},
           {"0,1,nan,1\n", "\"nan\""},
           {"0,1,inf,1\n", "\"inf\""},
           {"0,1,1,1\n1,1,1,1\nbandwidth,0\n", "a bandwidth above 0"},
           {"0,1,1,1\n1,1,1,1\n0,2,2,2\n", "one line for stage 0"},
           {"0,1\n", "stage,forward"}}) {
    try {
      plan::parse_costs(text, 2);
      ADD_FAILURE() << text;
    } catch (base::Error const& e) {
      EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
    }
  }
}

// pipeline.p2p: the plan's programs have rounds with "ring" alone; a message must fit one call of MPI.
TEST(Pipeline, messages_start_in_rounds_where_the_input_says_so) {
  auto c = pipeline("interleaved_1f1b", 4, 8);
  c.model.tied_embeddings = false;
  for (auto p2p : {config::P2p::separate, config::P2p::batched, config::P2p::ring}) {
    c.pipeline.p2p = p2p;
    auto const plan = plan::make_run_plan(c, plan::Platform{});
    bool const ring = p2p == config::P2p::ring;
    for (auto const* program : {&plan.training, &plan.evaluation, &plan.probe}) {
      EXPECT_EQ(program->rounds().ranks.size(), ring ? 4u : 0u);
      EXPECT_EQ(program->rounds().periodic, ring);
    }
  }
  c.batch.micro = std::int64_t{1} << 24;
  try {
    plan::make_run_plan(c, plan::Platform{});
    ADD_FAILURE() << "a message of many GiB";
  } catch (base::Error const& e) {
    EXPECT_EQ(e.text().where, "pipeline.p2p");
    EXPECT_NE(e.text().expected.find("1 GiB at most"), std::string::npos) << e.what();
  }
}
