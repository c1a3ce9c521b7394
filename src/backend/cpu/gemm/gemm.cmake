# Vector forms of the matrix kernels: each file is compiled for its own instructions and chosen at run time (isa.h).
# Contraction is allowed in these files: a * b + c written on vectors is meant as one fused operation.
set(WEFT_KERNEL_OPTIONS -O3 -ffp-contract=fast)
if(WEFT_SANITIZE)
  # Register tiles unrolled by hand take clang many minutes under the undefined-behaviour sanitizer.
  set(WEFT_KERNEL_OPTIONS -O1 -ffp-contract=fast)
  if(WEFT_SANITIZE MATCHES undefined)
    list(APPEND WEFT_KERNEL_OPTIONS -fno-sanitize=undefined)
  endif()
endif()
set(WEFT_AVX2_FILES gemm/avx2 gemm/avx2_narrow)
set(WEFT_AVX512_FILES gemm/avx512)
set(WEFT_AVX512_BF16_FILES gemm/avx512_bf16)
set(WEFT_AMX_FILES gemm/amx gemm/amx_f32 attention/amx_forward attention/amx_backward)
set(WEFT_AVX2_OPTIONS -mavx2 -mfma -mf16c)
set(WEFT_AVX512_OPTIONS -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mprefer-vector-width=512)
set(WEFT_AVX512_BF16_OPTIONS ${WEFT_AVX512_OPTIONS} -mavx512bf16)
set(WEFT_AMX_OPTIONS ${WEFT_AVX512_BF16_OPTIONS} -mamx-tile -mamx-bf16)

set_source_files_properties(src/backend/cpu/gemm/plain.c PROPERTIES COMPILE_OPTIONS "${WEFT_KERNEL_OPTIONS}")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  foreach(form AVX2 AVX512 AVX512_BF16 AMX)
    foreach(file ${WEFT_${form}_FILES})
      set_source_files_properties(src/backend/cpu/${file}.c PROPERTIES COMPILE_OPTIONS
                                  "${WEFT_KERNEL_OPTIONS};${WEFT_${form}_OPTIONS}")
    endforeach()
  endforeach()
endif()

# The same files in plain C, for tests: see src/backend/cpu/emulated.h. Each is compiled through a file in the build
# directory that sets WEFTI_EMULATED and includes it.
list(FILTER WEFT_SOURCES EXCLUDE REGEX "/src/backend/cpu/(tile|gemm|kernels)/emulated(_dot)?.c$")
set(WEFT_EMULATED_SOURCES)
foreach(folder gemm kernels tile)
  list(APPEND WEFT_EMULATED_SOURCES src/backend/cpu/${folder}/emulated.c)
endforeach()
list(APPEND WEFT_EMULATED_SOURCES src/backend/cpu/tile/emulated_dot.c)
foreach(file ${WEFT_AVX2_FILES} ${WEFT_AVX512_FILES} ${WEFT_AVX512_BF16_FILES} ${WEFT_AMX_FILES})
  string(REPLACE "/" "_" name ${file})
  set(generated ${CMAKE_BINARY_DIR}/emulated/${name}.c)
  file(WRITE ${generated}.new "#define WEFTI_EMULATED 1\n#include \"backend/cpu/${file}.c\"\n")
  configure_file(${generated}.new ${generated} COPYONLY)
  list(APPEND WEFT_EMULATED_SOURCES ${generated})
endforeach()
