/* Files of exported pages: page_file_header_load() and page_file_open() on arbitrary bytes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/errmsg.h"
#include "proto/page_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_header(const uint8_t bytes[static PAGE_FILE_HEADER_BYTES], size_t n)
{
    struct page_file_header h;
    struct errmsg e = {""};
    uint8_t back[PAGE_FILE_HEADER_BYTES];

    if (page_file_header_load(bytes, n, &h, &e) < 0) {
        if (!e.text[0])
            abort();
        return;
    }
    page_file_header_store(&h, back);
    if (n < sizeof(back) || memcmp(back, bytes, sizeof(back)) != 0) /* every byte is either used or zero */
        abort();
}

/* No program has sealed these bytes with this key. */
static void check_page(const uint8_t *record, size_t n)
{
    static const struct page_file_keys keys = {.secret = {1}};
    uint8_t *page;
    struct chunk_key key;
    struct errmsg e = {""};

    if (n < page_file_record_bytes(0))
        return;
    n -= page_file_record_bytes(0);
    page = malloc(n > 0 ? n : 1);
    if (!page)
        return;
    if (page_file_open(&keys, record, page, n, &key, &e) == 0 || !e.text[0])
        abort();
    free(page);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t b[PAGE_FILE_HEADER_BYTES] = {0};
    size_t n = size < sizeof(b) ? size : sizeof(b);
    uint32_t crc;

    if (n > 0)
        memcpy(b, data, n);
    check_header(b, n);
    crc = crc32c(b, 124);
    memcpy(b + 124, &crc, sizeof(crc));
    check_header(b, n);
    check_page(data, size);
    if (size > sizeof(b))
        check_page(data + sizeof(b), size - sizeof(b));
    return 0;
}
