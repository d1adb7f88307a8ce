/* Packets that kvcobra-mover receives from the process that started it. */
#include "proto/mover_wire.h"
#include "tests/fuzz/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fuzz_message(&kvcobra__mover_request__descriptor, data, size);
}
