/* Packets that the library receives from any process that listens on the socket. */
#include "proto/wire.h"
#include "tests/fuzz/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fuzz_message(&kvcobra__reply__descriptor, data, size);
}
