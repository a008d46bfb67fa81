// SPDX-License-Identifier: Apache-2.0
#pragma once
// HDF5 identifiers in RAII, and the errors of HDF5 as base::Error.

#include <hdf5.h>

#include <string>
#include <string_view>
#include <utility>

namespace p3d::io {

/// Prepares the library: no printing of errors, no file locks (only one process writes a file at a time, and parallel
/// file systems often have none). Must be called before any other use, on the main thread.
void start_hdf5();

/// Throws the error of a failed call: what was wanted, HDF5's own words, the file.
[[noreturn]] void hdf5_failed(std::string_view wanted, std::string const& path);

/// Throws when `status` says that a call has failed.
inline void hdf5_check(herr_t status, std::string_view wanted, std::string const& path) {
  if (status < 0) hdf5_failed(wanted, path);
}

/// Owns an HDF5 identifier and closes it with the function that fits its kind.
class H5 {
public:
  using Close = herr_t (*)(hid_t);
  H5() = default;
  /// Takes the result of a call. Throws when the call has failed.
  H5(hid_t id, Close close, std::string_view wanted, std::string const& path) : id_(id), close_(close) {
    if (id < 0) hdf5_failed(wanted, path);
  }
  ~H5() {
    if (id_ >= 0) close_(id_);
  }
  H5(H5&& o) noexcept : id_(std::exchange(o.id_, -1)), close_(o.close_) {}
  H5& operator=(H5&& o) noexcept {
    std::swap(id_, o.id_);
    std::swap(close_, o.close_);
    return *this;
  }
  operator hid_t() const { return id_; }
  hid_t release() { return std::exchange(id_, -1); }
  /// Closes now, and throws when that fails: closing a file writes.
  void close(std::string const& path) {
    if (id_ >= 0 && close_(std::exchange(id_, -1)) < 0) hdf5_failed("a file that can be closed", path);
  }

private:
  hid_t id_ = -1;
  Close close_ = nullptr;
};

}  // namespace p3d::io
