#include "comm/c10d.hpp"

#include <ATen/ops/from_blob.h>

#include <stdexcept>

namespace osdp::comm {
namespace {

// Drops the backtrace that c10 appends to an exception's text.
template <typename Work>
auto briefly(Work work) {
  try {
    return work();
  } catch (const c10::Error& e) {
    throw std::runtime_error(e.what_without_backtrace());
  }
}

class WorkMessage final : public Peers::Message {
 public:
  explicit WorkMessage(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}

  void wait() override {
    briefly([&] { return work_->wait(); });
  }
  void abort() noexcept override {
    try {
      work_->abort();
    } catch (const std::exception&) {  // it cannot be interrupted; the backend's timeout will end it
    }
  }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
};

class BackendPeers final : public Peers {
 public:
  explicit BackendPeers(c10::intrusive_ptr<c10d::Backend> backend) : backend_(std::move(backend)) {}

  int rank() const override { return backend_->getRank(); }
  int world() const override { return backend_->getSize(); }
  std::chrono::milliseconds timeout() const override { return backend_->getBackendOptions()->timeout; }
  std::shared_ptr<Message> send(const Range& range, int to, int tag) override {
    return post(&c10d::Backend::send, range, to, tag);
  }
  std::shared_ptr<Message> receive(const Range& range, int from, int tag) override {
    return post(&c10d::Backend::recv, range, from, tag);
  }

 private:
  template <typename Post>
  std::shared_ptr<Message> post(Post post, const Range& range, int peer, int tag) {
    std::vector<at::Tensor> one{at::from_blob(range.data, {range.bytes()}, at::kByte)};
    return std::make_shared<WorkMessage>(briefly([&] { return (backend_.get()->*post)(one, peer, tag); }));
  }

  c10::intrusive_ptr<c10d::Backend> backend_;
};

class BackendAbort final : public faults::Abortable {
 public:
  explicit BackendAbort(c10::intrusive_ptr<c10d::Backend> backend) : backend_(std::move(backend)) {}

  void abort() noexcept override {
    try {
      backend_->abort();
    } catch (const std::exception&) {  // not supported; the backend's own timeout will end it
    }
  }

 private:
  c10::intrusive_ptr<c10d::Backend> backend_;
};

class C10dStore final : public faults::Store {
 public:
  explicit C10dStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override { store_->set(key, value); }
  std::optional<std::string> get(const std::string& key) override {
    if (!store_->check({key})) return std::nullopt;
    return store_->get_to_str(key);
  }
  std::string set_first(const std::string& key, const std::string& value) override {
    return store_->compareSet(key, "", value);
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace

std::shared_ptr<Peers> peers_of(c10::intrusive_ptr<c10d::Backend> backend) {
  return std::make_shared<BackendPeers>(std::move(backend));
}

std::shared_ptr<faults::Abortable> abortable(c10::intrusive_ptr<c10d::Backend> backend) {
  return std::make_shared<BackendAbort>(std::move(backend));
}

std::shared_ptr<faults::Store> store_of(c10::intrusive_ptr<c10d::Store> store) {
  return std::make_shared<C10dStore>(std::move(store));
}

}  // namespace osdp::comm
