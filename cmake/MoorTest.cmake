# SPDX-License-Identifier: Apache-2.0
# moor_unit_test(NAME files… [LABELS …] [LIBS …] [TIMEOUT s])   a cmocka program linked with moor_core
# moor_test(NAME COMMAND … [LABELS …] [TIMEOUT s] [ENV …] [CORES n])   any other test (default label: integration);
#                       beside others while their cores, 1 unless said, fit into ctest's -j; SERIAL: beside nothing
# Exit code 77 = skipped, with the reason as the last line that the test prints.

find_library(MOOR_CMOCKA_LIBRARY cmocka REQUIRED)
find_path(MOOR_CMOCKA_INCLUDE cmocka.h REQUIRED)

# What a Python (or any foreign program) must preload before it can load our sanitized libraries.
set(MOOR_SAN_PRELOAD "")
if(MOOR_SANITIZE)
  set(_lib libasan.so)
  if(MOOR_SANITIZE STREQUAL "thread")
    set(_lib libtsan.so)
  endif()
  execute_process(COMMAND ${CMAKE_C_COMPILER} -print-file-name=${_lib}
    OUTPUT_VARIABLE _path OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(IS_ABSOLUTE "${_path}")
    file(REAL_PATH "${_path}" MOOR_SAN_PRELOAD)
  endif()
endif()

# detect_deadlocks=0: at a fork jemalloc takes all its mutexes, more than the 64 at which ThreadSanitizer's detector gives up
# and ends the process. Races are still found.
set(moor_test_env
  MOOR_SOURCE_DIR=${PROJECT_SOURCE_DIR}
  MOOR_BUILD_DIR=${PROJECT_BINARY_DIR}
  MOOR_SANITIZE=${MOOR_SANITIZE}
  MOOR_SAN_PRELOAD=${MOOR_SAN_PRELOAD}
  MOOR_CC=${CMAKE_C_COMPILER}
  PYTHONPATH=${PROJECT_BINARY_DIR}/python
  ASAN_OPTIONS=detect_leaks=1:abort_on_error=0:strict_string_checks=1
  UBSAN_OPTIONS=print_stacktrace=1
  TSAN_OPTIONS=halt_on_error=1:detect_deadlocks=0)

function(_moor_test_properties name default_label)
  if(NOT ARG_LABELS)
    set(ARG_LABELS ${default_label})
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(MOOR_SANITIZE)
    math(EXPR ARG_TIMEOUT "3 * ${ARG_TIMEOUT}") # it ends what hangs; what is slow on a busy machine has not failed
  endif()
  set_tests_properties(${name} PROPERTIES
    LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} SKIP_RETURN_CODE 77
    ENVIRONMENT "${moor_test_env};${ARG_ENV}")
  if(ARG_CORES)
    set_tests_properties(${name} PROPERTIES PROCESSORS ${ARG_CORES})
  endif()
  if(ARG_SERIAL)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()

function(moor_unit_test name)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "SERIAL" "TIMEOUT" "LABELS;LIBS;ENV")
  add_executable(${name} ${ARG_UNPARSED_ARGUMENTS})
  moor_own_code(${name})
  target_compile_options(${name} PRIVATE -UNDEBUG)
  target_include_directories(${name} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  target_include_directories(${name} SYSTEM PRIVATE ${MOOR_CMOCKA_INCLUDE})
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} moor_core ${MOOR_CMOCKA_LIBRARY})
  add_test(NAME ${name} COMMAND ${name})
  _moor_test_properties(${name} unit)
endfunction()

function(moor_test name)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "SERIAL" "TIMEOUT;CORES" "LABELS;COMMAND;ENV")
  add_test(NAME ${name} COMMAND ${ARG_COMMAND})
  _moor_test_properties(${name} integration)
endfunction()
