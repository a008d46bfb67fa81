// SPDX-License-Identifier: Apache-2.0
// Strands by POSIX contexts. Each strand has a stack and a context; interleave() switches to one strand after the
// other, and rest() switches back. Stacks are kept for the next call. Most of the text here tells the address and
// thread sanitizers about each switch, since they follow stacks.
#include <p3d/base/strand.hpp>

#include <p3d/base/error.hpp>

#include <exception>
#include <memory>
#include <system_error>
#include <utility>

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace p3d::base {

namespace {

/// The stack of a strand. The system provides memory when it is first touched. Below the stack lies a page that nobody
/// may touch, so that a stack which is too small ends the process there.
class Stack {
public:
  static constexpr std::size_t bytes = std::size_t{8} << 20;
  Stack() : guard_(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))) {
    int const flags = MAP_PRIVATE | MAP_ANONYMOUS;
    memory_ = ::mmap(nullptr, guard_ + bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory_ == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "a stack for a strand");
    if (::mprotect(memory_, guard_, PROT_NONE) != 0)
      throw std::system_error(errno, std::generic_category(), "a page below the stack of a strand");
  }
  ~Stack() { ::munmap(memory_, guard_ + bytes); }
  Stack(Stack const&) = delete;
  Stack& operator=(Stack const&) = delete;
  void* begin() const { return static_cast<char*>(memory_) + guard_; }

private:
  std::size_t guard_;
  void* memory_ = nullptr;
};

/// The point of a strand, or of the caller, at which its execution continues. The sanitizers, which follow stacks, are
/// told about each switch.
class Place {
public:
  ucontext_t context{};
  void* stack = nullptr;  ///< null: the stack of the thread itself
  void* thread_sanitizer = nullptr;

  /// Switches from this place, which must be the one that runs now, to the next. Returns when something switches back.
  void go_to(Place& next) {
#if defined(__SANITIZE_THREAD__)
    thread_sanitizer = __tsan_get_current_fiber();
    if (next.thread_sanitizer == nullptr) next.thread_sanitizer = __tsan_create_fiber(0);
    __tsan_switch_to_fiber(next.thread_sanitizer, 0);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&fake_, next.bottom_, next.size_);
#endif
    ::swapcontext(&context, &next.context);
    arrive();
  }
  /// Tells the address sanitizer that a switch has ended on this side.
  void arrive() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_, &last_bottom, &last_size);
#endif
  }
#if defined(__SANITIZE_ADDRESS__)
  void const* bottom_ = nullptr;
  std::size_t size_ = 0;
  void* fake_ = nullptr;
  void const* last_bottom = nullptr;
  std::size_t last_size = 0;
#endif
};

/// One work with its stack and its place.
struct Strand {
  std::unique_ptr<Stack> stack;
  Place place;
  std::function<void()> work;
  std::exception_ptr error;
  bool ended = false;
};

/// The strands of this thread. They are kept for the next interleave().
struct Turns {
  std::vector<std::unique_ptr<Strand>> strands;
  Place caller;
  Strand* running = nullptr;  ///< null outside of interleave()
};

Turns& turns() {
  thread_local Turns all;
  return all;
}

/// The strands of works that an error of another one left unfinished. They are kept for ever: objects on their stacks
/// may still be referred to.
std::vector<std::unique_ptr<Strand>>& abandoned() {
  thread_local auto& all = *new std::vector<std::unique_ptr<Strand>>;
  return all;
}

/// The first function on a strand's stack: runs the work to its end and returns to the caller of interleave().
void run_strand() {
  auto& t = turns();
  auto& mine = *t.running;
  mine.place.arrive();
#if defined(__SANITIZE_ADDRESS__)
  t.caller.bottom_ = mine.place.last_bottom;
  t.caller.size_ = mine.place.last_size;
#endif
  try {
    mine.work();
  } catch (...) {
    mine.error = std::current_exception();
  }
  mine.ended = true;
  mine.place.go_to(t.caller);  // never comes back
}

/// Makes a strand ready to begin a work.
void prepare(Strand& strand, std::function<void()> work) {
  if (!strand.stack) strand.stack = std::make_unique<Stack>();
  strand.work = std::move(work);
  strand.error = nullptr;
  strand.ended = false;
  auto& context = strand.place.context;
  if (::getcontext(&context) != 0) throw std::system_error(errno, std::generic_category(), "getcontext");
  context.uc_stack.ss_sp = strand.stack->begin();
  context.uc_stack.ss_size = Stack::bytes;
  context.uc_link = nullptr;
#if defined(__SANITIZE_ADDRESS__)
  strand.place.bottom_ = strand.stack->begin();
  strand.place.size_ = Stack::bytes;
  strand.place.fake_ = nullptr;
#endif
  ::makecontext(&context, run_strand, 0);
}

}  // namespace

void interleave(std::vector<std::function<void()>> works, std::function<void(std::size_t)> const& after_turn) {
  auto& t = turns();
  P3D_REQUIRE(t.running == nullptr, "strands do not nest");
  while (t.strands.size() < works.size()) t.strands.push_back(std::make_unique<Strand>());
  for (std::size_t i = 0; i < works.size(); ++i) prepare(*t.strands[i], std::move(works[i]));
  for (std::size_t left = works.size(); left > 0;) {
    for (std::size_t i = 0; i < works.size(); ++i) {
      auto& strand = *t.strands[i];
      if (strand.ended) continue;
      t.running = &strand;
      t.caller.go_to(strand.place);
      t.running = nullptr;
      if (after_turn) after_turn(i);
      if (!strand.ended) continue;
      --left;
      strand.work = nullptr;
      if (!strand.error) continue;
      auto const error = std::exchange(strand.error, nullptr);
      for (auto& s : t.strands)
        if (!s->ended) abandoned().push_back(std::move(s));
      t.strands.clear();
      std::rethrow_exception(error);
    }
  }
}

void rest() {
  auto& t = turns();
  if (t.running != nullptr) t.running->place.go_to(t.caller);
}

}  // namespace p3d::base
