// The whole search against every plan of every batch of small random models: the proven optimum per sample.
#include <cstdlib>

#include "check.hpp"
#include "random_model.hpp"
#include "search/branch/schedule.hpp"

using namespace osdp::search;

// What is known in advance shortens a search, and never makes its bound or its plan wrong.
void check_known(const Model& model, const Request& request, const Schedule& best, Random& r) {
  const double optimum =
      1e-12 * static_cast<double>(best.step_ps) / static_cast<double>(best.batch.samples());
  for (const double part : {0.8, 0.999, 1.0, 1.2}) {
    Known known;
    known.enough_s_per_sample = part * optimum;
    if (r() % 2 == 0) known.plans = {found_of(best)};
    const Schedule s = schedule(model, request, {}, known);
    CHECK(s.lower_bound_s_per_sample <= optimum * (1 + 1e-9));
    CHECK(s.lower_bound_s_per_sample >= std::min(optimum, known.enough_s_per_sample) * (1 - 1e-9));
    if (part > 1 && optimum > 0) CHECK_EQ(s.step_ps * best.batch.samples(), best.step_ps * s.batch.samples());
  }
  const Known known{{found_of(best)}, best.lower_bound_s_per_sample};
  const Schedule same = schedule(model, request, {}, known);
  CHECK_EQ(same.step_ps * best.batch.samples(), best.step_ps * same.batch.samples());
  CHECK(same.lower_bound_s_per_sample <= optimum * (1 + 1e-9));
}

// `test_schedule 5000` tries as many models.
int main(int argc, char** argv) {
  const int64_t turns = argc > 1 ? std::atoi(argv[1]) : 1500;
  constexpr int64_t kFew = 16;
  Random r(17);
  int64_t infeasible = 0, all_sizes = 0, recomputed = 0, many_rows = 0, others = 0, wrong = 0;
  for (int64_t turn = 0; turn < turns && wrong < 5; ++turn) {
    Model model = random_model(r, 9);
    Request request = random_request(r);
    if (turn % 4 == 0) model = random_run(r, 6);
    const EquivalenceClasses classes = find_equivalence_classes(model, request);
    const int64_t plans = count_plans(model, classes, 6001);
    if (plans > 6000) continue;
    // Some batch sizes; or all, of which at most the first few may fit.
    const bool every = plans <= 400 && r() % 2 == 0;
    for (int64_t b = 1; every && b <= kFew; ++b) request.batches.push_back({b, 1});
    for (int64_t n = draw(r, 1, 3); !every && n-- > 0;)
      request.batches.push_back({draw(r, 1, 4), r() % 3 == 0 ? 2 : 1});
    struct Plain {
      int64_t time, samples, peak;
    };
    std::vector<Plain> all;
    every_plan(model, classes, [&](const Decision& d) {
      for (const Batch& batch : request.batches) {
        const auto phases = plain_phases(model, request, classes, d, batch);
        all.push_back({plain_time(model, classes, d, batch), batch.samples(),
                       *std::max_element(phases.begin(), phases.end())});
      }
    });
    request.limit_bytes =
        std::max<int64_t>(0, all[r() % all.size()].peak - static_cast<int64_t>(r() % 6 == 0));
    const Plain* best = nullptr;
    int64_t least = kLargestSum;
    for (const Plain& p : all) {
      least = std::min(least, p.peak);
      if (p.peak <= request.limit_bytes &&
          (best == nullptr || p.time * best->samples < best->time * p.samples))
        best = &p;
    }
    const bool ends = std::none_of(all.begin(), all.end(), [&](const Plain& p) {
      return p.samples == kFew && p.peak <= request.limit_bytes;
    });
    if (every && ends) {
      request.batches.clear();
      ++all_sizes;
    }
    const int failed_before = failures;
    const Schedule s = schedule(model, request);
    CHECK_EQ(s.feasible, best != nullptr);
    if (best == nullptr) {
      ++infeasible;
      CHECK_EQ(s.smallest_limit_bytes, least);
    } else if (s.feasible) {
      CHECK(s.optimal);
      CHECK_EQ(s.step_ps * best->samples, best->time * s.batch.samples());
      CHECK_EQ(plain_time(model, classes, s.decision, s.batch), s.step_ps);
      const auto phases = plain_phases(model, request, classes, s.decision, s.batch);
      CHECK_EQ(*std::max_element(phases.begin(), phases.end()), s.peak_bytes);
      CHECK(s.peak_bytes <= request.limit_bytes);
      if (turn % 4 == 0) check_known(model, request, s, r);
      for (Recompute way : s.decision.ways) recomputed += way != Recompute::None;
      many_rows += s.rows >= 5;
      for (const Found& f : s.runners_up) {
        ++others;
        CHECK_EQ(plain_time(model, classes, f.decision, f.batch), f.step_ps);
        CHECK(f.step_ps * best->samples >= best->time * f.batch.samples());
        CHECK(f.peak_bytes <= request.limit_bytes);
      }
    }
    if (failures > failed_before) {
      ++wrong;
      std::cerr << "turn " << turn << ": " << model.operators.size() << " operators, limit "
                << request.limit_bytes << "\n";
    }
  }
  CHECK(infeasible > turns / 250);
  CHECK(all_sizes > turns / 50);
  CHECK(recomputed > turns / 25);
  CHECK(others > turns / 50);
  std::printf("%lld infeasible, %lld over all batch sizes, %lld with five rows or more\n",
              static_cast<long long>(infeasible), static_cast<long long>(all_sizes),
              static_cast<long long>(many_rows));
  return report("test_schedule");
}
