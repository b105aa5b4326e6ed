// Small random models for comparing the planner's parts with brute force, and the brute force: every plan,
// its time and the memory of its phases straight from the definitions (Note [Phases] in phases.hpp).
#pragma once

#include <algorithm>
#include <functional>
#include <random>

#include "search/problem/phases.hpp"
#include "search/problem/problem.hpp"

namespace osdp::search {

using Random = std::mt19937_64;

inline int64_t draw(Random& r, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(r() % static_cast<uint64_t>(high - low + 1));
}

// At most `operators` operators, some of them in blocks (neighbours), many of them alike.
inline Model random_model(Random& r, int64_t operators) {
  Model model;
  model.input_bytes_per_sample = draw(r, 0, 20);
  model.buffer_bytes = draw(r, 0, 20);
  const bool mixed = r() % 4 == 0;  // precision
  std::vector<Operator> shapes;
  for (int64_t n = draw(r, 1, 3); n-- > 0;) {
    Operator op;
    for (int64_t t = draw(r, 0, 2); t-- > 0;) {
      op.tensors.push_back({draw(r, 1, 12), 4 * draw(r, 1, 8), r() % 8 != 0, r() % 8 != 0});
    }
    if (!op.tensors.empty() && r() % 2 == 0) {
      op.split_tensor = 0;
      op.out_features = op.tensors[0].rows = draw(r, 2, 12);
      op.in_features = op.tensors[0].row_bytes / 4;
      op.tensors[0].shardable = true;
    }
    if (op.split_tensor >= 0 && op.in_features % 3 == 0)
      op.slices_s = {{2, 1e-9 * static_cast<double>(op.in_features)}, {4, 5e-9}};
    for (Tensor& t : op.tensors) {
      if (mixed) t.compute_row_bytes = t.row_bytes / 2, t.reduce_row_bytes = t.row_bytes / (1 + r() % 2);
    }
    op.calls = r() % 4 == 0 ? 2 : 1;
    op.places = r() % 2 == 0 ? op.calls : 1;  // tied
    op.saved_bytes_per_sample = draw(r, 0, 60), op.saved_bytes_fixed = draw(r, 0, 9);
    if (op.split_tensor >= 0 && op.saved_bytes_fixed % 3 == 0)
      op.look_ups = 1 + op.saved_bytes_per_sample % op.places;
    else if (op.split_tensor >= 0 && op.saved_bytes_fixed % 3 == 1)
      op.transposed = true, std::swap(op.out_features, op.in_features);
    else
      op.convolution = op.saved_bytes_per_sample % 2 == 1;
    if (r() % 2 == 0) op.work_bytes_per_sample = draw(r, 0, 90), op.work_bytes_fixed = draw(r, 0, 20);
    op.waiting_gradient_bytes = op.work_bytes_fixed / 2;
    op.backward_work_bytes_fixed = op.convolution ? op.work_bytes_fixed : 0;
    op.compute_s_per_sample = 1e-9 * static_cast<double>(draw(r, 0, 50));
    op.recompute_s_per_sample = op.compute_s_per_sample / 3;
    if (op.saved_bytes_fixed >
        5) {  // a part of the time that does not grow with the batch; also of forward alone
      op.compute_s_fixed =
          op.saved_bytes_fixed % 4 == 0 ? 0 : 3e-9 * static_cast<double>(op.saved_bytes_fixed);
      op.recompute_s_fixed = 1e-9 * static_cast<double>(op.saved_bytes_fixed % 3 * 5);
    }
    shapes.push_back(op);
  }
  const int64_t n = draw(r, 1, operators);
  while (static_cast<int64_t>(model.operators.size()) < n) {
    int64_t length = draw(r, 1, 3);
    const bool block = r() % 3 != 0;
    // Half of all blocks are like the one before.
    const bool again = block && !model.blocks.empty() && r() % 2 == 0;
    std::vector<Operator> members;
    if (again) {
      for (const Operator& op : model.operators) {
        if (op.block == static_cast<int>(model.blocks.size()) - 1) members.push_back(op);
      }
    } else {
      for (; length > 0; --length) members.push_back(shapes[r() % shapes.size()]);
    }
    if (static_cast<int64_t>(model.operators.size() + members.size()) > n) break;
    for (Operator& op : members) {
      op.block = block ? static_cast<int>(model.blocks.size()) : -1;
      op.name = "op" + std::to_string(model.operators.size());
      model.operators.push_back(op);
    }
    if (!block) continue;
    model.blocks.push_back({"block" + std::to_string(model.blocks.size()),
                            again ? model.blocks.back().input_bytes_per_sample : draw(r, 0, 30)});
  }
  if (model.operators.empty()) {
    model.operators.push_back(shapes[0]);
    model.operators[0].name = "op0";
  }
  return model;
}

// A run of equal operators, each a block or none is, with others around it.
inline Model random_run(Random& r, int64_t longest) {
  Model model;
  const auto add = [&](const Operator& op, bool block, int64_t input) {
    Operator& last = model.operators.emplace_back(op);
    last.name = "op" + std::to_string(model.operators.size());
    last.block = block ? static_cast<int>(model.blocks.size()) : -1;
    if (block) model.blocks.push_back({"block" + std::to_string(model.blocks.size()), input});
  };
  const auto shape = [&](int64_t most) {
    Operator op;
    op.tensors.push_back({draw(r, 1, most), 4 * draw(r, 1, 8)});
    op.saved_bytes_per_sample = draw(r, 0, 60);
    op.recompute_s_per_sample = 1e-9 * static_cast<double>(draw(r, 0, 20));
    return op;
  };
  const Operator run = shape(12);
  const bool blocks = r() % 2 == 0;
  const int64_t input = draw(r, 0, 30);
  add(shape(40), false, 0);
  for (int64_t n = draw(r, 3, longest); n-- > 0;) add(run, blocks, input);
  for (int64_t n = draw(r, 1, 4); n-- > 0;) add(shape(40), false, 0);
  return model;
}

// Without a limit.
inline Request random_request(Random& r) {
  Request request;
  request.device.ranks = draw(r, 1, 4);
  const auto link = [&] {
    return Collective{1e-9 * static_cast<double>(draw(r, 0, 40)),
                      1e-10 * static_cast<double>(draw(r, 1, 30))};
  };
  request.device.all_gather = link(), request.device.reduce_scatter = link(),
  request.device.all_reduce = link();
  request.device.optimizer_s_per_byte = 1e-11 * static_cast<double>(draw(r, 0, 20));
  request.space.modes = {Mode::NoShard, Mode::FullShard};
  if (r() % 2 == 0) request.space.modes.push_back(Mode::ShardGradOp);
  if (r() % 2 == 0) request.space.granularities = {r() % 2 == 0 ? 2 : 3};
  request.space.optimizer.copies = draw(r, 0, 2);
  if (r() % 3 == 0) request.space.optimizer = {0, draw(r, 0, 1024), draw(r, 0, 12), 8};
  request.space.bucket_bytes = draw(r, 1, 100);
  request.space.slice_overhead_s = 1e-9 * static_cast<double>(draw(r, 0, 10));
  static const std::vector<std::vector<Recompute>> ways{
      {Recompute::None},
      {Recompute::None, Recompute::Hold, Recompute::Regather},
      {Recompute::None, Recompute::Regather},
      {Recompute::Hold, Recompute::Regather}};
  request.recompute = ways[r() % ways.size()];
  request.space.stage.in_flight = r() % 2 == 0 ? 1 : draw(r, 1, 3);
  return request;
}

// Of some operators; on several hosts sharded over all of them, or inside each.
inline void allow_offload(Random& dice, Request& request) {
  request.device.host = {
      {1e-9 * static_cast<double>(draw(dice, 0, 40)), 1e-10 * static_cast<double>(draw(dice, 0, 60))},
      1e-10 * static_cast<double>(draw(dice, 0, 60))};
  request.space.modes.push_back(Mode::FullShardOffload);
  if (request.device.hosts > 1) request.space.modes.push_back(Mode::HybridShardOffload);
}

// Modes that tell several hosts apart.
inline void allow_hosts(Random& dice, Request& request) {
  for (const Mode mode : {Mode::HybridShard, Mode::FullShardHierarchical, Mode::FullShardHpz})
    if (dice() % 3 != 0) request.space.modes.push_back(mode);
}

// Protocols of collectives, some of which are better for few bytes and some for many.
inline std::vector<Protocol> random_protocols(Random& r) {
  std::vector<Protocol> found;
  for (int64_t n = draw(r, 1, 5); n > 0; --n) {
    const auto time = [&] { return 1e-9 * static_cast<double>(draw(r, 0, 40)); };
    found.push_back({found.empty() ? Algorithm::Ring : static_cast<Algorithm>(r() % 3), time(), time(),
                     time(), 0.1 * static_cast<double>(draw(r, 1, 10)),
                     r() % 3 == 0 ? 1e9 * static_cast<double>(draw(r, 1, 20)) : 0.0});
  }
  return found;
}

// Every operator's slot: which class's, and under which block.
struct Where {
  const Slot* slot = nullptr;
  const EquivalenceClass* cls = nullptr;
  size_t instance = 0, place = 0;
};
inline std::vector<Where> find_places(const Model& model, const EquivalenceClasses& classes) {
  std::vector<Where> where(model.operators.size());
  for (const EquivalenceClass& cls : classes.classes) {
    for (size_t m = 0; m < cls.instances.size(); ++m) {
      for (size_t p = 0; p < cls.slots.size(); ++p) {
        where[cls.instances[m][p]] = {&cls.slots[p], &cls, m, p};
      }
    }
  }
  return where;
}
inline Recompute way_of(const Where& w, const Decision& d) {
  return w.cls->block ? d.ways[w.cls->blocks[w.instance]] : Recompute::None;
}
inline const Candidate* choice_of(const Where& w, const Decision& d, size_t i) {
  return d.choices[i] < 0 ? nullptr : &w.slot->candidates[static_cast<int>(way_of(w, d))][d.choices[i]];
}

// The memory of every phase, by definition and without any sharing of work.
inline std::vector<int64_t> plain_phases(const Model& model, const Request& request,
                                         const EquivalenceClasses& classes, const Decision& d, Batch batch) {
  const auto where = find_places(model, classes);
  const size_t n = model.operators.size();
  std::vector<int64_t> phases(n);
  for (size_t j = 0; j < n; ++j) {
    int64_t sum =
        model.buffer_bytes + request.space.stage.in_flight * model.input_bytes_per_sample * batch.size;
    for (size_t i = 0; i < n; ++i) {
      const Candidate* c = choice_of(where[i], d, i);
      const bool over = i > j;
      const bool again = way_of(where[i], d) != Recompute::None;
      const bool same =
          where[i].cls->block && where[j].cls == where[i].cls && where[j].instance == where[i].instance;
      if (c != nullptr) {
        sum += c->state_bytes;
        if (over && static_cast<int64_t>(i - j) <= c->left_phases) {
          const Candidate* own = choice_of(where[j], d, j);
          sum += std::max<int64_t>(0, c->left_bytes - (own == nullptr ? 0 : own->late_bytes));
        }
        if (!over) {
          if (batch.accumulation == 1) sum -= c->gradient_bytes;
          sum += c->gathered_bytes;
          if (i == j) sum += c->own_bytes - (batch.accumulation > 1 ? c->summed_bytes : 0);
          if (same && way_of(where[i], d) == Recompute::Hold) sum += c->held_bytes;
        }
      }
      if (!over && (!again || same)) sum += where[i].slot->saved(batch.size);
      if (i == j)
        sum += model.operators[i].work_bytes_fixed + batch.size * model.operators[i].work_bytes_per_sample;
      const bool first = where[i].place == 0;
      if (first && again && i <= j) sum += where[i].cls->input_bytes_per_sample * batch.size;
      const int64_t others = request.space.stage.in_flight - 1;
      if (!again) sum += others * where[i].slot->saved(batch.size);
      if (first && again) sum += others * where[i].cls->input_bytes_per_sample * batch.size;
    }
    phases[j] = sum;
  }
  return phases;
}

inline int64_t plain_time(const Model& model, const EquivalenceClasses& classes, const Decision& d,
                          Batch batch) {
  const auto where = find_places(model, classes);
  int64_t sum = batch.accumulation * classes.compute_ps(batch.size);
  for (size_t i = 0; i < model.operators.size(); ++i) {
    if (const Candidate* c = choice_of(where[i], d, i))
      sum += batch.accumulation * c->communication_ps + c->optimizer_ps;
    if (where[i].place == 0 && way_of(where[i], d) != Recompute::None) {
      sum += batch.accumulation * where[i].cls->recompute_ps(batch.size);
    }
  }
  return sum;
}

// How many plans there are; at most `most`.
inline int64_t count_plans(const Model& model, const EquivalenceClasses& classes, int64_t most) {
  int64_t plans = 1;
  for (const Where& w : find_places(model, classes)) {
    if (w.place == 0 && w.cls->block) plans *= static_cast<int64_t>(w.cls->ways.size());
    plans *= std::max<int64_t>(
        1, static_cast<int64_t>(w.slot->candidates[static_cast<int>(w.cls->ways[0])].size()));
    if (plans > most) return most;
  }
  return plans;
}

inline void every_plan(const Model& model, const EquivalenceClasses& classes,
                       const std::function<void(const Decision&)>& see) {
  const auto where = find_places(model, classes);
  Decision d;
  d.choices.assign(model.operators.size(), -1);
  d.ways.assign(model.blocks.size(), Recompute::None);
  const std::function<void(size_t)> go = [&](size_t i) {
    if (i == where.size()) return see(d);
    const Where& w = where[i];
    const auto choose = [&] {
      const auto count = static_cast<int>(w.slot->candidates[static_cast<int>(way_of(w, d))].size());
      for (int c = 0; c < count; ++c) {
        d.choices[i] = c;
        go(i + 1);
      }
      d.choices[i] = -1;
      if (count == 0) go(i + 1);
    };
    if (w.place > 0 || !w.cls->block) return choose();
    for (Recompute way : w.cls->ways) {
      d.ways[w.cls->blocks[w.instance]] = way;
      choose();
    }
  };
  go(0);
}

}  // namespace osdp::search
