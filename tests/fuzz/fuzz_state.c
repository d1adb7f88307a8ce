/*
 * The files of a state folder: a daemon (daemon_rig.h) starts with them, its accounts agree, and it writes
 * files that the next start reads. An input has the texts of `active`, `trials`, `aliases`, `quotas`,
 * `secret` and `exact`, one after the other, separated by a zero byte. "@" stands for the digest of a table
 * that is in the folder, "%" for the digest of its model.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/digest.h"
#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/config/config_keys.h"
#include "daemon/loop/log.h"
#include "daemon/requests/state.h"
#include "daemon/store/device.h"
#include "daemon/tables/tables_stage.h"
#include "tests/fuzz/daemon_rig.h"
#include "tests/fuzz/state_folder.h"
#include "tests/lib/random_table.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const files[] = {"active", "trials", "aliases", "quotas", "secret", "exact"};
enum { N_FILES = sizeof(files) / sizeof(files[0]) };

static char digests[2][DIGEST_HEX_BYTES]; /* of the table and of its model */

static void configure(struct config *c)
{
    config_init(c);
    c->pool_bytes = 1 << 20;
    c->extent_bytes = 1 << 18;
    c->span_bytes = 1 << 16;
    c->quota_bytes = 1 << 19;
    c->tenants_max = 4;
    c->tables_max = 4;
    c->state_dir = state_folder();
}

/* Stores a table in the folder, as an operator does. */
static void prepare(void)
{
    struct geometry g = random_table_geometry(1, 1, 1, 32);
    struct config c;
    struct server *s;
    struct table_entry *t;
    enum table_outcome outcome;
    void *bytes;
    size_t n;

    log_open(LOG_EMERG);
    configure(&c);
    s = rig_start(&c, false);
    rig_check(random_table_bytes(&g, 1, 0, PREDICT_NONE, &bytes, &n) == 0);
    rig_check(tables_stage(s->tables, bytes, n, 0, &outcome, &t, NULL) == 0);
    digest_hex(t->digest, digests[0]);
    digest_hex(t->model_digest, digests[1]);
    rig_stop(s);
    config_deinit(&c);
    free(bytes);
}

/* Writes one file. Return: bytes of the input that it took. */
static size_t write_file(const char *name, const uint8_t *data, size_t size)
{
    char path[320];
    size_t n = 0;
    FILE *f;

    (void) snprintf(path, sizeof(path), "%s/%s", state_folder(), name);
    (void) unlink(path);
    if (size == 0 || data[0] == 0)
        return size > 0;
    f = fopen(path, "we");
    rig_check(f != NULL);
    for (; n < size && data[n] != 0; n++) {
        if (data[n] == '@' || data[n] == '%')
            (void) fputs(digests[data[n] == '%'], f);
        else
            (void) fputc(data[n], f);
    }
    (void) fclose(f);
    return n + (n < size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct config c;
    struct server *s;
    struct errmsg e = {""};

    if (!digests[0][0])
        prepare();
    for (unsigned i = 0; i < N_FILES; i++) {
        size_t n = write_file(files[i], data, size);

        data += n;
        size -= n;
    }
    for (unsigned i = 0; i < 2; i++) {
        configure(&c);
        s = rig_try_start(&c, false, &e);
        rig_check(!s == (e.text[0] != '\0'));
        if (s) {
            rig_check(devices_are_valid(s->devices, &e));
            rig_stop(s);
        }
        config_deinit(&c);
        if (!s)
            break;
    }
    return 0;
}
