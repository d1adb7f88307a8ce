/*
 * The configuration file. After an accepted file every setting is in its range, and reading the file again
 * changes nothing.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/config/config_file.h"
#include "daemon/config/config_keys.h"
#include "daemon/config/settings.h"
#include "daemon/loop/log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool ok)
{
    if (!ok)
        abort();
}

static void check_range(const struct config *c, const struct setting *k)
{
    const char *at = (const char *) c + k->offset;

    if (k->kind == SETTING_U32) {
        check(*(const uint32_t *) at >= k->min && *(const uint32_t *) at <= k->max);
    } else if (k->kind == SETTING_U64 || k->kind == SETTING_BYTES) {
        uint64_t v = *(const uint64_t *) at;

        check(v <= k->max && (v >= k->min || v == 0)); /* 0: a default that config_fill_derived() replaces */
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char path[32];
    static int fd = -1;
    struct config c, again;
    struct errmsg e = {""};
    int r;

    if (fd < 0) {
        log_open(LOG_EMERG);
        fd = memfd_create("config", MFD_CLOEXEC);
        (void) snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    }
    check(ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t) size);
    config_init(&c);
    config_init(&again);
    r = config_load(&c, path, NULL, &e);
    check((r == 0) == (e.text[0] == '\0'));
    if (r == 0) {
        for (size_t i = 0; i < settings_n; i++)
            check_range(&c, &settings[i]);
        check(config_load(&again, path, NULL, &e) == 0);
        config_fill_derived(&c);
        config_fill_derived(&again);
        r = config_check(&c, &e);
        check((r == 0) == (e.text[0] == '\0'));
        config_reload(&c, &again);
    }
    config_deinit(&c);
    config_deinit(&again);
    return 0;
}
