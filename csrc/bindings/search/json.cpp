// Bindings of csrc/json, in osdp._search. A file that matches its schema becomes values of the Python classes
// given for it; anything else raises JsonError(message, field, line, column).
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "json/parse.hpp"
#include "json/schema.hpp"

namespace py = pybind11;
using namespace py::literals;
using namespace osdp::json;

namespace {

py::object text_object(const Document& document, const Node& node) {
  const auto text = document.text(node);
  return py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "strict"));
}

// The result of Python's own json: dictionaries and lists. The recursion depth is bounded by Limits::depth.
py::object plain(const Document& document, const Node& node) {
  switch (node.kind) {
    case Kind::Null:
      return py::none();
    case Kind::Boolean:
      return py::bool_(node.boolean);
    case Kind::Integer:
      return py::int_(node.integer);
    case Kind::HugeInteger:
    case Kind::Number:
      return py::float_(node.number);
    case Kind::Text:
      return text_object(document, node);
    case Kind::Array: {
      py::list list;
      for (uint32_t i = document.index_of(node) + 1; i < node.end; i = document.nodes[i].end) {
        list.append(plain(document, document.nodes[i]));
      }
      return list;
    }
    case Kind::Object:
      break;
  }
  py::dict dict;
  for (uint32_t i = document.index_of(node) + 1; i < node.end; i = document.nodes[i + 1].end) {
    dict[text_object(document, document.nodes[i])] = plain(document, document.nodes[i + 1]);
  }
  return dict;
}

// A Schema, and for each of its Object shapes the Python class that is called with the fields in order.
class Reader {
 public:
  Reader(std::string kind, int64_t version, std::vector<Shape> shapes, std::vector<py::object> classes)
      : schema_{std::move(kind), version, std::move(shapes)}, classes_(std::move(classes)) {
    validate(schema_);
    if (classes_.size() != schema_.shapes.size()) throw std::invalid_argument("one class for each shape");
  }

  std::pair<int64_t, py::object> read(const py::bytes& bytes, const Limits& limits) const {
    const std::string_view text = bytes;
    int64_t version = 0;
    const Document document = [&] {
      py::gil_scoped_release release;
      Document read = parse(text, limits);
      version = version_of(read, schema_);
      if (version == schema_.version) check(read, schema_);
      return read;
    }();
    return {version, version == schema_.version ? build(document, document.root(), 0)
                                                : plain(document, document.root())};
  }

  int64_t version(const py::bytes& bytes, const Limits& limits) const {
    const std::string_view text = bytes;
    py::gil_scoped_release release;
    return version_of(parse(text, limits), schema_);
  }

 private:
  py::object build(const Document& d, const Node& node, size_t index) const {
    const Shape& shape = schema_.shapes[index];
    if (node.kind == Kind::Null) return py::none();
    const uint32_t first = d.index_of(node) + 1;
    const auto item = [&](size_t i) { return static_cast<size_t>(shape.items[i]); };
    switch (shape.kind) {
      case Shape::Kind::Number:
        return py::float_(node.kind == Kind::Integer ? static_cast<double>(node.integer) : node.number);
      case Shape::Kind::List:
      case Shape::Kind::Tuple: {
        py::tuple values(node.size);
        uint32_t at = first;
        for (size_t i = 0; i < node.size; ++i, at = d.nodes[at].end) {
          values[i] = build(d, d.nodes[at], item(shape.kind == Shape::Kind::Tuple ? i : 0));
        }
        return values;
      }
      case Shape::Kind::Map: {
        py::dict values;
        for (uint32_t i = first; i < node.end; i = d.nodes[i + 1].end) {
          values[text_object(d, d.nodes[i])] = build(d, d.nodes[i + 1], item(0));
        }
        return values;
      }
      case Shape::Kind::Object: {
        py::tuple values(shape.names.size());
        for (uint32_t i = first; i < node.end; i = d.nodes[i + 1].end) {
          const auto name = d.text(d.nodes[i]);
          for (size_t field = 0; field < shape.names.size(); ++field) {
            if (shape.names[field] == name) values[field] = build(d, d.nodes[i + 1], item(field));
          }
        }
        return classes_[index](*values);
      }
      default:
        return plain(d, node);
    }
  }

  Schema schema_;
  std::vector<py::object> classes_;
};

Shape::Kind kind_of(const std::string& name) {
  static constexpr std::string_view kNames[] = {"boolean", "integer", "number", "text", "list",
                                                "tuple",   "object",  "map",    "any"};
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (name == kNames[i]) return static_cast<Shape::Kind>(i);
  }
  throw std::invalid_argument("no kind of shape: " + name);
}

}  // namespace

void bind_json(py::module_& m) {
  // Created by hand, since the exception has more arguments than a message.
  static PyObject* json_error = PyErr_NewException("osdp._search.JsonError", PyExc_ValueError, nullptr);
  m.attr("JsonError") = py::reinterpret_borrow<py::object>(json_error);
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Error& e) {
      PyErr_SetObject(json_error,
                      py::make_tuple(e.what(), e.field, e.position.line, e.position.column).ptr());
    }
  });

  py::class_<Limits>(m, "JsonLimits", "Caps of the JSON reader (csrc/json/error.hpp).")
      .def(py::init([](int64_t bytes, int depth, int64_t values, int64_t text_characters) {
             return Limits{bytes, depth, values, text_characters};
           }),
           py::kw_only(), "bytes"_a, "depth"_a, "values"_a, "text_characters"_a);
  py::class_<Shape>(m, "JsonShape", "One type of a JSON schema (csrc/json/schema.hpp).")
      .def(py::init([](const std::string& kind, bool nullable, std::vector<int> items,
                       std::vector<std::string> names, std::vector<std::string> allowed,
                       std::optional<double> minimum, bool above_minimum) {
             return Shape{kind_of(kind),      nullable, std::move(items), std::move(names),
                          std::move(allowed), minimum,  above_minimum};
           }),
           py::kw_only(), "kind"_a, "nullable"_a, "items"_a, "names"_a, "allowed"_a, "minimum"_a,
           "above_minimum"_a);
  py::class_<Reader>(m, "JsonReader", "Reads files of one kind into values of their classes.")
      .def(py::init<std::string, int64_t, std::vector<Shape>, std::vector<py::object>>(), py::kw_only(),
           "kind"_a, "version"_a, "shapes"_a, "classes"_a)
      .def("version", &Reader::version, "text"_a, "limits"_a, "The version that the file's header says.")
      .def("read", &Reader::read, "text"_a, "limits"_a,
           "The file's version, and its value; of an older version what `read_json` gives, unchecked.");
  m.def(
      "read_json",
      [](const py::bytes& text, const Limits& limits) {
        const Document document = parse(std::string_view(text), limits);
        return plain(document, document.root());
      },
      "text"_a, "limits"_a, "Any JSON text as dictionaries, lists, numbers and text.");
  m.def(
      "find_json",
      [](const py::bytes& text, const Limits& limits, std::string_view path) {
        const Document document = parse(std::string_view(text), limits);
        const Position found = position_of(document.source, find(document, path).offset);
        return std::pair(found.line, found.column);
      },
      "text"_a, "limits"_a, "path"_a, "Line and column of the field that a path names.");
}
