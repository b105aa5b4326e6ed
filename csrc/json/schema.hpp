// The schema of one kind of file, and the check of a document against it.
//
// A Schema is a list of shapes that refer to each other by index; osdp/base/schema.py generates it from the
// dataclasses, and osdp/schemas/*.schema.json is the equivalent JSON Schema.
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
  std::vector<int> items;            // List, Map: one shape for all values; Tuple, Object: one for each
  std::vector<std::string> names;    // Object: its fields; all are required, no others allowed
  std::vector<std::string> allowed;  // Text: the allowed values; empty: any
  std::optional<double> minimum;     // Integer, Number; exact for |minimum| < 2^53
  bool above_minimum = false;        // the bound is exclusive
};

struct Schema {
  std::string kind;           // such as "plan": the required value of the file's field "osdp"
  int64_t version = 1;        // the version that the shapes describe
  std::vector<Shape> shapes;  // shapes[0]: the file, without the fields "osdp" and "version"
};

// Throws std::invalid_argument if an index is out of range, an Object does not have one shape per name, or a
// shape contains itself.
void validate(const Schema& schema);

// The version in the document's header, from 1 to the schema's. Throws Error if the file is of another kind
// or newer. An older file has other fields, so it is upgraded (file_versions.py) before it is checked.
int64_t version_of(const Document& document, const Schema& schema);

// Throws Error naming the first field that violates `schema`: another kind of file, another version, an
// unknown or missing field, a wrong type, an integer that does not fit 64 bits, a number below its minimum.
void check(const Document& document, const Schema& schema);

// The fields of the file's header; they are not fields of shapes[0].
inline constexpr std::string_view kKindField = "osdp", kVersionField = "version";

}  // namespace osdp::json
