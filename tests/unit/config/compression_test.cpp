// SPDX-License-Identifier: Apache-2.0
// Rules of comm.compress: the number of workers, and what gradients must be to be compressed.

#include "support.hpp"

namespace p3d::config::test {
namespace {

ParseResult with(std::vector<std::string> more, int ranks = 0) {
  more.insert(more.begin(), {"comm.compress=int8", "comm.workers=4", "batch.global=8"});
  return parse("", more, ranks);
}

TEST(Compression, IsRead) {
  auto const c = with({"parallel.dp=2", "comm.compress=topk", "comm.topk=0.02"}, 2).config;
  ASSERT_TRUE(c);
  EXPECT_EQ(c->comm.compress, Compress::topk);
  EXPECT_EQ(c->comm.topk, 0.02);
  EXPECT_EQ(c->workers_of_replica(), 2);
  EXPECT_EQ(parse("", {}, 0).config->workers_of_replica(), 1);
}

struct Refused {
  std::vector<std::string> words;
  char const *key, *found, *fix;
  int ranks = 0;
};

TEST(Compression, SaysWhatGoes) {
  for (Refused const& r : {
           Refused{{"comm.workers=0"}, "comm.compress", "none", "set comm.workers to"},
           {{"comm.compress=none"}, "comm.workers", "workers 4", "remove comm.workers"},
           {{"parallel.dp=4", "comm.workers=6", "batch.global=24"}, "comm.workers", "workers 6, dp 4", "to 8", 4},
           {{"batch.global=6"}, "comm.workers", "6 microbatches", "multiple of 4"},
           {{"batch.micro=4"}, "comm.workers", "2 microbatches", "multiple of 16"},
           {{"comm.topk=0.5"}, "comm.topk", "int8", "\"topk\""},
           {{"comm.powersgd_rank=2"}, "comm.powersgd_rank", "int8", "\"powersgd\""},
           {{"comm.compress=powersgd", "run.precision=fp16"}, "precision.loss_scale", "dynamic", "to \"none\""},
           {{"model.moe.experts=4"}, "model.moe.experts", "4 experts", "comm.compress to \"none\""},
           {{"memory.shard=gradients", "parallel.dp=2"}, "memory.shard", "gradients", "comm.compress to \"none\"", 2},
           {{"precision.reduction=bf16"}, "precision.reduction", "bf16", "comm.compress to \"none\""},
           {{"parallel.pp=2", "model.tied_embeddings=true"},
            "model.tied_embeddings",
            "2 pipeline ranks",
            "comm.compress to \"none\"",
            2},
       }) {
    auto const error = only_error(with(r.words, r.ranks));
    EXPECT_EQ(error.key, r.key);
    expect_contains(error.found, r.found);
    expect_contains(error.fix, r.fix);
  }
  EXPECT_TRUE(with({"parallel.pp=2", "model.tied_embeddings=true", "pipeline.vocab_parallel=true"}, 2).config);
  EXPECT_TRUE(with({"memory.shard=optimizer", "parallel.dp=2"}, 2).config);
}

}  // namespace
}  // namespace p3d::config::test
