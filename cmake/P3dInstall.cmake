# SPDX-License-Identifier: Apache-2.0
# cmake --install: the program, libp3d, the public headers of its rooms, and a CMake config so that another project can
# say find_package(p3d) and link p3d::p3d.
include(CMakePackageConfigHelpers)
set(P3D_CONFIG_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/p3d)

install(TARGETS p3d EXPORT p3dTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET p3d_app)
  install(TARGETS p3d_app RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/p3d ${PROJECT_BINARY_DIR}/include/p3d
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.hpp" PATTERN page EXCLUDE)

install(EXPORT p3dTargets NAMESPACE p3d:: DESTINATION ${P3D_CONFIG_DIR})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/p3dConfig.cmake.in ${PROJECT_BINARY_DIR}/p3dConfig.cmake
  INSTALL_DESTINATION ${P3D_CONFIG_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/p3dConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/p3dConfig.cmake ${PROJECT_BINARY_DIR}/p3dConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/P3dKokkos.cmake ${PROJECT_SOURCE_DIR}/cmake/P3dGpu.cmake
              ${PROJECT_SOURCE_DIR}/cmake/FindRandom123.cmake ${PROJECT_SOURCE_DIR}/cmake/FindxxHash.cmake
              ${PROJECT_SOURCE_DIR}/cmake/FindPCRE2.cmake
              ${PROJECT_SOURCE_DIR}/cmake/Findutf8proc.cmake ${PROJECT_SOURCE_DIR}/cmake/FindZstd.cmake
              ${PROJECT_SOURCE_DIR}/cmake/FindSentencePiece.cmake ${PROJECT_SOURCE_DIR}/cmake/FindNCCL.cmake
              ${PROJECT_SOURCE_DIR}/cmake/FindHDF5Parallel.cmake
  DESTINATION ${P3D_CONFIG_DIR})
