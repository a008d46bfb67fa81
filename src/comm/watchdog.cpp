// SPDX-License-Identifier: Apache-2.0
// The watchdog. A rank whose wait has run out asks all others for their state; ranks inside a wait answer, and a rank
// in progress_at() answers that it is at work. From the answers follows one of two ends: all ranks are told to wait on,
// or one rank prints a table and ends all of them. All messages go on a communicator of their own, as bytes, and every
// step has a time limit. Example of a line: "rank 3: step 12, 2F0: waited 600.0 s for all_reduce #17 of 'tp'".
#include "watchdog.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/comm/launch.hpp>
#include <p3d/comm/wait.hpp>

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <deque>
#include <limits>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

namespace p3d::comm {

namespace detail {
namespace {

constexpr int question_tag = 1;
constexpr int answer_tag = 2;
constexpr int patience_tag = 3;
constexpr double grace_s = 2.0;       ///< seconds that the reporting rank waits for answers
constexpr long pause_ns = 2'000'000;  ///< between two looks for messages
// Between two looks for answers no more than this counts as waiting: a rank that a loaded machine let sleep for seconds
// has not looked in that time, and the answers may lie there.
constexpr double longest_pause_s = 0.05;

/// A question to one rank.
struct Question {
  std::int64_t number;
  std::int32_t timed_out;  ///< 1: the asking rank will end the run
};

/// The state of one rank, as it describes itself; sent as bytes between the ranks of one program.
struct Answer {
  std::int64_t question = 0;
  std::int64_t step = -1;
  std::int64_t sequence = 0;
  double seconds = 0.0;
  std::int32_t rank = 0;
  std::int32_t waiting = 0;
  std::int32_t late = 0;         ///< its operation waits for its own device, or for earlier operations that do
  std::int32_t at_work = 0;      ///< 1: see AtWork
  std::int32_t peer = -1;        ///< rank of the peer in the communicator; -1: a collective
  std::int32_t peer_world = -1;  ///< rank of the peer in world
  char action[48] = "";
  char communicator[32] = "";
  char operation[24] = "";
  char work[200] = "";
};

/// A message that waits may go on for so many seconds.
struct Patience {
  double seconds = 0.0;
  std::int64_t last = 0;  ///< 1: no rank is at work any more, and the next wait that runs out ends the run
};

/// The value of other_reporter when no rank asks.
constexpr int nobody = std::numeric_limits<int>::max();

/// The watchdog of this process.
struct Watchdog {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
  InWait const* wait = nullptr;       ///< the innermost wait; null: none
  std::string const* work = nullptr;  ///< the work of AtWork; null: none
  // The thread that watches blocking calls reads these two as well.
  std::atomic<std::int64_t> step{-1};
  std::atomic<char const*> action{""};
  std::int64_t questions = 0;   ///< number of questions asked by this rank
  int other_reporter = nobody;  ///< lowest other rank whose wait has run out and that asks
  base::Stopwatch clock;
  double patient_until = 0.0;  ///< time on `clock` until which waits go on, as some rank is at work
  bool last_patience = true;   ///< no rank has been at work since a wait last ran out
  // Messages under way, with their buffers: in deques, so that the buffers keep their addresses.
  std::deque<std::pair<MPI_Request, Answer>> answers;
  std::deque<std::pair<MPI_Request, Question>> asked;
  std::deque<std::pair<MPI_Request, Patience>> told;
};
Watchdog dog;

template <std::size_t N>
void copy_text(char (&out)[N], std::string_view text) {
  std::snprintf(out, N, "%.*s", static_cast<int>(std::min(text.size(), N - 1)), text.data());
}

/// The number in world of a rank of `comm`; -1 when it has none. Local.
int world_rank(MPI_Comm comm, int rank) {
  MPI_Group part = MPI_GROUP_NULL;
  MPI_Group world = MPI_GROUP_NULL;
  int result = MPI_UNDEFINED;
  if (MPI_Comm_group(comm, &part) == MPI_SUCCESS && MPI_Comm_group(MPI_COMM_WORLD, &world) == MPI_SUCCESS) {
    MPI_Group_translate_ranks(part, 1, &rank, world, &result);
  }
  if (part != MPI_GROUP_NULL) MPI_Group_free(&part);
  if (world != MPI_GROUP_NULL) MPI_Group_free(&world);
  return result == MPI_UNDEFINED ? -1 : result;
}

/// The state of this rank.
Answer own_state() {
  Answer state;
  state.rank = dog.rank;
  state.step = dog.step;
  copy_text(state.action, dog.action.load());
  if (dog.work != nullptr) {
    state.at_work = 1;
    copy_text(state.work, *dog.work);
  }
  if (dog.wait != nullptr) {
    auto const& pending = dog.wait->pending();
    state.waiting = 1;
    state.seconds = dog.wait->seconds();
    state.sequence = pending.sequence;
    state.late = pending.begun ? 0 : 1;
    copy_text(state.communicator, pending.comm->name);
    copy_text(state.operation, pending.operation);
    if (pending.peer >= 0) {
      state.peer = pending.peer;
      state.peer_world = world_rank(pending.comm->mpi, pending.peer);
    }
  }
  return state;
}

/// The place in the program: "step 12, 2F0".
std::string place(std::int64_t step, char const* action) {
  std::string out = step >= 0 ? fmt::format("step {}", step) : std::string("before the first step");
  if (action[0] != '\0') out += fmt::format(", {}", action);
  return out;
}

/// A state in words: "step 12, 2F0: waited 2.0 s for all_reduce #17 of 'tp'".
std::string describe(Answer const& state) {
  std::string out = place(state.step, state.action);
  if (state.at_work) return out + fmt::format(": in {}", state.work);
  if (!state.waiting) return out + ": not in a wait";
  out += fmt::format(": waited {:.1f} s for {} #{} of '{}'", state.seconds, state.operation, state.sequence,
                     state.communicator);
  if (state.peer >= 0) {
    out += fmt::format(" {} its rank {} (rank {} of world)",
                       std::string_view(state.operation) == "recv" ? "from" : "to", state.peer, state.peer_world);
  }
  if (state.late) out += ", which has not begun: its device is not done with what comes before";
  return out;
}

/// Drops the messages at the front that have been sent.
template <class Messages>
void drop_sent(Messages& messages) {
  while (!messages.empty()) {
    int done = 0;
    if (MPI_Test(&messages.front().first, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done) return;
    messages.pop_front();
  }
}

void pause() {
  timespec const time{0, pause_ns};
  nanosleep(&time, nullptr);
}

/// Receives a message that MPI_Iprobe has found.
template <class Message>
bool receive(Message& message, int source, int tag) {
  return blocking("MPI_Recv", "watchdog", [&] {
           return MPI_Recv(&message, sizeof(message), MPI_BYTE, source, tag, dog.comm, MPI_STATUS_IGNORE);
         }) == MPI_SUCCESS;
}

/// True while waits may go on.
bool patient() { return dog.clock.seconds() < dog.patient_until; }

/// Answers questions for `seconds`, or until a rank tells that waits may go on.
void listen(double seconds) {
  base::Stopwatch watch;
  while (watch.seconds() < seconds && !patient()) {
    answer_questions();
    pause();
  }
}

/// Asks all ranks and returns their answers by rank (`waiting` < 0: no answer). Returns as soon as all have answered,
/// after `grace` seconds of looking for answers, or, with `give_way`, once a lower rank asks in order to report, or
/// some rank tells to wait on.
std::vector<Answer> ask_all(double grace, bool timed_out, bool give_way) {
  std::vector<Answer> answers(static_cast<std::size_t>(dog.size));
  for (auto& answer : answers) answer.waiting = -1;
  answers[static_cast<std::size_t>(dog.rank)] = own_state();
  if (dog.comm == MPI_COMM_NULL) return answers;
  drop_sent(dog.asked);
  std::int64_t const number = ++dog.questions;
  for (int rank = 0; rank < dog.size; ++rank) {
    if (rank == dog.rank) continue;
    auto& [request, question] = dog.asked.emplace_back(MPI_REQUEST_NULL, Question{number, timed_out ? 1 : 0});
    MPI_Isend(&question, sizeof(question), MPI_BYTE, rank, question_tag, dog.comm, &request);
  }
  int missing = dog.size - 1;
  auto const gives_way = [&] { return give_way && (dog.other_reporter < dog.rank || patient()); };
  double waited = 0.0;
  while (missing > 0 && waited < grace && !gives_way()) {
    base::Stopwatch const look;
    answer_questions();
    int flag = 0;
    MPI_Status status;
    while (MPI_Iprobe(MPI_ANY_SOURCE, answer_tag, dog.comm, &flag, &status) == MPI_SUCCESS && flag) {
      Answer answer;
      if (!receive(answer, status.MPI_SOURCE, answer_tag)) break;
      if (answer.question != number) continue;  // a late answer to an earlier question
      auto& place = answers[static_cast<std::size_t>(status.MPI_SOURCE)];
      if (place.waiting < 0) --missing;
      place = answer;
    }
    pause();
    waited += std::min(look.seconds(), longest_pause_s);
  }
  return answers;
}

/// Takes the message that waits may go on.
void be_patient(Patience const& given) {
  dog.patient_until = dog.clock.seconds() + given.seconds;
  dog.last_patience = given.last != 0;
  dog.other_reporter = nobody;
}

/// Tells all ranks to wait on, for comm.timeout_s again, when some rank is at work, and prints a warning. When none is,
/// but one was when they were last told, that rank may have come back to its peers a moment ago: tells them once more.
/// Otherwise returns false.
bool tell_to_wait_on(std::vector<Answer> const& answers) {
  auto const busy = std::find_if(answers.begin(), answers.end(), [](auto const& a) { return a.at_work != 0; });
  bool const nobody_works = busy == answers.end();
  if (nobody_works && dog.last_patience) return false;
  Patience const given{.seconds = wait_policy().timeout_s, .last = nobody_works ? 1 : 0};
  if (!nobody_works)
    base::error_here(
        fmt::format("p3d: warning: a wait has lasted comm.timeout_s = {:g} s; it goes on, as rank {} is in {}",
                    given.seconds, busy->rank, busy->work));
  drop_sent(dog.told);
  for (int rank = 0; rank < dog.size; ++rank) {
    if (rank == dog.rank) continue;
    auto& [request, told] = dog.told.emplace_back(MPI_REQUEST_NULL, given);
    MPI_Isend(&told, sizeof(told), MPI_BYTE, rank, patience_tag, dog.comm, &request);
  }
  be_patient(given);
  return true;
}

/// The states that the system gives for this node's ranks, by rank. They serve for ranks that do not answer.
std::map<int, std::string> silent_processes() {
  std::map<int, std::string> found;
  for (auto const& process : node_processes()) {
    if (process.ended) continue;
    found[process.rank] = p3d::comm::describe(process);
  }
  return found;
}

/// One line for each rank: its answer, or that there is none.
std::string table(std::vector<Answer> const& answers) {
  std::string out;
  auto const processes = silent_processes();
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    if (rank > 0) out += '\n';
    out += fmt::format("rank {}: ", rank);
    if (answers[rank].waiting >= 0) {
      out += describe(answers[rank]);
      continue;
    }
    auto const process = processes.find(static_cast<int>(rank));
    out += "no answer: stopped, dead or computing";
    if (process != processes.end()) out += fmt::format(" ({})", process->second);
  }
  return out;
}

/// Names the members of the waiting rank's communicator that are not in the same operation: where to look first.
std::string missing_from(Pending const& pending, std::vector<Answer> const& answers) {
  std::vector<std::string> missing;
  for (int member = 0; member < pending.comm->size; ++member) {
    if (pending.peer >= 0 && member != pending.peer) continue;
    int const rank = world_rank(pending.comm->mpi, member);
    if (rank < 0 || rank == dog.rank) continue;
    auto const& state = answers[static_cast<std::size_t>(rank)];
    if (state.waiting < 0) {
      missing.push_back(fmt::format("rank {} (no answer)", rank));
    } else if (state.late) {
      missing.push_back(fmt::format("rank {} (not begun)", rank));
    } else if (pending.peer < 0 &&
               !(state.waiting == 1 && state.sequence == pending.sequence &&
                 pending.comm->name.compare(0, sizeof(state.communicator) - 1, state.communicator) == 0)) {
      missing.push_back(fmt::format("rank {} (elsewhere)", rank));
    }
  }
  if (missing.empty()) return {};
  std::string out =
      fmt::format("\nnot in {} #{} of '{}': {}", pending.operation, pending.sequence, pending.comm->name, missing[0]);
  for (std::size_t i = 1; i < missing.size(); ++i) out += ", " + missing[i];
  return out;
}

}  // namespace

void open_watchdog() {
  check(blocking("MPI_Comm_dup", "watchdog", [] { return MPI_Comm_dup(MPI_COMM_WORLD, &dog.comm); }), "MPI_Comm_dup",
        "watchdog");
  MPI_Comm_set_errhandler(dog.comm, MPI_ERRORS_RETURN);
  MPI_Comm_rank(dog.comm, &dog.rank);
  MPI_Comm_size(dog.comm, &dog.size);
}

void close_watchdog() {
  // Small messages have been sent long ago. One to a rank that never looked is abandoned, and its buffer with it.
  for (auto& [request, answer] : dog.answers) {
    if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
  }
  for (auto& [request, question] : dog.asked) {
    if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
  }
  for (auto& [request, told] : dog.told) {
    if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
  }
  if (dog.comm != MPI_COMM_NULL) blocking("MPI_Comm_free", "watchdog", [] { return MPI_Comm_free(&dog.comm); });
}

std::string activity() { return place(dog.step, dog.action); }

InWait::InWait(Pending const& pending) : pending_(pending), outer_(dog.wait) { dog.wait = this; }
InWait::~InWait() { dog.wait = outer_; }

AtWork::AtWork(std::string const& work) { dog.work = &work; }
AtWork::~AtWork() { dog.work = nullptr; }

void answer_questions() {
  if (dog.comm == MPI_COMM_NULL) return;
  drop_sent(dog.answers);
  int flag = 0;
  MPI_Status status;
  while (MPI_Iprobe(MPI_ANY_SOURCE, question_tag, dog.comm, &flag, &status) == MPI_SUCCESS && flag) {
    Question question{};
    int const asker = status.MPI_SOURCE;
    if (!receive(question, asker, question_tag)) return;
    if (question.timed_out) dog.other_reporter = std::min(dog.other_reporter, asker);
    auto& [request, answer] = dog.answers.emplace_back(MPI_REQUEST_NULL, own_state());
    answer.question = question.number;
    MPI_Isend(&answer, sizeof(answer), MPI_BYTE, asker, answer_tag, dog.comm, &request);
  }
  while (MPI_Iprobe(MPI_ANY_SOURCE, patience_tag, dog.comm, &flag, &status) == MPI_SUCCESS && flag) {
    Patience given;
    if (!receive(given, status.MPI_SOURCE, patience_tag)) return;
    be_patient(given);
  }
}

// Often many ranks run out of time at the same moment, and one of them should report: rank 0 at once, the others a
// little later. A rank that hears that a lower one asks leaves the report to it; if the run does not end then, and no
// rank tells to wait on, it reports after all. The time is bounded in every case.
double wait_on_or_end() {
  auto const left = [] { return std::max(0.0, dog.patient_until - dog.clock.seconds()); };
  if (dog.rank > 0) listen(std::min(1.0, 0.2 + 0.01 * dog.rank));
  if (patient()) return left();
  std::vector<Answer> answers;
  if (dog.other_reporter == nobody) answers = ask_all(grace_s, true, true);
  if (patient()) return left();
  if (dog.other_reporter < dog.rank || answers.empty()) {
    listen(2.0 * grace_s);  // the other rank should end the run in this time
    if (patient()) return left();
    answers = ask_all(grace_s, true, false);
  }
  if (patient() || tell_to_wait_on(answers)) return left();
  auto const& pending = dog.wait->pending();
  base::error_here(fmt::format("p3d: a wait outlasted comm.timeout_s = {:g} s\n{}{}\nAll ranks:\n{}\nEnding all ranks.",
                               wait_policy().timeout_s, describe(answers[static_cast<std::size_t>(dog.rank)]),
                               missing_from(pending, answers), table(answers)));
  abort_all(static_cast<int>(base::ExitCode::timeout));
}

}  // namespace detail

void set_activity(std::int64_t step, char const* action) {
  detail::dog.step = step;
  detail::dog.action = action != nullptr ? action : "";
}

std::string collect_states(double grace_s) { return detail::table(detail::ask_all(grace_s, false, false)); }

}  // namespace p3d::comm
