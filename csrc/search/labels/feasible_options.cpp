#include "search/labels/feasible_options.hpp"

#include <algorithm>
#include <numeric>

namespace osdp::search {
namespace {

constexpr int64_t kNone = kLargestSum;
constexpr int kMostRounds = 4;

// The least amounts of a slot's options.
struct LeastOfSlot {
  int64_t before = 0, after = 0, inside = 0, phase = 0;
};

// One recomputation of a class, with the least of every amount.
struct LeastOfWay {
  std::vector<LeastOfSlot> slots;
  std::vector<int64_t> phases;          // by slot
  std::vector<int64_t> earlier, later;  // by slot: the largest of the phases of slots before and after it
  Stretch all = kNoStretch;
};

class Chain {
 public:
  Chain(const Model& model, const Request& request, const EquivalenceClasses& classes, Batch batch)
      : resources_(model, request, classes, batch, true),
        request_(request),
        classes_(classes),
        batch_(batch) {
    if (!resources_.possible()) return;
    ways_.resize(classes.classes.size());
    for (size_t k = 0; k < classes.classes.size(); ++k)
      for (const Recompute way : classes.classes[k].ways) ways_[k].push_back(least_of_way(k, way));
    const auto& segments = resources_.segments();
    std::vector<Stretch> own;
    for (const auto& ways : ways_) {
      std::vector<Stretch> columns;
      for (const LeastOfWay& way : ways) columns.push_back(way.all);
      own.push_back(least_of(columns));
    }
    before_.assign(segments.size() + 1, kNoStretch), after_ = before_;
    for (size_t s = 0; s < segments.size(); ++s) before_[s + 1] = join(before_[s], own[segments[s].cls]);
    for (size_t s = segments.size(); s-- > 0;) after_[s] = join(own[segments[s].cls], after_[s + 1]);
  }
  bool possible() const { return resources_.possible(); }

  // Whether the option fits beside the least of everything else.
  bool fits(size_t cls, size_t way, size_t slot, const Candidate& c) const {
    const LeastOfWay& w = ways_[cls][way];
    const LeastOfSlot& least = w.slots[slot];
    const SlotOption o = option(c, cls, way);
    const int64_t more_after = o.after - least.after, more_inside = o.before + o.held - least.inside;
    const int64_t own = w.phases[slot] + o.before + o.held + o.own - least.phase;
    const Stretch column{0, w.all.before + o.before - least.before, w.all.after + more_after,
                         std::max({w.earlier[slot] + more_after, own, w.later[slot] + more_inside})};
    const auto& segments = resources_.segments();
    for (size_t s = 0; s < segments.size(); ++s) {
      if (segments[s].cls != cls) continue;
      const Stretch whole = join(join(before_[s], column), after_[s + 1]);
      if (whole.peak <= resources_.limit()) return true;
    }
    return false;
  }

 private:
  SlotOption option(const Candidate& c, size_t cls, size_t way) const {
    return slot_option(c, classes_.classes[cls].ways[way], request_, batch_);
  }

  LeastOfWay least_of_way(size_t k, Recompute r) const {
    const EquivalenceClass& cls = classes_.classes[k];
    const size_t n = cls.slots.size();
    const bool again = r != Recompute::None;
    LeastOfWay way;
    for (size_t p = 0; p < n; ++p) {
      LeastOfSlot& least = way.slots.emplace_back();
      const auto& options = cls.slots[p].candidates[static_cast<int>(r)];
      if (options.empty()) continue;  // no parameters
      least = {kNone, kNone, kNone, kNone};
      for (const Candidate& c : options) {
        const SlotOption o = slot_option(c, r, request_, batch_);
        least = {std::min(least.before, o.before), std::min(least.after, o.after),
                 std::min(least.inside, o.before + o.held), std::min(least.phase, o.before + o.held + o.own)};
      }
    }
    const int64_t in_flight = cls.block ? cls.in_flight[static_cast<int>(r)](batch_.size) : 0;
    const int64_t input = again ? Linear{0, cls.input_bytes_per_sample}(batch_.size) : 0;
    int64_t before = input + in_flight, after = in_flight, inside = before;
    for (const LeastOfSlot& least : way.slots) after += least.after;
    way.all.after = after;
    for (size_t p = 0; p < n; ++p) {
      const int64_t saved = resources_.saved(k, p);
      after -= way.slots[p].after;
      way.phases.push_back(inside + saved + way.slots[p].phase + resources_.work(k, p) + after - in_flight);
      inside += saved + way.slots[p].inside;
      before += way.slots[p].before + (again ? 0 : saved);
    }
    way.all.before = before;
    way.all.peak = *std::max_element(way.phases.begin(), way.phases.end());
    way.earlier.assign(n, -kLargestSum), way.later = way.earlier;
    for (size_t p = 1; p < n; ++p) way.earlier[p] = std::max(way.earlier[p - 1], way.phases[p - 1]);
    for (size_t p = n - 1; p-- > 0;) way.later[p] = std::max(way.later[p + 1], way.phases[p + 1]);
    return way;
  }

  const ChainResources resources_;
  const Request& request_;
  const EquivalenceClasses& classes_;
  const Batch batch_;
  std::vector<std::vector<LeastOfWay>> ways_;  // by class, as EquivalenceClass::ways
  std::vector<Stretch> before_, after_;        // the least of the segments before each, and from it on
};

}  // namespace

FeasibleOptions::FeasibleOptions(const Model& model, const Request& request, const EquivalenceClasses& all)
    : classes_(all) {
  for (const EquivalenceClass& cls : all.classes) {
    auto& slots = kept_.emplace_back(cls.slots.size());
    for (size_t p = 0; p < cls.slots.size(); ++p)
      for (size_t r = 0; r < 3; ++r) {
        slots[p][r].resize(cls.slots[p].candidates[r].size());
        std::iota(slots[p][r].begin(), slots[p][r].end(), 0);
      }
  }
  if (request.paper() || request.depth_first) return;
  const Kept whole = kept_;
  const auto none = [](const EquivalenceClass& cls) { return cls.ways.empty(); };
  for (int round = 0; round < kMostRounds; ++round) {
    const bool some = leave_out(model, request);
    if (std::any_of(classes_.classes.begin(), classes_.classes.end(), none)) {  // nothing fits
      classes_ = all, kept_ = whole;
      return;
    }
    if (!some) return;
  }
}

// Whether there was anything to leave out.
bool FeasibleOptions::leave_out(const Model& model, const Request& request) {
  std::vector<Chain> chains;
  for (const auto& [smallest, _] : request.ranges()) {
    chains.emplace_back(model, request, classes_, smallest);
    if (!chains.back().possible()) return false;
  }
  bool some = false;
  for (size_t k = 0; k < classes_.classes.size(); ++k) {
    EquivalenceClass& cls = classes_.classes[k];
    std::vector<Recompute> possible;
    for (size_t w = 0; w < cls.ways.size(); ++w) {
      const auto r = static_cast<size_t>(cls.ways[w]);
      bool every = true;
      for (size_t p = 0; p < cls.slots.size(); ++p) {
        auto& options = cls.slots[p].candidates[r];
        std::vector<Candidate> left;
        std::vector<int> kept;
        for (size_t c = 0; c < options.size(); ++c) {
          const auto fits = [&](const Chain& chain) { return chain.fits(k, w, p, options[c]); };
          if (std::none_of(chains.begin(), chains.end(), fits)) continue;
          left.push_back(options[c]), kept.push_back(kept_[k][p][r][c]);
        }
        every &= left.empty() == options.empty();
        some |= left.size() < options.size();
        options = std::move(left), kept_[k][p][r] = std::move(kept);
      }
      if (every) possible.push_back(cls.ways[w]);
    }
    cls.ways = std::move(possible);
  }
  return some;
}

template <class Translate>
bool FeasibleOptions::translate(Decision& decision, const Translate& to) const {
  for (size_t k = 0; k < classes_.classes.size(); ++k) {
    const EquivalenceClass& cls = classes_.classes[k];
    for (size_t m = 0; m < cls.instances.size(); ++m) {
      const Recompute way = cls.block ? decision.ways[cls.blocks[m]] : Recompute::None;
      for (size_t p = 0; p < cls.slots.size(); ++p) {
        int& choice = decision.choices[cls.instances[m][p]];
        if (choice < 0) continue;
        choice = to(kept_[k][p][static_cast<size_t>(way)], choice);
        if (choice < 0) return false;
      }
    }
  }
  return true;
}

bool FeasibleOptions::narrow(Decision& decision) const {
  return translate(decision, [](const std::vector<int>& kept, int choice) {
    const auto at = std::lower_bound(kept.begin(), kept.end(), choice);
    return at != kept.end() && *at == choice ? static_cast<int>(at - kept.begin()) : -1;
  });
}

void FeasibleOptions::widen(Decision& decision) const {
  translate(decision, [](const std::vector<int>& kept, int choice) { return kept[choice]; });
}

}  // namespace osdp::search
