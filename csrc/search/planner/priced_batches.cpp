#include "search/planner/priced_batches.hpp"

#include <algorithm>
#include <map>

#include "search/bounds/column_generation.hpp"

namespace osdp::search {
namespace {

constexpr size_t kMostParts = 48;
constexpr double kHighEnough = 1 - 1e-7;  // of the search's bound

class BatchPrices {
 public:
  BatchPrices(const Model& model, const Request& request, std::vector<int> rows)
      : request_(request), classes_(find_equivalence_classes(model, request)), rows_(std::move(rows)) {}

  // Until no part is below `enough` ps per sample.
  std::vector<PricedBatches> find(double enough, const std::function<bool()>& over) {
    if (request_.batches.empty()) parts_.push_back(bounded({1, 1}, {classes_.most_batch, 1}, {}, enough));
    for (const Batch& b : request_.batches) parts_.push_back(bounded(b, b, {}, enough));
    while (parts_.size() < kMostParts && !over()) {
      const auto lowest = std::min_element(parts_.begin(), parts_.end(),
                                           [](const Part& a, const Part& b) { return a.bound < b.bound; });
      if (lowest->bound >= kHighEnough * enough || lowest->least.size == lowest->most.size) break;
      const Part whole = *lowest;
      Batch middle = whole.least, next = whole.most;
      middle.size = std::clamp(static_cast<int64_t>(whole.mixes), whole.least.size, whole.most.size - 1);
      next.size = middle.size + 1;
      *lowest = bounded(whole.least, middle, whole.prices, enough);
      parts_.push_back(bounded(next, whole.most, whole.prices, enough));
    }
    std::sort(parts_.begin(), parts_.end(),
              [](const Part& a, const Part& b) { return a.least.size < b.least.size; });
    std::vector<PricedBatches> priced;
    for (const Part& part : parts_) {
      PricedBatches& p = priced.emplace_back(PricedBatches{part.least, part.most, {}});
      for (size_t j = 0; j < rows_.size(); ++j)
        if (part.prices[j] > 0) p.prices.push_back({rows_[j], part.prices[j]});
    }
    return priced;
  }

 private:
  struct Part {
    Batch least, most;
    double bound = 0, mixes = 0;  // ps per sample; the mean batch size of the relaxation's optimum
    Prices prices{};
  };
  struct Pool {
    ColumnPool pool;
    Cheapest cheapest;
    Pool(const EquivalenceClasses& classes, const std::vector<int>& rows, int64_t accumulation)
        : pool(make_column_pool(classes, rows, accumulation)), cheapest(pool) {}
  };

  Part bounded(Batch least, Batch most, const Prices& guess, double enough) {
    Pool& p = pools_.try_emplace(most.accumulation, classes_, rows_, most.accumulation).first->second;
    const Region region{least, most, everything(p.pool)};
    const auto samples = static_cast<double>(most.samples());
    const Bounded b = relax(classes_, p.pool, request_, region, p.cheapest, guess, enough * samples);
    Part part{least, most, (b.time - b.error) / samples, b.mixture.size, b.prices};
    if (!b.feasible) exceed(part, guess, p, region, enough);
    return part;
  }

  // Where no plan of these batches fits: prices at which the cheapest one exceeds the bound, if those guessed
  // are high enough, or that of one row alone.
  void exceed(Part& part, const Prices& guess, Pool& p, const Region& region, double enough) {
    Evaluator evaluate(classes_, p.pool, request_, region, p.cheapest);
    part.bound = 0;
    const auto consider = [&](const Prices& direction) {
      Point point;
      for (double factor = 1; factor < 1e13 && part.bound < enough; factor *= 8) {
        Prices prices{};
        for (size_t j = 0; j < rows_.size(); ++j) prices[j] = factor * direction[j];
        evaluate.at(prices, 1, point);
        double value = point.time;
        for (size_t j = 0; j < rows_.size(); ++j) value += prices[j] * (point.bytes[j] - evaluate.limit(j));
        value /= static_cast<double>(part.most.samples());
        if (value > part.bound) part.bound = value, part.prices = prices;
      }
    };
    consider(guess);
    for (size_t j = 0; j < rows_.size(); ++j) {
      Prices alone{};
      alone[j] = 1e-6;
      consider(alone);
    }
  }

  const Request& request_;
  const EquivalenceClasses classes_;
  const std::vector<int> rows_;
  std::map<int64_t, Pool> pools_;  // by accumulation
  std::vector<Part> parts_;
};

}  // namespace

void price_batches(Searches& searches, const Request& request, int64_t times, Proof& proof) {
  if (proof.priced_s_per_sample <= 0) return;
  BatchPrices prices(searches.planner().model(times), request, proof.phases);
  proof.priced = prices.find(proof.priced_s_per_sample * 1e12, [&] { return searches.over(); });
}

}  // namespace osdp::search
