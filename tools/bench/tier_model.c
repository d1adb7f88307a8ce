/* First tokens of a real model; see tier_model.h. */
#include "tools/bench/tier_model.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/stream_file.h"
#include "tools/bench/tier_place.h"
#include "tools/bench/tier_report.h"
#include "tools/command/find_daemon.h"

enum {
    MODEL_PAGE_BYTES = 3 << 19, /* room for a prompt of 128 pages of a model with 8 billion parameters */
    MODEL_PAGES = 128,
    TABLE_BYTES_MAX = 1 << 30,
};

/* One process that generates a token after the prompt. */
static int tier_model_run(const struct tier_model_options *o, const struct tier_place *p, size_t source,
                          struct tier_results *x, struct errmsg *e)
{
    _cleanup_(process_deinit) struct process child = PROCESS_INIT("kvcobra generate");
    struct process *const ps[] = {&child};
    const char *const argv[] = {
        "kvcobra",  "generate",       o->model,   "--share", "--prompt-file", o->prompt_file,
        "--socket", p->daemon.socket, "--tokens", "1",       "--ignore-eos",  "--json",
        NULL};
    char path[PATH_MAX];
    json_int_t n_prompt = 0, n_matched = 0;
    json_t *json;
    int r = find_kvcobra(path, e);

    if (r == 0)
        r = process_start(&child, path, argv, PROCESS_CAPTURE, e);
    if (r == 0)
        r = process_wait(ps, 1, 0, PROCESS_EXITS, -1, e);
    if (r < 0)
        return r;
    if (!process_succeeded(&child, e))
        return -ECANCELED;

    json = json_loads(child.out ? child.out : "", 0, NULL);
    r = json_unpack(json, "{s:F, s:I, s:I}", "first_token_seconds", &x->first_token_s[source],
                    "prompt_tokens", &n_prompt, "matched_tokens", &n_matched);
    json_decref(json);
    if (r < 0)
        return fail(e, -EPROTO, "the output of 'kvcobra generate --json' lacks expected keys");
    x->prompt_tokens = (size_t) n_prompt;
    x->matched_tokens[source] = (size_t) n_matched;
    return source == TIER_COMPUTED || n_matched > 0
               ? 0
               : fail(e, -ENODATA, "no token of the prompt was found: is it longer than 128 tokens?");
}

static int tier_model_activate(const struct tier_model_options *o, struct tier_place *p, struct errmsg *e)
{
    _cleanup_(freep) void *table = NULL;
    size_t bytes;
    int r = stream_file_read(o->table, TABLE_BYTES_MAX, &table, &bytes, e);

    return r < 0 ? r : tier_place_activate(p, table, bytes, e);
}

int tier_model_measure(const struct tier_model_options *o, struct tier_results *x, struct errmsg *e)
{
    const struct tier_place_options where = {.daemon = o->daemon,
                                             .disk_parent = o->folder,
                                             .has_cluster = o->has_cluster,
                                             .page_bytes = MODEL_PAGE_BYTES,
                                             .n_pages = MODEL_PAGES,
                                             .depth = o->depth};
    _cleanup_(tier_place_end) struct tier_place place = TIER_PLACE_INIT;
    int r = tier_place_begin(&place, &where, e);

    x->model = o->model;
    if (r == 0)
        r = tier_model_activate(o, &place, e);
    if (r == 0)
        r = tier_model_run(o, &place, TIER_COMPUTED, x, e);
    if (r == 0)
        r = tier_place_wait_written(&place, e);
    if (r == 0)
        r = tier_model_run(o, &place, TIER_FROM_MEMORY, x, e);
    if (r == 0)
        r = tier_place_evict(&place, e);
    if (r == 0)
        r = tier_model_run(o, &place, TIER_FROM_DISK, x, e);
    if (r < 0 || !where.has_cluster)
        return r;

    r = tier_place_evict(&place, e);
    if (r == 0)
        r = tier_place_drop(&place, e);
    return r < 0 ? r : tier_model_run(o, &place, TIER_FROM_CLUSTER, x, e);
}
