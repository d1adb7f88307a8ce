// The headers in C++: the same files.
#include "tests/unit/client/header.c"
#include "tests/unit/client/header_eval.c"
