// Plans grown from the front under bounds of the rest, against every plan of many small random models: one
// batch, many phases that bind, prices good and bad.
#include <cstdlib>

#include "check.hpp"
#include "random_model.hpp"
#include "search/labels/label_setting.hpp"

using namespace osdp::search;

// `test_label_setting 3000` tries as many models.
int main(int argc, char** argv) {
  const int64_t turns = argc > 1 ? std::atoi(argv[1]) : 1000;
  Random r(7);
  int64_t infeasible = 0, tight = 0, wrong = 0, plans = 0, held = 0, given_up = 0, seen = 0, hurries = 0;
  for (int64_t turn = 0; turn < turns && wrong < 5; ++turn) {
    const Model model = turn % 3 == 0 ? random_run(r, 9) : random_model(r, 9);
    Request request = random_request(r);
    const EquivalenceClasses classes = find_equivalence_classes(model, request);
    if (count_plans(model, classes, 20001) > 20000) continue;
    const Batch batch{draw(r, 1, 3), r() % 4 == 0 ? 2 : 1};
    struct Plain {
      int64_t time, peak;
    };
    std::vector<Plain> all;
    every_plan(model, classes, [&](const Decision& d) {
      const auto phases = plain_phases(model, request, classes, d, batch);
      all.push_back({plain_time(model, classes, d, batch), *std::max_element(phases.begin(), phases.end())});
    });
    CHECK(!all.empty());
    plans += static_cast<int64_t>(all.size());
    const int64_t peak = all[r() % all.size()].peak;
    request.limit_bytes = peak - static_cast<int64_t>(r() % 8 == 0);
    int64_t best = -1;
    for (const Plain& p : all) {
      if (p.peak <= request.limit_bytes && (best < 0 || p.time < best)) best = p.time;
    }
    const auto prices = [&] {
      std::vector<double> p(model.operators.size(), 0);
      for (double& v : p) v = r() % 2 == 0 ? 0 : static_cast<double>(draw(r, 0, 3000));
      return p;
    };
    const Budget budget;
    Stopwatch watch(budget);
    const ChainResources chain(model, request, classes, batch);
    if (request.limit_bytes < classes.held(batch.size)) continue;
    CHECK(chain.possible());
    LabelSetting labels(chain, prices());
    const int failed_before = failures;
    if (best >= 0) CHECK(labels.bound_ps() <= static_cast<double>(best));
    const int64_t most = best < 0 ? 1'000'000'000 : best + draw(r, 0, 1) * draw(r, 0, best);
    const LabelSettingResult found = labels.look(most, kLargestSum, 1'000'000, watch);
    if (!found.complete) {  // too many columns of one block
      ++given_up;
      continue;
    }
    CHECK_EQ(found.found, best >= 0);
    if (!found.seen.choices.empty()) {
      ++seen;
      CHECK_EQ(plain_time(model, classes, found.seen, batch), found.seen_ps);
      const auto phases = plain_phases(model, request, classes, found.seen, batch);
      CHECK(*std::max_element(phases.begin(), phases.end()) <= request.limit_bytes);
    }
    if (found.found && best >= 0) {
      CHECK_EQ(found.time_ps, best);
      CHECK_EQ(plain_time(model, classes, found.decision, batch), best);
      const auto phases = plain_phases(model, request, classes, found.decision, batch);
      CHECK(*std::max_element(phases.begin(), phases.end()) <= request.limit_bytes);
      tight += *std::max_element(phases.begin(), phases.end()) == request.limit_bytes;
      for (Recompute way : found.decision.ways) held += way == Recompute::Hold;
      CHECK(!labels.look(best - 1, kLargestSum, 1'000'000, watch).found);
    }
    // Given up early, it claims nothing.
    LabelSetting hurried(chain, prices());
    const LabelSettingResult some =
        hurried.look(most, kLargestSum, static_cast<size_t>(draw(r, 1, 12)), watch);
    hurries += !some.complete;
    if (some.complete) {
      CHECK_EQ(some.found, best >= 0);
      if (some.found) CHECK_EQ(some.time_ps, best);
    }
    infeasible += best < 0;
    if (failures > failed_before) {
      ++wrong;
      std::cerr << "turn " << turn << ": " << model.operators.size() << " operators, limit "
                << request.limit_bytes << "\n";
    }
  }
  CHECK(given_up < 10);
  CHECK(seen > turns / 15);
  CHECK(hurries > turns / 30);
  CHECK(infeasible > turns / 150);
  CHECK(tight > turns / 15);
  CHECK(held > turns / 15);
  std::printf("%lld plans, %lld models infeasible, %lld with no byte left\n", static_cast<long long>(plans),
              static_cast<long long>(infeasible), static_cast<long long>(tight));
  return report("test_label_setting");
}
