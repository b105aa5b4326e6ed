// Transports of a kind for the C++ tests, on one host, where ranks would share memory by themselves.
#pragma once

#include <cstdlib>
#include <string>

#include "comm/parts.hpp"
#include "comm/ring.hpp"
#include "comm/transports/transports.hpp"
#include "ranks.hpp"

namespace ranks {

inline const char* kTransports[] = {"shared memory", "sockets", "gloo"};

// Before threads or processes are started.
inline void want(const std::string& link) {
  setenv("GLOO_SOCKET_IFNAME", "lo", 1);
  setenv("OSDP_SHARED_MEMORY", link == "shared memory" ? "1" : "0", 1);
  setenv("OSDP_SOCKETS", link == "gloo" ? "0" : "1", 1);
}

inline std::unique_ptr<comm::Ring> ring_of(Rank& me) {
  return std::make_unique<comm::Ring>(comm::make_transport(me.peers), me.peers, std::vector<int64_t>());
}

inline comm::Range range_of(std::vector<float>& values) {
  return {reinterpret_cast<char*>(values.data()),
          static_cast<int64_t>(values.size()),
          {4, osdp::elementwise::DType::Float32}};
}

// Small whole numbers: sums are exact, whatever their order.
inline float number(int rank, int64_t i) { return static_cast<float>((i * 7 + rank * 3) % 16); }
inline std::vector<float> numbers(int rank, int64_t count) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = number(rank, i);
  return values;
}
inline float mean(int world, int64_t i) {
  float sum = 0;
  for (int r = 0; r < world; ++r) sum += number(r, i);
  return sum * static_cast<float>(1.0 / world);
}

}  // namespace ranks
