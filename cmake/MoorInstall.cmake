# SPDX-License-Identifier: Apache-2.0
# <prefix>/lib/moor/python/ is what the build tree's python/ is: the package with both binaries in it, and its metadata.
# <prefix>/lib/libmoor.so.1 is a link into it, so that a preloaded library finds the package beside its real file.
# In a wheel only the package and the command are installed.

if(SKBUILD)
  install(TARGETS moor LIBRARY DESTINATION moor NAMELINK_SKIP)
  install(TARGETS moor_python LIBRARY DESTINATION moor)
  install(DIRECTORY plugin/python/moor/ DESTINATION moor FILES_MATCHING PATTERN *.py PATTERN *.pyi PATTERN py.typed)
  if(TARGET moor_tool)
    install(TARGETS moor_tool RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR})
  endif()
  return()
endif()

include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/moor/python/moor)
set(cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/moor)

install(TARGETS moor EXPORT moorTargets LIBRARY DESTINATION ${package_dir} NAMELINK_SKIP)
if(TARGET moor_python)
  install(TARGETS moor_python LIBRARY DESTINATION ${package_dir})
  install(DIRECTORY plugin/python/moor/ DESTINATION ${package_dir} FILES_MATCHING PATTERN *.py PATTERN *.pyi PATTERN py.typed)
  install(DIRECTORY ${MOOR_DIST_INFO} DESTINATION ${CMAKE_INSTALL_LIBDIR}/moor/python)
endif()
if(TARGET moor_tool)
  install(TARGETS moor_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/links)
file(CREATE_LINK moor/python/moor/libmoor.so.${MOOR_ABI_MAJOR} ${PROJECT_BINARY_DIR}/links/libmoor.so.${MOOR_ABI_MAJOR} SYMBOLIC)
file(CREATE_LINK libmoor.so.${MOOR_ABI_MAJOR} ${PROJECT_BINARY_DIR}/links/libmoor.so SYMBOLIC)
install(DIRECTORY ${PROJECT_BINARY_DIR}/links/ DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY abi/include/moor DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN *.h)

file(RELATIVE_PATH MOOR_PC_UP "/x/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/x")
configure_file(pkgconfig/moor.pc.in moor.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/moor.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(EXPORT moorTargets NAMESPACE moor:: DESTINATION ${cmake_dir})
configure_package_config_file(cmake/moorConfig.cmake.in moorConfig.cmake INSTALL_DESTINATION ${cmake_dir})
write_basic_package_version_file(moorConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/moorConfig.cmake ${PROJECT_BINARY_DIR}/moorConfigVersion.cmake
  DESTINATION ${cmake_dir})
