// Storage of parameters: the part that each rank holds, and the storages that full tensors are gathered into.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "faults/errors.hpp"
#include "runtime/store/pending_gradient.hpp"
#include "runtime/store/spec.hpp"

namespace osdp::runtime {

// Note [Row ranges]
// A tensor is sharded by rows of its first dimension larger than 1: rank r holds rows [r*chunk, (r+1)*chunk)
// with chunk = ceil(rows / world), and the last ranks may hold fewer or none (torch.chunk's rule). All
// dimensions before are 1, so a range is one contiguous piece of the full tensor, and an all-gather of the
// ranges, each padded to `chunk` rows, assembles the full tensor in place with padding only at the very end.
// No copies in or out are needed.
struct RowRange {
  int64_t dim = 0;
  int64_t rows = 1;
  int64_t chunk = 1;
  int64_t begin = 0;  // this rank's first row; at most rows
  int64_t count = 1;  // this rank's rows; may be 0
  int64_t row_elements = 1;

  // Slices of a split weight are ranged over dimension 0 whatever its size; everything else over the first
  // long one.
  RowRange(at::IntArrayRef sizes, int64_t dim, int64_t rank, int64_t world);
  static int64_t first_long_dim(at::IntArrayRef sizes);
};

// A block of the full tensor and its position in the local one: for checkpoints, state dicts and norms.
struct Piece {
  std::vector<int64_t> offsets;  // in the full tensor
  std::vector<int64_t> sizes;
  int64_t local_dim;    // dimension of the local tensor that counts rows
  int64_t local_begin;  // first row there
  int64_t local_count;  // rows there
  bool replicated;      // every rank holds this piece
};

// The sizes of slice i of a split matrix.
std::vector<int64_t> slice_sizes(at::IntArrayRef full, const SplitSpec& split, int64_t i);

class Slot;

// Note [Hooks after accumulation]
// Autograd calls the hooks that scripts register with register_post_accumulate_grad_hook (an optimizer's
// step, say) right after it has accumulated a gradient. Here that gradient is this rank's own: full and not
// yet averaged. So the hooks are taken off the parameter while autograd accumulates, and the runtime calls
// them at the end of the backward that reduced this gradient. The parameter is sharded then, .grad is what an
// optimizer steps with, and a hook may set it to None. A backward under no_sync calls no hooks. All hooks of
// a parameter are in one object, which Python's handles add to and remove from, so hooks may be registered at
// any time.

// One nn.Parameter. Its tensor object never changes; the data that the tensor shows does:
//   sharded    the local tensor, which is this rank's rows. Of a split weight: the NO_SHARD slices in full,
//              one after the other, then this rank's rows of each sharded slice (2-D: rows of an output
//              slice are as long as the weight's, rows of an input slice a g-th of that)
//   unsharded  (forward, backward) the full tensor, in the compute dtype and readable only while gathered,
//              and .grad is full or undefined. The local tensor and its gradient are kept aside here. A
//              split weight has its full shape, and every read of it is an error: only its own call gets its
//              values, slice by slice. Where every rank holds it as it is, it stays readable.
//   read-only  (between passes, after unshard()) the full tensor of its unit, while .grad stays the local
//   one:
//              see Note [What unshard() shows]
class Parameter {
 public:
  // Takes the full value from spec.tensor (if it has one already) and leaves the local tensor in it, without
  // a gradient. `sharded`: false keeps the parameter whole on every rank (spec.split is then ignored).
  // `index`: among the model's parameters.
  Parameter(const ParamSpec& spec, size_t index, bool sharded, int64_t rank, int64_t world);

  const std::string& name() const { return name_; }
  size_t index() const { return index_; }
  const at::Tensor& tensor() const { return tensor_; }
  at::IntArrayRef full_sizes() const { return full_sizes_; }
  const std::optional<SplitSpec>& split() const { return split_; }
  const std::vector<Piece>& pieces() const { return pieces_; }
  std::vector<int64_t> local_sizes() const;
  bool whole() const { return whole_; }
  bool shows_unsharded() const { return shows_unsharded_; }
  at::Device device() const { return device_; }  // where it is computed with
  bool away() const { return away_; }            // rests in host memory; see Note [Shards in host memory]
  at::TensorOptions home_options() const;        // of its local tensor

  // See Note [Mixed precision]. Mixed: not all three are the same.
  at::ScalarType own_dtype() const { return own_; }
  at::ScalarType compute_dtype() const { return compute_; }
  at::ScalarType reduce_dtype() const { return reduce_; }
  bool mixed() const { return mixed_; }

  // The local tensor, as a plain tensor that shares its memory.
  at::Tensor local() const;
  // The local gradient: kept aside while unsharded, otherwise the parameter's .grad.
  at::Tensor& local_grad();
  // local_grad(), created with zeros if undefined.
  at::Tensor& ensure_local_grad();

  // A new gradient of a split weight begins with zeros, which a slice's first reduction replaces: see
  // Slot::first_of_gradient.
  void begin_gradient() { ++gradients_; }
  int64_t gradients() const { return gradients_; }

  // mark_gradient makes zeros of the local gradient -0.0, creating it if undefined; note_gradient records it
  // and its version, which gradients of one buffer share: all are marked before one is noted.
  // gradient_dropped returns whether the gradient has since been set to None or zeroed, and throws if it was
  // changed otherwise. See Note [Gradients kept under no_sync].
  void mark_gradient();
  void note_gradient();
  bool gradient_dropped();

  // Throws ShardingError if p.data, model.to(...) or .half() gave it a shape, dtype or device other than that
  // of this rank's shard.
  void check_local() const;
  void show_unsharded(const at::Tensor& full);  // sharded -> unsharded; undefined: what is shown already
  void show_split_unsharded();                  // the same of a split weight
  void show_sharded();                          // unsharded -> sharded
  void show_read_only(const at::Tensor& full);  // sharded -> read-only
  void end_read_only();                         // read-only -> sharded
  bool read_only() const { return read_only_; }
  bool was_read_only() const { return was_read_only_; }  // before the pass that runs now
  // Whether it was written to since show_read_only, which would be lost.
  bool written_read_only() const { return read_only_ && version() != read_only_version_; }
  void show(const at::Tensor& data);  // replaces the data shown
  // Restores the AccumulateGrad node, which carries our hooks. Assigning p.data of another dtype or device
  // makes autograd drop it, even if the next assignment returns to the first dtype (model.bfloat16(), then
  // model.float()).
  void keep_node();
  // Whether the gradient of each use so far comes to that node. Tensor.set_ and resize_ make autograd drop
  // it, too.
  bool keeps_node() const;

  // Whether it was written to in place since it was shown unsharded or since the last note_version(); see
  // Note [Writes in forward].
  bool written() const { return version() != noted_ || (replaced() && !same_rows()); }
  void note_version() { noted_ = version(); }
  int64_t version() const { return tensor_.is_inference() ? 0 : static_cast<int64_t>(tensor_._version()); }
  // For whole parameters: that a forward has written to it, ever.
  void note_written_in_forward() { written_in_forward_ = true, note_version(); }
  bool written_in_forward() const { return written_in_forward_; }

  // See Note [Hooks after accumulation].
  void hide_hooks();
  void show_hooks() noexcept;
  void call_hooks() const;
  // Each new gradient is multiplied by this before it is averaged over the ranks: a caller that wants the sum
  // divided by d gives world / d. See Note [Gradients that are scaled] in step/backward.cpp.
  double gradient_scale() const { return gradient_scale_; }
  void set_gradient_scale(double scale) { gradient_scale_ = scale; }

  // Whether backward reduces its gradient; otherwise this rank's own is kept, as under no_sync.
  bool sync() const { return sync_; }
  void set_sync(bool sync) { sync_ = sync; }

  // In this backward its gradient has been reduced, so the hooks must be called.
  void note_reduced() { reduced_ = true; }
  bool take_reduced() { return std::exchange(reduced_, false); }  // whether it was; forgets it

  // This rank's part of a full-size tensor.
  at::Tensor take_local(const at::Tensor& full) const;
  int64_t whole_rows() const;  // of a split weight: rows of the local tensor that every rank has

  // The node that accumulates this parameter's gradient. It is created while the parameter is full, so that
  // it always expects full gradients. Null if the parameter does not require a gradient.
  using Node = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));
  const Node& accumulator() const { return accumulator_; }
  void set_accumulator(Node node) { accumulator_ = std::move(node); }

  // What its module finds in its place during passes: see Note [Parameters of tensor parallelism]. Undefined:
  // itself.
  const at::Tensor& wrapper() const { return wrapper_; }
  void set_wrapper(at::Tensor wrapper) { wrapper_ = std::move(wrapper); }

  bool absent() const { return absent_; }  // it has been removed from the model
  void set_absent(bool absent) { absent_ = absent; }

 private:
  std::string name_;
  size_t index_;
  at::Tensor tensor_;
  at::Tensor wrapper_;
  Node accumulator_;
  bool absent_ = false;
  bool reduced_ = false;
  bool sync_ = true;
  double gradient_scale_ = 1.0;
  bool written_in_forward_ = false;
  std::vector<int64_t> full_sizes_;
  std::optional<SplitSpec> split_;
  std::vector<Piece> pieces_;
  at::ScalarType own_, compute_, reduce_;
  bool mixed_;
  bool whole_;
  at::Device device_;
  bool away_;
  bool shows_unsharded_ = false;
  bool read_only_ = false, was_read_only_ = false;
  int64_t read_only_version_ = -1;
  // Whether p.data = ... has given it another memory than that of the full value that it was shown with.
  // What it holds may be the same (cuDNN's flat weights of an LSTM).
  bool replaced() const { return shows_unsharded_ && shown_ != tensor_.storage().unsafeGetStorageImpl(); }

  bool same_rows() const;
  bool gradient_as_noted();

  const c10::StorageImpl* shown_ = nullptr;
  at::Tensor unreadable_;  // what a split weight shows while unsharded; undefined: what it is
  at::Tensor aside_;       // the local tensor, while unsharded or read-only
  at::Tensor aside_grad_;  // and its gradient
  // Weak: a gradient that was dropped keeps no memory.
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  WeakTensor noted_gradient_{c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
  int64_t noted_version_ = -1;  // of the gradient
  int64_t gradients_ = 0;       // begun
  int64_t noted_ = 0;           // version of the parameter
  std::unique_ptr<torch::autograd::PostAccumulateGradHook> hidden_hooks_;
  std::vector<int64_t> local_sizes_;
  at::Device home_{at::kCPU};  // where the local tensor rests
};

// One full tensor that is gathered from the ranks' rows: a sharded parameter, or one sharded slice of a split
// one.
//
// Note [Attached storages]
// The full tensor's StorageImpl lives as long as the slot; memory is attached to it for each gather. Views
// that autograd saved in forward point at the StorageImpl and find their data again once backward has
// gathered it, wherever in the arena that is. A detached storage throws on every access to its data, with the
// parameter's name and what to do: a storage of zero bytes would crash or, worse, read unrelated memory. Its
// nominal size stays, so that shapes and views still work. The gather writes through a second StorageImpl on
// the same memory (`padded`), so that the parameter cannot be read before the gather has finished.
class Slot {
 public:
  Slot(Parameter& owner, std::string name, std::vector<int64_t> sizes, int64_t local_begin, int64_t rank,
       int64_t world);

  const std::string& name() const { return name_; }
  Parameter& owner() const { return *owner_; }
  const RowRange& range() const { return range_; }
  const at::Tensor& full() const { return full_; }  // [sizes]
  const at::Tensor& padded() const {
    return padded_;
  }  // flat [world * chunk * row_elements], the same memory
  size_t bytes() const { return padded_nbytes_; }
  size_t reduced_bytes() const { return padded_.numel() * c10::elementSize(owner_->reduce_dtype()); }
  bool attached() const { return attached_; }

  void attach(at::DataPtr memory);  // to gather into
  void open();                      // the gather has finished: it can be read
  void detach() noexcept;

  // While it is gathered: whether this rank's rows in it are no longer those of the parameter.
  bool overwritten() const;

  // This rank's rows: flat views of a local-shaped tensor (the parameter's data or gradient).
  at::Tensor rows_of(const at::Tensor& local) const;

  // Of a slice: whether its rows of the owner's gradient have had no value, until now.
  bool first_of_gradient() { return std::exchange(gradients_, owner_->gradients()) != owner_->gradients(); }

  PendingGradient gradient;

 private:
  Parameter* owner_;
  std::string name_;
  RowRange range_;
  int64_t local_begin_;
  at::Tensor full_;
  at::Tensor padded_;
  size_t padded_nbytes_;
  int64_t gradients_ = 0;
  std::string unreadable_;  // the error of an access while detached
  bool attached_ = false;
};

}  // namespace osdp::runtime
