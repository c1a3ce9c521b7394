# Installation: headers, libraries, weft.pc and the CMake package. Everything in it is relative to where the
# files lie, so an installed tree may be moved.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/weft)

install(DIRECTORY include/weft DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
set_target_properties(weft PROPERTIES EXPORT_NAME static)
install(TARGETS weft EXPORT weftTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(WEFT_SHARED)
  set_target_properties(weft_shared PROPERTIES EXPORT_NAME shared)
  install(TARGETS weft_shared EXPORT weftTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(EXPORT weftTargets NAMESPACE weft:: DESTINATION ${package_dir})
configure_package_config_file(cmake/weftConfig.cmake.in weftConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(weftConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/weftConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/weftConfigVersion.cmake
  DESTINATION ${package_dir})

# weft.pc: prefix is found from the file's own place. Outside the system's library folders the shared library
# is found again at run time through an rpath, so that what was linked also starts.
file(RELATIVE_PATH WEFT_PC_PREFIX /p/${CMAKE_INSTALL_LIBDIR}/pkgconfig /p)
string(REGEX REPLACE "/$" "" WEFT_PC_PREFIX "${WEFT_PC_PREFIX}")
set(WEFT_PC_RPATH "-Wl,-rpath,\${libdir}")
if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
  set(WEFT_PC_RPATH "")
endif()
if(WEFT_SHARED)
  set(WEFT_PC_LIBS "-L\${libdir} ${WEFT_PC_RPATH} -lweft")
  set(WEFT_PC_LIBS_PRIVATE "${WEFT_DEP_LINK} -lpthread -lm")
else()
  set(WEFT_PC_LIBS "-L\${libdir} -lweft ${WEFT_DEP_LINK} -lpthread -lm")
  set(WEFT_PC_LIBS_PRIVATE "")
endif()
configure_file(cmake/weft.pc.in weft.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/weft.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
