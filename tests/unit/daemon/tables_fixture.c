/* See tables_fixture.h. */
#include "tests/unit/daemon/tables_fixture.h"

#include <assert.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <syslog.h>

#include "base/errmsg.h"
#include "daemon/loop/log.h"

void tables_fixture_open(struct tables_fixture *f)
{
    struct errmsg e = {""};

    assert(pool_init(&f->devices.list[0].store.pool, &f->devices.serials, 1 << 20, 1 << 20, 1 << 20, NULL) ==
           0);
    f->devices.n = 1;
    assert(tables_init(&f->tables, &f->config, &f->devices, &e) == 0);
}

void tables_fixture_close(struct tables_fixture *f)
{
    tables_deinit(&f->tables);
    devices_deinit(&f->devices);
}

void tables_fixture_begin(struct tables_fixture *f, bool with_state)
{
    log_open(LOG_EMERG); /* no output for the errors that the cases cause */
    config_init(&f->config);
    f->folder[0] = '\0';
    if (with_state) {
        (void) snprintf(f->folder, sizeof(f->folder), "/tmp/kvcobra-test-XXXXXX");
        assert(mkdtemp(f->folder));
        f->config.state_dir = f->folder;
    }
    tables_fixture_open(f);
}

static int tables_fixture_remove(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void) st;
    (void) type;
    (void) ftw;
    return remove(path);
}

void tables_fixture_end(struct tables_fixture *f)
{
    tables_fixture_close(f);
    if (f->folder[0] != '\0')
        (void) nftw(f->folder, tables_fixture_remove, 8, FTW_DEPTH | FTW_PHYS);
}
