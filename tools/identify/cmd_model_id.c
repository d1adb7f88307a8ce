/* kvcobra model-id: prints the digest of a model, which tables, pages and chunk keys of it have. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "base/errmsg.h"
#include "tools/command/command.h"
#include "tools/command/progress.h"
#include "tools/command/report.h"
#include "tools/engine/gguf.h"
#include "tools/engine/network.h"
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

/* ---- a folder ---- */

static int cmd_model_id_of_folder(const struct model_id_options *o, struct model_id_result *ret)
{
    _cleanup_(model_folder_deinit) struct model_folder f = {.fd = -1};
    struct errmsg e = {""};
    struct progress p;
    int r = model_folder_open(o->path, &f, &e);

    if (r < 0)
        return command_fail("%s", e.text);

    progress_start(&p, "hashing", "MB", (double) f.bytes / 1e6, o->common.quiet);
    r = folder_digest(&f, cmd_model_id_progress, &p, ret->digest, &e);
    progress_end(&p);
    if (r < 0)
        return command_fail("%s", e.text);

    ret->format = "safetensors";
    ret->n_tensors = f.n_tensors;
    return COMMAND_OK;
}

/* ---- a file ---- */

static int cmd_model_id_hash_gguf(const struct model_id_options *o, const struct network *net,
                                  const struct gguf *g, uint8_t *ret_digest, struct errmsg *e)
{
    struct progress p;
    int r;

    progress_start(&p, "hashing", "MB", (double) network_digest_bytes(g) / 1e6, o->common.quiet);
    r = network_digest(net, g, cmd_model_id_progress, &p, ret_digest, e);
    progress_end(&p);
    return r;
}

static int cmd_model_id_of_file(const struct model_id_options *o, struct model_id_result *ret)
{
    _cleanup_(gguf_freep) struct gguf *g = NULL;
    _cleanup_(network_deinit) struct network net = {0};
    const char *suffix = strrchr(o->path, '.');
    struct errmsg e = {""};
    int r;

    if (suffix && strcmp(suffix, ".safetensors") == 0)
        return command_fail("%s is a file of a model, or a part of one: name the folder with its config.json",
                            o->path);

    r = gguf_open(o->path, &g, &e);
    if (r == 0)
        r = network_init(&net, g, &e);
    if (r == 0)
        r = cmd_model_id_hash_gguf(o, &net, g, ret->digest, &e);
    if (r < 0)
        return command_fail("%s", e.text);

    ret->format = "gguf";
    ret->n_tensors = gguf_tensor_count(g);
    return COMMAND_OK;
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

const struct command cmd_model_id = {"model-id", "print the digest of a model", cmd_model_id_run};
