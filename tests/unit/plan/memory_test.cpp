// SPDX-License-Identifier: Apache-2.0
#include "paper_models.hpp"

#include <p3d/plan/memory.hpp>

#include <gtest/gtest.h>

namespace {
using namespace p3d;

plan::MemoryPrediction predict(config::Config const& c, int pipeline_rank) {
  auto const table = layout::make_param_table(c);
  return plan::predict_state_memory(c, table, layout::make_stage_map(c), pipeline_rank);
}

TEST(Memory, SixteenBytesPerParameterInFp32WithAdamw) {
  auto c = test::paper_rows()[0].config();                            // one rank holds everything
  auto const numbers = layout::make_param_table(c).num_parameters();  // every size is a multiple of the alignment
  EXPECT_EQ(predict(c, 0).total(), 16 * numbers);
  EXPECT_EQ(predict(c, 0), (plan::MemoryPrediction{4 * numbers, 4 * numbers, 8 * numbers, 0, 0}));
  c.run.precision = config::Precision::fp64;
  EXPECT_EQ(predict(c, 0).total(), 32 * numbers);
  c.optimizer.type = config::OptimizerType::sgd;
  EXPECT_EQ(predict(c, 0), (plan::MemoryPrediction{8 * numbers, 8 * numbers, 0, 0, 0}));
}

TEST(Memory, ALibrarysAttentionHasNoneWhereItCannotBeTaken) {
  auto c = test::paper_rows()[0].config();
  c.run.precision = config::Precision::bf16;
  ASSERT_EQ(plan::no_fused_attention(c), "");
  EXPECT_GT(plan::fused_attention_bytes(c), 0);
  c.model.attention_softcap = 50.0;
  c.data.pack = true;
  EXPECT_EQ(plan::no_fused_attention(c), "");
  c.model.dropout = 0.1;
  EXPECT_EQ(plan::no_fused_attention(c), "it draws no dropout as p3d does");
  EXPECT_EQ(plan::fused_attention_bytes(c), 0);
}

// 16 bits: weights 2, gradients 4, master weights 4 and moments 4 + 4 (Megatron's 18).
TEST(Memory, EighteenBytesPerParameterIn16Bits) {
  auto c = test::paper_rows()[0].config();
  auto const numbers = layout::make_param_table(c).num_parameters();
  for (auto precision : {config::Precision::bf16, config::Precision::fp16}) {
    c.run.precision = precision;
    EXPECT_EQ(predict(c, 0), (plan::MemoryPrediction{2 * numbers, 4 * numbers, 12 * numbers, 0, 0}));
  }
  c.run.precision = config::Precision::bf16;
  c.precision.gradients = config::Precision::bf16;
  EXPECT_EQ(predict(c, 0), (plan::MemoryPrediction{2 * numbers, 2 * numbers, 12 * numbers, 0, 0}));
  c.precision.gradients = config::Precision::fp32;
  c.precision.moments = config::Precision::bf16;
  EXPECT_EQ(predict(c, 0), (plan::MemoryPrediction{2 * numbers, 4 * numbers, 8 * numbers, 0, 0}));
  c.run.precision = config::Precision::fp32;
  EXPECT_EQ(predict(c, 0), (plan::MemoryPrediction{4 * numbers, 4 * numbers, 4 * numbers, 0, 0}));
  c.precision.reduction = config::Precision::bf16;
  c.parallel.dp = 2;
  EXPECT_EQ(predict(c, 0), (plan::MemoryPrediction{4 * numbers, 6 * numbers, 4 * numbers, 0, 0}));
  c.checkpoint.every = 10;  // holds fp32, whatever the moments are
  c.parallel.dp = 1;
  EXPECT_EQ(predict(c, 0).checkpoint_copy, 12 * numbers);
}

// Master weights and moments, 12 bytes, and weights, 2 bytes, each where its key says.
TEST(Memory, WhatIsInHostMemoryIsCountedByItsKey) {
  using config::OffloadTo;
  auto c = test::paper_rows()[0].config();
  auto const numbers = layout::make_param_table(c).num_parameters();
  c.run.precision = config::Precision::bf16;
  auto const on_host = [&](OffloadTo optimizer, OffloadTo parameters) {
    c.memory.offload_optimizer = optimizer;
    c.memory.offload_parameters = parameters;
    return predict(c, 0).offloaded_to_host / numbers;
  };
  EXPECT_EQ(on_host(OffloadTo::none, OffloadTo::none), 0);
  EXPECT_EQ(on_host(OffloadTo::disk, OffloadTo::disk), 0);
  EXPECT_EQ(on_host(OffloadTo::host, OffloadTo::disk), 12);
  EXPECT_EQ(on_host(OffloadTo::disk, OffloadTo::host), 2);
  EXPECT_EQ(on_host(OffloadTo::host, OffloadTo::host), 14);
}

TEST(Memory, DataParallelismDividesNothingAndPipelineRanksDiffer) {
  auto c = test::paper_rows()[5].config();
  auto const first = predict(c, 0), second = predict(c, 1), third = predict(c, 2), last = predict(c, 3);
  EXPECT_EQ(second, third);
  EXPECT_GT(first.params, last.params);   // positions against a final norm
  EXPECT_GT(last.params, second.params);  // the tied copy
  c.parallel.dp = 1;
  EXPECT_EQ(predict(c, 0), first);
}

// Parameters and two moments, divided over the replicas: those of tp as well for what tp does not divide.
TEST(Memory, TheCopyOfACheckpointIsDividedOverReplicas) {
  auto c = test::paper_rows()[0].config();
  c.parallel.dp = 1;
  auto const bytes = 12.0 * static_cast<double>(layout::make_param_table(c).num_parameters());
  c.checkpoint.every = 0;
  EXPECT_EQ(predict(c, 0).checkpoint_copy, 0);
  c.checkpoint.every = config::Checkpoint::only_at_end;  // training waits anyway
  EXPECT_EQ(predict(c, 0).checkpoint_copy, 0);
  c.checkpoint.every = 10;
  EXPECT_EQ(static_cast<double>(predict(c, 0).checkpoint_copy), bytes);
  EXPECT_EQ(predict(c, 0).total(), 16 * layout::make_param_table(c).num_parameters());
  c.parallel.dp = 4;
  EXPECT_NEAR(static_cast<double>(predict(c, 0).checkpoint_copy), bytes / 4, 0.01 * bytes);
  EXPECT_GE(static_cast<double>(predict(c, 0).checkpoint_copy), bytes / 4);
  c.checkpoint.async = false;
  EXPECT_EQ(predict(c, 0).checkpoint_copy, 0);
}

TEST(Memory, TableGroupsEqualNeighbours) {
  plan::MemoryPrediction edge{1024, 1024, 2048, 512, 100}, middle{1024, 1024, 2048, 0, 0};
  edge.libraries = middle.libraries = 2048;
  EXPECT_EQ(edge.total(), 6756);
  EXPECT_EQ(plan::format({edge, middle, middle, middle, edge}),
            "pp rank      weights   gradients   optimizer activations   workspace   libraries       total\n"
            "0           1.00 KiB    1.00 KiB    2.00 KiB       512 B       100 B    2.00 KiB    6.60 KiB\n"
            "1-3         1.00 KiB    1.00 KiB    2.00 KiB         0 B         0 B    2.00 KiB    6.00 KiB\n"
            "4           1.00 KiB    1.00 KiB    2.00 KiB       512 B       100 B    2.00 KiB    6.60 KiB\n");
}

}  // namespace
