// SPDX-License-Identifier: Apache-2.0
// Enum values by the names they have in the input.

#include <p3d/base/precisions.hpp>
#include <p3d/config/config.hpp>

#include <string>

namespace p3d::config {

char const* to_string(Precision v) {
  switch (v) {
    case Precision::fp64: return "fp64";
    case Precision::fp32: return "fp32";
    case Precision::bf16: return "bf16";
    case Precision::fp16: return "fp16";
  }
  return "?";
}

bool has_precision(Precision precision) { return P3D_16BIT != 0 || !is_16bit(precision); }

bool has_onednn() { return P3D_ONEDNN != 0; }
bool has_fused_attention() { return P3D_FUSED_ATTENTION != 0; }
bool has_nccl() { return P3D_NCCL != 0; }

std::int64_t bytes_of(Precision type) {
  switch (type) {
    case Precision::fp64: return 8;
    case Precision::fp32: return 4;
    case Precision::bf16:
    case Precision::fp16: break;
  }
  return 2;
}

char const* to_string(LossScaling v) {
  switch (v) {
    case LossScaling::none: return "none";
    case LossScaling::dynamic: return "dynamic";
    case LossScaling::fixed: return "fixed";
  }
  return "?";
}

char const* to_string(ContextOrder v) {
  switch (v) {
    case ContextOrder::zigzag: return "zigzag";
    case ContextOrder::striped: return "striped";
    case ContextOrder::contiguous: return "contiguous";
  }
  return "?";
}

char const* to_string(ContextExchange v) {
  switch (v) {
    case ContextExchange::automatic: return "auto";
    case ContextExchange::ring: return "ring";
    case ContextExchange::gather: return "gather";
    case ContextExchange::all_to_all: return "all_to_all";
    case ContextExchange::nested: return "nested";
  }
  return "?";
}

char const* to_string(Norm v) {
  switch (v) {
    case Norm::layernorm: return "layernorm";
    case Norm::rmsnorm: return "rmsnorm";
  }
  return "?";
}

char const* to_string(Position v) {
  switch (v) {
    case Position::learned: return "learned";
    case Position::rope: return "rope";
  }
  return "?";
}

char const* to_string(Activation v) {
  switch (v) {
    case Activation::gelu: return "gelu";
    case Activation::swiglu: return "swiglu";
  }
  return "?";
}

char const* to_string(LayerSplit v) {
  switch (v) {
    case LayerSplit::even: return "even";
    case LayerSplit::cost: return "cost";
    case LayerSplit::list: return "list";
  }
  return "?";
}

char const* to_string(RopeScaling v) {
  switch (v) {
    case RopeScaling::none: return "none";
    case RopeScaling::linear: return "linear";
    case RopeScaling::llama3: return "llama3";
  }
  return "?";
}

char const* to_string(Shuffle v) {
  switch (v) {
    case Shuffle::windows: return "windows";
    case Shuffle::documents: return "documents";
    case Shuffle::whole_documents: return "whole_documents";
    case Shuffle::megatron: return "megatron";
  }
  return "?";
}

char const* to_string(DataFormat v) {
  switch (v) {
    case DataFormat::megatron: return "megatron";
    case DataFormat::llmc: return "llmc";
    case DataFormat::npy: return "npy";
    case DataFormat::text: return "text";
    case DataFormat::synthetic: return "synthetic";
  }
  return "?";
}

char const* to_string(Dispatch v) {
  switch (v) {
    case Dispatch::all_to_all: return "all_to_all";
    case Dispatch::gather: return "gather";
  }
  return "?";
}
char const* to_string(RouterScore v) {
  switch (v) {
    case RouterScore::softmax: return "softmax";
    case RouterScore::sigmoid: return "sigmoid";
  }
  return "?";
}

char const* to_string(AuxLoss v) {
  switch (v) {
    case AuxLoss::none: return "none";
    case AuxLoss::sequence: return "sequence";
    case AuxLoss::global: return "global";
  }
  return "?";
}

char const* to_string(HostGemm v) {
  switch (v) {
    case HostGemm::automatic: return "auto";
    case HostGemm::blas: return "blas";
    case HostGemm::onednn: return "onednn";
  }
  return "?";
}

char const* to_string(AttentionKernel v) {
  switch (v) {
    case AttentionKernel::automatic: return "auto";
    case AttentionKernel::gemms: return "gemms";
    case AttentionKernel::fused: return "fused";
  }
  return "?";
}

char const* to_string(OptimizerType v) {
  switch (v) {
    case OptimizerType::adamw: return "adamw";
    case OptimizerType::sgd: return "sgd";
  }
  return "?";
}

char const* to_string(LrSchedule v) {
  switch (v) {
    case LrSchedule::cosine: return "cosine";
    case LrSchedule::linear: return "linear";
    case LrSchedule::constant: return "constant";
  }
  return "?";
}

char const* to_string(GpuAware v) {
  switch (v) {
    case GpuAware::automatic: return "auto";
    case GpuAware::on: return "on";
    case GpuAware::off: return "off";
  }
  return "?";
}

char const* to_string(Backend v) {
  switch (v) {
    case Backend::automatic: return "auto";
    case Backend::mpi: return "mpi";
    case Backend::nccl: return "nccl";
  }
  return "?";
}

char const* to_string(Shard v) {
  switch (v) {
    case Shard::none: return "none";
    case Shard::optimizer: return "optimizer";
    case Shard::gradients: return "gradients";
    case Shard::parameters: return "parameters";
  }
  return "?";
}

char const* to_string(MessageEvery v) {
  switch (v) {
    case MessageEvery::step: return "step";
    case MessageEvery::microbatch: return "microbatch";
  }
  return "?";
}

char const* to_string(OffloadTo v) {
  switch (v) {
    case OffloadTo::none: return "none";
    case OffloadTo::host: return "host";
    case OffloadTo::disk: return "disk";
  }
  return "?";
}

char const* to_string(Load v) {
  switch (v) {
    case Load::all: return "all";
    case Load::weights: return "weights";
  }
  return "?";
}

char const* to_string(OnError v) {
  switch (v) {
    case OnError::stop: return "stop";
    case OnError::go_on: return "continue";
  }
  return "?";
}

std::string to_string(Duration v) {
  if (v.seconds > 0 && v.seconds % 3600 == 0) return std::to_string(v.seconds / 3600) + "h";
  if (v.seconds > 0 && v.seconds % 60 == 0) return std::to_string(v.seconds / 60) + "min";
  return std::to_string(v.seconds) + "s";
}

}  // namespace p3d::config
