# SPDX-License-Identifier: Apache-2.0
# _moor.abi3.so, the CPython face: the limited API of 3.11 (the first with buffers), and no symbol that 3.10 lacks, so
# that one file loads on 3.10–3.14. Any CPython ≥ 3.11 that has its headers will do for the build.

file(GLOB moor_python_sources CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/plugin/python/*.c ${PROJECT_SOURCE_DIR}/hooks/engine/*.c)

# Metadata beside the package, so that PYTHONPATH=<build>/python also brings the entry points of pyproject.toml.
set(MOOR_DIST_INFO ${PROJECT_BINARY_DIR}/python/libmoor-${PROJECT_VERSION}.dist-info)
file(CONFIGURE OUTPUT ${MOOR_DIST_INFO}/METADATA CONTENT
  "Metadata-Version: 2.1\nName: libmoor\nVersion: @PROJECT_VERSION@\n")
file(CONFIGURE OUTPUT ${MOOR_DIST_INFO}/entry_points.txt CONTENT
  "[vllm.general_plugins]\nmoor = moor.plugin:vllm\n\n[sglang.srt.plugins]\nmoor = moor.plugin:sglang\n")

# The package's Python files, beside the binaries in the build tree.
file(GLOB moor_python_files CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/plugin/python
  ${PROJECT_SOURCE_DIR}/plugin/python/moor/*.py ${PROJECT_SOURCE_DIR}/plugin/python/moor/*.pyi
  ${PROJECT_SOURCE_DIR}/plugin/python/moor/py.typed)
set(moor_python_copies)
foreach(file IN LISTS moor_python_files)
  add_custom_command(OUTPUT ${PROJECT_BINARY_DIR}/python/${file}
    COMMAND ${CMAKE_COMMAND} -E copy ${PROJECT_SOURCE_DIR}/plugin/python/${file} ${PROJECT_BINARY_DIR}/python/${file}
    DEPENDS ${PROJECT_SOURCE_DIR}/plugin/python/${file} VERBATIM)
  list(APPEND moor_python_copies ${PROJECT_BINARY_DIR}/python/${file})
endforeach()
add_custom_target(moor_package ALL DEPENDS ${moor_python_copies})

if(NOT moor_python_sources)
  return()
endif()

find_package(Python3 3.11 COMPONENTS Interpreter Development.Module REQUIRED)

add_library(moor_python MODULE ${moor_python_sources})
moor_own_code(moor_python)
add_dependencies(moor_python moor_package)
set_target_properties(moor_python PROPERTIES
  PREFIX "" OUTPUT_NAME "_moor" SUFFIX ".abi3.so"
  LIBRARY_OUTPUT_DIRECTORY ${MOOR_PACKAGE_DIR}
  BUILD_RPATH_USE_ORIGIN ON BUILD_RPATH "$ORIGIN" INSTALL_RPATH "$ORIGIN" BUILD_WITH_INSTALL_RPATH ON)
target_compile_definitions(moor_python PRIVATE Py_LIMITED_API=0x030B0000 PY_SSIZE_T_CLEAN)
target_include_directories(moor_python PRIVATE ${PROJECT_SOURCE_DIR})
target_include_directories(moor_python SYSTEM PRIVATE ${Python3_INCLUDE_DIRS})
# PyInit__moor is declared by no header.
target_compile_options(moor_python PRIVATE -Wno-missing-prototypes)
target_link_libraries(moor_python PRIVATE moor)
moor_version_script(moor_python ${PROJECT_SOURCE_DIR}/abi/_moor.map)
target_link_options(moor_python PRIVATE LINKER:-z,nodelete)
