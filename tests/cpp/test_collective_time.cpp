// The time of collectives: by hand for NCCL's figures, and what the step bound counts on for random ones.
#include "search/problem/collective_time.hpp"

#include <cmath>

#include "check.hpp"
#include "random_model.hpp"

using namespace osdp::search;

namespace {

constexpr double us = 1e-6;

Device eight_h100() {
  Device device;
  device.ranks = 8;
  device.all_gather = device.reduce_scatter = device.all_reduce = {3.4 * us, 1 / 360e9};
  device.protocols = {{Algorithm::Ring, 6.6 * us, 0.6 * us, 2.7 * us, 0.5, 141e9},
                      {Algorithm::Ring, 8.4 * us, 3.4 * us, 14 * us, 1, 0},
                      {Algorithm::InSwitch, 25 * us, 0, 0, 0.8, 0}};
  return device;
}

void near(double found, double expected) { CHECK(std::abs(found - expected) <= 1e-9 * std::abs(expected)); }

void test_by_hand() {
  Device device = eight_h100();
  const Collectives one_host(device);
  // LL up to a few MB: seven hops of 0.6 us. Simple for many bytes: seven of 3.4 us.
  near(one_host.gather(Mode::FullShard).seconds(1000), 10.8 * us + 7.0 / 8 * 1000 / 141e9);
  near(one_host.gather(Mode::FullShard).seconds(1 << 30), 32.2 * us + 7.0 / 8 * (1 << 30) / 360e9);
  near(one_host.reduce(Mode::FullShard).largest_latency_s(), 32.2 * us);
  // An all-reduce: the ring's 14 hops of LL, or the switch, which adds.
  near(one_host.all_reduce().seconds(1000), 15 * us + 14.0 / 8 * 1000 / 141e9);
  near(one_host.all_reduce().seconds(1 << 30), 25 * us + 7.0 / 8 * (1 << 30) / (0.8 * 360e9));
  // Four hosts of eight: 28 inner and 3 outer hops.
  device.ranks = 32, device.hosts = 4, device.between_hosts = {14 * us, 1 / 320e9};
  device.protocols[2] = {Algorithm::Tree, 6.8 * us, 0.6 * us, 5 * us, 0.25, 0};
  const Collectives hosts(device);
  near(hosts.gather(Mode::FullShard).largest_latency_s(), (8.4 + 28 * 3.4 + 3 * 14) * us);
  near(hosts.gather(Mode::HybridShard).largest_latency_s(), 32.2 * us);
  // A tree: seven inner hops and two outer ones, up and down.
  near(hosts.all_reduce().latency_s(1),
       std::min(6.6 + 2 * (28 * 0.6 + 3 * 2.7), 6.8 + 2 * (7 * 0.6 + 2 * 5)) * us + 2 * 4 / 320e9 -
           2 * 31.0 / 32 / 320e9);
  near(hosts.average(Mode::HybridShard).largest_latency_s(), (8.4 + 6 * 14) * us);  // one rank of each host
}

// Without protocols to the bit what measured machines have always had.
void test_measured_machines() {
  Random r(3);
  for (int n = 0; n < 200; ++n) {
    Device device = random_request(r).device;
    const int64_t bytes = draw(r, 1, 1000000);
    const auto ranks = static_cast<double>(device.ranks);
    const Collective& c = device.all_reduce;
    CHECK_EQ(Collectives(device).all_reduce().seconds(bytes, 0.25),
             2 * ((ranks - 1) * (0.25 * c.alpha_s + static_cast<double>(bytes) / ranks * c.beta_s_per_byte)));
  }
}

// The latency of more bytes is no less, and no more than apart; nothing takes longer together than apart.
void test_units_may_be_joined() {
  Random r(4);
  for (int n = 0; n < 2000; ++n) {
    Device device = random_request(r).device;
    if (r() % 2 == 0)
      device.hosts = draw(r, 2, 4), device.ranks = device.hosts * draw(r, 1, 4),
      device.between_hosts = {1e-9, 2e-9};
    device.protocols = random_protocols(r);
    const Collectives all(device);
    for (const CollectiveTime& time :
         {all.gather(Mode::FullShard), all.gather(Mode::HybridShard), all.all_reduce()}) {
      const int64_t a = draw(r, 1, 200), b = draw(r, 1, 200);
      constexpr double slack = 1e-15;
      CHECK(time.seconds(a + b) <= time.seconds(a) + time.seconds(b) + slack);
      CHECK(time.latency_s(a + b) >= time.latency_s(a) - slack);
      CHECK(time.latency_s(a) <= time.largest_latency_s() + slack);
      CHECK(time.seconds(a) >= time.transfer_s(a) - slack);
      CHECK(std::abs(time.seconds(a) - time.transfer_s(a) - time.latency_s(a)) <= slack);
    }
  }
}

}  // namespace

int main() {
  test_by_hand();
  test_measured_machines();
  test_units_may_be_joined();
  return report("collective time");
}
