#include "runtime/ring.hpp"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "runtime/arithmetic.hpp"
#include "runtime/messages.hpp"
#include "runtime/parts.hpp"

namespace osdp::runtime {
namespace {

// Flat tensors, each cut into `world` chunks and those into segments, all tensors' behind each other.
class Segments {
 public:
  Segments(const Tensors& tensors, int64_t world, int64_t longest_bytes) : tensors_(tensors) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      const int64_t n = tensors[i].numel(), chunk = (n + world - 1) / world;
      const int64_t step = longest_bytes / tensors[i].element_size();
      for (int64_t begin = 0; begin < chunk; begin += step)
        list_.push_back({i, chunk, begin, std::min(step, chunk - begin)});
    }
  }

  int64_t count() const { return static_cast<int64_t>(list_.size()); }
  // Empty where the chunk, a last one, is too short for it.
  Range operator()(int64_t chunk, int64_t segment) const {
    const Segment& s = list_[segment];
    const int64_t begin = chunk * s.chunk + s.begin;
    return {&tensors_[s.tensor], begin, std::min(s.count, tensors_[s.tensor].numel() - begin)};
  }

 private:
  struct Segment {
    size_t tensor;
    int64_t chunk, begin, count;
  };
  const Tensors& tensors_;
  std::vector<Segment> list_;
};

void put(const Range& range, const void* message) {
  if (range.data() != message) std::memcpy(range.data(), message, range.bytes());
}

// A group's link is made once, by all of its ranks, and outlives the models that use it: ranks let go of
// those at different times.
std::shared_ptr<Link> link_of(const std::string& group, const c10::intrusive_ptr<c10d::Backend>& backend) {
  static std::mutex mutex;
  static auto* links = new std::map<std::string, std::shared_ptr<Link>>();
  std::lock_guard lock(mutex);
  const auto [at, made] = links->try_emplace(group);
  if (made && backend->getSize() > 1) {
    at->second = shared_memory_link(backend);
    if (!at->second) at->second = socket_link(backend);
  }
  if (at->second) return at->second;
  return gloo_link(backend);  // not kept: it holds the backend, which ends with its process group
}

}  // namespace

Ring::Ring(const std::string& group, c10::intrusive_ptr<c10d::Backend> backend)
    : Collectives(std::move(backend)), link_(link_of(group, backend_)), ranks_(ranks_of_part(group)) {}

Head Ring::head_of(Tensors whole, int64_t chunks, int64_t chunk) const {
  Head head;
  if (!link_->sends_ahead() || whole.empty()) return head;
  head.link = link_.get();
  head.whole = std::move(whole);
  const Segments segments(head.whole, chunks, link_->longest_message_bytes());
  for (int64_t s = 0; s < segments.count(); ++s)
    if (const Range range = segments(chunk, s); !range.empty()) head.messages.push_back(range);
  return head;
}

Head Ring::head_of_gather(const Tensors& inputs) const { return head_of(inputs, 1, 0); }
Head Ring::head_of_reduce_scatter(const Tensors& inputs) const {
  return head_of(inputs, world(), chunk_before(1));
}
Head Ring::head_of_all_reduce(const Tensors& tensors) const {
  Tensors together;
  for (const at::Tensor& tensor : tensors)
    if (!at_once(tensor)) together.push_back(tensor);
  return head_of(std::move(together), world(), chunk_before(1));
}

bool Ring::at_once(const at::Tensor& tensor) const {
  return static_cast<int64_t>(tensor.nbytes()) <= link_->latency_bytes();
}

void Ring::run(const Course& course) {
  int64_t bytes = 0;
  for (int64_t i = 0; i < course.messages(); ++i)
    if (const Range range = course.sent(i); !range.empty()) bytes += range.bytes();
  sent_bytes_ += bytes;
  naming_ranks([&] { link_->run(course); });
}

template <typename Work>
void Ring::naming_ranks(Work work) const {
  try {
    work();
  } catch (const ConnectionLost& e) {
    if (ranks_.empty() || e.peer < 0) throw;
    throw ConnectionLost(ranks_.at(e.peer), e.what());
  }
}

void Ring::gather(const Tensors& outputs, const Tensors& inputs) {
  const Segments segments(outputs, world(), link_->longest_message_bytes());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const int64_t n = inputs[i].numel();
    at::Tensor own = outputs[i].narrow(0, rank() * n, n);
    if (own.const_data_ptr() != inputs[i].const_data_ptr()) own.copy_(inputs[i]);
  }
  const auto arriving = [&](int64_t t, int64_t s) { return segments(chunk_before(t + 1), s); };
  run({.steps = world() - 1,
       .segments = segments.count(),
       .window = 2 * link_->window(),
       .to_send = [&](int64_t t, int64_t s) { return segments(chunk_before(t), s); },
       .counterpart = arriving,
       .inbox = arriving,
       .take = [&](int64_t t, int64_t s, const void* message) { put(arriving(t, s), message); }});
}

void Ring::reduce_scatter(const Tensors& outputs, const Tensors& inputs) {
  const Segments gradients(inputs, world(), link_->longest_message_bytes());
  const Segments own(outputs, 1, link_->longest_message_bytes());
  const int64_t last = world() - 2;
  const auto mine = [&](int64_t t, int64_t s) { return gradients(chunk_before(t + 2), s); };
  run({.steps = world() - 1,
       .segments = gradients.count(),
       .window = std::min(link_->window(), gradients.count()),
       .to_send = [&](int64_t t, int64_t s) { return gradients(chunk_before(t + 1), s); },
       .counterpart = mine,
       .inbox = [&](int64_t, int64_t s) { return own(0, s); },
       .take =
           [&](int64_t t, int64_t s, const void* partial) {
             if (t < last) return add_into(mine(t, s), partial);
             const Range mean = own(0, s);
             put(mean, partial);
             add_into(mean, mine(t, s).data());
             scale_by(mean, share());
           }});
}

// Note [An all-reduce is one course]
// Its second half, an all-gather of the sums, sends chunk_before(t + 1) and receives chunk_before(t + 2) as
// the first half does: the chunks only go round once more. So it is one course of 2 (world - 1) steps, and
// the first segments of the second half are on their way before the last of the first half have come.
void Ring::all_reduce(const Tensors& tensors) {
  Tensors together;
  for (const at::Tensor& tensor : tensors) {
    if (at_once(tensor))
      exchange(tensor);
    else
      together.push_back(tensor);
  }
  const Segments segments(together, world(), link_->longest_message_bytes());
  const int64_t window = std::min(link_->window(), segments.count()), last = world() - 2;
  const auto mine = [&](int64_t t, int64_t s) { return segments(chunk_before(t + 2), s); };
  int64_t longest = 0;
  for (int64_t s = 0; s < segments.count(); ++s) longest = std::max(longest, segments(0, s).bytes());
  at::Tensor places;  // bytes
  run({.steps = 2 * (world() - 1),
       .segments = segments.count(),
       .window = window,
       .to_send = [&](int64_t t, int64_t s) { return segments(chunk_before(t + 1), s); },
       .counterpart = mine,
       .inbox =
           [&](int64_t t, int64_t s) {
             if (t > last) return mine(t, s);
             if (!places.defined()) places = at::empty({window * longest}, at::kByte);
             return Range{&places, (t * segments.count() + s) % window * longest, mine(t, s).bytes()};
           },
       .take =
           [&](int64_t t, int64_t s, const void* message) {
             if (t > last) return put(mine(t, s), message);
             add_into(mine(t, s), message);
             if (t == last) scale_by(mine(t, s), share());
           }});
}

void Ring::exchange(const at::Tensor& tensor) {
  const int64_t n = tensor.numel();
  at::Tensor all = at::empty({world() * n}, tensor.options());
  naming_ranks([&] {
    Messages messages(*backend_);
    std::vector<Messages::Message> under_way;
    for (int64_t r = 0; r < world(); ++r) {
      const at::Tensor theirs = all.narrow(0, r * n, n);
      if (r == rank()) {
        theirs.copy_(tensor);
        continue;
      }
      under_way.push_back(messages.receive(theirs, static_cast<int>(r)));
      under_way.push_back(messages.send(tensor, static_cast<int>(r)));
      sent_bytes_ += static_cast<int64_t>(tensor.nbytes());
    }
    for (const Messages::Message& message : under_way) messages.wait(message);
  });
  at::Tensor(tensor).copy_(all.narrow(0, 0, n));
  for (int64_t r = 1; r < world(); ++r) add_into(tensor, all.narrow(0, r * n, n));
  scale_by(tensor, share());
}

}  // namespace osdp::runtime
