// The JSON reader: what it reads, exactly; what it refuses, with line, column and field.
#include <limits>
#include <string>

#include "check.hpp"
#include "json/parse.hpp"
#include "json/schema.hpp"
#include "json/utf8.hpp"

using namespace osdp::json;

namespace {

void refused(const std::string& text, const std::string& message, const Limits& limits = {}) {
  try {
    parse(text, limits);
    check_true(false, ("refused: " + text).c_str(), __FILE__, __LINE__);
  } catch (const Error& e) {
    const bool found = std::string(e.what()).find(message) != std::string::npos;
    if (!found) std::cerr << "got: " << e.what() << "\n";
    check_true(found, (text.substr(0, 80) + " is refused with " + message).c_str(), __FILE__, __LINE__);
  }
}

Node only(const std::string& text) { return parse(text).root(); }

void values() {
  CHECK_EQ(only(" 0 ").integer, 0);
  CHECK_EQ(only("-9223372036854775808").integer, std::numeric_limits<int64_t>::min());
  CHECK_EQ(only("9223372036854775807").integer, std::numeric_limits<int64_t>::max());
  CHECK(only("9223372036854775808").kind == Kind::HugeInteger);
  CHECK_EQ(only("9223372036854775808").number, 0x1p63);
  CHECK(only("1.0").kind == Kind::Number && only("1e0").kind == Kind::Number);
  CHECK_EQ(only("0.1").number, 0.1);
  CHECK_EQ(only("5e-324").number, std::numeric_limits<double>::denorm_min());
  CHECK(only("null").kind == Kind::Null && only("true").boolean && !only("false").boolean);

  const std::string text = "{\"a\\u00e9\\ud83d\\ude00\\n\": [1, {\"b\": []}, \"\"]}";
  const Document d = parse(text);
  CHECK_EQ(d.nodes.size(), 8u);
  CHECK_EQ(d.text(d.nodes[1]), "a\xc3\xa9\xf0\x9f\x98\x80\n");
  CHECK_EQ(d.nodes[2].size, 3u);
  CHECK_EQ(d.nodes[4].end, 7u);
  CHECK_EQ(d.root().end, 8u);
}

void syntax() {
  refused("", "line 1, column 1: not valid JSON: the text ends here (truncated?)");
  refused("{\"a\": [1,\n  2, }", "line 2, column 6: a[2]: not valid JSON: expected a value, found '}'");
  refused("[1,]", "another value after ','");
  refused("{\"a\": 1,}", "another member after ','");
  refused("[,1]", "expected a value, found ','");
  refused("{a: 1}", "a member's name in double quotes, found 'a'");
  refused("{'a': 1}", "double quotes");
  refused("{\"a\" 1}", "expected ':'");
  refused("[1 2]", "expected ',' or ']'");
  refused("[1}", "expected ',' or ']', found '}'");
  refused("{\"a\": {\"b\": [NaN]}}", "column 14: a.b[0]: NaN: numbers must be finite");
  refused("-Infinity", "-Infinity: numbers must be finite");
  refused("1 // no", "unexpected text after the end");
  refused("[/* no */]", "JSON has no comments");
  refused("{} {}", "line 1, column 4: unexpected text");
  refused("nul", "expected a value");
  refused("\xef\xbb\xbf{}", "expected a value");  // a byte order mark
  for (const char* number :
       {"01", "-01", "+1", ".5", "1.", "1e", "1e+", "-", "0x10", "1_000", "--1", "1.e5"}) {
    refused(number, "");
  }
  refused("[1e309]", "[0]: 1e309: the number does not fit a double");
  refused("[-1e-400]", "[0]: -1e-400: the number does not fit a double");  // not silently 0
  refused(std::string(400, '9'), "does not fit 64 bits");
}

void texts() {
  refused("\"abc", "truncated");
  refused("\"a\nb\"", "found a control character");
  refused(std::string("\"a\0b\"", 5), "found a control character");
  refused("\"\\x41\"", "after '\\'");
  for (const char* bad : {"\"\\ud83d\"", "\"\\ude00\"", "\"\\ud83d\\u0041\"", "\"\\ud83dx\""}) {
    refused(bad, "half of a surrogate pair");
  }
  for (const char* bad : {"\"\\u12\"", "\"\\u12g4\"", "\"\\u+123\"", "\"\\u"})
    refused(bad, "four hexadecimal");
  // Overlong forms, surrogates, beyond U+10FFFF, cut off, stray continuation.
  for (const char* bad :
       {"\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80", "\xc3", "\xe2\x82", "\xf0\x9f\x98", "\x80"}) {
    refused('"' + std::string(bad) + '"', "column 2: not UTF-8 text");
  }
  for (const char* good : {"\x7f", "\xc2\x80", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"}) {
    CHECK_EQ(parse('"' + std::string(good) + '"').texts, good);
  }
  refused("[\"\xc3\xa9\xc3\xa9\", 1x]", "line 1, column 9");  // columns count characters, not bytes
  std::string out;
  for (const uint32_t c : {0x24u, 0xa3u, 0x20acu, 0x1f600u}) append_utf8(out, c);
  CHECK_EQ(out, "\x24\xc2\xa3\xe2\x82\xac\xf0\x9f\x98\x80");
}

void members() {
  refused("{\"x\": {\"a\": 1, \"b\": 2,\n \"a\": 3}}", "line 2, column 2: x.a: \"a\" appears more than once");
  refused("{\"a\": 1, \"\\u0061\": 2}", "more than once");
  CHECK_EQ(parse("{\"a\": 1, \"aa\": 2, \"\": 3}").root().size, 3u);
}

void caps() {
  Limits limits;
  limits.depth = 3, limits.values = 9, limits.text_characters = 4, limits.bytes = 40;
  parse("[[[]]]", limits);
  refused("[[[[]]]]", "[0][0][0]: nested deeper than 3 levels", limits);
  refused("{\"a\": {\"b\": {\"c\": [", "a.b.c: nested deeper", limits);
  limits.values = 5;
  parse("[1,2,3,4]", limits);
  refused("[1,2,3,4,5]", "[4]: more than 5 values", limits);
  parse("\"\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\"", limits);
  refused("\"abcde\"", "a string of more than 4 characters", limits);
  refused("{\"abcde\": 1}", "a string of more than 4 characters", limits);
  refused(std::string(41, ' '), "larger than 40 bytes", limits);
  refused(std::string(100000, '['), "nested deeper than 32 levels");
}

void places() {
  const std::string text = "{\"a.b\": {\"c\": [5,\n {\"d\": 6}]}, \"a\": {\"b\": 7}}";
  const Document d = parse(text);
  CHECK_EQ(d.show(find(d, "a.b.c[1].d")), "6");  // the longest name that fits
  CHECK_EQ(d.show(find(d, "a.b.c[0]")), "5");
  CHECK_EQ(d.show(find(d, "a.b.c[2]")), "a list of 2");  // not there: what is around it
  CHECK_EQ(d.show(find(d, "nothing")), "an object");
  CHECK_EQ(position_of(text, find(d, "a.b.c[1]").offset).line, 2);
  CHECK_EQ(member_path("", std::string(300, 'x')).size(), 103u);
}

}  // namespace

int main() {
  values();
  syntax();
  texts();
  members();
  caps();
  places();
  return report("json");
}
