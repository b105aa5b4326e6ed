// What a file of one kind must look like, and the check that it does.
//
// A Schema is a list of shapes that refer to each other by index; osdp/base/schema.py makes it from the
// dataclasses, and osdp/schemas/*.schema.json says the same as JSON Schema.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "json/document.hpp"

namespace osdp::json {

struct Shape {
  enum class Kind : uint8_t { Boolean, Integer, Number, Text, List, Tuple, Object, Map, Any };

  Kind kind = Kind::Boolean;
  bool nullable = false;
  std::vector<int> items;            // List, Map: the one of all values; Tuple, Object: one for each
  std::vector<std::string> names;    // Object: its fields; all must be there and no others
  std::vector<std::string> allowed;  // Text: what it may be; empty: anything
  std::optional<double> minimum;     // Integer, Number; exact for |minimum| < 2^53
  bool above_minimum = false;        // the minimum itself is refused
};

struct Schema {
  std::string kind;           // "plan": what the file's field "osdp" must say
  int64_t version = 1;        // that the shapes describe
  std::vector<Shape> shapes;  // shapes[0] is the file's, without the fields "osdp" and "version"
};

// Throws std::invalid_argument where an index points outside, an Object has not one shape for each name, or
// a shape contains itself.
void validate(const Schema& schema);

// The version that the document's header says, from 1 to the schema's. Throws Error where it is another kind
// of file, or newer. An older one has other fields: it is upgraded (file_versions.py) before it is checked.
int64_t version_of(const Document& document, const Schema& schema);

// Throws Error, naming the first field that does not fit `schema`: another kind of file, another version, an
// unknown or missing field, a wrong type, an integer beyond 64 bits, a number below its minimum.
void check(const Document& document, const Schema& schema);

// The fields of the file's header: in an object that `check` accepted, these are no fields of shapes[0].
inline constexpr std::string_view kKindField = "osdp", kVersionField = "version";

}  // namespace osdp::json
