# Vector forms of the kernels: each file is compiled for its own instructions and chosen at run time (isa.h).
# Contraction is allowed in these files: a * b + c written on vectors is meant as one fused operation.
set(WEFT_KERNEL_OPTIONS -O3 -ffp-contract=fast)
if(WEFT_SANITIZE)
  # Register tiles unrolled by hand take clang many minutes under the undefined-behaviour sanitizer.
  set(WEFT_KERNEL_OPTIONS -O1 -ffp-contract=fast)
  if(WEFT_SANITIZE MATCHES undefined)
    list(APPEND WEFT_KERNEL_OPTIONS -fno-sanitize=undefined)
  endif()
endif()
set_source_files_properties(src/backend/cpu/gemm/plain.c PROPERTIES COMPILE_OPTIONS
                            "${WEFT_KERNEL_OPTIONS}")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set_source_files_properties(
    src/backend/cpu/gemm/avx2.c src/backend/cpu/gemm/avx2_narrow.c
    PROPERTIES COMPILE_OPTIONS "${WEFT_KERNEL_OPTIONS};-mavx2;-mfma;-mf16c")
  set_source_files_properties(
    src/backend/cpu/gemm/avx512.c
    PROPERTIES COMPILE_OPTIONS
               "${WEFT_KERNEL_OPTIONS};-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mfma;-mprefer-vector-width=512"
  )
  set_source_files_properties(
    src/backend/cpu/gemm/avx512_bf16.c
    PROPERTIES
      COMPILE_OPTIONS
      "${WEFT_KERNEL_OPTIONS};-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx512bf16;-mfma;-mprefer-vector-width=512"
  )
  set_source_files_properties(
    src/backend/cpu/gemm/amx.c src/backend/cpu/gemm/amx_f32.c src/backend/cpu/attention/amx.c
    PROPERTIES
      COMPILE_OPTIONS
      "${WEFT_KERNEL_OPTIONS};-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx512bf16;-mamx-tile;-mamx-bf16;-mfma;-mprefer-vector-width=512"
  )
endif()
