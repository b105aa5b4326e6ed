// A device for tests. Its memory is the host's, its operators are the CPU's, and its streams, events, allocator and
// process groups keep CUDA's and NCCL's rules. Each byte range that an operator reads or writes is checked: is it
// ordered, by streams, events or the host, after every conflicting access? README.md tells how to use it.
//
// Modes. `check`: operators run at once, on the caller's thread; the order is worked out with vector clocks, so a
// missing wait is reported whatever the timing. `async`: each stream is a thread which carries out its queue with
// random (seeded) delays, so a missing wait gives wrong numbers; the clocks are kept as well.
//
// Rules of CUDA that are modelled are marked "CUDA:", those of NCCL's process group "NCCL:".
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/record_function.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pybind11/stl.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <array>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>

namespace ordered {

constexpr auto kKey = c10::DispatchKey::PrivateUse1;
constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr int kStreams = 64;
constexpr size_t kRounding = 512, kSmall = 1 << 20;  // CUDA: of the caching allocator
// CUDA: a process's context, and NCCL: a communicator's buffers take memory of the device.
constexpr size_t kContext = 64 << 20, kCommunicator = 8 << 20;
const c10::Device kDevice(kType, 0);
bool ours(const at::Tensor& t) { return t.defined() && t.device().type() == kType; }

// ---- time -----------------------------------------------------------------------------------------------------------
// Entry s: how many operators of stream s have been carried out before, for certain.
using Clock = std::array<uint64_t, kStreams>;
void join(Clock& a, const Clock& b) {
  for (int i = 0; i < kStreams; ++i) a[i] = std::max(a[i], b[i]);
}
bool covers(const Clock& a, const Clock& b) {
  for (int i = 0; i < kStreams; ++i)
    if (a[i] < b[i]) return false;
  return true;
}

// Bytes from `begin` to `end`, of which the first `run` of every `step` (0: all of them).
struct Range {
  uintptr_t begin, end;
  size_t run, step;

  static Range of(const at::Tensor& t) {
    std::vector<std::pair<int64_t, int64_t>> dims;  // stride, size
    for (int64_t d = 0; d < t.dim(); ++d)
      if (t.size(d) > 1 && t.stride(d) > 0) dims.emplace_back(t.stride(d), t.size(d));
    std::sort(dims.begin(), dims.end());
    const size_t element = t.element_size();
    size_t run = element, step = 0, span = element;
    bool regular = true;
    for (const auto& [stride, size] : dims) {
      const size_t bytes = stride * element;
      span += (size - 1) * bytes;
      if (step == 0 && bytes <= run)
        run = std::max(run, (size - 1) * bytes + run);
      else if (step == 0)
        step = bytes;
      else
        regular &= bytes % step == 0;
    }
    const auto begin = reinterpret_cast<uintptr_t>(t.const_data_ptr());
    return {begin, begin + span, regular && step ? run : span, regular ? step : 0};
  }
  bool meets(const Range& b) const {
    if (end <= b.begin || b.end <= begin) return false;
    const size_t period = step ? step : b.step;
    if (period == 0 || (step && b.step && step != b.step)) return true;
    const size_t later = b.begin >= begin ? (b.begin - begin) % period : (period - (begin - b.begin) % period) % period;
    return run >= period || b.run >= period || later < run || later + b.run > period;
  }
  bool contains(const Range& b) const {
    return begin <= b.begin && b.end <= end && (step == 0 || (begin == b.begin && step == b.step && run >= b.run));
  }
};

struct Access {
  Range range;
  int stream;
  uint64_t at;
  bool write;
  const char *what, *where;
  int64_t life;
};
struct Event {
  Clock clock{};
  int asked_after = 0;
  std::mutex m;
  std::condition_variable cv;
  uint64_t recorded = 0, reached = 0;  // `async`: recordings asked for, and passed by the stream's thread
  bool timed = false;
  std::chrono::steady_clock::time_point when;  // it was reached
};
using EventPtr = std::shared_ptr<Event>;
struct Block {
  size_t size, used = 0;
  int stream, pool;
  bool reserved = true;  // false: given back to the device by empty_cache; only the counts know
  int64_t life = 0;
  std::vector<Access> seen;
  std::set<int> users;           // record_stream
  EventPtr filled;               // `async`: with NaN, since it was freed
  std::set<int> saw_filled;      // streams that have waited for that
  std::vector<EventPtr> pending;  // what must be reached before it may be given out again
};
struct PinnedBlock {
  size_t size;
  std::vector<Access> seen;  // of the device
};
struct Pool {
  std::vector<std::pair<const uintptr_t, Block>*> idle;  // of State::blocks
  size_t live = 0, peak = 0, reserved = 0;
};
struct Race {
  std::string text;
  int64_t bytes;
};
struct Stream {
  Clock clock{};
  std::mutex m;
  std::condition_variable cv;
  std::deque<std::function<void()>> tasks;
  uint64_t put = 0, done = 0;
  bool started = false;
  bool urgent = false;  // CUDA: of high priority
  std::map<std::string, int64_t> ops;  // by name
};

struct State {
  std::recursive_mutex mutex;
  bool async = false;
  int delay_us = 0;
  uint64_t seed = 0;
  Clock host{};  // what the host knows to have been carried out
  Stream streams[kStreams];
  std::atomic<int> next_stream{0};
  std::map<uintptr_t, Block> blocks;  // by address; never given back to the host
  std::vector<uintptr_t> waiting;     // freed, with `pending` events
  std::map<int, Pool> pools;          // CUDA: one per stream, and of each MemPool (pool_now)
  int mem_pools = 0;
  size_t live = 0, peak = 0, reserved = 0, peak_reserved = 0;
  size_t beside = kContext;  // of the device's memory that is no tensor's
  std::map<std::string, int64_t> syncs;
  int64_t ops = 0, accesses = 0, collectives = 0, race_count = 0, events = 0;
  std::vector<Race> races;
  std::map<uintptr_t, PinnedBlock> pinned;  // by address
  std::vector<std::string> stream_names = std::vector<std::string>(kStreams);
};
State& S = *new State;  // never destroyed: torch's threads outlive static objects
thread_local int t_stream = 0;
thread_local int t_mem_pool = 0;  // 0: none; CUDA: what is allocated while a MemPool is used is its, and is freed to it
thread_local bool t_launches = false;  // a thread that does not only looks on: what it has seen to be done orders nothing
thread_local bool t_carries_out = false;  // what it does now is the device's work, not the host's
thread_local std::vector<std::string> t_labels;

using Lock = std::lock_guard<std::recursive_mutex>;
const char* kept(const std::string& s) {
  static auto& all = *new std::set<std::string>;
  Lock l(S.mutex);
  return all.insert(s).first->c_str();
}
std::string name_of(int stream) {
  return S.stream_names[stream].empty() ? "stream " + std::to_string(stream) : S.stream_names[stream];
}
int pool_now() { return t_mem_pool * kStreams + t_stream; }
std::string name_of_pool(int pool) {
  return name_of(pool % kStreams) + (pool < kStreams ? "" : ", memory of process group " + std::to_string(pool / kStreams));
}
struct CarriesOut {
  const bool before = std::exchange(t_carries_out, true);
  ~CarriesOut() { t_carries_out = before; }
};
struct OnStream {
  const int before = t_stream;
  explicit OnStream(int s) { t_stream = s; }
  ~OnStream() { t_stream = before; }
};

// ---- streams of the mode `async`: threads with queues -------------------------------------------------------------------
void work(Stream& s, int index) {
  std::mt19937_64 random(S.seed * kStreams + index);
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below;
  t_carries_out = true;
  while (true) {
    std::function<void()> task;
    {
      std::unique_lock l(s.m);
      s.cv.wait(l, [&] { return !s.tasks.empty(); });
      task = std::move(s.tasks.front());
      s.tasks.pop_front();
    }
    if (S.delay_us) std::this_thread::sleep_for(std::chrono::microseconds(random() % S.delay_us));
    try {
      task();
    } catch (const std::exception& e) {
      fprintf(stderr, "ordered device, stream %d: %s\n", index, e.what());
    }
    task = nullptr;
    std::lock_guard l(s.m);
    ++s.done;
    s.cv.notify_all();
  }
}
void enqueue(int stream, std::function<void()> f) {
  Stream& s = S.streams[stream];
  std::lock_guard l(s.m);
  if (!std::exchange(s.started, true)) std::thread([&s, stream] { work(s, stream); }).detach();
  s.tasks.push_back(std::move(f));
  ++s.put;
  s.cv.notify_all();
}
void drain(int stream) {
  Stream& s = S.streams[stream];
  std::unique_lock l(s.m);
  const auto until = s.put;
  s.cv.wait(l, [&] { return s.done >= until; });
}
void launch(std::function<void()> f) {
  if (S.async) return enqueue(t_stream, std::move(f));
  const CarriesOut now;
  f();
}

// ---- what orders what -------------------------------------------------------------------------------------------------
// CUDA: operators of one stream run in the order they were launched. An operator comes after all that the host knew to
// be done when it launched it. Streams other than that are unordered (torch's pool streams are "non-blocking": the
// default stream waits for none of them, nor they for it).
void begin_op(const char* name) {
  Lock l(S.mutex);
  t_launches = true;
  Clock& c = S.streams[t_stream].clock;
  join(c, S.host);
  ++c[t_stream];
  ++S.ops;
  ++S.streams[t_stream].ops[name];
}
// CUDA: an event holds the point that its stream had reached when it was recorded, and can be recorded again.
void record(const EventPtr& e, int stream) {
  Lock l(S.mutex);
  e->clock = S.streams[stream].clock;
  e->asked_after = 0;
  const uint64_t n = ++e->recorded;
  if (!S.async) {
    e->reached = n;
    e->when = std::chrono::steady_clock::now();
    return;
  }
  enqueue(stream, [e, n] {
    std::lock_guard l(e->m);
    e->reached = n;
    e->when = std::chrono::steady_clock::now();
    e->cv.notify_all();
  });
}
void enqueue_wait(const EventPtr& e, int stream) {
  enqueue(stream, [e, n = e->recorded] {
    std::unique_lock l(e->m);
    e->cv.wait(l, [&] { return e->reached >= n; });
  });
}
// CUDA: what is launched on `stream` from now on waits for the event's last recording; one never recorded is no wait.
void block_on(const EventPtr& e, int stream) {
  Lock l(S.mutex);
  join(S.streams[stream].clock, e->clock);
  if (S.async) enqueue_wait(e, stream);
}
// The host waits for all that was launched on a stream.
void host_waits(int stream, const char* why) {
  if (S.async) drain(stream);
  Lock l(S.mutex);
  if (why) ++S.syncs[why];
  join(S.host, S.streams[stream].clock);
}

// The check. Was what is done now to these bytes ordered after what others did to them?
void report(const char* how, const char* what, const std::string& whose, const Range& range, const Access& a, bool reused) {
  ++S.race_count;
  if (S.races.size() >= 10000) return;
  S.races.push_back({c10::str(how, " by ", what, whose, " does not wait for the ", a.write ? "write" : "read", " by ", a.what,
                              a.where, " on ", name_of(a.stream), reused ? " (freed and given out again in between)" : ""),
                     static_cast<int64_t>(std::min(range.end, a.range.end) - std::max(range.begin, a.range.begin))});
}
// An operator (already begun) on the current stream accesses bytes of a block.
void note(std::vector<Access>& seen, const Range& range, bool write, const char* what, int64_t life) {
  const Clock& now = S.streams[t_stream].clock;
  const char* where = t_labels.empty() ? "" : kept(" in \"" + t_labels.back() + '"');
  ++S.accesses;
  std::vector<Access> left;
  for (const Access& a : seen) {
    if (S.host[a.stream] >= a.at) continue;  // every later operator comes after it
    const bool before = a.stream == t_stream || now[a.stream] >= a.at;
    if (!before && (write || a.write) && range.meets(a.range))
      report(write ? "write" : "read", what, where + (" on " + name_of(t_stream)), range, a, a.life != life);
    const bool settled = write && before && range.contains(a.range);
    const bool repeated = !write && !a.write && a.stream == t_stream && range.contains(a.range);
    if (!settled && !repeated) left.push_back(a);
  }
  left.push_back({range, t_stream, now[t_stream], write, what, where, life});
  seen = std::move(left);
}
PinnedBlock* pinned_at(uintptr_t at) {
  auto i = S.pinned.upper_bound(at);
  return i != S.pinned.begin() && (--i, at < i->first + i->second.size) ? &i->second : nullptr;
}
void note(const at::Tensor& t, bool write, const char* what) {
  if (!t.defined() || t.numel() == 0) return;
  Lock l(S.mutex);
  const Range range = Range::of(t);
  if (t.device().is_cpu()) {
    if (PinnedBlock* b = pinned_at(range.begin)) note(b->seen, range, write, what, 0);
    return;
  }
  auto it = S.blocks.upper_bound(range.begin);
  if (it == S.blocks.begin()) return;
  Block& b = std::prev(it)->second;
  // No device fills memory: that this one does must order nothing, and overtake nothing.
  if (b.filled && b.saw_filled.insert(t_stream).second) enqueue_wait(b.filled, t_stream);
  note(b.seen, range, write, what, b.life);
}
// CUDA: pinned memory is the host's too, which must have waited for the device's copies from and to it.
const void* memory_of(const at::Tensor& t);
void note_of_host(const at::Tensor& t, bool write, const char* what) {
  if (!t.defined() || !t.device().is_cpu() || t.numel() == 0 || !memory_of(t)) return;
  Lock l(S.mutex);
  const Range range = Range::of(t);
  PinnedBlock* b = pinned_at(range.begin);
  if (!b) return;
  std::erase_if(b->seen, [](const Access& a) { return S.host[a.stream] >= a.at; });
  for (const Access& a : b->seen)
    if ((write || a.write) && range.meets(a.range))
      report(write ? "the host's write" : "the host's read", what, t_labels.empty() ? "" : " in \"" + t_labels.back() + '"', range, a,
             false);
}

// ---- the caching allocator ------------------------------------------------------------------------------------------------
// CUDA: memory belongs to the pool of the stream that was current when it was allocated. Freed, it may be given out again
// on that stream at once, whatever other streams still do with it: whoever frees it must have made that stream wait, or
// have called record_stream. Then each stream so named records an event when it is freed, and it is given out again only
// once the host has seen them all reached.
// A real allocator may give out any free block that is large enough. This one is the worst of them: it prefers a block
// that another stream may still be working on.
bool in_use_elsewhere(const Block& b, const Clock& now) {
  for (const Access& a : b.seen)
    if (a.stream != b.stream && now[a.stream] < a.at && S.host[a.stream] < a.at) return true;
  return false;
}
// NaN from then on, when the stream that owns it gets there.
void to_idle(uintptr_t at) {
  auto& entry = *S.blocks.find(at);
  Block& b = entry.second;
  const OnStream owner(b.stream);
  launch([at, n = b.size] { std::memset(reinterpret_cast<void*>(at), 0xff, n); });
  b.filled = nullptr;
  b.saw_filled.clear();
  if (S.async) record(b.filled = std::make_shared<Event>(), b.stream);
  S.pools[b.pool].idle.push_back(&entry);
}
void take_back_recorded() {
  std::erase_if(S.waiting, [](uintptr_t at) {
    Block& b = S.blocks.at(at);
    for (const auto& e : b.pending)
      if (e->reached < e->recorded) return false;
    for (const auto& e : b.pending) std::erase_if(b.seen, [&](const Access& a) { return e->clock[a.stream] >= a.at; });
    b.pending.clear();
    to_idle(at);
    return true;
  });
}
void give_back(void* p) {
  if (!p) return;
  Lock l(S.mutex);
  const auto at = reinterpret_cast<uintptr_t>(p);
  Block& b = S.blocks.at(at);
  S.live -= b.used;
  S.pools[b.pool].live -= b.used;
  for (int user : b.users) {
    auto e = std::make_shared<Event>();
    record(e, user);
    b.pending.push_back(e);
  }
  b.users.clear();
  if (b.pending.empty())
    to_idle(at);
  else
    S.waiting.push_back(at);
}
struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    if (n == 0) return {nullptr, nullptr, &give_back, kDevice};
    n = (n + kRounding - 1) / kRounding * kRounding;
    Lock l(S.mutex);
    take_back_recorded();
    Pool& pool = S.pools[pool_now()];
    const Clock& now = S.streams[t_stream].clock;
    auto found = pool.idle.end();
    for (auto i = pool.idle.begin(); i != pool.idle.end(); ++i) {
      const Block& b = (*i)->second;
      const bool fits = b.size == n, worst = b.size >= n && (b.size > kSmall) == (n > kSmall) && in_use_elsewhere(b, now);
      if (fits || worst) found = i;
      if (worst) break;
    }
    void* p;
    if (found != pool.idle.end()) {
      p = reinterpret_cast<void*>((*found)->first);
      Block& b = (*found)->second;
      pool.idle.erase(found);
      ++b.life;
      b.used = n;
      if (!std::exchange(b.reserved, true)) reserve(pool, b.size);
    } else {
      p = aligned_alloc(kRounding, n);
      TORCH_CHECK(p, "ordered device: out of memory");
      std::memset(p, 0xff, n);
      Block& b = S.blocks[reinterpret_cast<uintptr_t>(p)];
      b.size = b.used = n;
      b.stream = t_stream;
      b.pool = pool_now();
      reserve(pool, n);
    }
    S.peak = std::max(S.peak, S.live += n);
    pool.peak = std::max(pool.peak, pool.live += n);
    return {p, p, &give_back, kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t n) const override { std::memcpy(to, from, n); }
  static void reserve(Pool& pool, size_t n) {
    pool.reserved += n;
    S.peak_reserved = std::max(S.peak_reserved, S.reserved += n);
  }
};
// CUDA: what is free goes back to the device. Here the host keeps it, so that addresses stay told apart.
void empty_cache() {
  Lock l(S.mutex);
  take_back_recorded();
  for (auto& [stream, pool] : S.pools)
    for (auto* entry : pool.idle) {
      Block& b = entry->second;
      if (!std::exchange(b.reserved, false)) continue;
      pool.reserved -= b.size;
      S.reserved -= b.size;
    }
}
void reset_peaks() {
  Lock l(S.mutex);
  S.peak = S.live;
  S.peak_reserved = S.reserved;
  for (auto& [stream, pool] : S.pools) pool.peak = pool.live;
}
Allocator& g_allocator = *new Allocator;
void record_stream(const c10::DataPtr& data, int stream) {
  Lock l(S.mutex);
  auto it = S.blocks.upper_bound(reinterpret_cast<uintptr_t>(data.get()));
  if (!data.get() || it == S.blocks.begin()) return;
  Block& b = std::prev(it)->second;
  if (stream != b.stream) b.users.insert(stream);
}
// Pinned host memory. It is never reused (CUDA: not before the copies that use it are done).
std::unique_ptr<at::ObserverContext> see_host(const at::RecordFunction& f);
struct Pinned final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    void* p = aligned_alloc(64, (n + 63) / 64 * 64 + 64);
    static const auto seen = at::addGlobalCallback(
        at::RecordFunctionCallback(&see_host).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
    (void)seen;
    Lock l(S.mutex);
    S.pinned[reinterpret_cast<uintptr_t>(p)].size = n + 1;
    return {p, p, [](void*) {}, c10::Device(at::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return [](void*) {}; }
  void copy_data(void* to, const void* from, size_t n) const override { std::memcpy(to, from, n); }
  static bool has(const void* p) {
    Lock l(S.mutex);
    return pinned_at(reinterpret_cast<uintptr_t>(p)) != nullptr;
  }
};
Pinned& g_pinned = *new Pinned;

// ---- what torch asks of a device: streams, events, hooks ------------------------------------------------------------------
c10::Stream stream_of(int i) { return c10::Stream(c10::Stream::UNSAFE, kDevice, i); }
struct Guard final : c10::impl::DeviceGuardImplInterface {
  static EventPtr& of(void* e) { return *static_cast<EventPtr*>(e); }
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device) const override { return stream_of(t_stream); }  // CUDA: the current one, by thread
  c10::Stream getDefaultStream(c10::Device) const override { return stream_of(0); }
  // CUDA: hands out 32 per priority, in turn. Here every caller gets his own as long as there are some.
  c10::Stream getStreamFromGlobalPool(c10::Device, bool urgent) const override {
    const int stream = 1 + S.next_stream++ % (kStreams - 1);
    S.streams[stream].urgent = urgent;
    return stream_of(stream);
  }
  c10::Stream getNewStream(c10::Device d, int priority) const override { return getStreamFromGlobalPool(d, priority < 0); }
  c10::Stream exchangeStream(c10::Stream s) const override {
    return stream_of(std::exchange(t_stream, static_cast<int>(s.id())));
  }
  void record(void** e, const c10::Stream& s, const c10::DeviceIndex, const c10::EventFlag flag) const override {
    if (!*e) {
      *e = new EventPtr(std::make_shared<Event>());
      of(*e)->timed = flag == c10::EventFlag::BACKEND_DEFAULT;
      Lock l(S.mutex);
      ++S.events;
    }
    ordered::record(of(*e), static_cast<int>(s.id()));
  }
  void block(void* e, const c10::Stream& s) const override {
    if (e) block_on(of(e), static_cast<int>(s.id()));
  }
  void destroyEvent(void* e, const c10::DeviceIndex) const noexcept override { delete static_cast<EventPtr*>(e); }
  // CUDA: the host knows of what it has seen to be done. In `check` the first answer is "not yet".
  bool queryEvent(void* e) const override {
    if (!e) return true;
    Lock l(S.mutex);
    const EventPtr& event = of(e);
    if (!t_launches) return !S.async || event->reached >= event->recorded;
    const bool done = S.async ? event->reached >= event->recorded : event->asked_after++ > 0;
    if (done) join(S.host, event->clock);
    return done || covers(S.host, event->clock);
  }
  void synchronizeEvent(void* e) const override {
    if (!e) return;
    const EventPtr event = of(e);
    {
      std::unique_lock l(event->m);
      event->cv.wait(l, [&] { return event->reached >= event->recorded; });
    }
    Lock l(S.mutex);
    ++S.syncs["event.synchronize"];
    join(S.host, event->clock);
  }
  bool queryStream(const c10::Stream& s) const override {
    Lock l(S.mutex);
    return covers(S.host, S.streams[s.id()].clock);
  }
  void synchronizeStream(const c10::Stream& s) const override {
    host_waits(static_cast<int>(s.id()), "stream.synchronize");
  }
  void synchronizeDevice(const c10::DeviceIndex) const override {
    for (int i = 0; i < kStreams; ++i) host_waits(i, i ? nullptr : "device synchronize");
  }
  void recordDataPtrOnStream(const c10::DataPtr& p, const c10::Stream& s) const override {
    record_stream(p, static_cast<int>(s.id()));
  }
  // CUDA: milliseconds between two events that were made with timing, and that the device has passed.
  double elapsedTime(void* begin, void* end, const c10::DeviceIndex) const override {
    const auto passed = [](void* e) {
      TORCH_CHECK(e && of(e)->timed, "ordered device: elapsed_time needs events with enable_timing=True that were recorded");
      std::lock_guard l(of(e)->m);
      TORCH_CHECK(of(e)->reached >= of(e)->recorded, "ordered device: elapsed_time of an event that is not reached yet");
      return of(e)->when;
    };
    return std::chrono::duration<double, std::milli>(passed(end) - passed(begin)).count();
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  bool isPinnedPtr(const void* p) const override { return Pinned::has(p); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &g_pinned; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return at::detail::getDefaultCPUGenerator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override;
};

// What surrounds an access, for the report: the innermost record_function that is not an operator's.
struct Labelled final : at::ObserverContext {};
std::unique_ptr<at::ObserverContext> enter_label(const at::RecordFunction& f) {
  const std::string name = f.name();
  for (const char* op : {"aten::", "c10d::", "_c10d", "record_param_comms", "fsdp::"})
    if (name.rfind(op, 0) == 0) return nullptr;
  const std::string engine = "autograd::engine::evaluate_function: ";
  t_labels.push_back(name.rfind(engine, 0) == 0 ? name.substr(engine.size()) : name);
  return std::make_unique<Labelled>();
}
void leave_label(const at::RecordFunction&, at::ObserverContext* context) {
  if (context && !t_labels.empty()) t_labels.pop_back();
}

// What the host's operators touch, where there is pinned memory. Views touch nothing, nor do those that ask for a shape
// alone; those that only call others are judged by these.
// Null where there is none, or where reading it is an error: a parameter that is not gathered.
const void* memory_of(const at::Tensor& t) {
  return t.has_storage() ? t.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() : nullptr;
}
std::unique_ptr<at::ObserverContext> see_host(const at::RecordFunction& f) {
  static const std::set<std::string> touch_nothing{
      "aten::empty_like", "aten::zeros_like",  "aten::ones_like", "aten::full_like",     "aten::new_empty", "aten::new_zeros",
      "aten::detach_",    "aten::set_",        "aten::set_data",  "aten::resize_",       "aten::is_pinned", "aten::_to_copy",
      "aten::requires_grad_", "aten::new_empty_strided", "aten::rand_like", "aten::randn_like"};
  if (t_carries_out) return nullptr;
  const auto& inputs = f.inputs();
  bool of_device = false, may_touch = false;
  const auto look = [&](const at::Tensor& t) {
    of_device |= ours(t);
    may_touch |= t.defined() && t.device().is_cpu() && Pinned::has(memory_of(t));
  };
  for (const c10::IValue& v : inputs) {
    if (v.isTensor()) look(v.toTensor());
    if (v.isTensorList())
      for (const at::Tensor& t : v.toTensorVector()) look(t);
  }
  if (of_device || !may_touch) return nullptr;  // that of a device's operator, which notes what it touches
  const auto schema = f.operator_schema();
  if (!schema || touch_nothing.count(schema->name())) return nullptr;
  for (const auto& r : schema->returns())
    if (r.alias_info() && !r.alias_info()->isWrite()) return nullptr;
  for (size_t i = 0; i < std::min(inputs.size(), schema->arguments().size()); ++i) {
    const auto* alias = schema->arguments()[i].alias_info();
    const auto touch = [&](const at::Tensor& t) { note_of_host(t, alias && alias->isWrite(), schema->name().c_str()); };
    if (inputs[i].isTensor()) touch(inputs[i].toTensor());
    if (inputs[i].isTensorList())
      for (const at::Tensor& t : inputs[i].toTensorVector()) touch(t);
  }
  return nullptr;
}

// ---- operators: the CPU's, on the same memory, in the stream's order -----------------------------------------------------------
at::Tensor on_cpu(const at::Tensor& t) {
  if (t.numel() == 0) return at::empty(t.sizes(), t.options().device(at::kCPU));
  return at::from_blob(const_cast<void*>(t.const_data_ptr()), t.sizes(), t.strides(),
                       t.options().device(at::kCPU).requires_grad(false));
}
at::Tensor like_on_device(const at::Tensor& cpu) {
  return at::empty_strided(cpu.sizes(), cpu.strides(), cpu.options().device(kDevice));
}
template <class F>
void each_tensor(c10::IValue& v, F&& f) {
  if (v.isTensor()) {
    at::Tensor t = v.toTensor();
    if (t.defined()) v = f(t);
  } else if (v.isTensorList()) {
    auto l = v.toTensorList().vec();
    for (auto& t : l)
      if (t.defined()) t = f(t);
    v = c10::IValue(l);
  } else if (v.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> l;
    for (const std::optional<at::Tensor>& t : v.toOptionalTensorList().vec())
      l.push_back(t && t->defined() ? std::optional(f(*t)) : t);
    v = c10::IValue(l);
  }
}
// CUDA: operators whose result's size depends on values make the host wait, and so do those that give it a value.
bool needs_values(const c10::FunctionSchema& schema, const std::vector<c10::IValue>& arguments) {
  static const std::set<std::string> sized{"aten::nonzero", "aten::masked_select", "aten::_unique", "aten::_unique2",
                                           "aten::unique_dim", "aten::unique_consecutive", "aten::bincount"};
  if (sized.count(schema.name())) return true;
  if (schema.name().rfind("aten::index", 0) == 0 || schema.name() == "aten::_index_put_impl_")
    for (const auto& v : arguments)
      if (v.isOptionalTensorList())
        for (const std::optional<at::Tensor>& t : v.toOptionalTensorList().vec())
          if (t && t->defined() && (t->scalar_type() == at::kBool || t->scalar_type() == at::kByte)) return true;
  for (const auto& r : schema.returns())
    if (r.type()->isSubtypeOf(*c10::NumberType::get()) || r.type()->isSubtypeOf(*c10::BoolType::get())) return true;
  return false;
}
// The CPU's operator for one of the device: convolutions of other devices have names of their own.
const char* const kConvolution = "aten::convolution_overrideable";
const char* const kConvolutionBackward = "aten::convolution_backward_overrideable";
void run_on_cpu(const c10::OperatorHandle& op, std::vector<c10::IValue>& s) {
  const std::string& name = op.schema().name();
  const auto call = [&](const char* other) {
    c10::Dispatcher::singleton().findSchemaOrThrow(other, "").redispatchBoxed(
        c10::DispatchKeySet(c10::DispatchKey::CPU), &s);
  };
  if (name == kConvolution) return call("aten::convolution");
  if (name != kConvolutionBackward) return op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &s);
  s.insert(s.begin() + 3, c10::IValue(std::vector<int64_t>{s[2].toTensor().size(0)}));  // the bias's sizes
  call("aten::convolution_backward");
}
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const size_t n = schema.arguments().size(), first = stack->size() - n;
  const char* name = kept(schema.name());
  begin_op(name);
  const std::vector<c10::IValue> given(stack->begin() + first, stack->end());
  std::vector<c10::IValue> cpu = given;
  std::vector<std::pair<at::Tensor, at::Tensor>> grown;  // empty `out`s, which may be resized
  for (size_t i = 0; i < n; ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    const bool write = alias && alias->isWrite();
    if (cpu[i].isDevice() && cpu[i].toDevice().type() == kType) cpu[i] = c10::Device(at::kCPU);
    each_tensor(cpu[i], [&](const at::Tensor& t) {
      if (!ours(t)) return t;
      note(t, write, name);
      at::Tensor c = on_cpu(t);
      if (write && t.numel() == 0) grown.emplace_back(t, c);
      return c;
    });
  }
  const auto run = [op](std::vector<c10::IValue> s) {
    run_on_cpu(op, s);
    return s;
  };
  const auto argument_returned = [&](size_t r) -> c10::IValue {  // of in-place operators and `out`s
    const auto* alias = schema.returns()[r].alias_info();
    for (size_t i = 0; alias && alias->isWrite() && i < n; ++i)
      if (schema.arguments()[i].alias_info() && *schema.arguments()[i].alias_info() == *alias) return given[i];
    return {};
  };
  bool inplace = grown.empty();
  for (const auto& r : schema.returns()) {
    TORCH_CHECK_NOT_IMPLEMENTED(!r.alias_info() || r.alias_info()->isWrite(), name, " gives a view, which the ordered device does not know");
    inplace &= r.alias_info() != nullptr;
  }
  const bool sync = needs_values(schema, given);
  if (sync) host_waits(t_stream, name);
  std::vector<c10::IValue> results;
  if (inplace) {
    launch([run, cpu] { run(cpu); });
    for (size_t r = 0; r < schema.returns().size(); ++r) results.push_back(argument_returned(r));
  } else if (!S.async || sync || !grown.empty()) {
    if (S.async) drain(t_stream);
    results = run(cpu);
    for (auto& [t, c] : grown)
      if (c.numel() > 0) {
        t.resize_(c.sizes());
        note(t, true, name);
        on_cpu(t).copy_(c);
      }
    for (size_t r = 0; r < results.size(); ++r) {
      if (auto g = argument_returned(r); !g.isNone()) {
        results[r] = g;
        continue;
      }
      each_tensor(results[r], [&](const at::Tensor& c) {
        at::Tensor t = like_on_device(c);
        note(t, true, name);
        on_cpu(t).copy_(c);
        return t;
      });
    }
  } else {  // the shapes of what it gives are found out on zeros
    std::vector<c10::IValue> dry = cpu;
    for (auto& v : dry) each_tensor(v, [&](const at::Tensor& t) { return at::zeros_like(t); });
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    auto state = generator.get_state();
    results = run(dry);
    generator.set_state(state);
    std::vector<at::Tensor> made;
    for (auto& result : results)
      each_tensor(result, [&](const at::Tensor& c) {
        at::Tensor t = like_on_device(c);
        note(t, true, name);
        made.push_back(on_cpu(t));
        return t;
      });
    launch([run, cpu, made] {
      size_t i = 0;
      for (auto& v : run(cpu))
        each_tensor(v, [&](const at::Tensor& c) {
          at::Tensor(made[i++]).copy_(c);
          return c;
        });
    });
  }
  torch::jit::drop(*stack, n);
  for (auto& r : results) stack->push_back(std::move(r));
}
// CUDA: a copy to or from the host makes the host wait for the current stream, unless it is non_blocking and the host's
// memory is pinned (from pageable memory, the bytes are taken at once).
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (from.numel() == 0) return to;
  begin_op("copy_");
  note(from, false, "copy_");
  note(to, true, "copy_");
  const bool to_host = !ours(to), from_host = !ours(from);
  const bool free = non_blocking && (from_host ? g_pinned.has(from.const_data_ptr()) : g_pinned.has(to.const_data_ptr()));
  at::Tensor a = !from_host ? on_cpu(from) : S.async && !free ? from.detach().clone() : from.detach();
  at::Tensor b = to_host ? to.detach() : on_cpu(to);
  launch([a, b] { at::Tensor(b).copy_(a); });
  if (to_host && !free) host_waits(t_stream, "copy to the host");
  if (from_host && !non_blocking) host_waits(t_stream, "copy from the host");
  return to;
}
at::Scalar local_scalar(const at::Tensor& t) {
  begin_op("item");
  note(t, false, "item");
  host_waits(t_stream, "item");
  return on_cpu(t).item();
}
at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &g_allocator, c10::DispatchKeySet(kKey), c10::dtype_or_default(dtype), format);
}
at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &g_allocator, c10::DispatchKeySet(kKey),
                                           c10::dtype_or_default(dtype));
}
at::Tensor strided(const at::Tensor& t, c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<int64_t> offset) {
  auto result = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(t.storage()), t.key_set(), t.dtype());
  result.unsafeGetTensorImpl()->set_storage_offset(offset.value_or(t.storage_offset()));
  result.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return result;
}
at::Tensor view(const at::Tensor& t, c10::IntArrayRef size) {
  auto sizes = at::infer_size_dv(size, t.numel());
  auto strides = at::detail::computeStride(t.sizes(), t.strides(), sizes);
  TORCH_CHECK(strides.has_value(), "view size is not compatible with the tensor's size and stride: use reshape");
  return strided(t, sizes, *strides, t.storage_offset());
}
at::Tensor reshape_alias(const at::Tensor& t, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  return strided(t, sizes, strides, t.storage_offset());
}
at::Tensor unfold(const at::Tensor& t, int64_t dim, int64_t size, int64_t step) {
  auto sizes = t.sizes().vec(), strides = t.strides().vec();
  dim = dim < 0 ? dim + t.dim() : dim;
  sizes.push_back(size);
  strides.push_back(strides.at(dim));
  sizes.at(dim) = (sizes.at(dim) - size) / step + 1;
  strides.at(dim) *= step;
  return strided(t, sizes, strides, t.storage_offset());
}
void resize_bytes(c10::StorageImpl* storage, size_t bytes) {
  const size_t common = std::min(storage->nbytes(), bytes);
  c10::DataPtr next = g_allocator.allocate(bytes);
  if (common) {
    begin_op("resize_");
    const auto flat = [&](void* p) { return at::from_blob(p, {static_cast<int64_t>(common)}, at::kByte); };
    at::Tensor from = flat(storage->mutable_data()), to = flat(next.get());
    note(from, false, "resize_");
    note(to, true, "resize_");
    launch([from, to] { at::Tensor(to).copy_(from); });
  }
  storage->set_data_ptr_noswap(std::move(next));
  storage->set_nbytes(bytes);
}
void Hooks::resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const {
  resize_bytes(storage.unsafeGetStorageImpl(), bytes);
}
const at::Tensor& resize_(const at::Tensor& t, c10::IntArrayRef size, std::optional<at::MemoryFormat>) {
  auto* impl = t.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  const size_t need = (impl->numel() + impl->storage_offset()) * impl->itemsize();
  auto* storage = t.storage().unsafeGetStorageImpl();
  if (storage->nbytes() < need) resize_bytes(storage, need);
  return t;
}
at::Tensor& set_storage(at::Tensor& t, at::Storage s, int64_t offset, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  auto* impl = t.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(s));
  impl->set_storage_offset(offset);
  impl->set_sizes_and_strides(sizes, strides);
  return t;
}
at::Tensor& set_tensor(at::Tensor& t, const at::Tensor& s) {
  return set_storage(t, s.storage(), s.storage_offset(), s.sizes(), s.strides());
}
at::Tensor& set_whole_storage(at::Tensor& t, at::Storage s) {
  const auto elements = static_cast<int64_t>(s.nbytes() / t.element_size());
  return set_storage(t, std::move(s), 0, {elements}, {1});
}
void record_stream_op(at::Tensor& t, at::Stream s) { record_stream(t.storage().data_ptr(), static_cast<int>(s.id())); }

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", strided);
  m.impl("view", view);
  m.impl("unfold", unfold);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("resize_", resize_);
  m.impl("_copy_from", copy_from);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("set_.source_Storage", set_whole_storage);
  m.impl("record_stream", record_stream_op);
  // CUDA: p.data = ... may take a tensor from the device to the host, and back.
  m.impl("_has_compatible_shallow_copy_type", [](const at::Tensor& a, const at::Tensor& b) {
    const auto plain = [](const at::Tensor& t) { return t.layout() == at::kStrided && (ours(t) || t.device().is_cpu()); };
    return plain(a) && plain(b);
  });
  m.impl("_local_scalar_dense", local_scalar);
  // One operator each, as on CUDA; torch would take them apart.
  static const std::set<std::string> whole{"aten::_chunk_cat", "aten::_chunk_cat.out", "aten::split_with_sizes_copy.out", kConvolution,
                                           kConvolutionBackward};
  for (const auto& op : c10::Dispatcher::singleton().getAllOpNames())
    if (op.name.rfind("aten::_foreach_", 0) == 0 || whole.count(c10::toString(op)))
      m.impl(c10::str(op.name.substr(6), op.overload_name.empty() ? "" : ".", op.overload_name).c_str(),
             torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

// ---- process groups -------------------------------------------------------------------------------------------------------------
using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// NCCL: wait() makes the current stream, not the host, wait for the group's stream; until then the Work holds the tensors.
// Dropped without wait(), they are held until the host knows that the collective is done. The future does the same
// through events of its own.
struct Stash {
  EventPtr end = std::make_shared<Event>();
  Tensors held;
};
struct Work final : c10d::Work {
  std::shared_ptr<Stash> stash;
  c10::intrusive_ptr<c10::ivalue::Future> future;
  Tensors outputs;
  Work(int rank, c10d::OpType type, std::shared_ptr<Stash> s, Tensors o)
      : c10d::Work(rank, type), stash(std::move(s)), outputs(std::move(o)) {}
  void synchronize() override {
    block_on(stash->end, t_stream);
    stash->held.clear();
  }
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    return true;
  }
  bool isSuccess() const override { return true; }
  bool isCompleted() override {
    auto* event = new EventPtr(stash->end);
    const bool done = Guard().queryEvent(event);
    delete event;
    return done;
  }
  Tensors result() override { return outputs; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future; }
};
// NCCL: a collective in which a rank is missing never ends by itself, whatever has become of that rank: the stream waits
// until the group is aborted (from any thread). At the group's timeout its watchdog ends the process.
struct Fate {
  explicit Fate(std::chrono::milliseconds timeout) : timeout_(timeout) {}
  void abort() { aborted_ = true; }
  void check() const { TORCH_CHECK(!aborted_, "the process group was aborted"); }
  void wait(const WorkPtr& work) const {
    while (!work->isCompleted()) {
      try {
        work->wait(std::chrono::milliseconds(20));
      } catch (const std::exception&) {  // not yet, or it failed: told below
        check();
      }
    }
    work->wait();
  }
  void carry_out(const std::function<void()>& body) const {
    const auto until = std::chrono::steady_clock::now() + timeout_;
    try {
      if (!aborted_) body();
    } catch (const std::exception& e) {
      while (!aborted_) {
        if (std::chrono::steady_clock::now() > until) {
          fprintf(stderr, "ordered device: a collective timed out, and nobody aborted its group: %s\n", e.what());
          std::abort();
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  }

 private:
  const std::chrono::milliseconds timeout_;
  std::atomic<bool> aborted_{false};
};
struct Group final : c10d::Backend {
  Group(c10::intrusive_ptr<c10d::Backend> gloo, std::chrono::milliseconds timeout)
      : Backend(gloo->getRank(), gloo->getSize()),
        gloo_(std::move(gloo)),
        stream_(static_cast<int>(Guard().getStreamFromGlobalPool(kDevice, true).id())),
        options_(c10::make_intrusive<Options>("custom", timeout)),
        fate_(std::make_shared<Fate>(timeout)) {
    S.stream_names[stream_] = "a process group's stream " + std::to_string(stream_);
  }
  ~Group() override {
    if (connected_) S.beside -= kCommunicator;
  }
  const std::string getBackendName() const override { return "custom"; }
  // NCCL: what is called in between is one launch; its Work, of calls with asyncOp, is of all of them.
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override { coalescing_.emplace(); }
  WorkPtr endCoalescing() override {
    const Coalescing all = *std::exchange(coalescing_, std::nullopt);
    if (all.bodies.empty()) return {};
    return run("coalesced", c10d::OpType::COALESCED, all.reads, all.writes, all.async_op, [bodies = all.bodies] {
      for (const auto& body : bodies) body();
    });
  }
  // NCCL: memory of a MemPool of its own, registered with its communicator, which must exist.
  bool supportsTensorAlloc(c10::DeviceIndex) override { return allocates_; }
  at::Tensor allocateTensor(long size, at::TensorOptions o) override {
    TORCH_CHECK(allocates_ && connected_, "the communicator has not been initialized before its memory pool is made");
    if (mem_pool_ == 0) {
      Lock l(S.mutex);
      mem_pool_ = ++S.mem_pools;
    }
    const int before = std::exchange(t_mem_pool, mem_pool_);
    at::Tensor made = at::empty({size}, o);
    t_mem_pool = before;
    return made;
  }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void abort() override { fate_->abort(); }

  WorkPtr allreduce(Tensors& ts, const c10d::AllreduceOptions& o) override {
    return run("all-reduce", c10d::OpType::ALLREDUCE, {}, ts, o.asyncOp, [f = fate_, g = gloo_, t = cpu(ts), o = c10d::AllreduceOptions(o), n = getSize()]() mutable {
      const bool mean = sum_instead_of_mean(o.reduceOp);
      for (auto& one : t) {
        if (mean) one.div_(n);
        Tensors list{one};
        f->wait(g->allreduce(list, o));
      }
    });
  }
  WorkPtr broadcast(Tensors& ts, const c10d::BroadcastOptions& o) override {
    const bool root = o.rootRank == getRank();
    return run("broadcast", c10d::OpType::BROADCAST, root ? ts : Tensors{}, root ? Tensors{} : ts, o.asyncOp,
               [f = fate_, g = gloo_, t = cpu(ts), o]() mutable { f->wait(g->broadcast(t, o)); }, ts);
  }
  WorkPtr reduce(Tensors& ts, const c10d::ReduceOptions& o) override {
    return run("reduce", c10d::OpType::REDUCE, {}, ts, o.asyncOp, [f = fate_, g = gloo_, t = cpu(ts), o = c10d::ReduceOptions(o), n = getSize()]() mutable {
      const bool mean = sum_instead_of_mean(o.reduceOp);
      if (mean) t[0].div_(n);
      f->wait(g->reduce(t, o));
    });
  }
  WorkPtr allgather(std::vector<Tensors>& outs, Tensors& ins, const c10d::AllgatherOptions& o) override {
    return run("all-gather", c10d::OpType::ALLGATHER, ins, outs[0], o.asyncOp,
               [f = fate_, g = gloo_, a = cpu(outs[0]), b = cpu(ins), o]() mutable {
                 std::vector<Tensors> all{a};
                 f->wait(g->allgather(all, b, o));
               });
  }
  WorkPtr _allgather_base(at::Tensor& out, at::Tensor& in, const c10d::AllgatherOptions& o) override {
    return run("all-gather", c10d::OpType::_ALLGATHER_BASE, {in}, {out}, o.asyncOp,
               [f = fate_, g = gloo_, a = on_cpu(out), b = on_cpu(in), o]() mutable {
                 b = b.clone();  // it may be a part of `out`
                 f->wait(g->_allgather_base(a, b, o));
               });
  }
  WorkPtr _reduce_scatter_base(at::Tensor& out, at::Tensor& in, const c10d::ReduceScatterOptions& o) override {
    return run("reduce-scatter", c10d::OpType::_REDUCE_SCATTER_BASE, {in}, {out}, o.asyncOp,
               [f = fate_, g = gloo_, a = on_cpu(out), b = on_cpu(in), o = c10d::ReduceScatterOptions(o), n = getSize()]() mutable {
                 const bool mean = sum_instead_of_mean(o.reduceOp);
                 Tensors all{mean ? b.div(n) : b.clone()};  // as gloo does it, whose Work for this can only be waited for
                 c10d::AllreduceOptions sum;
                 sum.reduceOp = o.reduceOp;
                 f->wait(g->allreduce(all, sum));
                 a.copy_(all[0].view({n, -1})[g->getRank()].view(a.sizes()));
               });
  }
  WorkPtr alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<int64_t>& to, std::vector<int64_t>& from,
                        const c10d::AllToAllOptions& o) override {
    return run("all-to-all", c10d::OpType::ALLTOALL_BASE, {in}, {out}, o.asyncOp,
               [f = fate_, g = gloo_, a = on_cpu(out), b = on_cpu(in), to, from, o]() mutable { f->wait(g->alltoall_base(a, b, to, from, o)); });
  }
  WorkPtr barrier(const c10d::BarrierOptions& o) override {  // NCCL: the host waits
    WorkPtr work = run("barrier", c10d::OpType::BARRIER, {}, {}, true, [f = fate_, g = gloo_, o] { f->wait(g->barrier(o)); });
    host_waits(stream_, "barrier");
    return work;
  }

 private:
  static Tensors cpu(const Tensors& ts) {
    Tensors result;
    for (const auto& t : ts) result.push_back(on_cpu(t));
    return result;
  }
  // NCCL: an average multiplies what each rank sends by 1 / n, in its dtype, and sums that. (gloo has no AVG.)
  static bool sum_instead_of_mean(c10d::ReduceOp& op) {
    if (!(op == c10d::ReduceOp::AVG)) return false;
    op = c10d::ReduceOp::SUM;
    return true;
  }
  // NCCL: with asyncOp it is launched on the group's own stream, which waits for the current one, and gives a Work that
  // holds the tensors; without, on the current stream, and gives none: the tensors are the caller's to keep, as for any
  // operator.
  WorkPtr run(const char* name, c10d::OpType type, Tensors reads, Tensors writes, bool async_op, std::function<void()> body,
              Tensors outputs = {}) {
    fate_->check();
    if (coalescing_) {
      coalescing_->reads.insert(coalescing_->reads.end(), reads.begin(), reads.end());
      coalescing_->writes.insert(coalescing_->writes.end(), writes.begin(), writes.end());
      coalescing_->bodies.push_back(std::move(body));
      coalescing_->async_op |= async_op;
      return {};
    }
    ++S.collectives;
    if (!std::exchange(connected_, true)) S.beside += kCommunicator;
    const auto go = [&] {
      begin_op(name);
      for (const auto& t : reads) note(t, false, name);
      for (const auto& t : writes) note(t, true, name);
      launch([f = fate_, body = std::move(body)] { f->carry_out(body); });
    };
    if (!async_op) {
      go();
      return {};
    }
    auto start = std::make_shared<Event>();
    record(start, t_stream);
    block_on(start, stream_);
    auto stash = std::make_shared<Stash>();
    stash->held = reads;
    stash->held.insert(stash->held.end(), writes.begin(), writes.end());
    std::erase_if(stashes_, [](const auto& s) { return s->held.empty() || covers(S.host, s->end->clock); });
    stashes_.push_back(stash);
    if (outputs.empty()) outputs = writes;
    auto work = c10::make_intrusive<Work>(getRank(), type, stash, outputs);
    const OnStream here(stream_);
    go();
    record(stash->end, stream_);
    work->future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{kDevice});
    work->future->markCompleted(c10::IValue(outputs));
    return work;
  }

  struct Coalescing {
    Tensors reads, writes;
    std::vector<std::function<void()>> bodies;
    bool async_op = false;
  };

  c10::intrusive_ptr<c10d::Backend> gloo_;
  std::optional<Coalescing> coalescing_;  // since startCoalescing
  const int stream_;
  // Tests of what cannot: NCCL, where the device has no multicast.
  const bool allocates_ = std::getenv("ORDERED_NO_TENSOR_ALLOC") == nullptr;
  int mem_pool_ = 0;
  bool connected_ = false;  // NCCL: the first collective makes the communicator, whose buffers stay until it ends
  c10::intrusive_ptr<Options> options_;
  const std::shared_ptr<Fate> fate_;
  std::vector<std::shared_ptr<Stash>> stashes_;
};

}  // namespace ordered

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  namespace py = pybind11;
  using namespace ordered;
  c10::SetAllocator(kType, &g_allocator);
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  at::addGlobalCallback(at::RecordFunctionCallback(&enter_label, &leave_label));
  S.stream_names[0] = "the default stream";
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  m.def("backend", [](c10::intrusive_ptr<c10d::Backend> gloo, double timeout_s) {
    return c10::static_intrusive_pointer_cast<c10d::Backend>(
        c10::make_intrusive<Group>(std::move(gloo), std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1e3))));
  });
  m.def("use", [](bool async, uint64_t seed, int delay_us) {
    for (int i = 0; i < kStreams; ++i) drain(i);
    S.seed = seed;
    S.delay_us = delay_us;
    S.async = async;
  }, no_gil);
  m.def("races", [] {
    Lock l(S.mutex);
    std::vector<std::pair<std::string, int64_t>> all;
    for (const auto& r : S.races) all.emplace_back(r.text, r.bytes);
    return all;
  });
  m.def("clear", [] {
    Lock l(S.mutex);
    S.races.clear();
    S.syncs.clear();
    S.ops = S.accesses = S.collectives = S.race_count = S.events = 0;
    for (Stream& s : S.streams) s.ops.clear();
  });
  m.def("reset_peaks", &reset_peaks);
  m.def("empty_cache", &empty_cache);
  m.def("stats", [] {
    Lock l(S.mutex);
    py::dict d, pools;
    d["races"] = S.race_count;
    d["operators"] = S.ops;
    d["collectives"] = S.collectives;
    d["accesses"] = S.accesses;
    d["events"] = S.events;
    py::dict streams;
    for (int i = 0; i < kStreams; ++i)
      if (!S.streams[i].ops.empty())
        streams[py::str(name_of(i))] = py::dict(py::arg("operators") = S.streams[i].ops, py::arg("urgent") = S.streams[i].urgent);
    d["streams"] = streams;
    d["host_syncs"] = S.syncs;
    d["live_bytes"] = S.live;
    d["peak_bytes"] = S.peak;
    d["reserved_bytes"] = S.reserved;
    d["peak_reserved_bytes"] = S.peak_reserved;
    d["beside_bytes"] = S.beside;
    for (const auto& [s, p] : S.pools)
      if (p.reserved) pools[py::str(name_of_pool(s))] = py::dict(py::arg("live") = p.live, py::arg("peak") = p.peak, py::arg("reserved") = p.reserved);
    d["pools"] = pools;
    return d;
  });
  m.def("name_stream", [](int64_t stream, std::string name) { S.stream_names.at(stream) = std::move(name); });
  m.def("synchronize", [] { Guard().synchronizeDevice(0); }, no_gil);
}
