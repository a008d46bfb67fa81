// SPDX-License-Identifier: Apache-2.0
#include "hdf5.hpp"

#include <p3d/base/error.hpp>
#include <p3d/io/hdf5_version.hpp>

#include <cstdlib>

namespace p3d::io {

std::string hdf5_version() {
  unsigned major = 0, minor = 0, release = 0;
  if (H5get_libversion(&major, &minor, &release) < 0) return "unknown";
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(release);
}

void start_hdf5() {
  static bool const started = [] {
    if (::setenv("HDF5_USE_FILE_LOCKING", "FALSE", 0) == 0 && H5open() >= 0 &&
        H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr) >= 0)
      return true;
    throw base::Error({.expected = "an HDF5 library that starts",
                       .found = "one that does not",
                       .where = "HDF5 " + hdf5_version(),
                       .fix = "install HDF5 again"});
  }();
  (void)started;
}

void hdf5_failed(std::string_view wanted, std::string const& path) {
  std::string words;
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned, H5E_error2_t const* e, void* out) -> herr_t {
        auto& text = *static_cast<std::string*>(out);
        if (text.empty() && e->desc != nullptr) text = e->desc;  // the innermost one
        return 0;
      },
      &words);
  throw base::Error({.expected = std::string(wanted),
                     .found = "HDF5 failed: " + (words.empty() ? "no reason given" : words),
                     .where = path,
                     .fix = "check the path, its permissions and the free space"});
}

}  // namespace p3d::io
