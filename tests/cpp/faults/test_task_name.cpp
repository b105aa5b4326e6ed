// What a collective is called: alike on ranks that run alike, and in nothing else; and a tracker's digest of
// it, which its messages carry.
#include <set>
#include <sstream>

#include "../check.hpp"
#include "faults/group_health.hpp"

namespace faults = osdp::faults;
using Part = faults::TaskNames::Part;

namespace {

faults::TaskNames of_a_unit() { return {"blocks.3 reduce-scatter", 2, {"a.weight", "a.bias", "b.weight"}}; }

void alike_on_ranks_that_run_alike() {
  faults::TaskNames one = of_a_unit(), other = of_a_unit();
  const std::vector<Part> all(3, Part::Gradient), some{Part::Gradient, Part::None, Part::Gradient};
  CHECK_EQ(one.all(false)->digest, other.of(all, false)->digest);
  CHECK_EQ(one.of(some, true)->digest, other.of(some, true)->digest);
  CHECK(one.of(some, false) == one.of(some, false));  // made once
  CHECK_EQ(faults::task_name("replicas all-reduce", 1, "x", 7)->digest,
           faults::task_name("replicas all-reduce", 1, "x", 7)->digest);
}

void another_in_anything_another_digest() {
  faults::TaskNames names = of_a_unit();
  std::set<uint64_t> digests;
  size_t made = 0;
  const auto add = [&](uint64_t digest) { digests.insert(digest), ++made; };
  for (const bool accumulates : {false, true})
    for (const Part a : {Part::None, Part::Gradient, Part::WithKept})
      for (const Part b : {Part::None, Part::Gradient, Part::WithKept})
        for (const Part c : {Part::None, Part::Gradient, Part::WithKept})
          add(names.of({a, b, c}, accumulates)->digest);
  add(faults::TaskNames("blocks.3 all-gather", 2, {"a.weight", "a.bias", "b.weight"}).all(false)->digest);
  add(faults::TaskNames("blocks.3 reduce-scatter", 1, {"a.weight", "a.bias", "b.weight"}).all(false)->digest);
  add(faults::TaskNames("blocks.3 reduce-scatter", 2, {"a.bias", "a.weight", "b.weight"}).all(false)->digest);
  add(faults::TaskNames("blocks.3 reduce-scatter", 2, {"a.weight", "a.biasb", ".weight"}).all(false)->digest);
  add(faults::task_name("x")->digest);
  add(faults::task_name("x", 1)->digest);
  add(faults::task_name("x", 0, "y")->digest);
  add(faults::task_name("x", 0, "", 1)->digest);
  CHECK_EQ(digests.size(), made);
}

void said_in_words() {
  faults::TaskNames names = of_a_unit();
  CHECK_EQ(names.all(false)->text(), "'blocks.3 reduce-scatter' of model 2");
  CHECK_EQ(names.of({Part::Gradient, Part::None, Part::None}, false)->text(),
           "'blocks.3 reduce-scatter' of model 2 with gradients of 'a.weight' only");
  CHECK_EQ(names.of({Part::Gradient, Part::None, Part::Gradient}, true)->text(),
           "'blocks.3 reduce-scatter' of model 2 without a gradient of 'a.bias' in a further micro-batch");
  CHECK_EQ(names.of({Part::WithKept, Part::Gradient, Part::Gradient}, false)->text(),
           "'blocks.3 reduce-scatter' of model 2 with gradients of 'a.weight' (and what no_sync kept of it), "
           "'a.bias', 'b.weight'");
}

void read_as_it_was_written() {
  faults::TaskNames names = of_a_unit();
  const faults::TaskName& written = *names.of({Part::None, Part::Gradient, Part::None}, true);
  std::stringstream text;
  faults::write(text, written);
  faults::write(text, *faults::task_name(""));
  const faults::TaskName read = faults::read_task(text), empty = faults::read_task(text);
  CHECK_EQ(read.text(), written.text());
  CHECK_EQ(read.digest, written.digest);
  CHECK_EQ(empty.text(), "''");
}

// One task at two positions, two tasks at one: a message is of one of them.
void a_trackers_digest() {
  const auto here = std::make_shared<faults::GroupHealth>(), there = std::make_shared<faults::GroupHealth>();
  faults::CollectiveTracker &mine = here->add_lane(), &theirs = there->add_lane();
  const faults::TaskNamePtr a = faults::task_name("a"), b = faults::task_name("b");
  mine.begin(a), theirs.begin(a);
  CHECK_EQ(mine.digest(), theirs.digest());
  const uint64_t first = mine.digest(), ahead = mine.next_digest(*a);
  mine.end(), theirs.end();
  mine.begin(a), theirs.begin(b);
  CHECK_EQ(mine.digest(), ahead);  // what was sent early is of this one
  CHECK(mine.digest() != first);
  CHECK(mine.digest() != theirs.digest());
  CHECK(here->snapshot().lanes[0].busy && here->snapshot().lanes[0].position == 2);
  mine.end();
  CHECK(!here->snapshot().busy());
  CHECK(there->snapshot().busy());
}

}  // namespace

int main() {
  alike_on_ranks_that_run_alike();
  another_in_anything_another_digest();
  said_in_words();
  read_as_it_was_written();
  a_trackers_digest();
  return report("task_name");
}
