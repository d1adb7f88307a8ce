/* CRC32C by ISA-L; see crc32c.h. */
#include "proto/crc32c.h"

#include <isa-l/crc.h>
#include <limits.h>

uint32_t crc32c_continue(uint32_t crc, const void *data, size_t bytes)
{
    /* ISA-L only reads, but takes no const pointer; its lengths are int; it leaves out both
     * inversions of the published CRC. */
    unsigned char *p = (unsigned char *) data;

    crc = ~crc;
    while (bytes > 0) {
        int n = bytes < INT_MAX ? (int) bytes : INT_MAX;

        crc = crc32_iscsi(p, n, crc);
        p += n;
        bytes -= (size_t) n;
    }

    return ~crc;
}

uint32_t crc32c(const void *data, size_t bytes)
{
    return crc32c_continue(0, data, bytes);
}
