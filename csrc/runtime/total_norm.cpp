#include "runtime/total_norm.hpp"

#include "runtime/owners.hpp"
#include "runtime/runtime.hpp"
#include "runtime/step/no_inference.hpp"

namespace osdp::runtime {

std::optional<at::Tensor> norm_over_ranks(const std::vector<at::Tensor>& tensors, double norm_type,
                                          bool error_if_nonfinite) {
  const std::vector<Owner> owners = owners_of(tensors);
  bool all_here = true;
  for (const Owner& owner : owners)
    all_here &= !owner.runtime || owner.runtime->parameter(owner.param).whole();
  if (all_here) return std::nullopt;
  NoInference no_inference;
  at::NoGradGuard no_grad;
  NormTerms terms(norm_type, tensors[0].device());
  std::vector<at::Tensor> others;
  at::ScalarType dtype = c10::toRealValueType(tensors[0].scalar_type());
  for (size_t i = 0; i < tensors.size(); ++i) {
    dtype = c10::promoteTypes(dtype, c10::toRealValueType(tensors[i].scalar_type()));
    const Owner& owner = owners[i];
    // A whole parameter is the same on every rank, so it counts as in one process.
    if (!owner.runtime || owner.runtime->parameter(owner.param).whole()) others.push_back(tensors[i]);
  }
  terms.add(others);
  for (const auto& runtime : live_runtimes()) {
    std::vector<at::Tensor> counted;
    int64_t cut = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (owners[i].runtime != runtime || runtime->parameter(owners[i].param).whole()) continue;
      ++cut;
      for (at::Tensor& piece : runtime->full_params().counted_pieces(owners[i].param, tensors[i]))
        counted.push_back(std::move(piece));
    }
    if (cut == 0) continue;
    terms.add(runtime->full_params().norm_terms(counted, norm_type, "get_total_norm",
                                                c10::str("of ", cut, " tensors, norm_type ", norm_type)));
  }
  if (error_if_nonfinite) check_finite(terms.norm(at::kDouble), norm_type);
  return terms.norm(dtype);
}

}  // namespace osdp::runtime
