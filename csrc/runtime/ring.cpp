#include "runtime/ring.hpp"

#include <ATen/Functions.h>

#include <algorithm>
#include <deque>

#include "runtime/arithmetic.hpp"
#include "runtime/link.hpp"

namespace osdp::runtime {
namespace {

constexpr int64_t kSegmentBytes = 256 * 1024;
constexpr int64_t kWindow = 8;
// Up to this size an all-reduce is latency: everybody sends everything to everybody at once.
constexpr int64_t kLatencyBytes = 16 * 1024;

}  // namespace

// Flat tensors, each cut into `world` chunks and those into segments, all tensors' behind each other.
class Ring::Segments {
 public:
  Segments(const Tensors& tensors, int64_t world) : tensors_(tensors) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      const int64_t n = tensors[i].numel(), chunk = (n + world - 1) / world;
      const int64_t step = std::max<int64_t>(1, kSegmentBytes / tensors[i].element_size());
      for (int64_t begin = 0; begin < chunk; begin += step)
        list_.push_back({i, chunk, begin, std::min(step, chunk - begin)});
    }
  }

  int64_t count() const { return static_cast<int64_t>(list_.size()); }
  // Undefined where the chunk, a last one, is too short for it.
  at::Tensor operator()(int64_t chunk, int64_t segment) const {
    const Segment& s = list_[segment];
    const at::Tensor& t = tensors_[s.tensor];
    const int64_t begin = chunk * s.chunk + s.begin;
    const int64_t count = std::min({s.count, t.numel() - begin});
    return count > 0 ? t.narrow(0, begin, count) : at::Tensor();
  }

 private:
  struct Segment {
    size_t tensor;
    int64_t chunk, begin, count;
  };
  const Tensors& tensors_;
  std::vector<Segment> list_;
};

void Ring::run(const Course& course) {
  const int next = static_cast<int>((rank() + 1) % world());
  const int before = static_cast<int>((rank() + world() - 1) % world());
  const int64_t total = course.steps * course.segments;
  struct Arriving {
    at::Tensor into;
    Link::Message message;
  };
  Link link(*backend_);
  std::deque<Arriving> arriving;
  std::vector<Link::Message> sends;
  int64_t asked = 0, sent = 0;
  const auto at_message = [&](int64_t i) { return std::pair(i / course.segments, i % course.segments); };
  for (int64_t done = 0; done < total; ++done) {
    for (; asked < total && asked < done + course.window; ++asked) {
      const auto [t, s] = at_message(asked);
      const at::Tensor into = course.to_receive(t, s);
      arriving.push_back({into, into.defined() ? link.receive(into, before) : Link::Message()});
    }
    for (; sent < total && sent < done + course.segments; ++sent) {
      const auto [t, s] = at_message(sent);
      if (const at::Tensor part = course.to_send(t, s); part.defined())
        sends.push_back(link.send(part, next));
    }
    Arriving first = std::move(arriving.front());
    arriving.pop_front();
    if (!first.into.defined()) continue;
    link.wait(first.message);
    const auto [t, s] = at_message(done);
    if (course.received) course.received(t, s, first.into);
  }
  for (const Link::Message& send : sends) link.wait(send);
}

void Ring::spread(const Segments& segments) {
  run({.steps = world() - 1,
       .segments = segments.count(),
       .window = 2 * kWindow,
       .to_send = [&](int64_t t, int64_t s) { return segments(chunk_before(t), s); },
       .to_receive = [&](int64_t t, int64_t s) { return segments(chunk_before(t + 1), s); },
       .received = nullptr});
}

void Ring::gather(const Tensors& outputs, const Tensors& inputs) {
  const Segments segments(outputs, world());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const int64_t n = inputs[i].numel();
    at::Tensor own = outputs[i].narrow(0, rank() * n, n);
    if (own.const_data_ptr() != inputs[i].const_data_ptr()) own.copy_(inputs[i]);
  }
  spread(segments);
}

void Ring::reduce_scatter(const Tensors& outputs, const Tensors& inputs) {
  const Segments gradients(inputs, world()), own(outputs, 1);
  const int64_t last = world() - 2;
  run({.steps = world() - 1,
       .segments = gradients.count(),
       .window = std::min(kWindow, gradients.count()),
       .to_send = [&](int64_t t, int64_t s) { return gradients(chunk_before(t + 1), s); },
       .to_receive = [&](int64_t, int64_t s) { return own(0, s); },
       .received =
           [&](int64_t t, int64_t s, const at::Tensor& partial) {
             const at::Tensor mine = gradients(chunk_before(t + 2), s);
             if (t < last) return add_into(mine, partial);
             add_into(partial, mine);
             scale_by(partial, 1.0 / static_cast<double>(world()));
           }});
}

void Ring::all_reduce_small(const at::Tensor& tensor) {
  const int64_t n = tensor.numel();
  at::Tensor all = at::empty({world() * n}, tensor.options());
  Link link(*backend_);
  std::vector<Link::Message> messages;
  for (int64_t r = 0; r < world(); ++r) {
    const at::Tensor theirs = all.narrow(0, r * n, n);
    if (r == rank()) {
      theirs.copy_(tensor);
      continue;
    }
    messages.push_back(link.receive(theirs, static_cast<int>(r)));
    messages.push_back(link.send(tensor, static_cast<int>(r)));
  }
  for (const Link::Message& message : messages) link.wait(message);
  at::Tensor(tensor).copy_(all.narrow(0, 0, n));
  for (int64_t r = 1; r < world(); ++r) add_into(tensor, all.narrow(0, r * n, n));
  scale_by(tensor, 1.0 / static_cast<double>(world()));
}

void Ring::all_reduce(const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() * tensor.element_size() <= kLatencyBytes) {
      all_reduce_small(tensor);
      continue;
    }
    const Tensors one{tensor};
    const Segments segments(one, world());
    const int64_t window = std::min(kWindow, segments.count()), last = world() - 2;
    const at::Tensor first = segments(0, 0);  // no segment is longer
    at::Tensor inbox = at::empty({window, first.numel()}, first.options());
    int64_t slot = 0;
    run({.steps = world() - 1,
         .segments = segments.count(),
         .window = window,
         .to_send = [&](int64_t t, int64_t s) { return segments(chunk_before(t + 1), s); },
         .to_receive =
             [&](int64_t t, int64_t s) {
               const at::Tensor mine = segments(chunk_before(t + 2), s);
               return mine.defined() ? inbox[slot++ % window].narrow(0, 0, mine.numel()) : mine;
             },
         .received =
             [&](int64_t t, int64_t s, const at::Tensor& partial) {
               const at::Tensor mine = segments(chunk_before(t + 2), s);
               add_into(mine, partial);
               if (t == last) scale_by(mine, 1.0 / static_cast<double>(world()));
             }});
    spread(segments);
  }
}

}  // namespace osdp::runtime
