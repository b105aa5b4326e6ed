// A parsed JSON text: a flat list of values in the order of the text. Values are not converted: an integer
// stays an integer.
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
  HugeInteger,  // the same, but does not fit; `number` is the nearest double
  Number,       // with a fraction or exponent; finite
  Text,
  Array,
  Object,
};

// One value. An array is followed by its values; an object by its members as key (a Text), value, key, value.
struct Node {
  Kind kind = Kind::Null;
  uint32_t offset = 0;  // of its first byte in the text
  uint32_t end = 0;     // index of the first node after this one and its contents
  uint32_t size = 0;    // Text: bytes; Array: values; Object: members
  union {
    bool boolean;
    int64_t integer = 0;
    double number;
    uint64_t begin;  // Text: where it begins in Document::texts
  };
};

struct Document {
  std::string_view source;  // the parsed text; must outlive the document
  std::vector<Node> nodes;  // nodes[0] is the root; never empty
  std::string texts;        // all texts and keys concatenated, escapes resolved, well-formed UTF-8

  const Node& root() const { return nodes.front(); }
  uint32_t index_of(const Node& node) const { return static_cast<uint32_t>(&node - nodes.data()); }
  std::string_view text(const Node& node) const {
    return std::string_view(texts).substr(node.begin, node.size);
  }
  // A value for error messages: "an object", "a list of 3", or its text in the source, shortened.
  std::string show(const Node& node) const;
};

// Line and column of a byte of `source`.
Position position_of(std::string_view source, size_t offset);

// `path` extended by a member's name (shortened if very long) or an array index.
std::string member_path(const std::string& path, std::string_view name);
std::string item_path(const std::string& path, size_t index);

// The value at `path` ("choices.blocks.0.up.mode"; names may contain dots: the longest matching name is
// taken), or its innermost enclosing value that exists.
const Node& find(const Document& document, std::string_view path);

}  // namespace osdp::json
