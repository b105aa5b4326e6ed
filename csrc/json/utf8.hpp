// UTF-8: validation, character counts and encoding.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace osdp::json {

// Length in bytes (1 to 4) of the character that begins at `at`; 0 if it is not well-formed: overlong, a
// surrogate, beyond U+10FFFF, truncated, or a continuation byte.
int utf8_length(std::string_view text, size_t at);

// Offset of the first byte that is not part of a well-formed character; npos if there is none.
size_t first_invalid_utf8(std::string_view text);

// Characters (code points) of well-formed `text`.
int64_t utf8_characters(std::string_view text);

// Appends `code_point`, which must be at most 0x10FFFF and not a surrogate.
void append_utf8(std::string& out, uint32_t code_point);

}  // namespace osdp::json
