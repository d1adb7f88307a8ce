/* Packets that the daemon receives from any process that may connect. */
#include "proto/wire.h"
#include "tests/fuzz/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fuzz_message(&kvcobra__request__descriptor, data, size);
}
