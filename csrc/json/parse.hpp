// The strict reader: RFC 8259 and nothing more, without recursion.
//
// Refused: comments, NaN and Infinity, trailing commas, text behind the end, a member that is there twice,
// bytes that are not UTF-8, lone surrogates, numbers beyond a double, and whatever is over the caps.
#pragma once

#include <string_view>

#include "json/document.hpp"

namespace osdp::json {

// Reads `text`, which must outlive the result. Throws Error with line, column and the path of the field in
// which reading stopped.
Document parse(std::string_view text, const Limits& limits = {});

}  // namespace osdp::json
