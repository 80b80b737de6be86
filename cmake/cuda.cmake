# Decides whether this build has the CUDA backend (TERRACE_HAS_CUDA) and prepares nvcc for it.
if(TERRACE_CUDA STREQUAL "AUTO" AND (TERRACE_SANITIZE OR TERRACE_FUZZ OR CMAKE_CXX_COMPILER_ID STREQUAL "Clang"))
  set(TERRACE_HAS_CUDA OFF)  # sanitizers and clang tools do not reach device code
elseif(TERRACE_CUDA STREQUAL "AUTO")
  find_program(TERRACE_NVCC nvcc HINTS ENV CUDACXX PATHS /usr/local/cuda/bin)
  if(TERRACE_NVCC)
    set(TERRACE_HAS_CUDA ON)
  else()
    set(TERRACE_HAS_CUDA OFF)
    message(STATUS "no nvcc: building without the CUDA backend")
  endif()
else()
  set(TERRACE_HAS_CUDA ${TERRACE_CUDA})
endif()
if(NOT TERRACE_HAS_CUDA)
  return()
endif()

# The fast kernels use clusters, bulk copies and wgmma; the forms for other GPUs exist for the tiled
# products only, so that 90a is the one architecture that builds. Plain 90 would leave wgmma out.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90a-real)
endif()
if(NOT CMAKE_CUDA_ARCHITECTURES MATCHES "^90a(-real)?$")
  message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES is ${CMAKE_CUDA_ARCHITECTURES}: only 90a-real (Hopper) "
                      "builds so far; use -DTERRACE_CUDA=OFF for other machines")
endif()
if(TERRACE_NVCC AND NOT DEFINED CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_COMPILER ${TERRACE_NVCC})
endif()
enable_language(CUDA)
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake before 3.26 stops at CUDA17
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
if(TERRACE_CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${TERRACE_CCACHE})
endif()
set(TERRACE_CUDA_FLAGS -O3 -lineinfo --expt-relaxed-constexpr -Werror=all-warnings
    -Xcompiler=-Wall,-Wextra,-ffp-contract=off)
find_package(CUDAToolkit REQUIRED)
