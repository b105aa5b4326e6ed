#include "runtime/store/shard_store.hpp"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstring>

#include "runtime/store/storage_access.hpp"

namespace osdp::runtime {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Whether `one` has the values of `other` in its own dtype; both are contiguous. NaN equals NaN. Piece by
// piece, since plans have no memory for this.
bool same_values(const at::Tensor& one, const at::Tensor& other) {
  if (one.is_cpu() && one.scalar_type() == other.scalar_type())
    return std::memcmp(one.const_data_ptr(), other.const_data_ptr(), one.nbytes()) == 0;
  const at::Tensor a = one.view({-1}), b = other.view({-1});
  const int64_t most = one.is_cpu() ? 1 << 10 : 1 << 20;
  for (int64_t at = 0; at < a.numel(); at += most) {
    const int64_t count = std::min(most, a.numel() - at);
    const at::Tensor expected = b.narrow(0, at, count).to(a.scalar_type());
    if (!at::allclose(a.narrow(0, at, count), expected, 0, 0, /*equal_nan=*/true)) return false;
  }
  return true;
}

// The offsets of one slice of a split weight in the full weight.
std::vector<int64_t> slice_offsets(at::IntArrayRef full, const SplitSpec& s, int64_t slice) {
  const size_t dim = s.dim == ops::SplitDim::Out ? 0 : 1;
  std::vector<int64_t> offsets(full.size(), 0);
  offsets[dim] = slice_begin(full[dim], s.granularity, slice);
  return offsets;
}

std::vector<Piece> split_pieces(at::IntArrayRef full, const SplitSpec& s, int64_t rank, int64_t world) {
  std::vector<Piece> pieces;
  int64_t local = 0;
  for (int64_t i = 0; i < s.granularity; ++i) {
    const bool replicated = i < s.granularity - s.sharded;
    std::vector<int64_t> piece = slice_sizes(full, s, i);
    const RowRange range(piece, 0, rank, world);
    std::vector<int64_t> offsets = slice_offsets(full, s, i);
    if (!replicated) offsets[0] += range.begin, piece[0] = range.count;
    pieces.push_back({offsets, piece, 0, local, piece[0], replicated});
    local += piece[0];
  }
  return pieces;
}

// Versions of torch differ in the kind of pointer that holds the AccumulateGrad node.
template <class T>
std::weak_ptr<T> weak_reference(const std::shared_ptr<T>& node) {
  return node;
}
template <class T>
c10::weak_intrusive_ptr<T> weak_reference(const c10::intrusive_ptr<T>& node) {
  return c10::weak_intrusive_ptr<T>(node);
}

// Of the right nominal size and device, but without memory.
c10::Storage without_memory(size_t bytes, at::Device device) {
  return c10::Storage(c10::Storage::use_byte_size_t(), bytes, at::DataPtr(nullptr, device),
                      /*allocator=*/nullptr, /*resizable=*/false);
}

std::vector<int64_t> contiguous_strides(at::IntArrayRef sizes) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * std::max<int64_t>(sizes[d], 1);
  return strides;
}

at::Tensor narrowed(at::Tensor t, const std::vector<int64_t>& offsets, const std::vector<int64_t>& sizes) {
  for (size_t d = 0; d < sizes.size(); ++d) t = t.narrow(static_cast<int64_t>(d), offsets[d], sizes[d]);
  return t;
}

}  // namespace

std::vector<int64_t> slice_sizes(at::IntArrayRef full, const SplitSpec& s, int64_t i) {
  const size_t dim = s.dim == ops::SplitDim::Out ? 0 : 1;
  std::vector<int64_t> sizes = full.vec();
  sizes[dim] = slice_begin(full[dim], s.granularity, i + 1) - slice_begin(full[dim], s.granularity, i);
  return sizes;
}

int64_t RowRange::first_long_dim(at::IntArrayRef sizes) {
  for (size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] > 1) return static_cast<int64_t>(d);
  return 0;
}

RowRange::RowRange(at::IntArrayRef sizes, int64_t range_dim, int64_t rank, int64_t world) : dim(range_dim) {
  if (sizes.empty()) return;
  rows = sizes[dim];
  chunk = ceil_div(rows, world);
  begin = std::min(rows, rank * chunk);
  count = std::min(rows, (rank + 1) * chunk) - begin;
  row_elements = 1;
  for (size_t d = dim + 1; d < sizes.size(); ++d) row_elements *= sizes[d];
}

Parameter::Parameter(const ParamSpec& spec, size_t index, bool sharded, int64_t rank, int64_t world)
    : name_(spec.name),
      index_(index),
      tensor_(spec.tensor),
      full_sizes_(spec.sizes().vec()),
      own_(spec.tensor.scalar_type()),
      compute_(spec.precision.compute.value_or(own_)),
      reduce_(spec.precision.reduce.value_or(compute_)),
      mixed_(compute_ != own_ || reduce_ != own_),
      whole_(!sharded),
      device_(spec.tensor.device()),
      away_(spec.offload && spec.full_sizes && sharded && !(spec.split && spec.split->whole_slices() > 0)) {
  if (sharded) split_ = spec.split;
  if (split_) {
    pieces_ = split_pieces(full_sizes_, *split_, rank, world);
  } else {
    std::vector<int64_t> offsets(full_sizes_.size(), 0), sizes = full_sizes_;
    RowRange range(full_sizes_, RowRange::first_long_dim(full_sizes_), rank, world);
    if (sharded) offsets[range.dim] = range.begin, sizes[range.dim] = range.count;
    const int64_t count = sizes.empty() ? 1 : sizes[range.dim];
    pieces_.push_back({offsets, sizes, range.dim, 0, count, !sharded});
  }
  if (spec.full_sizes) {
    tensor_.set_data(spec.local.defined() ? spec.local : at::empty(local_sizes(), home_options()));
  } else if (sharded) {
    at::Tensor full = tensor_.variable_data();
    tensor_.set_data(take_local(full));
    tensor_.mutable_grad().reset();
  }
  local_sizes_ = tensor_.sizes().vec();
  home_ = tensor_.device();
  const bool as_it_is = split_ && split_->sharded == 0 && split_->dim == ops::SplitDim::Out && !mixed_;
  if (!split_ || as_it_is) return;
  const auto bytes = static_cast<size_t>(c10::multiply_integers(full_sizes_)) * c10::elementSize(compute_);
  unreadable_ = at::empty({0}, home_options().device(device_).pinned_memory(false).dtype(compute_))
                    .set_(without_memory(bytes, device_), 0, full_sizes_, contiguous_strides(full_sizes_));
  set_unreadable(*unreadable_.storage().unsafeGetStorageImpl(),
                 "OSDP: parameter '" + name_ +
                     "' was read while it is not gathered: its module computes with it in slices, so it is "
                     "never there as a whole. Keep it out of slices (granularity 1 in the plan), or read it "
                     "between steps inside osdp.summon_full_params(model). A penalty on the weights is the "
                     "optimizer's weight_decay.");
}

void Parameter::check_local() const {
  if (shows_unsharded_ || read_only_) return;
  const bool same = tensor_.sizes() == at::IntArrayRef(local_sizes_) && tensor_.scalar_type() == own_ &&
                    tensor_.device() == home_;
  OSDP_CHECK(same, Sharding, "OSDP: parameter '", name_, "' is now ", tensor_.sizes(), " ",
             tensor_.scalar_type(), " on ", tensor_.device(), ", but this rank's part of it was ",
             at::IntArrayRef(local_sizes_), " ", own_, " on ", home_,
             " when the model was sharded (p.data = ..., model.to(...), model.half()?). Convert or move a "
             "model before fully_shard; change values by p.data.copy_(...) of this rank's part, or inside "
             "osdp.summon_full_params(model).");
}

at::TensorOptions Parameter::home_options() const {
  const auto options = local().options().requires_grad(false);
  return away_ ? options.device(at::kCPU).pinned_memory(!device_.is_cpu()) : options;
}

at::Tensor Parameter::local() const {
  return shows_unsharded_ || read_only_ ? aside_ : tensor_.variable_data();
}

at::Tensor& Parameter::local_grad() { return shows_unsharded_ ? aside_grad_ : tensor_.mutable_grad(); }

at::Tensor& Parameter::ensure_local_grad() {
  at::Tensor& grad = local_grad();
  if (!grad.defined()) grad = at::zeros(local_sizes_, home_options());
  return grad;
}

bool Parameter::gradient_as_noted() {
  return noted_gradient_._unsafe_get_target() == local_grad().unsafeGetTensorImpl() &&
         static_cast<int64_t>(local_grad()._version()) == noted_version_;
}

void Parameter::mark_gradient() {
  at::Tensor& gradient = local_grad();
  if (!gradient.defined())
    gradient = at::full(local_sizes_, -0.0, home_options());
  else if (!gradient_as_noted())
    gradient.masked_fill_(gradient == 0, -0.0);
}

void Parameter::note_gradient() {
  const at::Tensor& gradient = local_grad();
  noted_gradient_ = WeakTensor(gradient.getIntrusivePtr());
  noted_version_ = static_cast<int64_t>(gradient._version());
}

bool Parameter::gradient_dropped() {
  const at::Tensor& gradient = local_grad();
  if (!gradient.defined()) return true;
  if (gradient_as_noted()) return false;
  const at::Tensor values = gradient.is_complex() ? at::view_as_real(gradient) : gradient;
  OSDP_CHECK(!at::logical_or(values != 0, at::signbit(values)).any().item<bool>(), Sharding,
             "OSDP: the gradient of parameter '", name_,
             "' was changed between a backward under no_sync and the one that reduces. Clip or scale "
             "gradients after the last micro-batch's backward, outside of no_sync.");
  return true;
}

void Parameter::show_unsharded(const at::Tensor& full) {
  if (shows_unsharded_) return;
  end_read_only();
  aside_ = tensor_.variable_data().contiguous();  // p.data may have been given another layout
  aside_grad_ = tensor_.grad();
  tensor_.mutable_grad().reset();
  if (full.defined()) show(full);
  shown_ = tensor_.storage().unsafeGetStorageImpl();
  note_version();
  shows_unsharded_ = true;
}

bool Parameter::same_rows() const {
  if (split_ || tensor_.sizes() != at::IntArrayRef(full_sizes_) || tensor_.device() != aside_.device())
    return false;
  return same_values(take_local(tensor_.variable_data()), aside_);
}

void Parameter::show_split_unsharded() {
  show_unsharded(unreadable_.defined() ? unreadable_ : tensor_.variable_data());
}

void Parameter::show_sharded() {
  if (!shows_unsharded_) return;
  show(aside_);
  tensor_.mutable_grad() = aside_grad_;
  aside_.reset();
  aside_grad_.reset();
  shows_unsharded_ = was_read_only_ = false;
}

void Parameter::show_read_only(const at::Tensor& full) {
  if (shows_unsharded_ || read_only_) return;
  aside_ = tensor_.variable_data().contiguous();
  show(full);
  read_only_version_ = version();
  read_only_ = true;
}

void Parameter::end_read_only() {
  if (!read_only_) return;
  show(aside_);
  aside_.reset();
  read_only_ = false;
  was_read_only_ = true;
}

void Parameter::show(const at::Tensor& data) {
  const bool switches = data.device() != tensor_.device() || data.scalar_type() != tensor_.scalar_type();
  tensor_.set_data(data);
  shown_ = data.storage().unsafeGetStorageImpl();
  if (switches) keep_node();
}

void Parameter::keep_node() {
  if (accumulator_) torch::autograd::impl::set_grad_accumulator(tensor_, weak_reference(accumulator_));
}

bool Parameter::keeps_node() const {
  if (!accumulator_) return true;
  const auto node = torch::autograd::impl::try_get_grad_accumulator(tensor_);
  return !node || node.get() == accumulator_.get();
}

void Parameter::hide_hooks() {
  if (auto& hooks = torch::autograd::impl::post_acc_grad_hooks(tensor_)) hidden_hooks_ = std::move(hooks);
}

void Parameter::show_hooks() noexcept {
  if (hidden_hooks_) torch::autograd::impl::set_post_acc_grad_hooks(tensor_, std::move(hidden_hooks_));
}

void Parameter::call_hooks() const {
  if (auto& hooks = torch::autograd::impl::post_acc_grad_hooks(tensor_)) (*hooks)(tensor_);
}

std::vector<int64_t> Parameter::local_sizes() const {
  std::vector<int64_t> sizes = pieces_[0].sizes;
  for (size_t i = 1; i < pieces_.size(); ++i) sizes[pieces_[i].local_dim] += pieces_[i].local_count;
  return sizes;
}

int64_t Parameter::whole_rows() const {
  int64_t rows = 0;
  for (const Piece& piece : pieces_)
    if (piece.replicated) rows += piece.local_count;
  return rows;
}

at::Tensor Parameter::take_local(const at::Tensor& full) const {
  if (!split_)
    return narrowed(full, pieces_[0].offsets, pieces_[0].sizes).clone(at::MemoryFormat::Contiguous);
  std::vector<at::Tensor> parts;
  for (const Piece& piece : pieces_) parts.push_back(narrowed(full, piece.offsets, piece.sizes));
  return at::cat(parts, 0);
}

Slot::Slot(Parameter& owner, std::string name, std::vector<int64_t> sizes, int64_t local_begin, int64_t rank,
           int64_t world)
    : owner_(&owner),
      name_(std::move(name)),
      range_(sizes, owner.split() ? 0 : RowRange::first_long_dim(sizes), rank, world),
      local_begin_(local_begin) {
  const at::Tensor& like = owner.tensor();
  const int64_t elements = world * range_.chunk * range_.row_elements;
  padded_nbytes_ = static_cast<size_t>(elements) * c10::elementSize(owner.compute_dtype());
  const auto options = like.options()
                           .requires_grad(false)
                           .device(owner.device())
                           .pinned_memory(false)
                           .dtype(owner.compute_dtype());
  full_ = at::empty({0}, options)
              .set_(without_memory(padded_nbytes_, owner.device()), 0, sizes, contiguous_strides(sizes));
  padded_ = at::empty({0}, options).set_(without_memory(padded_nbytes_, owner.device()), 0, {elements}, {1});
  unreadable_ =
      "OSDP: parameter '" + name_ +
      "' was read while it is not gathered. It is gathered for the calls that read it when the model was "
      "described (its module, or the module whose forward uses it). Read it inside one of those (clone there "
      "what is kept of it: a view, .detach(), .data), describe the model with a sample that takes this path, "
      "or use osdp.summon_full_params(model).";
  detach();
}

void Slot::attach(at::DataPtr memory) {
  OSDP_CHECK(!attached_, Sharding, "OSDP: parameter '", name_,
             "' would be gathered into memory twice. This is a bug in OSDP; please report it.");
  padded_.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory));
  attached_ = true;
}

void Slot::open() {
  OSDP_CHECK(attached_, Sharding, "OSDP: parameter '", name_,
             "' would be readable without memory. This is a bug in OSDP; please report it.");
  const auto& memory = padded_.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  set_readable(*full_.storage().unsafeGetStorageImpl(),
               at::DataPtr(memory.get(), memory.device()));  // padded_ owns it
}

void Slot::detach() noexcept {
  set_unreadable(*full_.storage().unsafeGetStorageImpl(), unreadable_);
  padded_.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(nullptr, full_.device()));
  attached_ = false;
}

bool Slot::overwritten() const {
  const at::Tensor local = owner_->local();
  if (!attached_ || range_.count == 0 || !local.is_cpu() || !full_.is_cpu()) return false;
  const int64_t elements = range_.count * range_.row_elements;
  const at::Tensor gathered = padded_.narrow(0, range_.begin * range_.row_elements, elements);
  return !same_values(gathered, rows_of(local));
}

at::Tensor Slot::rows_of(const at::Tensor& local) const {
  return local.narrow(range_.dim, local_begin_, range_.count).view({range_.count * range_.row_elements});
}

}  // namespace osdp::runtime
