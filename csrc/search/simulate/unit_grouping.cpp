#include "search/simulate/unit_grouping.hpp"

#include <algorithm>
#include <map>
#include <tuple>

namespace osdp::search {
namespace {

class Grouping {
 public:
  Grouping(int64_t bucket_bytes, int64_t small, int64_t most)
      : bucket_bytes_(bucket_bytes), small_(small), most_(most) {}

  void add(int i, const Place& place, Sharding choice) {
    const bool alone = choice.granularity > 1 || place.mixed;
    if (choice.mode == Mode::NoShard) return alone ? begin(i) : add_whole(i, place);
    const Key key{choice.mode, place.dtype, place.block};
    if (alone || place.modules > 1) {
      begin(i);
    } else if (!place.traced) {
      const auto [at, fresh] = untraced_.try_emplace({key, place.gathered_at}, units_.size());
      if (!fresh) {
        units_[at->second].push_back(i);
      } else {
        begin(i);
      }
    } else {
      return add_sharded(i, key, place.gathered_bytes);
    }
    open_ = false;
  }

  std::vector<std::vector<int>> units() && { return std::move(units_); }

 private:
  using Key = std::tuple<Mode, int, int>;  // mode, dtype, block
  struct Bucket {
    size_t unit = 0;
    int64_t bytes = 0;
  };

  void begin(int i) { units_.push_back({i}); }

  void add_whole(int i, const Place& place) {
    const auto at = buckets_.find(place.dtype);
    if (at != buckets_.end() && at->second.bytes + place.bytes <= bucket_bytes_) {
      units_[at->second.unit].push_back(i);
      at->second.bytes += place.bytes;
    } else {
      buckets_[place.dtype] = {units_.size(), place.bytes};
      begin(i);
    }
  }

  void add_sharded(int i, const Key& key, int64_t bytes) {
    if (open_ && key == open_key_ && std::min(last_.bytes, bytes) < small_ && last_.bytes + bytes <= most_) {
      units_[last_.unit].push_back(i);
      last_.bytes += bytes;
    } else {
      open_ = true, open_key_ = key, last_ = {units_.size(), bytes};
      begin(i);
    }
  }

  const int64_t bucket_bytes_, small_, most_;
  std::vector<std::vector<int>> units_;
  std::map<int, Bucket> buckets_;                   // by dtype: the one that may still grow
  std::map<std::pair<Key, int>, size_t> untraced_;  // by the modules that gather them
  bool open_ = false;                               // the last sharded unit may still grow
  Key open_key_;
  Bucket last_;
};

}  // namespace

std::vector<std::vector<int>> group_units(const std::vector<Place>& places,
                                          const std::vector<Sharding>& choices, int64_t bucket_bytes,
                                          int64_t small, int64_t most) {
  Grouping grouping(bucket_bytes, small, most);
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i].parameters) grouping.add(static_cast<int>(i), places[i], choices.at(i));
  }
  return std::move(grouping).units();
}

}  // namespace osdp::search
