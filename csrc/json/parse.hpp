// The strict parser: exactly RFC 8259, without recursion.
//
// Rejected: comments, NaN and Infinity, trailing commas, text after the end, duplicate members, invalid
// UTF-8, lone surrogates, numbers outside the range of a double, and whatever exceeds the limits.
#pragma once

#include <string_view>

#include "json/document.hpp"

namespace osdp::json {

// Parses `text`, which must outlive the result. Throws Error with line, column and the path of the field at
// which parsing stopped.
Document parse(std::string_view text, const Limits& limits = {});

}  // namespace osdp::json
