// The public header in C++: the same file.
#include "tests/unit/client/header.c"
