# SPDX-License-Identifier: Apache-2.0
# Private, static, hidden: jemalloc (moor::jemalloc) and jansson (moor::jansson); scripts/third-party says where their
# sources come from and keeps the results for the next build directory. They are never sanitized.
# Header only, from the system: uthash, xxHash (XXH_INLINE_ALL).

include(ExternalProject)
set(MOOR_JEMALLOC_SOURCE "" CACHE PATH "jemalloc 5.3 source, a tar file or a folder (default: see scripts/third-party)")
set(MOOR_JANSSON_SOURCE "" CACHE PATH "jansson 2.14 source, a tar file or a folder (default: see scripts/third-party)")

function(moor_third_party name)
  string(TOUPPER ${name} upper)
  set(dest ${PROJECT_BINARY_DIR}/third-party/${name})
  ExternalProject_Add(moor_${name}
    PREFIX ${dest}/stamps
    DOWNLOAD_COMMAND "" CONFIGURE_COMMAND "" INSTALL_COMMAND ""
    BUILD_COMMAND ${PROJECT_SOURCE_DIR}/scripts/third-party ${name} ${dest} ${MOOR_${upper}_SOURCE}
    BUILD_BYPRODUCTS ${dest}/lib/lib${name}.a
    USES_TERMINAL_BUILD ON)
  file(MAKE_DIRECTORY ${dest}/include)
  add_library(moor::${name} STATIC IMPORTED GLOBAL)
  add_dependencies(moor::${name} moor_${name})
  set_target_properties(moor::${name} PROPERTIES
    IMPORTED_LOCATION ${dest}/lib/lib${name}.a
    INTERFACE_INCLUDE_DIRECTORIES ${dest}/include)
endfunction()

moor_third_party(jemalloc)
moor_third_party(jansson)

find_path(MOOR_UTHASH_INCLUDE uthash.h REQUIRED)
find_path(MOOR_XXHASH_INCLUDE xxhash.h REQUIRED)
