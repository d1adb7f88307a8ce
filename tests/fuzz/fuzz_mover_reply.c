/* Packets that the daemon receives from kvcobra-mover. */
#include "proto/mover_wire.h"
#include "tests/fuzz/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fuzz_message(&kvcobra__mover_reply__descriptor, data, size);
}
