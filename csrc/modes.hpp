// How an operator is sharded, sliced and recomputed: one table, from which the search, the runtime, the
// bindings and, through them, Python, the files and the command line take names and traits. No includes
// beside the standard library.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace osdp {

enum class Mode : int {
  NoShard = 0,
  ShardGradOp = 1,
  FullShard = 2,
  HybridShard = 3,
  FullShardOffload = 4,
  HybridShardOffload = 5,
  FullShardHierarchical = 6,
  FullShardHpz = 7
};

struct ModeTraits {
  Mode mode;
  const char* name;
  bool sharded;       // a rank keeps a part of parameters, gradients and optimizer state; else all of them
  bool kept;          // what was gathered for the forward stays until the backward; else it is gathered again
  bool inside_hosts;  // sharded over the ranks of one host, with a copy on every host
  bool sliced;        // weights may be computed in slices
  bool on_host;       // a rank's part rests in host memory: runtime/store/offload.hpp; all slices, or none
  bool by_hosts;      // sharded over all ranks; gathered between hosts, then inside: comm/two_level.hpp
  bool second;        // what was gathered between hosts for the forward stays until the backward
};

inline constexpr std::array<ModeTraits, 8> kModes{{
    {Mode::NoShard, "NO_SHARD", false, false, false, false, false, false, false},
    {Mode::ShardGradOp, "SHARD_GRAD_OP", true, true, false, false, false, false, false},
    {Mode::FullShard, "FULL_SHARD", true, false, false, true, false, false, false},
    {Mode::HybridShard, "HYBRID_SHARD", true, false, true, false, false, false, false},
    {Mode::FullShardOffload, "FULL_SHARD_OFFLOAD", true, false, false, true, true, false, false},
    {Mode::HybridShardOffload, "HYBRID_SHARD_OFFLOAD", true, false, true, false, true, false, false},
    {Mode::FullShardHierarchical, "FULL_SHARD_HIERARCHICAL", true, false, false, false, false, true, false},
    {Mode::FullShardHpz, "FULL_SHARD_HPZ", true, false, false, false, false, true, true},
}};

// Whether gradients are reduced inside hosts first, and then between them, on a lane of its own.
constexpr bool reduced_between(const ModeTraits& mode) { return mode.inside_hosts || mode.by_hosts; }

constexpr const ModeTraits& traits(Mode mode) { return kModes[static_cast<size_t>(mode)]; }

// Which dimension of a weight [out, in] is cut. None: computed as a whole.
enum class Split : int { None = 0, Out = 1, In = 2 };
inline constexpr std::array<const char*, 3> kSplits{"none", "out", "in"};

// Slice i of g of a dimension begins here, and ends where the next one begins: sizes differ by one at most,
// and the last slice is one of the largest. It does not depend on the number of ranks.
constexpr int64_t slice_begin(int64_t length, int64_t granularity, int64_t i) {
  return i * (length / granularity) + i * (length % granularity) / granularity;
}

// Whether g slices fit. `by_rows`: of the weight as it is stored, which may leave a rest; slices of columns
// are equal.
constexpr bool slices_fit(int64_t length, int64_t granularity, bool by_rows) {
  return granularity == 1 || (by_rows ? granularity <= length : length % granularity == 0);
}

// What a block does with its activations and parameters: saves them; drops the activations and keeps its
// parameters gathered from the recomputation to the backward; or drops and gathers these again, too.
enum class Recompute : int { None = 0, Hold = 1, Regather = 2 };
inline constexpr std::array<const char*, 3> kRecomputes{"none", "hold", "regather"};

}  // namespace osdp
