/* kvcobra model-id: prints the digest of a model, which tables, pages and chunk keys of it have. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "base/errmsg.h"
#include "tools/command/command.h"
#include "tools/command/progress.h"
#include "tools/command/report.h"
#include "tools/engine/gguf.h"
#include "tools/engine/network.h"
#include "tools/identify/digest_cache.h"
#include "tools/identify/folder_digest.h"
#include "tools/identify/model_folder.h"

_Static_assert(FOLDER_DIGEST_BYTES == DIGEST_BYTES, "one digest size everywhere");

struct model_id_options {
    struct common_options common;
    const char *path;
};

struct model_id_result {
    const char *format;
    uint8_t digest[DIGEST_BYTES];
    size_t n_tensors;
};

static const char doc[] =
    "Print the digest of a model: a GGUF file, or a folder with config.json and safetensors.\v"
    "The digest names the model in tables, in pages and in the daemon. It covers all weights, and what "
    "config.json or the keys of the GGUF file say about the network; not names, metadata, or how the weights "
    "are divided into files. A GGUF file and a folder have different digests even if their weights are the "
    "same: 'kvcobra model alias' declares that they are one model. Adapters (LoRA) are not covered.\n\n"
    "Pickle files (.bin, .pt) are refused, since reading them can run code.\n\n"
    "The digest is remembered in $XDG_CACHE_HOME/kvcobra (~/.cache/kvcobra), by device, inode, size and "
    "times of "
    "every file, so that weights are read again only after a change.\n\n"
    "Example:\n\n"
    "  kvcobra model-id SmolLM2-135M-Instruct";

static error_t cmd_model_id_parse(int key, char *arg, struct argp_state *state)
{
    struct model_id_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->common;
        return 0;
    case ARGP_KEY_ARG:
        if (o->path)
            argp_error(state, "'%s' is one argument too many", arg);
        o->path = arg;
        return 0;
    case ARGP_KEY_END:
        if (!o->path)
            argp_error(state, "a GGUF file or a folder is needed");
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {NULL, cmd_model_id_parse, "PATH", doc, common_children, NULL, NULL};

static void cmd_model_id_progress(void *ctx, uint64_t bytes)
{
    progress_update(ctx, (double) bytes / 1e6);
}

/* ---- what was computed before ---- */

/* A model that is open. The calls of its kind compute its digest, and list the files that it is read from. */
struct model_id_source {
    const struct model_id_options *o;
    const void *model;
    int (*list)(const struct model_id_source *s, struct digest_cache_files *ret);
    int (*hash)(const struct model_id_source *s, struct progress *p, uint8_t *ret_digest, struct errmsg *e);
    uint64_t bytes; /* that are hashed */
    size_t n_tensors;
};

static int cmd_model_id_compute(const struct model_id_source *s, uint8_t *ret_digest)
{
    struct errmsg e = {""};
    struct progress p;
    int r;

    progress_start(&p, "hashing", "MB", (double) s->bytes / 1e6, s->o->common.quiet);
    r = s->hash(s, &p, ret_digest, &e);
    progress_end(&p);
    return r < 0 ? command_fail("%s", e.text) : COMMAND_OK;
}

static bool cmd_model_id_same_files(const struct digest_cache_files *a, const struct digest_cache_files *b)
{
    return a->bytes == b->bytes && memcmp(a->text, b->text, a->bytes) == 0;
}

/* The digest of @s, remembered or computed. */
static int cmd_model_id_of_source(const struct model_id_source *s, struct model_id_result *ret)
{
    _cleanup_(digest_cache_files_deinit) struct digest_cache_files before = {.text = NULL};
    _cleanup_(digest_cache_files_deinit) struct digest_cache_files after = {.text = NULL};
    _cleanup_(digest_cache_deinit) struct digest_cache cache = DIGEST_CACHE_INIT;
    struct digest_cache_entry entry = {.n_tensors = s->n_tensors};
    struct errmsg e = {""};
    int code;

    if (digest_cache_open(s->o->path, &cache, &e) < 0 && e.text[0])
        command_note(&s->o->common, "the digest is not remembered: %s", e.text);

    if (s->list(s, &before) == 0 && digest_cache_find(&cache, &before, &entry) &&
        entry.n_tensors == s->n_tensors) {
        memcpy(ret->digest, entry.digest, sizeof(entry.digest));
        return COMMAND_OK;
    }

    code = cmd_model_id_compute(s, entry.digest);
    if (code != COMMAND_OK)
        return code;

    entry.n_tensors = s->n_tensors;
    memcpy(ret->digest, entry.digest, sizeof(entry.digest));
    if (before.bytes > 0 && s->list(s, &after) == 0 && cmd_model_id_same_files(&before, &after))
        (void) digest_cache_put(&cache, &before, &entry); /* without a record the next run computes */
    return COMMAND_OK;
}

/* ---- a folder ---- */

static int cmd_model_id_list_folder(const struct model_id_source *s, struct digest_cache_files *ret)
{
    return model_folder_list_files(s->model, ret);
}

static int cmd_model_id_hash_folder(const struct model_id_source *s, struct progress *p, uint8_t *ret_digest,
                                    struct errmsg *e)
{
    return folder_digest(s->model, cmd_model_id_progress, p, ret_digest, e);
}

static int cmd_model_id_of_folder(const struct model_id_options *o, struct model_id_result *ret)
{
    _cleanup_(model_folder_deinit) struct model_folder f = {.fd = -1};
    struct errmsg e = {""};

    if (model_folder_open(o->path, &f, &e) < 0)
        return command_fail("%s", e.text);

    ret->format = "safetensors";
    ret->n_tensors = f.n_tensors;
    return cmd_model_id_of_source(&(struct model_id_source){.o = o,
                                                            .model = &f,
                                                            .list = cmd_model_id_list_folder,
                                                            .hash = cmd_model_id_hash_folder,
                                                            .bytes = f.bytes,
                                                            .n_tensors = f.n_tensors},
                                  ret);
}

/* ---- a file ---- */

struct model_id_gguf {
    const struct gguf *file;
    const struct network *net;
};

static int cmd_model_id_list_gguf(const struct model_id_source *s, struct digest_cache_files *ret)
{
    struct stat st;

    if (stat(s->o->path, &st) < 0)
        return -errno;
    return digest_cache_add_file(ret, "gguf", &st, (int64_t) time(NULL));
}

static int cmd_model_id_hash_gguf(const struct model_id_source *s, struct progress *p, uint8_t *ret_digest,
                                  struct errmsg *e)
{
    const struct model_id_gguf *g = s->model;

    return network_digest(g->net, g->file, cmd_model_id_progress, p, ret_digest, e);
}

static int cmd_model_id_of_file(const struct model_id_options *o, struct model_id_result *ret)
{
    _cleanup_(gguf_freep) struct gguf *file = NULL;
    _cleanup_(network_deinit) struct network net = {0};
    const char *suffix = strrchr(o->path, '.');
    struct errmsg e = {""};
    int r;

    if (suffix && strcmp(suffix, ".safetensors") == 0)
        return command_fail("%s is a file of a model, or a part of one: name the folder with its config.json",
                            o->path);

    r = gguf_open(o->path, &file, &e);
    if (r == 0)
        r = network_init(&net, file, &e);
    if (r < 0)
        return command_fail("%s", e.text);

    ret->format = "gguf";
    ret->n_tensors = gguf_tensor_count(file);
    return cmd_model_id_of_source(&(struct model_id_source){.o = o,
                                                            .model = &(struct model_id_gguf){file, &net},
                                                            .list = cmd_model_id_list_gguf,
                                                            .hash = cmd_model_id_hash_gguf,
                                                            .bytes = network_digest_bytes(file),
                                                            .n_tensors = ret->n_tensors},
                                  ret);
}

static int cmd_model_id_run(int argc, char **argv)
{
    struct model_id_options o = {.path = NULL};
    struct model_id_result result = {.format = NULL};
    char hex[DIGEST_HEX_BYTES];
    struct stat st;
    int code;

    command_parse(&argp, argc, argv, &o);
    if (stat(o.path, &st) < 0)
        return command_fail("cannot open %s: %s", o.path, strerror(errno));

    code = S_ISDIR(st.st_mode) ? cmd_model_id_of_folder(&o, &result) : cmd_model_id_of_file(&o, &result);
    if (code != COMMAND_OK)
        return code;

    (void) digest_hex(result.digest, hex);
    if (o.common.json)
        return report_json(json_pack("{s:s, s:s, s:I}", "digest", hex, "format", result.format, "tensors",
                                     (json_int_t) result.n_tensors));

    puts(hex);
    return COMMAND_OK;
}

COMMAND(cmd_model_id) = {
    .name = "model-id",
    .summary = "print the digest of a model",
    .run = cmd_model_id_run,
    .rank = 100,
    .related = "model",
};
