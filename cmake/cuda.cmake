# CUDA kernels: built where nvcc is found and torch is a CUDA build, or refused with a reason under OSDP_CUDA=ON.
if(OSDP_CUDA STREQUAL "OFF")
  return()
endif()
find_program(NVCC nvcc)
if(NOT NVCC OR NOT TORCH_CUDA_VERSION)
  if(OSDP_CUDA STREQUAL "ON")
    message(FATAL_ERROR "OSDP_CUDA=ON needs nvcc (found: ${NVCC}) and a CUDA build of torch (its CUDA: '${TORCH_CUDA_VERSION}')")
  endif()
  return()
endif()
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80 90)
endif()
set(CMAKE_CUDA_COMPILER ${NVCC})
enable_language(CUDA)
file(GLOB CUDA_SOURCES CONFIGURE_DEPENDS csrc/kernels/*.cu)
target_sources(_C PRIVATE ${CUDA_SOURCES})
# The target is older than the language, so these are not taken from the CMAKE_CUDA_ variables. C++17 is all that the
# kernels need; the runtime library is the one that torch has loaded.
set_target_properties(_C PROPERTIES CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}" CUDA_STANDARD 17
                                    CUDA_RUNTIME_LIBRARY Shared)
# Bit for bit what the CPU's kernels compute: no product is fused with its sum. They wait for memory anyway.
target_compile_options(_C PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-fmad=false>")
target_compile_definitions(_C PRIVATE OSDP_WITH_CUDA)
target_link_libraries(_C PRIVATE torch_cuda c10_cuda)
set(KERNELS_CUDA "${TORCH_CUDA_VERSION}")
