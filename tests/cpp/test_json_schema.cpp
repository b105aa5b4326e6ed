// A file against its schema: the first field that does not fit is named.
#include <string>

#include "../fuzz/json_property.hpp"
#include "check.hpp"

using namespace osdp::json;

namespace {

const std::string kGood =
    "{\"osdp\": \"plan\", \"version\": 1, \"choices\": {\"a.b\": \"NO_SHARD\"}, \"units\": [\"x\", \"\"],\n"
    " \"batch_size\": null, \"time_s\": 2, \"pair\": [true, -5]}";

void fits(const std::string& from, const std::string& to) {
  std::string text = kGood;
  text.replace(text.find(from), from.size(), to);
  check(parse(text), small_schema());
  CHECK(true);
}

void refused(const std::string& from, const std::string& to, const std::string& field,
             const std::string& why) {
  std::string text = kGood;
  text.replace(text.find(from), from.size(), to);
  try {
    check(parse(text), small_schema());
    check_true(false, (to + " is refused").c_str(), __FILE__, __LINE__);
  } catch (const Error& e) {
    CHECK_EQ(e.field, field);
    if (std::string(e.what()).find(why) == std::string::npos) std::cerr << "got: " << e.what() << "\n";
    check_true(std::string(e.what()).find(why) != std::string::npos, why.c_str(), __FILE__, __LINE__);
    CHECK(e.position.line == (kGood.find(from) > kGood.find('\n') ? 2 : 1));
  }
}

}  // namespace

int main() {
  const Schema schema = small_schema();
  validate(schema);
  fits("null", "3");
  fits("2", "1e-9");
  fits("2", "18446744073709551616");
  fits("[true, -5]", "null");
  fits("{\"a.b\": \"NO_SHARD\"}", "{}");
  fits("-5]", "[{\"any\": [null, 1e3]}]]");

  refused("\"plan\"", "\"hardware\"", "osdp", "this is \"hardware\", not an osdp 'plan' file");
  refused("\"osdp\"", "\"odsp\"", "osdp", "must be a JSON object with a field 'osdp'");
  refused("1,", "2,", "version", "reads up to 1; use a newer osdp");
  refused("1,", "true,", "version", "true is not a version");
  refused("1,", "1.0,", "version", "1.0 is not a version");
  refused("\"NO_SHARD\"", "\"ZDP\"", "choices.a.b", "\"ZDP\" is not one of NO_SHARD, FULL_SHARD");
  refused("\"NO_SHARD\"", "null", "choices.a.b", "expected text, found null");
  refused("{\"a.b\": \"NO_SHARD\"}", "[]", "choices", "expected an object, found a list of 0");
  refused("\"\"]", "5]", "units[1]", "expected text, found 5");
  refused("null", "0", "batch_size", "must be at least 1, got 0");
  refused("null", "1.0", "batch_size", "expected an integer, found 1.0");
  refused("null", "9223372036854775808", "batch_size", "does not fit 64 bits");
  refused("2", "0", "time_s", "must be positive, got 0");
  refused("2", "-1e-300", "time_s", "must be positive, got -1e-300");
  refused("2", "false", "time_s", "expected a number, found false");
  refused("[true, -5]", "[true]", "pair", "expected a list of 2, found a list of 1");
  refused("[true, -5]", "[1, -5]", "pair[0]", "expected true or false, found 1");
  refused("-5]", "[{\"any\": 9223372036854775808}]]", "pair[1]", "does not fit 64 bits");
  refused("\"pair\"", "\"pears\"", "pears", "unknown field");

  std::string text = kGood;
  const auto at = text.find(" \"batch_size\": null,");
  CHECK_THROWS(check(parse(text.erase(at, 20)), schema), Error, "batch_size: missing field");
  CHECK_THROWS(check(parse("[]"), schema), Error, "must be a JSON object");

  Schema newer = schema;
  newer.version = 2;
  CHECK_EQ(version_of(parse(kGood), newer), 1);
  CHECK_THROWS(check(parse(kGood), newer), Error, "version: older than 2");

  Schema broken = schema;
  broken.shapes[0].items[0] = 0;
  CHECK_THROWS(validate(broken), std::invalid_argument, "shape 0 refers to shape 0");
  broken = schema;
  broken.shapes[1].items.clear();
  CHECK_THROWS(validate(broken), std::invalid_argument, "shape 1 has 0 items");
  CHECK_THROWS(validate(Schema{"x", 1, {}}), std::invalid_argument, "begins with");
  return report("json_schema");
}
