# SPDX-License-Identifier: Apache-2.0
# How this project's own code is compiled: moor_own_code(TARGET).

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_package(Threads REQUIRED)

set(moor_sanitize_flags)
if(MOOR_SANITIZE STREQUAL "address")
  set(moor_sanitize_flags -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
elseif(MOOR_SANITIZE STREQUAL "thread")
  set(moor_sanitize_flags -fsanitize=thread -fno-omit-frame-pointer)
elseif(MOOR_SANITIZE)
  message(FATAL_ERROR "MOOR_SANITIZE is \"${MOOR_SANITIZE}\": it must be empty, address or thread")
endif()

function(moor_own_code target)
  set_target_properties(${target} PROPERTIES
    C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS ON
    C_VISIBILITY_PRESET hidden POSITION_INDEPENDENT_CODE ON)
  target_compile_definitions(${target} PRIVATE _GNU_SOURCE XXH_INLINE_ALL)
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla $<$<BOOL:${MOOR_WERROR}>:-Werror>
    ${moor_sanitize_flags})
  target_link_options(${target} PRIVATE ${moor_sanitize_flags} -Wl,-z,relro,-z,now)
endfunction()

# moor_version_script(TARGET FILE): only what FILE names is exported; a changed FILE relinks.
function(moor_version_script target file)
  target_link_options(${target} PRIVATE LINKER:--version-script=${file})
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${file})
endfunction()
