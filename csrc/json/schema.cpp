#include "json/schema.hpp"

#include <algorithm>
#include <stdexcept>

namespace osdp::json {
namespace {

const Node* member(const Document& document, const Node& object, std::string_view name) {
  for (uint32_t i = document.index_of(object) + 1; i < object.end; i = document.nodes[i + 1].end) {
    if (document.text(document.nodes[i]) == name) return &document.nodes[i + 1];
  }
  return nullptr;
}

std::string minimum_text(double minimum) {
  std::string text = std::to_string(minimum);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

// The recursion depth is that of the schema, which `validate` makes finite.
class Checker {
 public:
  Checker(const Document& document, const Schema& schema) : d_(document), schema_(schema) {}

  int64_t header() const {
    const Node& root = d_.root();
    const Node* kind = root.kind == Kind::Object ? member(d_, root, kKindField) : nullptr;
    if (kind == nullptr) {
      fail(root, std::string(kKindField),
           "not an osdp '" + schema_.kind + "' file: it must be a JSON object with a field 'osdp'");
    }
    if (kind->kind != Kind::Text || d_.text(*kind) != schema_.kind) {
      fail(*kind, std::string(kKindField),
           "this is " + d_.show(*kind) + ", not an osdp '" + schema_.kind + "' file");
    }
    const Node* version = member(d_, root, kVersionField);
    const std::string field(kVersionField), newest = std::to_string(schema_.version);
    if (version == nullptr) fail(root, field, "missing field; expected version " + newest);
    if (version->kind != Kind::Integer || version->integer < 1) {
      fail(*version, field, d_.show(*version) + " is not a version; expected " + newest);
    }
    if (version->integer > schema_.version) {
      fail(*version, field,
           "the file has version " + d_.show(*version) + ", this osdp reads up to " + newest +
               "; use a newer osdp");
    }
    return version->integer;
  }

  [[noreturn]] void older() const {
    const std::string field(kVersionField);
    fail(*member(d_, d_.root(), kVersionField), field, "older than " + std::to_string(schema_.version));
  }

  void value(const Node& node, const Shape& shape, const std::string& path) const {
    if (node.kind == Kind::Null && shape.nullable) return;
    switch (shape.kind) {
      case Shape::Kind::Boolean:
        if (node.kind != Kind::Boolean) wrong(node, path, "true or false");
        return;
      case Shape::Kind::Integer:
        if (node.kind == Kind::HugeInteger) {
          fail(node, path, d_.show(node) + ": the integer does not fit 64 bits");
        }
        if (node.kind != Kind::Integer) wrong(node, path, "an integer");
        return minimum(node, shape, path);
      case Shape::Kind::Number:
        if (node.kind != Kind::Integer && node.kind != Kind::HugeInteger && node.kind != Kind::Number) {
          wrong(node, path, "a number");
        }
        return minimum(node, shape, path);
      case Shape::Kind::Text:
        if (node.kind != Kind::Text) wrong(node, path, "text");
        return allowed(node, shape, path);
      case Shape::Kind::List:
      case Shape::Kind::Tuple:
        return array(node, shape, path);
      case Shape::Kind::Object:
      case Shape::Kind::Map:
        if (node.kind != Kind::Object) wrong(node, path, "an object");
        return object(node, shape, path);
      case Shape::Kind::Any:
        return any(node, path);
    }
  }

 private:
  [[noreturn]] void fail(const Node& node, const std::string& path, const std::string& why) const {
    throw Error(position_of(d_.source, node.offset), path, why);
  }
  [[noreturn]] void wrong(const Node& node, const std::string& path, const std::string& expected) const {
    fail(node, path, "expected " + expected + ", found " + d_.show(node));
  }

  // Accepts any value that survives reading: an integer that does not fit 64 bits would become a double.
  void any(const Node& node, const std::string& path) const {
    for (uint32_t i = d_.index_of(node); i < node.end; ++i) {
      if (d_.nodes[i].kind == Kind::HugeInteger) {
        fail(d_.nodes[i], path, d_.show(d_.nodes[i]) + ": the integer does not fit 64 bits");
      }
    }
  }

  void minimum(const Node& node, const Shape& shape, const std::string& path) const {
    if (!shape.minimum) return;
    const double least = *shape.minimum;
    const bool below =
        node.kind == Kind::Integer ? node.integer < static_cast<int64_t>(least) : node.number < least;
    const bool equal =
        node.kind == Kind::Integer ? node.integer == static_cast<int64_t>(least) : node.number == least;
    if (!below && !(equal && shape.above_minimum)) return;
    if (least == 0)
      fail(node, path,
           std::string(shape.above_minimum ? "must be positive" : "must not be negative") + ", got " +
               d_.show(node));
    fail(node, path,
         std::string("must be ") + (shape.above_minimum ? "more than " : "at least ") + minimum_text(least) +
             ", got " + d_.show(node));
  }

  void allowed(const Node& node, const Shape& shape, const std::string& path) const {
    if (shape.allowed.empty()) return;
    std::string all;
    for (const std::string& text : shape.allowed) {
      if (d_.text(node) == text) return;
      all += (all.empty() ? "" : ", ") + text;
    }
    fail(node, path, d_.show(node) + " is not one of " + all);
  }

  void array(const Node& node, const Shape& shape, const std::string& path) const {
    if (node.kind != Kind::Array) wrong(node, path, "a list");
    const bool tuple = shape.kind == Shape::Kind::Tuple;
    if (tuple && node.size != shape.items.size()) {
      wrong(node, path, "a list of " + std::to_string(shape.items.size()));
    }
    uint32_t at = d_.index_of(node) + 1;
    for (size_t i = 0; i < node.size; ++i, at = d_.nodes[at].end) {
      value(d_.nodes[at], item(shape, tuple ? i : 0), item_path(path, i));
    }
  }

  void object(const Node& node, const Shape& shape, const std::string& path) const {
    const bool map = shape.kind == Shape::Kind::Map, top = &node == &d_.root();
    // Unknown and missing fields are reported first, since they point to a file of another version.
    if (!map) fields(node, shape, path, top);
    for (uint32_t i = d_.index_of(node) + 1; i < node.end; i = d_.nodes[i + 1].end) {
      const auto name = d_.text(d_.nodes[i]);
      if (top && (name == kKindField || name == kVersionField)) continue;
      const size_t which = map ? 0 : field(shape, name);
      value(d_.nodes[i + 1], item(shape, which), member_path(path, name));
    }
  }

  void fields(const Node& node, const Shape& shape, const std::string& path, bool top) const {
    size_t found = 0;
    for (uint32_t i = d_.index_of(node) + 1; i < node.end; i = d_.nodes[i + 1].end) {
      const auto name = d_.text(d_.nodes[i]);
      if (top && (name == kKindField || name == kVersionField)) continue;
      if (field(shape, name) == shape.names.size()) {
        fail(d_.nodes[i], member_path(path, name), "unknown field; was the file written by a newer osdp?");
      }
      ++found;  // no name occurs twice: parse rejects that
    }
    if (found == shape.names.size()) return;
    for (const std::string& name : shape.names) {
      if (member(d_, node, name) == nullptr) {
        fail(node, member_path(path, name), "missing field; is the file truncated?");
      }
    }
  }

  static size_t field(const Shape& shape, std::string_view name) {
    const auto at = std::find(shape.names.begin(), shape.names.end(), name);
    return static_cast<size_t>(at - shape.names.begin());
  }
  const Shape& item(const Shape& shape, size_t which) const {
    return schema_.shapes[static_cast<size_t>(shape.items[which])];
  }

  const Document& d_;
  const Schema& schema_;
};

}  // namespace

void validate(const Schema& schema) {
  if (schema.shapes.empty() || schema.shapes[0].kind != Shape::Kind::Object) {
    throw std::invalid_argument("a schema begins with the shape of an object");
  }
  for (size_t i = 0; i < schema.shapes.size(); ++i) {
    const Shape& shape = schema.shapes[i];
    // A shape refers to later ones only, so none contains itself.
    for (const int item : shape.items) {
      if (item <= static_cast<int>(i) || item >= static_cast<int>(schema.shapes.size())) {
        throw std::invalid_argument("shape " + std::to_string(i) + " refers to shape " +
                                    std::to_string(item));
      }
    }
    const bool one = shape.kind == Shape::Kind::List || shape.kind == Shape::Kind::Map;
    if ((one && shape.items.size() != 1) ||
        (shape.kind == Shape::Kind::Object && shape.items.size() != shape.names.size())) {
      throw std::invalid_argument("shape " + std::to_string(i) + " has " +
                                  std::to_string(shape.items.size()) + " items");
    }
  }
}

int64_t version_of(const Document& document, const Schema& schema) {
  return Checker(document, schema).header();
}

void check(const Document& document, const Schema& schema) {
  const Checker checker(document, schema);
  if (checker.header() != schema.version) checker.older();
  checker.value(document.root(), schema.shapes[0], "");
}

}  // namespace osdp::json
