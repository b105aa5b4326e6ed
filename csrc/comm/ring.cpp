#include "comm/ring.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "comm/messages.hpp"
#include "faults/errors.hpp"

namespace osdp::comm {
namespace {

// Divides each array into `world` chunks and each chunk into segments; the segments of all arrays are
// numbered consecutively.
class Segments {
 public:
  Segments(const Ranges& arrays, int64_t world, int64_t longest_bytes) : arrays_(arrays) {
    for (size_t i = 0; i < arrays.size(); ++i) {
      const int64_t n = arrays[i].count, chunk = (n + world - 1) / world;
      const int64_t step = longest_bytes / arrays[i].element.bytes;
      for (int64_t begin = 0; begin < chunk; begin += step)
        list_.push_back({i, chunk, begin, std::min(step, chunk - begin)});
    }
  }

  int64_t count() const { return static_cast<int64_t>(list_.size()); }
  // Empty (count <= 0) if the chunk is one of the last and too short to have this segment.
  Range operator()(int64_t chunk, int64_t segment) const {
    const Segment& s = list_[segment];
    const Range& array = arrays_[s.array];
    const int64_t begin = chunk * s.chunk + s.begin;
    return array.part(begin, std::min(s.count, array.count - begin));
  }

 private:
  struct Segment {
    size_t array;
    int64_t chunk, begin, count;
  };
  const Ranges& arrays_;
  std::vector<Segment> list_;
};

void put(const Range& range, const void* message) {
  if (range.data != message) std::memcpy(range.data, message, range.bytes());
}

elementwise::DType summed_as(const Range& range) {
  OSDP_CHECK(range.element.dtype, Sharding,
             "OSDP: elements of this type cannot be averaged over ranks (integers?)");
  return *range.element.dtype;
}

// sum += addends, of the same count and type. On this thread only, since the other threads compute.
void add_into(const Range& sum, const void* addends) {
  const elementwise::DType type = summed_as(sum);
  elementwise::accumulate(sum.data, type, addends, type, sum.count);
}

void scale_by(const Range& range, double factor) {
  elementwise::scale(range.data, summed_as(range), range.count, factor);
}

// Temporary memory, aligned for vectorised loops.
std::shared_ptr<char> memory_of(int64_t bytes) {
  constexpr size_t line = 64;
  const size_t size = (std::max<int64_t>(bytes, 1) + line - 1) / line * line;
  std::shared_ptr<char> memory(static_cast<char*>(std::aligned_alloc(line, size)), &std::free);
  if (!memory) throw std::bad_alloc();
  return memory;
}

}  // namespace

EarlySend Ring::early_send_of(const Ranges& whole, int64_t chunks, int64_t chunk) const {
  EarlySend early;
  if (!transport_->sends_early() || whole.empty()) return early;
  early.transport = transport_.get();
  const Segments segments(whole, chunks, transport_->longest_message_bytes());
  for (int64_t s = 0; s < segments.count(); ++s)
    if (const Range range = segments(chunk, s); !range.empty()) early.messages.push_back(range);
  return early;
}

EarlySend Ring::early_send_of_all_reduce(const Ranges& arrays) const {
  Ranges together;
  for (const Range& array : arrays)
    if (!at_once(array)) together.push_back(array);
  return early_send_of(together, world(), chunk_before(1));
}

bool Ring::at_once(const Range& array) const { return array.bytes() <= transport_->latency_bytes(); }

void Ring::run(const RingSchedule& schedule) {
  int64_t bytes = 0;
  for (int64_t i = 0; i < schedule.messages(); ++i)
    if (const Range range = schedule.sent(i); !range.empty()) bytes += range.bytes();
  sent_bytes_ += bytes;
  naming_ranks([&] { transport_->run(schedule); });
}

template <typename Work>
void Ring::naming_ranks(Work work) const {
  try {
    work();
  } catch (const faults::ConnectionLost& e) {
    if (ranks_.empty() || e.peer < 0) throw;
    throw faults::ConnectionLost(ranks_.at(e.peer), e.what());
  }
}

void Ring::gather(const Ranges& outputs, const Ranges& inputs) {
  const Segments segments(outputs, world(), transport_->longest_message_bytes());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const int64_t n = inputs[i].count;
    if (n > 0) put(outputs[i].part(rank() * n, n), inputs[i].data);
  }
  const auto arriving = [&](int64_t t, int64_t s) { return segments(chunk_before(t + 1), s); };
  run({.steps = world() - 1,
       .segments = segments.count(),
       .window = 2 * transport_->window(),
       .to_send = [&](int64_t t, int64_t s) { return segments(chunk_before(t), s); },
       .counterpart = arriving,
       .inbox = arriving,
       .take = [&](int64_t t, int64_t s, const void* message) { put(arriving(t, s), message); }});
}

void Ring::reduce_scatter(const Ranges& outputs, const Ranges& inputs) {
  const Segments gradients(inputs, world(), transport_->longest_message_bytes());
  const Segments own(outputs, 1, transport_->longest_message_bytes());
  const int64_t last = world() - 2;
  const auto mine = [&](int64_t t, int64_t s) { return gradients(chunk_before(t + 2), s); };
  run({.steps = world() - 1,
       .segments = gradients.count(),
       .window = std::min(transport_->window(), gradients.count()),
       .to_send = [&](int64_t t, int64_t s) { return gradients(chunk_before(t + 1), s); },
       .counterpart = mine,
       .inbox = [&](int64_t, int64_t s) { return own(0, s); },
       .take =
           [&](int64_t t, int64_t s, const void* partial) {
             if (t < last) return add_into(mine(t, s), partial);
             const Range mean = own(0, s);
             put(mean, partial);
             add_into(mean, mine(t, s).data);
             scale_by(mean, share());
           }});
}

// Note [An all-reduce is one schedule]
// Its second half, an all-gather of the sums, sends chunk_before(t + 1) and receives chunk_before(t + 2) like
// the first half: the chunks just go round the ring once more. So it is one schedule of 2 (world - 1) steps,
// and the first segments of the second half are in flight before the last ones of the first half have
// arrived.
void Ring::all_reduce(const Ranges& arrays) {
  Ranges together;
  for (const Range& array : arrays) {
    if (at_once(array))
      exchange(array);
    else
      together.push_back(array);
  }
  const Segments segments(together, world(), transport_->longest_message_bytes());
  const int64_t window = std::min(transport_->window(), segments.count()), last = world() - 2;
  const auto mine = [&](int64_t t, int64_t s) { return segments(chunk_before(t + 2), s); };
  int64_t longest = 0;
  for (int64_t s = 0; s < segments.count(); ++s) longest = std::max(longest, segments(0, s).bytes());
  std::shared_ptr<char> places;
  run({.steps = 2 * (world() - 1),
       .segments = segments.count(),
       .window = window,
       .to_send = [&](int64_t t, int64_t s) { return segments(chunk_before(t + 1), s); },
       .counterpart = mine,
       .inbox =
           [&](int64_t t, int64_t s) {
             if (t > last) return mine(t, s);
             if (!places) places = memory_of(window * longest);
             return Range{
                 places.get() + (t * segments.count() + s) % window * longest, mine(t, s).bytes(), {}};
           },
       .take =
           [&](int64_t t, int64_t s, const void* message) {
             if (t > last) return put(mine(t, s), message);
             add_into(mine(t, s), message);
             if (t == last) scale_by(mine(t, s), share());
           }});
}

// Note [A broadcast is a schedule]
// In step t rank t sends everything to the next rank; the segments are pipelined through the ranks. In the
// last step the last rank returns the last segment to rank 0, so that rank 0 does not finish and continue
// before all ranks have begun (Note [Who is at fault]).
void Ring::broadcast(const Ranges& arrays) {
  const Segments segments(arrays, 1, transport_->longest_message_bytes());
  const auto in_step = [&](int64_t sender, int64_t t, int64_t s) {
    const bool returned = t < world() - 1 || s == segments.count() - 1;
    return t == sender && returned ? segments(0, s) : Range();
  };
  const auto arriving = [&](int64_t t, int64_t s) { return in_step(chunk_before(1), t, s); };
  run({.steps = world(),
       .segments = segments.count(),
       .window = 2 * transport_->window(),
       .to_send = [&](int64_t t, int64_t s) { return in_step(rank(), t, s); },
       .counterpart = arriving,
       .inbox = arriving,
       .take = [&](int64_t t, int64_t s, const void* message) { put(arriving(t, s), message); }});
}

void Ring::exchange(const Range& array) {
  const int64_t n = array.bytes();
  if (n == 0) return;
  const std::shared_ptr<char> memory = memory_of(world() * n);
  const auto of_rank = [&](int64_t r) { return Range{memory.get() + r * n, array.count, array.element}; };
  naming_ranks([&] {
    Messages messages(*peers_);
    std::vector<Messages::Message> under_way;
    for (int64_t r = 0; r < world(); ++r) {
      if (r == rank()) {
        put(of_rank(r), array.data);
        continue;
      }
      under_way.push_back(messages.receive(of_rank(r), static_cast<int>(r)));
      under_way.push_back(messages.send(array, static_cast<int>(r)));
      sent_bytes_ += n;
    }
    for (const Messages::Message& message : under_way) messages.wait(message);
  });
  put(array, of_rank(0).data);
  for (int64_t r = 1; r < world(); ++r) add_into(array, of_rank(r).data);
  scale_by(array, share());
}

}  // namespace osdp::comm
