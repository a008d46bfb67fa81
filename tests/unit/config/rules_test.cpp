// SPDX-License-Identifier: Apache-2.0
// Rules between keys.

#include "support.hpp"

namespace p3d::config::test {
namespace {

struct RuleCase {
  char const* text;
  int num_ranks;
  char const* key;
  std::vector<char const*> where;  // parts
  char const* found;
  std::vector<char const*> fix;  // parts
};

class Rule : public testing::TestWithParam<RuleCase> {};

TEST_P(Rule, GivesOneError) {
  auto const& c = GetParam();
  auto const error = only_error(parse(c.text, {}, c.num_ranks));
  EXPECT_EQ(error.key, c.key) << c.text;
  expect_contains(error.found, c.found);
  for (auto const* part : c.where) expect_contains(error.where, part);
  for (auto const* part : c.fix) expect_contains(error.fix, part);
}

INSTANTIATE_TEST_SUITE_P(Model, Rule,
                         testing::Values(RuleCase{"[model]\nhidden = 100\nheads = 12\n",
                                                  0,
                                                  "model.hidden",
                                                  {"t.toml:2:10 (model.hidden = 100)", "t.toml:3:9 (model.heads = 12)"},
                                                  "hidden 100, heads 12: remainder 4",
                                                  {"model.hidden to 96 or 108", "model.heads to 10 or 20"}},
                                         RuleCase{"[model]\nhidden = 90\nheads = 6\nposition = \"rope\"\n",
                                                  0,
                                                  "model.hidden",
                                                  {"t.toml:4:12 (model.position"},
                                                  "hidden 90 / heads 6 = 15",
                                                  {"84 or 96", "\"learned\""}},
                                         RuleCase{"[model]\nhidden = 96\nheads = 12\nkv_heads = 5\n",
                                                  0,
                                                  "model.kv_heads",
                                                  {"t.toml:4:12", "t.toml:3:9"},
                                                  "heads 12, kv_heads 5: remainder 2",
                                                  {"4 or 6"}},
                                         RuleCase{"[model]\nkv_heads = 8\n",
                                                  0,
                                                  "model.kv_heads",
                                                  {"t.toml:2:12", "t.toml:1:1 (model.heads = 4 by default)"},
                                                  "heads 4, kv_heads 8",
                                                  {"to 4"}},
                                         RuleCase{"[model]\npreset = \"gpt2-tiny\"\nffn = 380\n[parallel]\ntp = 3\n",
                                                  0,
                                                  "parallel.tp",
                                                  {"t.toml:5:6", "t.toml:3:7"},
                                                  "ffn 380, tp 3: remainder 2",
                                                  {"set parallel.tp to 2 or 4", "model.ffn to 378 or 381"}},
                                         RuleCase{"[model]\npreset = \"gpt2-tiny\"\nffn = 400\n[parallel]\ntp = 5\n",
                                                  0,
                                                  "parallel.tp",
                                                  {"t.toml:5:6 (parallel.tp = 5)",
                                                   "t.toml:2:10 (model.heads = 12 of this preset)"},
                                                  "heads 12, tp 5: remainder 2",
                                                  {"parallel.tp to 4"}},
                                         RuleCase{"[model]\npreset = \"llama-tiny\"\n[parallel]\ntp = 4\n",
                                                  0,
                                                  "parallel.tp",
                                                  {"(model.kv_heads = 6 of this preset)"},
                                                  "kv_heads 6, tp 4: remainder 2",
                                                  {"set parallel.tp to 3 or 6"}}));

INSTANTIATE_TEST_SUITE_P(
    MultiTokenPrediction, Rule,
    testing::Values(RuleCase{"[model.mtp]\nloss_weight = 0.1\n",
                             0,
                             "model.mtp.loss_weight",
                             {"t.toml:2:15"},
                             "loss_weight 0.1, depth 0",
                             {"set model.mtp.depth"}},
                    RuleCase{"[model.mtp]\ndepth = 1\n",
                             0,
                             "model.position",
                             {"(model.position = \"learned\" by default)"},
                             "position \"learned\"",
                             {"\"rope\""}},
                    RuleCase{"[model]\npreset = \"llama-tiny\"\ndropout = 0.1\n[model.mtp]\ndepth = 1\n",
                             0,
                             "model.dropout",
                             {"t.toml:3:11", "t.toml:5:9"},
                             "0.1",
                             {"set model.dropout to 0"}},
                    RuleCase{"[model]\npreset = \"llama-tiny\"\nembedding_multiplier = 3\n[model.mtp]\ndepth = 1\n",
                             0,
                             "model.embedding_multiplier",
                             {"t.toml:3:24"},
                             "3",
                             {"remove model.embedding_multiplier"}},
                    RuleCase{"[model]\npreset = \"llama-tiny\"\nlogits_scaling = 2\n[model.mtp]\ndepth = 1\n",
                             0,
                             "model.logits_scaling",
                             {"t.toml:3:18"},
                             "2",
                             {"remove model.logits_scaling"}},
                    RuleCase{
                        "[model]\npreset = \"llama-tiny\"\n[model.mtp]\ndepth = 1\n[parallel]\npp = 2\n[pipeline]\n"
                        "vocab_parallel = true\n",
                        0,
                        "pipeline.vocab_parallel",
                        {"t.toml:8:18", "t.toml:4:9"},
                        "true with parallel.pp 2",
                        {"set pipeline.vocab_parallel to false"}}));

INSTANTIATE_TEST_SUITE_P(
    Embedding, Rule,
    testing::Values(RuleCase{"[model]\npreset = \"gpt2-tiny\"\n[parallel]\ntp = 2\nembedding = \"replicated\"\n",
                             0,
                             "parallel.embedding",
                             {"t.toml:5:13", "(model.tied_embeddings = true of this preset)"},
                             "\"replicated\" with tied_embeddings = true",
                             {"set parallel.embedding to \"sharded\""}},
                    RuleCase{"[model]\npreset = \"llama-tiny\"\n[parallel]\ntp = 2\npp = 2\nembedding = "
                             "\"replicated\"\n[pipeline]\nvocab_parallel = true\n",
                             0,
                             "parallel.embedding",
                             {"t.toml:6:13", "t.toml:8:18"},
                             "\"replicated\" with vocab_parallel = true",
                             {"remove one of them"}}));

INSTANTIATE_TEST_SUITE_P(
    Stages, Rule,
    testing::Values(RuleCase{"[model]\nlayers = 3\n[parallel]\npp = 4\n",
                             0,
                             "parallel.pp",
                             {"t.toml:4:6", "t.toml:2:10"},
                             "layers 3, pp 4",
                             {"parallel.pp to 3 or less", "model.layers to 4 or more"}},
                    RuleCase{"[model]\nlayers = 30\n[parallel]\npp = 4\n[pipeline]\nlayers_per_stage = [8, 8, 8, 8]\n",
                             0,
                             "pipeline.layers_per_stage",
                             {"t.toml:6:20", "t.toml:2:10", "t.toml:4:6"},
                             "4 entries that sum to 32",
                             {"[8, 8, 7, 7]", "model.layers to 32"}},
                    RuleCase{"[model]\nlayers = 8\n[parallel]\npp = 4\n[pipeline]\nlayers_per_stage = [4, 4]\n",
                             0,
                             "pipeline.layers_per_stage",
                             {"t.toml:6:20"},
                             "2 entries that sum to 8",
                             {"[2, 2, 2, 2]", "parallel.pp to 2"}},
                    RuleCase{"[model]\nlayers = 4\n[parallel]\npp = 4\n[pipeline]\nlayers_per_stage = [2, 0, 2, 0]\n",
                             0,
                             "pipeline.layers_per_stage",
                             {"t.toml:6:20"},
                             "0 layers for stage 1",
                             {"cost"}},
                    RuleCase{"[pipeline]\nlayers_per_stage = [1]\n",
                             0,
                             "pipeline.layers_per_stage",
                             {"t.toml:2:20"},
                             "1 entry that sums to 1",
                             {"[2]"}}));

INSTANTIATE_TEST_SUITE_P(Sums, Rule,
                         testing::Values(RuleCase{"[comm]\nallreduce = \"mpi\"\n",
                                                  0,
                                                  "comm.allreduce",
                                                  {"t.toml:2:13", "(run.deterministic = true by default)"},
                                                  "the order is the library's affair",
                                                  {"run.deterministic to false", "\"auto\""}}));

INSTANTIATE_TEST_SUITE_P(Mesh, Rule,
                         testing::Values(RuleCase{"[parallel]\ndp = 2\ntp = 2\npp = 2\n",
                                                  4,
                                                  "parallel.dp",
                                                  {"t.toml:2:6", "t.toml:3:6", "t.toml:4:6"},
                                                  "dp 2 x tp 2 x cp 1 x pp 2 = 8 ranks, but the run has 4",
                                                  {"srun -n 8", "mpiexec -n 8", "parallel.dp to 1"}},
                                         RuleCase{"[parallel]\ndp = 2\ntp = 2\norder = \"tp-pp\"\n",
                                                  4,
                                                  "parallel.order",
                                                  {"t.toml:4:9", "t.toml:2:6 (parallel.dp = 2)"},
                                                  "\"tp-pp\" without dp, which has 2 ranks",
                                                  {"set parallel.order to \"tp-pp-dp\""}},
                                         RuleCase{"[parallel]\ndp = 2\ntp = 2\n",
                                                  7,
                                                  "parallel.dp",
                                                  {"t.toml:2:6"},
                                                  "dp 2 x tp 2 x cp 1 x pp 1 = 4 ranks, but the run has 7",
                                                  {"mpiexec -n 4", "divides 7: a product of 1 or 7"}},
                                         RuleCase{"[parallel]\ntp = 4\n",
                                                  6,
                                                  "parallel.tp",
                                                  {"t.toml:2:6"},
                                                  "tp 4 x cp 1 x pp 1 = 4, but the run has 6",
                                                  {"start 4 or 8 ranks", "3 or 6"}},
                                         RuleCase{"[parallel]\npp = 2\n",
                                                  1,
                                                  "parallel.pp",
                                                  {"t.toml:2:6"},
                                                  "tp 1 x cp 1 x pp 2 = 2, but the run has 1 rank",
                                                  {"start 2 ranks"}},
                                         RuleCase{"[model]\nlayers = 4096\n[parallel]\ndp = 1048576\npp = 4096\n",
                                                  0,
                                                  "parallel.dp",
                                                  {"t.toml:4:6"},
                                                  "= 4294967296 ranks",
                                                  {"smaller"}}));

INSTANTIATE_TEST_SUITE_P(
    Batch, Rule,
    testing::Values(RuleCase{"[parallel]\ndp = 2\n[batch]\nmicro = 4\nglobal = 30\n",
                             0,
                             "batch.global",
                             {"t.toml:5:10", "t.toml:4:9", "t.toml:2:6"},
                             "global 30, micro 4 x dp 2 = 8: remainder 6",
                             {"batch.global to 24 or 32", "batch.micro to 3 or 5"}},
                    RuleCase{"[batch]\nglobal = 5\n",
                             3,
                             "batch.global",
                             {"t.toml:2:10", "(parallel.dp = 3 by default)"},
                             "remainder 2",
                             {"3 or 6"}},
                    RuleCase{"[batch]\nmicro = 2\nmicrobatches = 3\nglobal = 8\n",
                             0,
                             "batch.global",
                             {"t.toml:4:10", "t.toml:3:16", "t.toml:2:9"},
                             "global 8, but micro 2 x microbatches 3 x dp 1 = 6",
                             {"batch.global to 6 or batch.microbatches to 4"}},
                    RuleCase{
                        "[batch]\nglobal = 2000000\n", 0, "batch.global", {"t.toml:2:10"}, "= 2000000", {"smaller"}}));

INSTANTIATE_TEST_SUITE_P(
    Data, Rule,
    testing::Values(
        RuleCase{"[run]\n[data]\n",
                 0,
                 "data.path",
                 {"t.toml:2:1 (data.path = [] by default)"},
                 "nothing",
                 {"path = ", "synthetic"}},
        RuleCase{"[data]\npath = \"no/such\"\n",
                 0,
                 "data.path",
                 {"t.toml:2:8"},
                 P3D_SOURCE_DIR "/no/such: no such file or folder",
                 {"it starts at the folder of the input file, " P3D_SOURCE_DIR}},
        RuleCase{"[data]\npath = [\"LICENSE\",\n \"LICENCE\"]\n",
                 0,
                 "data.path",
                 {"t.toml:3:2"},
                 "/LICENCE: no such",
                 {"did you mean " P3D_SOURCE_DIR "/LICENSE?"}},
        RuleCase{"[run]\noutput_dir = \"" P3D_SOURCE_DIR "/src/runs\"\n[data]\npath = [\"LICENSE\", \"src\"]\n",
                 0,
                 "data.path",
                 {"t.toml:4:8", "t.toml:2:14"},
                 "run.output_dir = " P3D_SOURCE_DIR "/src/runs within " P3D_SOURCE_DIR "/src",
                 {"set run.output_dir elsewhere"}},
        RuleCase{"[model]\nvocab_size = 255\n[data]\npath = \"LICENSE\"\n",
                 0,
                 "model.vocab_size",
                 {"t.toml:2:14"},
                 "vocab_size 255",
                 {"256"}},
        RuleCase{"[model]\nvocab_size = 257\n[sample]\ntokens = 3\n",
                 0,
                 "sample.tokens",
                 {"t.toml:4:10", "t.toml:2:14"},
                 "tokens 3, vocab_size 257",
                 {"sample.tokens to 0", "256"}},
        RuleCase{"[model]\nvocab_size = 65\n[sample]\ntokens = 3\nprompt = \"@A\"\n",
                 0,
                 "sample.prompt",
                 {"t.toml:5:10", "t.toml:2:14"},
                 "byte 65",
                 {"change the prompt"}},
        RuleCase{"[data]\nformat = \"synthetic\"\ntokenizer = \"README.nd\"\n",
                 0,
                 "data.tokenizer",
                 {"t.toml:3:13"},
                 P3D_SOURCE_DIR "/README.nd: no such file",
                 {"did you mean " P3D_SOURCE_DIR "/README.md?"}},
        RuleCase{"[data]\nformat = \"synthetic\"\ntokenizer = \"tests\"\n",
                 0,
                 "data.tokenizer",
                 {"t.toml:3:13"},
                 P3D_SOURCE_DIR "/tests: a folder",
                 {"name a file in it"}},
        RuleCase{"[data]\nformat = \"synthetic\"\ntokenizer = \"/dev/null\"\n",
                 0,
                 "data.tokenizer",
                 {"t.toml:3:13"},
                 "/dev/null: no regular file",
                 {"name a regular file"}},
        RuleCase{"[pipeline]\nschedule = \"file\"\nfile = \"tests\"\n",
                 0,
                 "pipeline.file",
                 {"t.toml:3:8"},
                 P3D_SOURCE_DIR "/tests: a folder",
                 {"name a file in it"}},
        RuleCase{"[data]\nformat = \"synthetic\"\ntokenizer_pattern = \"gpt2\"\n",
                 0,
                 "data.tokenizer_pattern",
                 {"t.toml:3:21", "(data.tokenizer = \"bytes\" by default)"},
                 "tokenizer bytes",
                 {"remove data.tokenizer_pattern"}},
        RuleCase{"[data]\nformat = \"synthetic\"\ntokenizer = \"tests/unit/text/tokenizers/ranks.tiktoken\"\n",
                 0,
                 "data.tokenizer_pattern",
                 {"t.toml:3:13"},
                 "nothing",
                 {"to \"gpt2\""}},
        RuleCase{"[optimizer]\nlr = 1e-4\nmin_lr = 1e-3\n",
                 0,
                 "optimizer.min_lr",
                 {"t.toml:3:10", "t.toml:2:6"},
                 "min_lr 0.001, lr 0.0001",
                 {"lower min_lr"}}));

INSTANTIATE_TEST_SUITE_P(
    RopeScaling, Rule,
    testing::Values(RuleCase{"[model]\nrope_scaling = \"linear\"\n",
                             0,
                             "model.rope_scaling",
                             {"t.toml:2:16", "model.position = \"learned\" by default"},
                             "rope_scaling \"linear\", position \"learned\"",
                             {"\"none\"", "\"rope\""}},
                    RuleCase{"[model]\nposition = \"rope\"\nrope_scaling_factor = 8\n",
                             0,
                             "model.rope_scaling_factor",
                             {"t.toml:3:23", "model.rope_scaling = \"none\" by default"},
                             "rope_scaling \"none\"",
                             {"set model.rope_scaling", "remove model.rope_scaling_factor"}},
                    RuleCase{"[model]\nposition = \"rope\"\nrope_scaling = \"llama3\"\nrope_low_freq_factor = 4\n",
                             0,
                             "model.rope_low_freq_factor",
                             {"t.toml:4:24", "model.rope_high_freq_factor = 4.0 by default"},
                             "low 4, high 4",
                             {"config.json"}},
                    RuleCase{"[model]\nposition = \"rope\"\nrope_scaling = \"longrope\"\nrope_short_factors = [1.0]\n"
                             "rope_long_factors = [1, 1, 1, 1, 1, 1, 1, 1.5]\n",
                             0,
                             "model.rope_short_factors",
                             {"t.toml:4:22", "t.toml:3:16"},
                             "1 number",
                             {"short_factor"}},
                    RuleCase{"[model]\nposition = \"rope\"\nrope_scaling = \"longrope\"\nrope_original_seq_len = 1\n"
                             "rope_short_factors = [1, 1, 1, 1, 1, 1, 1, 1]\n"
                             "rope_long_factors = [1, 1, 1, 1, 1, 1, 1, 1.5]\n",
                             0,
                             "model.rope_original_seq_len",
                             {"t.toml:4:25", "model.rope_attention_factor = 0.0 by default"},
                             "1",
                             {"model.rope_attention_factor"}}));

TEST(Rules, AScalingThatIsSwitchedOffLeavesNoNumbersOfIt) {
  Model const plain;
  for (auto const* name : {"phi4-mini", "gpt-oss-20b", "apertus-8b"}) {
    auto const config = good("", {std::string("model.preset=") + name, "model.rope_scaling=none"});
    EXPECT_EQ(config.model.rope_scaling_factor, plain.rope_scaling_factor) << name;
    EXPECT_EQ(config.model.rope_original_seq_len, plain.rope_original_seq_len) << name;
    EXPECT_TRUE(config.model.rope_truncate && config.model.rope_short_factors.empty()) << name;
    EXPECT_EQ(good(canonical_toml(config)), config) << name;
    EXPECT_TRUE(allowed(config)) << name;
  }
  // The scale of queries reads the length of the first training without a scaling.
  good("", {"model.position=rope", "model.rope_query_beta=0.1", "model.rope_original_seq_len=64"});
}

TEST(Rules, AFileWithoutTheSectionIsThePlaceOfItsDefaults) {
  auto const error =
      only_error(parse("[model]\nheads = 3\nhidden = 6\nffn = 6\n[batch]\nglobal = 3\n", {"parallel.dp=2"}));
  EXPECT_EQ(error.where,
            "t.toml:6:10 (batch.global = 3); t.toml:5:1 (batch.micro = 1 by default); command line: parallel.dp=2");
  EXPECT_EQ(only_error(parse("", {"parallel.tp=3", "model.ffn=255"})).where,
            "command line: parallel.tp=3; t.toml (model.heads = 4 by default)");
}

TEST(Rules, NcclWantsItsLibrary) {
  auto const free = parse("[run]\ndeterministic = true\n[comm]\nbackend = \"nccl\"\n");
  if (has_nccl()) {
    EXPECT_TRUE(free.errors.empty()) << format(free.errors);
  } else {
    auto const error = only_error(free);
    EXPECT_EQ(error.key, "comm.backend");
    expect_contains(error.where, "t.toml:4:11");
    expect_contains(error.expected, "neither NCCL nor RCCL");
    expect_contains(error.fix, "-DP3D_NCCL=ON");
  }
  good("[comm]\nbackend = \"auto\"\nbackend_axes = \"dp\"\n");
  for (auto const& [axes, words] : {std::pair{"dp-pp", "messages along pp go by MPI"}, std::pair{"dp-dp", "dp twice"},
                                    std::pair{"dq", "'dq' is no axis"}}) {
    auto const error = only_error(parse("", {std::string("comm.backend_axes=") + axes}));
    EXPECT_EQ(error.key, "comm.backend_axes");
    expect_contains(error.found, words);
    expect_contains(error.fix, "\"tp-cp-dp\"");
  }
}

TEST(Rules, WhatIsJustAllowed) {
  good("[data]\npath = \"LICENSE\"\n[model]\nvocab_size = 256\n");
  good("[run]\ndeterministic = false\n[comm]\nallreduce = \"mpi\"\n");
  good("[model]\nvocab_size = 1\n");                                  // synthetic tokens need no bytes
  good("[run]\nsteps = 5\n[optimizer]\nwarmup_steps = 6\nlr = 0\n");  // the first steps of a longer run
  good("[model]\nlayers = 4\n[parallel]\npp = 4\n");
  good("[data]\nformat = \"synthetic\"\nsplit = 0.9\n");
  good("[data]\nformat = \"synthetic\"\npath = \"no/such\"\n");  // not read, so not looked for
  good("[model]\nhidden = 90\nheads = 6\n");                     // odd head size, learned position
  good("[model]\nhidden = 96\nheads = 12\nkv_heads = 1\n");
  EXPECT_EQ(good("[model]\nlayers = 30\n[parallel]\npp = 4\n").model.layers, 30);
  for (auto const* order : {"tp-pp-dp", "tp-dp-pp", "pp-tp-dp", "pp-dp-tp", "dp-tp-pp", "dp-pp-tp"}) {
    EXPECT_EQ(good("", {std::string("parallel.order=") + order}).parallel.order, order);
  }
}

}  // namespace
}  // namespace p3d::config::test
