// SPDX-License-Identifier: Apache-2.0
// bfloat16 and float16 against ml-dtypes and NumPy (make_float16_reference.py wrote the reference and describes it),
// and single conversions whose results are known.

#include <p3d/base/hash.hpp>
#include <p3d/device/environment.hpp>
#include <p3d/device/guard.hpp>
#include <p3d/device/precision.hpp>
#include <p3d/device/view.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace device = p3d::device;
using device::bfloat16;
using device::float16;

namespace float16_test {

struct Record {
  std::uint64_t hash = 0;
  std::vector<std::uint32_t> samples;
};
/// By "widened bfloat16" and so on.
std::map<std::string, Record> read_reference() {
  std::ifstream file(P3D_SOURCE_DIR "/tests/unit/device/float16.reference.txt");
  EXPECT_TRUE(file);
  std::map<std::string, Record> records;
  for (std::string what, rest; file >> what;) {
    if (what == "#") {
      std::getline(file, rest);
      continue;
    }
    std::string type;
    std::size_t count = 0;
    Record r;
    file >> type >> std::hex >> r.hash >> std::dec >> count >> std::hex;
    r.samples.resize(count);
    for (auto& sample : r.samples) file >> sample;
    file >> std::dec;
    records[what + " " + type] = r;
  }
  return records;
}

/// The floats of the reference, as bits.
std::vector<std::uint32_t> floats() {
  std::vector<std::uint32_t> out;
  for (std::uint64_t i = 0; i < 1000000; ++i) {
    std::uint64_t z = (i + 1) * 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    z = z ^ (z >> 31);
    auto const bits = static_cast<std::uint32_t>(z >> 32), low = static_cast<std::uint32_t>(z);
    std::uint32_t const sign = bits & 0x80000000u, fraction = bits & 0x7fffffu, near = sign | (97u + low % 48u) << 23;
    std::uint32_t const top = sign | 0x7f800000u;
    switch (i % 8) {
      case 4: out.push_back((bits & 0xffff0000u) | 0x8000u); break;
      case 5: out.push_back(near | (fraction & 0x7fe000u) | 0x1000u); break;
      case 6: out.push_back(near | fraction); break;
      case 7: out.push_back(low & 1 ? (low & 2 ? top | fraction : top) : sign | fraction); break;
      default: out.push_back(bits);
    }
  }
  return out;
}

template <class T>
device::Owned1<T> copy_of(std::vector<T> const& v) {
  device::Owned1<T> const out("p3d::test::copy", v.size());
  auto const host = device::host_mirror(out);
  std::copy(v.begin(), v.end(), host.data());
  Kokkos::deep_copy(out, host);
  return out;
}

/// Where kernels run.
template <class S>
std::vector<std::uint32_t> widen_all() {
  device::Owned1<std::uint32_t> const out("p3d::test::out", 65536);
  Kokkos::parallel_for(
      "p3d::test::widen", Kokkos::RangePolicy<device::ExecSpace>(0, 65536), KOKKOS_LAMBDA(int i) {
        S x;
        x.bits = static_cast<std::uint16_t>(i);
        out(i) = p3d::base::bits_of_float(x);
      });
  auto const host = device::host_copy(out);
  return {host.data(), host.data() + host.size()};
}
template <class S>
std::vector<std::uint16_t> round_all(std::vector<std::uint32_t> const& bits) {
  auto const in = copy_of(bits);
  device::Owned1<std::uint16_t> const out("p3d::test::out", bits.size());
  Kokkos::parallel_for(
      "p3d::test::round", Kokkos::RangePolicy<device::ExecSpace>(0, static_cast<int>(bits.size())),
      KOKKOS_LAMBDA(int i) { out(i) = S(p3d::base::float_of_bits(in(i))).bits; });
  auto const host = device::host_copy(out);
  return {host.data(), host.data() + host.size()};
}

/// The numbers of kernels on a GPU are those of the host, but which NaN a NaN becomes is the GPU's business. Elsewhere
/// `found` is what kernels gave. Returns the host's.
template <class T, class OnHost, class IsNan>
std::vector<T> as_on_host(std::vector<T> const& found, OnHost const& on_host, IsNan const& nan) {
  if (device::on_host()) return found;
  std::vector<T> host;
  for (std::size_t i = 0; i < found.size(); ++i) {
    host.push_back(on_host(i));
    if (nan(host.back())) {
      EXPECT_TRUE(nan(found[i])) << i;
    } else {
      EXPECT_EQ(found[i], host.back()) << i;
    }
  }
  return host;
}
template <class S>
bool nan16(std::uint16_t bits) {
  S x;
  x.bits = bits;
  return std::isnan(static_cast<float>(x));
}
bool nan32(std::uint32_t bits) { return std::isnan(p3d::base::float_of_bits(bits)); }

template <class S>
std::vector<std::uint32_t> widened() {
  return as_on_host(
      widen_all<S>(),
      [](std::size_t i) {
        S x;
        x.bits = static_cast<std::uint16_t>(i);
        return p3d::base::bits_of_float(x);
      },
      nan32);
}
template <class S>
std::vector<std::uint16_t> rounded(std::vector<std::uint32_t> const& numbers) {
  return as_on_host(
      round_all<S>(numbers), [&](std::size_t i) { return S(p3d::base::float_of_bits(numbers[i])).bits; }, nan16<S>);
}

template <class T>
void expect_equal(std::vector<T> const& found, Record const& expected, std::size_t every) {
  ASSERT_EQ(expected.samples.size(), (found.size() + every - 1) / every);
  for (std::size_t i = 0; i < expected.samples.size(); ++i)
    ASSERT_EQ(found[i * every], expected.samples[i]) << "number " << i * every;
  std::string_view const bytes(reinterpret_cast<char const*>(found.data()), found.size() * sizeof(T));
  EXPECT_EQ(p3d::base::fnv1a(bytes), expected.hash) << "the samples are right";
}

TEST(Float16, EveryPatternHasTheValueOfTheReference) {
  auto const reference = read_reference();
  expect_equal(widened<bfloat16>(), reference.at("widened bfloat16"), 64);
  expect_equal(widened<float16>(), reference.at("widened float16"), 64);
}

TEST(Float16, AMillionFloatsRoundAsInTheReference) {
  auto const reference = read_reference();
  auto const numbers = floats();
  expect_equal(rounded<bfloat16>(numbers), reference.at("rounded bfloat16"), 1000);
  expect_equal(rounded<float16>(numbers), reference.at("rounded float16"), 1000);
}

// Back and forth: each pattern is its own rounding, NaNs apart.
template <class S>
void check_round_trip() {
  auto const wide = widened<S>();
  auto const back = rounded<S>(wide);
  for (std::size_t i = 0; i < back.size(); ++i) {
    if (nan32(wide[i]))
      ASSERT_EQ(back[i], (i & 0x8000) | S(std::numeric_limits<float>::quiet_NaN()).bits) << i;
    else
      ASSERT_EQ(back[i], i);
  }
}
TEST(Float16, EveryPatternIsItsOwnRounding) {
  check_round_trip<bfloat16>();
  check_round_trip<float16>();
}

TEST(Float16, StochasticRoundingGoesToANeighbourByTheBitsGiven) {
  float const x = 1.0f + 0x1p-9f;  // a quarter of the way from 1 to 1 + 2^-7
  EXPECT_EQ(static_cast<float>(device::round_stochastically(x, 0)), 1.0f);
  EXPECT_EQ(static_cast<float>(device::round_stochastically(x, 0xbfff)), 1.0f);
  EXPECT_EQ(static_cast<float>(device::round_stochastically(x, 0xc000)), 1.0f + 0x1p-7f);
  EXPECT_EQ(static_cast<float>(device::round_stochastically(-x, 0x5c000)), -1.0f - 0x1p-7f);  // 16 bits count
  float const infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(static_cast<float>(device::round_stochastically(-infinity, 0xffff)), -infinity);
  EXPECT_EQ(device::round_stochastically(std::numeric_limits<float>::quiet_NaN(), 0xffff).bits, 0x7fc0);
}

TEST(Precision, TypesAreThoseOfThePolicies) {
  static_assert(std::is_same_v<device::accumulate_t<bfloat16>, float>);
  static_assert(std::is_same_v<device::accumulate_t<double>, double>);
  EXPECT_TRUE(device::Bf16::has_master);
  EXPECT_FALSE(device::Fp32::has_master);
}

}  // namespace float16_test
