/*
 * kvcobrad that checks all its accounts after every request, every tick and every closed
 * connection, and aborts if they do not add up. It is linked with -Wl,--wrap=tables_retire_idle,
 * which is called at these times.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/errmsg.h"
#include "daemon/store/device.h"
#include "daemon/tables/tables.h"

void __real_tables_retire_idle(struct tables *ts, uint64_t now_ms);
void __wrap_tables_retire_idle(struct tables *ts, uint64_t now_ms);

void __wrap_tables_retire_idle(struct tables *ts, uint64_t now_ms)
{
    struct errmsg e = {""};

    __real_tables_retire_idle(ts, now_ms);
    /* An operator may lower a quota below the bytes that are held. */
    if (!devices_are_valid(ts->devices, &e) && !strstr(e.text, "above its quota")) {
        (void) fprintf(stderr, "checked daemon: %s\n", e.text);
        abort();
    }
}
