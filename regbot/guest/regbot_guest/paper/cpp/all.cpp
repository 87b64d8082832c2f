// The whole library is one translation unit, because compiling torch's headers takes ten times as long as compiling
// this code.
#include "holders.cpp"
#include "memory.cpp"
#include "shapes.cpp"

#include "flops.cpp"

#include "program.cpp"

#include "values.cpp"

#include "infinity.cpp"
#include "positive.cpp"

#include "kernels.cpp"

#include "own_kernels.cpp"

#include "platform.cpp"
#include "python.cpp"
