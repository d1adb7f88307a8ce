/* See model_folder.h. */
#include "tools/identify/model_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/fd_io.h"
#include "tools/identify/digest_cache.h"

#define CONFIG_NAME "config.json"
#define INDEX_NAME "model.safetensors.index.json"
#define SINGLE_NAME "model.safetensors"
#define ADAPTER_NAME "adapter_config.json"
#define SUFFIX ".safetensors"

enum { JSON_FILE_MAX = 1 << 26 };

void model_folder_deinit(struct model_folder *f)
{
    for (size_t i = 0; i < f->n_files; i++) {
        free(f->files[i].name);
        closep(&f->files[i].fd);
        safetensors_deinit(&f->files[i].tensors);
    }
    json_decref(f->config);
    json_decref(f->index);
    free(f->files);
    free(f->tensors);
    free(f->path);
    closep(&f->fd);
    *f = (struct model_folder){.fd = -1};
}

/* ---- files ---- */

static bool model_folder_has(const struct model_folder *f, const char *name)
{
    return faccessat(f->fd, name, F_OK, 0) == 0;
}

static bool model_folder_ends_in(const char *name, const char *suffix)
{
    size_t n = strlen(name), m = strlen(suffix);

    return n > m && strcmp(name + n - m, suffix) == 0;
}

/* O_NONBLOCK: a pipe must not block before fstat(2) says that it is one. */
static int model_folder_open_file(const struct model_folder *f, const char *name, int *ret_fd,
                                  struct errmsg *e)
{
    int fd = openat(f->fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0)
        return fail(e, -errno, "cannot open %s/%s: %s", f->path, name, strerror(errno));

    *ret_fd = fd;
    return 0;
}

static int model_folder_read_json(const struct model_folder *f, const char *name, json_t **ret,
                                  struct errmsg *e)
{
    _cleanup_(freep) char *bytes = NULL;
    _cleanup_(closep) int fd = -1;
    json_error_t why;
    struct stat st;
    json_t *json;
    int r = model_folder_open_file(f, name, &fd, e);

    if (r < 0)
        return r;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > JSON_FILE_MAX)
        return fail(e, -EINVAL, "%s/%s is not a regular file of at most %d bytes", f->path, name,
                    JSON_FILE_MAX);

    bytes = malloc((size_t) st.st_size + 1);
    if (!bytes)
        return fail(e, -ENOMEM, "out of memory for %s/%s", f->path, name);

    r = fd_pread_all(fd, bytes, (size_t) st.st_size, 0);
    if (r < 0)
        return fail(e, r, "cannot read %s/%s: %s", f->path, name, strerror(-r));

    json = json_loadb(bytes, (size_t) st.st_size, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &why);
    if (!json_is_object(json)) {
        if (json)
            why.line = why.column = 1; /* another value */
        json_decref(json);
        return fail(e, -EBADMSG, "%s/%s is not a JSON object with different keys (line %d, column %d)",
                    f->path, name, why.line, why.column);
    }

    *ret = json;
    return 0;
}

static int model_folder_add_file(struct model_folder *f, const char *name, struct errmsg *e)
{
    struct model_folder_file *file = &f->files[f->n_files];
    _cleanup_(freep) char *label = NULL;
    int r;

    if (f->n_files == MODEL_FOLDER_FILES_MAX)
        return fail(e, -E2BIG, "%s has more than %d safetensors files", f->path, MODEL_FOLDER_FILES_MAX);

    *file = (struct model_folder_file){.name = strdup(name), .fd = -1};
    f->n_files++;
    if (!file->name || asprintf(&label, "%s/%s", f->path, name) < 0) {
        label = NULL;
        return fail(e, -ENOMEM, "out of memory for the files of %s", f->path);
    }

    r = model_folder_open_file(f, name, &file->fd, e);
    if (r < 0)
        return r;

    return safetensors_read(file->fd, label, &file->tensors, e);
}

/* ---- which files ---- */

static bool model_folder_is_plain(const char *name)
{
    return name[0] != '.' && !strchr(name, '/') && model_folder_ends_in(name, SUFFIX) &&
           safetensors_is_printable(name);
}

static const struct model_folder_file *model_folder_file_named(const struct model_folder *f, const char *name)
{
    for (size_t i = 0; i < f->n_files; i++)
        if (strcmp(f->files[i].name, name) == 0)
            return &f->files[i];
    return NULL;
}

static int model_folder_add_indexed(struct model_folder *f, struct errmsg *e)
{
    json_t *map, *value;
    const char *tensor;
    size_t n = 0;
    int r = model_folder_read_json(f, INDEX_NAME, &f->index, e);

    if (r < 0)
        return r;

    map = json_object_get(f->index, "weight_map");
    if (json_object_size(map) == 0)
        return fail(e, -EBADMSG, "%s/" INDEX_NAME " has no weight_map", f->path);

    json_object_foreach(map, tensor, value)
    {
        const char *name = json_string_value(value);

        if (!name || !model_folder_is_plain(name) || !safetensors_is_printable(tensor))
            return fail(e, -EINVAL,
                        "%s/" INDEX_NAME
                        ": entry %zu of the weight_map is not a tensor and the name of a " SUFFIX
                        " file in this folder",
                        f->path, n + 1);
        n++;
        r = model_folder_file_named(f, name) ? 0 : model_folder_add_file(f, name, e);
        if (r == -ENOENT)
            return fail(e, r, "%s lacks %s, which " INDEX_NAME " names: is the download complete?", f->path,
                        name);
        if (r < 0)
            return r;
    }

    return 0;
}

/* Counts *.safetensors files; *ret_name: one of them. Files of pickles set *ret_pickle. */
static int model_folder_count(const struct model_folder *f, size_t *ret_n, char ret_name[static NAME_MAX + 1],
                              bool *ret_pickle, struct errmsg *e)
{
    int fd = fcntl(f->fd, F_DUPFD_CLOEXEC, 3);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *entry;

    if (!d) {
        closep(&fd);
        return fail(e, -errno, "cannot list %s: %s", f->path, strerror(errno));
    }

    *ret_n = 0;
    *ret_pickle = false;
    while ((entry = readdir(d))) {
        const char *name = entry->d_name;

        if (model_folder_is_plain(name)) {
            (void) snprintf(ret_name, NAME_MAX + 1, "%s", name);
            ++*ret_n;
        }
        *ret_pickle = *ret_pickle || model_folder_ends_in(name, ".bin") ||
                      model_folder_ends_in(name, ".pt") || model_folder_ends_in(name, ".pth");
    }
    (void) closedir(d);
    return 0;
}

static int model_folder_add_only(struct model_folder *f, struct errmsg *e)
{
    char name[NAME_MAX + 1];
    bool has_pickle = false;
    size_t n = 0;
    int r = model_folder_count(f, &n, name, &has_pickle, e);

    if (r < 0)
        return r;
    if (n == 1)
        return model_folder_add_file(f, name, e);
    if (n > 1)
        return fail(e, -EBADMSG,
                    "%s has %zu " SUFFIX " files, and neither " SINGLE_NAME " nor " INDEX_NAME
                    ", which names the files of a model: is the download complete?",
                    f->path, n);
    if (has_pickle)
        return fail(
            e, -EOPNOTSUPP,
            "%s has weights as pickles only, which can run code when they are read: save the model as "
            "safetensors",
            f->path);
    return fail(e, -ENOENT, "%s has no " SUFFIX " file", f->path);
}

static int model_folder_add_files(struct model_folder *f, struct errmsg *e)
{
    bool has_single = model_folder_has(f, SINGLE_NAME), has_index = model_folder_has(f, INDEX_NAME);

    f->files = calloc(MODEL_FOLDER_FILES_MAX, sizeof(*f->files));
    if (!f->files)
        return fail(e, -ENOMEM, "out of memory for the files of %s", f->path);
    if (has_single && has_index)
        return fail(e, -EBADMSG, "%s has " SINGLE_NAME " and " INDEX_NAME ": move away what is not the model",
                    f->path);
    if (has_single)
        return model_folder_add_file(f, SINGLE_NAME, e);
    if (has_index)
        return model_folder_add_indexed(f, e);

    return model_folder_add_only(f, e);
}

/* ---- tensors ---- */

static int model_folder_by_name(const void *a, const void *b)
{
    const struct model_folder_tensor *x = a, *y = b;

    return strcmp(x->tensor->name, y->tensor->name);
}

/* Whether the index names this file for this tensor. */
static bool model_folder_index_agrees(const struct model_folder *f, const struct model_folder_tensor *t)
{
    const json_t *map = json_object_get(f->index, "weight_map");
    const char *name = json_string_value(json_object_get(map, t->tensor->name));

    return name && strcmp(name, t->file->name) == 0;
}

static int model_folder_check_tensors(const struct model_folder *f, struct errmsg *e)
{
    if (f->n_tensors == 0)
        return fail(e, -EBADMSG, "%s has no tensor", f->path);

    for (size_t i = 0; i < f->n_tensors; i++) {
        const struct model_folder_tensor *t = &f->tensors[i];

        if (i > 0 && strcmp(t->tensor->name, t[-1].tensor->name) == 0)
            return fail(e, -EBADMSG, "%s: tensor \"%.80s\" is in %.60s and in %.60s", f->path,
                        t->tensor->name, t[-1].file->name, t->file->name);
        if (f->index && !model_folder_index_agrees(f, t))
            return fail(e, -EBADMSG,
                        "%s: tensor \"%.80s\" is in %.60s, where " INDEX_NAME " does not name it", f->path,
                        t->tensor->name, t->file->name);
    }

    if (f->index && json_object_size(json_object_get(f->index, "weight_map")) != f->n_tensors)
        return fail(e, -EBADMSG, "%s: " INDEX_NAME " names tensors that its files do not have", f->path);
    return 0;
}

static int model_folder_collect(struct model_folder *f, struct errmsg *e)
{
    size_t n = 0;

    for (size_t i = 0; i < f->n_files; i++)
        n += f->files[i].tensors.n_tensors;
    f->tensors = calloc(n + 1, sizeof(*f->tensors));
    if (!f->tensors)
        return fail(e, -ENOMEM, "out of memory for the tensors of %s", f->path);

    for (size_t i = 0; i < f->n_files; i++)
        for (size_t j = 0; j < f->files[i].tensors.n_tensors; j++) {
            const struct safetensors_tensor *t = &f->files[i].tensors.tensors[j];

            f->tensors[f->n_tensors++] = (struct model_folder_tensor){t, &f->files[i]};
            f->bytes += t->bytes;
        }
    qsort(f->tensors, f->n_tensors, sizeof(*f->tensors), model_folder_by_name);
    return model_folder_check_tensors(f, e);
}

/* ---- the folder ---- */

int model_folder_open(const char *path, struct model_folder *ret, struct errmsg *e)
{
    _cleanup_(model_folder_deinit) struct model_folder f = {.fd = -1};
    int r;

    f.path = strdup(path);
    if (!f.path)
        return fail(e, -ENOMEM, "out of memory");

    f.fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (f.fd < 0)
        return fail(e, -errno, "cannot open the folder %s: %s", path, strerror(errno));
    if (model_folder_has(&f, ADAPTER_NAME) && !model_folder_has(&f, SINGLE_NAME) &&
        !model_folder_has(&f, INDEX_NAME))
        return fail(
            e, -EOPNOTSUPP,
            "%s is the folder of a LoRA adapter: merge the adapter into its model (merge_and_unload() of "
            "peft) and save that, or name the folder of the model",
            path);
    if (!model_folder_has(&f, CONFIG_NAME))
        return fail(e, -ENOENT, "%s is not the folder of a model: it has no " CONFIG_NAME, path);

    r = model_folder_read_json(&f, CONFIG_NAME, &f.config, e);
    if (r < 0)
        return r;
    if (!json_is_string(json_object_get(f.config, "model_type")))
        return fail(e, -EBADMSG, "%s/" CONFIG_NAME " has no model_type: not the configuration of a model",
                    path);

    r = model_folder_add_files(&f, e);
    if (r == 0)
        r = model_folder_collect(&f, e);
    if (r < 0)
        return r;

    *ret = f;
    f = (struct model_folder){.fd = -1};
    return 0;
}

/* ---- what it was read from ---- */

static int model_folder_list_named(const struct model_folder *f, const char *name, int64_t now,
                                   struct digest_cache_files *ret)
{
    struct stat st;

    return fstatat(f->fd, name, &st, 0) < 0 ? -errno : digest_cache_add_file(ret, name, &st, now);
}

int model_folder_list_files(const struct model_folder *f, struct digest_cache_files *ret)
{
    int64_t now = (int64_t) time(NULL);
    int r = model_folder_list_named(f, CONFIG_NAME, now, ret);

    if (r == 0 && f->index)
        r = model_folder_list_named(f, INDEX_NAME, now, ret);
    for (size_t i = 0; r == 0 && i < f->n_files; i++) {
        struct stat st;

        r = fstat(f->files[i].fd, &st) < 0 ? -errno : digest_cache_add_file(ret, f->files[i].name, &st, now);
    }
    return r;
}
