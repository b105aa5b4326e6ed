// What must hold of the JSON reader for any bytes. Shared by the fuzzer (fuzz_json.cpp) and the test that
// always runs (tests/cpp/test_json_mutations.cpp).
#pragma once

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "json/parse.hpp"
#include "json/schema.hpp"
#include "json/utf8.hpp"

namespace osdp::json {

inline void must(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "json: does not hold: %s\n", what);
  std::abort();
}

// The document as text again, written without any freedom.
inline void write(const Document& d, const Node& node, std::string& out) {
  const auto quoted = [&](const Node& text) {
    out += '"';
    for (const char c : d.text(text)) {
      char escaped[8];
      if (c == '"' || c == '\\') out += '\\';
      if (static_cast<unsigned char>(c) < 0x20) {
        std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned char>(c));
        out += escaped;
      } else {
        out += c;
      }
    }
    out += '"';
  };
  uint32_t at = d.index_of(node) + 1;
  const char* comma = "";
  char digits[64];
  switch (node.kind) {
    case Kind::Null:
      out += "null";
      return;
    case Kind::Boolean:
      out += node.boolean ? "true" : "false";
      return;
    case Kind::Integer:
      out += std::to_string(node.integer);
      return;
    case Kind::HugeInteger:
    case Kind::Number: {
      must(std::isfinite(node.number), "numbers are finite");
      const auto end =
          std::to_chars(digits, digits + sizeof digits, node.number, std::chars_format::scientific);
      out.append(digits, end.ptr);
      return;
    }
    case Kind::Text:
      return quoted(node);
    case Kind::Array:
      out += '[';
      for (uint32_t i = 0; i < node.size; ++i, at = d.nodes[at].end, comma = ",") {
        out += comma;
        write(d, d.nodes[at], out);
      }
      out += ']';
      return;
    case Kind::Object:
      out += '{';
      for (uint32_t i = 0; i < node.size; ++i, at = d.nodes[at + 1].end, comma = ",") {
        out += comma;
        quoted(d.nodes[at]);
        out += ':';
        write(d, d.nodes[at + 1], out);
      }
      out += '}';
      return;
  }
}

// A small schema with every kind of shape.
inline Schema small_schema() {
  using K = Shape::Kind;
  Schema s{"plan", 1, {}};
  s.shapes = {
      {K::Object,
       false,
       {1, 2, 3, 4, 5},
       {"choices", "units", "batch_size", "time_s", "pair"},
       {},
       {},
       false},
      {K::Map, false, {6}, {}, {}, {}, false},
      {K::List, false, {7}, {}, {}, {}, false},
      {K::Integer, true, {}, {}, {}, 1.0, false},
      {K::Number, false, {}, {}, {}, 0.0, true},
      {K::Tuple, true, {8, 9}, {}, {}, {}, false},
      {K::Text, false, {}, {}, {"NO_SHARD", "FULL_SHARD"}, {}, false},
      {K::Text, false, {}, {}, {}, {}, false},
      {K::Boolean, false, {}, {}, {}, {}, false},
      {K::Any, false, {}, {}, {}, {}, false},
  };
  return s;
}

struct Outcome {
  bool parsed = false;  // it is JSON
  bool fits = false;    // and fits small_schema
};

// Reads `text`, and aborts where something that must hold does not.
inline Outcome read_anything(std::string_view text) {
  static const Schema schema = small_schema();
  Limits limits;
  limits.bytes = 1 << 16, limits.depth = 12, limits.values = 2000, limits.text_characters = 200;
  Outcome outcome;
  try {
    const Document d = parse(text, limits);
    outcome.parsed = true;
    must(d.root().end == d.nodes.size(), "the root holds all nodes");
    must(static_cast<int64_t>(d.nodes.size()) <= limits.values, "the cap on values");
    must(first_invalid_utf8(d.texts) == std::string_view::npos, "texts are UTF-8");
    std::string once, twice;
    write(d, d.root(), once);
    limits.bytes *= 8;  // escapes may be longer
    const Document again = parse(once, limits);
    write(again, again.root(), twice);
    must(once == twice, "what is written is read back equal");
    must(again.nodes.size() == d.nodes.size(), "as many values");
    find(d, "choices.a.b[1].c");
    check(d, schema);
    outcome.fits = true;
  } catch (const Error& e) {
    must(e.position.line >= 1 && e.position.column >= 1, "lines and columns count from 1");
    must(e.position.line <= 1 + static_cast<int64_t>(text.size()), "the line is in the text");
    must(first_invalid_utf8(e.what()) == std::string_view::npos, "messages are UTF-8");
    must(std::string_view(e.what()).size() < 4000, "messages are short");
  }
  return outcome;
}

}  // namespace osdp::json
