/* A statistics file for people and programs. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "alloc/stats.h"
#include "base/errmsg.h"
#include "base/cleanup.h"
#include "tools/command.h"
#include "tools/inspect.h"
#include "tools/report.h"

/* A model's name comes from its file: printed as it is only as far as a terminal takes no harm. */
static void print_name(const char *name)
{
    for (; *name; name++)
        putchar((unsigned char) *name < ' ' || *name == 0x7f ? '?' : *name);
}

static int print_text(const char *path, const struct stats *s, const uint8_t *digest)
{
    const struct stats_options *o = stats_get_options(s);
    const struct geometry *g = &o->geometry;
    uint64_t bytes = stats_bytes(o) + (stats_has_fisher(s) ? stats_fisher_bytes(o) : 0);
    char hex[DIGEST_HEX_BYTES], size[HUMAN_BYTES];

    printf("%s: calibration statistics, %s\n\n", path, human_bytes(bytes, size));
    printf("  statistics  %s\n", digest_hex(digest, hex));
    printf("  model       %s ", digest_hex(o->model_digest, hex));
    print_name(o->model_name);
    printf("\n  geometry    %u layers, %u query heads on %u KV heads of dimension %u, %u of it rotated\n", g->n_layers,
           g->n_heads, g->n_kv_heads, g->d, g->n_rot);
    printf("  tokens      %ju counted, the first %u of each text left out; vectors of %zu kept\n",
           (uintmax_t) stats_tokens(s), o->n_sink, stats_samples(s));
    printf("  metrics     mse%s%s%s%s\n", stats_has_queries(s) ? ", query" : "", o->want_output ? ", output" : "",
           o->want_attention ? ", attention" : "",
           stats_has_fisher(s) ? ", fisher" : "");
    if (o->want_attention)
        printf("              attention from every %uth key, %s\n", o->key_stride,
               stats_has_depth(s) ? "depth weights measured" : "without depth weights");
    printf("  seed        %ju\n", (uintmax_t) o->seed);
    return COMMAND_OK;
}

static int print_json(const struct stats *s, const uint8_t *digest)
{
    const struct stats_options *o = stats_get_options(s);
    const struct geometry *g = &o->geometry;
    char hex[DIGEST_HEX_BYTES], model[DIGEST_HEX_BYTES], seed[24];

    (void) snprintf(seed, sizeof(seed), "%ju", (uintmax_t) o->seed); /* 64 bits do not fit JSON's numbers */
    return report_json(json_pack(
        "{s:s, s:s, s:s, s:o, s:{s:i, s:i, s:i, s:i, s:i, s:f}, s:i, s:I, s:I, s:i, s:b, s:b, s:b, s:s}",
        "kind", "statistics", "digest", digest_hex(digest, hex), "model_digest", digest_hex(o->model_digest, model),
        "model_name", utf8_json(o->model_name, strnlen(o->model_name, sizeof(o->model_name))),
        "geometry", "n_layers", (int) g->n_layers, "n_heads", (int) g->n_heads, "n_kv_heads", (int) g->n_kv_heads,
        "d", (int) g->d, "n_rot", (int) g->n_rot, "attn_scale", g->attn_scale,
        "n_sink", (int) o->n_sink, "tokens", (json_int_t) stats_tokens(s), "samples", (json_int_t) stats_samples(s),
        "key_stride", (int) o->key_stride, "attention", (int) o->want_attention, "fisher",
        (int) stats_has_fisher(s), "depth_weights", (int) stats_has_depth(s), "seed", seed));
}

int inspect_stats(const char *path, bool json)
{
    _cleanup_(stats_freep) struct stats *s = NULL;
    uint8_t digest[DIGEST_BYTES];
    struct errmsg e = { "" };

    if (stats_load(path, &s, &e) < 0 || stats_digest(s, digest, &e) < 0)
        return command_fail("%s", e.text);
    return json ? print_json(s, digest) : print_text(path, s, digest);
}
