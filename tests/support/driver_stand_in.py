"""Stand-ins for the libraries of an NVIDIA driver, libcuda and libnvidia-ml. They log their calls and find no GPU."""

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = """
#include <cstdio>
#include <cstdlib>
static int called(const char* name, int result) {
  if (FILE* log = fopen(getenv("DRIVER_LOG"), "a")) { fprintf(log, "%s\\n", name); fclose(log); }
  return result;
}
enum { kNoCudaDevice = 100, kNoNvmlDriver = 9 };
extern "C" {
int cuInit(unsigned) { return called("cuInit", kNoCudaDevice); }
int cuDriverGetVersion(int* version) { *version = 13000; return called("cuDriverGetVersion", kNoCudaDevice); }
int cuDeviceGetCount(int* count) { *count = 1; return called("cuDeviceGetCount", kNoCudaDevice); }
int cuGetProcAddress_v2(const char* name, void** address, int, unsigned long, int*) {
  *address = nullptr;
  return called(name, kNoCudaDevice);
}
int cuGetProcAddress(const char* name, void** address, int, unsigned long) {
  *address = nullptr;
  return called(name, kNoCudaDevice);
}
int nvmlInit() { return called("nvmlInit", kNoNvmlDriver); }
int nvmlInit_v2() { return called("nvmlInit_v2", kNoNvmlDriver); }
int nvmlInitWithFlags(unsigned) { return called("nvmlInitWithFlags", kNoNvmlDriver); }
}
"""
LIBRARIES = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libnvidia-ml.so")


def install_driver_stand_in(folder: Path) -> tuple[dict[str, str], Path]:
    """Compile the stand-ins into ``folder``. Skip the test if there is no compiler.

    Return the environment variables with which a process loads them, and the file that lists their calls.
    """
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    folder.mkdir()
    (folder / "driver.cpp").write_text(SOURCE)
    first, *others = (folder / name for name in LIBRARIES)
    subprocess.run([compiler, "-shared", "-fPIC", str(folder / "driver.cpp"), "-o", str(first)], check=True)
    for library in others:
        library.symlink_to(first.name)
    return {"LD_LIBRARY_PATH": str(folder), "DRIVER_LOG": str(folder / "calls")}, folder / "calls"
