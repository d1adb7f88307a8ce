/*
 * The state folder of the tables.
 *
 *   DIR/tables/<64 hex digits>.kvct   a table file's bytes; the name is its digest
 *   DIR/active                        "kvcobra active set 2", then one line per table:
 *
 *     active   <model digest> <revision> <digest>
 *     draining <model digest> <revision that activated it> <digest> <end of drain time, ms since 1970>
 *              <1: ROLLBACK left it; else 0>
 *
 * Both are replaced atomically and synced. Files of other names are left alone.
 */
#include "daemon/tables/tables_files.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/damage.h"
#include "base/digest.h"
#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/loop/log.h"
#include "daemon/tables/state_folder.h"
#include "daemon/tables/table_entry.h"

#define ACTIVE_TITLE "kvcobra active set 2\n"
#define TABLE_SUFFIX ".kvct"

enum { ACTIVE_FILE_BYTES_MAX = 1 << 24 };

int tables_files_read_digest(const char *hex, uint8_t *ret)
{
    size_t n;

    if (strlen(hex) != 2 * DIGEST_BYTES ||
        sodium_hex2bin(ret, DIGEST_BYTES, hex, 2 * DIGEST_BYTES, NULL, &n, NULL) != 0 || n != DIGEST_BYTES)
        return -EBADMSG;
    return 0;
}

static char *tables_files_path(const struct config *c, const uint8_t *digest)
{
    char hex[DIGEST_HEX_BYTES], *path;

    digest_hex(digest, hex);
    return asprintf(&path, "%s/tables/%s" TABLE_SUFFIX, c->state_dir, hex) < 0 ? NULL : path;
}

static int tables_files_make_folder(const char *path, struct errmsg *e)
{
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return fail(e, -errno, "cannot create the state folder %s: %s", path, strerror(errno));
    return 0;
}

int tables_files_init(const struct config *c, struct errmsg *e)
{
    _cleanup_(freep) char *folder = NULL;
    int r = tables_files_make_folder(c->state_dir, e);

    if (r < 0)
        return r;
    if (asprintf(&folder, "%s/tables", c->state_dir) < 0) {
        folder = NULL;
        return fail(e, -ENOMEM, "out of memory");
    }
    return tables_files_make_folder(folder, e);
}

int tables_files_write(const struct config *c, const uint8_t *digest, const void *bytes, size_t n_bytes,
                       struct errmsg *e)
{
    _cleanup_(freep) char *path = tables_files_path(c, digest);
    int r = state_folder_check(c->state_folder, e);

    if (!path)
        return fail(e, -ENOMEM, "out of memory");
    if (r < 0)
        return r;
    return atomic_file_write(path, bytes, n_bytes, e);
}

void tables_files_remove(const struct config *c, const uint8_t *digest)
{
    _cleanup_(freep) char *path = tables_files_path(c, digest);

    if (state_folder_check(c->state_folder, NULL) < 0) /* another daemon may have the file */
        return;
    if (path && unlink(path) < 0 && errno != ENOENT)
        log_event(LOG_WARNING, "table-file-stays", "path=%s message=\"%s\", ignoring", path, strerror(errno));
}

/* Added to the monotonic clock, it gives the wall clock, which stays valid after a reboot. */
static int64_t tables_files_clock_offset_ms(void)
{
    struct timespec wall, mono;

    (void) clock_gettime(CLOCK_REALTIME, &wall);
    (void) clock_gettime(CLOCK_MONOTONIC, &mono);
    return ((int64_t) wall.tv_sec - mono.tv_sec) * 1000 + (wall.tv_nsec - mono.tv_nsec) / 1000000;
}

/* Whether the file has a line for the table: ROLLBACK may return to it after a restart. */
static bool tables_files_is_remembered(const struct table_entry *t)
{
    return t->state == TABLE_DRAINING && t->table && t->activated > 0;
}

static void tables_files_print_active(const struct table_model *m, FILE *f)
{
    char model[DIGEST_HEX_BYTES], table[DIGEST_HEX_BYTES];

    digest_hex(m->digest, model);
    digest_hex(m->active->digest, table);
    (void) fprintf(f, "active %s %" PRIu64 " %s\n", model, m->revision, table);
}

static void tables_files_print_draining(const struct table_entry *t, int64_t offset_ms, FILE *f)
{
    char model[DIGEST_HEX_BYTES], table[DIGEST_HEX_BYTES];

    digest_hex(t->model_digest, model);
    digest_hex(t->digest, table);
    (void) fprintf(f, "draining %s %" PRIu64 " %s %" PRId64 " %d\n", model, t->activated, table,
                   (int64_t) t->drain_until_ms + offset_ms, t->rolled_back);
}

void tables_files_print_active_set(const void *ctx, FILE *f)
{
    const struct tables *ts = ctx;
    int64_t offset_ms = tables_files_clock_offset_ms();

    (void) fputs(ACTIVE_TITLE, f);
    for (const struct table_model *m = ts->models; m; m = m->next)
        if (!table_is_exact(m->active->table)) /* tables_exact.h has a file of its own */
            tables_files_print_active(m, f);
    for (const struct table_entry *t = ts->entries; t; t = t->next)
        if (tables_files_is_remembered(t))
            tables_files_print_draining(t, offset_ms, f);
}

static bool tables_files_is_table_name(const char *name)
{
    size_t n = strlen(name), suffix = strlen(TABLE_SUFFIX);
    uint8_t digest[DIGEST_BYTES];
    char hex[DIGEST_HEX_BYTES];

    (void) snprintf(hex, sizeof(hex), "%.64s", name);
    return n == 2 * DIGEST_BYTES + suffix && strcmp(name + 2 * DIGEST_BYTES, TABLE_SUFFIX) == 0 &&
           tables_files_read_digest(hex, digest) == 0;
}

static int tables_files_load_one(const char *folder, const char *name, tables_file_fn on_table, void *ctx,
                                 struct errmsg *e)
{
    _cleanup_(freep) char *path = NULL;

    if (!tables_files_is_table_name(name))
        return 0;
    if (asprintf(&path, "%s/%s", folder, name) < 0) {
        path = NULL;
        return fail(e, -ENOMEM, "out of memory for the name of a table file");
    }
    return on_table(ctx, path, e);
}

int tables_files_load(const struct config *c, tables_file_fn on_table, void *ctx, struct errmsg *e)
{
    _cleanup_(freep) char *folder = NULL;
    struct dirent **names = NULL;
    int n, r = 0;

    if (asprintf(&folder, "%s/tables", c->state_dir) < 0) {
        folder = NULL;
        return fail(e, -ENOMEM, "out of memory for the name of the state folder");
    }

    n = scandir(folder, &names, NULL, alphasort);
    if (n < 0)
        return fail(e, -errno, "cannot read the folder %s: %s", folder, strerror(errno));
    for (int i = 0; i < n; i++) {
        if (r == 0)
            r = tables_files_load_one(folder, names[i]->d_name, on_table, ctx, e);
        free(names[i]);
    }

    free(names);
    return r;
}

struct tables_files_line {
    uint8_t model[DIGEST_BYTES], table[DIGEST_BYTES];
    struct active_line line; /* has pointers to the digests */
};

static int tables_files_parse_line(const char *text, int64_t offset_ms, struct tables_files_line *ret)
{
    char kind[9], model[DIGEST_HEX_BYTES], table[DIGEST_HEX_BYTES], end;
    struct active_line *l = &ret->line;
    int64_t until_ms = 0;
    int left = 0, n;

    *l = (struct active_line){.model_digest = ret->model, .digest = ret->table};
    n = sscanf(text, "%8s %64s %" SCNu64 " %64s %" SCNd64 " %d%c", kind, model, &l->revision, table,
               &until_ms, &left, &end);
    l->draining = n >= 1 && strcmp(kind, "draining") == 0;
    if (n != (l->draining ? 6 : 4) || (!l->draining && strcmp(kind, "active") != 0) ||
        (left != 0 && left != 1))
        return -EBADMSG;
    if (l->revision == 0 || l->revision >= UINT64_C(1) << 40)
        return -EBADMSG;

    l->rolled_back = left == 1;
    if (l->draining && until_ms > offset_ms)
        l->drain_until_ms = (uint64_t) (until_ms - offset_ms);
    if (tables_files_read_digest(model, ret->model) < 0)
        return -EBADMSG;

    return tables_files_read_digest(table, ret->table);
}

int tables_files_read_text(const struct config *c, const char *name, size_t bytes_max, char **ret_path,
                           char **ret_text, struct errmsg *e)
{
    _cleanup_(freep) char *path = NULL;
    _cleanup_(freep) void *bytes = NULL;
    size_t n;
    int r;

    if (asprintf(&path, "%s/%s", c->state_dir, name) < 0) {
        path = NULL;
        return fail(e, -ENOMEM, "out of memory for the name of the file %s", name);
    }

    r = atomic_file_read(path, bytes_max, &bytes, &n, e);
    if (r == -ENOENT)
        return 0;
    if (damage_is_cause(r)) {
        log_event(LOG_ERR, "state-unreadable", "path=%s message=\"%s\", ignoring", path, e->text);
        return 0;
    }
    if (r < 0)
        return r;

    *ret_text = strndup(bytes, n); /* the bytes of the file are not terminated */
    if (!*ret_text)
        return fail(e, -ENOMEM, "out of memory for the file %s", path);

    *ret_path = take_ptr(path);
    return 0;
}

int tables_files_read_lines(const struct config *c, const struct tables_text *t, tables_line_fn on_line,
                            void *ctx, struct errmsg *e)
{
    _cleanup_(freep) char *path = NULL;
    _cleanup_(freep) char *text = NULL;
    char *save = NULL;
    int r = tables_files_read_text(c, t->name, t->bytes_max, &path, &text, e);

    if (r < 0 || !text)
        return r;
    if (strncmp(text, t->title, strlen(t->title)) != 0) {
        log_event(LOG_ERR, "state-unreadable", "path=%s message=\"not %s of this version\", ignoring", path,
                  t->what);
        return 0;
    }

    for (char *line = strtok_r(text + strlen(t->title), "\n", &save); line && r == 0;
         line = strtok_r(NULL, "\n", &save))
        r = on_line(ctx, path, line, e);
    return r;
}

/* What reads the active set. */
struct tables_files_active {
    tables_active_fn on_line;
    void *ctx;
    int64_t offset_ms;
};

static int tables_files_read_active_line(void *ctx, const char *path, char *line, struct errmsg *e)
{
    const struct tables_files_active *a = ctx;
    struct tables_files_line p;

    if (tables_files_parse_line(line, a->offset_ms, &p) == 0)
        return a->on_line(a->ctx, &p.line, e);

    log_event(LOG_ERR, "state-unreadable", "path=%s message=\"bad line\", ignoring it", path);
    return 0;
}

int tables_files_load_active(const struct config *c, tables_active_fn on_line, void *ctx, struct errmsg *e)
{
    static const struct tables_text active = {"active", ACTIVE_TITLE, "an active set", ACTIVE_FILE_BYTES_MAX};
    struct tables_files_active a = {on_line, ctx, tables_files_clock_offset_ms()};

    return tables_files_read_lines(c, &active, tables_files_read_active_line, &a, e);
}
