/* See table_fetch.h. */
#include "tools/operate/table_fetch.h"

#include <stdio.h>
#include <string.h>

#include "alloc/table/table.h"
#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/errmsg.h"
#include "tools/command/human.h"
#include "tools/command/operator.h"
#include "tools/command/operator_tables.h"
#include "tools/command/report.h"

/* The daemon is another process: what it sends may be damaged, or another table. */
static int table_fetch_verify(const void *bytes, size_t n_bytes,
                              const uint8_t digest[static KVC_DIGEST_BYTES], const char *hex)
{
    _cleanup_(table_unrefp) struct table *t = NULL;
    struct errmsg e = {""};

    if (table_parse(bytes, n_bytes, &t, &e) < 0)
        return command_fail("what kvcobrad sent for table %.12s is not a table: %s", hex, e.text);
    if (memcmp(t->digest, digest, KVC_DIGEST_BYTES) != 0)
        return command_fail("what kvcobrad sent for table %.12s is another table", hex);

    return COMMAND_OK;
}

int table_fetch(kvc_client *c, const char *text, const char *output, bool json)
{
    _cleanup_(freep) void *bytes = NULL;
    uint8_t digest[KVC_DIGEST_BYTES];
    char hex[DIGEST_HEX_BYTES], size[HUMAN_BYTES];
    struct errmsg e = {""};
    size_t n_bytes;
    int code;

    if (!operator_is_digest(text))
        return command_fail(
            "'%s' is not at least the first six digits of a digest: 'kvcobra table list' shows them", text);
    if (atomic_file_check(output, &e) < 0)
        return command_fail("%s", e.text);

    code = operator_find_table(c, text, digest);
    if (code != COMMAND_OK)
        return code;

    (void) digest_hex(digest, hex);
    if (operator_fetch_table(c, digest, &bytes, &n_bytes, &e) < 0)
        return command_fail("cannot fetch %.12s: %s", hex, e.text);

    code = table_fetch_verify(bytes, n_bytes, digest, hex);
    if (code != COMMAND_OK)
        return code;
    if (atomic_file_write(output, bytes, n_bytes, &e) < 0)
        return command_fail("%s", e.text);

    if (json)
        return report_json(
            json_pack("{s:s, s:s, s:I}", "digest", hex, "file", output, "bytes", (json_int_t) n_bytes));

    printf("wrote %s: table %s, %s\n", output, hex, human_bytes(n_bytes, size));
    return COMMAND_OK;
}
