/* page_header_load() on arbitrary bytes: headers come from clients' arenas, disks and other machines. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/errmsg.h"
#include "proto/page.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const uint8_t bytes[static 128])
{
    struct page_header h;
    struct errmsg e = {""};
    uint8_t back[128];

    if (page_header_load(bytes, &h, &e) < 0) {
        if (!e.text[0])
            abort();
        return;
    }
    page_header_store(&h, back);
    if (memcmp(back, bytes, sizeof(back)) != 0) /* every byte of a header is either used or zero */
        abort();
}

/* The bytes unchanged, and with the checksum corrected, as a malicious client would write them. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t b[128];
    uint32_t crc;

    if (size < sizeof(b))
        return 0;
    memcpy(b, data, sizeof(b));
    check(b);
    crc = crc32c(b, 124);
    memcpy(b + 124, &crc, sizeof(crc));
    check(b);
    return 0;
}
