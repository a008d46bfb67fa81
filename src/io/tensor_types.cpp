// SPDX-License-Identifier: Apache-2.0
#include "tensor_types.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/float16.hpp>

#include <cmath>
#include <cstring>

namespace p3d::io {

namespace {

/// All dtypes; the first four stand in the order of TensorType.
constexpr DtypeRow dtypes[] = {{"F64", 8, TensorType::f64},
                               {"F32", 4, TensorType::f32},
                               {"F16", 2, TensorType::f16},
                               {"BF16", 2, TensorType::bf16},
                               {"BOOL", 1, {}},
                               {"U8", 1, {}},
                               {"I8", 1, {}},
                               {"F8_E5M2", 1, {}},
                               {"F8_E4M3", 1, {}},
                               {"F8_E8M0", 1, {}},
                               {"I16", 2, {}},
                               {"U16", 2, {}},
                               {"I32", 4, {}},
                               {"U32", 4, {}},
                               {"I64", 8, {}},
                               {"U64", 8, {}},
                               {"C64", 8, {}}};

/// Number i at `from`, of any alignment.
template <class T>
T load(char const* from, std::int64_t i) {
  T value;
  std::memcpy(&value, from + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <class To>
void widen_to(TensorType type, char const* from, std::int64_t n, To* out) {
  switch (type) {
    case TensorType::f64:
      for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<To>(load<double>(from, i));
      return;
    case TensorType::f32:
      for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<To>(load<float>(from, i));
      return;
    case TensorType::f16:
      for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<To>(base::float16_value(load<std::uint16_t>(from, i)));
      return;
    case TensorType::bf16:
      for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<To>(base::bfloat16_value(load<std::uint16_t>(from, i)));
      return;
  }
}

template <class T>
void store(char* out, std::int64_t i, T value) {
  std::memcpy(out + i * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
}

/// A float that rounds to 16 bits as x does. Without it a double would be rounded twice, to the nearest float and then
/// to 16 bits: 1 + 2^-8 + 2^-40 becomes the float 1 + 2^-8, which lies in the middle between two bfloat16. Here what is
/// cut off only sets the last bit ("rounding to odd"), which is enough where the float has two bits more than the
/// result (Boldo and Melquiond, IEEE Transactions on Computers 57, 2008).
float to_odd(float x) { return x; }
float to_odd(double x) {
  auto const near = static_cast<float>(x);
  if (static_cast<double>(near) == x || x != x) return near;
  auto bits = base::bits_of_float(near);
  if (std::fabs(static_cast<double>(near)) > std::fabs(x)) --bits;  // toward zero; infinity becomes the largest float
  return base::float_of_bits(bits | 1u);
}

template <class From>
void narrow_from(From const* in, std::int64_t n, TensorType type, char* out) {
  switch (type) {
    case TensorType::f64:
      for (std::int64_t i = 0; i < n; ++i) store(out, i, static_cast<double>(in[i]));
      return;
    case TensorType::f32:
      for (std::int64_t i = 0; i < n; ++i) store(out, i, static_cast<float>(in[i]));
      return;
    case TensorType::f16:
      for (std::int64_t i = 0; i < n; ++i) store(out, i, base::float16_bits(to_odd(in[i])));
      return;
    case TensorType::bf16:
      for (std::int64_t i = 0; i < n; ++i) store(out, i, base::bfloat16_bits(to_odd(in[i])));
      return;
  }
}

}  // namespace

DtypeRow const* find_dtype(std::string_view name) {
  for (auto const& row : dtypes) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

char const* name(TensorType type) { return dtypes[static_cast<std::size_t>(type)].name; }
std::size_t size_of(TensorType type) { return static_cast<std::size_t>(dtypes[static_cast<std::size_t>(type)].bytes); }

void widen(TensorType type, char const* from, std::int64_t count, Element as, void* out) {
  if (as == Element::float32)
    widen_to(type, from, count, static_cast<float*>(out));
  else
    widen_to(type, from, count, static_cast<double*>(out));
}

void narrow(Element from, void const* numbers, std::int64_t count, TensorType type, char* out) {
  if (from == Element::float32)
    narrow_from(static_cast<float const*>(numbers), count, type, out);
  else
    narrow_from(static_cast<double const*>(numbers), count, type, out);
}

}  // namespace p3d::io
