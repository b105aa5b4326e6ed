// Phases, symmetry classes' rows and the time of a step against their definitions, on random plans of random
// models.
#include "check.hpp"
#include "random_model.hpp"
#include "search/bounds/pricing.hpp"
#include "search/labels/block_columns.hpp"
#include "search/labels/chain_resources.hpp"

using namespace osdp::search;

namespace {

Decision random_plan(Random& r, const Model& model, const EquivalenceClasses& classes) {
  Decision d;
  d.choices.assign(model.operators.size(), -1);
  d.ways.assign(model.blocks.size(), Recompute::None);
  const auto where = find_places(model, classes);
  for (size_t i = 0; i < where.size(); ++i) {
    const Where& w = where[i];
    if (w.place == 0 && w.cls->block)
      d.ways[w.cls->blocks[w.instance]] = w.cls->ways[r() % w.cls->ways.size()];
    const auto& list = w.slot->candidates[static_cast<int>(way_of(w, d))];
    if (!list.empty()) d.choices[i] = static_cast<int>(r() % list.size());
  }
  return d;
}

// The same phases from rows: every symmetry class's share of each row.
std::vector<int64_t> row_bytes(const Model& model, const EquivalenceClasses& classes, const Decision& d,
                               Batch batch) {
  std::vector<int> rows;
  for (size_t j = 0; j < model.operators.size(); ++j) rows.push_back(static_cast<int>(j));
  std::vector<int64_t> sums(rows.size(), classes.held(batch.size));
  for (const SymmetryClass& symmetry_class : make_symmetry_classes(classes, rows)) {
    const EquivalenceClass& cls = classes.classes[symmetry_class.cls];
    for (int m : symmetry_class.instances) {
      const Recompute way = cls.block ? d.ways[cls.blocks[m]] : Recompute::None;
      for (size_t j = 0; j < rows.size(); ++j) {
        sums[j] += kept_in(symmetry_class.relation[j], cls, way)(batch.size);
        for (size_t p = 0; p < cls.slots.size(); ++p) {
          const int choice = d.choices[cls.instances[m][p]];
          if (choice < 0) continue;
          sums[j] += held_in(symmetry_class.relation[j], static_cast<int>(p), way,
                             cls.slots[p].candidates[static_cast<int>(way)][choice], batch.accumulation > 1);
        }
      }
    }
  }
  return sums;
}

}  // namespace

int main() {
  Random r(11);
  int64_t recomputed = 0;
  for (int64_t turn = 0; turn < 3000; ++turn) {
    const Model model = random_model(r, 12);
    const Request request = random_request(r);
    const EquivalenceClasses classes = find_equivalence_classes(model, request);
    size_t instances = 0;
    for (const EquivalenceClass& cls : classes.classes) {
      for (const auto& at : cls.instances) instances += at.size();
    }
    CHECK_EQ(instances, model.operators.size());
    const Batch batch{draw(r, 1, 5), draw(r, 1, 2)};
    const Decision d = random_plan(r, model, classes);
    for (Recompute way : d.ways) recomputed += way != Recompute::None;
    const auto phases = plain_phases(model, request, classes, d, batch);
    CHECK(phase_bytes(model, request, classes, d, batch) == phases);
    CHECK(row_bytes(model, classes, d, batch) == phases);
    CHECK_EQ(step_ps(classes, d, batch), plain_time(model, classes, d, batch));
    Request paper = request;
    paper.space.cost = Cost::Paper, paper.recompute = {Recompute::None};
    paper.space.stage = {};
    const EquivalenceClasses whole = find_equivalence_classes(model, paper);
    const Decision plain = random_plan(r, model, whole);
    int64_t sum = 0;
    for (const Where& w : find_places(model, whole)) sum += w.slot->saved(batch.size);
    for (size_t i = 0; i < model.operators.size(); ++i) {
      if (const Candidate* c = choice_of(find_places(model, whole)[i], plain, i)) sum += c->state_bytes;
    }
    CHECK(phase_bytes(model, paper, whole, plain, batch) == std::vector<int64_t>{sum});
  }
  CHECK(recomputed > 1000);
  return report("test_phases");
}
