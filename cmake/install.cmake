# SPDX-License-Identifier: MIT
# Installation: headers, both libraries, program, man page, pkg-config file, CMake package. Everything is found relative
# to the installed files themselves, so a prefix may be chosen at install time (cmake --install --prefix) and moved.
include(CMakePackageConfigHelpers)

# What users get; the tests are not part of it.
add_custom_target(deeppcr_product)
add_dependencies(deeppcr_product deeppcr deeppcr_static)
if(TARGET deeppcr_cuda AND NOT cuda_by_test)
  add_dependencies(deeppcr_product deeppcr_cuda)
  install(TARGETS deeppcr_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cuda)
endif()
if(TARGET deeppcr_program)
  add_dependencies(deeppcr_product deeppcr_program)
  install(TARGETS deeppcr_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
  if(TARGET deeppcr_mpi)
    install(TARGETS deeppcr_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT program)
  endif()
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/deeppcr)
set_target_properties(deeppcr_static PROPERTIES EXPORT_NAME static)
# Two export sets, for the shared library needs none of the packages that a static link needs.
install(TARGETS deeppcr EXPORT deeppcrSharedTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library)
install(TARGETS deeppcr_static EXPORT deeppcrStaticTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library)
foreach(kind Shared Static)
  install(EXPORT deeppcr${kind}Targets NAMESPACE deeppcr:: DESTINATION ${package_dir} COMPONENT library)
endforeach()
install(DIRECTORY include/deeppcr DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT library FILES_MATCHING PATTERN "*.h")
install(FILES docs/man/deeppcr.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT program)
# Not CMAKE_INSTALL_DOCDIR, which inside another project is that one's.
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/deeppcr COMPONENT library)

configure_package_config_file(cmake/deeppcrConfig.cmake.in ${PROJECT_BINARY_DIR}/deeppcrConfig.cmake
  INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/deeppcrConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/deeppcrConfig.cmake ${PROJECT_BINARY_DIR}/deeppcrConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT library)

# pkg-config: the prefix is where the file lies, up as many folders as it lies below the prefix.
set(pc_prefix ${CMAKE_INSTALL_PREFIX})
set(pc_libdir ${CMAKE_INSTALL_FULL_LIBDIR})
set(pc_includedir ${CMAKE_INSTALL_FULL_INCLUDEDIR})
if(NOT IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR} AND NOT IS_ABSOLUTE ${CMAKE_INSTALL_INCLUDEDIR})
  file(RELATIVE_PATH up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  string(REGEX REPLACE "/$" "" up "${up}")
  set(pc_prefix "\${pcfiledir}/${up}")
  set(pc_libdir "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
  set(pc_includedir "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
configure_file(cmake/deeppcr.pc.in ${PROJECT_BINARY_DIR}/deeppcr.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/deeppcr.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT library)
