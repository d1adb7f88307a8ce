/* The lines of `kvcobra top`; see top_view.h. */
#include "tools/operate/top_view.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "tools/command/human.h"
#include "tools/command/operator_tables.h"
#include "tools/command/tenant_name.h"
#include "tools/operate/top_amounts.h"
#include "tools/operate/top_history.h"
#include "tools/operate/tier_state.h"

enum {
    LINE_BYTES = 512,
    BAR_CELLS = 20,
    HEAD_LINES = 4,
    TABLE_LINES = 2,
    TABLE_COLUMNS = 79,
    NAME_COLUMNS = 16,
    NAME_COLUMNS_MAX = 40
};

const char *const top_sort_names[] = {
    [TOP_BY_USED] = "used",     [TOP_BY_NAME] = "name",         [TOP_BY_PAGES] = "pages",
    [TOP_BY_LEASES] = "leases", [TOP_BY_HIT_RATE] = "hit-rate", [TOP_BY_EVICTIONS] = "evictions",
    [TOP_N_SORTS] = NULL};

/* Colours of lines: escape sequences of ECMA-48. */
#define STYLE_PLAIN ""
#define STYLE_HEADING "\033[1m"
#define STYLE_NOTE "\033[33m"
#define STYLE_WRONG "\033[31m"

struct top_view_screen {
    FILE *f;
    unsigned width;
    const struct top_look *look;
};

/* Prints a line, cut to the width. */
__attribute__((format(printf, 3, 0))) static void top_view_print_line(const struct top_view_screen *s,
                                                                      const char *style, const char *fmt,
                                                                      va_list ap)
{
    bool styled = s->look->colour && style[0] != '\0';
    char text[LINE_BYTES];
    int n = vsnprintf(text, sizeof(text), fmt, ap);

    if (n < 0)
        n = 0;
    if (n >= LINE_BYTES)
        n = LINE_BYTES - 1;
    if ((unsigned) n > s->width)
        n = (int) s->width;

    for (int i = 0; i < n; i++) /* names come from clients and drivers: no control characters */
        if (text[i] < 0x20 || text[i] > 0x7e)
            text[i] = '?';
    while (n > 0 && text[n - 1] == ' ')
        n--;
    fprintf(s->f, "%s%.*s%s\n", styled ? style : "", n, text, styled ? "\033[0m" : "");
}

__attribute__((format(printf, 2, 3))) static void top_view_line(const struct top_view_screen *s,
                                                                const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    top_view_print_line(s, STYLE_PLAIN, fmt, ap);
    va_end(ap);
}

__attribute__((format(printf, 3, 4))) static void top_view_styled(const struct top_view_screen *s,
                                                                  const char *style, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    top_view_print_line(s, style, fmt, ap);
    va_end(ap);
}

/* ---- rates and counts ---- */

static double top_view_interval(const struct top_moment *now, const struct top_moment *before)
{
    double seconds = before ? now->seconds - before->seconds : (double) now->status->uptime_ms * 1e-3;

    return seconds > 1e-3 ? seconds : 1e-3;
}

/* ---- head ---- */

static void top_view_bar(uint64_t part, uint64_t whole, char ret[static BAR_CELLS + 1])
{
    uint64_t n = 0;

    if (whole > 0 && part >= whole)
        n = BAR_CELLS;
    else if (whole > 0)
        n = (uint64_t) ((double) part / (double) whole * BAR_CELLS + 0.5);

    for (unsigned i = 0; i < BAR_CELLS; i++)
        ret[i] = i < n ? '#' : '.';
    ret[BAR_CELLS] = '\0';
}

static void top_view_gpu_line(const struct top_view_screen *s, const Kvcobra__DeviceStatus *d)
{
    char pool[HUMAN_BYTES], pages[HUMAN_BYTES], waste[HUMAN_BYTES], cells[BAR_CELLS + 1];

    if (d->state == KVCOBRA__DEVICE_STATE__DEVICE_READY) {
        top_view_bar(d->page_bytes, d->pool_bytes, cells);
        top_view_line(s, "%-5.15s [%s] %s in pages of %s, %s waste", d->name, cells,
                      human_bytes(d->page_bytes, pages), human_bytes(d->pool_bytes, pool),
                      human_bytes(d->waste_bytes, waste));
    } else {
        top_view_styled(s, d->state == KVCOBRA__DEVICE_STATE__DEVICE_OPENING ? STYLE_NOTE : STYLE_WRONG,
                        "%-5.15s %s", d->name,
                        d->state == KVCOBRA__DEVICE_STATE__DEVICE_OPENING ? "is being opened" : d->message);
    }
}

static void top_view_tiers(const struct top_view_screen *s, const Kvcobra__StatusReply *st)
{
    bool is_fine = tier_state_is_fine(st->disk_tier) && tier_state_is_fine(st->cluster_tier);

    if (tier_state_exists(st->disk_tier) || tier_state_exists(st->cluster_tier))
        top_view_styled(s, is_fine ? STYLE_PLAIN : STYLE_WRONG, "tiers  disk %s  cluster %s",
                        tier_state_show(st->disk_tier), tier_state_show(st->cluster_tier));
}

static void top_view_head(const struct top_view_screen *s, const struct top_moment *now,
                          const struct top_moment *before)
{
    const Kvcobra__StatusReply *st = now->status;
    char up[HUMAN_BYTES], pool[HUMAN_BYTES], pages[HUMAN_BYTES], waste[HUMAN_BYTES], cells[BAR_CELLS + 1],
        r[16];

    top_view_styled(s, st->draining ? STYLE_WRONG : STYLE_PLAIN,
                    "kvcobrad %s  process %ju  up %s  restart=%s%s", st->version, (uintmax_t) st->pid,
                    human_seconds((double) st->uptime_ms * 1e-3, up), st->restart,
                    st->draining ? "  DRAINING" : "");
    top_view_bar(st->page_bytes, st->pool_bytes, cells);
    top_view_line(s, "pool  [%s] %s in pages of %s, %s waste", cells, human_bytes(st->page_bytes, pages),
                  human_bytes(st->pool_bytes, pool), human_bytes(st->waste_bytes, waste));
    for (size_t i = 1; i < st->n_devices; i++)
        top_view_gpu_line(s, st->devices[i]);
    top_view_tiers(s, st);
    top_view_line(s, "%ju sessions  %ju leases on %ju pages  %s evictions/s  %ju packets refused",
                  (uintmax_t) st->sessions, (uintmax_t) st->leases, (uintmax_t) st->held_pages,
                  top_amounts_rate(top_amounts_growth(st->evictions, before ? before->status->evictions : 0),
                                   top_view_interval(now, before), r),
                  (uintmax_t) st->refused_packets);
}

/* ---- tenants ---- */

static const Kvcobra__TenantStatus *top_view_earlier_tenant(const struct top_moment *before, const char *name)
{
    for (size_t i = 0; before && i < before->status->n_tenants; i++)
        if (strcmp(before->status->tenants[i]->name, name) == 0)
            return before->status->tenants[i];
    return NULL;
}

/* A tenant and how its counters grew. */
struct top_view_tenant {
    const Kvcobra__TenantStatus *now;
    uint64_t hits, misses, evictions;
    double seconds;
};

static double top_view_hit_share(const struct top_view_tenant *t)
{
    return t->hits + t->misses == 0 ? -1 : (double) t->hits / (double) (t->hits + t->misses);
}

/* qsort_r(): the largest first. */
static int top_view_compare(const void *a, const void *b, void *ctx)
{
    const struct top_view_tenant *x = a, *y = b;
    double u = (double) x->now->used_bytes, v = (double) y->now->used_bytes;

    switch (*(const enum top_sort *) ctx) {
    case TOP_BY_NAME:
        return strcmp(x->now->name, y->now->name);
    case TOP_BY_PAGES:
        u = (double) x->now->pages, v = (double) y->now->pages;
        break;
    case TOP_BY_LEASES:
        u = (double) x->now->leases, v = (double) y->now->leases;
        break;
    case TOP_BY_HIT_RATE:
        u = top_view_hit_share(x), v = top_view_hit_share(y);
        break;
    case TOP_BY_EVICTIONS:
        u = (double) x->evictions, v = (double) y->evictions;
        break;
    case TOP_BY_USED:
    case TOP_N_SORTS:
        break;
    }

    if (u != v)
        return u < v ? 1 : -1;
    return strcmp(x->now->name, y->now->name);
}

/* All tenants in the order of @sort. NULL: out of memory. */
static struct top_view_tenant *top_view_sort_tenants(const struct top_moment *now,
                                                     const struct top_moment *before, enum top_sort sort)
{
    static const Kvcobra__TenantStatus none = KVCOBRA__TENANT_STATUS__INIT;
    size_t n = now->status->n_tenants;
    struct top_view_tenant *all = calloc(n + 1, sizeof(*all));

    for (size_t i = 0; all && i < n; i++) {
        const Kvcobra__TenantStatus *t = now->status->tenants[i],
                                    *b = top_view_earlier_tenant(before, t->name);

        b = b ? b : &none;
        all[i] = (struct top_view_tenant){.now = t,
                                          .hits = top_amounts_growth(t->hits, b->hits),
                                          .misses = top_amounts_growth(t->misses, b->misses),
                                          .evictions = top_amounts_growth(t->evictions, b->evictions),
                                          .seconds = top_view_interval(now, before)};
    }
    if (all)
        qsort_r(all, n, sizeof(*all), top_view_compare, &sort);
    return all;
}

/* Columns of tenants in the order in which they stand; @rank: the lowest numbers are shown first. */
enum top_column {
    USED,
    QUOTA,
    HELD,
    PAGES,
    LEASES,
    HITS,
    EVICTIONS,
    SESSIONS,
    HITS_S,
    MISSES_S,
    ARENA,
    GUARANTEE,
    N_COLUMNS
};

static const struct {
    const char *title;
    int width, rank;
} top_columns[N_COLUMNS] = {
    [USED] = {"USED", 10, 0},        [QUOTA] = {"QUOTA", 10, 4},      [HELD] = {"HELD", 10, 3},
    [PAGES] = {"PAGES", 6, 5},       [LEASES] = {"LEASES", 6, 6},     [HITS] = {"HIT %", 6, 1},
    [EVICTIONS] = {"EVICT/S", 8, 2}, [SESSIONS] = {"SESSIONS", 8, 7}, [HITS_S] = {"HITS/S", 8, 8},
    [MISSES_S] = {"MISSES/S", 8, 9}, [ARENA] = {"ARENAS", 10, 10},    [GUARANTEE] = {"GUARANTEE", 10, 11},
};

/* The columns that fit, as a set of bits; a column is shown only with all that have lower ranks. */
static unsigned top_view_fit_columns(unsigned width, int *ret_name_columns)
{
    int left = (int) width - NAME_COLUMNS;
    unsigned shown = 0;

    for (int rank = 0, column = 0; rank < N_COLUMNS; rank++) {
        for (column = 0; top_columns[column].rank != rank;)
            column++;
        if (left < top_columns[column].width + 1)
            break;
        left -= top_columns[column].width + 1;
        shown |= 1u << column;
    }

    *ret_name_columns = NAME_COLUMNS + (left > 0 ? left : 0);
    *ret_name_columns = *ret_name_columns < NAME_COLUMNS_MAX ? *ret_name_columns : NAME_COLUMNS_MAX;
    return shown;
}

static const char *top_view_tenant_cell(const struct top_view_tenant *t, enum top_column column,
                                        char ret[static HUMAN_BYTES])
{
    const Kvcobra__TenantStatus *x = t->now;

    switch (column) {
    case USED:
        return human_bytes(x->used_bytes, ret);
    case QUOTA:
        return human_bytes(x->quota_bytes, ret);
    case HELD:
        return human_bytes(x->held_bytes, ret);
    case PAGES:
        return top_amounts_count(x->pages, ret);
    case LEASES:
        return top_amounts_count(x->leases, ret);
    case HITS:
        return top_amounts_hit_rate(t->hits, t->misses, ret);
    case EVICTIONS:
        return top_amounts_rate(t->evictions, t->seconds, ret);
    case SESSIONS:
        return top_amounts_count(x->sessions, ret);
    case HITS_S:
        return top_amounts_rate(t->hits, t->seconds, ret);
    case MISSES_S:
        return top_amounts_rate(t->misses, t->seconds, ret);
    case ARENA:
        return human_bytes(x->arena_bytes, ret);
    case GUARANTEE:
        return human_bytes(x->guarantee_bytes, ret);
    case N_COLUMNS:
        break;
    }

    return "";
}

/* @t: NULL: the heading. */
static void top_view_tenant_line(const struct top_view_screen *s, const struct top_view_tenant *t,
                                 unsigned shown, int name_columns)
{
    char line[LINE_BYTES], cell[HUMAN_BYTES], name[TENANT_NAME_BYTES] = "TENANT";
    bool is_full = t && t->now->used_bytes > t->now->quota_bytes / 100 * 95;
    size_t n;

    if (t && name_columns > NAME_COLUMNS)
        (void) tenant_name_show(t->now->name, name);
    else if (t)
        (void) snprintf(name, sizeof(name), "%s", t->now->name);

    n = (size_t) snprintf(line, sizeof(line), "%-*.*s", name_columns, name_columns, name);
    for (unsigned c = 0; c < N_COLUMNS; c++)
        if (shown & 1u << c)
            n += (size_t) snprintf(line + n, sizeof(line) - n, " %*s", top_columns[c].width,
                                   t ? top_view_tenant_cell(t, (enum top_column) c, cell)
                                     : top_columns[c].title);

    if (!t)
        top_view_styled(s, STYLE_HEADING, "%s", line);
    else
        top_view_styled(s, is_full ? STYLE_NOTE : STYLE_PLAIN, "%s", line);
}

/* Names the usual columns that the window has no room for. Return: whether there are any. */
static bool top_view_left_out(unsigned shown, char *ret, size_t room)
{
    size_t n = (size_t) snprintf(ret, room, "no room for");
    bool any = false;

    for (unsigned c = USED; c <= EVICTIONS; c++)
        if (!(shown & 1u << c)) {
            n += (size_t) snprintf(ret + n, room - n, "%s %s", any ? "," : "", top_columns[c].title);
            any = true;
        }
    return any;
}

/* ---- tables ---- */

static int top_view_by_pages(const void *a, const void *b)
{
    const Kvcobra__SpaceStatus *x = *(const Kvcobra__SpaceStatus *const *) a,
                               *y = *(const Kvcobra__SpaceStatus *const *) b;

    if (x->pages != y->pages)
        return x->pages < y->pages ? 1 : -1;
    return memcmp(x->table_digest.data, y->table_digest.data, KVC_DIGEST_BYTES);
}

static const Kvcobra__SpaceStatus *top_view_earlier_space(const struct top_moment *before,
                                                          const Kvcobra__SpaceStatus *x)
{
    for (size_t i = 0; before && i < before->status->n_spaces; i++) {
        const Kvcobra__SpaceStatus *y = before->status->spaces[i];

        if (memcmp(x->table_digest.data, y->table_digest.data, KVC_DIGEST_BYTES) == 0 &&
            x->first_head == y->first_head && x->n_heads == y->n_heads)
            return y;
    }
    return NULL;
}

static const char *top_view_state_of(const struct top_moment *now, const uint8_t *digest)
{
    for (size_t i = 0; i < now->tables->n_tables; i++)
        if (memcmp(now->tables->tables[i]->digest.data, digest, KVC_DIGEST_BYTES) == 0)
            return operator_table_state(now->tables->tables[i]->state);
    return "?";
}

static void top_view_space_line(const struct top_view_screen *s, const struct top_moment *now,
                                const Kvcobra__SpaceStatus *x, const Kvcobra__SpaceStatus *b, double seconds)
{
    static const Kvcobra__SpaceStatus none = KVCOBRA__SPACE_STATUS__INIT;
    char digest[DIGEST_HEX_BYTES], heads[24], pages[16], tokens[16], room[16], held[16], leased[16],
        evictions[16];

    if (!b)
        b = &none;
    (void) snprintf(heads, sizeof(heads), "%u-%u", x->first_head, x->first_head + x->n_heads - 1);
    top_view_line(s, "%-12s %-8s %7s %6s %8s %8s %6s %8s %8s", digest_short(x->table_digest.data, digest),
                  top_view_state_of(now, x->table_digest.data), heads, top_amounts_count(x->pages, pages),
                  top_amounts_count(x->tokens, tokens), top_amounts_count(x->tokens_free, room),
                  top_amounts_count(x->held_pages, held),
                  top_amounts_rate(top_amounts_growth(x->leased, b->leased), seconds, leased),
                  top_amounts_rate(top_amounts_growth(x->evictions, b->evictions), seconds, evictions));
}

/* ---- the screen ---- */

/* Divides @lines between two tables: none gets more than its rows, and each gets half if both have more
 * rows. */
static void top_view_share(unsigned lines, size_t n_a, size_t n_b, size_t *ret_a, size_t *ret_b)
{
    size_t half = lines / 2;

    if (n_a <= half || n_a + n_b <= lines)
        *ret_a = n_a;
    else if (n_b < lines - half)
        *ret_a = lines - n_b;
    else
        *ret_a = half;
    *ret_b = n_b <= lines - *ret_a ? n_b : lines - *ret_a;
}

/* How many of @n rows are shown in @room lines, the last of which counts the other rows if there are more. */
static size_t top_view_shown(size_t n, size_t room)
{
    if (n <= room)
        return n;
    return room > 0 ? room - 1 : 0;
}

/* The tables in the order of their pages. NULL: out of memory. */
static const Kvcobra__SpaceStatus **top_view_sort_spaces(const Kvcobra__StatusReply *st)
{
    const Kvcobra__SpaceStatus **p = calloc(st->n_spaces + 1, sizeof(*p));

    for (size_t i = 0; p && i < st->n_spaces; i++)
        p[i] = st->spaces[i];
    if (p)
        qsort(p, st->n_spaces, sizeof(*p), top_view_by_pages);
    return p;
}

static void top_view_help(const struct top_view_screen *s)
{
    static const char *const lines[] = {
        "q, Ctrl-C   quit",
        "s           sort tenants by the next column",
        "g           the last intervals, and back",
        "h, ?        this help, and back",
        "",
        "USED        pages, arenas, index and records of a tenant;",
        "            yellow: above 95 % of QUOTA",
        "HELD        pages that clients hold: cannot be evicted",
        "HIT %       looked-up chunks that were found, recently",
        "EVICT/S     pages evicted per second",
        "FREE TOK    tokens that one tenant could still add",
        "",
        "A wider window has more columns and names of users.",
        "'kvcobra clients' shows the processes of a tenant.",
    };

    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
        top_view_line(s, "%s", lines[i]);
}

/* Return: whether there was memory. */
static bool top_view_tables(const struct top_view_screen *s, const struct top_moment *now,
                            const struct top_moment *before, unsigned height)
{
    const Kvcobra__StatusReply *st = now->status;
    _cleanup_(freep) struct top_view_tenant *tenants = top_view_sort_tenants(now, before, s->look->sort);
    _cleanup_(freep) const Kvcobra__SpaceStatus **spaces = top_view_sort_spaces(st);
    char left_out[160];
    int name_columns;
    unsigned shown = top_view_fit_columns(s->width, &name_columns), fixed = HEAD_LINES + TABLE_LINES + 1;
    bool cut = top_view_left_out(shown, left_out, sizeof(left_out));
    size_t room_tenants = st->n_tenants, room_spaces = st->n_spaces, i;

    if (!tenants || !spaces)
        return false;

    fixed += (unsigned) (st->n_devices > 1 ? st->n_devices - 1 : 0) + cut + (s->width < TABLE_COLUMNS) +
             s->look->keys;
    if (height > 0)
        top_view_share(height > fixed ? height - fixed : 0, st->n_tenants, st->n_spaces, &room_tenants,
                       &room_spaces);
    top_view_tenant_line(s, NULL, shown, name_columns);
    for (i = 0; i < top_view_shown(st->n_tenants, room_tenants); i++)
        top_view_tenant_line(s, &tenants[i], shown, name_columns);
    if (i < st->n_tenants && room_tenants > 0)
        top_view_line(s, "... and %zu more", st->n_tenants - i);
    if (cut)
        top_view_styled(s, STYLE_NOTE, "%s", left_out);
    top_view_line(s, "%s", "");
    top_view_styled(s, STYLE_HEADING, "%-12s %-8s %7s %6s %8s %8s %6s %8s %8s", "TABLE", "STATE", "HEADS",
                    "PAGES", "TOKENS", "FREE TOK", "HELD", "LEASED/S", "EVICT/S");
    for (i = 0; i < top_view_shown(st->n_spaces, room_spaces); i++)
        top_view_space_line(s, now, spaces[i], top_view_earlier_space(before, spaces[i]),
                            top_view_interval(now, before));
    if (i < st->n_spaces && room_spaces > 0)
        top_view_line(s, "... and %zu more", st->n_spaces - i);
    if (s->width < TABLE_COLUMNS)
        top_view_styled(s, STYLE_NOTE, "rows of tables need %d columns", TABLE_COLUMNS);
    return true;
}

static bool top_view_print(const struct top_view_screen *s, const struct top_moment *now,
                           const struct top_moment *before, unsigned height)
{
    top_view_head(s, now, before);
    top_view_line(s, "%s", "");
    if (s->look->help)
        top_view_help(s);
    else if (s->look->history)
        top_history_print(s->look->history, s->width, s->f);
    else if (!top_view_tables(s, now, before, height))
        return false;
    if (s->look->keys)
        top_view_styled(s, STYLE_HEADING, "q quit  s sort: %s  g history  h help",
                        top_sort_names[s->look->sort]);
    return true;
}

/* For a window with fewer lines than the headings have. */
static void top_view_cut(char *text, unsigned height)
{
    char *p = text;

    while (height > 0 && (p = strchr(p, '\n')) != NULL) {
        p++;
        if (--height == 0)
            *p = '\0';
    }
}

char *top_view(const struct top_moment *now, const struct top_moment *before, const struct top_look *look,
               unsigned width, unsigned height)
{
    char *text = NULL;
    size_t n = 0;
    struct top_view_screen s = {.f = open_memstream(&text, &n), .width = width, .look = look};
    bool whole;

    if (!s.f)
        return NULL;

    whole = top_view_print(&s, now, before, height);
    if (fclose(s.f) != 0 || !whole) {
        free(text);
        return NULL;
    }

    if (height > 0)
        top_view_cut(text, height);
    return text;
}
