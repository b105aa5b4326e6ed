// The fuzzer's property on texts that are damaged at random, the same ones in every run.
#include <random>
#include <string>
#include <vector>

#include "../fuzz/json_property.hpp"
#include "check.hpp"

using namespace osdp::json;

namespace {

const std::vector<std::string> kSeeds{
    "{\"osdp\": \"plan\", \"version\": 1, \"choices\": {\"blocks.0.fc\": \"FULL_SHARD\", \"\": "
    "\"NO_SHARD\"},\n"
    " \"units\": [\"gr\\u00fc\", \"\\ud83d\\ude00\", \"\xf0\x9f\x98\x80\"], \"batch_size\": 4,\n"
    " \"time_s\": 2.5e-3, \"pair\": [true, -9223372036854775808]}\n",
    "[[], [0, -1, 18446744073709551616, 1E300], {\"a\": {\"b\": [1, {\"c\": false}]}}, null, \"\\n\"]",
};
const std::vector<std::string> kPieces{"{",      "}",       "[",  "]",        ",",    ":",     "\"",   "\\",
                                       "\\u",    "\\ud83d", "-",  "0",        "1e99", ".",     "null", "true",
                                       "NaN",    "/*",      "\n", "\xc3",     "\0",   "1e999", "{}",   "[1]",
                                       "\"a\":", "99",      "e",  "\xf0\x9f", " ",    "false"};

}  // namespace

int main() {
  std::mt19937 random(7);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  int parsed = 0, fitting = 0;
  constexpr int kTexts = 150000;
  for (int i = 0; i < kTexts; ++i) {
    std::string text = kSeeds[below(kSeeds.size())];
    for (size_t change = 1 + below(3); change > 0 && !text.empty(); --change) {
      const size_t at = below(text.size()), length = 1 + below(12);
      switch (below(5)) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, length);
          break;
        case 2:
          text.insert(at, kPieces[below(kPieces.size())]);
          break;
        case 3:
          text.insert(at, text.substr(below(text.size()), length));
          break;
        case 4:
          text.resize(at);
          break;
      }
    }
    const Outcome outcome = read_anything(text);
    parsed += outcome.parsed;
    fitting += outcome.fits;
  }
  // Enough of each kind that the run means something.
  CHECK(parsed > kTexts / 50 && parsed < kTexts / 2);
  CHECK(fitting > kTexts / 200 && fitting < parsed);
  CHECK(read_anything(kSeeds[0]).fits);
  std::printf("%d texts: %d are JSON, %d fit the schema\n", kTexts, parsed, fitting);
  return report("json_mutations");
}
