/* A statistics file as text on a terminal; see inspect.h. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "alloc/stats/stats.h"
#include "base/digest.h"
#include "tools/command/command.h"
#include "tools/command/human.h"
#include "tools/command/terminal.h"
#include "tools/inspect/inspect.h"

/* Names come from files: control characters must not reach the terminal. */
static char inspect_stats_shown(char c)
{
    return (unsigned char) c < ' ' || c == 0x7f ? '?' : c;
}

static void inspect_stats_print_name(const char *name)
{
    for (; *name; name++)
        putchar(inspect_stats_shown(*name));
}

/* Sources that stay apart; "solve --without" takes their numbers. */
static void inspect_stats_print_sources(const struct stats *s)
{
    static const char *const kinds[] = {"text ", "lines ", "", "small texts added up"};

    for (uint32_t i = 0; i < stats_domains(s); i++) {
        struct stats_domain_info info;
        char name[DIGEST_BYTES + 1] = "", hex[DIGEST_HEX_BYTES];

        stats_domain_info(s, i, &info);
        (void) digest_short(info.digest, hex);
        if (info.kind == SOURCE_REST) /* which have no digest */
            hex[0] = '\0';
        if (info.kind == SOURCE_MODEL) /* its name says so, and the kind of text */
            for (size_t k = 0; k < DIGEST_BYTES && info.digest[k]; k++)
                name[k] = inspect_stats_shown((char) info.digest[k]);
        terminal_print(stdout, 17, "  %s %u: %s%s, %ju tokens, vectors of %zu\n",
                       i == 0 ? "sources    " : "           ", i + 1, kinds[info.kind],
                       info.kind == SOURCE_MODEL ? name : hex, (uintmax_t) info.n_tokens, info.n_samples);
    }
}

int inspect_stats_text(const struct inspection *x)
{
    const struct stats *s = x->stats;
    const struct stats_options *o = stats_get_options(s);
    const struct geometry *g = &o->geometry;
    char hex[DIGEST_HEX_BYTES], size[HUMAN_BYTES];

    if (stats_is_moments(s))
        terminal_print(stdout, 14, "%s: moments of keys and values\n\n", x->request.stats_path);
    else
        terminal_print(stdout, 14, "%s: calibration statistics, %s\n\n", x->request.stats_path,
                       human_bytes(stats_file_bytes(s), size));
    terminal_print(stdout, 14, "  statistics  %s\n", digest_hex(x->stats_digest, hex));
    printf("  model       %s\n              ", digest_hex(o->model_digest, hex));
    inspect_stats_print_name(o->model_name);
    terminal_print(stdout, 14,
                   "\n  geometry    %u layers, %u query heads on %u KV heads of dimension %u,\n"
                   "              %u of it rotated\n",
                   g->n_layers, g->n_heads, g->n_kv_heads, g->d, g->n_rot);
    terminal_print(
        stdout, 14,
        "  tokens      %ju measured, without the first %u of each text;\n              vectors of %zu "
        "stored\n",
        (uintmax_t) stats_tokens(s), o->n_sink, stats_samples(s));
    inspect_stats_print_sources(s);
    terminal_print(stdout, 14, "  metrics     mse%s%s%s%s\n", stats_has_queries(s) ? ", query" : "",
                   o->want_output ? ", output" : "", o->want_attention ? ", attention" : "",
                   stats_has_fisher(s) ? ", fisher" : "");
    if (o->want_attention)
        terminal_print(stdout, 14, "              attention from every %uth key, %s\n", o->key_stride,
                       stats_has_depth(s) ? "depth weights measured" : "without depth weights");
    terminal_print(stdout, 14, "  seed        %ju\n", (uintmax_t) o->seed);
    return COMMAND_OK;
}
