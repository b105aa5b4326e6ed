#include "runtime/task_name.hpp"

#include <algorithm>
#include <utility>

namespace osdp::runtime {

std::string TaskName::text() const {
  std::string text = "'" + label + "'";
  if (model > 1) text += " of model " + std::to_string(model);
  return details.empty() ? text : text + " " + details;
}

TaskNamePtr task_name(std::string label, int64_t model, std::string details, uint64_t digest) {
  const uint64_t all = Digest().add(label).add(static_cast<uint64_t>(model)).add(details).add(digest).value();
  return std::make_shared<const TaskName>(TaskName{std::move(label), model, std::move(details), all});
}

TaskNames::TaskNames(const std::string& label, int64_t model, std::vector<std::string> tensors)
    : tensors_(std::move(tensors)) {
  base_ = Digest().add(label).add(static_cast<uint64_t>(model)).value();
  Digest sum(base_);
  for (const std::string& tensor : tensors_) {
    digests_.push_back(Digest().add(tensor).value());
    sum.add(digests_.back() + static_cast<uint64_t>(Part::Gradient));
  }
  all_ = std::make_shared<const TaskName>(TaskName{label, model, "", sum.value()});
}

const TaskNamePtr& TaskNames::of(const std::vector<Part>& parts) {
  Digest sum(base_);
  for (size_t i = 0; i < digests_.size(); ++i)
    if (parts[i] != Part::None) sum.add(digests_[i] + static_cast<uint64_t>(parts[i]));
  if (sum.value() == all_->digest) return all_;
  if (!some_ || some_->digest != sum.value()) some_ = of_some(parts, sum.value());
  return some_;
}

TaskNamePtr TaskNames::of_some(const std::vector<Part>& parts, uint64_t digest) const {
  std::vector<std::string> in, out;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string name = "'" + tensors_[i] + "'";
    (parts[i] == Part::None ? out : in)
        .push_back(parts[i] == Part::WithKept ? name + " (and what no_sync kept of it)" : name);
  }
  const bool shorter_without = !out.empty() && out.size() < in.size() &&
                               std::find(parts.begin(), parts.end(), Part::WithKept) == parts.end();
  std::string details = shorter_without ? "without a gradient of " : "with gradients of ";
  const std::vector<std::string>& listed = shorter_without ? out : in;
  for (size_t i = 0; i < listed.size(); ++i) details += (i == 0 ? "" : ", ") + listed[i];
  if (!shorter_without && !out.empty()) details += " only";
  return std::make_shared<const TaskName>(TaskName{all_->label, all_->model, std::move(details), digest});
}

}  // namespace osdp::runtime
