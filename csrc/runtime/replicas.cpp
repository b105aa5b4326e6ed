#include "runtime/replicas.hpp"

#include <ATen/Functions.h>

#include <cstring>

#include "runtime/errors.hpp"

namespace osdp::runtime {
namespace {

constexpr uint64_t kBits = (uint64_t{1} << 52) - 1;

double digest_here(const at::Tensor& contiguous) {
  const auto* bytes = static_cast<const unsigned char*>(contiguous.const_data_ptr());
  const size_t count = contiguous.nbytes();
  uint64_t sum[4] = {1, 2, 3, 4};  // four chains, so that multiplications overlap
  size_t at = 0;
  for (; at + 32 <= count; at += 32) {
    uint64_t word[4];
    std::memcpy(word, bytes + at, 32);
    for (int i = 0; i < 4; ++i) sum[i] = (sum[i] ^ word[i]) * 0x9E3779B97F4A7C15u;
  }
  for (; at < count; ++at) sum[0] = (sum[0] ^ bytes[at]) * 0x9E3779B97F4A7C15u;
  const uint64_t all = (sum[0] ^ sum[1] >> 7 ^ sum[2] >> 13 ^ sum[3] >> 19) * 0xD6E8FEB86659FD93u;
  return static_cast<double>(all >> 8 & kBits);
}

// On an accelerator, without a copy to the host.
at::Tensor digest_there(const at::Tensor& contiguous) {
  const at::Tensor bytes = contiguous.view({-1}).view(at::kByte);
  return at::sum(bytes, at::kLong).to(at::kDouble);
}

}  // namespace

void Replicas::submit(Lane& lane, const std::shared_ptr<Collectives>& collectives,
                      const std::vector<Parameter*>& params) {
  const int64_t step = steps_++;
  if (params.empty() || collectives->world() == 1) return;
  const bool all = step < kFirst || step % kEvery == 0;
  names_.clear();
  written_.clear();
  std::vector<at::Tensor> each;
  for (const Parameter* p : params) {
    if (p->absent) continue;
    if (!all && !p->written_in_forward) continue;
    written_.push_back(p->written_in_forward);
    const at::Tensor local = p->local().contiguous();
    names_.push_back(p->name());
    each.push_back(local.is_cpu() ? at::scalar_tensor(digest_here(local), at::kDouble) : digest_there(local));
  }
  if (each.empty()) return;
  const at::Tensor digests = at::stack(each);
  digests_ = at::stack({digests, digests.neg()});
  under_way_ =
      lane.submit(TaskNames("replicas all-reduce", model_, names_).all(),
                  [digests = digests_.view({-1}), collectives] { collectives->all_reduce_max(digests); });
}

void Replicas::check(int64_t rank) {
  if (!digests_.defined()) return;
  under_way_.wait();
  const at::Tensor differs = (digests_[0] + digests_[1]).ne(0).cpu();
  forget();
  if (!differs.any().item<bool>()) return;
  const auto first = static_cast<size_t>(differs.to(at::kInt).argmax().item<int64_t>());
  throw_error(
      ErrorKind::Replica,
      c10::str(
          "rank ", rank, ": parameter '", names_[first], "' (of ", differs.sum().item<int64_t>(),
          " that differ) is not the same on all ranks that hold it any more. ",
          written_[first]
              ? "It was written to in forward (nn.Embedding(max_norm=...), a moving average?), by each rank "
                "what its own data made of it: write the same values on every rank, or between steps. Else "
                "the likely cause: "
              : "The likely cause: ",
          "torch.nn.utils.clip_grad_norm_, which sees another norm on each rank; "
          "use model.clip_grad_norm_ or osdp.clip_grad_norm_(model, ...). Else something changed "
          "parameters or gradients on some ranks only. Load a checkpoint, or call "
          "fully_shard on a new model, to make them equal again."));
}

void Replicas::forget() {
  digests_.reset();
  under_way_ = Ticket();
}

}  // namespace osdp::runtime
