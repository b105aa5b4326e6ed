// Collectives through each kind of transport, ranks as threads: every result, at sizes around the edges of
// messages, with early sends, and on two groups at once.
#include <atomic>

#include "../check.hpp"
#include "comm/transports/shared_memory.hpp"
#include "transports.hpp"

using namespace ranks;

namespace {

std::mutex checking;  // CHECK counts without one

template <typename Value>
void all_equal(const std::vector<float>& found, Value value, const std::string& what) {
  int64_t wrong = 0;
  for (size_t i = 0; i < found.size(); ++i) wrong += found[i] != value(static_cast<int64_t>(i));
  std::lock_guard lock(checking);
  if (wrong) std::cerr << what << ": " << wrong << " of " << found.size() << " differ\n";
  CHECK_EQ(wrong, 0);
}

struct Job {
  std::string label;
  std::function<void()> work;
  comm::EarlySend early;
};

void train(Rank& me, const std::string& link) {
  Lane lane(std::make_shared<faults::GroupHealth>());
  std::unique_ptr<comm::Ring> ring;
  lane.run("connecting", [&] { ring = ring_of(me); });
  {
    std::lock_guard lock(checking);
    CHECK_EQ(std::string(ring->transport().name()), link);
  }
  const int world = me.world;
  for (const int64_t n : {int64_t{1}, int64_t{1000}, ring->transport().longest_message_bytes() / 4 + 3,
                          5 * ring->transport().longest_message_bytes() / 4}) {
    const std::string what = link + ", " + std::to_string(world) + " ranks, " + std::to_string(n);
    std::vector<float> part = numbers(me.rank, n), whole(n * world), full = numbers(me.rank, n * world),
                       own(n), array = numbers(me.rank, 3 * n + 1), from_first = numbers(me.rank, n);
    std::deque<Job> jobs;
    jobs.push_back({"gather", [&] { ring->gather({range_of(whole)}, {range_of(part)}); },
                    ring->early_send_of_gather({range_of(part)})});
    jobs.push_back({"scatter", [&] { ring->reduce_scatter({range_of(own)}, {range_of(full)}); },
                    ring->early_send_of_reduce_scatter({range_of(full)})});
    jobs.push_back({"reduce", [&] { ring->all_reduce({range_of(array)}); },
                    ring->early_send_of_all_reduce({range_of(array)})});
    jobs.push_back({"broadcast", [&] { ring->broadcast({range_of(from_first)}); }, {}});
    std::deque<comm::Upcoming> upcoming;
    for (Job& job : jobs) upcoming.push_back({faults::task_name(job.label), std::move(job.early)});
    for (size_t i = 0; i < jobs.size(); ++i)
      lane.run(jobs[i].label, jobs[i].work, i + 1 < jobs.size() ? &upcoming[i + 1] : nullptr);
    all_equal(whole, [&](int64_t i) { return number(static_cast<int>(i / n), i % n); }, what + " gather");
    all_equal(own, [&](int64_t i) { return mean(world, me.rank * n + i); }, what + " scatter");
    all_equal(array, [&](int64_t i) { return mean(world, i); }, what + " reduce");
    all_equal(from_first, [&](int64_t i) { return number(0, i); }, what + " broadcast");
  }
  // Several arrays at once, of which some are empty, and one that cannot be summed.
  std::vector<float> a = numbers(me.rank, 5), b, c = numbers(me.rank, 70000);
  lane.run("several", [&] { ring->all_reduce({range_of(a), range_of(b), range_of(c)}); });
  all_equal(a, [&](int64_t i) { return mean(world, i); }, "several");
  all_equal(c, [&](int64_t i) { return mean(world, i); }, "several");
}

// The queue of shared memory in one mapping, where the sanitizers see both sides.
void pass_through_a_queue() {
  const comm::SharedQueue queue;
  constexpr int kMessages = 2000;
  std::thread writer([&] {
    for (int i = 0; i < kMessages; ++i) {
      while (queue->full()) std::this_thread::yield();
      const std::vector<int> message(1 + i % 50, i);
      queue->push(message.data(), static_cast<int64_t>(message.size() * sizeof(int)), i % 7);
      queue.ring();
    }
  });
  for (int i = 0; i < kMessages; ++i) {
    while (true) {
      const uint32_t heard = queue->bell.load();
      if (!queue->empty()) break;
      queue.sleep(heard, std::chrono::milliseconds(100));
    }
    const comm::Queue::Message message = queue->front();
    int first = 0;
    std::memcpy(&first, message.data, sizeof first);
    CHECK(first == i && message.digest == static_cast<uint64_t>(i % 7) &&
          message.bytes == static_cast<int64_t>((1 + i % 50) * sizeof(int)));
    queue->pop();
  }
  writer.join();
}

}  // namespace

int main() {
  pass_through_a_queue();
  for (const char* link : kTransports) {
    want(link);
    for (const int world : {2, 3, 4}) on_threads(world, [&](Rank& me) { train(me, link); });
  }
  return report("ring");
}
