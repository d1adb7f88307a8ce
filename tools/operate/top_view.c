/* The lines of `kvcobra top`; see top_view.h. */
#include "tools/operate/top_view.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "tools/command/human.h"
#include "tools/command/operator_tables.h"
#include "tools/command/tenant_name.h"
#include "tools/operate/tier_state.h"

enum { LINE_BYTES = 512, BAR_CELLS = 20, TABLE_COLUMNS = 79, NAME_COLUMNS = 16, NAME_COLUMNS_MAX = 40 };
enum { FIXED_LINES = 7 }; /* three of the head, a blank one before each table, two headings */
enum { CHART_ROWS = 4, LABEL_COLUMNS = 8, CHART_WIDTH_MIN = LABEL_COLUMNS + 4 };

const char *const top_sort_names[] = {"used", "name", "pages", "leases", "hit-rate", "evictions", NULL};

/* Styles of lines: escape sequences of ECMA-48. */
#define STYLE_PLAIN ""
#define STYLE_HEADING "\033[1m"
#define STYLE_NOTE "\033[33m"
#define STYLE_WRONG "\033[31m"

struct top_view_screen {
    FILE *f;
    unsigned width;
    const struct top_look *look;
    const struct top_moment *now, *before;
    double seconds; /* between them */
};

/* Prints a line, cut to the width. */
__attribute__((format(printf, 3, 4))) static void top_view_line(const struct top_view_screen *s,
                                                                const char *style, const char *fmt, ...)
{
    bool styled = s->look->colour && style[0] != '\0';
    char text[LINE_BYTES] = "";
    size_t n;
    va_list ap;

    va_start(ap, fmt);
    (void) vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    n = strnlen(text, s->width < LINE_BYTES ? s->width : LINE_BYTES);
    for (size_t i = 0; i < n; i++) /* names come from clients and drivers: no control characters */
        if (text[i] < 0x20 || text[i] > 0x7e)
            text[i] = '?';
    while (n > 0 && text[n - 1] == ' ')
        n--;
    fprintf(s->f, "%s%.*s%s\n", styled ? style : "", (int) n, text, styled ? "\033[0m" : "");
}

/* ---- amounts ---- */

enum top_unit { BYTES, COUNT, PERCENT, RATE };

/* An amount in few columns: "3.2 MiB", "12.3k", "75.0" or "-" if it is below 0, "2.50". */
static const char *top_view_amount(enum top_unit unit, double x, char ret[static HUMAN_BYTES])
{
    const char *scale = " kMGT";
    const char *format = "%.2g";
    char number[HUMAN_BYTES - 1];

    switch (unit) {
    case BYTES:
        return human_bytes((uint64_t) x, ret);
    case COUNT:
        while (x >= 9999.5 && scale[1] != '\0') {
            x /= 1000;
            scale++;
        }
        format = *scale == ' ' || x >= 99.95 ? "%.0f" : "%.1f";
        break;
    case PERCENT:
        if (x < 0) {
            memcpy(ret, "-", 2);
            return ret;
        }
        format = "%.1f";
        break;
    case RATE:
        if (x < 100000)
            format = x < 10 && x > 0 ? "%.2f" : "%.0f";
        break;
    }

    (void) snprintf(number, sizeof(number), format, x);
    (void) snprintf(ret, HUMAN_BYTES, "%s%.1s", number, unit == COUNT && *scale != ' ' ? scale : "");
    return ret;
}

/* Growth of a counter. One that became smaller belongs to a daemon that was restarted. */
static double top_view_growth(uint64_t now, uint64_t before)
{
    return (double) (now >= before ? now - before : now);
}

static double top_view_seconds(const struct top_moment *now, const struct top_moment *before)
{
    double seconds = before ? now->seconds - before->seconds : (double) now->status->uptime_ms * 1e-3;

    return seconds > 1e-3 ? seconds : 1e-3;
}

static double top_view_evictions(const struct top_moment *now, const struct top_moment *before)
{
    return top_view_growth(now->status->evictions, before ? before->status->evictions : 0) /
           top_view_seconds(now, before);
}

/* ---- head ---- */

static void top_view_pool(const struct top_view_screen *s, const char *name, uint64_t page_bytes,
                          uint64_t pool_bytes, uint64_t waste_bytes)
{
    double share = pool_bytes > 0 ? (double) page_bytes / (double) pool_bytes : 0;
    char pool[HUMAN_BYTES], pages[HUMAN_BYTES], waste[HUMAN_BYTES], cells[BAR_CELLS + 1] = "";
    int n = (int) ((share < 1 ? share : 1) * BAR_CELLS + 0.5);

    memset(cells, '#', (size_t) n);
    memset(cells + n, '.', (size_t) (BAR_CELLS - n));
    top_view_line(s, STYLE_PLAIN, "%-5.15s [%s] %s in pages of %s, %s waste", name, cells,
                  human_bytes(page_bytes, pages), human_bytes(pool_bytes, pool),
                  human_bytes(waste_bytes, waste));
}

static void top_view_head(const struct top_view_screen *s)
{
    const Kvcobra__StatusReply *st = s->now->status;
    bool tiers_are_fine = tier_state_is_fine(st->disk_tier) && tier_state_is_fine(st->cluster_tier);
    char up[HUMAN_BYTES], rate[HUMAN_BYTES];

    top_view_line(s, st->draining ? STYLE_WRONG : STYLE_PLAIN,
                  "kvcobrad %s  process %ju  up %s  restart=%s%s", st->version, (uintmax_t) st->pid,
                  human_seconds((double) st->uptime_ms * 1e-3, up), st->restart,
                  st->draining ? "  DRAINING" : "");
    top_view_pool(s, "pool", st->page_bytes, st->pool_bytes, st->waste_bytes);
    for (size_t i = 1; i < st->n_devices; i++) {
        const Kvcobra__DeviceStatus *d = st->devices[i];

        if (d->state == KVCOBRA__DEVICE_STATE__DEVICE_READY)
            top_view_pool(s, d->name, d->page_bytes, d->pool_bytes, d->waste_bytes);
        else if (d->state == KVCOBRA__DEVICE_STATE__DEVICE_OPENING)
            top_view_line(s, STYLE_NOTE, "%-5.15s is being opened", d->name);
        else
            top_view_line(s, STYLE_WRONG, "%-5.15s %s", d->name, d->message);
    }
    if (tier_state_exists(st->disk_tier) || tier_state_exists(st->cluster_tier))
        top_view_line(s, tiers_are_fine ? STYLE_PLAIN : STYLE_WRONG, "tiers  disk %s  cluster %s",
                      tier_state_show(st->disk_tier), tier_state_show(st->cluster_tier));
    top_view_line(
        s, STYLE_PLAIN, "%ju sessions  %ju leases on %ju pages  %s evictions/s  %ju packets refused",
        (uintmax_t) st->sessions, (uintmax_t) st->leases, (uintmax_t) st->held_pages,
        top_view_amount(RATE, top_view_evictions(s->now, s->before), rate), (uintmax_t) st->refused_packets);
}

/* ---- rows of tables: a text, and amounts in columns ---- */

struct top_column {
    const char *title;
    int width;
    enum top_unit unit;
};

/* @shown: the columns, as a set of bits. @value: by column; NULL: the heading. */
static void top_view_row(const struct top_view_screen *s, const char *style, const char *text,
                         int text_columns, const struct top_column *columns, unsigned shown,
                         const double *value)
{
    char line[LINE_BYTES], cell[HUMAN_BYTES];
    size_t n = (size_t) snprintf(line, sizeof(line), "%-*.*s", text_columns, text_columns, text);

    for (unsigned c = 0; shown >> c; c++)
        if (shown & 1u << c)
            n += (size_t) snprintf(line + n, sizeof(line) - n, " %*s", columns[c].width,
                                   value ? top_view_amount(columns[c].unit, value[c], cell)
                                         : columns[c].title);
    top_view_line(s, style, "%s", line);
}

/* ---- tenants ---- */

/* In the order in which the columns stand; those up to EVICTIONS are the usual ones. */
enum {
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

static const struct top_column tenant_columns[N_COLUMNS] = {
    {"USED", 10, BYTES},  {"QUOTA", 10, BYTES},  {"HELD", 10, BYTES},   {"PAGES", 6, COUNT},
    {"LEASES", 6, COUNT}, {"HIT %", 6, PERCENT}, {"EVICT/S", 8, RATE},  {"SESSIONS", 8, COUNT},
    {"HITS/S", 8, RATE},  {"MISSES/S", 8, RATE}, {"ARENAS", 10, BYTES}, {"GUARANTEE", 10, BYTES},
};

/* The first ones that fit are shown. */
static const int tenant_columns_by_rank[N_COLUMNS] = {
    USED, HITS, EVICTIONS, HELD, QUOTA, PAGES, LEASES, SESSIONS, HITS_S, MISSES_S, ARENA, GUARANTEE};

struct top_view_tenant {
    const Kvcobra__TenantStatus *now;
    double value[N_COLUMNS];
};

static void top_view_fill_tenant(const struct top_view_screen *s, const Kvcobra__TenantStatus *t,
                                 struct top_view_tenant *ret)
{
    static const Kvcobra__TenantStatus none = KVCOBRA__TENANT_STATUS__INIT;
    const Kvcobra__TenantStatus *b = &none;
    double hits, misses;

    for (size_t i = 0; s->before && i < s->before->status->n_tenants; i++)
        if (strcmp(s->before->status->tenants[i]->name, t->name) == 0)
            b = s->before->status->tenants[i];
    hits = top_view_growth(t->hits, b->hits);
    misses = top_view_growth(t->misses, b->misses);
    ret->now = t;
    ret->value[USED] = (double) t->used_bytes;
    ret->value[QUOTA] = (double) t->quota_bytes;
    ret->value[HELD] = (double) t->held_bytes;
    ret->value[PAGES] = (double) t->pages;
    ret->value[LEASES] = (double) t->leases;
    ret->value[HITS] = hits + misses > 0 ? 100 * hits / (hits + misses) : -1;
    ret->value[EVICTIONS] = top_view_growth(t->evictions, b->evictions) / s->seconds;
    ret->value[SESSIONS] = (double) t->sessions;
    ret->value[HITS_S] = hits / s->seconds;
    ret->value[MISSES_S] = misses / s->seconds;
    ret->value[ARENA] = (double) t->arena_bytes;
    ret->value[GUARANTEE] = (double) t->guarantee_bytes;
}

/* qsort_r(): the largest first. */
static int top_view_compare(const void *a, const void *b, void *ctx)
{
    static const int columns[TOP_N_SORTS] = {
        [TOP_BY_USED] = USED,     [TOP_BY_PAGES] = PAGES,         [TOP_BY_LEASES] = LEASES,
        [TOP_BY_HIT_RATE] = HITS, [TOP_BY_EVICTIONS] = EVICTIONS,
    };
    const struct top_view_tenant *x = a, *y = b;
    const enum top_sort *sort = ctx;
    double u = x->value[columns[*sort]], v = y->value[columns[*sort]];

    if (*sort != TOP_BY_NAME && u != v)
        return u < v ? 1 : -1;
    return strcmp(x->now->name, y->now->name);
}

/* The columns that fit, as a set of bits. */
static unsigned top_view_fit_columns(unsigned width, int *ret_name_columns)
{
    int left = (int) width - NAME_COLUMNS;
    unsigned shown = 0;

    for (unsigned i = 0; i < N_COLUMNS; i++) {
        int c = tenant_columns_by_rank[i];

        if (left < tenant_columns[c].width + 1)
            break;
        left -= tenant_columns[c].width + 1;
        shown |= 1u << c;
    }

    *ret_name_columns = NAME_COLUMNS + (left > 0 ? left : 0);
    *ret_name_columns = *ret_name_columns < NAME_COLUMNS_MAX ? *ret_name_columns : NAME_COLUMNS_MAX;
    return shown;
}

static void top_view_tenant_row(const struct top_view_screen *s, const struct top_view_tenant *t,
                                unsigned shown, int name_columns)
{
    bool is_full = t->now->used_bytes > t->now->quota_bytes / 100 * 95;
    char name[TENANT_NAME_BYTES];

    top_view_row(s, is_full ? STYLE_NOTE : STYLE_PLAIN,
                 name_columns > NAME_COLUMNS ? tenant_name_show(t->now->name, name) : t->now->name,
                 name_columns, tenant_columns, shown, t->value);
}

/* Names the usual columns that the window has no room for. Return: whether there are any. */
static bool top_view_left_out(unsigned shown, char *ret, size_t room)
{
    size_t n = (size_t) snprintf(ret, room, "no room for");
    bool any = false;

    for (unsigned c = USED; c <= EVICTIONS; c++)
        if (!(shown & 1u << c)) {
            n += (size_t) snprintf(ret + n, room - n, "%s %s", any ? "," : "", tenant_columns[c].title);
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

static const struct top_column space_columns[] = {{"PAGES", 6, COUNT},    {"TOKENS", 8, COUNT},
                                                  {"FREE TOK", 8, COUNT}, {"HELD", 6, COUNT},
                                                  {"LEASED/S", 8, RATE},  {"EVICT/S", 8, RATE}};

enum { SPACE_TEXT_COLUMNS = 29, SPACE_SHOWN = (1 << sizeof(space_columns) / sizeof(space_columns[0])) - 1 };

static void top_view_space_row(const struct top_view_screen *s, const Kvcobra__SpaceStatus *x)
{
    static const Kvcobra__SpaceStatus none = KVCOBRA__SPACE_STATUS__INIT;
    const Kvcobra__ListTablesReply *tables = s->now->tables;
    const Kvcobra__SpaceStatus *b = &none;
    const char *state = "?";
    char digest[DIGEST_HEX_BYTES], heads[24], text[DIGEST_HEX_BYTES + 48];

    for (size_t i = 0; s->before && i < s->before->status->n_spaces; i++) {
        const Kvcobra__SpaceStatus *y = s->before->status->spaces[i];

        if (memcmp(x->table_digest.data, y->table_digest.data, KVC_DIGEST_BYTES) == 0 &&
            x->first_head == y->first_head && x->n_heads == y->n_heads)
            b = y;
    }
    for (size_t i = 0; i < tables->n_tables; i++)
        if (memcmp(tables->tables[i]->digest.data, x->table_digest.data, KVC_DIGEST_BYTES) == 0)
            state = operator_table_state(tables->tables[i]->state);
    (void) snprintf(heads, sizeof(heads), "%u-%u", x->first_head, x->first_head + x->n_heads - 1);
    (void) snprintf(text, sizeof(text), "%-12s %-8s %7s", digest_short(x->table_digest.data, digest), state,
                    heads);
    top_view_row(s, STYLE_PLAIN, text, SPACE_TEXT_COLUMNS, space_columns, SPACE_SHOWN,
                 (const double[]){(double) x->pages, (double) x->tokens, (double) x->tokens_free,
                                  (double) x->held_pages, top_view_growth(x->leased, b->leased) / s->seconds,
                                  top_view_growth(x->evictions, b->evictions) / s->seconds});
}

/* ---- history ---- */

static double top_history_hit_share(const Kvcobra__StatusReply *now, const Kvcobra__StatusReply *before)
{
    const Kvcobra__StatusReply *const both[] = {now, before};
    uint64_t hits[2] = {0}, misses[2] = {0};
    double h, m;

    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; i < both[k]->n_tenants; i++) {
            hits[k] += both[k]->tenants[i]->hits;
            misses[k] += both[k]->tenants[i]->misses;
        }
    h = top_view_growth(hits[0], hits[1]);
    m = top_view_growth(misses[0], misses[1]);
    return h + m > 0 ? h / (h + m) : -1;
}

void top_history_add(struct top_history *h, const struct top_moment *now, const struct top_moment *before)
{
    const Kvcobra__StatusReply *st = now->status;

    h->ring[h->next] = (struct top_interval){
        .seconds = top_view_seconds(now, before),
        .hit_share = top_history_hit_share(st, before->status),
        .pool_share = st->pool_bytes > 0 ? (double) st->page_bytes / (double) st->pool_bytes : 0,
        .evictions = top_view_evictions(now, before),
    };
    h->next = (h->next + 1) % TOP_HISTORY_MAX;
    h->n += h->n < TOP_HISTORY_MAX;
}

/* The interval that is @age intervals old, 0 the newest. */
static const struct top_interval *top_history_at(const struct top_history *h, size_t age)
{
    return &h->ring[(h->next + TOP_HISTORY_MAX - 1 - age) % TOP_HISTORY_MAX];
}

/* '#' where the value reaches the row, '.' in the lowest one for small values. @value: [columns]. */
static void top_history_print_chart(const struct top_view_screen *s, const char *title, const double *value,
                                    double top, const char *label, size_t columns)
{
    top_view_line(s, STYLE_PLAIN, "%s", title);
    for (unsigned row = 0; row < CHART_ROWS; row++) {
        bool is_lowest = row == CHART_ROWS - 1;

        fprintf(s->f, "%*.*s ", LABEL_COLUMNS - 1, LABEL_COLUMNS - 1, is_lowest ? "0" : label);
        for (size_t i = 0; i < columns; i++) {
            double cells = top > 0 ? value[i] / top * CHART_ROWS : 0;

            if (value[i] >= 0 && cells >= CHART_ROWS - row - 0.5)
                fputc('#', s->f);
            else
                fputc(value[i] >= 0 && is_lowest ? '.' : ' ', s->f);
        }
        fputc('\n', s->f);
        label = "";
    }
}

/* The newest interval stands at the right. */
static void top_history_print(const struct top_view_screen *s, const struct top_history *h)
{
    size_t columns = s->width > CHART_WIDTH_MIN ? s->width - LABEL_COLUMNS : CHART_WIDTH_MIN - LABEL_COLUMNS;
    double hits[TOP_HISTORY_MAX], pool[TOP_HISTORY_MAX], evictions[TOP_HISTORY_MAX], seconds = 0, top = 0;
    char text[HUMAN_BYTES];

    columns = columns < TOP_HISTORY_MAX ? columns : TOP_HISTORY_MAX;
    for (size_t i = 0; i < columns; i++) {
        size_t age = columns - 1 - i;
        const struct top_interval *x = top_history_at(h, age);
        bool exists = age < h->n;

        hits[i] = exists ? x->hit_share : -1;
        pool[i] = exists ? x->pool_share : -1;
        evictions[i] = exists ? x->evictions : -1;
        seconds += exists ? x->seconds : 0;
        top = evictions[i] > top ? evictions[i] : top;
    }
    top_view_line(s, STYLE_PLAIN, "the last %s, all tenants", human_seconds(seconds, text));
    top_history_print_chart(s, "looked-up chunks that were found", hits, 1, "100 %", columns);
    top_history_print_chart(s, "host memory of the pool in pages", pool, 1, "100 %", columns);
    top_history_print_chart(s, "pages evicted per second", evictions, top, top_view_amount(RATE, top, text),
                            columns);
}

/* ---- the screen ---- */

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
        top_view_line(s, STYLE_PLAIN, "%s", lines[i]);
}

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

static void top_view_more(const struct top_view_screen *s, size_t n, size_t room)
{
    if (n > room && room > 0)
        top_view_line(s, STYLE_PLAIN, "... and %zu more", n - (room - 1));
}

/* Return: whether there was memory. */
static bool top_view_tables(const struct top_view_screen *s, unsigned height)
{
    const Kvcobra__StatusReply *st = s->now->status;
    _cleanup_(freep) struct top_view_tenant *tenants = calloc(st->n_tenants + 1, sizeof(*tenants));
    _cleanup_(freep) const Kvcobra__SpaceStatus **spaces = calloc(st->n_spaces + 1, sizeof(*spaces));
    enum top_sort sort = s->look->sort;
    char left_out[160];
    int name_columns;
    unsigned shown = top_view_fit_columns(s->width, &name_columns), fixed = FIXED_LINES;
    bool cut = top_view_left_out(shown, left_out, sizeof(left_out));
    size_t room_tenants = st->n_tenants, room_spaces = st->n_spaces;

    if (!tenants || !spaces)
        return false;

    for (size_t i = 0; i < st->n_tenants; i++)
        top_view_fill_tenant(s, st->tenants[i], &tenants[i]);
    qsort_r(tenants, st->n_tenants, sizeof(*tenants), top_view_compare, &sort);
    for (size_t i = 0; i < st->n_spaces; i++)
        spaces[i] = st->spaces[i];
    qsort(spaces, st->n_spaces, sizeof(*spaces), top_view_by_pages);

    fixed += (unsigned) (st->n_devices > 1 ? st->n_devices - 1 : 0) + cut + (s->width < TABLE_COLUMNS) +
             s->look->keys;
    if (height > 0)
        top_view_share(height > fixed ? height - fixed : 0, st->n_tenants, st->n_spaces, &room_tenants,
                       &room_spaces);
    top_view_row(s, STYLE_HEADING, "TENANT", name_columns, tenant_columns, shown, NULL);
    for (size_t i = 0; i < top_view_shown(st->n_tenants, room_tenants); i++)
        top_view_tenant_row(s, &tenants[i], shown, name_columns);
    top_view_more(s, st->n_tenants, room_tenants);
    if (cut)
        top_view_line(s, STYLE_NOTE, "%s", left_out);
    top_view_line(s, STYLE_PLAIN, "%s", "");
    top_view_row(s, STYLE_HEADING, "TABLE        STATE      HEADS", SPACE_TEXT_COLUMNS, space_columns,
                 SPACE_SHOWN, NULL);
    for (size_t i = 0; i < top_view_shown(st->n_spaces, room_spaces); i++)
        top_view_space_row(s, spaces[i]);
    top_view_more(s, st->n_spaces, room_spaces);
    if (s->width < TABLE_COLUMNS)
        top_view_line(s, STYLE_NOTE, "rows of tables need %d columns", TABLE_COLUMNS);
    return true;
}

static bool top_view_print(const struct top_view_screen *s, unsigned height)
{
    top_view_head(s);
    top_view_line(s, STYLE_PLAIN, "%s", "");
    if (s->look->help)
        top_view_help(s);
    else if (s->look->history)
        top_history_print(s, s->look->history);
    else if (!top_view_tables(s, height))
        return false;
    if (s->look->keys)
        top_view_line(s, STYLE_HEADING, "q quit  s sort: %s  g history  h help",
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
    struct top_view_screen s = {open_memstream(&text, &n),    width, look, now, before,
                                top_view_seconds(now, before)};
    bool whole;

    if (!s.f)
        return NULL;

    whole = top_view_print(&s, height);
    if (fclose(s.f) != 0 || !whole) {
        free(text);
        return NULL;
    }

    top_view_cut(text, height);
    return text;
}
