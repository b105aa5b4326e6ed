#include "runtime/step/replicas.hpp"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "faults/errors.hpp"

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

// For a tensor on an accelerator: without a copy to the host.
at::Tensor digest_there(const at::Tensor& contiguous) {
  const at::Tensor bytes = contiguous.view({-1}).view(at::kByte);
  return at::sum(bytes, at::kLong).to(at::kDouble);
}

// "one value on rank 0, rank 1, rank 3; another on rank 2"
std::string values_by_rank(const at::Tensor& digest_of_each, const std::vector<int64_t>& ranks,
                           const faults::RankNames& name) {
  std::vector<std::pair<double, std::string>> groups;
  for (int64_t i = 0; i < digest_of_each.numel(); ++i) {
    const auto digest = digest_of_each[i].item<double>();
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == digest; });
    if (group == groups.end()) group = groups.insert(group, {digest, ""});
    group->second +=
        (group->second.empty() ? "" : ", ") + name(ranks.empty() ? i : ranks.at(static_cast<size_t>(i)));
  }
  std::string text;
  for (const auto& [digest, holders] : groups)
    text += (text.empty() ? "one value on " : "; another on ") + holders;
  return text;
}

}  // namespace

void Replicas::submit(comm::Lane& lane, const std::shared_ptr<comm::Collectives>& collectives,
                      const std::vector<Parameter*>& params, bool accumulates) {
  const int64_t step = steps_++;
  if (params.empty() || collectives->alone()) return;
  const bool all = step < kFirst || step % kEvery == 0;
  names_.clear();
  written_.clear();
  std::vector<at::Tensor> each;
  for (const Parameter* p : params) {
    if (p->absent()) continue;
    if (!all && !p->written_in_forward()) continue;
    written_.push_back(p->written_in_forward());
    const at::Tensor local = p->local().contiguous();
    names_.push_back(p->name());
    // Digests of offloaded rows are copied to the device too, since the backend reduces device tensors.
    each.push_back(local.is_cpu() ? at::scalar_tensor(digest_here(local), at::kDouble).to(p->device(), true)
                                  : digest_there(local));
  }
  if (each.empty()) return;
  const at::Tensor digests = at::stack(each);
  digests_ = at::stack({digests, digests.neg()});
  own_ = digests;
  lane_ = &lane;
  collectives_ = collectives;
  const char* const label = ranks_.empty() ? "replicas all-reduce" : "replicas all-reduce between lines";
  under_way_ = lane.submit(faults::TaskNames(label, model_, names_).all(accumulates),
                           [digests = digests_.view({-1}), collectives] {
                             comm::Lane::keep(digests);  // after an exception nothing waits for it
                             collectives->all_reduce_max(digests);
                           });
}

at::Tensor Replicas::digest_of_each_rank(int64_t of) {
  const at::Tensor mine = own_.narrow(0, of, 1).clone();
  at::Tensor all = at::empty({collectives_->world()}, mine.options());
  lane_
      ->submit(faults::task_name("replicas all-gather", model_),
               [mine, all, collectives = collectives_] { collectives->all_gather({all}, {mine}); })
      .wait();
  return all.cpu();
}

void Replicas::check(int64_t rank, const faults::RankNames& name) {
  if (!digests_.defined()) return;
  under_way_.wait();
  const at::Tensor differs = (digests_[0] + digests_[1]).ne(0).cpu();
  if (!differs.any().item<bool>()) return forget();
  const auto first = differs.to(at::kInt).argmax().item<int64_t>();  // the same on all ranks
  const std::string values = values_by_rank(digest_of_each_rank(first), ranks_, name);
  forget();
  const int64_t more = differs.sum().item<int64_t>() - 1;
  const auto at = static_cast<size_t>(first);
  faults::throw_error(
      faults::ErrorKind::Replica,
      c10::str(name(rank), ": parameter '", names_[at], "'",
               more > 0 ? c10::str(" (and ", more, " more)") : "",
               " no longer has the same value on all ranks that hold it: ", values, ". ",
               written_[at]
                   ? "It was written to in forward (nn.Embedding(max_norm=...), a moving average?) with "
                     "values that depend on each rank's own data: write the same values on every rank, or "
                     "between steps. "
                   : "",
               "All ranks get the same averaged gradients and must make the same update from them. Possible "
               "causes: values that were initialised, loaded or written on some ranks only; gradients that "
               "each rank scaled, clipped or added noise to by its own norm or seed; an optimizer, or a "
               "branch of one, that only some ranks run; optimizer options that differ. Make the same "
               "update on every rank; to make parameters and optimizer state equal again, load a "
               "checkpoint."));
}

void Replicas::forget() {
  digests_.reset();
  own_.reset();
  collectives_.reset();
  under_way_ = comm::Work();
}

}  // namespace osdp::runtime
