// SPDX-License-Identifier: Apache-2.0
// Errors within one key: each kind gives exactly one error, with the right key, place, and words.

#include "support.hpp"

#include <cstdio>
#include <fstream>
#include <tuple>

namespace p3d::config::test {
namespace {

struct ErrorCase {
  char const* text;
  char const* key;
  char const* where;
  char const* expected;
  char const* found;
  char const* fix;
};

class OneKey : public testing::TestWithParam<ErrorCase> {};

TEST_P(OneKey, GivesOneError) {
  auto const& c = GetParam();
  auto const error = only_error(parse(c.text));
  EXPECT_EQ(error.key, c.key) << c.text;
  EXPECT_EQ(error.where, c.where) << c.text;
  expect_contains(error.expected, c.expected);
  expect_contains(error.found, c.found);
  expect_contains(error.fix, c.fix);
}

INSTANTIATE_TEST_SUITE_P(
    Unknown, OneKey,
    testing::Values(
        ErrorCase{"[model]\nhiden = 4\n", "model.hiden", "t.toml:2:1", "a key of [model]: preset,", "hiden",
                  "did you mean hidden?"},
        ErrorCase{"[modle]\nlayers = 3\n", "modle", "t.toml:1:2",
                  "run, model, model.mla, model.moe, model.mtp, parallel", "[modle]", "did you mean [model]?"},
        ErrorCase{"[zzzzzz]\na = 3\n", "zzzzzz", "t.toml:1:2", "a section", "[zzzzzz]", "remove it"},
        ErrorCase{"hidden = 4\n", "hidden", "t.toml:1:1", "a section", "outside of any section",
                  "did you mean hidden below [model]?"},
        ErrorCase{"[model]\nlr = 4\n", "model.lr", "t.toml:2:1", "a key of [model]", "lr",
                  "did you mean lr below [optimizer]?"},
        ErrorCase{"[optim]\nmethod = 4\n", "optim", "t.toml:1:2", "a section of the input", "[optim]",
                  "did you mean [optimizer]?"},
        ErrorCase{"[run]\n\n  zzzzzzzzzzzz = 4\n", "run.zzzzzzzzzzzz", "t.toml:3:3", "a key of [run]", "zzzzzzzzzzzz",
                  "--help-input"},
        ErrorCase{"[parallel]\nzz.y = 4\n", "parallel.zz", "t.toml:2:1",
                  "tp, cp, pp, dp, etp, ep, sequence, embedding, order", "zz", "did you mean"},
        ErrorCase{"[model]\n\"\" = 4\n", "model.", "t.toml:2:1", "a key of [model]", "the key \"\"", "remove it"},
        ErrorCase{"\" \" = 4\n", " ", "t.toml:1:1", "a section", "the key  ", "remove it"},
        ErrorCase{"model = 3\n", "model", "t.toml:1:1", "[model] as a section", "the integer 3", "write [model]"},
        ErrorCase{"[[run]]\nsteps = 3\n", "run", "t.toml:1:3", "[run] as a section", "a list", "write [run]"}));

INSTANTIATE_TEST_SUITE_P(
    Type, OneKey,
    testing::Values(
        ErrorCase{"[model]\nhidden = \"64\"\n", "model.hidden", "t.toml:2:10", "integer from 1", "the string \"64\"",
                  "write 64"},
        ErrorCase{"[run]\nsteps = 1e3\n", "run.steps", "t.toml:2:9", "integer from 1", "the number 1000.0",
                  "write 1000"},
        ErrorCase{"[run]\nsteps = 1.5\n", "run.steps", "t.toml:2:9", "integer from 1", "the number 1.5",
                  "write an integer"},
        ErrorCase{"[run]\nsteps = true\n", "run.steps", "t.toml:2:9", "integer from 1", "the boolean true",
                  "write an integer"},
        ErrorCase{"[run]\nsteps = [3]\n", "run.steps", "t.toml:2:9", "integer from 1", "a list", "write an integer"},
        ErrorCase{"[run]\nname = 3\n", "run.name", "t.toml:2:8", "string", "the integer 3", "double quotes"},
        ErrorCase{"[run]\nname = 2024-01-01\n", "run.name", "t.toml:2:8", "string", "a date", "double quotes"},
        ErrorCase{"[model]\nbias = 1\n", "model.bias", "t.toml:2:8", "true | false", "the integer 1",
                  "write true or false"},
        ErrorCase{"[model]\nbias = \"true\"\n", "model.bias", "t.toml:2:8", "true | false", "the string",
                  "without quotes"},
        ErrorCase{"[optimizer]\nlr = \"1e-3\"\n", "optimizer.lr", "t.toml:2:6", "number in [0, ", "the string",
                  "write 0.001"},
        ErrorCase{"[optimizer]\nlr = {}\n", "optimizer.lr", "t.toml:2:6", "number in [0, ", "a table",
                  "write a number"},
        ErrorCase{"[data]\nformat = \"synthetic\"\npath = 3\n", "data.path", "t.toml:3:8", "list of strings",
                  "the integer 3", "double quotes"},
        ErrorCase{"[data]\nformat = \"synthetic\"\npath = [\"a\",\n  3]\n", "data.path", "t.toml:4:3",
                  "list of strings", "the integer 3", "double quotes"},
        ErrorCase{"[pipeline]\nlayers_per_stage = 2\n", "pipeline.layers_per_stage", "t.toml:2:20",
                  "\"even\" | \"cost\" | list", "the integer 2", "[3, 3, 2]"},
        ErrorCase{"[pipeline]\nlayers_per_stage = [1, \"1\"]\n", "pipeline.layers_per_stage", "t.toml:2:24", "list",
                  "the string \"1\" in the list", "write 1"},
        ErrorCase{"[pipeline]\nlayers_per_stage = [1, -1]\n", "pipeline.layers_per_stage", "t.toml:2:24", "list",
                  "-1 in the list", "set it to 0 or more"},
        ErrorCase{"[pipeline]\nlayers_per_stage = []\n", "pipeline.layers_per_stage", "t.toml:2:20", "list",
                  "an empty list", "stages"}));

INSTANTIATE_TEST_SUITE_P(
    Choice, OneKey,
    testing::Values(ErrorCase{"[model]\nnorm = \"layernrom\"\n", "model.norm", "t.toml:2:8", "layernorm | rmsnorm",
                              "\"layernrom\"", "did you mean \"layernorm\"?"},
                    ErrorCase{"[model]\nnorm = \"batchnormalization\"\n", "model.norm", "t.toml:2:8",
                              "layernorm | rmsnorm", "\"batchnormalization\"", "use one of: layernorm, rmsnorm"},
                    ErrorCase{"[model]\npreset = \"gpt2-tny\"\n", "model.preset", "t.toml:2:10", "gpt2-tiny | ",
                              "\"gpt2-tny\"", "did you mean \"gpt2-tiny\"?"},
                    ErrorCase{"[pipeline]\nschedule = \"1f1\"\n", "pipeline.schedule", "t.toml:2:12", "| gpipe | ",
                              "\"1f1\"", "did you mean \"1f1b\"?"},
                    ErrorCase{"[comm]\nallreduce = \"shred\"\n", "comm.allreduce", "t.toml:2:13",
                              "auto | mpi | ring | tree | hierarchical | shared", "\"shred\"",
                              "did you mean \"shared\"?"},
                    ErrorCase{"[run]\nprecision = 64\n", "run.precision", "t.toml:2:13", "fp64 | fp32",
                              "the integer 64", "use one of: fp64, fp32"},
                    ErrorCase{"[pipeline]\nlayers_per_stage = \"evn\"\n", "pipeline.layers_per_stage", "t.toml:2:20",
                              "\"even\" | \"cost\"", "\"evn\"", "did you mean \"even\"?"},
                    ErrorCase{"[parallel]\norder = \"tp-xp\"\n", "parallel.order", "t.toml:2:9",
                              "axes joined by '-', each once", "'xp' is no axis", "\"tp-cp-pp-dp\""},
                    ErrorCase{"[parallel]\norder = \"tp-pp-tp\"\n", "parallel.order", "t.toml:2:9",
                              "axes joined by '-', each once", "tp twice", "\"tp-cp-pp-dp\""}));

INSTANTIATE_TEST_SUITE_P(
    Range, OneKey,
    testing::Values(
        ErrorCase{"[run]\nsteps = 0\n", "run.steps", "t.toml:2:9", "integer from 1", "0", "set it to 1 or more"},
        ErrorCase{"[run]\nseed = -1\n", "run.seed", "t.toml:2:8", "integer >= 0", "-1", "set it to 0 or more"},
        ErrorCase{"[run]\nname = \"\"\n", "run.name", "t.toml:2:8", "string of 1 to 100 bytes", "an empty string",
                  "at least one character"},
        ErrorCase{"[run]\nname = \"..\"\n", "run.name", "t.toml:2:8", "without '/', not", "\"..\"", "a plain name"},
        ErrorCase{"[run]\nname = \".\"\n", "run.name", "t.toml:2:8", "without '/', not", "\".\"", "a plain name"},
        ErrorCase{"[run]\nname = \"/\"\n", "run.name", "t.toml:2:8", "without '/'", "\"/\"", "a plain name"},
        ErrorCase{"[run]\nname = \"a/b\"\n", "run.name", "t.toml:2:8", "without '/'", "\"a/b\"",
                  "run.output_dir and checkpoint.dir say"},
        ErrorCase{"[run]\nname = \"  \"\n", "run.name", "t.toml:2:8", "bytes", "\"  \"", "can be read"},
        ErrorCase{"[run]\nname = \"a\\nb\"\n", "run.name", "t.toml:2:8", "bytes", "a\\nb", "can be read"},
        ErrorCase{
            "[run]\nname = "
            "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
            "aaa\"\n",
            "run.name", "t.toml:2:8", "1 to 100 bytes", "105 bytes", "shorter"},
        ErrorCase{"[model]\nwindow = 16777217\n", "model.window", "t.toml:2:10", "integer from 0 to 16777216",
                  "16777217", "16777216 or less"},
        ErrorCase{"[comm]\nbucket_mb = 1e300\n", "comm.bucket_mb", "t.toml:2:13", "(0, 1048576]", "1e+300",
                  "at most 1048576"},
        ErrorCase{"[optimizer]\nlr = 1e300\n", "optimizer.lr", "t.toml:2:6", "[0, 1e+30]", "1e+300", "at most"},
        ErrorCase{"[run]\noutput_dir = \"\"\n", "run.output_dir", "t.toml:2:14", "not empty", "an empty string",
                  "at least one character"},
        ErrorCase{"[model]\nhidden = -64\n", "model.hidden", "t.toml:2:10", "integer from 1", "-64", "1 or more"},
        ErrorCase{"[model]\nhidden = 99999999999\n", "model.hidden", "t.toml:2:10", "to 1048576", "99999999999",
                  "1048576 or less"},
        ErrorCase{"[model]\ndropout = 1.0\n", "model.dropout", "t.toml:2:11", "[0, 1)", "1", "less than 1"},
        ErrorCase{"[model]\ndropout = -0.1\n", "model.dropout", "t.toml:2:11", "[0, 1)", "-0.1", "at least 0"},
        ErrorCase{"[model]\nattention_softcap = -1\n", "model.attention_softcap", "t.toml:2:21", "[0, 1000000]", "-1",
                  "at least 0"},
        ErrorCase{"[model]\nlogits_softcap = 1e-9\n", "model.logits_softcap",
                  "t.toml:2:18 (model.logits_softcap = 1e-09)", "0, which is no cap, or a number from 0.001 on",
                  "1e-09", "Gemma 2 has 50"},
        ErrorCase{"[model]\nrope_theta = 0\n", "model.rope_theta", "t.toml:2:14", "(0, ", "0", "more than 0"},
        ErrorCase{"[data]\nformat = \"synthetic\"\nsplit = 0.91\n", "data.split", "t.toml:3:9", "[0, 0.9]", "0.91",
                  "at most 0.9"},
        ErrorCase{"[optimizer]\nlr = -1e-3\n", "optimizer.lr", "t.toml:2:6", "[0, 1e+30]", "-0.001", "at least 0"},
        ErrorCase{"[optimizer]\nlr = nan\n", "optimizer.lr", "t.toml:2:6", "[0, 1e+30]", "nan", "finite"},
        ErrorCase{"[optimizer]\nlr = inf\n", "optimizer.lr", "t.toml:2:6", "[0, 1e+30]", "inf", "finite"},
        ErrorCase{"[optimizer]\nbeta1 = 1\n", "optimizer.beta1", "t.toml:2:9", "[0, 1)", "1", "less than 1"},
        ErrorCase{"[optimizer]\nbeta2 = -0.5\n", "optimizer.beta2", "t.toml:2:9", "[0, 1)", "-0.5", "at least 0"},
        ErrorCase{"[optimizer]\neps = 0\n", "optimizer.eps", "t.toml:2:7", "(0, 1]", "0", "more than 0"},
        ErrorCase{"[comm]\ntimeout_s = 0\n", "comm.timeout_s", "t.toml:2:13", "(0, ", "0", "more than 0"},
        ErrorCase{"[parallel]\ntp = 99999999999\n", "parallel.tp", "t.toml:2:6", "from 1 to 1048576", "99999999999",
                  "1048576 or less"},
        ErrorCase{"[parallel]\ntp = 0\n", "parallel.tp", "t.toml:2:6", "from 1", "0", "1 or more"},
        ErrorCase{"[batch]\nmicro = 0\n", "batch.micro", "t.toml:2:9", "from 1", "0", "1 or more"}));

INSTANTIATE_TEST_SUITE_P(Syntax, OneKey,
                         testing::Values(ErrorCase{"[run]\nname = abc\n", "", "t.toml:2:8", "valid TOML",
                                                   "the line is: name = abc", "double quotes"},
                                         ErrorCase{"[run]\nsteps = 1\nsteps = 2\n", "", "t.toml:3:9", "valid TOML",
                                                   "cannot redefine", "keep one of the two"},
                                         ErrorCase{"[run]\n[model]\n[run]\n", "", "t.toml:3:1", "valid TOML",
                                                   "cannot redefine", "keep one of the two"},
                                         ErrorCase{"[run\nsteps = 1\n", "", "t.toml:1:5", "valid TOML", "[run",
                                                   "correct this line"},
                                         ErrorCase{"[run]\nsteps = 99999999999999999999\n", "", "t.toml:2:29",
                                                   "valid TOML", "64 bits", "correct this line"}));

TEST(Errors, AMissingFileIsNamedInFullWithTheCurrentFolderAndASimilarFile) {
  std::string const folder = std::string(P3D_SOURCE_DIR) + "/inputs/";
  auto const error = only_error(parse_file(folder + "quickstat.toml", {}, 8));
  EXPECT_EQ(error.key, "");
  EXPECT_EQ(error.where, folder + "quickstat.toml");
  expect_contains(error.found, folder + "quickstat.toml");
  expect_contains(error.fix, "did you mean " + folder + "quickstart.toml?");
  expect_contains(error.fix, "the current directory is /");
}

TEST(Errors, AFolderIsNoInput) { expect_contains(only_error(parse_file(P3D_SOURCE_DIR, {}, 1)).found, "is a folder"); }

TEST(Errors, ALostValueCausesNoSecondError) {
  // Each of these would break a rule with the default in place of what was meant.
  only_error(parse("[model]\nhidden = 90\nheads = \"9\"\n"));
  only_error(parse("[model]\nhidden = 90\nheds = 9\n"));
  only_error(parse("[modle]\nhidden = 90\nheads = 9\n[parallel]\ntp = 9\n"));
  only_error(parse("[model]\npreset = \"gpt2-tny\"\nheads = 7\n"));
  only_error(parse("[batch]\nmicro = \"3\"\nglobal = 7\n"));
  only_error(parse("[parallel]\ndp = \"3\"\ntp = 2\n", {}, 5));
}

TEST(Errors, AllAtOnceInReadingOrder) {
  auto const result = parse(
      "[run]\nsteps = 0\nname = 3\n[modell]\nlayers = 2\n[batch]\nglobal = 7\nmicro = 2\n[optimizer]\nlr = nan\nwarmup "
      "= 3\n",
      {"parallel.tp=x", "run.sed=3"}, 4);
  EXPECT_FALSE(result.config);
  std::vector<std::string> found;
  for (auto const& error : result.errors) found.push_back(error.key);
  EXPECT_EQ(found, (std::vector<std::string>{"run.steps", "run.name", "modell", "optimizer.lr", "optimizer.warmup",
                                             "parallel.tp", "run.sed"}));
  auto const text = format(result.errors);
  expect_contains(text, "the input has 7 errors");
  expect_contains(text, "7. run.sed\n   expected: ");
  for (auto const& error : result.errors) {
    for (auto const& part : {error.where, error.expected, error.found, error.fix}) {
      EXPECT_FALSE(part.empty()) << error.key;
      expect_contains(text, part);
    }
  }
}

// Deep nesting used up the parser's stack: 400 kB of brackets, or of dots.
TEST(Errors, DeepNestingIsRefusedBeforeItIsParsed) {
  std::string dots;
  for (int i = 0; i < 200000; ++i) dots += "a.";
  for (std::string const& line :
       {"x = " + std::string(400000, '['), "x = " + std::string(400000, '{'), dots + "a = 1", "[" + dots + "a]",
        "x = \"\"\"\n\\\"\"\"\"\"\ny = " + std::string(400000, '['), "x = {" + dots + "a = 1}"}) {
    auto const error = only_error(parse_text("# [[[\ny = '[[[['\n" + line, "t.toml", "/", {}, 1));
    expect_contains(error.where, "t.toml:");
    expect_contains(error.expected, "nested at most 32 deep");
  }
  auto const error = only_error(parse("", {"model.hidden=" + std::string(100000, '[')}));
  expect_contains(error.found, "not a TOML value");
  good("# " + std::string(1000, '[') + "\n[run]\nname = '" + std::string(60, '[') + "'\nseed = 3\n");
}

TEST(Errors, FilesWithoutAnEndOrOfAnotherKindAreRefused) {
  expect_contains(only_error(parse_file("/dev/zero", {}, 1)).found, "/dev/zero is a pipe or a device");
  std::string const folder = testing::TempDir();
  std::string const large = folder + "/p3d_large_input.toml";
  std::ofstream(large) << std::string((1 << 20) + 1, '#');
  expect_contains(only_error(parse_file(large, {}, 1)).found, "is larger than 1.00 MiB");
  std::remove(large.c_str());
}

// Each sum or product of these overflowed: memory of -6,143 PiB was valid.
TEST(Errors, SizesWhoseProductsOverflowAreRefused) {
  auto error =
      only_error(parse("[model]\nhidden = 1048576\nheads = 1\nkv_heads = 1\nffn = 16777216\nlayers = 65536\n"));
  EXPECT_EQ(error.key, "model.hidden");
  expect_contains(error.expected, "a model of at most 256.00 PiB");
  expect_contains(error.fix, "lower model.hidden, model.layers, model.ffn or model.vocab_size");
  error =
      only_error(parse("[model]\nvocab_size = 16777216\nseq_len = 1048576\nposition = \"rope\"\n[batch]\nmicro = "
                       "1048576\n"));
  EXPECT_EQ(error.key, "batch.micro");
  error = only_error(parse("[run]\nsteps = 1000000000000\n[model]\nseq_len = 16777216\n[batch]\nglobal = 1024\n"));
  EXPECT_EQ(error.key, "run.steps");
  expect_contains(error.expected, "tokens in a run");
}

TEST(Errors, ATextOfAnotherKindIsNotAnsweredWithoutEnd) {
  std::string text = "[run]\n";
  for (int i = 0; i < 5000; ++i) text += "key" + std::to_string(i) + " = 1\n";
  EXPECT_EQ(parse(text).errors.size(), 100u);
}

TEST(Errors, NoErrorsNoText) { EXPECT_EQ(format({}), ""); }

TEST(LatentAttention, ItsKeysNeedARank) {
  for (std::string const key : {"q_lora_rank = 3", "v_head_dim = 3", "norm_eps = 0.01"}) {
    auto const name = key.substr(0, key.find(' '));
    auto const error = only_error(parse("[model.mla]\n" + key + "\n"));
    EXPECT_EQ(error.key, "model.mla." + name);
    expect_contains(error.expected, "a model.mla.kv_lora_rank");
    expect_contains(error.found, name + " " + key.substr(key.rfind(' ') + 1) + ", kv_lora_rank 0");
    expect_contains(error.fix, "remove model.mla." + name);
  }
}

}  // namespace
}  // namespace p3d::config::test
