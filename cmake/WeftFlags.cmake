# Compiler flags of everything we build, on one interface target: weft_flags.
#
# No -ffast-math anywhere: results must not depend on how the compiler reorders sums. Contraction is off for
# the same reason (kernels that want a fused multiply-add write it). -fno-math-errno changes no result.
set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON) # for editors, and a test that builds a changed copy
set(CMAKE_C_FLAGS_RELEASE "-O3 -g1")
set(CMAKE_C_FLAGS_DEBUG "-Og -g")

# Hundreds of tests and benchmarks are linked by lld where it is there: it takes a quarter of the usual linker's time.
find_program(WEFT_LLD ld.lld)
mark_as_advanced(WEFT_LLD)
function(weft_link_fast target)
  if(WEFT_LLD)
    target_link_options(${target} PRIVATE -fuse-ld=lld)
  endif()
endfunction()

add_library(weft_flags INTERFACE)
target_compile_definitions(weft_flags INTERFACE _GNU_SOURCE)
target_compile_options(weft_flags INTERFACE -Wall -Wextra -Wconversion -fvisibility=hidden
  -fno-math-errno -ffp-contract=off -fmacro-prefix-map=${CMAKE_CURRENT_SOURCE_DIR}/=)
if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
  # gcc does not know that a raised status is negative, so it doubts every out-parameter set on success only.
  # -Wuninitialized, and clang's -Wsometimes-uninitialized in CI, stay on. Text in fixed buffers is cut on purpose.
  target_compile_options(weft_flags INTERFACE -Wno-maybe-uninitialized -Wno-format-truncation)
  if(NOT WEFT_SANITIZE AND NOT WEFT_COVERAGE)
    # Callers' stacks may be small. Of the targets that say so: tests keep large things where they like.
    target_compile_options(weft_flags INTERFACE
      $<$<AND:$<CONFIG:Release>,$<BOOL:$<TARGET_PROPERTY:WEFT_SMALL_FRAMES>>>:-Wframe-larger-than=40960>)
  endif()
endif()
if(WEFT_WERROR)
  target_compile_options(weft_flags INTERFACE -Werror)
endif()
if(WEFT_DEBUG_CHECKS)
  target_compile_definitions(weft_flags INTERFACE WEFT_DEBUG_CHECKS)
endif()

if(WEFT_SANITIZE)
  target_compile_options(weft_flags INTERFACE -fsanitize=${WEFT_SANITIZE} -fno-sanitize-recover=all
    -fno-omit-frame-pointer -O1 -g1)
  target_link_options(weft_flags INTERFACE -fsanitize=${WEFT_SANITIZE})
  if(CMAKE_C_COMPILER_ID MATCHES "Clang") # gcc says by itself which sanitizer it builds for
    foreach(kind ADDRESS THREAD)
      string(TOLOWER ${kind} lower)
      if(WEFT_SANITIZE MATCHES ${lower})
        target_compile_definitions(weft_flags INTERFACE __SANITIZE_${kind}__=1)
      endif()
    endforeach()
  endif()
else()
  # The same bytes wherever it is built. The sanitizers' reports want the real paths instead.
  target_compile_options(weft_flags INTERFACE -fdebug-prefix-map=${CMAKE_CURRENT_SOURCE_DIR}=.)
  # Hardening. Fortify needs optimisation and clashes with the sanitizers' interceptors.
  target_compile_options(weft_flags INTERFACE -fstack-protector-strong -fstack-clash-protection)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    target_compile_options(weft_flags INTERFACE -fcf-protection)
  endif()
  target_compile_options(weft_flags INTERFACE $<$<CONFIG:Release>:-U_FORTIFY_SOURCE>
    $<$<CONFIG:Release>:-D_FORTIFY_SOURCE=2>)
  target_link_options(weft_flags INTERFACE -Wl,-z,relro,-z,now,-z,noexecstack)
endif()

if(WEFT_COVERAGE)
  target_compile_options(weft_flags INTERFACE --coverage -O0 -g)
  target_link_options(weft_flags INTERFACE --coverage)
endif()

if(WEFT_FUZZ)
  if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "WEFT_FUZZ needs clang: configure with -DCMAKE_C_COMPILER=clang")
  endif()
  target_compile_options(weft_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
