# Tests, benchmarks, examples and fuzzers: one program per file.

# Some tests read larger public files, which are not part of the repository, and say so when they skip.
# WEFT_TEST_DATA names their folder, here or in the environment; a */data folder beside the checkout that holds them is
# found by itself.
set(WEFT_TEST_DATA "" CACHE PATH "Folder with tinyshakespeare.txt and the MNIST test files")
if(NOT WEFT_TEST_DATA AND DEFINED ENV{WEFT_TEST_DATA})
  set(WEFT_TEST_DATA $ENV{WEFT_TEST_DATA})
endif()
if(NOT WEFT_TEST_DATA)
  file(GLOB beside ${CMAKE_CURRENT_SOURCE_DIR}/../*/data/tinyshakespeare.txt)
  if(beside)
    list(GET beside 0 first)
    get_filename_component(first ${first} DIRECTORY)
    get_filename_component(WEFT_TEST_DATA ${first} REALPATH)
  endif()
endif()

# What every test finds in its environment.
set(test_environment WEFT_TEST_DATA=${WEFT_TEST_DATA} WEFT_BUILD_DIR=${CMAKE_BINARY_DIR}
  WEFT_BIN=${CMAKE_BINARY_DIR}/weft "CC=${CMAKE_C_COMPILER}"
  UBSAN_OPTIONS=print_stacktrace=1
  TSAN_OPTIONS=suppressions=${CMAKE_CURRENT_SOURCE_DIR}/tools/tsan.supp)
set(test_timeout 900) # of a test alone: some minutes at most; machines are shared
if(WEFT_SANITIZE)
  set(test_timeout 1200)
endif()

function(weft_test_settings name)
  set_tests_properties(${name} PROPERTIES WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}
    ENVIRONMENT "${test_environment}" TIMEOUT ${test_timeout} SKIP_RETURN_CODE 77)
endfunction()

if(WEFT_TESTS)
  find_library(CMOCKA_LIBRARY cmocka)
  find_path(CMOCKA_INCLUDE cmocka.h)
  mark_as_advanced(CMOCKA_LIBRARY CMOCKA_INCLUDE)
  if(NOT CMOCKA_LIBRARY OR NOT CMOCKA_INCLUDE)
    message(STATUS "cmocka is missing (libcmocka-dev): no tests are built")
    set(WEFT_TESTS OFF)
  endif()
endif()
if(WEFT_TESTS)
  enable_testing()
  add_custom_target(tests)
  add_custom_target(threaded_tests)
  # Kernels of processors that this machine need not have, in plain C.
  add_library(weft_emulated STATIC EXCLUDE_FROM_ALL ${WEFT_EMULATED_SOURCES})
  target_include_directories(weft_emulated PUBLIC include PRIVATE src)
  target_link_libraries(weft_emulated PRIVATE weft_flags)
  target_compile_options(weft_emulated PRIVATE -O1 -Wno-psabi -ffp-contract=off)
  # The arithmetic of emulated instructions takes most of the time of these kernels.
  set(emulated_options)
  set(emulated_dot_options -O3)
  if(WEFT_SANITIZE)
    # As for native kernels (gemm.cmake): the undefined-behaviour sanitizer sees the vector kernels in their plain
    # form, and takes clang minutes for each file here. Addresses are checked, but not within instructions.
    list(APPEND emulated_options -g1)
    if(WEFT_SANITIZE MATCHES undefined)
      list(APPEND emulated_options -fno-sanitize=undefined)
    endif()
    list(APPEND emulated_dot_options -fno-sanitize=all)
  endif()
  if(WEFT_FUZZ)
    list(APPEND emulated_options -fno-sanitize=fuzzer-no-link) # no fuzzer runs them
  endif()
  set_source_files_properties(${WEFT_EMULATED_SOURCES} PROPERTIES COMPILE_OPTIONS "${emulated_options}")
  set_source_files_properties(src/backend/cpu/tile/emulated_dot.c PROPERTIES
                              COMPILE_OPTIONS "${emulated_dot_options}")
  file(GLOB test_sources CONFIGURE_DEPENDS tests/*/test_*.c)
  # To optimize a test fully takes longer than it saves, unless it says that it computes much itself. The address
  # sanitizer doubles that: under it, tests of these folders are not optimized at all. They compute in the library.
  set(library_computes "^(session|train|launch|job|infer|interop|data|tokenizer|checkpoint|reshard|exec)$")
  foreach(source ${test_sources})
    get_filename_component(subject ${source} NAME_WE)
    get_filename_component(folder ${source} DIRECTORY)
    get_filename_component(folder ${folder} NAME)
    string(REPLACE "test_" "" subject ${subject})
    set(name ${folder}.${subject})
    add_executable(${name} ${source})
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
    file(STRINGS ${source} computes REGEX "weft-test: computes")
    if(NOT computes AND NOT WEFT_SANITIZE AND NOT WEFT_COVERAGE)
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "$<$<CONFIG:Release>:-O1>")
    elseif(NOT computes AND WEFT_SANITIZE MATCHES address AND folder MATCHES "${library_computes}")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS -O0)
    endif()
    target_include_directories(${name} PRIVATE src tests ${CMOCKA_INCLUDE} ${WEFT_DEP_INCLUDES})
    if(folder STREQUAL backend OR name STREQUAL session.tiers)
      target_link_libraries(${name} PRIVATE weft_emulated)
    endif()
    target_link_libraries(${name} PRIVATE weft ${CMOCKA_LIBRARY} m weft_flags)
    weft_link_fast(${name})
    file(STRINGS ${source} wraps_malloc REGEX "weft-test: wraps malloc")
    if(wraps_malloc)
      target_link_options(${name} PRIVATE
        -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=free)
    endif()
    add_dependencies(tests ${name})
    add_test(NAME ${name} COMMAND ${name})
    weft_test_settings(${name})
    # Tests that start threads run under the thread sanitizer too; those of these folders that start
    # none say so.
    file(STRINGS ${source} threaded REGEX "wefti_pool_create|pthread_create|weft-test: threads")
    file(STRINGS ${source} unthreaded REGEX "weft-test: no threads")
    if(threaded OR (folder MATCHES "^(exec|data|tokenizer|session|job|interop|infer|train)$" AND NOT unthreaded))
      set_tests_properties(${name} PROPERTIES LABELS threads)
      add_dependencies(threaded_tests ${name})
    endif()
  endforeach()
  # Once more with a device whose memory dies of any access by the host (src/device/fenced.c). These
  # tests finish within seconds; WEFT_DEVICE=fenced in the environment of ctest runs all of them so.
  set(fenced_tests
    comm.collective comm.calls comm.halos comm.conformance_local comm.host comm.host_roads comm.local comm.rounds_conformance
    exec.homes exec.routine exec.spaces exec.streams exec.workers
    program.parameter_slices
    session.additions session.arena session.by_hand session.collectives session.devices session.experts session.graphs
    session.halo session.large_rows
    session.limits session.masks session.misuse session.moves session.overlap session.places session.random_places session.replicas session.rows session.rows_tiers session.session session.stages session.tiers session.world session.world_failures
    session.under_way session.updates infer.generate infer.generate_tiers train.run train.run_devices train.run_metrics)
  foreach(name ${fenced_tests})
    add_test(NAME fenced.${name} COMMAND ${name})
    weft_test_settings(fenced.${name})
    set_property(TEST fenced.${name} APPEND PROPERTY ENVIRONMENT WEFT_DEVICE=fenced)
    set_property(TEST fenced.${name} PROPERTY LABELS fenced)
  endforeach()
  set(fenced_scripts comm.conformance_processes)
  # Run by whatever starts processes: launchers' tests, and people with a network of their own.
  add_executable(weft-conformance tests/comm/conformance_main.c)
  target_include_directories(weft-conformance PRIVATE src tests ${WEFT_DEP_INCLUDES})
  target_link_libraries(weft-conformance PRIVATE weft m weft_flags)
  add_dependencies(tests weft-conformance)
  add_executable(weft-slow-link tests/comm/slow_link_main.c)
  target_link_libraries(weft-slow-link PRIVATE weft_flags)
  add_dependencies(tests weft-slow-link)
  add_dependencies(threaded_tests weft-slow-link)
  add_executable(weft-hostile tests/launch/hostile_main.c)
  target_include_directories(weft-hostile PRIVATE src ${WEFT_DEP_INCLUDES})
  target_link_libraries(weft-hostile PRIVATE weft weft_flags)
  add_executable(weft-mend tests/launch/mend_main.c)
  target_include_directories(weft-mend PRIVATE src ${WEFT_DEP_INCLUDES})
  target_link_libraries(weft-mend PRIVATE weft weft_flags)
  # Preloaded by scripts.
  add_library(weft-late-connect MODULE tests/launch/late_connect.c)
  add_library(weft-hang-disk MODULE tests/cli/hang_disk.c)
  foreach(name weft-late-connect weft-hang-disk)
    set_target_properties(${name} PROPERTIES PREFIX "")
    target_link_libraries(${name} PRIVATE weft_flags)
  endforeach()
  add_dependencies(tests weft-hostile weft-mend weft-late-connect weft-hang-disk)
  file(GLOB test_scripts CONFIGURE_DEPENDS tests/*/test_*.sh)
  foreach(script ${test_scripts})
    get_filename_component(subject ${script} NAME_WE)
    get_filename_component(folder ${script} DIRECTORY)
    get_filename_component(folder ${folder} NAME)
    string(REPLACE "test_" "" subject ${subject})
    add_test(NAME ${folder}.${subject} COMMAND sh ${script})
    weft_test_settings(${folder}.${subject})
    set_tests_properties(${folder}.${subject} PROPERTIES LABELS script)
    if(${folder}.${subject} IN_LIST fenced_scripts)
      add_test(NAME fenced.${folder}.${subject} COMMAND sh ${script})
      weft_test_settings(fenced.${folder}.${subject})
      set_property(TEST fenced.${folder}.${subject} APPEND PROPERTY ENVIRONMENT WEFT_DEVICE=fenced)
      set_property(TEST fenced.${folder}.${subject} PROPERTY LABELS fenced script)
    endif()
  endforeach()
  file(STRINGS tests/labels.txt labelled REGEX "^[a-z]")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS tests/labels.txt)
  foreach(line ${labelled})
    string(REPLACE " " ";" words "${line}")
    list(POP_FRONT words label)
    foreach(name ${words})
      set_property(TEST ${name} APPEND PROPERTY LABELS ${label})
      if(label STREQUAL long)
        set_property(TEST ${name} PROPERTY COST 100) # they begin first, so that nothing waits for them at the end
      elseif(label STREQUAL timed)
        set_property(TEST ${name} PROPERTY RUN_SERIAL TRUE)
      endif()
    endforeach()
  endforeach()
endif()

# `bench` and `examples` are built by name only; benchmarks also where tests are, without sanitizers,
# since tests/bench runs each of them.
add_custom_target(bench)
set(bench_by_name_only ON)
if(WEFT_TESTS AND NOT WEFT_SANITIZE)
  set(bench_by_name_only OFF)
endif()
file(GLOB bench_sources CONFIGURE_DEPENDS bench/*.c)
foreach(source ${bench_sources})
  get_filename_component(name ${source} NAME_WE)
  file(GLOB parts CONFIGURE_DEPENDS bench/${name}/*.c) # of a benchmark with several files
  add_executable(bench_${name} ${source} ${parts})
  set_target_properties(bench_${name} PROPERTIES EXCLUDE_FROM_ALL ${bench_by_name_only})
  set_target_properties(bench_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench
    OUTPUT_NAME ${name})
  target_include_directories(bench_${name} PRIVATE src ${WEFT_DEP_INCLUDES})
  target_link_libraries(bench_${name} PRIVATE weft ${WEFT_DEP_LIBRARIES} m weft_flags)
  weft_link_fast(bench_${name})
  add_dependencies(bench bench_${name})
endforeach()
target_compile_definitions(bench_published PRIVATE
  PUBLISHED_PROFILES="${CMAKE_CURRENT_SOURCE_DIR}/bench/published/profiles.json")

add_custom_target(examples)
file(GLOB example_sources CONFIGURE_DEPENDS examples/*.c)
list(FILTER example_sources EXCLUDE REGEX "/mpi_") # by mpicc: WeftMpi.cmake
foreach(source ${example_sources})
  get_filename_component(name ${source} NAME_WE)
  add_executable(example_${name} EXCLUDE_FROM_ALL ${source})
  set_target_properties(example_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/examples
    OUTPUT_NAME ${name})
  target_link_libraries(example_${name} PRIVATE weft weft_flags)
  add_dependencies(examples example_${name})
endforeach()
if(WEFT_TESTS)
  add_dependencies(tests example_manual_parallel) # tests/cli/test_manual_parallel.sh runs it
  add_dependencies(tests example_recovery) # tests/session/test_recovery_program.sh
  set_target_properties(example_manual_parallel example_recovery PROPERTIES EXCLUDE_FROM_ALL FALSE)
endif()
if(TARGET mpi_examples)
  add_dependencies(examples mpi_examples)
endif()

if(WEFT_FUZZ)
  file(GLOB fuzz_sources CONFIGURE_DEPENDS fuzz/fuzz_*.c)
  foreach(source ${fuzz_sources})
    get_filename_component(name ${source} NAME_WE)
    add_executable(${name} ${source})
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
    target_include_directories(${name} PRIVATE src ${WEFT_DEP_INCLUDES})
    target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    target_link_libraries(${name} PRIVATE weft weft_flags)
  endforeach()
endif()
