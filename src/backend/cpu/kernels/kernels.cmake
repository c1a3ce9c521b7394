# The vectorised kernels: every file of src/backend/cpu/kernels/vector/ is compiled once per instruction set, through
# a one-line file in the build directory that sets WEFTI_ISA_<NAME> and includes it. Chosen at run time (isa.h).
set(WEFT_KERNEL_ISAS plain)
set(level -O3)
if(WEFT_SANITIZE)
  set(level -O1) # as in gemm.cmake
endif()
set(WEFT_KERNEL_FLAGS_plain ${level})
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  list(APPEND WEFT_KERNEL_ISAS avx2 avx512)
  set(WEFT_KERNEL_FLAGS_avx2 ${level} -mavx2 -mfma)
  if(WEFT_SANITIZE MATCHES undefined)
    list(APPEND WEFT_KERNEL_FLAGS_avx2 -fno-sanitize=undefined) # it sees the plain form
  endif()
  set(WEFT_KERNEL_FLAGS_avx512 ${WEFT_KERNEL_FLAGS_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl
      -mprefer-vector-width=512)
endif()
file(GLOB WEFT_KERNEL_SOURCES CONFIGURE_DEPENDS src/backend/cpu/kernels/vector/*.c)
list(FILTER WEFT_SOURCES EXCLUDE REGEX "/src/backend/cpu/kernels/vector/")
foreach(isa ${WEFT_KERNEL_ISAS})
  string(TOUPPER ${isa} ISA)
  foreach(source ${WEFT_KERNEL_SOURCES})
    get_filename_component(name ${source} NAME_WE)
    set(generated ${CMAKE_BINARY_DIR}/kernels/${name}_${isa}.c)
    file(WRITE ${generated}.new
         "#define WEFTI_BUILD_${ISA} 1\n#include \"backend/cpu/kernels/vector/${name}.c\"\n")
    configure_file(${generated}.new ${generated} COPYONLY)
    set_source_files_properties(${generated} PROPERTIES COMPILE_OPTIONS
                                "${WEFT_KERNEL_FLAGS_${isa}}")
    list(APPEND WEFT_SOURCES ${generated})
  endforeach()
endforeach()

# In plain C, for tests: see src/backend/cpu/emulated.h.
foreach(isa avx2 avx512)
  string(TOUPPER ${isa} ISA)
  foreach(source ${WEFT_KERNEL_SOURCES})
    get_filename_component(name ${source} NAME_WE)
    set(generated ${CMAKE_BINARY_DIR}/emulated/kernels_${name}_${isa}.c)
    file(WRITE ${generated}.new
         "#define WEFTI_EMULATED 1\n#define WEFTI_BUILD_${ISA} 1\n#include \"backend/cpu/kernels/vector/${name}.c\"\n")
    configure_file(${generated}.new ${generated} COPYONLY)
    list(APPEND WEFT_EMULATED_SOURCES ${generated})
  endforeach()
endforeach()
