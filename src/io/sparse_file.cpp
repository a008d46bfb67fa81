// SPDX-License-Identifier: Apache-2.0
// A driver of HDF5 (H5FD_class_t) whose files are SparseFile objects. HDF5 finds the object through the property list
// with which a file is created: use_for() stores its address there, and Driver::open reads it. The arrays of a
// checkpoint get places in such a file but no bytes, so a large file costs no more memory than its descriptions.
#include "sparse_file.hpp"

#include <p3d/base/error.hpp>

#include <H5FDpublic.h>
#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif

#include <algorithm>
#include <cstring>
#include <new>

namespace p3d::io {

namespace {

/// Bytes of a page. Descriptions lie in blocks of 64 KiB (skeleton.cpp), so few pages are partly used.
constexpr std::int64_t page_bytes = 16 << 10;

/// An open file as HDF5 knows it. HDF5's own part comes first, so that a pointer to it is a pointer to this.
struct Open {
  H5FD_t hdf5{};
  SparseFile* file = nullptr;
  haddr_t end = 0;  ///< end of the bytes that HDF5 has given to objects
};

/// The file of a pointer that HDF5 holds.
Open& of(H5FD_t* file) { return *reinterpret_cast<Open*>(file); }
Open const& of(H5FD_t const* file) { return *reinterpret_cast<Open const*>(file); }

/// The functions that HDF5 calls for an open file; their signatures are those of H5FD_class_t.
struct Driver {
  static H5FD_t* open(char const*, unsigned, hid_t access, haddr_t) {
    auto const* const info = static_cast<SparseFile* const*>(H5Pget_driver_info(access));
    if (info == nullptr) return nullptr;
    auto* const made = new (std::nothrow) Open;
    if (made == nullptr) return nullptr;
    made->file = *info;
    return &made->hdf5;
  }

  static herr_t close(H5FD_t* file) {
    delete &of(file);
    return 0;
  }

  static int compare(H5FD_t const* a, H5FD_t const* b) {
    auto const *const x = of(a).file, *const y = of(b).file;
    return x == y ? 0 : std::less<>()(x, y) ? -1 : 1;
  }

  /// The features of a plain file, so that every byte lies where it would lie in one.
  static herr_t query(H5FD_t const*, unsigned long* flags) {
    *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE |
             H5FD_FEAT_AGGREGATE_SMALLDATA;
    return 0;
  }

  static haddr_t get_end(H5FD_t const* file, H5FD_mem_t) { return of(file).end; }

  static herr_t set_end(H5FD_t* file, H5FD_mem_t, haddr_t end) {
    of(file).end = end;
    return 0;
  }

  static haddr_t get_size(H5FD_t const* file, H5FD_mem_t) { return static_cast<haddr_t>(of(file).file->size()); }

  static herr_t read(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t offset, std::size_t bytes, void* out) {
    of(file).file->read(static_cast<std::int64_t>(offset), out, bytes);
    return 0;
  }

  /// HDF5 is C: an exception may not pass through it.
  static herr_t write(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t offset, std::size_t bytes, void const* data) try {
    of(file).file->write(static_cast<std::int64_t>(offset), data, bytes);
    return 0;
  } catch (std::bad_alloc const&) {
    return -1;
  }

  static herr_t truncate(H5FD_t* file, hid_t, hbool_t) {
    of(file).file->resize(static_cast<std::int64_t>(of(file).end));
    return 0;
  }
};

/// The description of the driver. It is filled field by field: later versions of HDF5 have more fields, in other
/// places.
H5FD_class_t driver() {
  H5FD_class_t d{};
#if H5_VERSION_GE(1, 13, 2)
  d.version = H5FD_CLASS_VERSION;
#endif
#if H5_VERSION_GE(1, 13, 0)
  // A number for drivers that are not registered with the HDF Group.
  d.value = static_cast<H5FD_class_value_t>(H5_VFD_RESERVED);
#endif
  d.name = "p3d sparse memory";
  d.maxaddr = INT64_MAX;
  d.fc_degree = H5F_CLOSE_WEAK;
  d.fapl_size = sizeof(SparseFile*);
  d.open = Driver::open;
  d.close = Driver::close;
  d.cmp = Driver::compare;
  d.query = Driver::query;
  d.get_eoa = Driver::get_end;
  d.set_eoa = Driver::set_end;
  d.get_eof = Driver::get_size;
  d.read = Driver::read;
  d.write = Driver::write;
  d.truncate = Driver::truncate;
  H5FD_mem_t const map[] = H5FD_FLMAP_DICHOTOMY;
  std::copy(std::begin(map), std::end(map), d.fl_map);
  return d;
}

}  // namespace

void SparseFile::use_for(hid_t access) {
  static H5FD_class_t const described = driver();
  static hid_t const registered = H5FDregister(&described);
  SparseFile const* const self = this;
  if (registered < 0 || H5Pset_driver(access, registered, &self) < 0) hdf5_failed("HDF5 files in memory", "");
}

template <class Touch>
void SparseFile::over_pages(std::int64_t offset, std::size_t bytes, Touch const& touch) {
  for (std::size_t done = 0; done < bytes;) {
    auto const at = offset + static_cast<std::int64_t>(done);
    auto const in_page = at % page_bytes;
    auto const n = std::min(bytes - done, static_cast<std::size_t>(page_bytes - in_page));
    touch(at / page_bytes, static_cast<std::size_t>(in_page), done, n);
    done += n;
  }
}

void SparseFile::read(std::int64_t offset, void* out, std::size_t bytes) const {
  over_pages(offset, bytes, [&](std::int64_t page, std::size_t from, std::size_t to, std::size_t n) {
    auto const found = pages_.find(page);
    char* const target = static_cast<char*>(out) + to;
    if (found == pages_.end())
      std::memset(target, 0, n);
    else
      std::memcpy(target, found->second.data() + from, n);
  });
}

void SparseFile::write(std::int64_t offset, void const* data, std::size_t bytes) {
  over_pages(offset, bytes, [&](std::int64_t page, std::size_t to, std::size_t from, std::size_t n) {
    auto& room = pages_[page];
    if (room.empty()) room.resize(page_bytes);
    std::memcpy(room.data() + to, static_cast<char const*>(data) + from, n);
  });
  size_ = std::max(size_, offset + static_cast<std::int64_t>(bytes));
}

}  // namespace p3d::io
