# SPDX-License-Identifier: MIT
# libdeeppcr_cuda.so.0, the backend that the library loads at run time (docs/gpu.md): everything in folders named cuda/.
# Nothing else needs it, or nvcc; without either, all the rest is built and tested.
string(TOLOWER "${DEEPPCR_CUDA}" cuda_wanted)
if(NOT cuda_wanted MATCHES "^(auto|on|off|1|0|true|false|yes|no|y|n|)$")
  message(FATAL_ERROR "DEEPPCR_CUDA is '${DEEPPCR_CUDA}', wanted auto, on or off")
endif()
file(GLOB CUDA_KERNELS CONFIGURE_DEPENDS src/kern/cuda/*.cu)
file(GLOB CUDA_HOST CONFIGURE_DEPENDS src/rt/dev/cuda/*.c src/kern/cuda/*.c)
if(NOT cuda_wanted OR NOT CUDA_KERNELS OR NOT CUDA_HOST OR DEEPPCR_SANITIZE OR DEEPPCR_FUZZ)
  return()
endif()

include(CheckLanguage)
# nvcc takes minutes. In a build for tests, where nobody asked for the backend, one of the tests (cuda_build) compiles it
# for one device, doubles and integers to what link-time optimisation would begin with (LTO IR) alone: that is nvcc's word
# on the source, in half of the time, and the floats' kernels are the same templates. So are the floats' longest. It could
# not run on a device, lies where the library does not look, and is not installed; DEEPPCR_CUDA=on builds all of it there too.
set(cuda_by_test FALSE)
if(DEEPPCR_TESTS AND cuda_wanted STREQUAL "auto")
  set(cuda_by_test TRUE)
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES "80-real;90-real;75-virtual")  # what is newer takes the PTX
  if(cuda_by_test)
    set(CMAKE_CUDA_ARCHITECTURES 90-real)
  endif()
endif()
check_language(CUDA)
# Its version first: where a compiler does not know one of the architectures, enable_language ends the configuration.
set(cuda_version 0)
if(CMAKE_CUDA_COMPILER)
  execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --version OUTPUT_VARIABLE cuda_said ERROR_QUIET)
  if(cuda_said MATCHES "release ([0-9]+\\.[0-9]+)")
    set(cuda_version ${CMAKE_MATCH_1})
  endif()
endif()
if(cuda_version VERSION_GREATER_EQUAL 12.0)
  enable_language(CUDA)
  find_package(CUDAToolkit 12.0 QUIET)
endif()
if(cuda_version VERSION_LESS 12.0 OR NOT TARGET CUDA::cudart_static)
  if(cuda_wanted STREQUAL "auto")
    message(STATUS "CUDA backend: no nvcc of CUDA 12.0 or later found (CUDACXX names one); left out")
    return()
  endif()
  message(FATAL_ERROR "DEEPPCR_CUDA is ${DEEPPCR_CUDA}, but no nvcc of CUDA 12.0 or later was found (CUDACXX names one)")
endif()
message(STATUS "CUDA backend: ${CMAKE_CUDA_COMPILER} ${CMAKE_CUDA_COMPILER_VERSION}, ${CMAKE_CUDA_ARCHITECTURES}")

set(cuda_objects "")
if(cuda_by_test)
  set(cuda_twins ${CUDA_KERNELS})
  list(FILTER cuda_twins INCLUDE REGEX "_(f64|u32)\\.cu$|/(cells|gates|gates_back|layers|layers_newton|para|para_back)_f32\\.cu$")
  list(REMOVE_ITEM CUDA_KERNELS ${cuda_twins})
  add_library(deeppcr_cuda_twins OBJECT EXCLUDE_FROM_ALL ${cuda_twins})
  set_target_properties(deeppcr_cuda_twins PROPERTIES CUDA_ARCHITECTURES OFF POSITION_INDEPENDENT_CODE ON)
  target_compile_options(deeppcr_cuda_twins PRIVATE -gencode=arch=compute_90,code=lto_90 -rdc=true -Xcompiler=-O0)
  set(cuda_objects deeppcr_cuda_twins)
  # In the place of what a link of device code would define, which nobody calls here: there is no kernel to register.
  set(unlinked ${PROJECT_BINARY_DIR}/cuda_unlinked.c)
  add_custom_command(OUTPUT ${unlinked} DEPENDS $<TARGET_OBJECTS:deeppcr_cuda_twins> COMMAND_EXPAND_LISTS VERBATIM
    COMMAND sh -c "out=$1 && shift && '${CMAKE_NM}' -u \"$@\" >\"$out.names\" && sed -n 's/^ *U \\(__cudaRegisterLinkedBinary_.*\\)$/void \\1(void) {}/p' \"$out.names\" >\"$out\""
      sh ${unlinked} $<TARGET_OBJECTS:deeppcr_cuda_twins>)
  list(APPEND CUDA_HOST ${unlinked})
endif()
add_library(deeppcr_cuda MODULE ${CUDA_KERNELS} ${CUDA_HOST})
set_target_properties(deeppcr_cuda PROPERTIES EXCLUDE_FROM_ALL ${cuda_by_test})
if(cuda_by_test)
  set_target_properties(deeppcr_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/cuda-by-test)
endif()
# The library opens it by this name: the number is that of libdeeppcr.so.0.
set_target_properties(deeppcr_cuda PROPERTIES PREFIX lib OUTPUT_NAME deeppcr_cuda SUFFIX .so.0)
if(cuda_by_test)  # the test compiles and links; -O0 takes half as long again where ptxas follows
  target_compile_options(deeppcr_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Xcicc=-O1 -Xptxas=-O1>)
  target_link_libraries(deeppcr_cuda PRIVATE deeppcr_cuda_twins)
endif()
foreach(part deeppcr_cuda ${cuda_objects})
  set_target_properties(${part} PROPERTIES
    CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS OFF CUDA_VISIBILITY_PRESET hidden CUDA_RUNTIME_LIBRARY Static)
  target_include_directories(${part} PRIVATE include src)
  # The runtime's headers are not ours to be warned about.
  target_include_directories(${part} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  # Kernels' stubs, which nvcc writes, would otherwise guard constants and ask for libstdc++, the one C++ library a user may
  # not have. A fused multiply-add stands where the code says fma, as everywhere.
  target_compile_options(${part} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false
    -Xcompiler=-Wall,-Wextra,-fno-exceptions,-fno-threadsafe-statics
    $<$<BOOL:${DEEPPCR_WERROR}>:-Werror=all-warnings>>)
endforeach()
target_link_libraries(deeppcr_cuda PRIVATE CUDA::cudart_static Threads::Threads ${CMAKE_DL_LIBS})
target_link_options(deeppcr_cuda PRIVATE -Wl,--as-needed -Wl,--exclude-libs,ALL)  # the runtime's names stay inside
