# SPDX-License-Identifier: Apache-2.0
# libmoor.so.1. In the build tree it lies in python/moor, beside the package, as the loader expects it
# (PYTHONPATH=<build>/python just works).

set(MOOR_PACKAGE_DIR ${PROJECT_BINARY_DIR}/python/moor)

# All of it comes from moor_core; CMake wants one source of its own.
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/empty.c CONTENT "/* libmoor is moor_core */\n")
add_library(moor SHARED ${PROJECT_BINARY_DIR}/empty.c)
add_library(moor::moor ALIAS moor)
moor_own_code(moor)
set_target_properties(moor PROPERTIES
  LINKER_LANGUAGE C
  VERSION ${MOOR_ABI_MAJOR} SOVERSION ${MOOR_ABI_MAJOR}
  LIBRARY_OUTPUT_DIRECTORY ${MOOR_PACKAGE_DIR})
target_link_libraries(moor PRIVATE $<LINK_LIBRARY:WHOLE_ARCHIVE,moor_core>)
target_include_directories(moor INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/abi/include>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
moor_version_script(moor ${PROJECT_SOURCE_DIR}/abi/moor.map)
# nodelete: threads and hooks of ours may outlive a dlclose.
target_link_options(moor PRIVATE LINKER:-z,nodelete)
if(NOT MOOR_SANITIZE)
  target_link_options(moor PRIVATE LINKER:-z,defs)
endif()
