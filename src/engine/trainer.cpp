// SPDX-License-Identifier: Apache-2.0
#include "policy_check.hpp"
#include "trainer_state.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/timer.hpp>
#include <p3d/comm/agree.hpp>
#include <p3d/comm/wait.hpp>
#include <p3d/device/guard.hpp>
#include <p3d/engine/backend.hpp>
#include <p3d/engine/memory_limits.hpp>
#include <p3d/kernels/elementwise.hpp>
#include <p3d/optim/lr_schedule.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

namespace p3d::engine {

namespace {

std::vector<std::string> axis_names(layout::AxisSet axes) {
  std::vector<std::string> names;
  for (auto a : axes.list()) names.emplace_back(layout::name(a));
  return names;
}

comm::MeshShape mesh_shape(layout::RankGrid const& grid) {
  comm::MeshShape shape;
  for (auto const& atom : grid.atoms()) shape.dimensions.push_back({atom.name, atom.size});
  auto axes = grid.order();
  for (auto a : layout::expert_axes.list()) axes.push_back(a);
  for (auto a : axes) {
    auto& axis = shape.axes.emplace_back(comm::MeshShape::NamedAxis{layout::name(a), {}});
    for (std::size_t i = 0; i < grid.atoms().size(); ++i) {
      if (grid.atoms()[i].axes.has(a)) axis.dimensions.push_back(i);
    }
  }
  return shape;
}

std::vector<std::vector<std::string>> mesh_sets(RunPlan const& plan, bool divided) {
  std::vector<std::vector<std::string>> sets;
  for (auto set : communicator_sets(plan.table, plan.grid.sizes(), divided)) sets.push_back(axis_names(set));
  return sets;
}

std::size_t arena_bytes(RunPlan const& plan, int pipeline_rank) {
  auto const& m = plan.memory_of(pipeline_rank);
  return static_cast<std::size_t>(m.activations + m.workspace);
}

// What ranks of a node shall be able to read of each other; only memory that the host reaches.

std::size_t flat_size(RunPlan const& plan, int stage, layout::PerAxis here) {
  return static_cast<std::size_t>(
      layout::StageParams(plan.table, plan.stages, stage, plan.grid.sizes(), here).flat_size());
}

template <class P>
std::size_t shared_gradient_bytes(config::Config const& c, RunPlan const& plan, int stage, layout::PerAxis here) {
  bool const tied = c.parallel.pp > 1 && c.model.tied_embeddings && !c.divides_vocabulary();
  bool const reduced = c.parallel.product(layout::token_axes) > 1 || tied;
  bool const pooled = c.memory.shard >= config::Shard::gradients;
  if (!device::host_reaches_views || !reduced || pooled) return 0;
  return flat_size(plan, stage, here) * sizeof(typename P::Gradient);
}

template <class P>
std::size_t shared_value_bytes(config::Config const& c, RunPlan const& plan, int stage, layout::PerAxis here) {
  if (!device::host_reaches_views || !c.memory.divides() || c.memory.moves_weights()) return 0;
  return flat_size(plan, stage, here) * sizeof(typename P::Storage);
}

std::size_t shared_pool_bytes(plan::Pool const& pool) {
  return device::host_reaches_views && pool.bytes > 0
             ? static_cast<std::size_t>(pool.bytes) + 2 * device::Arena::alignment
             : 0;
}

std::string offload_folder(config::Memory const& m) {
  if (!m.offload_dir.empty()) return m.offload_dir;
  auto const* const given = std::getenv("TMPDIR");
  return given != nullptr && *given != '\0' ? given : "/tmp";
}

device::SwapSettings swap_settings(config::Config const& c, std::int64_t bytes) {
  auto const folder = offload_folder(c.memory), work = "reads and writes of the swap file in " + folder;
  return {folder, bytes, c.run.file_timeout_s, [work] { comm::progress_at(work); }};
}

template <class T>
T* or_shared(T* pooled, comm::SharedBuffer const& memory) {
  return pooled != nullptr ? pooled : static_cast<T*>(memory.data());
}

std::size_t shared_activation_bytes(config::Config const& c, RunPlan const& plan, int pipeline_rank) {
  return device::host_reaches_views && c.parallel.tp > 1 ? arena_bytes(plan, pipeline_rank) + device::Arena::alignment
                                                         : 0;
}

}  // namespace

template <class P>
StageUnit<P>::StageUnit(config::Config const& c, RunPlan const& plan, int number, layout::PerAxis coordinates,
                        parallel::TensorParallel& tp, device::Arena& arena, model::StageScratch<P> scratch,
                        std::function<comm::Communicator&(layout::AxisSet)> const& communicator,
                        parallel::ReplicaGroups const& groups, ProviderFactory<P> const& provider,
                        typename model::Parameters<P>::Memory pooled, StageUnit const* lender)
    : gradients_memory(shared_gradient_bytes<P>(c, plan, number, coordinates)),
      values_memory(shared_value_bytes<P>(c, plan, number, coordinates)),
      params([&] {
        layout::StageParams layout(plan.table, plan.stages, number, plan.grid.sizes(), coordinates);
        auto shard = plan::state_shard(c, layout, coordinates);
        return model::Parameters<P>(tp.exec, std::move(layout), std::move(shard), c.memory.shard, c.run.seed,
                                    {.values = or_shared(pooled.values, values_memory),
                                     .grads = or_shared(pooled.grads, gradients_memory),
                                     .master_elsewhere = c.memory.offload_optimizer != config::OffloadTo::none,
                                     .values_elsewhere = c.memory.offloads_parameters()});
      }()),
      stage(c, plan.stages, number, plan.activations[static_cast<std::size_t>(number)], params.layout(), tp, arena,
            scratch),
      gradient_wire("p3d::engine::gradient_wire",
                    static_cast<std::size_t>(plan::reduces_narrow(c) ? params.layout().flat_size() : 0)),
      reducer(tp.exec, params.shard(), params.grads(), communicator, gradient_wire),
      optimizer(optim::make_optimizer<P>(c.optimizer, params.layout())),
      state(c.optimizer, params.shard().owned_size, c.precision.moments == config::Precision::bf16,
            c.memory.offload_optimizer == config::OffloadTo::none) {
  auto whole = model::stage_weights(c, plan.stages, number, params, lender ? &lender->params : nullptr);
  if (!c.memory.divides() && !c.memory.moves_weights()) {
    weights = provider(number, params, std::move(whole));
  } else {
    bool const stays = !c.memory.moves_weights();
    auto own = std::make_unique<ShardedWeights<P>>(tp.exec, params, std::move(whole), stays, communicator, groups,
                                                   lender ? lender->sharded : nullptr);
    sharded = own.get();
    weights = std::move(own);
  }
}

template <class P>
Trainer<P>::State::State(config::Config const& c, RunPlan run_plan, comm::Communicator const& parent,
                         ProviderFactory<P> const& provider)
    : config(c),
      plan(std::move(run_plan)),
      mesh(parent, mesh_shape(plan.grid), mesh_sets(plan, c.memory.divides())),
      here(plan.grid.coordinates(mesh.world().rank())),
      loader([&] {
        auto source = comm::agree(mesh.world(), "open the training data", [&] { return data::make_token_source(c); });
        auto sampler = comm::agree(mesh.world(), "divide the training data", [&] { return data::Sampler(*source, c); });
        return BatchLoader(config, plan.stages, here, std::move(source), std::move(sampler));
      }()),
      evaluator(config, loader, mesh,
                [this](SampleSource const& samples) {
                  executor->run(plan.evaluation, steps_done, 0.0, loading_hooks(samples));
                  double const loss = take_loss();
                  return counts_loss() ? loss : 0.0;
                }),
      tp{exec, &mesh.along("tp"), c.parallel.sequence},
      context(c.parallel.cp > 1 ? parallel::ContextParallel(mesh.along("cp"), layout::context_division(c))
                                : parallel::ContextParallel()),
      experts(expert_parallel()),
      activations_memory(prepare_reductions()),
      loss_scaler(c.precision) {
  make_replica_groups();
  comm::agree(mesh.world(), "take the memory that the run needs", [&] { allocate(provider); });
  std::map<int, StagePort<P>> stages;
  for (auto& [number, unit] : units) stages[number] = {&unit->stage, unit->weights.get()};
  int const first = plan.stages.pipeline_rank(0), last = plan.stages.pipeline_rank(plan.stages.num_stages() - 1);
  if (c.model.tied_embeddings && first != last && !c.divides_vocabulary()) {
    tie_group = mesh.along("pp").split(here.pp == first || here.pp == last ? 0 : -1, here.pp, "tied-embedding");
    if (tie_group.valid()) tie_group.prepare(all_reduce_settings(c));
  }
  executor.emplace(std::move(stages), mesh.along("pp"), exec, [this] {
    return mesh.along("tp").accounting().wait_seconds + context.wait_seconds() + experts.wait_seconds();
  });
  if (activation_store) executor->offload_into(*activation_store);
  if (part) divide_vocabulary();
  if (c.optimizer.post_validation) opening = schedule::opening(plan.training);
}

template <class P>
void Trainer<P>::State::allocate(ProviderFactory<P> const& provider) {
  auto const& c = config;
  auto const& pools = plan.pools[static_cast<std::size_t>(here.pp)];
  // Both shall be zeros: what nobody has written yet, and what nobody uses.
  auto const make_pool = [&](auto& pool, plan::Pool const& wanted, char const* label, void* memory) -> std::byte* {
    if (wanted.bytes == 0) return nullptr;
    pool.emplace(static_cast<std::size_t>(wanted.bytes), label, memory);
    auto const all = pool->template take<float>(wanted.bytes / static_cast<std::int64_t>(sizeof(float)));
    kernels::fill<float>(exec, all, 0.0F);
    return reinterpret_cast<std::byte*>(all.data());
  };
  auto* const whole_weights = make_pool(weights_pool, pools.weights, "p3d::engine::weights", weights_memory.data());
  auto* const whole_gradients =
      make_pool(gradients_pool, pools.gradients, "p3d::engine::gradients", gradients_memory.data());
  auto const place = [](std::byte* memory, plan::Pool const& pool, int stage) {
    return memory == nullptr ? nullptr : static_cast<void*>(memory + pool.offsets.at(stage));
  };
  arena.emplace(arena_bytes(plan, here.pp), "p3d::engine::activations", activations_memory.data());
  model::RecomputeScratch recompute;
  for (int s : plan.stages.stages_of(here.pp)) recompute.add(plan.activations[static_cast<std::size_t>(s)].recompute);
  std::vector<comm::Communicator*> sample_ranks;
  for (auto a : layout::sample_axes.list()) {
    if (c.parallel[a] > 1) sample_ranks.push_back(&mesh.along(layout::name(a)));
  }
  model::StageExchanges const exchanges{&context, &experts, parallel::SampleRanks(sample_ranks)};
  bool const with_loss = has_loss(c, plan.stages, here.pp);
  for (int k = 0; k < workspaces_of(c); ++k)
    workspaces.emplace_back(c, recompute, with_loss, *arena, here.tp, exchanges).set_loss(sums);
  if (c.divides_vocabulary()) part.emplace(c, here.pp, tp, *arena, workspaces.front());
  auto const groups = replica_groups();
  for (int s : plan.stages.stages_of(here.pp)) {
    units[s] = std::make_unique<StageUnit<P>>(
        c, plan, s, here, tp, *arena, model::StageScratch<P>{&workspaces.front(), &workspaces.back()},
        [this](layout::AxisSet axes) -> comm::Communicator& { return along(axes); }, groups, provider,
        typename model::Parameters<P>::Memory{
            static_cast<typename P::Storage*>(place(whole_weights, pools.weights, s)),
            static_cast<typename P::Gradient*>(place(whole_gradients, pools.gradients, s))},
        plan.stages.shares_tied() && plan.stages.is_last(s) ? units.at(0).get() : nullptr);
  }
  offload_state();
  offload_activations();
}

template <class P>
void Trainer<P>::State::offload_activations() {
  using Store = ActivationStore<P>;
  std::int64_t bytes = 0;
  auto const file_bytes = [&](int stage) {
    return Store::file_bytes(config, plan.stages, stage, plan.activations[static_cast<std::size_t>(stage)]);
  };
  for (auto const& [number, unit] : units) bytes += file_bytes(number);
  if (bytes == 0) return;
  activation_store.emplace(exec, swap_settings(config, bytes),
                           config.memory.offload_activations == config::OffloadTo::host);
  for (auto& [number, unit] : units)
    if (int const places = plan.activations[static_cast<std::size_t>(number)].offload_places; places > 0)
      activation_store->add(unit->stage, places, file_bytes(number));
}

template <class P>
void Trainer<P>::State::offload_state() {
  using Offloaded = OffloadedState<P>;
  using Rooms = typename ShardedWeights<P>::Rooms;
  auto const& m = config.memory;
  auto const parts = plan::offloaded_parts(config);
  if (!parts.any()) return;
  std::int64_t bytes = 0, longest = 0;
  for (auto const& [number, unit] : units) {
    auto const owned = unit->params.shard().owned_size;
    bytes += Offloaded::file_bytes(owned, parts);
    longest = std::max(longest, owned);
  }
  staging.emplace(parts, plan::staged_elements(longest));
  if (m.offloads_parameters() && Rooms::needed(m.divides())) rooms.emplace(longest);
  bool const optimizer_on_disk = m.offload_optimizer == config::OffloadTo::disk;
  bool const values_on_disk = m.offload_parameters == config::OffloadTo::disk;
  if (optimizer_on_disk || values_on_disk) swap.emplace(swap_settings(config, bytes));
  typename Offloaded::Files const files{optimizer_on_disk ? &*swap : nullptr, values_on_disk ? &*swap : nullptr};
  std::int64_t offset = 0;
  for (auto& [number, owner] : units) {
    auto& params = owner->params;
    auto const owned = params.shard().owned_size;
    auto& state = owner->offloaded.emplace(owned, parts, files, offset);
    offset += Offloaded::file_bytes(owned, parts);
    if (parts.master)
      state.stream(exec, *staging, params.shard(), {.master = true}, {.master = true},
                   [&](layout::OwnedRun const& run, auto const& views) { params.draw_run(exec, run, views.master); });
    if (m.offloads_parameters()) owner->sharded->fetch_from(state, rooms ? &*rooms : nullptr);
  }
}

template <class P>
parallel::ExpertParallel Trainer<P>::State::expert_parallel() {
  auto const& c = config;
  if (!c.model.moe.on()) return {};
  auto const axes = layout::expert_exchange_axes(plan.grid.sizes());
  return {axes.empty() ? nullptr : &along(axes),
          layout::expert_group(plan.grid, mesh.world().rank(), static_cast<int>(c.model.moe.experts))};
}

template <class P>
void Trainer<P>::State::make_replica_groups() {
  auto const over = static_cast<int>(config.memory.shard_over);
  if (over == 0 || over == config.parallel.dp) return;
  auto& replicas = mesh.along("dp");
  own_group = replicas.split(here.dp / over, here.dp, "shard-group");
  between_groups = replicas.split(here.dp % over, here.dp, "between-shard-groups");
  auto const settings = all_reduce_settings(config, nccl && config.comm.backend_axes.has(layout::Axis::dp));
  own_group.prepare(settings);
  between_groups.prepare(settings);
}

template <class P>
comm::Communicator& Trainer<P>::State::along(layout::AxisSet axes) {
  return mesh.along(axis_names(axes));
}

template <class P>
comm::SharedBuffer Trainer<P>::State::prepare_reductions() {
  require_same_input(config, loader.source(), mesh.world());
  require_room(plan.memory_of(here.pp).total(), mesh.world());
  constexpr std::size_t page = 4096;  // each buffer takes whole ones
  std::size_t const activations = shared_activation_bytes(config, plan, here.pp);
  std::size_t bytes = activations + page;
  for (int s : plan.stages.stages_of(here.pp))
    bytes += shared_gradient_bytes<P>(config, plan, s, here) + shared_value_bytes<P>(config, plan, s, here) + 2 * page;
  auto const& pools = plan.pools[static_cast<std::size_t>(here.pp)];
  bytes += shared_pool_bytes(pools.weights) + shared_pool_bytes(pools.gradients) + 2 * page;
  nccl = choose_nccl(config, mesh.world());
  if (nccl && config.run.deterministic && !comm::has_device_sums()) use_device_sums();
  mesh.prepare(all_reduce_settings(config, nccl), bytes, axis_names(config.comm.backend_axes));
  weights_memory = comm::SharedBuffer(shared_pool_bytes(pools.weights));
  gradients_memory = comm::SharedBuffer(shared_pool_bytes(pools.gradients));
  return comm::SharedBuffer(activations);
}

template <class P>
void Trainer<P>::State::reduce(int stage) {
  auto& unit = *units.at(stage);
  unit.reducer.finish();
  unit.params.take_gradients(exec, std::exchange(unit.reduced_before, true));
  unit.reducer.begin();
  if (config.memory.reduce == config::MessageEvery::step) start_tie(unit);
}

template <class P>
device::View1<typename P::Gradient> Trainer<P>::State::tied_gradient(StageUnit<P>& unit) {
  // It is alone in its bucket.
  auto const& params = unit.params;
  auto const& shard = params.shard();
  auto const offset = params.layout().find("embed.token.weight").offset;
  for (std::size_t i = 0; i < shard.buckets.size(); ++i) {
    auto const& b = shard.buckets[i];
    if (b.begin != offset) continue;
    if (!shard.sums_whole) return params.reduced(shard.parts[i]);  // other groups sum the rest
    return Kokkos::subview(params.grads(), Kokkos::pair<std::int64_t, std::int64_t>(b.begin, b.end));
  }
  P3D_REQUIRE(false, "a tied embedding has a bucket");
  return {};
}

template <class P>
void Trainer<P>::State::start_tie(StageUnit<P>& unit) {
  if (!tie_group.valid() || !(unit.stage.is_first() || unit.stage.is_last())) return;
  tie = collectives::start_all_reduce<typename P::Gradient>(exec, tie_group, tied_gradient(unit));
}

template <class P>
bool Trainer<P>::State::stop_together() {
  if (!stop_asked) return false;
  stopped_early = collectives::all_reduce(mesh.world(), stop_asked() ? 1.0 : 0.0) > 0.0;
  return stopped_early;
}

template <class P>
Hooks Trainer<P>::State::loading_hooks(SampleSource const& samples) {
  Hooks hooks;
  if (loader.sampler().varies()) hooks.length = [this, samples](int m) { return loader.length(samples, m); };
  hooks.load = [this, samples](int number, int slot, int microbatch) {
    auto& stage = units.at(number)->stage;
    auto const t = loader.load(samples, microbatch, loader.of_stage(number), stage.length(slot));
    stage.load(slot, t.rows, {t.inputs, t.targets, t.positions, t.documents});
  };
  hooks.load_part = [this, samples](schedule::Op op, int slot, int microbatch) {
    bool const head = op == schedule::Op::head_forward;
    auto const t = loader.load(samples, microbatch, {.inputs = !head, .targets = head}, config.model.seq_len);
    if (head) return part->load_targets(slot, t.targets);
    if (op == schedule::Op::embed_forward) return part->load_embedding(slot, t.inputs);
    part->load_gradient(slot, t.inputs);
  };
  return hooks;
}

template <class P>
Hooks Trainer<P>::State::training_hooks(StepResult& result) {
  auto hooks = loading_hooks(loader.training(steps_done));
  hooks.gradients_ready = [this](int stage, std::size_t first, std::size_t last) {
    if (!spoilt.empty()) spoil(stage, first, last);
    units.at(stage)->reducer.ready(first, last);
  };
  hooks.reduce_gradients = [this](int stage) { reduce(stage); };
  hooks.optimizer_step = [this, &result](int stage) { update(stage, result); };
  return hooks;
}

namespace {
/// A schedule may come from a file: every rank reads it.
RunPlan plan_together(config::Config const& config, comm::Communicator const& parent) {
  comm::Communicator own(parent.mpi(), "plan");
  return comm::agree(own, "plan the run", [&] { return make_run_plan(config); });
}
}  // namespace

template <class P>
Trainer<P>::Trainer(config::Config const& config, comm::Communicator const& parent)
    : Trainer(config, plan_together(config, parent), parent) {}
template <class P>
Trainer<P>::Trainer(config::Config const& config, RunPlan plan, comm::Communicator const& parent,
                    ProviderFactory<P> const& provider) {
  require_policy<P>(config);
  bool const moves = config.memory.divides() || config.memory.moves_weights();
  P3D_REQUIRE(!moves || !provider, "weights that are divided or wait elsewhere have their own provider");
  require_supported(plan.training, moves || static_cast<bool>(provider),
                    config.memory.offload_activations != config::OffloadTo::none);
  ProviderFactory<P> const resident = [](int, model::Parameters<P>&, model::StageWeights<P> whole) {
    return std::make_unique<model::ResidentWeights<P>>(std::move(whole));
  };
  state_ = std::make_unique<State>(config, std::move(plan), parent, provider ? provider : resident);
}
template <class P>
StepResult Trainer<P>::step(double vote, bool another_follows) {
  auto& s = *state_;
  s.refresh_weights();
  base::Stopwatch watch;
  StepResult result;
  result.step = s.steps_done + 1;
  result.votes = vote;
  result.lr = optim::learning_rate(s.config.optimizer, s.updates_done(), s.config.run.steps);
  result.loss_scale = s.loss_scaler.scale();
  s.summed_up = false;
  s.another_follows = another_follows && result.step < s.config.run.steps;
  for (auto& [number, unit] : s.units) {
    if (!s.gradients_are_zero) unit->params.zero_grads(s.exec);
    unit->reducer.begin();
    unit->reduced_before = false;
  }
  result.tokens = s.loader.tokens_of(s.steps_done);
  // Where samples are whole documents without a token that ends them, every input has a target.
  bool const none_masked = s.loader.sampler().varies() && s.config.data.eod_token < 0;
  s.counted_targets = none_masked ? result.tokens : s.evaluator.count_targets(s.loader.training(s.steps_done));
  for (auto& w : s.workspaces)
    w.set_balance({.sample = result.loss_scale / static_cast<double>(s.config.batch.global),
                   .token = result.loss_scale / static_cast<double>(s.tokens_per_step())});
  s.executor->run(s.plan.training, result.step, result.loss_scale / divisor(s.counted_targets),
                  s.training_hooks(result));
  if (s.tried_out) s.validate(result);
  s.balance_experts();
  comm::settle();
  device::fence(s.exec, "p3d::engine::step");
  ++s.steps_done;
  s.tokens_done += result.tokens;
  s.elapsed += watch.seconds();
  return result;
}

template <class P>
double Trainer<P>::evaluate(std::int64_t batches) {
  auto& s = *state_;
  s.prepare_to_read();
  s.stopped_early = false;
  return s.evaluator.evaluate(batches, [&] { return s.stop_together(); });
}

template <class P>
Score Trainer<P>::score(std::vector<layout::Range> const& parts, data::TokenSource const* source,
                        ScoreOptions const& options) {
  state_->prepare_to_read();
  return state_->evaluator.score(parts, source != nullptr ? *source : state_->loader.source(), options);
}
template <class P>
Score Trainer<P>::score_validation(ScoreOptions const& options) {
  state_->prepare_to_read();
  return state_->evaluator.score_validation(options);
}

template <class P>
config::Config const& Trainer<P>::config() const {
  return state_->config;
}
template <class P>
RunPlan const& Trainer<P>::plan() const {
  return state_->plan;
}
template <class P>
data::TokenSource const& Trainer<P>::source() const {
  return state_->loader.source();
}
template <class P>
data::Sampler const& Trainer<P>::sampler() const {
  return state_->loader.sampler();
}
template <class P>
comm::Mesh& Trainer<P>::mesh() {
  return state_->mesh;
}
template <class P>
std::size_t Trainer<P>::activation_high_water() const {
  return state_->arena->high_water();
}
template <class P>
std::size_t Trainer<P>::activation_capacity() const {
  return state_->arena->capacity();
}

template <class P>
plan::MemoryPrediction Trainer<P>::memory_in_use() const {
  auto const& s = *state_;
  plan::MemoryPrediction m;
  auto const bytes = [](auto const& pool) { return pool ? static_cast<std::int64_t>(pool->high_water()) : 0; };
  m.params = bytes(s.weights_pool);
  m.grads = bytes(s.gradients_pool);
  for (auto const& [number, unit] : s.units) {
    auto const used = unit->params.bytes();
    m.params += used.values;
    m.grads += used.grads + static_cast<std::int64_t>(unit->gradient_wire.size() * sizeof(device::bfloat16));
    m.optimizer += used.master + unit->state.bytes();
  }
  m.workspace = s.plan.memory_of(s.here.pp).workspace;
  m.libraries = s.plan.memory_of(s.here.pp).libraries;
  m.activations = bytes(s.arena) - m.workspace;
  m.staging = (s.staging ? s.staging->bytes() : 0) + (s.rooms ? s.rooms->bytes() : 0);
  m.offloaded = s.swap ? s.swap->bytes() : 0;
  m.offloaded_activations = s.activation_store ? s.activation_store->bytes() : 0;
  return m;
}

template <class P>
PhaseTimes Trainer<P>::times() const {
  auto t = state_->executor->times();
  // What is left of the time inside step() is loading and the executor itself.
  t[Phase::other] += std::max(0.0, state_->elapsed - t.total());
  return t;
}

template <class P>
void Trainer<P>::record_into(Recorder* recorder) {
  state_->executor->record_into(recorder);
}

template <class P>
std::vector<double> Trainer<P>::gather_value(std::string const& name) {
  return state_->gather(name, false);
}
template <class P>
void Trainer<P>::keep_gradients(bool keep) {
  state_->keep_gradients = keep;
}
template <class P>
std::vector<double> Trainer<P>::gather_gradient(std::string const& name) {
  P3D_REQUIRE(!state_->gradients_are_zero, "the gradients of the last step were kept");
  return state_->gather(name, true);
}

template <class P>
std::vector<double> Trainer<P>::State::gather(std::string const& name, bool gradient) {
  auto const& spec = plan.table.find(name);
  std::vector<double> full(static_cast<std::size_t>(spec.size()), 0.0);
  for (auto& [number, owner] : units) {
    auto* const unit = owner.get();
    if (!unit->params.has(name) || (spec.tied && !unit->stage.is_first())) continue;
    if (!here.zero(spec.repeated_axes())) continue;
    auto const visit = [&](layout::OwnedRun const& run, auto const& numbers) {
      if (run.copy) return;  // the first group's count
      auto const host = device::copy_to_host("p3d::engine::gather", exec, numbers);
      layout::for_parameters(unit->params.layout(), run.begin, run.count,
                             [&](layout::LocalParam const& item, std::int64_t first, std::int64_t count) {
                               if (item.spec != &spec) return;
                               for (std::int64_t k = first; k < first + count && k < item.valid_rows * item.cols; ++k) {
                                 auto const row = item.row_begin + k / item.cols, col = item.col_begin + k % item.cols;
                                 full[static_cast<std::size_t>(row * spec.cols + col)] =
                                     static_cast<double>(host(item.offset + k - run.begin));
                               }
                             });
    };
    if (gradient) {
      for (auto const& run : unit->params.shard().owned) visit(run, unit->params.reduced(run));
    } else {
      for_master(*unit, visit);
    }
  }
  along(gather_axes(spec, divides()))
      .all_reduce(full.data(), static_cast<std::int64_t>(full.size()), comm::Type::float64, comm::Reduction::sum)
      .wait();
  return full;
}

#define P3D_INSTANTIATE(P)      \
  template struct StageUnit<P>; \
  template class Trainer<P>;
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::engine
