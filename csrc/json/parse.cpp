#include "json/parse.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <vector>

#include "json/utf8.hpp"

namespace osdp::json {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Note [Reading without recursion]
// `open_` is an explicit stack of the arrays and objects that are not closed yet. A level of nesting costs an
// entry of it instead of a stack frame, and its entries give the path for an error message.
class Parser {
 public:
  Parser(std::string_view text, const Limits& limits) : text_(text), limits_(limits) {}

  Document run() {
    const auto cap = std::min<int64_t>(limits_.bytes, std::numeric_limits<uint32_t>::max());
    if (static_cast<int64_t>(text_.size()) > cap) fail(0, "larger than " + std::to_string(cap) + " bytes");
    const size_t bad = first_invalid_utf8(text_);
    if (bad != std::string_view::npos) {
      text_ = text_.substr(0, bad);  // so that the column can be counted
      fail(bad, "not UTF-8 text");
    }
    document_.source = text_;
    bool more = true;
    while (more) {
      skip_space();
      value();
      more = next_in_open();
    }
    skip_space();
    if (at_ < text_.size()) fail(at_, "unexpected text after the end of the document");
    return std::move(document_);
  }

 private:
  struct Open {
    uint32_t node;      // the array or object
    uint32_t key;       // the node of the current member's key
    uint32_t elements;  // elements begun so far
  };

  [[noreturn]] void fail(size_t offset, const std::string& why) const {
    throw Error(position_of(text_, offset), path(), why);
  }
  [[noreturn]] void fail_here(const std::string& expected) const {
    if (at_ >= text_.size())
      fail(at_, "not valid JSON: the text ends here (truncated?); expected " + expected);
    const auto length = static_cast<size_t>(utf8_length(text_, at_));
    const auto found = text_.substr(at_, length);
    std::string why = "expected " + expected + ", found '" + std::string(found) + "'";
    if (found == "/" || found == "#") why += " (JSON has no comments)";
    if (found == "'") why += " (JSON strings use double quotes)";
    if (static_cast<unsigned char>(found.front()) < 0x20)
      why = "expected " + expected + ", found a control character";
    fail(at_, "not valid JSON: " + why);
  }

  std::string path() const {
    std::string path;
    for (const Open& o : open_) {
      if (document_.nodes[o.node].kind == Kind::Array) {
        path = item_path(path, o.elements == 0 ? 0 : o.elements - 1);
      } else if (o.key != 0) {
        path = member_path(path, document_.text(document_.nodes[o.key]));
      }
    }
    return path;
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) {
      ++at_;
    }
  }

  Node& add(Kind kind, size_t offset) {
    if (static_cast<int64_t>(document_.nodes.size()) >= limits_.values) {
      fail(offset, "more than " + std::to_string(limits_.values) + " values");
    }
    Node& node = document_.nodes.emplace_back();
    node.kind = kind;
    node.offset = static_cast<uint32_t>(offset);
    node.end = static_cast<uint32_t>(document_.nodes.size());
    return node;
  }

  // Reads one value; of an array or object only the opening bracket and, in an object, the first key.
  void value() {
    switch (peek()) {
      case '{':
        return open(Kind::Object, '}');
      case '[':
        return open(Kind::Array, ']');
      case '"':
        return text();
      case 't':
        return literal("true", Kind::Boolean, true);
      case 'f':
        return literal("false", Kind::Boolean, false);
      case 'n':
        return literal("null", Kind::Null, false);
      default:
        break;
    }
    if (peek() == '-' || is_digit(peek())) return number();
    for (const std::string_view word : {"NaN", "Infinity"}) {
      if (text_.substr(at_, word.size()) == word) fail(at_, std::string(word) + ": numbers must be finite");
    }
    fail_here("a value");
  }

  void literal(std::string_view word, Kind kind, bool boolean) {
    if (text_.substr(at_, word.size()) != word) fail_here("a value");
    add(kind, at_).boolean = boolean;
    at_ += word.size();
  }

  void open(Kind kind, char closing) {
    if (static_cast<int>(open_.size()) >= limits_.depth) {
      fail(at_, "nested deeper than " + std::to_string(limits_.depth) + " levels");
    }
    add(kind, at_++);
    open_.push_back({static_cast<uint32_t>(document_.nodes.size() - 1), 0, 0});
    skip_space();
    if (peek() == closing) return;  // next_in_open closes it
    begin_element();
    pending_ = true;
  }

  void begin_element() {
    Open& innermost = open_.back();
    if (document_.nodes[innermost.node].kind == Kind::Object) {
      innermost.key = 0;
      if (peek() != '"') fail_here("a member's name in double quotes");
      text();
      innermost.key = static_cast<uint32_t>(document_.nodes.size() - 1);
      skip_space();
      if (peek() != ':') fail_here("':'");
      ++at_;
    }
    ++innermost.elements;
  }

  // Called after a value: closes the arrays and objects that end here. Returns whether another value follows.
  bool next_in_open() {
    if (pending_) {
      pending_ = false;
      return true;
    }
    while (!open_.empty()) {
      Open& innermost = open_.back();
      const bool object = document_.nodes[innermost.node].kind == Kind::Object;
      skip_space();
      if (peek() == ',' && innermost.elements > 0) {
        ++at_;
        skip_space();
        if (peek() == (object ? '}' : ']'))
          fail_here(object ? "another member after ','" : "another value after ','");
        begin_element();
        return true;
      }
      if (peek() != (object ? '}' : ']')) fail_here(object ? "',' or '}'" : "',' or ']'");
      ++at_;
      close(innermost, object);
    }
    return false;
  }

  void close(Open& innermost, bool object) {
    Node& node = document_.nodes[innermost.node];
    node.size = innermost.elements;
    node.end = static_cast<uint32_t>(document_.nodes.size());
    if (object && node.size > 1) refuse_repeated(node, innermost);
    open_.pop_back();
  }

  void refuse_repeated(const Node& object, Open& innermost) {
    keys_.clear();
    for (uint32_t i = innermost.node + 1; i < object.end; i = document_.nodes[i + 1].end) keys_.push_back(i);
    std::sort(keys_.begin(), keys_.end(), [&](uint32_t a, uint32_t b) {
      const int order = document_.text(document_.nodes[a]).compare(document_.text(document_.nodes[b]));
      return order != 0 ? order < 0 : a < b;
    });
    for (size_t i = 1; i < keys_.size(); ++i) {
      const Node& again = document_.nodes[keys_[i]];
      if (document_.text(again) != document_.text(document_.nodes[keys_[i - 1]])) continue;
      innermost.key = keys_[i];
      fail(again.offset, document_.show(again) + " appears more than once");
    }
  }

  void number() {
    const size_t begin = at_;
    if (peek() == '-') ++at_;
    if (text_.substr(at_, 8) == "Infinity") fail(begin, "-Infinity: numbers must be finite");
    const size_t first = at_;
    digits();
    if (text_[first] == '0' && at_ > first + 1) fail(first, "not valid JSON: a number with a leading zero");
    bool integer = true;
    if (peek() == '.') ++at_, digits(), integer = false;
    if (peek() == 'e' || peek() == 'E') {
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      digits();
      integer = false;
    }
    const char *from = text_.data() + begin, *to = text_.data() + at_;
    Node& node = add(integer ? Kind::Integer : Kind::Number, begin);
    if (integer && std::from_chars(from, to, node.integer).ec == std::errc()) return;
    double nearest = 0;
    if (std::from_chars(from, to, nearest).ec != std::errc() || !std::isfinite(nearest)) {
      fail(begin, document_.show(node) + (integer ? ": the integer does not fit 64 bits"
                                                  : ": the number does not fit a double"));
    }
    if (integer) node.kind = Kind::HugeInteger;
    node.number = nearest;
  }

  void digits() {
    if (!is_digit(peek())) fail_here("a digit");
    while (is_digit(peek())) ++at_;
  }

  void text() {
    const size_t begin = at_++, start = document_.texts.size();
    int64_t characters = 0;
    for (;; ++characters) {
      if (characters > limits_.text_characters) {
        fail(begin, "a string of more than " + std::to_string(limits_.text_characters) + " characters");
      }
      if (at_ >= text_.size())
        fail_here("the end of the string that started at byte " + std::to_string(begin));
      if (peek() == '"') break;
      if (static_cast<unsigned char>(peek()) < 0x20) fail_here("a string without line breaks");
      if (peek() == '\\') {
        escape();
        continue;
      }
      const auto length = static_cast<size_t>(utf8_length(text_, at_));
      document_.texts.append(text_, at_, length);
      at_ += length;
    }
    ++at_;
    Node& node = add(Kind::Text, begin);
    node.begin = start;
    node.size = static_cast<uint32_t>(document_.texts.size() - start);
  }

  void escape() {
    static constexpr std::string_view kLetters = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
    const size_t begin = at_++;
    const auto letter = kLetters.find(peek());
    if (at_ < text_.size() && letter != std::string_view::npos) {
      ++at_;
      document_.texts.push_back(kMeanings[letter]);
      return;
    }
    if (peek() != 'u') fail_here("one of \"\\/bfnrtu after '\\'");
    uint32_t code = four_digits();
    if (code >= 0xD800 && code < 0xDC00 && text_.substr(at_, 2) == "\\u") {
      ++at_;
      const uint32_t low = four_digits();
      if (low >= 0xDC00 && low < 0xE000) code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    if (code >= 0xD800 && code < 0xE000) fail(begin, "not valid JSON: half of a surrogate pair");
    append_utf8(document_.texts, code);
  }

  // The digits after the 'u' of an escape.
  uint32_t four_digits() {
    uint32_t code = 0;
    const auto digits = text_.substr(std::min(at_ + 1, text_.size()), 4);
    const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (digits.size() != 4 || error != std::errc() || stop != digits.data() + 4) {
      fail(at_, "not valid JSON: '\\u' needs four hexadecimal digits");
    }
    at_ += 5;
    return code;
  }

  std::string_view text_;
  const Limits& limits_;
  Document document_;
  std::vector<Open> open_;
  std::vector<uint32_t> keys_;  // for refuse_repeated; a member so that it is allocated once
  size_t at_ = 0;
  bool pending_ = false;  // an array or object has been opened; its first value is next
};

}  // namespace

Document parse(std::string_view text, const Limits& limits) { return Parser(text, limits).run(); }

}  // namespace osdp::json
