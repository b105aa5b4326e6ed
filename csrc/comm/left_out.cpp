#include "comm/left_out.hpp"

#include <c10/util/StringUtil.h>

#include <mutex>
#include <set>
#include <string_view>

namespace osdp::comm {
namespace {

std::mutex mutex;
std::string chosen;
std::set<std::string> reached;

// "void osdp::runtime::UnitScheduler::use(Unit&)" -> "UnitScheduler::use"
std::string plain(std::string_view function) {
  function = function.substr(0, function.find('('));
  function = function.substr(function.rfind(' ') + 1);
  for (const std::string_view here : {"osdp::runtime::", "osdp::comm::"})
    if (function.starts_with(here)) function.remove_prefix(here.size());
  return std::string(function);
}

}  // namespace

namespace detail {

std::atomic<bool> noting{false};

bool is_left_out(const char* what, const CallSite& where) {
  std::string_view file = where.file_name();
  file = file.substr(file.rfind('/') + 1);
  std::string site = c10::str(what, " ", file, ":", where.line(), " in ", plain(where.function_name()));
  std::lock_guard lock(mutex);
  const bool left = site == chosen;
  reached.insert(std::move(site));
  return left;
}

}  // namespace detail

void leave_out(const std::string& site) {
  std::lock_guard lock(mutex);
  chosen = site;
  reached.clear();
  detail::noting = true;
}

std::vector<std::string> ordering_sites() {
  std::lock_guard lock(mutex);
  return {reached.begin(), reached.end()};
}

}  // namespace osdp::comm
