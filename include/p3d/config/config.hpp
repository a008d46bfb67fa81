// SPDX-License-Identifier: Apache-2.0
#pragma once
// The input as typed values. One struct per section of the TOML file, one member per key, with the key's name; the
// member's initial value is the key's default. Example: `hidden = 512` below [model] becomes config.model.hidden. What
// a key means to a user is in its help (src/config/keys*.cpp, p3d --help-input); the comments here say what a
// programmer needs besides.

#include <p3d/base/all_reduce.hpp>
#include <p3d/config/axes.hpp>
#include <p3d/config/model.hpp>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace p3d::config {

/// A policy of types (run.precision), or one type ([precision]).
enum class Precision { fp64, fp32, bf16, fp16 };
constexpr auto enum_names(Precision) { return std::array{"fp64", "fp32", "bf16", "fp16"}; }
/// The type to which GEMMs of fp32 numbers round what they multiply.
enum class Autocast { none, bf16, fp16 };
constexpr auto enum_names(Autocast) { return std::array{"none", "bf16", "fp16"}; }
/// How the factor on the loss is chosen: fixed is a number of the input.
enum class LossScaling { none, dynamic, fixed };
constexpr auto enum_names(LossScaling) { return std::array{"none", "dynamic"}; }
/// The kinds of training data; synthetic ones are made up without a file.
enum class DataFormat { text, megatron, llmc, npy, synthetic };
constexpr auto enum_names(DataFormat) { return std::array{"text", "megatron", "llmc", "npy", "synthetic"}; }
/// The order in which a new epoch takes the data: shuffled windows; shuffled documents, then their shuffled windows;
/// both as Megatron-LM does; shuffled whole documents.
enum class Shuffle { windows, documents, whole_documents, megatron };
constexpr auto enum_names(Shuffle) { return std::array{"windows", "documents", "whole_documents", "megatron"}; }
enum class OptimizerType { adamw, sgd };
constexpr auto enum_names(OptimizerType) { return std::array{"adamw", "sgd"}; }
enum class LrSchedule { cosine, linear, constant };
constexpr auto enum_names(LrSchedule) { return std::array{"cosine", "linear", "constant"}; }
/// The choice whether MPI is given the addresses of GPU memory.
enum class GpuAware { automatic, on, off };
constexpr auto enum_names(GpuAware) { return std::array{"auto", "on", "off"}; }
/// The library that carries collectives of GPU memory.
enum class Backend { automatic, mpi, nccl };
constexpr auto enum_names(Backend) { return std::array{"auto", "mpi", "nccl"}; }
/// The state that is divided over the ranks that hold the same weights (ZeRO stages 0 to 3, Rajbhandari et al., arXiv
/// 1910.02054). Each value includes the ones before it: gradients divides the optimizer's state too.
enum class Shard { none, optimizer, gradients, parameters };
constexpr auto enum_names(Shard) { return std::array{"none", "optimizer", "gradients", "parameters"}; }
/// How often a message of all weights or gradients is sent.
enum class MessageEvery { step, microbatch };
constexpr auto enum_names(MessageEvery) { return std::array{"step", "microbatch"}; }
/// The rule that says which tokens of a sequence a rank of cp has.
enum class ContextOrder { zigzag, striped, contiguous };
constexpr auto enum_names(ContextOrder) { return std::array{"zigzag", "striped", "contiguous"}; }
/// How attention brings together the tokens that cp divides. nested: an all-to-all among neighbours, a ring over their
/// groups.
enum class ContextExchange { automatic, ring, gather, all_to_all, nested };
constexpr auto enum_names(ContextExchange) { return std::array{"auto", "ring", "gather", "all_to_all"}; }
/// The memory to which data are offloaded that are not needed now.
enum class OffloadTo { none, host, disk };
constexpr auto enum_names(OffloadTo) { return std::array{"none", "host", "disk"}; }
/// The activations that forward discards and that are made again for backward.
enum class Recompute { none, full, automatic, list };
constexpr auto enum_names(Recompute) { return std::array{"none", "full", "auto"}; }
/// Sizes of the mesh are given, or chosen by predicted time.
enum class LayoutChoice { given, automatic };
constexpr auto enum_names(LayoutChoice) { return std::array{"given", "auto"}; }
/// A generation of kernels that predictions know (plan/kernel_generation.hpp); "auto": the one of the cluster file.
enum class PlannedKernels { automatic, flash, unfused, fused, fp8, host };
constexpr auto enum_names(PlannedKernels) { return std::array{"auto", "flash", "unfused", "fused", "fp8", "host"}; }
using base::AllReduce;
/// The library whose fp32 GEMMs the host runs.
enum class HostGemm { automatic, blas, onednn };
constexpr auto enum_names(HostGemm) { return std::array{"auto", "blas", "onednn"}; }
/// Attention as GEMMs with a softmax between them, or as one kernel of a vendor's library.
enum class AttentionKernel { automatic, gemms, fused };
constexpr auto enum_names(AttentionKernel) { return std::array{"auto", "gemms", "fused"}; }

/// A wall time that is written as "90s", "30min" or "2h".
struct Duration {
  std::int64_t seconds = 0;
  bool operator==(Duration const&) const = default;
};

/// [run]
struct Run {
  std::string name = "run";
  std::uint64_t seed = 1;
  std::int64_t steps = 100;
  std::string output_dir = "runs/run";  ///< default: runs/<run.name>
  std::int64_t log_every = 10;          ///< steps between plain log lines
  std::int64_t eval_every = 0;          ///< steps between validations; 0: only at the end
  std::int64_t eval_batches = 4;        ///< global batches per validation; 0: no validation
  Precision precision = Precision::fp32;
  bool deterministic =
      true;             ///< every repetition gives the same bits: sums have an order that depends on the layout alone
  bool trace = false;   ///< record the times of every schedule action; trace.json, trace.svg, costs.csv
  bool ceiling = true;  ///< measure the speed of the model's GEMMs at the start
  Duration time_limit;  ///< wall time of this start of the program; zero: Slurm's end time, if known
  double file_timeout_s = 1800.0;  ///< a file operation longer than this ends the run; other ranks wait meanwhile
  bool operator==(Run const&) const = default;
};

/// The place of the token embedding's rows: they are divided over tp, or each rank of tp has all of them.
enum class Embedding { sharded, replicated };
constexpr auto enum_names(Embedding) { return std::array{"sharded", "replicated"}; }

/// [parallel]: the size of every axis (the members of PerAxis), and the keys below.
struct Parallel : PerAxis {
  std::string order = names(dense_axes, "-");  ///< axes, fastest (neighbouring ranks) first
  bool sequence = false;  ///< tokens are divided over tp where weights are not (Korthikanti et al., arXiv 2205.05198)
  Embedding embedding = Embedding::sharded;
  /// The sizes are those of the input, or p3d chooses them by [plan].
  LayoutChoice layout = LayoutChoice::given;
  bool operator==(Parallel const&) const = default;
};

/// [context]: how the tokens of a sequence are divided over parallel.cp (layout/context.hpp).
struct Context {
  ContextOrder order = ContextOrder::zigzag;  ///< default: striped where data.pack is set
  ContextExchange exchange = ContextExchange::automatic;
  int all_to_all = 1;  ///< ranks of an all-to-all; only for ContextExchange::nested
  int ring = 1;        ///< groups in the ring; only for ContextExchange::nested
  bool operator==(Context const&) const = default;
};

/// [batch]: `micro` sequences make a microbatch. Of `global` (sequences per step) and `microbatches` (per rank and
/// step) one is given and the other one derived: global = micro * microbatches * dp. With neither, microbatches =
/// parallel.pp.
struct Batch {
  std::int64_t micro = 1;
  std::int64_t global = 1;
  std::int64_t microbatches = 1;
  /// A sample is a document, or a part of model.seq_len tokens; samples are not cut to one length.
  bool variable = false;
  bool operator==(Batch const&) const = default;
};

/// How layers are dealt to stages.
enum class LayerSplit { even, cost, list };
constexpr auto enum_names(LayerSplit) { return std::array{"even", "cost"}; }

/// Whether the pipeline empties at the end of a step where gradients are late. automatic: where it has to.
enum class Flush { automatic, always, never };
constexpr auto enum_names(Flush) { return std::array{"auto", "always", "never"}; }

/// How messages between pipeline stages start: each by itself; a send and the receive beside it in one call where both
/// have the same peer; or all messages of a step in one neighbourhood exchange.
enum class P2p { separate, batched, ring };
constexpr auto enum_names(P2p) { return std::array{"separate", "batched", "ring"}; }

/// [pipeline]; layers_per_stage is "even", "cost" or a list of integers.
struct Pipeline {
  std::string schedule = "1f1b";  ///< the name of a generator of room schedule, or "file", or "auto"
  int virtual_stages = 0;         ///< stages per pipeline rank; 0: the schedule's own number
  int microbatch_group_size = 0;  ///< only for interleaved_1f1b; 0: parallel.pp
  int lookahead = 1;  ///< a slot is taken so many compute actions early, so that its message travels meanwhile
  bool vocab_parallel = false;  ///< embedding and output layer are divided over all pipeline ranks
  /// Microbatches whose weight gradients the last stage may compute when the pipeline empties; 0: none.
  int weight_deferral_limit = 0;
  std::string file;  ///< path of a schedule, only for schedule "file". Relative to the input file's folder
  Flush flush = Flush::automatic;  ///< whether the pipeline empties between steps where gradients are late
  /// Updates by which the gradients of neighbouring layers are late, which the list divides in equal parts; empty:
  /// those of schedule "pipedream", else optimizer.delay for all.
  std::vector<int> delays;
  P2p p2p = P2p::separate;  ///< how messages between stages start
  double max_memory = 0.0;  ///< only for schedule "auto": GiB that a rank may use; 0: any
  LayerSplit layer_split = LayerSplit::even;
  std::vector<int> layers_per_stage;  ///< only for LayerSplit::list
  bool operator==(Pipeline const&) const = default;
};

/// One table of [[data.source]], a source of a blend.
struct DataSource {
  std::string path;     ///< path of one file or folder, as in data.path
  double weight = 1.0;  ///< its share of the samples is this divided by the sum of all weights
  bool operator==(DataSource const&) const = default;
};

/// [data]
struct Data {
  DataFormat format = DataFormat::text;
  std::vector<std::string> path;    ///< file(s) or folder(s); a string or a list. Relative to the input file's folder
  std::vector<DataSource> source;   ///< [[data.source]]: several sources in given shares; instead of `path`
  std::string tokenizer = "bytes";  ///< "bytes", or a file: tokenizer.json, *.tiktoken, *.model
  std::string tokenizer_pattern;    ///< how a *.tiktoken file, which does not say it, splits text
  Shuffle shuffle = Shuffle::windows;
  std::int64_t eod_token = -1;   ///< token that ends a document; -1: none
  bool eod_mask_loss = false;    ///< the token that follows the end of a document is not to be predicted
  bool pack = false;             ///< the documents of a sample do not see each other
  bool reset_positions = false;  ///< positions begin anew after the end of a document
  /// Fraction of the tokens (of files with documents: of these), at the end, that are for validation.
  double split = 0.1;
  bool operator==(Data const&) const = default;
};

/// [optimizer]
struct Optimizer {
  static constexpr std::int64_t most_delay = 15;

  OptimizerType type = OptimizerType::adamw;
  double lr = 1e-3;
  double min_lr = 1e-4;  ///< learning rate of the last step; default: lr / 10
  LrSchedule lr_schedule = LrSchedule::cosine;
  std::int64_t warmup_steps = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double grad_clip = 1.0;        ///< largest global norm of the gradient; 0: no clipping
  bool post_validation = false;  ///< the next step begins before the norm is known; a wrong update is taken back
  /// Updates by which a gradient is late, where these are the same for all layers: 1 takes it at the weights before the
  /// newest.
  std::int64_t delay = 0;
  bool operator==(Optimizer const&) const = default;
};

/// The way in which messages over tp are hidden: by nothing; by GEMMs of weight gradients and of other operands that
/// need no message (bulk); also the GEMM of a row-parallel linear, in token chunks; by these and by another
/// microbatch. automatic: chunks where messages are long, two or by a trial.
enum class OverlapTp { automatic, none, bulk, chunks, microbatch };
constexpr auto enum_names(OverlapTp) { return std::array{"auto", "none", "bulk", "chunks", "microbatch"}; }

/// The form in which the gradients of a worker travel over dp (layout/compression.hpp): all digits; 8 bits and a scale
/// for each block of a line; the numbers that changed most in each line; two thin factors. The last two remember the
/// rest.
enum class Compress { none, int8, topk, powersgd };
constexpr auto enum_names(Compress) { return std::array{"none", "int8", "topk", "powersgd"}; }

/// [comm]
struct Comm {
  double timeout_s = 600.0;                    ///< a wait longer than this ends the run with a report
  double bucket_mb = 25.0;                     ///< gradients are reduced over dp in buckets of at least this many MiB
  std::int64_t bucket_layers = 0;              ///< layers whose gradients are reduced in one bucket; 0: by bucket_mb
  AllReduce allreduce = AllReduce::automatic;  ///< algorithm of all-reduces
  GpuAware gpu_aware = GpuAware::automatic;    ///< MPI is given GPU memory; off: copies in pinned host memory
  Backend backend = Backend::automatic;        ///< library that carries collectives of GPU memory
  AxisSet backend_axes = stage_axes;  ///< axes along which NCCL may be used; MPI carries messages along the others
  OverlapTp overlap_tp = OverlapTp::automatic;  ///< how messages over tp are hidden
  bool overlap_experts =
      false;  ///< forwards and backwards interleave where rows travel to experts (Config::interleaves)
  Compress compress = Compress::none;  ///< how gradients are compressed on their way over dp; the answer depends on it
  /// Workers, the fixed parts of a global batch whose gradients are compressed each on their own; the answer depends on
  /// their number. 0: nothing is compressed.
  int workers = 0;
  int powersgd_rank = 4;  ///< columns of each factor, only with Compress::powersgd
  double topk = 0.01;     ///< share of a line's numbers that travels, only with Compress::topk
  bool operator==(Comm const&) const = default;
};

/// The operations of a memory.recompute list, whose outputs may be discarded.
struct RecomputedOps {
  bool norm = false, activation = false, rotary = false, attention = false;
  bool any() const { return norm || activation || rotary || attention; }
  bool operator==(RecomputedOps const&) const = default;
};

/// [linalg]
struct Linalg {
  /// automatic: with run.deterministic a fixed rule (linalg::onednn_is_usual), else the quicker one of a trial, by
  /// shape.
  HostGemm host = HostGemm::automatic;
  /// How GPUs compute attention. automatic: a vendor's kernel where it can and gives the same numbers
  /// (report::choose_attention).
  AttentionKernel attention = AttentionKernel::automatic;
  bool tf32 = false;  ///< on NVIDIA's GPUs: fp32 GEMMs round factors to 10 bits of mantissa, with sums in fp32
  bool operator==(Linalg const&) const = default;
};

/// [memory]: where bytes live, and how long. No key changes a bit of a result but two: reduce = "microbatch" sums
/// gradients in another order, and preset (from "low" on, with tp above 1) sets parallel.sequence, which does so too.
/// limit may choose that reduce, unless the input gives another one.
struct Memory {
  std::string preset;  ///< one word that stands for several other keys, which are set accordingly; "": none
  double limit = 0.0;  ///< GiB that a rank may use; 0: any
  /// Not a key: the members say which keys memory.limit may choose, because the input does not set them. Two inputs
  /// that differ in it alone are equal.
  struct Free {
    bool recompute = false, shard = false, gather = false, reduce = false, offload_optimizer = false,
         offload_parameters = false, offload_activations = false;
    bool operator==(Free const&) const { return true; }
  } free;
  Recompute recompute = Recompute::none;
  RecomputedOps recompute_ops;                   ///< only for Recompute::list
  std::int64_t recompute_every = 1;              ///< only for Recompute::full: every n-th layer of a stage
  std::int64_t recompute_layers = 0;             ///< only for full: the first n layers of each stage; 0: all
  std::int64_t recompute_group = 1;              ///< only for full: so many layers in a row keep one input
  std::int64_t recompute_microbatches_kept = 0;  ///< only for full: so many microbatches in flight keep everything
  bool recompute_communication = true;           ///< all-reduces over tp are made again; false: their results are kept
  bool share_saved_inputs = false;               ///< only for full: kept inputs are divided over tp
  Shard shard = Shard::none;
  std::int64_t shard_over = 0;    ///< number of neighbouring replicas that divide the state; 0: all
  std::int64_t shard_layers = 1;  ///< number of layers whose weights and gradients come and go at once
  /// Weights are gathered so often; only for Shard::parameters and offload_parameters.
  MessageEvery gather = MessageEvery::step;
  MessageEvery reduce = MessageEvery::step;  ///< gradients are summed over the replicas so often
  OffloadTo offload_optimizer = OffloadTo::none;
  OffloadTo offload_parameters = OffloadTo::none;
  OffloadTo offload_activations = OffloadTo::none;
  std::string offload_dir;  ///< folder for OffloadTo::disk; "": $TMPDIR, or /tmp

  /// True when replicas divide some of the state.
  bool divides() const { return shard != Shard::none; }
  bool offloads_parameters() const { return offload_parameters != OffloadTo::none; }
  /// True when whole weights are in memory only while they are used.
  bool moves_weights() const { return shard == Shard::parameters || offloads_parameters(); }
  bool operator==(Memory const&) const = default;
};

/// [sample]: text drawn from the model at the end of the run.
struct Sample {
  std::int64_t tokens = 0;  ///< 0: none
  std::string prompt = "The ";
  double temperature = 0.8;       ///< 0: the most likely token
  std::int64_t top_k = 0;         ///< only the k most likely tokens; 0: all
  double top_p = 1.0;             ///< only the most likely tokens whose probabilities sum to this
  std::vector<std::string> stop;  ///< a sample ends at any of these texts
  bool operator==(Sample const&) const = default;
};

/// [timers]: times of a step in the log and in timers.csv, over ranks.
struct Timers {
  std::int64_t level = 0;  ///< 0: none; 1: phases of a step, evaluation, checkpoints; 2: kinds of actions too
  bool barrier = false;    ///< ranks wait for each other before each step
  bool operator==(Timers const&) const = default;
};

/// The part of a checkpoint that a run takes: everything, or only the parameters (fine-tuning: step 0, new moments,
/// other data).
enum class Load { all, weights };
constexpr auto enum_names(Load) { return std::array{"all", "weights"}; }
/// How a run reacts when a checkpoint could not be written.
enum class OnError { stop, go_on };
constexpr auto enum_names(OnError) { return std::array{"stop", "continue"}; }

/// [checkpoint]: files dir/<run.name>-<step>.h5.
struct Checkpoint {
  static constexpr std::int64_t only_at_end = -1;
  std::string dir = "runs/run/checkpoints";  ///< default: <run.output_dir>/checkpoints
  /// Number of steps between checkpoints, besides the ones at the end and before a stop. only_at_end (every = "end"):
  /// no others; 0, without `period`: no checkpoints at all.
  std::int64_t every = only_at_end;
  Duration period;              ///< wall time between checkpoints, of every = "30min"; `every` is then 0
  std::int64_t keep = 2;        ///< number of newest valid checkpoints that are kept; 0: all
  std::string resume = "auto";  ///< "auto": the newest valid checkpoint in dir, if any; "none"; or a file
  Load load = Load::all;
  bool at_start = false;        ///< a checkpoint of step 0 is written too
  bool async = true;            ///< write while training goes on, from a copy in host memory
  std::int64_t buffer_mb = 64;  ///< MiB of a rank's buffer while writing or reading
  OnError on_error = OnError::stop;

  /// True when any checkpoints are written.
  bool on() const { return every != 0 || period.seconds > 0; }
  /// True when checkpoints are written between the steps too, so that with `async` training goes on meanwhile.
  bool between_steps() const { return every > 0 || period.seconds > 0; }
  bool operator==(Checkpoint const&) const = default;
};

/// [precision]: types that differ from the policy that run.precision names, and options that 16 bits need.
struct PrecisionOptions {
  /// Weight gradients, as they are added up over microbatches; default: fp64 for fp64, else fp32.
  Precision gradients = Precision::fp32;
  Precision moments = Precision::fp32;    ///< moments of the optimizer; default: fp64 for fp64, else fp32
  Precision reduction = Precision::fp32;  ///< gradients on their way between replicas; default: as `gradients`
  Precision pipeline = Precision::fp32;   ///< activations on their way between stages; default: run.precision
  /// With run.precision = "fp32": GEMMs, those of attention among them, round what they multiply to 16 bits. Sums,
  /// results, weights and gradients stay in fp32.
  Autocast autocast = Autocast::none;
  LossScaling loss_scaling = LossScaling::none;  ///< precision.loss_scale; default: dynamic for fp16, else none
  double loss_scale = 1.0;                       ///< factor on the loss; only for LossScaling::fixed
  double loss_scale_initial = 65536.0;
  double loss_scale_growth = 2.0;
  double loss_scale_backoff = 0.5;
  std::int64_t loss_scale_interval = 1000;  ///< steps in a row without overflow, after which the scale grows
  std::int64_t loss_scale_hysteresis = 2;   ///< number of overflows, since the scale last grew, from which on it falls
  double loss_scale_floor = 1.0;
  bool stochastic_rounding = false;  ///< weights are rounded to bf16 up or down at random
  bool operator==(PrecisionOptions const&) const = default;
};

/// [plan]: the machine for which steps are predicted.
struct Planning {
  std::string cluster;  ///< file that describes the machine (cluster.hpp); "": steps are not predicted
  PlannedKernels kernels = PlannedKernels::automatic;
  /// Not a key: the keys of a layout that the input sets, which parallel.layout = "auto" keeps. Two inputs that differ
  /// in it alone are equal.
  struct Given {
    std::vector<std::string> keys;
    bool operator==(Given const&) const { return true; }
  } given;
  bool operator==(Planning const&) const = default;
};

/// The complete input of a run, one member per section.
struct Config {
  Run run;
  Model model;
  Parallel parallel;
  Context context;
  Batch batch;
  Pipeline pipeline;
  Data data;
  Optimizer optimizer;
  Comm comm;
  PrecisionOptions precision;
  Linalg linalg;
  Memory memory;
  Sample sample;
  Timers timers;
  Checkpoint checkpoint;
  Planning plan;

  /// Number of ranks of the mesh.
  int num_ranks() const { return static_cast<int>(parallel.product(dense_axes)); }
  /// True when each pipeline rank has some rows of the embedding and of the output layer.
  bool divides_vocabulary() const { return pipeline.vocab_parallel && parallel.pp > 1; }
  /// The parts into which the rows of the embedding and of the head are cut: over tp, and over the pipeline where the
  /// vocabulary is divided over it. Rank (p, t) of pp x tp has part (p tp + t) % parts.
  int vocabulary_parts() const { return parallel.tp * (divides_vocabulary() ? parallel.pp : 1); }
  /// True when the first and the last pipeline rank have an embedding each, of one parameter, whose gradients are
  /// summed.
  bool ranks_share_embedding() const {
    return parallel.pp > 1 && model.last_reads_embedding() && !divides_vocabulary();
  }
  /// True when another microbatch computes while one waits for ranks of tp.
  bool interleaves_over_tp() const { return comm.overlap_tp == OverlapTp::microbatch && parallel.tp > 1; }
  /// True when a forward and a backward of different microbatches interleave: either computes while the other waits.
  bool interleaves() const { return comm.overlap_experts || interleaves_over_tp(); }
  /// True when gradients are compressed on their way over dp.
  bool compresses() const { return comm.compress != Compress::none; }
  /// The workers of a replica, whose gradients it computes one after the other: 1 where nothing is compressed.
  int workers_of_replica() const { return compresses() ? comm.workers / parallel.dp : 1; }
  /// Updates by which the gradients of a layer are late: pipeline.delays, or those of schedule "pipedream", which
  /// follow from the stages, or optimizer.delay. -1 is the embedding, which goes with the first part of a list, and
  /// with the first stage; what comes behind the last layer goes with the last.
  std::int64_t delay_of(std::int64_t layer) const;
  /// The largest of them.
  std::int64_t latest_delay() const;
  /// True when gradients of some layers are later than those of others.
  bool mixes_delays() const;
  /// [optimizer] with latest_delay() as its delay: how many versions of the weights are kept.
  Optimizer optimizer_with_versions() const;
  /// True when ranks of tp hold all rows of the token embedding each.
  bool replicates_embedding() const { return parallel.embedding == Embedding::replicated && parallel.tp > 1; }
  bool operator==(Config const&) const = default;
};

/// True when this build has the policy of types (P3D_16BIT).
bool has_precision(Precision precision);
/// True when this build has oneDNN.
bool has_onednn();
/// True when this build has attention as one kernel of a vendor's library (kernels/fused_attention.hpp).
bool has_fused_attention();
/// True when this build has NCCL or RCCL.
bool has_nccl();
/// Bytes of one number of a type.
std::int64_t bytes_of(Precision type);
/// True when the type is bf16 or fp16: weights and activations then have 16 bits, and the optimizer keeps fp32 ones.
constexpr bool is_16bit(Precision precision) { return precision == Precision::bf16 || precision == Precision::fp16; }

/// The type of what GEMMs multiply: run.precision, or that of precision.autocast.
constexpr Precision operand_precision(Config const& config) {
  switch (config.precision.autocast) {
    case Autocast::bf16: return Precision::bf16;
    case Autocast::fp16: return Precision::fp16;
    case Autocast::none: break;
  }
  return config.run.precision;
}
/// True where gradients may underflow, which a factor on the loss helps against.
constexpr bool computes_in_fp16(Config const& config) { return operand_precision(config) == Precision::fp16; }

/// The updates by which layers are late, in the fewest numbers that pipeline.delays takes: "[3, 2, 1, 0]".
std::string delays_text(Config const& config);

using base::to_string;  ///< names of enum values
/// The duration in the largest unit that divides it: "90s", "30min", "2h"; "0s".
std::string to_string(Duration);

}  // namespace p3d::config
