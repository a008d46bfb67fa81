// A project outside p3d: links p3d::p3d, includes public headers of rooms with and without third parties, calls into libp3d.
#include <p3d/base/random.hpp>
#include <p3d/base/version.hpp>
#include <p3d/comm/communicator.hpp>
#include <p3d/config/config.hpp>
#include <p3d/device/view.hpp>
#include <p3d/schedule/action.hpp>

#include <cstdio>

int main() {
  auto const key = p3d::base::random_key(1, "consumer");
  std::printf("p3d %s %u\n", p3d::base::version().c_str(), p3d::base::random_word(key, 0, 0));
  return p3d::base::version().empty() ? 1 : 0;
}
