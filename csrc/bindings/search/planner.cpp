// Bindings of csrc/search/planner, of the search of one objective (for benchmarks), and of IndexedPlans.
#include "search/planner/planner.hpp"
#include "bindings/names.hpp"
#include "bindings/search/budget.hpp"
#include "search/heuristics/plan_evaluator.hpp"
#include "search/planner/peak_limit.hpp"

namespace py = pybind11;
using namespace py::literals;
using namespace osdp::search;

namespace {

bool is_plan(const Answer& answer) { return answer.feasible; }
bool is_plan(const Schedule& found) { return found.feasible; }
bool is_plan(const std::vector<Answer>& points) { return !points.empty(); }
bool is_plan(const UsefulLimits&) { return false; }
bool is_plan(const Proof&) { return false; }

// Runs `search(interrupted)` without the GIL; Ctrl-C ends it.
template <typename Search>
auto without_gil(const Search& search) {
  osdp::Signals signals;
  auto found = [&] {
    py::gil_scoped_release release;
    return search(signals.ask());
  }();
  signals.end(is_plan(found));
  return found;
}

// The same for `search(wish, interrupted)`, which reports its gap to `progress` (a callable or None).
template <typename Search>
auto with_progress(Wish wish, const py::object& progress, const Search& search) {
  if (!progress.is_none()) wish.tell_gap = osdp::telling(progress);
  return without_gil([&](const Interrupted& ask) { return search(wish, ask); });
}

// Calls `times_at` also while an error is pending, as that of a signal handler which ends the search. What a
// handler raises during the call is pending afterwards, and the call is repeated; an error of its own it
// raises again.
ModelAt asking(py::object times_at) {
  const std::shared_ptr<py::object> ask(new py::object(std::move(times_at)), [](py::object* held) {
    py::gil_scoped_acquire gil;
    delete held;
  });
  return [ask](int64_t batch) {
    py::gil_scoped_acquire gil;
    std::optional<py::error_already_set> raised;
    const auto model = [&] {
      const py::error_scope pending;
      try {
        return (*ask)(batch).cast<Model>();
      } catch (const py::error_already_set& error) {
        raised.emplace(error);
        return (*ask)(batch).cast<Model>();
      }
    }();
    if (raised && PyErr_Occurred() == nullptr) raised->restore();
    return model;
  };
}

Schedule run_schedule(const Model& model, const Request& request, double time_limit_s) {
  return without_gil([&](const Interrupted& interrupted) {
    return schedule(model, request, {time_limit_s, interrupted, 0, int64_t{256} << 20, nullptr});
  });
}

// Batch sizes from .. to, accumulation, and prices: phase and ps per byte.
using Part = std::tuple<int64_t, int64_t, int64_t, std::vector<std::pair<int, double>>>;

std::vector<Part> parts_of(const Proof& proof) {
  std::vector<Part> parts;
  for (const PricedBatches& p : proof.priced) {
    std::vector<std::pair<int, double>> prices;
    for (const RowPrice& price : p.prices) prices.emplace_back(price.phase, price.ps_per_byte);
    parts.emplace_back(p.least.size, p.most.size, p.least.accumulation, std::move(prices));
  }
  return parts;
}

void bind_answer(py::module_& m) {
  py::class_<Wish>(m, "Wish")
      .def(py::init([](int64_t limit_bytes, std::vector<Batch> batches, size_t objective, double at_least,
                       double gap, double time_limit_s, int64_t work, int64_t played_operators) {
             if (objective >= kObjectives.size()) throw InvalidProblem("objective: an unknown code");
             Wish wish;
             wish.limit_bytes = limit_bytes, wish.batches = std::move(batches);
             wish.objective = static_cast<Objective>(objective), wish.at_least = at_least;
             wish.gap = gap, wish.time_limit_s = time_limit_s, wish.work = work;
             wish.played_operators = played_operators;
             return wish;
           }),
           py::kw_only(), "limit_bytes"_a, "batches"_a, "objective"_a = 0, "at_least"_a = 0.0,
           "gap"_a = Wish().gap, "time_limit_s"_a = 0.0, "work"_a = Wish().work,
           "played_operators"_a = Wish().played_operators)
      .def_readwrite("time_limit_s", &Wish::time_limit_s)
      .def_readwrite("work", &Wish::work)
      .def_readwrite("find_smallest", &Wish::find_smallest)
      .def_readwrite("played_operators", &Wish::played_operators);
  py::class_<Proof>(m, "Proof")
      .def_readonly("lower_bound_s_per_sample", &Proof::lower_bound_s_per_sample)
      .def_readonly("attained", &Proof::attained)
      .def_property_readonly("shares",
                             [](const Proof& p) {
                               const StepShares& x = p.shares;
                               return std::tuple(x.forward, x.backward, x.link, x.averages, x.reductions);
                             })
      .def_property_readonly("parts", &parts_of,
                             "Batch sizes from and to, accumulation, prices as phase and ps per byte.");
  py::class_<Answer>(m, "Answer")
      .def(py::init([](PlainPlan plan, int64_t peak_bytes, int64_t limit_bytes, PlayedStep played,
                       const Proof& proof) {
             Answer a;
             a.feasible = true, a.plan = std::move(plan), a.played = std::move(played);
             a.peak_bytes = peak_bytes, a.limit_bytes = limit_bytes, a.proof = proof;
             return a;
           }),
           py::kw_only(), "plan"_a, "peak_bytes"_a, "limit_bytes"_a, "played"_a, "proof"_a = Proof(),
           "That of a plan which was found otherwise, with what another answer proves of all.")
      .def_readonly("feasible", &Answer::feasible)
      .def_readonly("plan", &Answer::plan)
      .def_readonly("peak_bytes", &Answer::peak_bytes)
      .def_readonly("played", &Answer::played)
      .def_readonly("proof", &Answer::proof)
      .def_property_readonly("step_bound_ps", &Answer::step_bound_ps)
      .def_readonly("limit_bytes", &Answer::limit_bytes)
      .def_readonly("interrupted", &Answer::interrupted)
      .def_readonly("out_of_time", &Answer::out_of_time)
      .def_readonly("smallest_limit_bytes", &Answer::smallest_limit_bytes)
      .def("throughput", &Answer::throughput, "ranks"_a);
  py::class_<Schedule>(m, "Schedule")
      .def_readonly("feasible", &Schedule::feasible)
      .def_readonly("optimal", &Schedule::optimal)
      .def_readonly("batch", &Schedule::batch)
      .def_property_readonly("blocks", [](const Schedule& s) { return s.decision.ways; })
      .def_readonly("step_ps", &Schedule::step_ps)
      .def_readonly("peak_bytes", &Schedule::peak_bytes)
      .def_readonly("lower_bound_s_per_sample", &Schedule::lower_bound_s_per_sample)
      .def_readonly("regions", &Schedule::regions)
      .def_readonly("leaves", &Schedule::leaves)
      .def_readonly("rows", &Schedule::rows)
      .def_readonly("seconds", &Schedule::seconds);
}

void bind_searches(py::module_& m) {
  py::class_<Planner>(m, "Planner", "Everything of a search but its wish.")
      .def(py::init([](Model model, Request request, Manner manner, const std::optional<py::function>& at) {
             return std::make_unique<Planner>(std::move(model), std::move(request), std::move(manner),
                                              at ? asking(*at) : ModelAt{});
           }),
           "model"_a, "request"_a, "manner"_a, "times_at"_a = py::none(),
           "`times_at`: the model at a batch, if operators' times are no lines in that.")
      .def_property_readonly("model", [](const Planner& p) -> const Model& { return p.model(); })
      .def(
          "request",
          [](const Planner& p, int64_t limit_bytes) {
            Request request = p.request();
            request.limit_bytes = limit_bytes;
            return request;
          },
          "limit_bytes"_a = 0)
      .def(
          "bound_request",
          [](const Planner& p, const std::array<int64_t, 5>& shares, int64_t limit_bytes,
             std::vector<Batch> batches) {
            Request request = p.request();
            request.space.shares = StepShares{shares[0], shares[1], shares[2], shares[3], shares[4]};
            request.limit_bytes = limit_bytes, request.batches = std::move(batches);
            return request;
          },
          "shares"_a, "limit_bytes"_a, "batches"_a, "For proven_bound_ps.")
      .def(
          "search",
          [](const Planner& p, const Wish& wish, const py::object& progress) {
            return with_progress(wish, progress,
                                 [&](const Wish& w, const Interrupted& ask) { return p.search(w, ask); });
          },
          "wish"_a, "progress"_a = py::none(),
          "`progress` is called about five times a second with how far the best plan is above its bound, as "
          "a "
          "share of its time (1: no plan yet).")
      .def(
          "prove",
          [](const Planner& p, const Wish& wish, bool thorough) {
            return without_gil([&](const Interrupted& ask) { return p.prove(wish, ask, 0, thorough); });
          },
          "wish"_a, "thorough"_a = false,
          "A bound on the step of every plan under the wish's limit. `thorough`: parts of the space are "
          "searched "
          "for longer at once.")
      .def(
          "any_plan",
          [](const Planner& p, const Wish& wish) {
            return without_gil([&](const Interrupted& ask) { return p.any_plan(wish, ask); });
          },
          "wish"_a)
      .def(
          "frontier",
          [](const Planner& p, const Wish& wish, const std::vector<int64_t>& limits,
             const py::object& progress) {
            return with_progress(wish, progress, [&](const Wish& w, const Interrupted& ask) {
              return p.frontier(w, limits, ask);
            });
          },
          "wish"_a, "limits"_a, "progress"_a = py::none())
      .def(
          "useful_limits",
          [](const Planner& p, const Wish& wish) {
            const UsefulLimits found =
                without_gil([&](const Interrupted& ask) { return p.useful_limits(wish, ask); });
            return std::pair(found.least, found.most);
          },
          "wish"_a, "(least, most) bytes that are worth looking at.")
      .def("units", &Planner::units, "plan"_a)
      .def("play", &Planner::play, "plan"_a, "Its step without events and memory.")
      .def("largest_peak", &Planner::largest_peak, "plan"_a,
           "The most that its step may hold, in bytes, however long its communication takes.")
      .def(
          "timeline",
          [](const Planner& p, const PlainPlan& plan, const std::vector<Members>& units) {
            return p.player().timeline(plan, units);
          },
          "plan"_a, "units"_a);
}

// Simulates plans given as indices into the candidates, for a local search over these.
class IndexedPlans {
 public:
  // `planner` must outlive it.
  IndexedPlans(const Planner& planner, int64_t limit_bytes)
      : request_(under(planner, limit_bytes)),
        evaluator_(request_, planner.player(), PeakLimit(limit_bytes).most_bytes()) {}

  // Checks the plan and returns the result of a method of the evaluator.
  template <auto method>
  int64_t of(Batch batch, std::vector<int> choices, std::vector<osdp::Recompute> blocks, int64_t prefetch) {
    const IndexedPlan plan{batch, {std::move(choices), std::move(blocks)}, prefetch};
    evaluator_.check(plan);
    return (evaluator_.*method)(plan);
  }

 private:
  static Request under(const Planner& planner, int64_t limit_bytes) {
    Request request = planner.request();
    request.limit_bytes = limit_bytes;
    return request;
  }

  const Request request_;
  PlanEvaluator evaluator_;
};

}  // namespace

void bind_planner(py::module_& m) {
  py::tuple objectives(kObjectives.size());
  for (size_t i = 0; i < kObjectives.size(); ++i) objectives[i] = kObjectives[i];
  m.attr("OBJECTIVES") = objectives;
  m.attr("DEFAULT_TIME_LIMIT_S") = kDefaultTimeLimitS;
  bind_answer(m);
  bind_searches(m);
  m.def("schedule", &run_schedule, "model"_a, "request"_a, "time_limit_s"_a,
        "The search of one objective alone, for benchmarks.");
  py::class_<IndexedPlans>(m, "IndexedPlans")
      .def(py::init<const Planner&, int64_t>(), py::keep_alive<1, 2>(), "planner"_a, "limit_bytes"_a)
      .def("step_ps", &IndexedPlans::of<&PlanEvaluator::step_ps>, "batch"_a, "choices"_a, "blocks"_a,
           "prefetch"_a = 1, "Of a whole step, played.")
      .def("peak_bytes", &IndexedPlans::of<&PlanEvaluator::peak_bytes>, "batch"_a, "choices"_a, "blocks"_a,
           "prefetch"_a = 1, "The sum that searches compare with a limit.")
      .def("largest_peak_bytes", &IndexedPlans::of<&PlanEvaluator::largest_peak_bytes>, "batch"_a,
           "choices"_a, "blocks"_a, "prefetch"_a = 1,
           "Of its own step, with the memory for gathered units that the limit leaves.");
}
