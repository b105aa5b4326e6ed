// The best few different plans: which of them are kept, in which order.
#include "check.hpp"
#include "search/branch/runners_up.hpp"

using namespace osdp::search;

namespace {

Found plan(int64_t batch, std::vector<Recompute> ways, int64_t step_ps) {
  Found f;
  f.batch = {batch, 1};
  f.decision.ways = std::move(ways);
  f.step_ps = step_ps;
  return f;
}

}  // namespace

int main() {
  const auto none = Recompute::None, hold = Recompute::Hold;
  RunnersUp all;
  const Found best = plan(4, {none, hold}, 4000);
  all.offer(best);
  all.offer(plan(4, {hold, none}, 4010));  // like the best: as many blocks each way
  all.offer(plan(4, {none, none}, 4100));  // 2.5% slower
  all.offer(plan(4, {none, none}, 4050));  // the same, faster
  all.offer(plan(2, {none, none}, 2010));  // per sample 0.5% slower
  all.offer(plan(8, {none, none}, 8260));  // 3.25% slower: too slow
  all.offer(plan(4, {hold, hold}, 4120));  // 3%
  const auto found = all.beside(best);
  CHECK_EQ(found.size(), size_t{3});
  CHECK_EQ(found[0].step_ps, 2010);
  CHECK_EQ(found[1].step_ps, 4050);
  CHECK_EQ(found[2].step_ps, 4120);
  for (int64_t t = 0; t < 20; ++t) all.offer(plan(100 + t, {none, none}, 1001 * (100 + t) + t));
  const auto most = all.beside(best);
  CHECK_EQ(most.size(), RunnersUp::kMost);
  for (size_t n = 0; n < most.size(); ++n) CHECK_EQ(most[n].batch.size, 100 + static_cast<int64_t>(n));
  return report("test_runners_up");
}
