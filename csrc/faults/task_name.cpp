#include "faults/task_name.hpp"

#include <algorithm>
#include <istream>
#include <ostream>
#include <utility>

namespace osdp::faults {

std::string TaskName::text() const {
  std::string text = "'" + label + "'";
  if (model > 1) text += " of model " + std::to_string(model);
  if (!details.empty()) text += " " + details;
  return accumulates ? text + " in a further micro-batch" : text;
}

void write(std::ostream& out, const TaskName& task) {
  out << task.model << '\n'
      << task.digest << '\n'
      << task.accumulates << '\n'
      << task.label << '\n'
      << task.details << '\n';
}

TaskName read_task(std::istream& in) {
  TaskName task;
  in >> task.model >> task.digest >> task.accumulates;
  in.ignore();
  std::getline(in, task.label);
  std::getline(in, task.details);
  return task;
}

TaskNamePtr task_name(std::string label, int64_t model, std::string details, uint64_t digest) {
  const uint64_t all = Digest().add(label).add(static_cast<uint64_t>(model)).add(details).add(digest).value();
  return std::make_shared<const TaskName>(TaskName{std::move(label), model, std::move(details), all, false});
}

TaskNames::TaskNames(const std::string& label, int64_t model, std::vector<std::string> tensors)
    : tensors_(std::move(tensors)) {
  for (const std::string& tensor : tensors_) digests_.push_back(Digest().add(tensor).value());
  for (const bool accumulates : {false, true}) {
    base_[accumulates] =
        Digest().add(label).add(static_cast<uint64_t>(model)).add(uint64_t{accumulates}).value();
    Digest sum(base_[accumulates]);
    for (const uint64_t tensor : digests_) sum.add(tensor + static_cast<uint64_t>(Part::Gradient));
    all_[accumulates] =
        std::make_shared<const TaskName>(TaskName{label, model, "", sum.value(), accumulates});
  }
}

const TaskNamePtr& TaskNames::of(const std::vector<Part>& parts, bool accumulates) {
  Digest sum(base_[accumulates]);
  for (size_t i = 0; i < digests_.size(); ++i)
    if (parts[i] != Part::None) sum.add(digests_[i] + static_cast<uint64_t>(parts[i]));
  if (sum.value() == all_[accumulates]->digest) return all_[accumulates];
  if (!some_ || some_->digest != sum.value()) some_ = of_some(parts, sum.value(), accumulates);
  return some_;
}

TaskNamePtr TaskNames::of_some(const std::vector<Part>& parts, uint64_t digest, bool accumulates) const {
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
  return std::make_shared<const TaskName>(
      TaskName{all_[0]->label, all_[0]->model, std::move(details), digest, accumulates});
}

}  // namespace osdp::faults
