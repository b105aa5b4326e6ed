# The extension modules. torch's paths are asked from torch itself: find_package(Torch) would demand a CUDA toolkit
# wherever the installed torch is a CUDA build.
find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module)
execute_process(
  COMMAND ${Python_EXECUTABLE} -c "import torch, torch.utils.cpp_extension as e; print(';'.join(e.include_paths()), '|', ';'.join(e.library_paths()), '|', int(torch._C._GLIBCXX_USE_CXX11_ABI), '|', torch.__version__, sep='')"
  OUTPUT_VARIABLE TORCH_PATHS OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCH "^(.*)\\|(.*)\\|(.*)\\|(.*)$" _ "${TORCH_PATHS}")
set(TORCH_INCLUDES ${CMAKE_MATCH_1})
set(TORCH_LIBRARY_DIRS ${CMAKE_MATCH_2})
set(TORCH_ABI ${CMAKE_MATCH_3})
set(TORCH_VERSION "${CMAKE_MATCH_4}")

# torch carries its own pybind11; classes bound with another version do not mix with torch's.
function(osdp_module name)
  python_add_library(${name} MODULE WITH_SOABI ${ARGN})
  target_include_directories(${name} SYSTEM BEFORE PRIVATE ${TORCH_INCLUDES})
  target_include_directories(${name} PRIVATE csrc)
  target_compile_options(${name} PRIVATE ${OSDP_WARNINGS} -fvisibility=hidden)
  target_compile_definitions(${name} PRIVATE _GLIBCXX_USE_CXX11_ABI=${TORCH_ABI} TORCH_EXTENSION_NAME=${name})
  # Installed, the module lies in site-packages/osdp beside site-packages/torch.
  set_target_properties(${name} PROPERTIES INSTALL_RPATH "$ORIGIN/../torch/lib")
  install(TARGETS ${name} DESTINATION osdp)
endfunction()

file(GLOB SEARCH_BINDINGS CONFIGURE_DEPENDS csrc/bindings/search/*.cpp)
osdp_module(_search ${SEARCH_BINDINGS})
osdp_compile_by_folder(_search)
# Bindings of the search convert once what takes long to compute; templates compile in two thirds of -O3's time.
target_compile_options(_search PRIVATE -O1)
target_link_libraries(_search PRIVATE osdp_search)
# What the extension was compiled against, for osdp/base/built_with.py: in the module that loads with any torch.
target_compile_definitions(_search PRIVATE "OSDP_TORCH_VERSION=\"${TORCH_VERSION}\"")

file(GLOB CORE_SOURCES CONFIGURE_DEPENDS csrc/ops/*.cpp csrc/comm/*.cpp csrc/runtime/*.cpp
     csrc/runtime/*/*.cpp)
list(REMOVE_ITEM CORE_SOURCES ${COMM})
target_compile_definitions(osdp_comm PUBLIC _GLIBCXX_USE_CXX11_ABI=${TORCH_ABI})
file(GLOB CORE_BINDINGS CONFIGURE_DEPENDS csrc/bindings/*.cpp)
if(NOT OSDP_SENSITIVITY)
  list(FILTER CORE_SOURCES EXCLUDE REGEX "/left_out\\.cpp$")
  list(FILTER CORE_BINDINGS EXCLUDE REGEX "/left_out\\.cpp$")
endif()
if(CORE_BINDINGS)
  osdp_module(_C ${CORE_SOURCES} ${CORE_BINDINGS})
  osdp_compile_by_folder(_C)
  target_link_directories(_C PRIVATE ${TORCH_LIBRARY_DIRS})
  target_link_libraries(_C PRIVATE osdp_comm torch torch_cpu torch_python c10)
  target_compile_definitions(_C PRIVATE USE_C10D_GLOO $<$<BOOL:${OSDP_SENSITIVITY}>:OSDP_SENSITIVITY>)
endif()
