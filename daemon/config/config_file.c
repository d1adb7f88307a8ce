/* See config_file.h. inih parses the files. */
#include "daemon/config/config_file.h"

#include <dirent.h>
#include <errno.h>
#include <ini.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/config/config_keys.h"
#include "daemon/config/settings.h"

/* ---- one file ---- */

struct config_file_reading {
    struct config *config;
    const char *path;
    FILE *from, *errors;
    int line;                /* that was read last */
    bool seen[SETTINGS_MAX]; /* by row of the table */
    unsigned n_errors;
    struct errmsg first;
    int r;
};

/* As fgets(); inih calls it once for each line. */
static char *config_file_read_line(char *to, int room, void *stream)
{
    struct config_file_reading *f = stream;

    f->line++;
    return fgets(to, room, f->from);
}

static int config_file_set(struct config_file_reading *f, const char *section, const char *name,
                           const char *value, struct errmsg *e)
{
    const struct setting *k = settings_find(settings, settings_n, name);
    int r;

    if (section[0] != '\0')
        return tenant_rules_set(&f->config->tenants, section, name, value, e);

    if (k && f->seen[k - settings])
        return fail(e, -EINVAL, "%s is set a second time", name);

    r = config_set(f->config, name, value, e);
    if (k)
        f->seen[k - settings] = true;
    return r == -ENOENT ? -EINVAL : r;
}

/* inih calls this for every line, also after a failure. Return: 1; 0: failure. */
static int config_file_on_line(void *user, const char *section, const char *name, const char *value)
{
    struct config_file_reading *f = user;
    struct errmsg why = {""};
    int r;

    if (f->r == -ENOMEM || f->r == -EAGAIN) /* the cause is not the file */
        return 0;

    r = config_file_set(f, section, name, value ? value : "", &why);
    if (r == 0)
        return 1;

    if (f->n_errors++ == 0) {
        f->first = why;
        f->r = r;
    }
    if (f->errors)
        fprintf(f->errors, "%s, line %d: %s\n", f->path, f->line, why.text);
    return 0;
}

static int config_file_fail(struct config_file_reading *f, int line, struct errmsg *e)
{
    static const char syntax[] = "the line is not \"key = value\", or is longer than 198 bytes";

    if (f->n_errors == 0 && f->errors)
        fprintf(f->errors, "%s, line %d: %s\n", f->path, line, syntax);
    if (f->n_errors > 1)
        return fail(e, f->r, "%s, line %d: %.200s (and %u more errors: kvcobrad --check-config prints them)",
                    f->path, line, f->first.text, f->n_errors - 1);
    return fail(e, f->r < 0 ? f->r : -EINVAL, "%s, line %d: %.300s", f->path, line,
                f->n_errors > 0 ? f->first.text : syntax);
}

int config_load(struct config *c, const char *path, FILE *errors, struct errmsg *e)
{
    struct config_file_reading f = {.config = c, .path = path, .errors = errors, .from = fopen(path, "re")};
    int line, error = 0;

    if (!f.from)
        return fail(e, -errno, "cannot read %s: %s", path, strerror(errno));

    c->tenants.n_closed = c->tenants.n_sections;
    errno = 0;
    line = ini_parse_stream(config_file_read_line, &f, config_file_on_line, &f);
    if (ferror(f.from))
        error = errno ? errno : EIO;
    (void) fclose(f.from);
    if (error > 0)
        return fail(e, -error, "cannot read %s: %s", path, strerror(error));
    if (line < 0)
        return fail(e, -ENOMEM, "out of memory while reading %s", path);
    return line > 0 ? config_file_fail(&f, line, e) : 0;
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

    if (n < 0)
        return errno == ENOENT ? 0 : fail(e, -errno, "cannot read %s: %s", folder, strerror(errno));
    if (n > CONFIG_DROP_INS_MAX)
        r = fail(e, -E2BIG, "%s has %d files whose names end in .conf, more than %d", folder, n,
                 CONFIG_DROP_INS_MAX);

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
