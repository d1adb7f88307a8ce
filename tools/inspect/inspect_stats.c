/* A statistics file as text on a terminal; see inspect.h. */
#include <stdint.h>
#include <stdio.h>

#include "alloc/stats.h"
#include "base/digest.h"
#include "tools/command/command.h"
#include "tools/command/human.h"
#include "tools/inspect/inspect.h"

/* The model's name comes from its file: control characters must not reach the terminal. */
static void inspect_stats_print_name(const char *name)
{
    for (; *name; name++)
        putchar((unsigned char) *name < ' ' || *name == 0x7f ? '?' : *name);
}

int inspect_stats_text(const struct inspection *x)
{
    const struct stats *s = x->stats;
    const struct stats_options *o = stats_get_options(s);
    const struct geometry *g = &o->geometry;
    char hex[DIGEST_HEX_BYTES], size[HUMAN_BYTES];

    if (stats_is_moments(s))
        printf("%s: moments of keys and values\n\n", x->request.stats_path);
    else
        printf("%s: calibration statistics, %s\n\n", x->request.stats_path,
               human_bytes(stats_file_bytes(s), size));
    printf("  statistics  %s\n", digest_hex(x->stats_digest, hex));
    printf("  model       %s\n              ", digest_hex(o->model_digest, hex));
    inspect_stats_print_name(o->model_name);
    printf("\n  geometry    %u layers, %u query heads on %u KV heads of dimension %u,\n"
           "              %u of it rotated\n",
           g->n_layers, g->n_heads, g->n_kv_heads, g->d, g->n_rot);
    printf("  tokens      %ju measured, without the first %u of each text;\n              vectors of %zu "
           "stored\n",
           (uintmax_t) stats_tokens(s), o->n_sink, stats_samples(s));
    printf("  metrics     mse%s%s%s%s\n", stats_has_queries(s) ? ", query" : "",
           o->want_output ? ", output" : "", o->want_attention ? ", attention" : "",
           stats_has_fisher(s) ? ", fisher" : "");
    if (o->want_attention)
        printf("              attention from every %uth key, %s\n", o->key_stride,
               stats_has_depth(s) ? "depth weights measured" : "without depth weights");
    printf("  seed        %ju\n", (uintmax_t) o->seed);
    return COMMAND_OK;
}
