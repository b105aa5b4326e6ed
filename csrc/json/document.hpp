// A JSON text, read: a flat list of values in the order of the text. Nothing is evaluated or converted that
// the text does not say; an integer stays an integer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "json/error.hpp"

namespace osdp::json {

enum class Kind : uint8_t {
  Null,
  Boolean,
  Integer,      // written without fraction and exponent, and fits 64 bits
  HugeInteger,  // written so, but does not fit; `number` is the nearest double
  Number,       // with a fraction or exponent; finite
  Text,
  Array,
  Object,
};

// One value. Those of an array follow it; those of an object follow it as key (a Text), value, key, value.
struct Node {
  Kind kind = Kind::Null;
  uint32_t offset = 0;  // of its first byte in the text
  uint32_t end = 0;     // index of the first node behind this one and everything in it
  uint32_t size = 0;    // Text: bytes; Array: values; Object: members
  union {
    bool boolean;
    int64_t integer = 0;
    double number;
    uint64_t begin;  // Text: where it begins in Document::texts
  };
};

struct Document {
  std::string_view source;  // the text that was read; it must outlive the document
  std::vector<Node> nodes;  // nodes[0] is the whole; never empty
  std::string texts;        // the contents of all texts and keys, escapes resolved, well-formed UTF-8

  const Node& root() const { return nodes.front(); }
  uint32_t index_of(const Node& node) const { return static_cast<uint32_t>(&node - nodes.data()); }
  std::string_view text(const Node& node) const {
    return std::string_view(texts).substr(node.begin, node.size);
  }
  // A value as a message shows it: "an object", "a list of 3", or as it is written, shortened.
  std::string show(const Node& node) const;
};

// Line and column of a byte of `source`.
Position position_of(std::string_view source, size_t offset);

// `path` with one more step: a member's name (shortened where very long) or an array's index.
std::string member_path(const std::string& path, std::string_view name);
std::string item_path(const std::string& path, size_t index);

// The value that `path` names ("choices.blocks.0.up.mode"; names may have dots: the longest that fits is
// taken), or the innermost one around it that is there.
const Node& find(const Document& document, std::string_view path);

}  // namespace osdp::json
