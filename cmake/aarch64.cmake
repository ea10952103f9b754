# SPDX-License-Identifier: MIT
# From x86-64 for 64-bit ARM, by Debian's cross compiler over the packages that scripts/arm-sysroot unpacked; what it builds
# runs under qemu. `make arm`.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(DEEPPCR_SYSROOT "" CACHE PATH "the unpacked packages")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES DEEPPCR_SYSROOT)
set(CMAKE_SYSROOT ${DEEPPCR_SYSROOT})
set(CMAKE_FIND_ROOT_PATH ${DEEPPCR_SYSROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L ${DEEPPCR_SYSROOT})
set(ENV{PKG_CONFIG_LIBDIR} ${DEEPPCR_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${DEEPPCR_SYSROOT}/usr/share/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${DEEPPCR_SYSROOT})
