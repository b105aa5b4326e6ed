#include "json/document.hpp"

#include <algorithm>
#include <charconv>

#include "json/utf8.hpp"

namespace osdp::json {
namespace {

constexpr size_t kShownBytes = 60, kShownNameBytes = 100;

// At most `bytes` bytes of well-formed `text`, truncated between characters.
std::string shortened(std::string_view text, size_t bytes) {
  if (text.size() <= bytes) return std::string(text);
  while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xC0) == 0x80) --bytes;
  return std::string(text.substr(0, bytes)) + "...";
}

// Text for an error message: control characters become spaces.
std::string printable(std::string text) {
  std::replace_if(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  return text;
}

// If `path` begins with the member name `name`, the offset of the rest of the path; else npos.
size_t behind(std::string_view path, std::string_view name) {
  if (path.substr(0, name.size()) != name) return std::string_view::npos;
  if (path.size() == name.size() || path[name.size()] == '[') return name.size();
  return path[name.size()] == '.' ? name.size() + 1 : std::string_view::npos;
}

}  // namespace

std::string Document::show(const Node& node) const {
  switch (node.kind) {
    case Kind::Null:
      return "null";
    case Kind::Boolean:
      return node.boolean ? "true" : "false";
    case Kind::Array:
      return "a list of " + std::to_string(node.size);
    case Kind::Object:
      return "an object";
    case Kind::Text:
      return '"' + printable(shortened(text(node), kShownBytes)) + '"';
    default:
      break;
  }
  const auto stop = source.find_first_not_of("+-.0123456789eE", node.offset);
  return shortened(source.substr(node.offset, stop - node.offset), kShownBytes);
}

Position position_of(std::string_view source, size_t offset) {
  const auto before = source.substr(0, offset);
  const auto newline = before.rfind('\n');
  const auto line = before.substr(newline == std::string_view::npos ? 0 : newline + 1);
  return {1 + std::count(before.begin(), before.end(), '\n'), 1 + utf8_characters(line)};
}

std::string member_path(const std::string& path, std::string_view name) {
  return (path.empty() ? "" : path + ".") + printable(shortened(name, kShownNameBytes));
}

std::string item_path(const std::string& path, size_t index) {
  return path + "[" + std::to_string(index) + "]";
}

const Node& find(const Document& document, std::string_view path) {
  const Node* node = &document.root();
  while (!path.empty()) {
    const Node* next = nullptr;
    size_t step = 0;
    if (node->kind == Kind::Object) {
      for (uint32_t i = document.index_of(*node) + 1; i < node->end; i = document.nodes[i + 1].end) {
        const auto name = document.text(document.nodes[i]);
        const size_t rest = behind(path, name);
        if (rest != std::string_view::npos && (next == nullptr || rest > step)) {
          next = &document.nodes[i + 1];
          step = rest;
        }
      }
    } else if (node->kind == Kind::Array && path.front() == '[') {
      uint32_t wanted = 0;
      const auto [stop, error] = std::from_chars(path.data() + 1, path.data() + path.size(), wanted);
      step = static_cast<size_t>(stop - path.data()) + 1;
      if (error == std::errc() && step <= path.size() && path[step - 1] == ']' && wanted < node->size) {
        uint32_t i = document.index_of(*node) + 1;
        while (wanted-- > 0) i = document.nodes[i].end;
        next = &document.nodes[i];
        if (step < path.size() && path[step] == '.') ++step;
      }
    }
    if (next == nullptr) break;
    node = next;
    path.remove_prefix(step);
  }
  return *node;
}

}  // namespace osdp::json
