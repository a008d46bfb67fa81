// SPDX-License-Identifier: Apache-2.0
// Reads damaged and hostile checkpoints with everything that reads checkpoints. Each file must be refused with the
// file, and where the change has a name the attribute or dataset, or else must read like any good one.
//
// usage: checkpoint_fuzz FILES [SEED [FIRST]]      FIRST: number of the first file, to look at one again

#include "allocations.hpp"
#include "hostile.hpp"
#include "mutations.hpp"

#include "unit/io/checkpoint_cases.hpp"

#include <p3d/base/error.hpp>
#include <p3d/comm/communicator.hpp>
#include <p3d/io/checkpoint_folder.hpp>
#include <p3d/io/checkpoint_tools.hpp>
#include <p3d/io/model_files.hpp>

#include <fmt/format.h>
#include <hdf5.h>
#include <support/temp_dir.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>

namespace p3d::fuzz {
namespace {

/// What the readers say of a file.
struct Verdict {
  bool refused = false;
  bool bad_numbers = false;  ///< an array whose checksum differs
  std::string text;          ///< of the refusal
};

/// Calls `read`; what it refuses must be told as it should be.
template <class Read>
bool refuses(std::string const& path, std::string& text, Read&& read) {
  try {
    read();
    return false;
  } catch (base::Error const& e) {
    auto const& t = e.text();
    text = fmt::format("expected {}; found {}", t.expected, t.found);
    if (t.expected.empty() || t.found.empty() || t.fix.empty() || t.where.find(path) == std::string::npos)
      throw std::runtime_error("an error without its four parts: " + text);
    if (text.size() > 2000) throw std::runtime_error("an error of " + std::to_string(text.size()) + " characters");
    if (e.code() != base::ExitCode::bad_input) throw std::runtime_error("not the exit code of bad input: " + text);
    return true;
  }
}

template <class T>
void load(comm::Communicator& self, io::Checkpoint const& file) {
  test::SmallParts<T> small(self, self, false);
  if (file.arrays.size() < small.parts.size()) small.parts.resize(file.arrays.size());
  io::load_parts(self, file, file.header.element, small.parts, 1 << 16);
}

Verdict read_all(comm::Communicator& self, std::string const& path, io::Checkpoint const& good, bool folder) {
  Verdict v;
  std::optional<io::Checkpoint> file;
  v.refused = refuses(path, v.text, [&] { file = io::read_checkpoint(path); });
  std::string of_files;
  bool const files_refused = refuses(path, of_files, [&] { io::stored_model_files(path); });
  std::string again;
  if (refuses(path, again, [&] { io::read_checkpoint(self, path); }) != v.refused || again != v.text)
    throw std::runtime_error("ranks together say something else: " + again);
  if (folder) {
    auto const found = io::find_checkpoints(path.substr(0, path.rfind('/')), "");
    if (found.size() != 1 || (v.refused && (found[0].valid || found[0].error.empty())))
      throw std::runtime_error("the list of the folder says something else");
  }
  if (v.refused) return v;
  if (files_refused) return {.refused = true, .text = of_files};
  for (auto const& a : file->arrays) v.bad_numbers = v.bad_numbers || !io::scan(*file, a).good;
  io::difference(*file, good);
  io::difference(good, *file);
  try {
    file->header.element == io::Element::float32 ? load<float>(self, *file) : load<double>(self, *file);
    if (v.bad_numbers) throw std::runtime_error("loaded although a checksum differs");
  } catch (base::Error const& e) {
    if (!v.bad_numbers && file->table == good.table) throw;
    v.text = e.what();
  }
  return v;
}

void require_closed() {
  auto const open = H5Fget_obj_count(static_cast<hid_t>(H5F_OBJ_ALL), H5F_OBJ_ALL);
  if (open != 0) throw std::runtime_error(fmt::format("{} HDF5 objects were left open", open));
}

int fuzz(std::uint64_t files, std::uint64_t seed, std::uint64_t first) {
  using Expect = Mutation::Expect;
  test::TempDir const folder;
  auto self = comm::Communicator::self();
  std::vector<io::Checkpoint> good;
  for (auto element : {io::Element::float32, io::Element::float64}) {
    for (bool moments : {false, true}) {
      auto const path = folder / fmt::format("good-{}.h5", good.size());
      make_good(path, element, moments);
      good.push_back(io::read_checkpoint(path));
      for (auto const& a : good.back().arrays) {
        if (!io::scan(good.back(), a).good) throw std::runtime_error("the good file is not good");
      }
    }
  }
  folder.write("one/empty", "");
  auto const path = folder / "one/run-00000015.h5";
  std::map<std::string, std::array<int, 3>> counts;  // refused, damaged, accepted
  std::size_t largest = 0, most = 0;
  int failures = 0;
  for (auto n = first; n < first + files; ++n) {
    Draw draw(seed, n);
    auto const& original = draw.of(good);
    current = fmt::format("file {} of seed {} (in the fuzzer itself)\n", n, seed);
    auto const m = mutate(original, path, draw);
    current = fmt::format("file {} of seed {}: {}: {}\n", n, seed, m.kind, m.detail);
    std::string wrong;
    count_allocations();
    Verdict v;
    try {
      v = read_all(self, path, original, n % 8 == 0);
      require_closed();
    } catch (std::exception const& e) {
      wrong = e.what();
    }
    auto const used = stop_counting();
    auto const file_bytes =
        std::max<std::size_t>(static_cast<std::size_t>(original.file_bytes), std::filesystem::file_size(path));
    largest = std::max(largest, used.largest), most = std::max(most, used.most);
    // A mebibyte is what HDF5 takes to open any file.
    if (used.largest > file_bytes + (1 << 20)) wrong += fmt::format(" an allocation of {} bytes", used.largest);
    if (used.most > 3 * file_bytes + (4 << 20)) wrong += fmt::format(" {} bytes held", used.most);
    if (wrong.empty() && m.expect == Expect::refusal && !v.refused) wrong = "it was not refused";
    if (wrong.empty() && m.expect == Expect::damage && !v.refused && !v.bad_numbers) wrong = "it counts as good";
    if (wrong.empty() && m.expect == Expect::refusal && v.text.find(m.named) == std::string::npos)
      wrong = fmt::format("the refusal does not name {}: {}", m.named, v.text);
    ++counts[m.kind][v.refused ? 0 : v.bad_numbers ? 1 : 2];
    if (wrong.empty()) continue;
    ++failures;
    std::printf("WRONG: %s       %s\n", current.c_str(), wrong.c_str());
  }
  fmt::print("{:<20} {:>8} {:>8} {:>8}\n", "change", "refused", "damaged", "accepted");
  for (auto const& [kind, c] : counts) fmt::print("{:<20} {:>8} {:>8} {:>8}\n", kind, c[0], c[1], c[2]);
  fmt::print("{} files of seed {}: {} wrong; largest allocation {} bytes, {} held; largest file {}\n", files, seed,
             failures, largest, most, good.back().file_bytes);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace p3d::fuzz

int main(int argc, char** argv) {
  p3d::comm::Environment mpi(argc, argv);
  return p3d::fuzz::run_fuzz(argc, argv, 200, p3d::fuzz::fuzz);
}
