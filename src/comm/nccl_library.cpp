// SPDX-License-Identifier: Apache-2.0
// The calls of NCCL and of the device's runtime, one by one. It is the only file of this room with CUDA or HIP in it,
// and is built with P3D_NCCL only. Each function turns a result code into NcclApi::Result: done, open (still in
// progress) or failed with the library's text.

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <string_view>

#include "nccl_api.hpp"
#include "nccl_vendor.hpp"

namespace p3d::comm::detail {

namespace {

using Result = NcclApi::Result;
using State = NcclApi::State;

static_assert(sizeof(ncclUniqueId) == sizeof(NcclApi::Id));

ncclComm_t group_of(NcclApi::Group group) { return static_cast<ncclComm_t>(group); }
P3D_GPU(Stream_t) stream_of(NcclApi::Stream stream) { return static_cast<P3D_GPU(Stream_t)>(stream); }
P3D_GPU(Event_t) event_of(NcclApi::Event event) { return static_cast<P3D_GPU(Event_t)>(event); }

/// The result of a call of NCCL; its text has the library's last error.
Result nccl(ncclResult_t code, NcclApi::Group group = nullptr) {
  if (code == ncclSuccess) return {};
  if (code == ncclInProgress) return {State::open};
  std::string_view const more = ncclGetLastError(group_of(group));
  return {State::failed, fmt::format("{}{}{}", ncclGetErrorString(code), more.empty() ? "" : ": ", more)};
}

/// The result of a call of the device's runtime.
Result runtime(P3D_GPU(Error_t) code, char const* call) {
  if (code == P3D_GPU(Success)) return {};
  return {State::failed, fmt::format("{}: {}", call, P3D_GPU(GetErrorString)(code))};
}

ncclDataType_t nccl_type(ElementType type) {
  if (auto const narrow = type.float16()) return *narrow == Float16Type::bfloat16 ? ncclBfloat16 : ncclFloat16;
  switch (*type.mpi()) {
    case Type::int32: return ncclInt32;
    case Type::int64: return ncclInt64;
    case Type::uint64: return ncclUint64;
    case Type::float32: return ncclFloat32;
    case Type::float64: return ncclFloat64;
    case Type::byte: return ncclUint8;
  }
  return ncclUint8;
}

ncclRedOp_t nccl_op(Reduction op) {
  switch (op) {
    case Reduction::sum: return ncclSum;
    case Reduction::max: return ncclMax;
    case Reduction::min: return ncclMin;
  }
  return ncclSum;
}

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

class Library final : public NcclApi {
public:
  std::string version() const override {
    int code = 0;
    if (ncclGetVersion(&code) != ncclSuccess) return P3D_NCCL_NAME;
    return fmt::format(P3D_NCCL_NAME " {}.{}.{}", code / 10000, code / 100 % 100, code % 100);
  }

  std::string gpu() const override {
    int device = 0;
    std::array<char, 32> bus{};
    if (P3D_GPU(GetDevice)(&device) != P3D_GPU(Success) ||
        P3D_GPU(DeviceGetPCIBusId)(bus.data(), static_cast<int>(bus.size()), device) != P3D_GPU(Success)) {
      return "none";
    }
    return bus.data();
  }

  bool one_at_a_time() const override {
#if defined(P3D_RCCL)
    int device = 0;
    hipDeviceProp_t properties{};
    return hipGetDevice(&device) == hipSuccess && hipGetDeviceProperties(&properties, device) == hipSuccess &&
           std::string_view(properties.gcnArchName).starts_with("gfx90a");
#else
    return false;
#endif
  }

  Result new_id(Id& id) override {
    ncclUniqueId made;
    auto const result = nccl(ncclGetUniqueId(&made));
    std::memcpy(id.data(), &made, sizeof(made));
    return result;
  }
  Result init(Group& group, int ranks, Id const& id, int rank) override {
    ncclUniqueId given;
    std::memcpy(&given, id.data(), sizeof(given));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t made = nullptr;
    auto const code = ncclCommInitRankConfig(&made, ranks, given, rank, &config);
    group = made;
    return nccl(code);
  }
  Result state(Group group) override {
    ncclResult_t code = ncclSuccess;
    auto const asked = nccl(ncclCommGetAsyncError(group_of(group), &code), group);
    return asked.state == State::failed ? asked : nccl(code, group);
  }
  Result finalize(Group group) override { return nccl(ncclCommFinalize(group_of(group)), group); }
  Result destroy(Group group) override { return nccl(ncclCommDestroy(group_of(group))); }
  Result abort(Group group) override { return nccl(ncclCommAbort(group_of(group))); }

  Result begin() override { return nccl(ncclGroupStart()); }
  Result end(Group group) override { return nccl(ncclGroupEnd(), group); }
  Result all_reduce(void* inout, std::int64_t n, ElementType type, Reduction op, Group group, Stream stream) override {
    return nccl(ncclAllReduce(inout, inout, size(n), nccl_type(type), nccl_op(op), group_of(group), stream_of(stream)),
                group);
  }
  Result reduce(void* inout, std::int64_t n, ElementType type, Reduction op, int root, Group group,
                Stream stream) override {
    return nccl(
        ncclReduce(inout, inout, size(n), nccl_type(type), nccl_op(op), root, group_of(group), stream_of(stream)),
        group);
  }
  Result reduce_scatter(void const* in, void* out, std::int64_t each, ElementType type, Reduction op, Group group,
                        Stream stream) override {
    return nccl(
        ncclReduceScatter(in, out, size(each), nccl_type(type), nccl_op(op), group_of(group), stream_of(stream)),
        group);
  }
  Result all_gather(void const* in, void* out, std::int64_t each, ElementType type, Group group,
                    Stream stream) override {
    return nccl(ncclAllGather(in, out, size(each), nccl_type(type), group_of(group), stream_of(stream)), group);
  }
  Result broadcast(void* inout, std::int64_t n, ElementType type, int root, Group group, Stream stream) override {
    return nccl(ncclBroadcast(inout, inout, size(n), nccl_type(type), root, group_of(group), stream_of(stream)), group);
  }
  Result send(void const* buffer, std::int64_t n, ElementType type, int peer, Group group, Stream stream) override {
    return nccl(ncclSend(buffer, size(n), nccl_type(type), peer, group_of(group), stream_of(stream)), group);
  }
  Result recv(void* buffer, std::int64_t n, ElementType type, int peer, Group group, Stream stream) override {
    return nccl(ncclRecv(buffer, size(n), nccl_type(type), peer, group_of(group), stream_of(stream)), group);
  }

  /// Makes a stream that does not wait for the default stream. It has the highest priority, so that its kernels go
  /// before others that wait for multiprocessors: other ranks wait for them.
  Result new_stream(Stream& stream) override {
    int least = 0, most = 0;
    auto const asked =
        runtime(P3D_GPU(DeviceGetStreamPriorityRange)(&least, &most), "the range of priorities of streams");
    if (asked.state == State::failed) return asked;
    P3D_GPU(Stream_t) made = nullptr;
    auto const result =
        runtime(P3D_GPU(StreamCreateWithPriority)(&made, P3D_GPU(StreamNonBlocking), most), "a new stream");
    stream = made;
    return result;
  }
  void free_stream(Stream stream) override { (void)P3D_GPU(StreamDestroy)(stream_of(stream)); }
  Result new_event(Event& event) override {
    P3D_GPU(Event_t) made = nullptr;
    auto const result = runtime(P3D_GPU(EventCreateWithFlags)(&made, P3D_GPU(EventDisableTiming)), "a new event");
    event = made;
    return result;
  }
  void free_event(Event event) override { (void)P3D_GPU(EventDestroy)(event_of(event)); }
  Result record(Event event, Stream stream) override {
    return runtime(P3D_GPU(EventRecord)(event_of(event), stream_of(stream)), "an event after a stream");
  }
  Result wait(Stream stream, Event event) override {
    return runtime(P3D_GPU(StreamWaitEvent)(stream_of(stream), event_of(event), 0), "a stream after an event");
  }
  Result query(Event event) override {
    auto const code = P3D_GPU(EventQuery)(event_of(event));
    if (code == P3D_GPU(ErrorNotReady)) return {State::open};
    return runtime(code, "work on a stream");
  }
};

}  // namespace

std::shared_ptr<NcclApi> nccl_library() {
  static auto const library = std::make_shared<Library>();
  return library;
}

}  // namespace p3d::comm::detail
