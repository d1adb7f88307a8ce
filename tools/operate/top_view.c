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

enum { LINE_BYTES = 256, BAR_CELLS = 20, HEAD_LINES = 4, TABLE_LINES = 2 };

struct top_view_screen {
    FILE *f;
    unsigned width;
};

/* Prints a line, cut to the width. */
__attribute__((format(printf, 2, 3))) static void top_view_line(const struct top_view_screen *s,
                                                                const char *fmt, ...)
{
    char text[LINE_BYTES];
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);

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
    fprintf(s->f, "%.*s\n", n, text);
}

/* ---- rates and counts ---- */

static double top_view_interval(const struct top_moment *now, const struct top_moment *before)
{
    double seconds = before ? now->seconds - before->seconds : (double) now->status->uptime_ms * 1e-3;

    return seconds > 1e-3 ? seconds : 1e-3;
}

/* Growth of a counter. One that became smaller belongs to a daemon that was restarted. */
static uint64_t top_view_growth(uint64_t now, uint64_t before)
{
    return now >= before ? now - before : now;
}

static const char *top_view_rate(uint64_t n, double seconds, char ret[static 16])
{
    double x = (double) n / seconds;

    if (n == 0)
        (void) snprintf(ret, 16, "0");
    else if (x < 10)
        (void) snprintf(ret, 16, "%.2f", x);
    else if (x < 100000)
        (void) snprintf(ret, 16, "%.0f", x);
    else
        (void) snprintf(ret, 16, "%.2g", x);
    return ret;
}

/* Percent of looked-up chunks that were found; "-" if none was looked up. */
static const char *top_view_hit_rate(uint64_t hits, uint64_t misses, char ret[static 16])
{
    if (hits + misses == 0)
        (void) snprintf(ret, 16, "-");
    else
        (void) snprintf(ret, 16, "%.1f", 100.0 * (double) hits / (double) (hits + misses));
    return ret;
}

/* A count in few columns: "12k", "3.4M". */
static const char *top_view_count(uint64_t n, char ret[static 16])
{
    static const char units[] = {' ', 'k', 'M', 'G', 'T'};
    double x = (double) n;
    unsigned u = 0;

    while (x >= 9999.5 && u + 1 < sizeof(units)) {
        x /= 1000;
        u++;
    }

    if (u == 0)
        (void) snprintf(ret, 16, "%ju", (uintmax_t) n);
    else
        (void) snprintf(ret, 16, x < 99.95 ? "%.1f%c" : "%.0f%c", x, units[u]);
    return ret;
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

static void top_view_gpu_line(const struct top_view_screen *s, const kvc_device_status *d)
{
    char pool[HUMAN_BYTES], pages[HUMAN_BYTES], waste[HUMAN_BYTES], cells[BAR_CELLS + 1];

    if (d->state == KVC_DEVICE_READY) {
        top_view_bar(d->page_bytes, d->pool_bytes, cells);
        top_view_line(s, "%-5.15s [%s] %s in pages of %s, %s waste", d->name, cells,
                      human_bytes(d->page_bytes, pages), human_bytes(d->pool_bytes, pool),
                      human_bytes(d->waste_bytes, waste));
    } else {
        top_view_line(s, "%-5.15s %s", d->name,
                      d->state == KVC_DEVICE_OPENING ? "is being opened" : d->message);
    }
}

static void top_view_head(const struct top_view_screen *s, const struct top_moment *now,
                          const struct top_moment *before)
{
    const kvc_status *st = now->status;
    char up[HUMAN_BYTES], pool[HUMAN_BYTES], pages[HUMAN_BYTES], waste[HUMAN_BYTES], cells[BAR_CELLS + 1],
        r[16];

    top_view_line(s, "kvcobrad %.*s  process %ju  up %s  %.*s  restart=%.*s%s", (int) sizeof(st->version),
                  st->version, (uintmax_t) st->pid, human_seconds((double) st->uptime_ms * 1e-3, up),
                  (int) sizeof(st->event_backend), st->event_backend, (int) sizeof(st->restart), st->restart,
                  st->draining ? "  DRAINING" : "");
    top_view_bar(st->page_bytes, st->pool_bytes, cells);
    top_view_line(s, "pool  [%s] %s in pages of %s, %s waste", cells, human_bytes(st->page_bytes, pages),
                  human_bytes(st->pool_bytes, pool), human_bytes(st->waste_bytes, waste));
    for (size_t i = 1; i < st->n_devices; i++)
        top_view_gpu_line(s, &st->devices[i]);
    top_view_line(s, "%ju sessions  %ju leases on %ju pages  %s evictions/s  %ju packets refused",
                  (uintmax_t) st->sessions, (uintmax_t) st->leases, (uintmax_t) st->held_pages,
                  top_view_rate(top_view_growth(st->evictions, before ? before->status->evictions : 0),
                                top_view_interval(now, before), r),
                  (uintmax_t) st->refused_packets);
}

/* ---- tenants ---- */

static int top_view_by_use(const void *a, const void *b)
{
    const kvc_tenant_status *x = *(const kvc_tenant_status *const *) a,
                            *y = *(const kvc_tenant_status *const *) b;

    if (x->used_bytes != y->used_bytes)
        return x->used_bytes < y->used_bytes ? 1 : -1;
    return strcmp(x->name, y->name);
}

static const kvc_tenant_status *top_view_earlier_tenant(const struct top_moment *before, const char *name)
{
    for (size_t i = 0; before && i < before->status->n_tenants; i++)
        if (strcmp(before->status->tenants[i].name, name) == 0)
            return &before->status->tenants[i];
    return NULL;
}

static void top_view_tenant_line(const struct top_view_screen *s, const kvc_tenant_status *t,
                                 const kvc_tenant_status *b, double seconds)
{
    static const kvc_tenant_status none;
    char used[HUMAN_BYTES], quota[HUMAN_BYTES], held[HUMAN_BYTES], pages[16], leases[16], hits[16],
        evictions[16];

    if (!b)
        b = &none;
    top_view_line(
        s, "%-16.16s %10s %10s %10s %6s %6s %6s %8s", t->name, human_bytes(t->used_bytes, used),
        human_bytes(t->quota_bytes, quota), human_bytes(t->held_bytes, held), top_view_count(t->pages, pages),
        top_view_count(t->leases, leases),
        top_view_hit_rate(top_view_growth(t->hits, b->hits), top_view_growth(t->misses, b->misses), hits),
        top_view_rate(top_view_growth(t->evictions, b->evictions), seconds, evictions));
}

/* ---- tables ---- */

static int top_view_by_pages(const void *a, const void *b)
{
    const kvc_space_status *x = *(const kvc_space_status *const *) a,
                           *y = *(const kvc_space_status *const *) b;

    if (x->pages != y->pages)
        return x->pages < y->pages ? 1 : -1;
    return memcmp(x->table_digest, y->table_digest, sizeof(x->table_digest));
}

static const kvc_space_status *top_view_earlier_space(const struct top_moment *before,
                                                      const kvc_space_status *x)
{
    for (size_t i = 0; before && i < before->status->n_spaces; i++) {
        const kvc_space_status *y = &before->status->spaces[i];

        if (memcmp(x->table_digest, y->table_digest, sizeof(x->table_digest)) == 0 &&
            x->first_kv_head == y->first_kv_head && x->n_kv_heads == y->n_kv_heads)
            return y;
    }
    return NULL;
}

static const char *top_view_state_of(const struct top_moment *now, const uint8_t *digest)
{
    static const char *const names[] = {
        [KVC_TABLE_STAGED] = "staged",    [KVC_TABLE_VERIFIED] = "verified", [KVC_TABLE_SHADOW] = "shadow",
        [KVC_TABLE_ACTIVE] = "active",    [KVC_TABLE_DRAINING] = "draining", [KVC_TABLE_RETIRED] = "retired",
        [KVC_TABLE_REJECTED] = "rejected"};

    for (size_t i = 0; i < now->n_tables; i++) {
        unsigned state = (unsigned) now->tables[i].state;

        if (memcmp(now->tables[i].digest, digest, KVC_DIGEST_BYTES) == 0)
            return state < sizeof(names) / sizeof(names[0]) && names[state] ? names[state] : "?";
    }

    return "?";
}

static void top_view_space_line(const struct top_view_screen *s, const struct top_moment *now,
                                const kvc_space_status *x, const kvc_space_status *b, double seconds)
{
    static const kvc_space_status none;
    char digest[DIGEST_HEX_BYTES], heads[24], pages[16], tokens[16], room[16], held[16], leased[16],
        evictions[16];

    if (!b)
        b = &none;
    (void) snprintf(heads, sizeof(heads), "%u-%u", x->first_kv_head, x->first_kv_head + x->n_kv_heads - 1);
    top_view_line(s, "%-12s %-8s %7s %6s %8s %8s %6s %8s %8s", digest_short(x->table_digest, digest),
                  top_view_state_of(now, x->table_digest), heads, top_view_count(x->pages, pages),
                  top_view_count(x->tokens, tokens), top_view_count(x->tokens_free, room),
                  top_view_count(x->held_pages, held),
                  top_view_rate(top_view_growth(x->leased, b->leased), seconds, leased),
                  top_view_rate(top_view_growth(x->evictions, b->evictions), seconds, evictions));
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

static void *top_view_sorted(const void *items, size_t n, size_t size,
                             int (*order)(const void *, const void *))
{
    const void **p = calloc(n + 1, sizeof(*p));

    for (size_t i = 0; p && i < n; i++)
        p[i] = (const char *) items + i * size;
    if (p)
        qsort(p, n, sizeof(*p), order);
    return p;
}

static bool top_view_print(const struct top_view_screen *s, const struct top_moment *now,
                           const struct top_moment *before, unsigned height)
{
    const kvc_status *st = now->status;
    _cleanup_(freep) const kvc_tenant_status **tenants =
        top_view_sorted(st->tenants, st->n_tenants, sizeof(*st->tenants), top_view_by_use);
    _cleanup_(freep) const kvc_space_status **spaces =
        top_view_sorted(st->spaces, st->n_spaces, sizeof(*st->spaces), top_view_by_pages);
    unsigned fixed = HEAD_LINES + TABLE_LINES + 1 + (unsigned) (st->n_devices > 1 ? st->n_devices - 1 : 0);
    size_t room_tenants = st->n_tenants, room_spaces = st->n_spaces, i;
    double seconds = top_view_interval(now, before);

    if (!tenants || !spaces)
        return false;
    if (height > 0)
        top_view_share(height > fixed ? height - fixed : 0, st->n_tenants, st->n_spaces, &room_tenants,
                       &room_spaces);
    top_view_head(s, now, before);
    top_view_line(s, "%s", "");
    top_view_line(s, "%-16s %10s %10s %10s %6s %6s %6s %8s", "TENANT", "USED", "QUOTA", "HELD", "PAGES",
                  "LEASES", "HIT %", "EVICT/S");
    for (i = 0; i < top_view_shown(st->n_tenants, room_tenants); i++)
        top_view_tenant_line(s, tenants[i], top_view_earlier_tenant(before, tenants[i]->name), seconds);
    if (i < st->n_tenants && room_tenants > 0)
        top_view_line(s, "... and %zu more", st->n_tenants - i);
    top_view_line(s, "%s", "");
    top_view_line(s, "%-12s %-8s %7s %6s %8s %8s %6s %8s %8s", "TABLE", "STATE", "HEADS", "PAGES", "TOKENS",
                  "FREE TOK", "HELD", "LEASED/S", "EVICT/S");
    for (i = 0; i < top_view_shown(st->n_spaces, room_spaces); i++)
        top_view_space_line(s, now, spaces[i], top_view_earlier_space(before, spaces[i]), seconds);
    if (i < st->n_spaces && room_spaces > 0)
        top_view_line(s, "... and %zu more", st->n_spaces - i);
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

char *top_view(const struct top_moment *now, const struct top_moment *before, unsigned width, unsigned height)
{
    char *text = NULL;
    size_t n = 0;
    struct top_view_screen s = {.f = open_memstream(&text, &n), .width = width};
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
