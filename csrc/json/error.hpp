// The error of the JSON reader, with its position, and the limits on what is read.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace osdp::json {

// Limits, each checked before the limited thing is stored. They bound the memory that a hostile file can take
// (24 bytes for each value, and the texts), and it cannot overflow the stack.
struct Limits {
  int64_t bytes = int64_t{64} << 20;  // of the text; never more than 4 GiB - 1
  int depth = 32;                     // of nested arrays and objects
  int64_t values = int64_t{4} << 20;  // numbers, texts, keys, arrays ... together
  int64_t text_characters = 4096;     // of one text or key
};

struct Position {
  int64_t line = 1;    // from 1
  int64_t column = 1;  // from 1, in characters (code points)
};

// `what()` is "line 3, column 14: choices.norm.mode: expected text, found 5".
struct Error : std::runtime_error {
  Error(Position where, std::string path, const std::string& why)
      : std::runtime_error("line " + std::to_string(where.line) + ", column " + std::to_string(where.column) +
                           ": " + (path.empty() ? "" : path + ": ") + why),
        position(where),
        field(std::move(path)) {}

  Position position;
  std::string field;  // "choices.blocks.0.up.granularity", "units[3][0]"; empty: the whole text
};

}  // namespace osdp::json
