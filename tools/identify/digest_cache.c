/* See digest_cache.h. */
#include "tools/identify/digest_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/fd_io.h"
#include "base/file_rights.h"

#define TITLE "kvcobra digest 1\n"

enum { YOUNG_S = 2, RECORD_BYTES_MAX = 1 << 20, NAME_HASH_BYTES = 16 };

/* ---- the files ---- */

int digest_cache_add_file(struct digest_cache_files *f, const char *name, const struct stat *st, int64_t now)
{
    _cleanup_(freep) char *line = NULL;
    char *text;
    int n = asprintf(
        &line, "%" PRIuMAX " %" PRIuMAX " %" PRIdMAX " %" PRIdMAX ".%09ld %" PRIdMAX ".%09ld %s\n",
        (uintmax_t) st->st_dev, (uintmax_t) st->st_ino, (intmax_t) st->st_size, (intmax_t) st->st_mtim.tv_sec,
        st->st_mtim.tv_nsec, (intmax_t) st->st_ctim.tv_sec, st->st_ctim.tv_nsec, name);

    if (n < 0) {
        line = NULL;
        return -ENOMEM;
    }

    text = realloc(f->text, f->bytes + (size_t) n + 1);
    if (!text)
        return -ENOMEM;

    memcpy(text + f->bytes, line, (size_t) n + 1);
    f->text = text;
    f->bytes += (size_t) n;
    /* a time in the future says nothing about when the file changed */
    f->young |= st->st_mtim.tv_sec > now - YOUNG_S || st->st_ctim.tv_sec > now - YOUNG_S;
    return 0;
}

void digest_cache_files_deinit(struct digest_cache_files *f)
{
    free(f->text);
    *f = (struct digest_cache_files){.text = NULL};
}

/* ---- the record ---- */

static int digest_cache_make_folder(const char *path, struct errmsg *e)
{
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return fail(e, -errno, "cannot make the folder %s: %s", path, strerror(errno));
    return 0;
}

/* Relative folders are invalid: XDG Base Directory Specification. */
static int digest_cache_open_folder(char ret_path[static PATH_MAX], int *ret_fd, struct errmsg *e)
{
    const char *cache = secure_getenv("XDG_CACHE_HOME"), *home = secure_getenv("HOME");
    bool of_home = !cache || cache[0] != '/';
    char parent[PATH_MAX];
    int fd, n, r;

    if (of_home && (!home || home[0] != '/'))
        return -ENOENT;

    n = snprintf(parent, PATH_MAX, "%s%s", of_home ? home : cache, of_home ? "/.cache" : "");
    if (n < 0 || n >= PATH_MAX)
        return -ENOENT;
    n = snprintf(ret_path, PATH_MAX, "%s/kvcobra", parent);
    if (n < 0 || n >= PATH_MAX)
        return -ENOENT;

    r = digest_cache_make_folder(parent, e);
    if (r == 0)
        r = digest_cache_make_folder(ret_path, e);
    if (r < 0)
        return r;

    fd = open(ret_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return fail(e, -errno, "cannot open the folder %s: %s", ret_path, strerror(errno));
    r = file_rights_check(fd, FILE_RIGHTS_WRITE, ret_path, "0700", e);
    if (r < 0) {
        (void) close(fd);
        return r;
    }

    *ret_fd = fd;
    return 0;
}

/* Paths have characters that file names have not. */
static void digest_cache_name(const char *path, char ret[static 2 * NAME_HASH_BYTES + 16])
{
    uint8_t hash[NAME_HASH_BYTES];
    char hex[2 * NAME_HASH_BYTES + 1];

    (void) crypto_generichash(hash, sizeof(hash), (const uint8_t *) path, strlen(path), NULL, 0);
    (void) snprintf(ret, 2 * NAME_HASH_BYTES + 16, "model-id-%s",
                    sodium_bin2hex(hex, sizeof(hex), hash, sizeof(hash)));
}

static char *digest_cache_read(int fd)
{
    struct stat st;
    char *text;

    if (fstat(fd, &st) < 0 || st.st_size <= 0 || st.st_size > RECORD_BYTES_MAX)
        return NULL;

    text = calloc(1, (size_t) st.st_size + 1);
    if (text && fd_pread_all(fd, text, (size_t) st.st_size, 0) < 0) {
        free(text);
        return NULL;
    }
    return text;
}

int digest_cache_open(const char *path, struct digest_cache *ret, struct errmsg *e)
{
    _cleanup_(freep) char *real = realpath(path, NULL);
    char folder_path[PATH_MAX], name[2 * NAME_HASH_BYTES + 16];
    _cleanup_(closep) int folder = -1, fd = -1;
    struct stat st;
    int r;

    if (!real || sodium_init() < 0)
        return -ENOENT;

    r = digest_cache_open_folder(folder_path, &folder, e);
    if (r < 0)
        return r;

    digest_cache_name(real, name);
    fd = openat(folder, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0)
        return fail(e, -errno, "cannot open %s/%s: %s", folder_path, name, strerror(errno));
    r = file_rights_check(fd, FILE_RIGHTS_ALL, name, "0600", e);
    if (r < 0)
        return r;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return fail(e, -EINVAL, "%s/%s is not a regular file", folder_path, name);

    do
        r = flock(fd, LOCK_EX);
    while (r < 0 && errno == EINTR);
    if (r < 0)
        return fail(e, -errno, "cannot lock %s/%s: %s", folder_path, name, strerror(errno));

    ret->record = digest_cache_read(fd);
    ret->fd = take_fd(&fd);
    return 0;
}

/* A record is the title, the lines of the files, and a line with the digest and the number of tensors. */
bool digest_cache_find(const struct digest_cache *c, const struct digest_cache_files *f,
                       struct digest_cache_entry *ret)
{
    struct digest_cache_entry entry;
    const char *at = c->record, *end;
    char *after;
    size_t n;

    if (!at || strncmp(at, TITLE, strlen(TITLE)) != 0)
        return false;
    at += strlen(TITLE);
    if (f->bytes == 0 || strncmp(at, f->text, f->bytes) != 0)
        return false;
    at += f->bytes;
    if (strlen(at) < DIGEST_HEX_BYTES ||
        sodium_hex2bin(entry.digest, sizeof(entry.digest), at, DIGEST_HEX_BYTES - 1, NULL, &n, &end) != 0 ||
        n != sizeof(entry.digest) || *end != ' ')
        return false;

    errno = 0;
    entry.n_tensors = strtoull(end + 1, &after, 10);
    if (errno != 0 || after == end + 1 || strcmp(after, "\n") != 0)
        return false;

    *ret = entry;
    return true;
}

int digest_cache_put(struct digest_cache *c, const struct digest_cache_files *f,
                     const struct digest_cache_entry *entry)
{
    _cleanup_(freep) char *text = NULL;
    char hex[DIGEST_HEX_BYTES];
    int n, r;

    if (c->fd < 0 || f->young || f->bytes == 0)
        return 0;

    n = asprintf(&text, TITLE "%s%s %" PRIu64 "\n", f->text, digest_hex(entry->digest, hex),
                 entry->n_tensors);
    if (n < 0) {
        text = NULL;
        return -ENOMEM;
    }

    /* A record that was written in part ends without its last line, and is not found. */
    r = ftruncate(c->fd, 0) < 0 ? -errno : fd_pwrite_all(c->fd, text, (size_t) n, 0);
    if (r < 0)
        (void) ftruncate(c->fd, 0);
    return r;
}

void digest_cache_deinit(struct digest_cache *c)
{
    free(c->record);
    closep(&c->fd);
    *c = (struct digest_cache) DIGEST_CACHE_INIT;
}
