# MPI. libweft is linked to none, since Open MPI and MPICH have binary interfaces of their own: programs that use
# MPI compile include/weft/mpi.h with their own mpicc. For the `weft` command there is a module for each MPI that is
# found here (modules/mpi.c), compiled by its mpicc and loaded at run time; without one, all else works, and under
# that MPI's mpirun weft says what is missing.
set(WEFT_MPI AUTO CACHE STRING "Modules for MPI: AUTO, ON (at least one) or OFF")
set_property(CACHE WEFT_MPI PROPERTY STRINGS AUTO ON OFF)
if(NOT "${WEFT_MPI}" MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "WEFT_MPI is '${WEFT_MPI}'; it must be AUTO, ON or OFF")
endif()
set(WEFT_MPI_MODULES "")
file(RELATIVE_PATH library_dir "${CMAKE_INSTALL_PREFIX}" "${CMAKE_INSTALL_FULL_LIBDIR}")
set_property(SOURCE src/launch/join/mpi_module.c APPEND PROPERTY COMPILE_DEFINITIONS
  WEFT_LIBRARY_DIR="${library_dir}")

set(mpi_module_flags -std=c17 -O2 -g1 -fPIC -shared -fvisibility=hidden -D_GNU_SOURCE -pthread -Wall -Wextra -Wl,-z,relro,-z,now
  -fdebug-prefix-map=${CMAKE_CURRENT_SOURCE_DIR}=.)
if(WEFT_WERROR)
  list(APPEND mpi_module_flags -Werror)
endif()

# weft_mpi_module(flavour text mpicc)
function(weft_mpi_module flavour text compiler)
  set(module ${CMAKE_BINARY_DIR}/weft-${flavour}.so)
  file(GLOB headers CONFIGURE_DEPENDS include/weft/*.h)
  add_custom_command(OUTPUT ${module}
    COMMAND ${CMAKE_COMMAND} -E env OMPI_CC=${CMAKE_C_COMPILER} MPICH_CC=${CMAKE_C_COMPILER}
      ${compiler} ${mpi_module_flags} -I${CMAKE_CURRENT_SOURCE_DIR}/include
      ${CMAKE_CURRENT_SOURCE_DIR}/modules/mpi.c -o ${module}
    DEPENDS modules/mpi.c ${headers} COMMENT "Building weft-${flavour}.so with ${compiler}" VERBATIM)
  set(WEFT_MPI_MODULES ${WEFT_MPI_MODULES} ${module} PARENT_SCOPE)
  string(TOUPPER ${flavour} name)
  set_property(SOURCE src/measure/info.c APPEND PROPERTY COMPILE_DEFINITIONS WEFT_HAVE_${name}_MODULE=1)
  message(STATUS "Module for ${text} (weft under its mpirun): ${compiler}")
endfunction()

if(WEFT_MPI STREQUAL "OFF")
  message(STATUS "Modules for MPI (weft under mpirun): OFF")
else()
  find_program(WEFT_MPICC_OPENMPI mpicc.openmpi)
  find_program(WEFT_MPICC_MPICH mpicc.mpich)
  find_program(WEFT_MPICC mpicc)
  mark_as_advanced(WEFT_MPICC_OPENMPI WEFT_MPICC_MPICH WEFT_MPICC)
  # Whose is the one without a surname?
  if(WEFT_MPICC AND NOT (WEFT_MPICC_OPENMPI AND WEFT_MPICC_MPICH))
    file(WRITE ${CMAKE_BINARY_DIR}/which_mpi.c
      "#include <mpi.h>\n#ifdef OPEN_MPI\nthis_is_openmpi\n#elif defined(MPICH_VERSION)\nthis_is_mpich\n#endif\n")
    execute_process(COMMAND ${WEFT_MPICC} -E ${CMAKE_BINARY_DIR}/which_mpi.c
      OUTPUT_VARIABLE which_mpi ERROR_QUIET)
    if(which_mpi MATCHES "this_is_openmpi" AND NOT WEFT_MPICC_OPENMPI)
      set(WEFT_MPICC_OPENMPI ${WEFT_MPICC})
    elseif(which_mpi MATCHES "this_is_mpich" AND NOT WEFT_MPICC_MPICH)
      set(WEFT_MPICC_MPICH ${WEFT_MPICC})
    endif()
  endif()
  foreach(row "openmpi;Open MPI;${WEFT_MPICC_OPENMPI}" "mpich;MPICH;${WEFT_MPICC_MPICH}")
    list(GET row 0 flavour)
    list(GET row 1 text)
    list(GET row 2 compiler)
    if(compiler)
      weft_mpi_module(${flavour} ${text} ${compiler})
    else()
      message(STATUS "Module for ${text} (weft under its mpirun): OFF, its mpicc is missing")
    endif()
  endforeach()
  if(WEFT_MPI STREQUAL "ON" AND NOT WEFT_MPI_MODULES)
    message(FATAL_ERROR "WEFT_MPI=ON, but there is no mpicc: install libopenmpi-dev or libmpich-dev")
  endif()
endif()

if(WEFT_MPI_MODULES)
  add_custom_target(weft_mpi_modules ALL DEPENDS ${WEFT_MPI_MODULES})
  if(TARGET weft_cli)
    add_dependencies(weft_cli weft_mpi_modules) # so that it comes with the command
  endif()
  install(FILES ${WEFT_MPI_MODULES} DESTINATION ${CMAKE_INSTALL_LIBDIR}/weft
    PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
endif()

# Examples that need MPI, by the first mpicc that was found: with `examples`, by name only.
if(WEFT_MPI_MODULES)
  if(WEFT_MPICC_OPENMPI)
    set(mpi_example_compiler ${WEFT_MPICC_OPENMPI})
  else()
    set(mpi_example_compiler ${WEFT_MPICC_MPICH})
  endif()
  separate_arguments(mpi_example_libraries UNIX_COMMAND "${WEFT_DEP_LINK}")
  set(mpi_examples "")
  file(GLOB mpi_example_sources CONFIGURE_DEPENDS examples/mpi_*.c)
  foreach(source ${mpi_example_sources})
    get_filename_component(name ${source} NAME_WE)
    add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/examples/${name}
      COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/examples
      COMMAND ${CMAKE_COMMAND} -E env OMPI_CC=${CMAKE_C_COMPILER} MPICH_CC=${CMAKE_C_COMPILER}
        ${mpi_example_compiler} -std=c17 -O2 -Wall -Wextra -I${CMAKE_CURRENT_SOURCE_DIR}/include ${source}
        $<TARGET_FILE:weft> ${mpi_example_libraries} -lpthread -lm -o ${CMAKE_BINARY_DIR}/examples/${name}
      DEPENDS ${source} weft VERBATIM)
    list(APPEND mpi_examples ${CMAKE_BINARY_DIR}/examples/${name})
  endforeach()
  add_custom_target(mpi_examples DEPENDS ${mpi_examples})
endif()

# The Fortran module and what it stands on, as sources: .mod files are of one compiler's version.
install(DIRECTORY fortran/ DESTINATION ${CMAKE_INSTALL_DATADIR}/weft/fortran
  FILES_MATCHING PATTERN "*.f90" PATTERN "*.inc" PATTERN "*.[ch]")
