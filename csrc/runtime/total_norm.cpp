#include "runtime/total_norm.hpp"

#include <algorithm>

#include "runtime/owners.hpp"
#include "runtime/runtime.hpp"
#include "runtime/step/no_inference.hpp"

namespace osdp::runtime {

namespace {

// The model whose collective counts this tensor; null: this rank counts it as it is. A whole parameter is the
// same on every rank, so it counts as in one process, unless it belongs to a part: other groups of ranks hold
// another one.
const Runtime* counted_by(const Owner& owner, const std::vector<PartOfWhole>& parts) {
  if (!owner.runtime) return nullptr;
  for (const auto& [part, whole] : parts)
    if (part == owner.runtime) return whole.get();
  return owner.runtime->parameter(owner.param).whole() ? nullptr : owner.runtime.get();
}

// Whether a group of ranks may have no gradient where another has one (an expert that got no token), so that
// ranks may come with different numbers of tensors.
bool has_parts(const Runtime& whole, const std::vector<PartOfWhole>& parts) {
  return std::any_of(parts.begin(), parts.end(), [&](const auto& p) { return p.second.get() == &whole; });
}

}  // namespace

std::optional<at::Tensor> norm_over_ranks(const std::vector<at::Tensor>& tensors, double norm_type,
                                          bool error_if_nonfinite, const std::vector<PartOfWhole>& parts) {
  const std::vector<Owner> owners = owners_of(tensors);
  const auto [place, parameter] = find_part(tensors, owners);
  OSDP_CHECK(!parameter, Sharding, "OSDP: get_total_norm: tensor ", place,
             " is a view of some of the rows of '", parameter->name(),
             "' or its gradient on this rank, and ranks hold different rows. Give the whole "
             "gradient, or take the norm of a part of the full one within osdp.summon_full_params(model, "
             "with_grads=True)");
  std::vector<const Runtime*> counts;
  for (const Owner& owner : owners) {
    const Runtime* by = counted_by(owner, parts);
    // Every rank of a model with parts joins its collective, also one that comes without their tensors.
    counts.push_back(!by && owner.runtime && has_parts(*owner.runtime, parts) ? owner.runtime.get() : by);
  }
  if (std::all_of(counts.begin(), counts.end(), [](const Runtime* by) { return !by; })) return std::nullopt;
  NoInference no_inference;
  at::NoGradGuard no_grad;
  NormTerms terms(norm_type, tensors[0].device());
  std::vector<at::Tensor> others;
  at::ScalarType dtype = c10::toRealValueType(tensors[0].scalar_type());
  for (size_t i = 0; i < tensors.size(); ++i) {
    dtype = c10::promoteTypes(dtype, c10::toRealValueType(tensors[i].scalar_type()));
    if (!counts[i]) others.push_back(tensors[i]);
  }
  terms.add(others);
  for (const auto& runtime : live_runtimes()) {
    std::vector<at::Tensor> counted;
    int64_t cut = 0;
    bool any = false;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (counts[i] != runtime.get()) continue;
      any = true;
      cut += owners[i].runtime == runtime;
      for (at::Tensor& piece :
           owners[i].runtime->full_params().counted_pieces(owners[i].param, owners[i].whole))
        counted.push_back(std::move(piece));
    }
    if (!any) continue;
    terms.add(runtime->full_params().norm_terms(counted, norm_type, "get_total_norm",
                                                c10::str("of ", cut, " tensors, norm_type ", norm_type)));
  }
  if (error_if_nonfinite) check_finite(terms.norm(at::kDouble), norm_type);
  return terms.norm(dtype);
}

}  // namespace osdp::runtime
