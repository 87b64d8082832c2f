// The whole library as one translation unit: torch's headers take ten times as long to compile as this code.
#include "memory.cpp"
#include "shapes.cpp"

#include "program.cpp"

#include "kernels.cpp"
#include "platform.cpp"
#include "python.cpp"
