/* See config_file.h. */
#include "daemon/config/config_file.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/config/config_keys.h"
#include "daemon/config/ini_file.h"
#include "daemon/config/settings.h"

/* ---- one file ---- */

struct config_file_reading {
    struct config *config;
    bool seen[SETTINGS_MAX]; /* by row of the table */
};

static int config_file_set(void *ctx, const char *section, const char *key, const char *value,
                           struct errmsg *e)
{
    struct config_file_reading *f = ctx;
    const struct setting *s;
    int r;

    if (section[0] != '\0')
        return key ? tenant_rules_set(&f->config->tenants, section, key, value, e)
                   : tenant_rules_begin(&f->config->tenants, section, e);

    s = settings_find(settings, settings_n, key);
    if (s && f->seen[s - settings])
        return fail(e, -EINVAL, "%s is set a second time", key);

    r = config_set(f->config, key, value, e);
    if (s)
        f->seen[s - settings] = true;
    return r == -ENOENT ? -EINVAL : r;
}

int config_load(struct config *c, const char *path, FILE *errors, struct errmsg *e)
{
    struct config_file_reading f = {.config = c};
    const struct ini_handler handler = {config_file_set, &f};

    return ini_file_read(path, &handler, errors, "kvcobrad --check-config", e);
}

/* ---- the folder beside it ---- */

static int config_file_is_drop_in(const struct dirent *d)
{
    size_t n = strlen(d->d_name);

    return d->d_name[0] != '.' && n > strlen(".conf") &&
           strcmp(d->d_name + n - strlen(".conf"), ".conf") == 0;
}

static int config_file_load_folder(struct config *c, const char *folder, FILE *errors, struct errmsg *e)
{
    struct dirent **list = NULL;
    int n = scandir(folder, &list, config_file_is_drop_in, alphasort), r = 0;

    if (n < 0 && errno == ENOENT)
        return 0;
    if (n < 0)
        r = fail(e, -errno, "cannot read %s: %s", folder, strerror(errno));
    if (n > CONFIG_DROP_INS_MAX)
        r = fail(e, -E2BIG, "%s has %d files whose names end in .conf, more than %d", folder, n,
                 CONFIG_DROP_INS_MAX);
    if (r < 0 && errors)
        fprintf(errors, "%s\n", e->text);

    for (int i = 0; i < n; i++) {
        _cleanup_(freep) char *path = NULL;

        if (r == 0 && asprintf(&path, "%s/%s", folder, list[i]->d_name) < 0) {
            path = NULL;
            r = fail(e, -ENOMEM, "out of memory");
        }
        if (r == 0)
            r = config_load(c, path, errors, e);
        free(list[i]);
    }

    free(list);
    return r;
}

int config_load_all(struct config *c, const char *path, bool must_exist, FILE *errors, struct errmsg *e)
{
    _cleanup_(freep) char *folder = NULL;
    int r = 0;

    if (asprintf(&folder, "%s.d", path) < 0) {
        folder = NULL;
        return fail(e, -ENOMEM, "out of memory");
    }

    if (must_exist || access(path, F_OK) == 0 || errno != ENOENT) {
        c->file = strdup(path);
        r = c->file ? config_load(c, path, errors, e) : fail(e, -ENOMEM, "out of memory");
    }
    return r < 0 ? r : config_file_load_folder(c, folder, errors, e);
}
