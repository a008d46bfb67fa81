// SPDX-License-Identifier: Apache-2.0
// An array in pieces, in a swap file or in host memory. start_load and start_store move whole pieces; read and write
// work through one piece in memory, which is stored when another one is needed.
#include <p3d/device/offloaded_array.hpp>

#include <p3d/base/error.hpp>
#include <p3d/device/float16.hpp>

#include <algorithm>
#include <cstring>
#include <utility>

namespace p3d::device {

namespace {

std::size_t bytes_of(std::int64_t elements, std::size_t each) { return static_cast<std::size_t>(elements) * each; }

}  // namespace

template <class T>
std::int64_t OffloadedArray<T>::file_bytes(std::int64_t n) {
  auto const pieces = n / piece, rest = n % piece;
  auto const each = static_cast<std::int64_t>(sizeof(T));
  return pieces * SwapFile::padded(piece * each) + SwapFile::padded(rest * each);
}

template <class T>
OffloadedArray<T>::OffloadedArray(std::int64_t n, SwapFile* file, std::int64_t offset)
    : size_(n), file_(file), offset_(offset), stored_(static_cast<std::size_t>(num_pieces()), false) {
  if (file_ == nullptr) host_.resize(static_cast<std::size_t>(n));
}

template <class T>
SwapFile::Request OffloadedArray<T>::start_load(std::int64_t p, T* host) {
  if (number_in_hand_ == p) put_back();
  auto const n = piece_size(p);
  auto const bytes = bytes_of(n, sizeof(T));
  if (file_ == nullptr) {
    std::memcpy(host, host_.data() + p * piece, bytes);
    return {};
  }
  if (!stored_[static_cast<std::size_t>(p)]) {
    std::fill(host, host + n, T{});
    return {};
  }
  return file_->read(offset_ + p * SwapFile::padded(piece * static_cast<std::int64_t>(sizeof(T))), host,
                     static_cast<std::int64_t>(bytes));
}

template <class T>
SwapFile::Request OffloadedArray<T>::start_store(std::int64_t p, T const* host) {
  if (number_in_hand_ == p) number_in_hand_ = -1;
  auto const bytes = bytes_of(piece_size(p), sizeof(T));
  if (file_ == nullptr) {
    std::memcpy(host_.data() + p * piece, host, bytes);
    return {};
  }
  stored_[static_cast<std::size_t>(p)] = true;
  return file_->write(offset_ + p * SwapFile::padded(piece * static_cast<std::int64_t>(sizeof(T))), host,
                      static_cast<std::int64_t>(bytes));
}

template <class T>
void OffloadedArray<T>::put_back() {
  if (!std::exchange(changed_, false)) return;
  auto const p = number_in_hand_;
  auto request = start_store(p, in_hand_.data());
  if (request.active()) request.wait();
  number_in_hand_ = p;
}

template <class T>
void OffloadedArray<T>::let_go() {
  put_back();
  number_in_hand_ = -1;
  in_hand_ = {};
}

template <class T>
void OffloadedArray<T>::take(std::int64_t p) {
  if (number_in_hand_ == p) return;
  put_back();
  in_hand_.resize(static_cast<std::size_t>(std::min(piece, size_)));
  auto request = start_load(p, in_hand_.data());
  if (request.active()) request.wait();
  number_in_hand_ = p;
}

template <class T>
void OffloadedArray<T>::read(std::int64_t first, std::int64_t count, T* out) {
  P3D_REQUIRE(first >= 0 && count >= 0 && first + count <= size_, "the elements are the array's");
  for (std::int64_t done = 0; done < count;) {
    auto const at = first + done, p = at / piece, begin = at - p * piece;
    auto const n = std::min(count - done, piece_size(p) - begin);
    take(p);
    std::copy_n(in_hand_.data() + begin, n, out + done);
    done += n;
  }
}

template <class T>
void OffloadedArray<T>::write(std::int64_t first, std::int64_t count, T const* in) {
  P3D_REQUIRE(first >= 0 && count >= 0 && first + count <= size_, "the elements are the array's");
  for (std::int64_t done = 0; done < count;) {
    auto const at = first + done, p = at / piece, begin = at - p * piece;
    auto const n = std::min(count - done, piece_size(p) - begin);
    take(p);
    std::copy_n(in + done, n, in_hand_.data() + begin);
    changed_ = true;
    done += n;
  }
}

template class OffloadedArray<float>;
template class OffloadedArray<double>;
template class OffloadedArray<bfloat16>;
template class OffloadedArray<float16>;

}  // namespace p3d::device
