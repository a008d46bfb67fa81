// SPDX-License-Identifier: Apache-2.0
#pragma once
// Collectives on device memory by NCCL, in the engines' manner: in small steps that never block. NCCL's communicator is
// made so that its calls do not block either.

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "engine.hpp"
#include "nccl_api.hpp"

namespace p3d::comm::detail {

class NcclEngine final : public Engine {
public:
  /// Collective over `comm`; waits, for at most wait_policy().timeout_s.
  NcclEngine(Communicator& comm, std::shared_ptr<NcclApi> api);
  /// Leaves in good order together with the other ranks, unless there was an error or an exception is in flight.
  ~NcclEngine() override;

  bool advance() override;
  void enqueue(Work& work) override;
  bool idle() const override { return waiting_.empty() && !launching_ && launched_.empty() && !changing_; }
  /// Ends what NCCL does on the GPU, now. What is under way will never be done.
  void abort() noexcept;

private:
  using Result = NcclApi::Result;
  struct Open {
    Work* work;
    NcclApi::Event ready;  ///< of the caller's stream
    NcclApi::Event done;   ///< of ours; null until it is launched
  };

  void change(char const* call, Result const& result);
  void check(Result const& result, char const* call);
  void launch(Open const& open);
  Result call(Work& work);
  Result reduce_scatter(Work& work);
  Result all_gather(Work& work);
  Result exchange(Work& work);
  NcclApi::Event event();

  std::shared_ptr<NcclApi> api_;
  MPI_Comm mpi_;
  std::string name_;
  int rank_, size_;
  int exceptions_;
  NcclApi::Group group_ = nullptr;
  NcclApi::Stream stream_ = nullptr;
  std::vector<NcclApi::Event> events_, free_events_;
  std::deque<Open> waiting_;   ///< in the order of their start
  bool launching_ = false;     ///< the first of waiting_ is not yet on the stream
  std::deque<Open> launched_;  ///< on the stream, in order
  Work* changing_ = nullptr;   ///< the communicator begins or ends
  char const* call_ = "";      ///< the last one, for errors
};

/// Aborts the communicators of all engines: what runs on the GPU would keep the process from ending.
void abort_nccl() noexcept;

}  // namespace p3d::comm::detail
